//! `Coordinator::check`: connects and tries every command, so that mistakes are reported before a caller waits.

use super::keys::{Keys, push_channel};
use super::route::Route;
use super::session::{RETRY_FOR, RedisSession};
use super::{errors, value};
use crate::backend::{Call, Reply, TicketState};
use crate::error::{Error, ErrorKind};
use crate::name::Queue;
use redis::{Cmd, RedisError, Value};
use std::collections::BTreeSet;
use std::time::Duration;

/// The oldest server with every command that is needed.
const MIN_VERSION: (u32, u32) = (6, 2);

impl RedisSession {
    pub(super) async fn check_servers(&self) -> Result<(), Error> {
        for queue in self.topology.queues_to_check(&self.node).await? {
            self.check_with(&queue).await?;
        }
        Ok(())
    }

    async fn check_with(&self, queue: &Queue) -> Result<(), Error> {
        let route = Route::of(queue, RETRY_FOR);
        self.check_version(route).await?;
        self.check_rights(route, queue).await?;
        // Two tickets and one permit: one is held, the other is queued, granted and released.
        let call = |number: u64, release: &[u64], renew: &[u64], acquire: &[u64]| Call {
            queue: queue.clone(),
            number,
            limit: 1,
            lease: Duration::from_secs(1),
            release: release.to_vec(),
            renew: renew.to_vec(),
            acquire: acquire.to_vec(),
            try_acquire: Vec::new(),
        };
        let number = (1 << 50) + rand::random_range(1..1 << 30) * 4;
        let (first, second) = (number, number + 1);
        self.exchange_one(call(number, &[], &[], &[first, second]))
            .await?;
        self.list_tickets(queue).await?;
        let answer = self
            .exchange_one(call(number + 1, &[first], &[first], &[second]))
            .await?;
        let granted = matches!(&answer, Reply::Done(outcome)
            if matches!(outcome.acquired.as_slice(), [TicketState::Held { .. }]));
        self.exchange_one(call(number + 2, &[second], &[], &[]))
            .await?;
        if !granted {
            return Err(errors::malformed(self.topology.name()));
        }
        let keys = Keys::new(&self.prefix, queue);
        let delete = redis::cmd("HDEL")
            .arg(&keys.meta)
            .arg("state")
            .arg(self.node.as_str())
            .clone();
        self.send(route, &delete).await?;
        self.check_channel(route).await?;
        self.check_eviction_policy(route).await;
        Ok(())
    }

    async fn check_version(&self, route: Route) -> Result<(), Error> {
        let hello = self.send(route, &redis::cmd("HELLO")).await?;
        check_version(&hello, self.topology.name())
    }

    /// Sends each command for itself: inside a script the server does not name the command that it refused.
    async fn check_rights(&self, route: Route, queue: &Queue) -> Result<(), Error> {
        let mut missing = MissingRights::default();
        for command in commands(&Keys::new(&self.prefix, queue)) {
            let answer = self.topology.try_send(route, &command).await?;
            missing.note(&command, answer, self.topology.name())?;
        }
        if !missing.is_empty() {
            // All missing rights in one message.
            let channel = self.push_channel();
            let publish = publish(&channel);
            let answer = self.topology.try_send(route, &publish).await?;
            missing.note(&publish, answer, self.topology.name())?;
            if self.topology.is_push_refused(route) && !missing.channels {
                missing.note_right("+subscribe");
            }
        }
        missing.check(self.topology.name(), &format!("{}:*", self.prefix))
    }

    fn push_channel(&self) -> String {
        push_channel(&self.prefix, self.node.as_str())
    }

    async fn check_channel(&self, route: Route) -> Result<(), Error> {
        let channel = self.push_channel();
        let missing = |right: &str| {
            Error::new(
                ErrorKind::Denied,
                format!(
                    "Redis at {} refuses {right} on the channel {channel}: permits work, but queued tickets are polled for; grant the right",
                    self.topology.name()
                ),
            )
        };
        if self.topology.is_push_refused(route) {
            return Err(missing("SUBSCRIBE"));
        }
        match self.topology.try_send(route, &publish(&channel)).await? {
            Ok(_) => Ok(()),
            Err(error) if errors::is_denied(&error) => Err(missing("PUBLISH")),
            Err(error) => Err(errors::describe(&error, self.topology.name())),
        }
    }

