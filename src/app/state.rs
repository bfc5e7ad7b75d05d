//! Builds the application state: connects to the backing servers and wires the features.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use cache::{Cache, CacheConfig};
use lock::{LockConfig, Locks};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{CHANGE_CONNECTIONS, DatabaseConfig, ServeConfig};
use crate::connection::fresh_cache::FreshCache;
use crate::connection::mysql::Database;
use crate::connection::redis::Redis;
use crate::connection::{self, database_check};
use crate::health::Health;
use crate::http::admission::Guards;
use crate::id::IdGenerator;
use crate::keys::{KeyStyle, Keys, record, rights};
use crate::metrics::Metrics;
use crate::order::lifetime::Lifetime;
use crate::order::lookup::OrderLookup;
use crate::order::process_locks::ProcessLocks;
use crate::order::purchase::PurchaseService;
use crate::order::store::OrderStore;
use crate::order::strategy::context::PurchaseContext;
use crate::order::strategy::group_commit::queue::{GroupCommit, GroupCommitLimits, QUEUE};
use crate::order::strategy::memory_queue::MemoryQueue;
use crate::order::strategy::stream::OrderStream;
use crate::request::admission::Admission;
use crate::router::AppState;
use crate::session::{ProcessSessions, SharedSessions};
use crate::shop::Shops;
use crate::shop::store::ShopStore;
use crate::user::Users;
use crate::user::code::Codes;
use crate::user::store::UserStore;
use crate::voucher::recounts::Recounts;
use crate::voucher::sales::SaleCache;
use crate::voucher::store::VoucherStore;
use crate::voucher::{self, Vouchers};

/// How long a start waits for servers that do not answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// The connections to the backing servers, by what they are for.
struct Servers {
    /// For purchases, and everything that writes but the changes below.
    database: Database,
    /// For reads: on connections of their own, so that no number of reads takes a connection that a purchase needs.
    reads: Database,
    /// For payments and cancellations: they may wait long for a locked row, and users choose when.
    changes: Database,
    redis: Redis,
    locks: Locks,
    keys: Keys,
}

/// Connects to the backing servers and builds the application state.
pub(super) async fn connect(
    config: &ServeConfig,
    draining: CancellationToken,
    connections: TaskTracker,
) -> anyhow::Result<AppState> {
    let servers = patiently(config, async || connect_to_servers(config).await).await?;
    // Readiness has a connection of its own: an instance whose connections are all in use is overloaded, and still ready.
    let probe = servers.database.beside(1);
    let health = Health::new(probe, servers.redis.clone(), draining);
    let sessions = SharedSessions::new(servers.redis.commands(), servers.keys.style);
    sessions.track(servers.redis.clone());
    let in_memory = config.sale.lab.then(ProcessSessions::default);
    let cache = servers.cache();
    let shops = servers.shops(config, cache.clone());
    let vouchers = servers.vouchers(config, shops.clone());
    let users = servers.users(config, sessions.clone(), in_memory.clone())?;
    let sales = vouchers.sales.clone();
    let context = servers
        .purchase_context(config, sales.recounts.clone())
        .await?;

    let zone = config.sale.time_zone;
    let find_in =
        |store| OrderLookup::new(store, context.stream.clone(), config.sale.stream_unsure);
    let orders_on = |database: &Database| {
        let mut store = OrderStore::new(database.clone(), zone);
        store.unpaid_seconds = config.sale.unpaid_seconds;
        store
    };
    let lookup = find_in(orders_on(&servers.reads));
    let changed = orders_on(&servers.changes);
    let lifetime = Lifetime::new(changed.clone(), sales.clone(), find_in(changed));
    let guards = Arc::new(Guards {
        purchases: Admission::new(&config.sale),
        signed_in: Admission::new(&config.sale),
        sessions,
        in_memory,
        clients: config.http.clients.clone(),
    });
    let purchases = PurchaseService::new(context, sales);
    let metrics = Metrics {
        health: health.clone(),
        replies: Arc::default(),
        shops: shops.clone(),
        cache,
        purchases: purchases.clone(),
        guards: guards.clone(),
        codes: users.codes.clone(),
        database: servers.database,
        reads: servers.reads,
        changes: servers.changes,
        connections,
        started: SystemTime::now(),
    };
    Ok(AppState {
        users,
        shops,
        vouchers,
        guards,
        purchases,
        lookup,
        lifetime,
        health,
        metrics,
    })
}

impl Servers {
    fn cache(&self) -> Cache {
        let config = CacheConfig {
            // Under the name that Java nodes use.
            shared_mutex: self.keys.style == KeyStyle::Default,
            ..CacheConfig::default()
        };
        Cache::new(&self.redis, config)
    }

