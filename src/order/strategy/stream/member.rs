//! [`Member`]: this process as a member of the stream, shared by its requests and its tasks.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Value;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::entry::{Entry, entries, items, string};
use super::stats::StreamStats;
use crate::connection::coalescer::Coalescer;
use crate::connection::redis::{Redis, RoutedConnection};
use crate::error::Error;
use crate::id::{IdGenerator, LocalClock};
use crate::keys::Keys;
use crate::order::batch::BatchCommitter;
use crate::order::model::NewOrder;
use crate::order::store::OrderStore;
use crate::scripts;
use crate::voucher::stock_events::Recounts;

/// The consumer group, shared with Java nodes.
pub(super) const GROUP: &str = "g1";

/// What our consumers' names begin with; the rest is random.
pub(super) const CONSUMER_PREFIX: &str = "seckill-";

/// Sales that are opened at once.
const AT_ONCE: usize = 4;

/// Bounds and time limits of the stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamLimits {
    /// Entries read, and orders committed, at a time.
    pub batch: usize,
    /// Users who may have pending orders; one more purchase is refused as [`Error::Overloaded`].
    pub backlog: usize,
    /// How long a consumer may keep an entry before another claims it.
    pub min_idle: Duration,
    /// How long after Redis lost data, or after its id was drawn, nobody is told that an order does not exist.
    pub unsure: Duration,
    /// Longest time one database step may take.
    pub timeout: Duration,
}

/// This process as a member of the stream. Cheap to clone.
#[derive(Clone)]
pub struct OrderStream(pub(super) Arc<Member>);

/// What its requests and its tasks share.
pub(super) struct Member {
    pub(super) nodes: Redis,
    pub(super) redis: RoutedConnection,
    pub(super) keys: Keys,
    pub(super) store: OrderStore,
    pub(super) reads: OrderStore,
    pub(super) ids: Arc<IdGenerator>,
    pub(super) seconds: LocalClock,
    pub(super) limits: StreamLimits,
    pub(super) committer: BatchCommitter,
    /// This process's name in the group.
    pub(super) consumer: String,
    pub(super) admissions: Coalescer<NewOrder, Answer>,
    pub(super) opener: Opener,
    pub(super) clock: RedisClock,
    /// Something was admitted: there is something to read.
    pub(super) arrived: Notify,
    pub(super) stats: StreamStats,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

/// What the script decided, and whether an earlier call, whose reply was lost, may have decided it.
pub(super) type Answer = Result<(Admission, bool), Error>;

/// What the script decided.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Admission {
    /// An entry is in the stream.
    Pending,
    /// The user has a claim already, of the pending order with this id if there is one.
    Claimed(Option<i64>),
    SoldOut,
    /// Too many orders are pending.
    Full,
    /// The sale is being counted.
    Closed,
    /// The call came to its turn too late.
    Late,
}

/// What is to be counted, and what is being counted.
pub(super) struct Opener {
    pub recounts: Recounts,
    pub opening: Mutex<HashSet<i64>>,
    /// Sales whose row was locked, or which could not be opened for another reason.
    pub locked: Mutex<HashSet<i64>>,
    pub lanes: Semaphore,
    pub locked_lane: Semaphore,
}

impl Opener {
    pub fn new(recounts: Recounts) -> Self {
        Opener {
            recounts,
            opening: Mutex::default(),
            locked: Mutex::default(),
            lanes: Semaphore::new(AT_ONCE),
            locked_lane: Semaphore::new(1),
        }
    }
}

/// Under which data of which master something was read or counted; see `lua/stream_mark.lua`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mark {
    pub text: String,
    /// When it began, µs of the master's clock.
    pub since_us: i64,
}

/// What `lua/stream_look.lua` is asked for.
pub(super) enum Ask<'a> {
    /// The entries after this one; where it is empty, from the beginning.
    Page(&'a str),
    User(i64),
    /// To remove consumers that are gone, and the one with this name.
    Tidy(&'a str),
}

/// What it says.
pub(super) struct Look {
    pub mark: Mark,
    /// Users who have pending orders.
    pub users: u64,
    /// The pending orders of the user that was asked for.
    pub pending: String,
    pub entries: Vec<Entry>,
    /// Whether there may be more entries.
    pub more: bool,
}

impl Member {
    pub async fn look(&self, ask: Ask<'_>) -> Result<Look, Error> {
        let mut script = scripts::STREAM_LOOK.key(&*self.keys.stream);
        script.key(&*self.keys.pending);
        match ask {
            Ask::Page(after) => script.arg("page").arg(after),
            Ask::User(user) => script.arg("user").arg(user),
            Ask::Tidy(leaves) => script.arg("tidy").arg(CONSUMER_PREFIX).arg(leaves),
        };
        let reply: Value = script.invoke_async(&mut self.redis.clone()).await?;
        let [mark, now, users, pending, before, page] = items(&reply) else {
            return Err(Error::Internal("stream_look.lua returned something else".to_owned()));
        };
        self.clock.set(string(now));
        let (text, page) = (string(mark).to_owned(), entries(page));
        let since = text.split(' ').nth(1).and_then(|since| since.parse().ok());
        let mut all = entries(before);
        let more = !page.is_empty();
        all.extend(page);
        Ok(Look {
            mark: Mark { since_us: since.unwrap_or(i64::MAX), text },
            users: if let Value::Int(users) = users { (*users).max(0) as u64 } else { 0 },
            pending: string(pending).to_owned(),
            entries: all,
            more,
        })
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Sleeps, or until the process stops.
    pub async fn sleep(&self, pause: Duration) {
        let _stopped = self.stop.run_until_cancelled(tokio::time::sleep(pause)).await;
    }
}

/// The master's clock, as its last reply told it: never ahead of it while it runs evenly.
#[derive(Debug)]
pub(super) struct RedisClock {
    began: Instant,
    offset_us: AtomicI64,
}

impl Default for RedisClock {
    fn default() -> Self {
        RedisClock { began: Instant::now(), offset_us: AtomicI64::new(0) }
    }
}

impl RedisClock {
    fn local_us(&self) -> i64 {
        self.began.elapsed().as_micros().try_into().unwrap_or(i64::MAX)
    }

    pub fn set(&self, now: &str) {
        if let Ok(now) = now.parse::<i64>() {
            self.offset_us.store(now - self.local_us(), Relaxed);
        }
    }

    pub fn now_us(&self) -> i64 {
        self.offset_us.load(Relaxed) + self.local_us()
    }
}
