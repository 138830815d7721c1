//! Captures log lines for a test.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, Once, PoisonError};
use tracing_subscriber::fmt::format::FmtSpan;

/// The lines logged on this thread until the value is dropped. A current-thread runtime logs all of its lines there.
#[derive(Debug)]
pub struct Logs(Buffer);

type Buffer = Arc<Mutex<Vec<u8>>>;

thread_local! {
    static BUFFER: RefCell<Option<Buffer>> = const { RefCell::new(None) };
}

/// Writes to the buffer of this thread, if there is one.
struct ThreadWriter;

// === impl Logs ===

impl Logs {
    pub fn capture() -> Self {
        static SUBSCRIBER: Once = Once::new();
        SUBSCRIBER.call_once(|| {
            tracing_subscriber::fmt()
                .with_max_level(tracing::Level::TRACE)
                .with_ansi(false)
                .with_span_events(FmtSpan::CLOSE)
                .with_writer(|| ThreadWriter)
                .init();
        });
        let buffer = Buffer::default();
        BUFFER.set(Some(buffer.clone()));
        Self(buffer)
    }

    pub fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the lines that contain this text.
    pub fn with(&self, words: &str) -> Vec<String> {
        let text = self.text();
        let lines = text.lines().filter(|line| line.contains(words));
        lines.map(str::to_owned).collect()
    }

    /// Returns warnings and errors of `tower_permit`.
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
        BUFFER.set(None);
    }
}

impl Write for ThreadWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        BUFFER.with_borrow(|buffer| {
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
