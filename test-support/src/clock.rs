//! A wall clock of server processes that a test moves while they run, forwards and backwards.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use tempfile::TempDir;

/// The wall clock of processes started with [`env`](Self::env). Their other clocks are those of the machine.
#[derive(Debug)]
pub struct WallClock {
    folder: TempDir,
    file: File,
}

// === impl WallClock ===

impl WallClock {
    /// Creates a clock that shows the right time.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the clock");
        let source = folder.path().join("clock.c");
        std::fs::write(&source, include_str!("clock.c")).unwrap();
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-o"])
            .arg(folder.path().join("clock.so"))
            .arg(&source)
            .status()
            .expect("cc is not installed: run tests/run");
        assert!(compiled.success(), "clock.c does not compile");
        let file = File::create(folder.path().join("shift")).unwrap();
        let clock = Self { folder, file };
        clock.shift(0);
        clock
    }

    /// Sets the clock this many seconds ahead of the right time, or behind it.
    pub fn shift(&self, seconds: i64) {
        let micros = seconds * 1_000_000;
        self.file.write_all_at(&micros.to_ne_bytes(), 0).unwrap();
    }

    pub fn env(&self) -> [(String, String); 2] {
        let path = |file| {
            let path = self.folder.path().join(file);
            path.to_str().expect("a path in UTF-8").to_owned()
        };
        [
            ("LD_PRELOAD".into(), path("clock.so")),
            ("CLOCK_FILE".into(), path("shift")),
        ]
    }
}
