//! The driver of all loads: keep-alive connections that send the jobs they are given, each at its time.
//!
//! Latency counts from when a request was due, so it holds the wait for a free connection (no coordinated omission). A
//! request that is due as soon as a connection is free (a closed loop) counts from when it was sent.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use tokio::{task::JoinSet, time::sleep_until};

use crate::{
    Error, Target, descriptors,
    http::{Call, Connection, Failure, Response},
    live::Live,
};

/// How many connections are opened at once: so few that no server's backlog is full, and so many that the first is not
/// idle for long when the last is open.
const OPENED_AT_ONCE: usize = 128;

/// A request to be made.
#[derive(Debug)]
pub struct Job<T> {
    /// The request.
    pub call: Call,
    /// Not before then; `None`: as soon as a connection is free.
    pub due: Option<Instant>,
    /// What the caller knows it by.
    pub what: T,
}

/// A request that is over.
#[derive(Debug)]
pub struct Done<T> {
    /// What the caller knows it by.
    pub what: T,
    /// Index of the target asked.
    pub target: usize,
    /// When it was due.
    pub due: Instant,
    /// When it was sent.
    pub sent: Instant,
    /// When the last byte of the answer was there, or it was given up.
    pub ended: Instant,
    /// The answer.
    pub answer: Result<Response, Failure>,
}

/// Connections to targets in turn, kept between loads.
#[derive(Debug)]
pub struct Connections {
    targets: usize,
    links: Vec<(usize, Connection)>,
}

impl Connections {
    /// `count` connections, of which each opens with its first request. `limit` bounds each request.
    pub fn new(targets: &[Target], count: usize, limit: Duration) -> Result<Self, Error> {
        if targets.is_empty() {
            return Err(Error::Usage("at least one target is needed".to_owned()));
        }
        descriptors::reserve(count)?;
        let links = targets.iter().enumerate().cycle().take(count);
        let links = links.map(|(index, target)| (index, Connection::new(target.clone(), limit)));
        Ok(Self {
            targets: targets.len(),
            links: links.collect(),
        })
    }

    /// Opens those that are not open: new ones, and those that the server closed while they were idle.
    pub async fn open(&mut self) -> Result<(), Error> {
        for chunk in self.links.chunks_mut(OPENED_AT_ONCE) {
            try_join_all(chunk.iter_mut().map(|(_, connection)| open(connection))).await?;
        }
        Ok(())
    }

    /// How many targets they go to.
    pub(crate) fn targets(&self) -> usize {
        self.targets
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.links.len()
    }

    /// Makes the requests that `next` gives for the index of a target, until it gives no more or `live` is stopped; `ended`
    /// takes each answer.
    ///
    /// # Errors
    /// [`Error::Task`]; whatever a server does is an answer.
    pub async fn drive<T: Send + 'static>(
        &mut self,
        live: &Arc<Live>,
        next: impl Fn(usize) -> Option<Job<T>> + Send + Sync + 'static,
        ended: impl Fn(Done<T>) + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let callbacks = Arc::new((next, ended));
        let mut working = JoinSet::new();
        for (target, mut connection) in self.links.drain(..) {
            let callbacks = callbacks.clone();
            let live = live.clone();
            working.spawn(async move {
                let (next, ended) = &*callbacks;
                while let Some(Job { call, due, what }) = next(target) {
                    let waited = live.stop.run_until_cancelled(wait_until_due(due)).await;
                    if waited.is_none() {
                        break;
                    }
                    let sent = Instant::now();
                    let answer = connection.send(&call).await;
                    let now = Instant::now();
                    ended(Done {
                        what,
                        target,
                        due: due.unwrap_or(sent),
                        sent,
                        ended: now,
                        answer,
                    });
                }
                (target, connection)
            });
        }
        while let Some(joined) = working.join_next().await {
            self.links.push(joined?);
        }
        Ok(())
    }
}

async fn open(connection: &mut Connection) -> Result<(), Error> {
    connection.open().await.map_err(|error| Error::Unreachable {
        url: connection.target.to_string(),
        what: "a connection",
        reason: error.to_string(),
    })
}

async fn wait_until_due(due_time: Option<Instant>) {
    if let Some(due_time) = due_time
        && due_time > Instant::now()
    {
        sleep_until(due_time.into()).await;
    }
}

#[cfg(test)]
mod tests;
