//! Connects and tries everything that will be needed, so that what is wrong is said before anybody waits.

use super::{ASKED_AGAIN, OLDEST, RedisSession, Spot, wire};
use crate::backend::{Call, Reply, TicketState};
use crate::error::{Error, ErrorKind};
use crate::name::Queue;
use redis::{Cmd, RedisError, Value};
use std::collections::BTreeSet;
use std::time::Duration;

impl RedisSession {
    pub(super) async fn try_everything(&self) -> Result<(), Error> {
        for queue in self.servers.queues_to_check(&self.node).await? {
            self.try_everything_with(&queue).await?;
        }
        Ok(())
    }

    async fn try_everything_with(&self, queue: &Queue) -> Result<(), Error> {
        let spot = Spot::of(queue, ASKED_AGAIN);
        self.look_at_version(spot).await?;
        self.look_at_rights(spot, queue).await?;
        // Two tickets and one permit: one holds, the other waits, is granted, and goes.
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
            return Err(wire::nonsense(self.servers.name()));
        }
        let keys = wire::Keys::new(&self.prefix, queue);
        let forget = redis::cmd("HDEL")
            .arg(keys.meta())
            .arg("state")
            .arg(self.node.as_str())
            .clone();
        self.send(spot, &forget).await?;
        self.look_at_channel(spot).await?;
        self.look_at_eviction(spot).await;
        Ok(())
    }

    async fn look_at_version(&self, spot: Spot) -> Result<(), Error> {
        let hello = self.send(spot, &redis::cmd("HELLO")).await?;
        check_version(&hello, self.servers.name())
    }

    /// Each command on its own: inside a script the server does not say which one it refused.
    async fn look_at_rights(&self, spot: Spot, queue: &Queue) -> Result<(), Error> {
        let mut missing = Missing::default();
        for command in wire::Keys::new(&self.prefix, queue).every_command() {
            let answer = self.servers.try_send(spot, &command).await?;
            missing.note(&command, answer, self.servers.name())?;
        }
        if !missing.is_empty() {
            // All at once, for who sets the rights.
            let publish = publish(&self.inbox());
            let answer = self.servers.try_send(spot, &publish).await?;
            missing.note(&publish, answer, self.servers.name())?;
            if self.servers.is_deaf(spot) && !missing.channels {
                missing.note_right("+subscribe");
            }
        }
        missing.check(self.servers.name(), &format!("{}:*", self.prefix))
    }

    fn inbox(&self) -> String {
        wire::inbox(&self.prefix, self.node.as_str())
    }

    async fn look_at_channel(&self, spot: Spot) -> Result<(), Error> {
        let inbox = self.inbox();
        let missing = |right: &str| {
            Error::new(
                ErrorKind::Denied,
                format!(
                    "Redis at {} does not let us {right} on the channel {inbox}: permits work, but whoever waits has to poll",
                    self.servers.name()
                ),
            )
        };
        if self.servers.is_deaf(spot) {
            return Err(missing("SUBSCRIBE"));
        }
        match self.servers.try_send(spot, &publish(&inbox)).await? {
            Ok(_) => Ok(()),
            Err(error) if wire::is_denied(&error) => Err(missing("PUBLISH")),
            Err(error) => Err(wire::error(&error, self.servers.name())),
        }
    }

    /// Managed servers often do not let us see the policy: then we say nothing.
    async fn look_at_eviction(&self, spot: Spot) {
        let config = redis::cmd("CONFIG")
            .arg("GET")
            .arg("maxmemory-policy")
            .clone();
        let mut policy = None;
        if let Ok(Ok(value)) = self.servers.try_send(spot, &config).await {
            policy = wire::field(&value, "maxmemory-policy");
        }
        if policy.is_none()
            && let Ok(Ok(value)) = self
                .servers
                .try_send(spot, redis::cmd("INFO").arg("memory"))
                .await
        {
            policy = wire::info(&value, "maxmemory_policy");
        }
        if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
            tracing::warn!(
                server = &**self.servers.name(),
                "Redis evicts keys when its memory is full (maxmemory-policy {policy}): permits can be lost then. Set it to noeviction",
            );
        }
    }
}

/// A message of nothing.
fn publish(inbox: &str) -> Cmd {
    redis::cmd("publish").arg(inbox).arg("").clone()
}

/// Is the server that says hello like this new enough? Others that speak the protocol count their versions as they please.
pub(in crate::backend) fn check_version(hello: &Value, server: &str) -> Result<(), Error> {
    let version = wire::field(hello, "version").unwrap_or_default();
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < OLDEST => Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "Redis at {server} is version {version}: {}.{} is the oldest that will do",
                OLDEST.0, OLDEST.1
            ),
        )),
        _ => Ok(()),
    }
}

/// The rights that we need and do not have, as `ACL SETUSER` calls them.
#[derive(Default)]
pub(in crate::backend) struct Missing {
    commands: BTreeSet<String>,
    keys: bool,
    channels: bool,
}

impl Missing {
    /// What the server said to one command of those that will be needed.
    pub(in crate::backend) fn note(
        &mut self,
        command: &Cmd,
        answer: Result<Value, RedisError>,
        server: &str,
    ) -> Result<(), Error> {
        match answer {
            Err(error) if wire::is_denied(&error) => {
                match wire::denied(&error) {
                    wire::Denied::Command => self.note_right(&format!("+{}", wire::name(command))),
                    wire::Denied::Key => self.keys = true,
                    wire::Denied::Channel => self.channels = true,
                    wire::Denied::Other => return Err(wire::error(&error, server)),
                }
                Ok(())
            }
            Err(error) if error.is_io_error() => Err(wire::error(&error, server)),
            // Anything else will show in the script, or does not matter there.
            _ => Ok(()),
        }
    }

    fn note_right(&mut self, right: &str) {
        self.commands.insert(right.to_owned());
    }

    fn is_empty(&self) -> bool {
        self.commands.is_empty() && !self.keys && !self.channels
    }

    /// Says what is missing, if anything is. `keys`: the pattern that all keys fit.
    pub(in crate::backend) fn check(self, server: &str, keys: &str) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let all_keys = self.keys.then(|| format!("~{keys}"));
        let inboxes = format!("&{}push:*", keys.trim_end_matches('*'));
        let channels = self.channels.then_some(inboxes);
        let patterns = all_keys.into_iter().chain(channels);
        let missing: Vec<_> = patterns.chain(self.commands).collect();
        Err(Error::new(
            ErrorKind::Denied,
            format!(
                "Redis at {server} does not give us all rights to the keys {keys}, these are missing: {}",
                missing.join(" ")
            ),
        ))
    }
}
