//! The session of one node: executes batches, inspections and evictions.

use super::codec::{self, Answer};
use super::keys::{Forms, push_channel};
use super::route::Route;
use super::script::{EXCHANGE, INSPECT};
use super::topology::Topology;
use super::{errors, inspection};
use crate::backend::{
    Batching, Call, Capabilities, Inspection, Outcome, Replies, Reply, Session, each, together,
};
use crate::error::Error;
use crate::name::{Node, Queue};
use futures_util::future::{BoxFuture, join_all};
use redis::{Cmd, RedisError, Value};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The longest ticket that a call can name. Tickets of this crate are far shorter.
const MAX_TICKET_BYTES: usize = u16::MAX as usize;
/// What a single server handles well. A second batch fills the time that the first one travels; with more in flight each one
/// would carry few calls.
const BATCHING: Batching = Batching {
    calls: 128,
    tickets: 512,
    in_flight: 2,
};
/// How long an inspection or an eviction may take.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a check may take.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(3);
/// For how long these are sent again while a cluster is being changed.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(1);
/// How often a waiter calls when nothing can be pushed to it.
pub(super) const POLL: Duration = Duration::from_millis(100);

pub(super) struct RedisSession {
    pub(super) topology: Topology,
    pub(super) prefix: Arc<str>,
    pub(super) node: Node,
    warned_mute: AtomicBool,
}

// === impl RedisSession ===

impl RedisSession {
    pub(super) fn new(topology: Topology, prefix: Arc<str>, node: Node) -> Self {
        Self {
            topology,
            prefix,
            node,
            warned_mute: AtomicBool::new(false),
        }
    }

    pub(super) async fn send(&self, route: Route, command: &Cmd) -> Result<Value, Error> {
        self.describe(self.topology.try_send(route, command).await?)
    }

    /// Executes one call at the server of its name.
    pub(super) async fn exchange_one(&self, call: Call) -> Result<Reply, Error> {
        let forms = self.topology.forms().await?;
        let mut replies = self.exchange_together(vec![call], forms).await;
        replies.pop().unwrap_or_else(|| Err(self.malformed()))
    }

    /// Executes calls at a single server.
    async fn exchange_at_single(&self, calls: Vec<Call>) -> Vec<Result<Reply, Error>> {
        match self.topology.forms().await {
            Err(error) => vec![Err(error); calls.len()],
            // A node of a cluster rejects a script with keys of several slots.
            Ok(Forms::GeneralOnly) => {
                join_all(calls.into_iter().map(|call| self.exchange_one(call))).await
            }
            Ok(forms) => self.exchange_together(calls, forms).await,
        }
    }

    /// Executes calls in one script.
    ///
    /// The end of an idle connection is often noticed only now. The calls are then sent again: executing the same number twice
    /// changes nothing. Except those that release tickets: whether a ticket was held is answered only once.
    async fn exchange_together(&self, calls: Vec<Call>, forms: Forms) -> Vec<Result<Reply, Error>> {
        let value = self.run_batch(&calls, forms).await;
        let repeats = matches!(&value, Ok(Err(error)) if error.is_connection_dropped());
        let mut replies = self.replies(&calls, value);
        if repeats {
            let may_repeat = |call: &&Call| call.release.is_empty();
            let repeated: Vec<Call> = calls.iter().filter(may_repeat).cloned().collect();
            let value = self.run_batch(&repeated, forms).await;
            let positions = (0..calls.len()).filter(|at| may_repeat(&&calls[*at]));
            for (at, reply) in positions.zip(self.replies(&repeated, value)) {
                replies[at] = reply;
            }
        }
        replies
    }

    async fn run_batch(
        &self,
        calls: &[Call],
        forms: Forms,
    ) -> Result<Result<Value, RedisError>, Error> {
        let Some(first) = calls.first() else {
            return Ok(Ok(Value::Nil));
        };
        let add = |command: &mut Cmd| {
            codec::add_batch(command, &self.prefix, forms, &self.node, calls);
        };
        self.topology
            .run(Route::of_call(first), &EXCHANGE, add)
            .await
    }