    fn shops(&self, config: &ServeConfig, cache: Cache) -> Shops {
        let reads = ShopStore::new(self.reads.clone());
        let writes = ShopStore::new(self.database.clone());
        Shops::new(reads, writes, cache, self.redis.commands(), &config.sale)
    }

    fn vouchers(&self, config: &ServeConfig, shops: Shops) -> Vouchers {
        let store = VoucherStore::new(self.database.clone());
        let sales = SaleCache::new(
            store.clone(),
            self.redis.commands(),
            self.keys.clone(),
            config.database.database_timeout,
        );
        Vouchers {
            store,
            reads: VoucherStore::new(self.reads.clone()),
            lists: FreshCache::new(voucher::LIST_FRESH_FOR, 1024),
            redis: self.redis.commands(),
            keys: self.keys.clone(),
            sales: Arc::new(sales),
            shops,
            zone: config.sale.time_zone,
            lab: config.sale.lab,
        }
    }

    fn users(
        &self,
        config: &ServeConfig,
        sessions: SharedSessions,
        in_memory: Option<ProcessSessions>,
    ) -> anyhow::Result<Users> {
        let webhook = config.sign_in.webhook()?;
        Ok(Users {
            store: UserStore::new(self.database.clone()),
            reads: UserStore::new(self.reads.clone()),
            codes: Codes::new(self.redis.commands(), config.sign_in.clone(), webhook),
            sessions,
            in_memory,
        })
    }

    async fn purchase_context(
        &self,
        config: &ServeConfig,
        recounts: Recounts,
    ) -> anyhow::Result<PurchaseContext> {
        let redis = self.redis.commands();
        let zone = config.sale.time_zone;
        let store = OrderStore::new(self.database.clone(), zone);
        let seconds = Arc::new(zone.latest_seconds(self.database.clock().clone()));
        let ids = Arc::new(IdGenerator::new(
            redis.clone(),
            seconds,
            self.keys.clone(),
            config.sale.id_block,
        ));
        let limits = GroupCommitLimits {
            batch: 512,
            queue: QUEUE,
            in_flight: config.sale.group_in_flight,
            timeout: config.database.database_timeout,
        };
        let group_commit = GroupCommit::new(store.clone(), ids.clone(), limits);
        let stream = patiently(config, async || {
            OrderStream::start(
                self.redis.clone(),
                self.keys.clone(),
                store.clone(),
                ids.clone(),
                recounts.clone(),
                config.sale.clone(),
            )
            .await
            .context("cannot join the stream of orders on Redis")
        })
        .await?;
        Ok(PurchaseContext {
            memory_queue: MemoryQueue::new(redis.clone(), self.keys.clone(), store.clone()),
            redis,
            store,
            ids,
            locks: self.locks.clone(),
            setnx_lease: config.setnx_lease(),
            commits_within: config.commits_within(),
            lab: config.sale.lab,
            group_commit,
            stream,
            process_locks: ProcessLocks::default(),
        })
    }
}

/// Repeats what begins with the servers. A server that does not answer in time may be busy, or about to start: it is tried again
/// for [`PATIENCE`]. An error that a server answers with is final.
async fn patiently<T>(
    config: &ServeConfig,
    attempt: impl AsyncFn() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let shortest_timeout = config
        .redis
        .redis_timeout
        .min(config.database.database_timeout);
    let began = Instant::now();
    loop {
        let tried = Instant::now();
        match attempt().await {
            Err(error) if tried.elapsed() >= shortest_timeout && began.elapsed() < PATIENCE => {
                tracing::warn!(%error, "a server does not answer; trying again");
            }
            outcome => return outcome,
        }
    }
}

/// Connects to the servers and checks them.
async fn connect_to_servers(config: &ServeConfig) -> anyhow::Result<Servers> {
    let DatabaseConfig {
        database_url,
        database_connections,
        database_timeout,
    } = &config.database;
    let connections = *database_connections;
    let timeout = *database_timeout;
    let database = connection::mysql::connect(database_url, connections, timeout).await?;
    database_check::ready_to_serve(&database).await?;
    let server = config.redis.server()?;
    let redis = connection::redis::connect(server, config.redis.redis_timeout).await?;
    let keys = Keys::new(config.redis.key_style()?);
    let mut commands = redis.commands();
    rights::check(&commands).await?;
    record::record(&mut commands, keys.style).await?;
    let lock_config = LockConfig::default()
        .with_lease(config.sale.lock_lease)
        .with_command_timeout(config.redis.redis_timeout)
        .with_connect_timeout(config.redis.redis_timeout);
    let locks = Locks::connect(redis.clone(), lock_config)
        .await
        .context("cannot set up the locks on Redis")?;
    Ok(Servers {
        reads: database.for_reads(config.sale.read_connections),
        changes: database.beside(CHANGE_CONNECTIONS),
        database,
        redis,
        locks,
        keys,
    })
}
