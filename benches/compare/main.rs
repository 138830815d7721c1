//! Compares this crate with other implementations: in the same run, in turn, medians of several rounds.
//!
//! ```text
//! cargo bench -p tower-permit-benches --bench compare                        # starts its own redis-server
//! cargo bench -p tower-permit-benches --bench compare -- --quick             # within five minutes
//! cargo bench -p tower-permit-benches --bench compare -- --quick hot_name    # only figures with this in their name
//! cargo bench -p tower-permit-benches --bench compare -- --save              # and keep the results in benches/results
//! ```
//!
//! Prints one line for each figure: its name, the value of this crate, the other value, their ratio, and the target if there
//! is one; and one line for each figure that could not be measured. Table and plots are written to `target/compare`.
//!
//! Both sides of a figure run on the same kind of runtime: one thread, or two workers as in a service if the description says
//! so. Scripts of other languages run on one thread. Figures of four processes start this program four times: see [`worker`].

mod coordinators;
mod figures;
mod heap;
mod measure;
mod peers;
mod plot;
mod report;
mod worker;

use figures::Results;
use measure::Plan;
use test_support::redis as server;

/// The command line arguments.
struct Args {
    quick: bool,
    save: bool,
    /// Parts of names of figures. Empty: all figures.
    wanted: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // A panic in any task ends the program: its figure would be wrong.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::exit(1);
    }));
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some(worker::ARGUMENT) => return worker::main(&args[1..]).await,
        // `cargo test --benches` only checks that this builds.
        _ if !args.iter().any(|arg| arg == "--bench") => return,
        _ => {}
    }
    let args = Args::parse(&args);
    if args.save && !args.wanted.is_empty() {
        eprintln!("--save requires all figures: pass no names");
        std::process::exit(2);
    }
    let mut results = Results::new(Plan::new(args.quick), args.wanted);
    figures::latency::run(&mut results).await;
    figures::one_process::run(&mut results).await;
    figures::keyed::run(&mut results).await;
    figures::flood::run(&mut results).await;
    figures::four_processes::run(&mut results).await;
    figures::scaling::run(&mut results).await;
    for line in &results.not_measured {
        println!("not measured: {line}");
    }
    if let Err(error) = report::write(&results, args.quick, args.save) {
        eprintln!("failed to write the results: {error}");
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
                // Flags of criterion, when all benches run.
                flag if flag.starts_with('-') => eprintln!("ignored flag {flag}"),
                name => parsed.wanted.push(name.to_owned()),
            }
        }
        parsed
    }
}
