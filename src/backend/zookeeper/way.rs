//! The way to the servers: straight, or through a tunnel of TLS.
//!
//! The client crate has TLS only by a second provider of its own. So, over TLS, it connects to ports of this machine, and
//! from each of them we go on to one of the servers. Whoever came through would be taken for us: only sockets of our own
//! user are let in.

use super::Settings;
use crate::error::Error;
use std::sync::Arc;
use zookeeper_client as zk;

/// How a connection finds the servers. What goes through it ends with it.
pub(super) struct Way {
    /// As the client crate takes them.
    pub(super) servers: Arc<str>,
    #[cfg(feature = "zookeeper-tls")]
    tunnel: Option<tunnel::Tunnel>,
}

// === impl Way ===

impl Way {
    pub(super) async fn open(settings: &Settings) -> Result<Self, Error> {
        #[cfg(feature = "zookeeper-tls")]
        if let Some(tls) = &settings.tls {
            let tunnel = tunnel::Tunnel::open(tls, &settings.servers).await?;
            return Ok(Self {
                servers: tunnel.entrances().into(),
                tunnel: Some(tunnel),
            });
        }
        Ok(Self {
            servers: settings.servers.clone(),
            #[cfg(feature = "zookeeper-tls")]
            tunnel: None,
        })
    }

    /// Why nobody could be reached: the client crate sees no more than that its connection ends.
    pub(super) fn why(&self, error: &zk::Error) -> Option<Error> {
        #[cfg(feature = "zookeeper-tls")]
        if let (zk::Error::NoHosts | zk::Error::Timeout, Some(tunnel)) = (error, &self.tunnel) {
            return tunnel.failure();
        }
        let _ = error;
        None
    }
}

#[cfg(feature = "zookeeper-tls")]
mod tunnel {
    use crate::backend::tls::{self, System, Tls};
    use crate::backend::zookeeper::host_and_port;
    use crate::error::{Error, ErrorKind};
    use std::fs;
    use std::io;
    use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::{AbortHandle, JoinSet};
    use tokio_rustls::client::TlsStream;

    const ZOOKEEPER: System = System {
        name: "ZooKeeper",
        builder: "ZooKeeper",
        plain: "ZooKeeper without TLS",
    };
    /// A first message is no longer.
    const GREETING: u32 = 256;
    /// After a connection that could not be accepted.
    const PAUSE: Duration = Duration::from_millis(50);

    /// An entrance for each server.
    pub(super) struct Tunnel {
        entrances: String,
        failure: Failure,
        tasks: Vec<AbortHandle>,
    }

    /// From one entrance to one server.
    struct Tube {
        tls: Tls,
        host: String,
        port: u16,
        failure: Failure,
    }

    /// What went wrong, if anything.
    #[derive(Clone, Default)]
    struct Failure(Arc<Mutex<Option<Error>>>);

    // === impl Tunnel ===

    impl Tunnel {
        pub(super) async fn open(tls: &Tls, servers: &str) -> Result<Self, Error> {
            let failure = Failure::default();
            let (mut entrances, mut tasks) = (Vec::new(), Vec::new());
            for (host, port) in servers.split(',').filter_map(host_and_port) {
                let here = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
                let here = here.and_then(|here| Ok((here.local_addr()?, here)));
                let (address, listener) = here.map_err(|error| {
                    Error::new(
                        ErrorKind::Unavailable,
                        format!("no port of this machine can be had for TLS: {error}"),
                    )
                })?;
                entrances.push(address.to_string());
                let tube = Tube {
                    tls: tls.clone(),
                    host: host.to_owned(),
                    port,
                    failure: failure.clone(),
                };
                tasks.push(tokio::spawn(Arc::new(tube).serve(listener)).abort_handle());
            }
            Ok(Self {
                entrances: entrances.join(","),
                failure,
                tasks,
            })
        }

        /// As the client crate takes them.
        pub(super) fn entrances(&self) -> &str {
            &self.entrances
        }

        pub(super) fn failure(&self) -> Option<Error> {
            self.failure.get()
        }
    }

    impl Drop for Tunnel {
        fn drop(&mut self) {
            self.tasks.iter().for_each(AbortHandle::abort);
        }
    }

