//! A master that is located through its sentinels.

use super::endpoint::Endpoint;
use super::{errors, value};
use crate::error::{Error, ErrorKind};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long one sentinel may take.
const QUERY_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the others may take once one has answered.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(100);
/// How long the named server may take to confirm that it is a master.
const CONFIRM_TIMEOUT: Duration = Duration::from_millis(600);

#[derive(Clone)]
pub(super) struct Master {
    name: Arc<str>,
    sentinels: Arc<[Endpoint]>,
    /// The master's settings, with the address of a sentinel.
    settings: Endpoint,
}

/// The answers of the sentinels.
#[derive(Default)]
struct Answers {
    /// Addresses, and how many sentinels named each.
    named: Vec<((String, u16), usize)>,
    /// Sentinels that know no such master.
    unknown: Vec<String>,
    denied: Option<Error>,
    failed: Option<Error>,
}

// === impl Master ===

impl Master {
    pub(super) fn new(name: String, sentinels: Vec<Endpoint>, settings: Endpoint) -> Self {
        Self {
            name: name.into(),
            sentinels: sentinels.into(),
            settings,
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{} (of the sentinels {})", self.name, self.all())
    }

    fn all(&self) -> String {
        Endpoint::names(&self.sentinels)
    }

    /// Queries all sentinels at once. Returns the server that most of them name, if it confirms that it is a master.
    pub(super) async fn locate(&self) -> Result<Endpoint, Error> {
        let answers = self.query().await;
        let mut failed = None;
        for ((host, port), _) in &answers.named {
            let server = self.settings.at(host, *port);
            let name = server.name();
            let hello = timeout(CONFIRM_TIMEOUT, server.query(&redis::cmd("HELLO"))).await;
            match hello.unwrap_or_else(|_| Err(errors::no_answer(&name))) {
                Ok(hello) => match Self::confirm(&hello, &name) {
                    Ok(()) => return Ok(server),
                    Err(error) => failed = Some(error),
                },
                Err(error) if error.kind() == ErrorKind::Unavailable => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(failed.unwrap_or_else(|| self.not_located(answers)))
    }

    async fn query(&self) -> Answers {
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(&*self.name);
        let command = &command;
        let mut queries: FuturesUnordered<_> = (self.sentinels.iter())
            .map(|sentinel| async move {
                let answer = timeout(QUERY_TIMEOUT, sentinel.query(command)).await;
                let silent = |_| Err(errors::no_answer(&sentinel.name()));
                (sentinel.name(), answer.unwrap_or_else(silent))
            })
            .collect();
        let mut answers = Answers::default();
        loop {
            // After that a slow sentinel is not worth the wait.
            let time = match answers.named.is_empty() {
                true => QUERY_TIMEOUT * 2,
                false => OTHERS_TIMEOUT,
            };
            let Ok(Some((sentinel, answer))) = timeout(time, queries.next()).await else {
                break;
            };
            answers.add(sentinel, answer);
        }
        answers
            .named
            .sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        answers
    }

    /// Returns the reason why no sentinel named a server.
    fn not_located(&self, answers: Answers) -> Error {
        if let Some(denied) = answers.denied {
            return denied;
        }
        if !answers.unknown.is_empty() {
            return Error::config(format!(
                "the sentinels at {} know no master with the name {}",
                answers.unknown.join(", "),
                self.name
            ));
        }
        match answers.failed {
            Some(failed) if self.sentinels.len() == 1 => failed,
            failed => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "none of the sentinels at {} answers{}",
                    self.all(),
                    failed.map_or(String::new(), |error| format!(": {error}"))
                ),
            ),
        }
    }

    /// Checks that a server's reply to HELLO names it a master.
    pub(super) fn confirm(hello: &Value, server: &str) -> Result<(), Error> {
        match value::field(hello, "role") {
            Some(role) if role != "master" => Err(Error::new(
                ErrorKind::Unavailable,
                format!("Redis at {server} is a {role} now: a failover is under way"),
            )),
            _ => Ok(()),
        }
    }
}

// === impl Answers ===

impl Answers {
    fn add(&mut self, sentinel: String, answer: Result<Value, Error>) {
        match answer {
            Ok(Value::Nil) => self.unknown.push(sentinel),
            Ok(answer) => match address(&answer) {
                Some(address) => match self.named.iter_mut().find(|(at, _)| *at == address) {
                    Some((_, count)) => *count += 1,
                    None => self.named.push((address, 1)),
                },
                None => self.failed = Some(errors::malformed(&sentinel)),
            },
            Err(error) if error.kind() == ErrorKind::Unavailable => self.failed = Some(error),
            Err(error) => self.denied = Some(error),
        }
    }
}

/// Decodes host and port.
fn address(value: &Value) -> Option<(String, u16)> {
    let Value::Array(items) = value else {
        return None;
    };
    let [host, port] = items.as_slice() else {
        return None;
    };
    let port = value::text(port.clone())?.parse().ok()?;
    Some((value::text(host.clone())?, port))
}
