//! A master that is found through its sentinels.

use super::server::Server;
use super::wire;
use crate::error::{Error, ErrorKind};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long one sentinel may take.
const ASKING: Duration = Duration::from_millis(500);
/// How long we wait for the others when one has answered.
const OTHERS: Duration = Duration::from_millis(100);
/// How long what they name may take to say that it is a master.
const TRYING: Duration = Duration::from_millis(600);

#[derive(Clone)]
pub(super) struct Master {
    name: Arc<str>,
    sentinels: Arc<[Server]>,
    /// Who we are at the master. Its address is another.
    like: Server,
}

/// What the sentinels said.
#[derive(Default)]
struct Said {
    /// Addresses, and by how many they were named.
    named: Vec<((String, u16), usize)>,
    /// They know no such master.
    unknown: Vec<String>,
    denied: Option<Error>,
    failed: Option<Error>,
}

// === impl Master ===

impl Master {
    pub(super) fn new(name: String, sentinels: Vec<Server>, like: Server) -> Self {
        Self {
            name: name.into(),
            sentinels: sentinels.into(),
            like,
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{} (of the sentinels {})", self.name, self.all())
    }

    fn all(&self) -> String {
        Server::names(&self.sentinels)
    }

    /// Asks all sentinels at once, and takes what most of them name, if it says itself that it is a master.
    pub(super) async fn locate(&self) -> Result<Server, Error> {
        let said = self.ask().await;
        let mut failed = None;
        for ((host, port), _) in &said.named {
            let server = self.like.at(host, *port);
            let name = server.name();
            let hello = timeout(TRYING, server.ask(&redis::cmd("HELLO"))).await;
            match hello.unwrap_or_else(|_| Err(wire::no_answer(&name))) {
                Ok(hello) => match Self::confirm(&hello, &name) {
                    Ok(()) => return Ok(server),
                    Err(error) => failed = Some(error),
                },
                Err(error) if error.kind() == ErrorKind::Unavailable => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(failed.unwrap_or_else(|| self.nobody(said)))
    }

    async fn ask(&self) -> Said {
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&*self.name);
        let question = &question;
        let mut answers: FuturesUnordered<_> = (self.sentinels.iter())
            .map(|sentinel| async move {
                let answer = timeout(ASKING, sentinel.ask(question)).await;
                let silent = |_| Err(wire::no_answer(&sentinel.name()));
                (sentinel.name(), answer.unwrap_or_else(silent))
            })
            .collect();
        let mut said = Said::default();
        loop {
            // By then a slow one is not worth the wait.
            let time = match said.named.is_empty() {
                true => ASKING * 2,
                false => OTHERS,
            };
            let Ok(Some((sentinel, answer))) = timeout(time, answers.next()).await else {
                break;
            };
            said.hear(sentinel, answer);
        }
        said.named.sort_by_key(|(_, by)| std::cmp::Reverse(*by));
        said
    }

    /// Nobody named a server: why.
    fn nobody(&self, said: Said) -> Error {
        if let Some(denied) = said.denied {
            return denied;
        }
        if !said.unknown.is_empty() {
            return Error::config(format!(
                "the sentinels at {} know no master with the name {}",
                said.unknown.join(", "),
                self.name
            ));
        }
        match said.failed {
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

    /// Whether a server's answer to HELLO says that it is a master.
    pub(super) fn confirm(hello: &Value, server: &str) -> Result<(), Error> {
        match wire::field(hello, "role") {
            Some(role) if role != "master" => Err(Error::new(
                ErrorKind::Unavailable,
                format!("Redis at {server} is a {role} now: a failover is under way"),
            )),
            _ => Ok(()),
        }
    }
}

// === impl Said ===

impl Said {
    fn hear(&mut self, sentinel: String, answer: Result<Value, Error>) {
        match answer {
            Ok(Value::Nil) => self.unknown.push(sentinel),
            Ok(answer) => match wire::address(&answer) {
                Some(address) => match self.named.iter_mut().find(|(at, _)| *at == address) {
                    Some((_, by)) => *by += 1,
                    None => self.named.push((address, 1)),
                },
                None => self.failed = Some(wire::nonsense(&sentinel)),
            },
            Err(error) if error.kind() == ErrorKind::Unavailable => self.failed = Some(error),
            Err(error) => self.denied = Some(error),
        }
    }
}
