//! The consumer of this process: it puts entries into a queue per sale, and has each sale's batches committed as a future of
//! its own. What this process admits is held by it (`deliveries`, `held`). It reads what others add,
//! and what is pending under its name (after a start, a failure, when some were taken over, and about once a second). It
//! waits for new entries on a connection of its own, because a blocking read keeps the commands behind it waiting too.
//!
//! While the database does not answer at all, nothing new is read: another node may reach it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt, pending};
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};
use tokio::sync::mpsc::UnboundedReceiver;

use super::deliveries::Delivery;
use super::entry::{Entry, held_by, read_entries};
use super::entry_id::EntryId;
use super::names::GROUP;
use super::node::StreamNode;
use super::sale_queues::{Batch, GATHER, Outcome, SaleQueues};
use crate::error::Error;
use crate::order::model::NewOrder;
use crate::scripts;

/// How long Redis waits for new entries before it replies that there are none: a stop can take that long.
const BLOCK: Duration = Duration::from_millis(500);

/// How often the consumer reads its own pending entries without a reason: a Redis that was stopped for a while may
/// execute a read after its connection was closed, and deliver entries into no reply.
const OWN_PENDING_EVERY: Duration = Duration::from_secs(1);

/// Where many are pending, reading them takes at most one part of so many of the time.
const OWN_PENDING_SHARE: u32 = 10;

/// Pauses after failures to read: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How often the loop looks around without an event.
const LOOK: Duration = Duration::from_millis(250);

/// How long the last entries are tried when the process stops, as so many steps of the database; then they are left to
/// other nodes.
const LAST_STEPS: u32 = 3;

/// Records of what our consumers hold that are read at a time.
const RECORDS: usize = 1000;

/// A future that is being waited for.
type Running<T> = Option<BoxFuture<'static, T>>;

/// Entries, with the connection that they were read on.
type NewEntries = Result<(Vec<Entry>, ReadConnection), Error>;

/// The connection on which new entries are waited for.
struct ReadConnection {
    connection: MultiplexedConnection,
    /// Ends when another server has the stream.
    moved: BoxFuture<'static, ()>,
}

/// The state of [`StreamNode::consume`].
struct Consumer {
    node: Arc<StreamNode>,
    queues: SaleQueues,
    commits: FuturesUnordered<BoxFuture<'static, (Batch, Outcome)>>,
    /// What the admission script leaves to it.
    deliveries: UnboundedReceiver<Delivery>,
    /// Whether nothing waits to be delivered, as far as is known. Else the script takes nothing: what waits comes first.
    caught_up: bool,
    connection: Option<ReadConnection>,
    /// New entries are being read, and the lease's generation in which that began.
    reading_new: Running<(u64, NewEntries)>,
    /// A page of pending entries is being read; with the same.
    reading_page: Running<(u64, Result<Vec<Entry>, Error>)>,
    /// The entry up to which pending ones were read; `None` between two readings.
    page_after: Option<EntryId>,
    pages_began: Instant,
    pages_due: Instant,
    /// Complete readings of the pending entries.
    readings: u32,
    /// Whether the database answers is being found out, by looking up an order that could not be committed.
    probing: Running<bool>,
    probe_with: Option<NewOrder>,
    probe_due: Instant,
    database_away: bool,
    /// Nothing is read before this, and how long the next pause after a failure is.
    read_due: Instant,
    pause: Duration,
}

impl StreamNode {
    /// Consumes what is delivered to it and what it reads, until the process stops, then commits what is left, if that is
    /// possible soon, and leaves the group.
    pub(super) async fn consume(self: Arc<Self>, deliveries: UnboundedReceiver<Delivery>) {
        let mut consumer = Consumer::new(self.clone(), deliveries);
        while !self.is_stopped() {
            consumer.step(true).await;
        }
        consumer.finish().await;
        self.leave().await;
    }

    /// Reads what is pending under our name beyond the entry `after`. What we hold and is not in memory becomes pending first.
    async fn read_page(&self, after: EntryId) -> Result<Vec<Entry>, Error> {
        if after == EntryId::default() {
            self.adopt_held().await?;
        }
        let read = self.read().arg("STREAMS").arg(&self.keys.stream).arg(after).to_owned();
        let reply: Value = read.query_async(&mut self.redis.clone()).await?;
        Ok(read_entries(&reply))
    }

    /// Makes entries pending that we hold and that are not in memory: the reply that said so did not come, or they have been
    /// given up.
    async fn adopt_held(&self) -> Result<(), Error> {
        let held: Value = redis::cmd("XRANGE")
            .arg(&self.keys.held)
            .arg("-")
            .arg("+")
            .arg("COUNT")
            .arg(RECORDS)
            .query_async(&mut self.redis.clone())
            .await?;
        let records: Vec<EntryId> = held_by(&held, &self.consumer)
            .filter(|record| !self.held.has_in_memory(*record))
            .collect();
        if records.is_empty() {
            return Ok(());
        }
        let mut adopt = scripts::STREAM_ADOPT.key(&self.keys.stream);
        adopt.key(&self.keys.held).arg(GROUP).arg(&self.consumer).arg(&records);
        let entries: u64 = adopt.invoke_async(&mut self.redis.clone()).await?;
        self.held.forget(&records);
        tracing::debug!(entries, "entries that were held are read");
        Ok(())
    }

