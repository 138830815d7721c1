//! Lock libraries of other languages: a small script for each, run as a separate process with packages in a temporary folder.

use crate::measure::Plan;
use std::io::ErrorKind;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::Command;

/// How long installing packages may take, and a script beyond what it measures.
const PATIENCE: Duration = Duration::from_secs(60);
const NODE: &str = include_str!("hot_name.js");
const PYTHON: &str = include_str!("hot_name.py");

#[derive(Clone, Copy)]
pub(crate) enum Library {
    RedisSemaphore,
    Redlock,
    RedisPy,
}

/// A script that is ready to run.
pub(crate) struct Script {
    library: Library,
    folder: TempDir,
}

// === impl Script ===

impl Script {
    /// Downloads the packages of the script. The error names what is missing.
    pub(crate) async fn install(library: Library) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (script, text) = match library {
            Library::RedisSemaphore | Library::Redlock => ("hot_name.js", NODE),
            Library::RedisPy => ("hot_name.py", PYTHON),
        };
        std::fs::write(folder.path().join(script), text).map_err(|error| error.to_string())?;
        let foreign = Self { library, folder };
        let npm = ["install", "--no-audit", "--no-fund", "ioredis@5"];
        let pip = ["-m", "pip", "install", "--quiet", "--target", "packages"];
        match library {
            Library::RedisSemaphore => {
                let args = [&npm[..], &["redis-semaphore@5"]].concat();
                foreign.run("npm", &args, PATIENCE).await?;
            }
            Library::Redlock => {
                let args = [&npm[..], &["redlock@4"]].concat();
                foreign.run("npm", &args, PATIENCE).await?;
            }
            Library::RedisPy => {
                let args = [&pip[..], &["redis[hiredis]"]].concat();
                foreign.run("python3", &args, PATIENCE).await?;
            }
        }
        Ok(foreign)
    }

    /// Measures pairs a second of this many tasks on one name.
    pub(crate) async fn rate(&self, url: &str, tasks: usize, plan: Plan) -> Result<f64, String> {
        let (program, script) = match self.library {
            Library::RedisSemaphore => ("node", &["hot_name.js", "redis-semaphore"][..]),
            Library::Redlock => ("node", &["hot_name.js", "redlock"][..]),
            Library::RedisPy => ("python3", &["hot_name.py"][..]),
        };
        let numbers = [
            tasks as u128,
            plan.warm_up.as_millis(),
            plan.window.as_millis(),
        ];
        let numbers = numbers.map(|number| number.to_string());
        let mut args = [script, &[url]].concat();
        args.extend(numbers.iter().map(String::as_str));
        let within = PATIENCE + plan.warm_up + plan.window;
        let output = self.run(program, &args, within).await?;
        let rate = output.trim().parse();
        rate.map_err(|_| format!("{program} printed {output:?} instead of a number"))
    }

    /// Returns the standard output of the program.
    async fn run(&self, program: &str, args: &[&str], within: Duration) -> Result<String, String> {
        let output = Command::new(program)
            .args(args)
            .current_dir(self.folder.path())
            .env("PYTHONPATH", "packages")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(within, output).await;
        let output = output.map_err(|_| format!("{program} took more than {within:?}"))?;
        let output = output.map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!("{program} is not installed"),
            _ => format!("{program} does not start: {error}"),
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let error = String::from_utf8_lossy(&output.stderr);
        let line = error.lines().rfind(|line| !line.trim().is_empty());
        Err(format!("{program} failed: {}", line.unwrap_or("no output")))
    }
}
