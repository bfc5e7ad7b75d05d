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
use crate::order::strategy::stream::OrderStream;
use crate::request::admission::Admission;
use crate::router::AppState;
use crate::session::{ProcessSessions, SharedSessions};
use crate::shop::Shops;
use crate::shop::store::ShopStore;
use crate::user::Users;
use crate::user::code::Codes;
use crate::user::store::UserStore;
use crate::voucher::sales::SaleCache;
use crate::voucher::store::VoucherStore;
use crate::voucher::{self, Vouchers};

/// How long a start waits for servers that do not answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Connects to the backing servers and builds the application state.
pub(super) async fn connect(
    config: &ServeConfig,
    draining: CancellationToken,
    connections: TaskTracker,
) -> anyhow::Result<AppState> {
    let zone = config.sale.time_zone;
    let timeout = config.database.database_timeout;
    let (database, nodes, keys) = servers(config).await?;
    // Of their own, so that no number of reads holds what a purchase needs.
    let reads = database.for_reads(config.sale.read_connections);
    // Payments and cancellations may wait for a row for long, and users choose when.
    let changes = database.beside(CHANGE_CONNECTIONS);
    // One of its own, which is kept: an instance whose connections are all in use is overloaded, and still ready.
    let probe = database.beside(1);
    let redis = nodes.commands();
    let locks = Locks::connect(
        nodes.clone(),
        LockConfig::default()
            .with_lease(config.sale.lock_lease)
            .with_command_timeout(config.redis.redis_timeout)
            .with_connect_timeout(config.redis.redis_timeout),
    )
    .await
    .context("cannot set up the locks on Redis")?;

    let sessions = SharedSessions::new(redis.clone(), keys.style);
    sessions.track(nodes.clone());
    let cache_config = CacheConfig {
        // As Java nodes have it.
        shared_mutex: keys.style == KeyStyle::Default,
        ..CacheConfig::default()
    };
    let cache = Cache::new(&nodes, cache_config);
    let shop_reads = ShopStore::new(reads.clone());
    let shop_writes = ShopStore::new(database.clone());
    let shops = Shops::new(
        shop_reads,
        shop_writes,
        cache.clone(),
        redis.clone(),
        &config.sale,
    );
    let voucher_store = VoucherStore::new(database.clone());
    let sales = Arc::new(SaleCache::new(
        voucher_store.clone(),
        redis.clone(),
        keys.clone(),
        timeout,
    ));
    let vouchers = Vouchers {
        store: voucher_store,
        reads: VoucherStore::new(reads.clone()),
        lists: FreshCache::new(voucher::LIST_FRESH_FOR, 1024),
        redis: redis.clone(),
        keys: keys.clone(),
        sales: sales.clone(),
        shops: shops.clone(),
        zone,
        lab: config.sale.lab,
    };
    let in_memory = config.sale.lab.then(ProcessSessions::default);
    let users = Users {
        store: UserStore::new(database.clone()),
        reads: UserStore::new(reads.clone()),
        codes: Codes::new(
            redis.clone(),
            config.sign_in.clone(),
            config.sign_in.webhook()?,
        ),
        sessions: sessions.clone(),
        in_memory: in_memory.clone(),
    };
    let store = OrderStore::new(database.clone(), zone);
    let seconds = Arc::new(zone.latest_seconds(database.clock().clone()));
    let ids = IdGenerator::new(redis.clone(), seconds, keys.clone(), config.sale.id_block);
    let ids = Arc::new(ids);
    let limits = GroupCommitLimits {
        batch: 512,
        queue: QUEUE,
        in_flight: config.sale.group_in_flight,
        timeout,
    };
    let group_commit = GroupCommit::new(store.clone(), ids.clone(), limits);
    let stream = OrderStream::start(
        nodes.clone(),
        keys,
        store.clone(),
        ids.clone(),
        sales.recounts.clone(),
        config.sale.clone(),
    );
    let stream = stream
        .await
        .context("cannot join the stream of orders on Redis")?;
    let unsure = config.sale.stream_unsure;
    let changed = OrderStore::new(changes.clone(), zone);
    let lookup = OrderLookup::new(changed.clone(), stream.clone(), unsure);
    let lifetime = Lifetime::new(changed, sales.clone(), lookup);
    let lookup = OrderLookup::new(OrderStore::new(reads.clone(), zone), stream.clone(), unsure);
    let context = PurchaseContext {
        redis,
        store,
        ids,
        locks,
        setnx_lease: config.setnx_lease(),
        commits_within: config.commits_within(),
        lab: config.sale.lab,
        group_commit,
        stream,
        process_locks: ProcessLocks::default(),
    };
    let guards = Arc::new(Guards {
        purchases: Admission::new(&config.sale),
        signed_in: Admission::new(&config.sale),
        sessions,
        in_memory,
        clients: config.http.clients.clone(),
    });
    let purchases = PurchaseService::new(context, sales);
    let health = Health::new(probe, nodes, draining);
    let metrics = Metrics {
        health: health.clone(),
        replies: Arc::default(),
        shops: shops.clone(),
        cache,
        purchases: purchases.clone(),
        guards: guards.clone(),
        codes: users.codes.clone(),
        database,
        reads,
        changes,
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

/// Connects to the servers and checks them. Those that do not answer in time may be busy, or about to start, and are asked
/// again for [`PATIENCE`]; what they answer is final.
async fn servers(config: &ServeConfig) -> anyhow::Result<(Database, Redis, Keys)> {
    let silence = config
        .redis
        .redis_timeout
        .min(config.database.database_timeout);
    let began = Instant::now();
    loop {
        let tried = Instant::now();
        match try_servers(config).await {
            Err(error) if tried.elapsed() >= silence && began.elapsed() < PATIENCE => {
                tracing::warn!(%error, "a server does not answer; trying again");
            }
            outcome => return outcome,
        }
    }
}

async fn try_servers(config: &ServeConfig) -> anyhow::Result<(Database, Redis, Keys)> {
    let DatabaseConfig {
        database_url,
        database_connections,
        database_timeout,
    } = &config.database;
    let most = *database_connections;
    let timeout = *database_timeout;
    let database = connection::mysql::connect(database_url, most, timeout).await?;
    database_check::ready_to_serve(&database).await?;
    let server = config.redis.server()?;
    let nodes = connection::redis::connect(server, config.redis.redis_timeout).await?;
    let keys = Keys::new(config.redis.key_style()?);
    let redis = nodes.commands();
    rights::check(&redis).await?;
    record::record(&mut redis.clone(), keys.style).await?;
    Ok((database, nodes, keys))
}
