//! Counts permit holders over several processes: each holder reports its entry and exit over a Unix socket and waits for
//! the acknowledgement.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// Counts the holders. A holder no longer counts once its process has ended.
#[derive(Debug)]
pub struct ProcessWitness {
    folder: TempDir,
    count: Arc<Mutex<Count>>,
    accepting: JoinHandle<()>,
}

/// The connection of one holder.
#[derive(Debug)]
pub struct Holder(UnixStream);

#[derive(Clone, Copy, Debug)]
struct Count {
    inside: usize,
    peak: usize,
    entries: u64,
    /// The integral of `inside` over time, in seconds, from `since` to `changed`.
    area: f64,
    since: Instant,
    changed: Instant,
}

/// What was counted during an interval.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// The most holders at one time.
    pub peak: usize,
    pub entries: u64,
    /// The average number of holders.
    pub mean: f64,
}

// === impl ProcessWitness ===

impl ProcessWitness {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the socket");
        let listener = UnixListener::bind(folder.path().join("witness")).expect("a socket");
        let count = Arc::new(Mutex::new(Count::new()));
        let accepting = tokio::spawn({
            let count = count.clone();
            async move {
                while let Ok((holder, _)) = listener.accept().await {
                    tokio::spawn(watch(holder, count.clone()));
                }
            }
        });
        Self {
            folder,
            count,
            accepting,
        }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("witness")
    }

    pub fn inside(&self) -> usize {
        lock(&self.count).inside
    }

    /// Returns what was counted since the last call, or since the start.
    pub fn take(&self) -> Observed {
        let mut count = lock(&self.count);
        count.add(0);
        let time = count.changed.duration_since(count.since).as_secs_f64();
        let observed = Observed {
            peak: count.peak,
            entries: count.entries,
            mean: count.area / time,
        };
        let inside = count.inside;
        *count = Count {
            inside,
            peak: inside,
            ..Count::new()
        };
        observed
    }
}

impl Drop for ProcessWitness {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn watch(mut holder: UnixStream, count: Arc<Mutex<Count>>) {
    let mut inside = false;
    while let Ok(message) = holder.read_u8().await {
        let enters = message == b'+';
        assert_ne!(enters, inside, "entries and exits alternate");
        inside = enters;
        lock(&count).add(if inside { 1 } else { -1 });
        if holder.write_u8(message).await.is_err() {
            break;
        }
    }
    if inside {
        lock(&count).add(-1);
    }
}

// === impl Holder ===

impl Holder {
    pub async fn connect(socket: &Path) -> Self {
        Self(UnixStream::connect(socket).await.expect("the witness runs"))
    }

    pub async fn enter(&mut self) {
        self.report(b'+').await;
    }

    /// The permit may be released only after this returns.
    pub async fn exit(&mut self) {
        self.report(b'-').await;
    }

    async fn report(&mut self, message: u8) {
        self.0.write_u8(message).await.expect("the witness runs");
        self.0.read_u8().await.expect("the witness runs");
    }
}

// === impl Count ===

impl Count {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            inside: 0,
            peak: 0,
            entries: 0,
            area: 0.0,
            since: now,
            changed: now,
        }
    }

    fn add(&mut self, by: isize) {
        let now = Instant::now();
        self.area += self.inside as f64 * now.duration_since(self.changed).as_secs_f64();
        self.changed = now;
        self.inside = self.inside.saturating_add_signed(by);
        self.peak = self.peak.max(self.inside);
        self.entries += u64::from(by > 0);
    }
}

fn lock(count: &Mutex<Count>) -> std::sync::MutexGuard<'_, Count> {
    count.lock().unwrap_or_else(PoisonError::into_inner)
}
