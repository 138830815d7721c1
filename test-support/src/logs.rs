//! What the crate logs, for a test to read.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, Once, PoisonError};
use tracing_subscriber::fmt::format::FmtSpan;

/// The lines that are logged on this thread until this is dropped: all of them, if the test's runtime has no other.
#[derive(Debug)]
pub struct Logs(Buffer);

type Buffer = Arc<Mutex<Vec<u8>>>;

thread_local! {
    static HERE: RefCell<Option<Buffer>> = const { RefCell::new(None) };
}

/// Writes to whoever reads the logs of this thread.
struct ToReader;

// === impl Logs ===

impl Logs {
    pub fn capture() -> Self {
        static SUBSCRIBER: Once = Once::new();
        SUBSCRIBER.call_once(|| {
            tracing_subscriber::fmt()
                .with_max_level(tracing::Level::TRACE)
                .with_ansi(false)
                .with_span_events(FmtSpan::CLOSE)
                .with_writer(|| ToReader)
                .init();
        });
        let buffer = Buffer::default();
        HERE.set(Some(buffer.clone()));
        Self(buffer)
    }

    pub fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The lines that hold these words.
    pub fn with(&self, words: &str) -> Vec<String> {
        let text = self.text();
        let lines = text.lines().filter(|line| line.contains(words));
        lines.map(str::to_owned).collect()
    }

    /// Warnings of this crate, and worse.
    pub fn warnings(&self) -> Vec<String> {
        let text = self.text();
        let lines = text.lines().filter(|line| {
            line.contains("tower_permit") && (line.contains(" WARN ") || line.contains(" ERROR "))
        });
        lines.map(str::to_owned).collect()
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        HERE.set(None);
    }
}

impl Write for ToReader {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        HERE.with_borrow(|buffer| {
            if let Some(buffer) = buffer {
                let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
                buffer.extend_from_slice(bytes);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