    async fn read_new(&self, connection: Option<ReadConnection>) -> NewEntries {
        let present =
            connection.and_then(|mut own| (&mut own.moved).now_or_never().is_none().then_some(own));
        let mut own = match present {
            Some(own) => own,
            None => self.connect().await?,
        };
        let block = BLOCK.as_millis() as u64;
        let read = self
            .read()
            .arg("BLOCK")
            .arg(block)
            .arg("STREAMS")
            .arg(&self.keys.stream)
            .arg(">")
            .to_owned();
        let limit = BLOCK + self.limits.redis_timeout;
        let reply: Value = tokio::time::timeout(limit, read.query_async(&mut own.connection))
            .await
            .map_err(|_| Error::Unavailable("Redis"))??;
        Ok((read_entries(&reply), own))
    }

    fn read(&self) -> Cmd {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(&self.consumer).arg("COUNT").arg(self.limits.batch);
        read
    }

    async fn connect(&self) -> Result<ReadConnection, Error> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limits.redis_timeout))
            // `read_new` has a time limit of its own.
            .set_response_timeout(None);
        let moved = self.nodes.moved(&self.keys.stream).boxed();
        let client = self.nodes.client_of(&self.keys.stream).await?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(ReadConnection { connection, moved })
    }

    /// Leaves the group.
    async fn leave(&self) {
        let removed: redis::RedisResult<i64> = scripts::STREAM_LEAVE
            .key(&self.keys.stream)
            .key(&self.keys.consumers)
            .key(&self.keys.held)
            .arg(GROUP)
            .arg(&self.consumer)
            .invoke_async(&mut self.redis.clone())
            .await;
        match removed {
            Ok(1) => {}
            Ok(_) => tracing::warn!("some entries are left to another node"),
            Err(error) => tracing::warn!(%error, "the group could not be left"),
        }
    }
}

impl Consumer {
    fn new(node: Arc<StreamNode>, deliveries: UnboundedReceiver<Delivery>) -> Self {
        let now = Instant::now();
        Consumer {
            queues: SaleQueues::new(node.limits.batch, node.held.clone()),
            deliveries,
            node,
            commits: FuturesUnordered::new(),
            caught_up: false,
            connection: None,
            reading_new: None,
            reading_page: None,
            page_after: None,
            pages_began: now,
            pages_due: now,
            readings: 0,
            probing: None,
            probe_with: None,
            probe_due: now,
            database_away: false,
            read_due: now,
            pause: PAUSES.0,
        }
    }

    /// Begins what can be begun, and waits for the next event.
    async fn step(&mut self, read_new: bool) {
        let now = Instant::now();
        let generation = self.node.lease.generation();
        if generation != self.queues.generation() {
            self.queues.begin_generation(generation);
            self.node.read_own_pending_soon();
        }
        while let Some(batch) = self.queues.next_batch(now) {
            let node = self.node.clone();
            let commit = async move {
                let outcome = node.commit_entries(&batch).await;
                (batch, outcome)
            };
            self.commits.push(commit.boxed());
        }
        self.begin_probe(now);
        let has_room = !self.database_away && self.queues.has_room(now);
        if has_room && now >= self.read_due {
            self.begin_reads(now, read_new);
        }
        self.caught_up &= has_room && read_new && self.queues.has_room_for_all();
        self.node.deliveries.take_in(self.caught_up.then_some(generation));
        let timers = [
            self.queues.next_change(now),
            Some(now + LOOK),
            Some(self.read_due).filter(|due| *due > now),
        ];
        let wake = timers.into_iter().flatten().min().unwrap_or(now + LOOK);
        let stop = self.node.stop.clone();
        tokio::select! {
            Some((batch, outcome)) = self.commits.next() => self.committed(batch, outcome),
            Some(delivery) = self.deliveries.recv() => self.delivered(delivery),
            (began_in, read) = finished(&mut self.reading_new) => self.new_read(began_in, read),
            (began_in, read) = finished(&mut self.reading_page) => self.page_read(began_in, read),
            answers = finished(&mut self.probing) => self.probed(answers),
            () = tokio::time::sleep_until(wake.into()) => {}
            () = stop.cancelled(), if !stop.is_cancelled() => {}
        }
    }

    /// A sale's entries could not be committed: is it this sale, or the database?
    fn begin_probe(&mut self, now: Instant) {
        if self.probing.is_none()
            && now >= self.probe_due
            && let Some(order) = self.probe_with
        {
            let node = self.node.clone();
            let probe = async move { node.store.buyers_of(&[order]).await.is_ok() };
            self.probing = Some(probe.boxed());
        }
    }

