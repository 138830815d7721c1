//! A TCP proxy on localhost that can hold, lose or delay data, each direction separately.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

/// What the proxy does with the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Delivers each chunk this much later.
    Delay(Duration),
    /// Keeps them and delivers them when the mode changes, even if the sender has closed meanwhile.
    Hold,
    /// Drops them.
    Lose,
    /// Drops the next chunk and cuts the connection.
    LoseOneAndCut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// A running proxy. Dropping it cuts all of its connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    /// The modes of new connections, up and down.
    modes: Mutex<[Mode; 2]>,
    connections: Mutex<Vec<Connection>>,
}

#[derive(Debug)]
struct Connection {
    modes: [watch::Sender<Mode>; 2],
    tasks: [AbortHandle; 2],
}

// === impl Proxy ===

impl Proxy {
    /// Starts a proxy in front of the server on this local port.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            modes: Mutex::new([Mode::Pass; 2]),
            connections: Mutex::default(),
        });
        let accepting = tokio::spawn({
            let shared = shared.clone();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server));
                    if let Ok(server) = TcpStream::connect(server).await {
                        shared.join(client, server);
                    }
                }
            }
        });
        Self {
            port,
            shared,
            accepting,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Sets the mode of present and new connections.
    pub fn set(&self, way: Way, mode: Mode) {
        self.set_new(way, mode);
        self.set_present(way, mode);
    }

    /// Sets the mode of new connections only.
    pub fn set_new(&self, way: Way, mode: Mode) {
        lock(&self.shared.modes)[way as usize] = mode;
    }

    /// Sets the mode of present connections only.
    pub fn set_present(&self, way: Way, mode: Mode) {
        for connection in &*lock(&self.shared.connections) {
            connection.modes[way as usize].send_replace(mode);
        }
    }

    /// Cuts the present connections.
    pub fn cut(&self) {
        lock(&self.shared.connections).drain(..).for_each(drop);
    }

    /// Returns how many connections were accepted and not [cut](Self::cut).
    pub fn connections(&self) -> usize {
        lock(&self.shared.connections).len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

// === impl Shared ===

impl Shared {
    fn join(&self, client: TcpStream, server: TcpStream) {
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let modes = lock(&self.modes).map(|mode| watch::channel(mode).0);
        let cut = watch::Sender::new(false);
        let forward = |way: Way, from, to| {
            let mode = modes[way as usize].subscribe();
            tokio::spawn(forward(from, to, mode, cut.clone())).abort_handle()
        };
        let tasks = [
            forward(Way::Up, from_client, to_server),
            forward(Way::Down, from_server, to_client),
        ];
        lock(&self.connections).push(Connection { modes, tasks });
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Forwards one direction until it ends. Its end closes only the receiving side's stream; a cut ends both directions.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    cut: watch::Sender<bool>,
) {
    let mut cut_here = cut.subscribe();
    let mut chunk = vec![0; 1 << 16];
    let (mut held, mut open) = (Vec::new(), true);
    loop {
        let now = *mode.borrow_and_update();
        if now != Mode::Hold {
            if to.write_all(&held).await.is_err() || !open {
                break;
            }
            held.clear();
        }
        let length = tokio::select! {
            read = from.read(&mut chunk), if open => read.unwrap_or(0),
            changed = mode.changed() => match changed {
                Ok(()) => continue,
                Err(_) => break,
            },
            _ = cut_here.wait_for(|cut| *cut) => break,
        };
        open = length > 0;
        match now {
            _ if !open => {}
            Mode::Lose => {}
            Mode::LoseOneAndCut => {
                cut.send_replace(true);
                break;
            }
            Mode::Hold => held.extend_from_slice(&chunk[..length]),
            Mode::Delay(time) => {
                tokio::time::sleep(time).await;
                held.extend_from_slice(&chunk[..length]);
            }
            Mode::Pass => held.extend_from_slice(&chunk[..length]),
        }
    }
    let _ = to.shutdown().await;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
