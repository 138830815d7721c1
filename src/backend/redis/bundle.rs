//! Calls about several names that go to the server in one script.
//!
//! While nothing is on its way a call goes at once, alone. While something is, those that come up at the same moment ride
//! together: none waits for the answer to another, and the server is spared what each script costs it.

use super::servers::{Servers, Spot};
use super::{EXCHANGE, wire};
use crate::backend::{Call, call_time};
use crate::error::{Error, ErrorKind};
use crate::name::Node;
use futures_util::future::join_all;
use redis::{Cmd, RedisError, Value};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// So many names ride together at most, lest others wait long for the server,
const MOST_NAMES: usize = 32;
/// and none with more tickets than that.
const FEW_TICKETS: usize = 8;

/// What one session says about names.
pub(super) struct Bundles {
    servers: Arc<Servers>,
    prefix: Arc<str>,
    node: Node,
    /// Scripts on their way.
    under_way: AtomicUsize,
    next: Mutex<Next>,
}

/// Those that go next.
#[derive(Default)]
struct Next {
    /// Where the task runs that takes them along, if there is one.
    runtime: Option<Id>,
    riders: Vec<Rider>,
}

/// A call, and who hears what is said to it.
type Rider = (Call, oneshot::Sender<Said>);

/// The inner error is the server's own, or the connection's after it was sent; the outer one: it was not carried out.
pub(super) type Said = Result<Result<Value, RedisError>, Error>;

/// Takes along those that have come together. If its runtime ends before, it lets them go.
struct Departure(Option<Arc<Bundles>>);

/// A script on its way.
struct UnderWay<'a>(&'a AtomicUsize);

// === impl Bundles ===

impl Bundles {
    pub(super) fn new(servers: Arc<Servers>, prefix: Arc<str>, node: Node) -> Arc<Self> {
        Arc::new(Self {
            servers,
            prefix,
            node,
            under_way: AtomicUsize::new(0),
            next: Mutex::default(),
        })
    }

    pub(super) async fn say(self: &Arc<Self>, call: Call) -> Said {
        let call = match self.join(call) {
            Ok(answer) => return answer.await.unwrap_or_else(|_| Err(left_behind())),
            Err(call) => [call],
        };
        match self.send(&call).await {
            Ok(Err(error)) if may_say_again(&error, &call[0]) => self.send(&call).await,
            said => said,
        }
    }

    /// Joins those that go next. If it has to go alone, the call comes back.
    #[allow(clippy::result_large_err)] // it is moved either way
    fn join(self: &Arc<Self>, call: Call) -> Result<oneshot::Receiver<Said>, Call> {
        let few = wire::counts(&call).iter().sum::<usize>() <= FEW_TICKETS;
        if self.under_way.load(Ordering::Relaxed) == 0 || !few || self.servers.are_many() {
            return Err(call);
        }
        let Ok(runtime) = Handle::try_current() else {
            return Err(call);
        };
        let (tell, answer) = oneshot::channel();
        let mut next = self.next();
        // Whoever takes them along does it from this runtime, and says the same of each.
        let fits = next.runtime.is_none_or(|its| its == runtime.id())
            && (next.riders.first()).is_none_or(|(first, _)| first.lease == call.lease);
        if !fits {
            return Err(call);
        }
        next.riders.push((call, tell));
        let starts = next.runtime.replace(runtime.id()).is_none();
        drop(next);
        if starts {
            let departure = Departure(Some(Arc::clone(self)));
            runtime.spawn(departure.depart());
        }
        Ok(answer)
    }

    /// One script. It answers what the server says of the call, or a list if there are several.
    async fn send(&self, calls: &[Call]) -> Said {
        let _under_way = UnderWay::new(&self.under_way);
        let args = |command: &mut Cmd, keys: &[&str]| {
            wire::add_calls(command, &self.prefix, keys, &self.node, calls);
        };
        let spot = Spot::of_call(&calls[0]);
        self.servers.run(spot, &EXCHANGE, args).await
    }

    async fn send_together(&self, riders: Vec<Rider>) {
        let (calls, tell): (Vec<_>, Vec<_>) = riders.into_iter().unzip();
        let said = self.send_in_time(&calls).await;
        let (mut again, mut wait) = (Vec::new(), Vec::new());
        for ((call, tell), said) in calls.into_iter().zip(tell).zip(said) {
            if matches!(&said, Ok(Err(error)) if may_say_again(error, &call)) {
                again.push(call);
                wait.push(tell);
            } else {
                let _ = tell.send(said);
            }
        }
        let said = self.send_in_time(&again).await;
        for (tell, said) in wait.into_iter().zip(said) {
            let _ = tell.send(said);
        }
    }

    /// What is said to each. Nobody waits for longer.
    async fn send_in_time(&self, calls: &[Call]) -> Vec<Said> {
        let Some(first) = calls.first() else {
            return Vec::new();
        };
        let said = match timeout(call_time(first.lease), self.send(calls)).await {
            Ok(said) => said,
            Err(_) => Err(wire::no_answer(self.servers.name())),
        };
        match said {
            Ok(Ok(answers)) if calls.len() > 1 => match wire::apart(answers, calls.len()) {
                Some(answers) => answers.into_iter().map(Ok).collect(),
                None => vec![Err(wire::nonsense(self.servers.name())); calls.len()],
            },
            said => vec![said; calls.len()],
        }
    }

    fn next(&self) -> MutexGuard<'_, Next> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Departure ===

impl Departure {
    async fn depart(mut self) {
        let Some(bundles) = self.0.take() else {
            return;
        };
        let mut riders = std::mem::take(&mut *bundles.next()).riders;
        let mut scripts = Vec::new();
        while !riders.is_empty() {
            let rest = riders.split_off(riders.len().min(MOST_NAMES));
            scripts.push(bundles.send_together(std::mem::replace(&mut riders, rest)));
        }
        join_all(scripts).await;
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        if let Some(bundles) = self.0.take() {
            let behind = std::mem::take(&mut *bundles.next());
            // Not under the lock: they are woken by it.
            drop(behind);
        }
    }
}

// === impl UnderWay ===

impl<'a> UnderWay<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An idle connection often shows only now that it has ended. Said twice is as good as once: the number is the same. Except
/// for a ticket that leaves: whether it held is answered once only, and the gate has to know of the first time.
fn may_say_again(error: &RedisError, call: &Call) -> bool {
    error.is_connection_dropped() && call.release.is_empty()
}

fn left_behind() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the runtime that was to say it has ended",
    )
}
