//! Ours beside the peers: in the same run, in turn, several rounds, medians.
//!
//! ```text
//! cargo bench --bench compare                        # starts its own redis-server
//! cargo bench --bench compare -- --quick             # within five minutes
//! cargo bench --bench compare -- --quick hot_name    # only figures whose name contains this
//! cargo bench --bench compare -- --save              # and keep the results in benches/results
//! ```
//!
//! One line a figure: its name, ours, the other's, their ratio, and the ratio to reach if there is one. What could not be measured
//! is said in one line. Table and plots go to `target/compare`.
//!
//! Both sides of a figure run on the same kind of runtime. It has one thread, or two workers as in a service where `what` names
//! them. Peers that are not written in Rust run on one thread. "Four processes" are this program, four times: see [`worker`].

mod figures;
mod heap;
mod measure;
mod ours;
#[path = "../../tests/support/pause.rs"]
#[allow(dead_code, unreachable_pub)]
mod pause;
mod peers;
mod plot;
mod report;
#[path = "../../tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub)]
mod server;
mod worker;

use figures::Results;
use measure::Plan;

/// What this run is asked for.
struct Args {
    quick: bool,
    save: bool,
    /// Parts of names. None at all means every figure.
    wanted: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // A task that fails is the end: its figure would be wrong.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::exit(1);
    }));
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some(worker::ARGUMENT) => return worker::main(&args[1..]).await,
        // `cargo test --benches` only wants to know that this builds.
        _ if !args.iter().any(|arg| arg == "--bench") => return,
        _ => {}
    }
    let args = Args::parse(&args);
    if args.save && !args.wanted.is_empty() {
        eprintln!("--save keeps all figures: name none");
        std::process::exit(2);
    }
    let mut results = Results::new(Plan::new(args.quick), args.wanted);
    figures::latency::run(&mut results).await;
    figures::single::run(&mut results).await;
    figures::keyed::run(&mut results).await;
    figures::flood::run(&mut results).await;
    figures::fleet::run(&mut results).await;
    figures::growth::run(&mut results).await;
    for line in &results.not_measured {
        println!("not measured: {line}");
    }
    if let Err(error) = report::write(&results, args.quick, args.save) {
        eprintln!("the results cannot be written: {error}");
        std::process::exit(1);
    }
}

// === impl Args ===

impl Args {
    fn parse(args: &[String]) -> Self {
        let mut parsed = Self {
            quick: false,
            save: false,
            wanted: Vec::new(),
        };
        for arg in args {
            match arg.as_str() {
                "--bench" => {}
                "--quick" => parsed.quick = true,
                "--save" => parsed.save = true,
                // Such as those of criterion, when all benches run at once.
                flag if flag.starts_with('-') => eprintln!("{flag} means nothing here"),
                name => parsed.wanted.push(name.to_owned()),
            }
        }
        parsed
    }
}