    /// Warns if the server may evict keys. Managed servers often hide the policy: then there is no warning.
    async fn check_eviction_policy(&self, route: Route) {
        let config = redis::cmd("CONFIG")
            .arg("GET")
            .arg("maxmemory-policy")
            .clone();
        let mut policy = None;
        if let Ok(Ok(value)) = self.topology.try_send(route, &config).await {
            policy = value::field(&value, "maxmemory-policy");
        }
        if policy.is_none()
            && let Ok(Ok(value)) = self
                .topology
                .try_send(route, redis::cmd("INFO").arg("memory"))
                .await
        {
            policy = value::info_field(&value, "maxmemory_policy");
        }
        if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
            tracing::warn!(
                server = &**self.topology.name(),
                "Redis evicts keys when its memory is full (maxmemory-policy {policy}), and permits can be lost: set it to noeviction",
            );
        }
    }
}

/// Every command that the scripts use on keys, harmless to keys that nothing else uses. The last ones delete.
fn commands(keys: &Keys) -> Vec<Cmd> {
    let (permits, meta, single) = (&*keys.permits, &*keys.meta, &*keys.single_holder);
    let words: &[&[&str]] = &[
        &["time"],
        &["eval", "return 0", "0"],
        &["evalsha", "", "0"],
        &["zadd", permits, "1", "x"],
        &["zcard", permits],
        &["zcount", permits, "0", "1"],
        &["zrange", permits, "0", "0"],
        &["zmscore", permits, "x"],
        &["pexpire", permits, "1000"],
        &["zremrangebyscore", permits, "-inf", "0"],
        &["zrem", permits, "x"],
        &["hset", meta, "x", "x"],
        &["pexpire", meta, "1000"],
        &["hmget", meta, "x"],
        &["hgetall", meta],
        &["hdel", meta, "x"],
        &["set", single, "", "px", "1000"],
        &["get", single],
        &["mget", single],
        &["exists", single],
        &["del", single],
    ];
    let command = |words: &&[&str]| {
        let mut command = Cmd::new();
        for word in *words {
            command.arg(*word);
        }
        command
    };
    words.iter().map(command).collect()
}

/// An empty message.
fn publish(channel: &str) -> Cmd {
    redis::cmd("publish").arg(channel).arg("").clone()
}

/// Checks the version in a reply to HELLO. Other servers with this protocol number their versions differently.
pub(in crate::backend) fn check_version(hello: &Value, server: &str) -> Result<(), Error> {
    let version = value::field(hello, "version").unwrap_or_default();
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < MIN_VERSION => Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "Redis at {server} is version {version}, but {}.{} or later is needed",
                MIN_VERSION.0, MIN_VERSION.1
            ),
        )),
        _ => Ok(()),
    }
}

/// Missing rights, as arguments of `ACL SETUSER`.
#[derive(Default)]
pub(in crate::backend) struct MissingRights {
    commands: BTreeSet<String>,
    keys: bool,
    channels: bool,
}

// === impl MissingRights ===

impl MissingRights {
    /// Adds the right that a command needs, if the server refused it because a right is missing.
    pub(in crate::backend) fn note(
        &mut self,
        command: &Cmd,
        answer: Result<Value, RedisError>,
        server: &str,
    ) -> Result<(), Error> {
        match answer {
            Err(error) if errors::is_denied(&error) => {
                match errors::missing_right(&error) {
                    errors::MissingRight::Command => {
                        self.note_right(&format!("+{}", value::command_name(command)))
                    }
                    errors::MissingRight::Key => self.keys = true,
                    errors::MissingRight::Channel => self.channels = true,
                    errors::MissingRight::Other => return Err(errors::describe(&error, server)),
                }
                Ok(())
            }
            Err(error) if error.is_io_error() => Err(errors::describe(&error, server)),
            // Any other error appears in the script, or does not matter there.
            _ => Ok(()),
        }
    }

    fn note_right(&mut self, right: &str) {
        self.commands.insert(right.to_owned());
    }

    fn is_empty(&self) -> bool {
        self.commands.is_empty() && !self.keys && !self.channels
    }

    /// Returns an error with all missing rights, if any. `keys`: the pattern that all keys match.
    pub(in crate::backend) fn check(self, server: &str, keys: &str) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let all_keys = self.keys.then(|| format!("~{keys}"));
        let pushes = format!("&{}push:*", keys.trim_end_matches('*'));
        let channels = self.channels.then_some(pushes);
        let patterns = all_keys.into_iter().chain(channels);
        let missing: Vec<_> = patterns.chain(self.commands).collect();
        Err(Error::new(
            ErrorKind::Denied,
            format!(
                "Redis at {server} does not grant all rights to the keys {keys}, these are missing: {}",
                missing.join(" ")
            ),
        ))
    }
}