    // === impl Tube ===

    impl Tube {
        /// Ends with everything that passes.
        async fn serve(self: Arc<Self>, listener: TcpListener) {
            let mut passing = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((mut near, _)) => {
                            let tube = self.clone();
                            passing.spawn(async move {
                                // The failure first: whoever learns of the end finds it there.
                                if let Err(error) = tube.carry(&mut near).await {
                                    tube.failure.set(error);
                                }
                            });
                        }
                        Err(_) => tokio::time::sleep(PAUSE).await,
                    },
                    Some(_) = passing.join_next() => {}
                }
            }
        }

        async fn carry(&self, near: &mut TcpStream) -> Result<(), Error> {
            let ends = (near.local_addr(), near.peer_addr());
            let (Ok(SocketAddr::V4(here)), Ok(SocketAddr::V4(there))) = ends else {
                return Ok(());
            };
            let ours = tokio::task::spawn_blocking(move || are_of_one_user(here, there)).await;
            match ours {
                Ok(Ok(true)) => {}
                // Somebody else's failure is none of ours.
                Ok(Ok(false)) => return Ok(()),
                _ => {
                    return Err(Error::new(
                        ErrorKind::Incompatible,
                        "TLS to ZooKeeper needs /proc/self/net/tcp to be readable",
                    ));
                }
            }
            let server = format!("{}:{}", self.host, self.port);
            let far = TcpStream::connect((&*self.host, self.port)).await;
            let far = far.map_err(|error| {
                Error::new(
                    ErrorKind::Unavailable,
                    format!("ZooKeeper at {server} cannot be reached: {error}"),
                )
            })?;
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let shaken = self.tls.shake_hands(far, &self.host, &ZOOKEEPER, &server);
            let mut far = shaken.await?;
            match pass(near, &mut far).await {
                // It may refuse our certificate only after we think that all is well.
                Err(error) => match tls::said(&error) {
                    Some(said) => Err(tls::in_words(said, &ZOOKEEPER, &server)),
                    None => Ok(()),
                },
                Ok(()) => Ok(()),
            }
        }
    }

    async fn pass(near: &mut TcpStream, far: &mut TlsStream<TcpStream>) -> io::Result<()> {
        // The first message is answered before the next goes out: a server may answer who we are before it welcomes us, and
        // the client crate does not bear that.
        let length = near.read_u32().await?;
        far.write_u32(length).await?;
        if length <= GREETING {
            let mut greeting = near.take(length.into());
            tokio::io::copy(&mut greeting, far).await?;
            let mut welcome = [0; 256];
            let length = far.read(&mut welcome).await?;
            near.write_all(&welcome[..length]).await?;
        }
        copy_bidirectional(near, far).await.map(drop)
    }

    /// Whether both ends of a connection within this machine are of the same user.
    fn are_of_one_user(one: SocketAddrV4, other: SocketAddrV4) -> io::Result<bool> {
        // A line for each end: its number, its own address, the other end's, its state, …, its user.
        let table = fs::read_to_string("/proc/self/net/tcp")?;
        let shown = |end: std::net::SocketAddrV4| {
            let address = u32::from_ne_bytes(end.ip().octets());
            format!("{address:08X}:{:04X}", end.port())
        };
        let (one, other) = (shown(one), shown(other));
        let user = |own: &str, peer: &str| {
            table.lines().find_map(|line| {
                let mut words = line.split_whitespace().skip(1);
                let ends = (words.next()?, words.next()?, words.next()?);
                // One that its process has closed is nobody's.
                (ends == (own, peer, ESTABLISHED)).then(|| words.nth(3))?
            })
        };
        let owner = user(&one, &other);
        Ok(owner.is_some() && owner == user(&other, &one))
    }

    const ESTABLISHED: &str = "01";

    // === impl Failure ===

    impl Failure {
        /// What is wrong for good says more than that a server is down.
        fn set(&self, error: Error) {
            let mut failure = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match &*failure {
                Some(known) if known.kind() != ErrorKind::Unavailable => {}
                _ => *failure = Some(error),
            }
        }

        fn get(&self) -> Option<Error> {
            let failure = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            failure.clone()
        }
    }
}
