//! Many keep-alive connections that read: all at once ([`Readers::burst`]), or from a source until
//! it is dry ([`Readers::drain`]). Connections are opened beforehand and kept between runs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    task::JoinSet,
    time::{Instant as TokioInstant, sleep_until},
};

use super::Answer;
use workload::{
    Error, Target, descriptors,
    http::{Call, Connection},
};

/// Connections being opened at once, so that no listener's backlog overflows.
const OPENING: usize = 128;

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

struct Link {
    target: usize,
    connection: Connection,
}

impl Link {
    async fn read(&mut self, id: u64, call: &Call, due: Option<Instant>) -> Read {
        let sent = Instant::now();
        let answer = Answer::of(self.connection.send(call).await);
        let due = due.unwrap_or(sent);
        Read { target: self.target, due, sent, ended: Instant::now(), id, answer }
    }
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
    pub async fn open(
        targets: &[Target],
        per_target: usize,
        limit: Duration,
    ) -> Result<Self, Error> {
        if targets.is_empty() || per_target == 0 {
            return Err(Error::Usage("at least one target and one connection are needed".into()));
        }
        descriptors::reserve(targets.len() * per_target)?;
        let links = (0..per_target).flat_map(|_| targets.iter().enumerate());
        let links = links
            .map(|(target, url)| Link { target, connection: Connection::new(url.clone(), limit) });
        let mut readers = Self { targets: targets.to_vec(), links: links.collect() };
        readers.reopen().await?;
        Ok(readers)
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
        let mut waiting = std::mem::take(&mut self.links);
        while !waiting.is_empty() {
            let mut opening = JoinSet::new();
            for mut link in waiting.drain(waiting.len().saturating_sub(OPENING)..) {
                opening.spawn(async move {
                    let opened = link.connection.open().await;
                    (link, opened)
                });
            }
            while let Some(joined) = opening.join_next().await {
                let (link, opened) = joined?;
                opened.map_err(|error| Error::Unreachable {
                    url: self.targets[link.target].to_string(),
                    what: "a connection",
                    reason: error.to_string(),
                })?;
                self.links.push(link);
            }
        }
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
        let mut firing = JoinSet::new();
        for mut link in self.links.drain(..) {
            let call = call.clone();
            firing.spawn(async move {
                sleep_until(TokioInstant::from_std(begin)).await;
                let read = link.read(id, &call, Some(begin)).await;
                (link, read)
            });
        }
        let mut reads = Vec::with_capacity(firing.len());
        while let Some(joined) = firing.join_next().await {
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
                    source.ended(link.read(job.id, &job.call, job.due).await);
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
