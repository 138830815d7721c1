//! Writes the results as a table and plots.

use crate::figures::{Figure, Results, number};
use crate::plot;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prints the table and writes it with the plots to the target folder. With `save` also to `benches/results`.
pub(crate) fn write(results: &Results, quick: bool, save: bool) -> io::Result<()> {
    let table = table(results, quick);
    println!("\n{table}");
    let benches = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![target().join("compare")];
    if save {
        folders.push(benches.join("results"));
    }
    for folder in folders {
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("compare.md"), &table)?;
        plot::waits(&folder.join("waits.svg"), &results.waits).map_err(io::Error::other)?;
        plot::hot_name(&folder.join("hot_name.svg"), &results.figures).map_err(io::Error::other)?;
        println!("written: {}", folder.display());
    }
    Ok(())
}

/// Returns cargo's target folder.
fn target() -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    scratch.parent().unwrap_or(scratch).to_owned()
}

fn table(results: &Results, quick: bool) -> String {
    let mut table = format!(
        "Measured on {}{}. Medians of {} rounds in turn.\n\n\
         | figure | tower-permit | alternative | ratio | target | what |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        machine(),
        if quick { " (`--quick`)" } else { "" },
        results.plan.rounds,
    );
    for figure in &results.figures {
        table.push_str(&row(figure));
    }
    if !results.not_measured.is_empty() {
        let reasons = results.not_measured.join("; ");
        table.push_str(&format!("\nNot measured: {reasons}.\n"));
    }
    table
}

fn row(figure: &Figure) -> String {
    let about = figure.about;
    format!(
        "| `{}` | {} | {} | {} | {} | {} ({}) |\n",
        about.name,
        number(figure.ours),
        number(figure.other),
        number(figure.ratio()),
        figure.verdict().replace(">=", "≥").replace("<=", "≤"),
        about.what,
        about.unit,
    )
}

/// Describes the processor, cores, system and versions, as far as they are known.
fn machine() -> String {
    let line = |file: &str, start: &str| {
        let text = fs::read_to_string(file).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(start))?;
        Some(
            line.trim_matches(|c: char| c.is_whitespace() || ":=\"".contains(c))
                .to_owned(),
        )
    };
    let version_output = |program: &str| {
        let output = Command::new(program).arg("--version").output().ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let redis = version_output("redis-server").and_then(|output| {
        let version = output
            .split_whitespace()
            .find_map(|word| word.strip_prefix("v="));
        version.map(|version| format!("Redis {version}"))
    });
    let rust = version_output("rustc").and_then(|output| {
        let version = output.split_whitespace().nth(1);
        version.map(|version| format!("Rust {version}"))
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = [
        line("/proc/cpuinfo", "model name"),
        Some(format!("{cores} cores shared by client and server")),
        line("/etc/os-release", "PRETTY_NAME"),
        redis,
        rust,
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    parts.join(", ")
}
