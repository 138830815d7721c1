//! One server that pushes nothing, for a backend that talks to several.

use super::connection::{Link, Manner, Target};
use super::{Place, Redis, Source, wire};
use crate::backend::Events;
use crate::error::Error;
use redis::{Cmd, ConnectionAddr, RedisError, Value};
use std::sync::Arc;

/// The connection to one server, made at first use.
pub(in crate::backend) struct Line(Arc<Link>);

// === impl Redis ===

impl Redis {
    /// Where its only server is. `None` if there are several, or one that may be replaced by another.
    pub(in crate::backend) fn address(&self) -> Option<&ConnectionAddr> {
        match &self.place {
            Place::One(server) => Some(server.info().addr()),
            #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
            _ => None,
        }
    }
}

// === impl Line ===

impl Line {
    /// `None` unless it is one server.
    pub(in crate::backend) fn new(redis: Redis) -> Option<Self> {
        match redis.place {
            Place::One(server) => {
                let target = Target::Server(server);
                Some(Self(Link::new(target, None, Events::new(|_| {}))))
            }
            #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
            _ => None,
        }
    }

    /// Where it is, for people: never more than host and port.
    pub(in crate::backend) fn server(&self) -> &str {
        self.0.server()
    }

    /// Sends one command. The outer error: it was not sent.
    pub(in crate::backend) async fn try_send(
        &self,
        command: &Cmd,
    ) -> Result<Result<Value, RedisError>, Error> {
        self.0.try_send(command, Manner::Plain).await
    }

    pub(in crate::backend) async fn send(&self, command: &Cmd) -> Result<Value, Error> {
        let answer = self.try_send(command).await?;
        answer.map_err(|error| wire::error(&error, self.server()))
    }

    /// Runs a script. The outer error: it was not sent.
    pub(in crate::backend) async fn run(
        &self,
        source: &Source,
        args: impl Fn(&mut Cmd),
    ) -> Result<Result<Value, RedisError>, Error> {
        let send = |command| async move { self.try_send(&command).await };
        source.run(args, send).await
    }
}
