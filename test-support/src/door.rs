//! A witness for several processes: everybody who goes in or out says so at the door, and waits until it is noted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// Counts who is inside. A process that ends is out.
#[derive(Debug)]
pub struct Door {
    folder: TempDir,
    count: Arc<Mutex<Count>>,
    accepting: JoinHandle<()>,
}

/// One visitor's own way to the door.
#[derive(Debug)]
pub struct Visitor(UnixStream);

#[derive(Clone, Copy, Debug)]
struct Count {
    inside: usize,
    peak: usize,
    entries: u64,
    /// The sum of `inside` over time, in seconds, from `since` to `changed`.
    area: f64,
    since: Instant,
    changed: Instant,
}

/// What was seen at the door.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The most that were inside at once.
    pub peak: usize,
    pub entries: u64,
    /// How many were inside on average.
    pub mean: f64,
}

// === impl Door ===

impl Door {
    pub fn open() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the door");
        let listener = UnixListener::bind(folder.path().join("door")).expect("a socket");
        let count = Arc::new(Mutex::new(Count::new()));
        let accepting = tokio::spawn({
            let count = count.clone();
            async move {
                while let Ok((visitor, _)) = listener.accept().await {
                    tokio::spawn(watch(visitor, count.clone()));
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
        self.folder.path().join("door")
    }

    pub fn inside(&self) -> usize {
        lock(&self.count).inside
    }

    /// What was seen since the last look, or since the door was opened.
    pub fn look(&self) -> Seen {
        let mut count = lock(&self.count);
        count.step(0);
        let time = count.changed.duration_since(count.since).as_secs_f64();
        let seen = Seen {
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
        seen
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn watch(mut visitor: UnixStream, count: Arc<Mutex<Count>>) {
    let mut inside = false;
    while let Ok(word) = visitor.read_u8().await {
        let goes_in = word == b'+';
        assert_ne!(goes_in, inside, "in and out by turns");
        inside = goes_in;
        lock(&count).step(if inside { 1 } else { -1 });
        if visitor.write_u8(word).await.is_err() {
            break;
        }
    }
    if inside {
        lock(&count).step(-1);
    }
}

// === impl Visitor ===

impl Visitor {
    pub async fn at(door: &Path) -> Self {
        Self(UnixStream::connect(door).await.expect("the door is open"))
    }

    pub async fn enter(&mut self) {
        self.say(b'+').await;
    }

    /// Only when this is over may the permit go back.
    pub async fn leave(&mut self) {
        self.say(b'-').await;
    }

    async fn say(&mut self, word: u8) {
        self.0.write_u8(word).await.expect("the door is open");
        self.0.read_u8().await.expect("the door is open");
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

    fn step(&mut self, by: isize) {
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
