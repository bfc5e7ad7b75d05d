//! Stream: a script in Redis admits the buyer and adds an entry to a Redis stream; a consumer group commits the orders.
//! docs/STREAM.md says by which rules, and what happens when things fail. The life of a purchase, in the order of the code:
//!
//! 1. `admit`: one script lowers the stock counter, adds a claim of the user and an entry, and notes the order as pending.
//! 2. `consume`: a consumer of the group, in every process, reads entries; `decide` commits those of a sale in one
//!    transaction ([`crate::order::batch`]), or writes the refusal of an order as a row under its id. **The database decides,
//!    yes and no.** Then one script *resolves* the entries: takes them out of stream and hash, and gives back what a refused
//!    one had taken.
//! 3. `lookup`: the answer for an order that is no row yet ([`crate::order::lookup`]).
//!
//! Beside this path, `open` finds the sales that have to be counted, and `count` sets their stock counters and claims to what
//! the database and the stream say, under a *mark* (`Mark`) that ends when Redis may have lost data. `java` puts right what
//! consumers of another kind drop or keep.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::SaleConfig;
use crate::connection::coalescer::Coalescer;
use crate::connection::redis::{Redis, RoutedConnection};
use crate::error::Error;
use crate::id::IdGenerator;
use crate::keys::Keys;
use crate::order::batch::BatchCommitter;
use crate::order::store::{Kind, OrderStore};
use crate::scripts;
use crate::voucher::recounts::Recounts;

mod admission;
mod admit;
mod consume;
mod count;
mod decide;
mod java;
mod lookup;
mod open;
mod replies;
mod sale_state;
mod stats;

pub use replies::{Standing, Unnamed};
pub use stats::StreamStats;

use admission::{Admission, Answer};
use replies::{Ask, RedisClock, StreamView};
use sale_state::SaleStates;

/// Purchases that one call admits at most, so that it never keeps Redis from others for long.
const BATCH: usize = 64;

/// The consumer group, shared with Java nodes.
const GROUP: &str = "g1";

/// What our consumers' names begin with; the rest is random.
const CONSUMER_PREFIX: &str = "seckill-";

/// Sales that are counted at once; beside them one whose last count failed.
const COUNTS: usize = 4;

/// Transactions of the consumer at once; beside them one of a sale that is stuck.
const TRANSACTIONS: usize = 8;

/// This process as a member of the stream. Cheap to clone.
#[derive(Clone)]
pub struct OrderStream(Arc<Member>);

/// What its requests and its tasks share.
struct Member {
    nodes: Redis,
    /// Commands to the master.
    redis: RoutedConnection,
    keys: Keys,
    store: OrderStore,
    ids: Arc<IdGenerator>,
    recounts: Recounts,
    config: SaleConfig,
    committer: BatchCommitter,
    /// This process's name in the group.
    consumer: String,
    admissions: Coalescer<Admission, Answer>,
    sales: SaleStates,
    counts: Semaphore,
    counts_of_locked: Semaphore,
    transactions: Semaphore,
    transactions_of_stuck: Semaphore,
    /// An attempt found that the database does not answer.
    database_failed: AtomicBool,
    clock: RedisClock,
    /// Notified when this process admits a purchase: there is an entry to read.
    arrived: Notify,
    stats: StreamStats,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl OrderStream {
    /// Joins the group and consumes, until [`OrderStream::shutdown`].
    pub async fn start(
        nodes: Redis,
        keys: Keys,
        store: OrderStore,
        ids: Arc<IdGenerator>,
        recounts: Recounts,
        config: SaleConfig,
    ) -> Result<Self, Error> {
        let member = Arc::new_cyclic(|member: &Weak<Member>| {
            let member = member.clone();
            Member {
                committer: BatchCommitter::new(store.clone(), Kind::Entries),
                consumer: format!("{CONSUMER_PREFIX}{}", uuid::Uuid::new_v4()),
                admissions: Coalescer::start(BATCH, move |queued: Vec<Admission>| {
                    let member = member.upgrade();
                    async move {
                        match member {
                            Some(member) => member.admit(&queued).await,
                            None => Vec::new(),
                        }
                    }
                }),
                sales: SaleStates::default(),
                counts: Semaphore::new(COUNTS),
                counts_of_locked: Semaphore::new(1),
                transactions: Semaphore::new(TRANSACTIONS),
                transactions_of_stuck: Semaphore::new(1),
                database_failed: AtomicBool::default(),
                clock: RedisClock::default(),
                arrived: Notify::new(),
                stats: StreamStats::default(),
                tasks: TaskTracker::new(),
                stop: CancellationToken::new(),
                redis: nodes.commands(),
                nodes,
                keys,
                store,
                ids,
                recounts,
                config,
            }
        });
        member.view(Ask::Tidy("")).await?;
        member.tasks.spawn(member.clone().consume());
        member.tasks.spawn(member.clone().keep_open());
        member.tasks.spawn(member.clone().watch_others());
        Ok(OrderStream(member))
    }

    /// Counters of this process, and the state of the stream.
    pub fn stats(&self) -> &StreamStats {
        &self.0.stats
    }

    /// Finishes the transactions in flight and leaves the group. What was not read is left to other nodes. To be called when no
    /// purchase can come in any more.
    pub async fn shutdown(&self) {
        let member = &self.0;
        member.stop.cancel();
        member.tasks.close();
        member.tasks.wait().await;
        if let Err(error) = member.view(Ask::Tidy(&member.consumer)).await {
            tracing::warn!(%error, "the group could not be left");
        }
        member.admissions.shutdown().await;
    }
}

impl Member {
    /// Reads the state of the stream, and with it Redis' clock.
    async fn view(&self, ask: Ask<'_>) -> Result<StreamView, Error> {
        let mut script = scripts::STREAM_LOOK.key(&*self.keys.stream);
        script.key(&*self.keys.pending);
        match ask {
            Ask::Page(after) => script.arg("page").arg(after),
            Ask::User(user) => script.arg("user").arg(user),
            Ask::Tidy(leaves) => script.arg("tidy").arg(CONSUMER_PREFIX).arg(leaves),
        };
        let reply = script.invoke_async(&mut self.redis.clone()).await?;
        let view = StreamView::parse(&reply)?;
        self.clock.set(view.at_us);
        Ok(view)
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Sleeps, but no longer than until the process stops.
    async fn sleep(&self, pause: Duration) {
        let _stopped = self
            .stop
            .run_until_cancelled(tokio::time::sleep(pause))
            .await;
    }
}
