//! Many keep-alive connections that read: all at once ([`Readers::burst`]), or from a source until
//! it is empty ([`Readers::drain`]). Connections are opened beforehand and kept between runs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    task::JoinSet,
    time::{Instant as TokioInstant, sleep_until},
};

use super::answer::Answer;
use crate::links::{self, Link};
use workload::{Error, Target, http::Call};

/// One finished read.
#[derive(Debug, Clone)]
pub struct Read {
    /// Index of the target asked.
    pub target: usize,
    /// When the read was meant to begin: the barrier of a burst, or the due time of an open loop.
    pub due: Instant,
    /// When it was sent.
    pub sent: Instant,
    /// When the last byte of its answer was there.
    pub ended: Instant,
    /// What was asked for: a shop's id.
    pub id: u64,
    /// What came.
    pub answer: Answer,
}

impl Read {
    /// From the intended start to the end: queueing in this tool counts, too.
    pub fn latency(&self) -> Duration {
        self.ended.saturating_duration_since(self.due)
    }
}

/// One read to be made.
#[derive(Debug, Clone)]
pub struct Job {
    /// A shop's id.
    pub id: u64,
    /// The request for it.
    pub call: Call,
    /// Not before then; `None`: at once.
    pub due: Option<Instant>,
}

/// Where reads come from and where their outcomes go.
pub trait Source: Send + Sync + 'static {
    /// The next read on that target; `None` ends the connection's work.
    fn next(&self, target: usize) -> Option<Job>;
    /// Takes an outcome.
    fn ended(&self, read: Read);
}

/// Reads a shop once.
async fn read(link: &mut Link, id: u64, call: &Call, due: Option<Instant>) -> Read {
    let sent = Instant::now();
    let answer = Answer::of(link.connection.send(call).await);
    let due = due.unwrap_or(sent);
    Read { target: link.target, due, sent, ended: Instant::now(), id, answer }
}

/// The connections.
pub struct Readers {
    targets: Vec<Target>,
    links: Vec<Link>,
}

impl Readers {
    /// Opens `per_target` connections to each target. `limit` bounds each read.
    ///
    /// # Errors
    /// Too few file descriptors, or a target that does not accept.
    pub async fn open(targets: &[Target], per_target: u32, limit: Duration) -> Result<Self, Error> {
        let links = links::open(targets, targets.len() * per_target as usize, limit).await?;
        Ok(Self { targets: targets.to_vec(), links })
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether there are none; never so after [`Readers::open`].
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Opens those again that the server closed while they were idle.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub async fn reopen(&mut self) -> Result<(), Error> {
        self.links = links::reopen(&self.targets, std::mem::take(&mut self.links)).await?;
        Ok(())
    }

    /// Sends one read of shop `id` on every connection at `begin`, and waits for all answers.
    /// Latencies count from `begin`.
    ///
    /// # Errors
    /// Only a bug in the tool; whatever a server does is an [`Answer`].
    pub async fn burst(
        &mut self,
        id: u64,
        call: &Call,
        begin: Instant,
    ) -> Result<Vec<Read>, Error> {
        let call = Arc::new(call.clone());
        let mut burst = JoinSet::new();
        for mut link in self.links.drain(..) {
            let call = call.clone();
            burst.spawn(async move {
                sleep_until(TokioInstant::from_std(begin)).await;
                let read = read(&mut link, id, &call, Some(begin)).await;
                (link, read)
            });
        }
        let mut reads = Vec::with_capacity(burst.len());
        while let Some(joined) = burst.join_next().await {
            let (link, read) = joined?;
            self.links.push(link);
            reads.push(read);
        }
        Ok(reads)
    }

    /// Reads what `source` gives until it gives no more.
    ///
    /// # Errors
    /// As [`Readers::burst`].
    pub async fn drain(&mut self, source: &Arc<impl Source>) -> Result<(), Error> {
        let mut working = JoinSet::new();
        for mut link in self.links.drain(..) {
            let source = source.clone();
            working.spawn(async move {
                while let Some(job) = source.next(link.target) {
                    if let Some(due) = job.due.filter(|due| *due > Instant::now()) {
                        sleep_until(TokioInstant::from_std(due)).await;
                    }
                    source.ended(read(&mut link, job.id, &job.call, job.due).await);
                }
                link
            });
        }
        while let Some(joined) = working.join_next().await {
            self.links.push(joined?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