    fn begin_reads(&mut self, now: Instant, read_new: bool) {
        let generation = self.queues.generation();
        let due = |consumer: &Self| consumer.page_after.is_none() && now >= consumer.pages_due;
        if self.reading_page.is_none() && (self.node.take_own_pending() || due(self)) {
            self.page_after = Some(EntryId::default());
            self.pages_began = now;
        }
        if let (None, Some(after)) = (&self.reading_page, self.page_after) {
            self.queues.page_began();
            let node = self.node.clone();
            let read = async move { (generation, node.read_page(after).await) };
            self.reading_page = Some(read.boxed());
        }
        if read_new && self.reading_new.is_none() {
            let (node, connection) = (self.node.clone(), self.connection.take());
            let read = async move { (generation, node.read_new(connection).await) };
            self.reading_new = Some(read.boxed());
        }
    }

    fn delivered(&mut self, delivery: Delivery) {
        self.caught_up &= !delivery.left_some;
        self.offer(delivery.generation, delivery.older);
        if delivery.generation == self.queues.generation() {
            self.node.held.hold(delivery.held.iter().map(|entry| entry.id).collect());
        }
        self.offer(delivery.generation, delivery.held);
    }

    /// Queues entries that were delivered in this generation.
    fn offer(&mut self, generation: u64, entries: Vec<Entry>) {
        if generation == self.queues.generation() {
            self.queues.offer(entries, false, Instant::now());
        } else {
            self.node.read_own_pending_soon();
        }
    }

    fn new_read(&mut self, began_in: u64, read: NewEntries) {
        let now = Instant::now();
        match read {
            Ok((entries, connection)) => {
                self.connection = Some(connection);
                self.pause = PAUSES.0;
                self.caught_up = entries.len() < self.node.limits.batch;
                if !entries.is_empty() && entries.len() < self.node.limits.batch / 4 {
                    self.read_due = now + GATHER;
                }
                self.offer(began_in, entries);
            }
            Err(error) => self.read_failed(&error, now),
        }
    }

    fn page_read(&mut self, began_in: u64, read: Result<Vec<Entry>, Error>) {
        let now = Instant::now();
        match read {
            Ok(entries) if entries.is_empty() => {
                self.page_after = None;
                self.readings += 1;
                let took = now - self.pages_began;
                self.pages_due = now + (took * OWN_PENDING_SHARE).max(OWN_PENDING_EVERY);
            }
            Ok(entries) if began_in == self.queues.generation() => {
                self.page_after = entries.last().map(|last| last.id);
                self.queues.offer(entries, true, now);
            }
            Ok(_) => self.node.read_own_pending_soon(),
            Err(error) => self.read_failed(&error, now),
        }
        self.queues.page_ended();
    }

    /// Redis is away, or has lost the stream.
    fn read_failed(&mut self, error: &Error, now: Instant) {
        if self.pause == PAUSES.0 {
            tracing::warn!(%error, "the stream is not read; trying again");
        }
        self.node.nodes.recheck();
        // Whatever was delivered and not acknowledged is pending under our name.
        self.node.read_own_pending_soon();
        self.node.maintenance_due.notify_one();
        self.read_due = now + self.pause;
        self.pause = (2 * self.pause).min(PAUSES.1);
    }

    fn committed(&mut self, batch: Batch, outcome: Outcome) {
        let (now, voucher_id) = (Instant::now(), batch.voucher_id);
        let order = batch.entries.iter().find_map(Entry::order);
        let completed = self.queues.complete(batch, &outcome, now);
        if completed.read_pending {
            self.node.read_own_pending_soon();
        }
        let Some(error) = outcome.error else { return };
        if completed.failures == 1 {
            tracing::warn!(voucher_id, %error, "a sale's entries are not committed; trying again");
        }
        self.probe_with = order;
    }

    fn probed(&mut self, answers: bool) {
        if answers == self.database_away {
            let state = if answers { "again" } else { "not" };
            tracing::warn!("the database answers {state}; new entries are read only while it does");
        }
        self.database_away = !answers;
        self.probe_due = Instant::now() + LOOK;
        if answers {
            self.probe_with = None;
        }
    }

    /// Commits what is held or pending under our name, as far as that succeeds soon. Nothing new is read.
    async fn finish(&mut self) {
        let deadline = Instant::now() + LAST_STEPS * self.node.limits.timeout;
        let readings = self.readings;
        self.node.read_own_pending_soon();
        while Instant::now() < deadline {
            let all_read = self.readings > readings && self.reading_new.is_none();
            if all_read && self.queues.is_empty() {
                break;
            }
            // Maintenance has stopped, and without heartbeats the entries would soon be another node's.
            if let Err(error) = self.node.maintain_once().await {
                tracing::debug!(%error, "no heartbeat while the consumer stops");
            }
            self.step(false).await;
        }
        // What was begun comes to an end by its own time limits.
        while self.commits.next().await.is_some() {}
    }
}

/// Waits for what is running, without end where nothing is. Can be dropped and called again.
async fn finished<T>(running: &mut Running<T>) -> T {
    let Some(future) = running else { return pending().await };
    let output = future.await;
    *running = None;
    output
}
