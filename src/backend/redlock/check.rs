//! `Coordinator::check`: tries every server.

use super::quorum_call::needs_runtime;
use super::server::Request;
use super::session::RedlockSession;
use crate::backend::Call;
use crate::error::{Error, ErrorKind};
use crate::name::Queue;
use futures_util::future::join_all;
use std::time::Duration;

/// How long the check of one server may take.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

impl RedlockSession {
    pub(super) async fn check_servers(&self) -> Result<(), Error> {
        needs_runtime()?;
        // A name for each, because two of them may be the same server.
        let request = |at: usize| {
            let name = format!("check:{}:{at}", self.node.as_str());
            let call = Call {
                queue: Queue::mutex(name.as_bytes())?,
                number: 1,
                limit: 1,
                lease: Duration::from_secs(1),
                release: Vec::new(),
                renew: Vec::new(),
                acquire: vec![1],
                try_acquire: Vec::new(),
            };
            Ok(self.request(&call))
        };
        let requests = (0..self.servers.len()).map(request);
        let requests = requests.collect::<Result<Vec<Request>, Error>>()?;
        let checks = self
            .servers
            .iter()
            .zip(&requests)
            .map(|(server, request)| async move {
                let check = tokio::time::timeout(CHECK_TIMEOUT, server.check(request));
                check.await.unwrap_or_else(|_| {
                    Err(Error::new(
                        ErrorKind::Unavailable,
                        format!("Redis at {} does not answer", server.name()),
                    ))
                })
            });
        let mut wrong = Vec::new();
        let mut young = 0;
        for answer in join_all(checks).await {
            match answer {
                Ok(vote) => young += usize::from(vote.age < vote.longest),
                Err(error) => wrong.push(error),
            }
        }
        if let Some(first) = wrong.first() {
            let messages: Vec<String> = wrong.iter().map(Error::to_string).collect();
            let message = format!(
                "{} of {} servers of Redlock failed the check: {}",
                wrong.len(),
                self.servers.len(),
                messages.join("; ")
            );
            return Err(Error::new(first.kind(), message));
        }
        if young > 0 {
            tracing::info!(
                "{young} of {} servers of Redlock are new or restarted empty: they have no vote for one lease",
                self.servers.len(),
            );
        }
        match requests.first() {
            Some(request) => self.find_duplicates(request).await,
            None => Ok(()),
        }
    }

    /// Fails if two addresses lead to the same server.
    async fn find_duplicates(&self, request: &Request) -> Result<(), Error> {
        let mut result = Ok(());
        for (at, server) in self.servers.iter().enumerate() {
            let mark = server.mark(request, at).await?;
            let first = mark.parse().ok().filter(|first| *first != at);
            if let Some(first) = first.and_then(|first: usize| self.servers.get(first)) {
                result = Err(Error::config(format!(
                    "{} and {} are the same server, which has one vote: remove one",
                    first.name(),
                    server.name()
                )));
                break;
            }
        }
        for server in &self.servers {
            server.unmark(request).await?;
        }
        result
    }
}