    /// The replies to calls of one script.
    fn replies(
        &self,
        calls: &[Call],
        value: Result<Result<Value, RedisError>, Error>,
    ) -> Vec<Result<Reply, Error>> {
        let value = match value.and_then(|value| self.describe(value)) {
            Ok(value) => value,
            Err(error) => return vec![Err(error); calls.len()],
        };
        let answers = match &value {
            Value::BulkString(reply) => codec::answers(reply, calls.iter().map(codec::counts)),
            _ => None,
        };
        let Some(answers) = answers else {
            return vec![Err(self.malformed()); calls.len()];
        };
        let replies = calls.iter().zip(answers);
        let reply = |(call, answer)| Ok(self.reply(call, self.describe(answer)?));
        replies.map(reply).collect()
    }

    fn reply(&self, call: &Call, answer: Answer) -> Reply {
        let mut reply = answer.reply;
        if answer.mute {
            self.warn_if_mute(Route::of_call(call));
        }
        if let Reply::Done(Outcome {
            poll_after: Some(poll_after),
            ..
        }) = &mut reply
            && self.topology.is_push_refused(Route::of_call(call))
        {
            *poll_after = POLL.min(*poll_after);
        }
        reply
    }

    fn describe<T>(&self, answer: Result<T, RedisError>) -> Result<T, Error> {
        answer.map_err(|error| errors::describe(&error, self.topology.name()))
    }

    fn malformed(&self) -> Error {
        errors::malformed(self.topology.name())
    }

    pub(super) async fn list_tickets(&self, queue: &Queue) -> Result<Inspection, Error> {
        let forms = self.topology.forms().await?;
        let add =
            |command: &mut Cmd| inspection::add_inspection(command, &self.prefix, forms, queue);
        let route = Route::of(queue, RETRY_FOR);
        let value = self.topology.run(route, &INSPECT, add).await?;
        inspection::decode(self.describe(value)?).ok_or_else(|| self.malformed())
    }

    async fn evict_ticket(&self, queue: &Queue, ticket: &str) -> Result<bool, Error> {
        if ticket.len() > MAX_TICKET_BYTES {
            return Ok(false);
        }
        let forms = self.topology.forms().await?;
        let add =
            |command: &mut Cmd| codec::add_eviction(command, &self.prefix, forms, queue, ticket);
        let route = Route::of(queue, RETRY_FOR);
        let value = self.topology.run(route, &EXCHANGE, add).await?;
        let answers = match self.describe(value)? {
            Value::BulkString(reply) => codec::answers(&reply, [codec::EVICTION].into_iter()),
            _ => None,
        };
        let answer = answers.and_then(|mut answers| answers.pop());
        let answer = self.describe(answer.ok_or_else(|| self.malformed())?)?;
        if answer.mute {
            self.warn_if_mute(route);
        }
        Ok(answer.existed == [true])
    }

    fn warn_if_mute(&self, route: Route) {
        // Without the right to subscribe, another warning has been logged already.
        if !self.topology.is_push_refused(route) && !self.warned_mute.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                server = &**self.topology.name(),
                "Redis refuses PUBLISH on the channels {}*: queued tickets are polled for; grant +publish and the channels",
                push_channel(&self.prefix, ""),
            );
        }
    }

    async fn within<T>(
        &self,
        time: Duration,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(time, work).await {
            Ok(result) => result,
            Err(_) => Err(errors::no_answer(self.topology.name())),
        }
    }
}

impl Session for RedisSession {
    fn exchange(&self, batch: Vec<Call>) -> Replies<'_> {
        match self.topology.is_cluster() {
            // Each call is sent to its own server, so that a server that does not answer delays no other call.
            true => each(batch, |call| self.exchange_one(call)),
            false => together(self.exchange_at_single(batch)),
        }
    }

    fn batching(&self) -> Batching {
        match self.topology.is_cluster() {
            // Enough for the other shards when one does not answer.
            true => Batching {
                in_flight: 1024,
                ..Batching::SINGLE
            },
            false => BATCHING,
        }
    }

    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(async move { self.within(ADMIN_TIMEOUT, self.list_tickets(&queue)).await })
    }

    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            self.within(ADMIN_TIMEOUT, self.evict_ticket(&queue, &ticket))
                .await
        })
    }

    fn check(&self, _lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.within(CHECK_TIMEOUT, self.check_servers()))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: true,
            token: true,
            max_limit: u32::MAX,
            min_lease: Duration::from_secs(1),
        }
    }
}
