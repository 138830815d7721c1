//! One server without pushes, for a backend that uses several.

use super::builder::{Deployment, Redis};
use super::connection::{Connection, Preamble, Target};
use super::errors;
use super::script::Script;
use crate::backend::Events;
use crate::error::Error;
use redis::{Cmd, ConnectionAddr, RedisError, Value};
use std::sync::Arc;

/// The connection to one server, made at first use.
pub(in crate::backend) struct SingleServer(Arc<Connection>);

// === impl Redis ===

impl Redis {
    /// Returns the address of its only server. `None` if there are several, or one that may be replaced by another.
    pub(in crate::backend) fn address(&self) -> Option<&ConnectionAddr> {
        match &self.deployment {
            Deployment::Single(endpoint) => Some(endpoint.info().addr()),
            #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
            _ => None,
        }
    }
}

// === impl SingleServer ===

impl SingleServer {
    /// `None` unless it is one server.
    pub(in crate::backend) fn new(redis: Redis) -> Option<Self> {
        match redis.deployment {
            Deployment::Single(endpoint) => {
                let target = Target::Server(endpoint);
                Some(Self(Connection::new(target, None, Events::new(|_| {}))))
            }
            #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
            _ => None,
        }
    }

    /// Host and port, for messages.
    pub(in crate::backend) fn name(&self) -> &str {
        self.0.server()
    }

    /// Sends one command. The outer error: it was not sent.
    pub(in crate::backend) async fn try_send(
        &self,
        command: &Cmd,
    ) -> Result<Result<Value, RedisError>, Error> {
        self.0.try_send(command, Preamble::None).await
    }

    pub(in crate::backend) async fn send(&self, command: &Cmd) -> Result<Value, Error> {
        let answer = self.try_send(command).await?;
        answer.map_err(|error| errors::describe(&error, self.name()))
    }

    /// Executes a script. The outer error: it was not sent.
    pub(in crate::backend) async fn run(
        &self,
        script: &Script,
        args: impl Fn(&mut Cmd),
    ) -> Result<Result<Value, RedisError>, Error> {
        let send = |command| async move { self.try_send(&command).await };
        script.run(args, send).await
    }
}
