//! Starts, serves and stops: configuration → connections → application state → listening server → graceful shutdown.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, ensure};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{ServeConfig, SessionStore};
use crate::connection::{self, migrate};
use crate::health::Health;
use crate::http::auth::AdminToken;
use crate::http::listen;
use crate::http::spans::Spans;
use crate::id::IdGenerator;
use crate::lab::Lab;
use crate::metrics::Metrics;
use crate::order::context::PurchaseContext;
use crate::order::expiry::Expiry;
use crate::order::lifetime::Lifetime;
use crate::order::purchase::PurchaseService;
use crate::order::store::OrderStore;
use crate::order::strategy::group_commit::queue::{GroupCommit, GroupCommitLimits};
use crate::order::strategy::stream::service::{OrderStream, StreamLimits};
use crate::request::admission::{Admission, AdmissionLimits};
use crate::router::{AppState, RouterConfig, router};
use crate::session::{ProcessSessions, Sessions, SharedSessions};
use crate::shop::Shops;
use crate::shop::filter::existing_shops;
use crate::shop::reads::ShopSettings;
use crate::shop::store::ShopStore;
use crate::user::Users;
use crate::user::code::{Codes, LogSender};
use crate::user::store::UserStore;
use crate::voucher::Vouchers;
use crate::voucher::sales::SaleCache;
use crate::voucher::stock_events::StockEvents;
use crate::voucher::store::VoucherStore;
use cache::{Cache, CacheConfig, CachePolicy};
use lock::{LockConfig, Locks, ProcessLocks};

/// Serves until SIGTERM or Ctrl-C, then shuts down gracefully.
///
/// # Errors
/// Where the start fails, with what to do about it, or where requests did not finish within the drain deadline.
pub async fn serve(config: ServeConfig) -> anyhow::Result<()> {
    config.check()?;
    let (draining, connections) = (CancellationToken::new(), TaskTracker::new());
    let state = connect(&config, draining.clone(), connections.clone()).await?;
    let (purchases, shops) = (state.purchases.clone(), state.shops.clone());
    let (stock_events, sessions) =
        (state.vouchers.stock_events.clone(), state.users.sessions.clone());
    let expiry = Expiry::start(state.lifetime.clone(), config.sale.unpaid_seconds);

    let listener = listen::bind(config.http.bind).with_context(|| {
        format!("cannot listen on {}; is another program using it? (--bind)", config.http.bind)
    })?;
    let address = listener.local_addr()?;
    let name = config.http.node_name.clone().unwrap_or_else(|| address.to_string());
    let spans = Spans::from_environment(&name)?;
    let lab = config.sale.lab.then(|| Lab::new(&config, name, address)).transpose()?;
    if lab.is_some() {
        tracing::warn!(
            "--lab: sign-in codes are public, and sales on unsafe strategies are allowed"
        );
    }
    tracing::info!(%address, lab = config.sale.lab, "serving");
    if config.http.admin_token.is_none() {
        tracing::warn!("ADMIN_TOKEN is not set: nothing can be published through this instance");
    }

    let (grace, deadline) = (config.http.drain_grace, config.http.drain_deadline);
    let router_config = RouterConfig {
        admin: AdminToken(config.http.admin_token.clone()),
        request_timeout: config.http.request_timeout,
        draining: draining.clone(),
        spans: spans.clone(),
        zone: config.sale.time_zone,
        lab: lab.clone(),
    };
    let router = router(state, router_config);
    let server = listen::serve(listener, router, connections, draining.clone(), grace, deadline);
    tokio::pin!(server);
    tokio::select! {
        // Ends only by draining, which starts below.
        _ = &mut server => {}
        stop = stop_signal() => {
            tracing::info!(signal = stop?, "draining: readiness is false, purchases in flight finish");
            draining.cancel();
        }
    }
    expiry.stop();
    let drained = tokio::time::timeout(deadline, async {
        // Together: a run of the lab is a client of this server.
        let (all_closed, ()) = tokio::join!(&mut server, async {
            if let Some(lab) = lab {
                lab.shutdown().await;
            }
        });
        // A purchase whose client hung up has no connection any more, and still finishes.
        purchases.finished().await;
        expiry.stopped().await;
        shops.shutdown().await;
        stock_events.shutdown().await;
        sessions.shutdown().await;
        all_closed
    })
    .await;
    purchases.shutdown_locks().await;
    spans.shutdown().await;
    ensure!(
        matches!(drained, Ok(true)),
        "requests were still in flight after {deadline:?} and were cut off (--drain-deadline-ms)"
    );
    tracing::info!("drained: no request is in flight");
    Ok(())
}

/// Connects to the backing servers and builds the application state.
async fn connect(
    config: &ServeConfig,
    draining: CancellationToken,
    connections: TaskTracker,
) -> anyhow::Result<AppState> {
    let zone = config.sale.time_zone;
    let timeout = config.database.database_timeout;
    let database = connection::mysql::connect(
        &config.database.database_url,
        config.database.database_connections,
        timeout,
    )
    .await?;
    let missing = migrate::missing(&database.pool).await?;
    ensure!(missing == 0, "{missing} migration steps are missing: run `seckill migrate` first");

    let client = connection::redis::client(&config.redis.redis_url)?;
    let redis = connection::redis::connect(&client, config.redis.redis_timeout).await?;
    let locks = Locks::connect(
        client.clone(),
        LockConfig::default()
            .with_lease(config.sale.lock_lease)
            .with_command_timeout(config.redis.redis_timeout)
            .with_connect_timeout(config.redis.redis_timeout),
    )
    .await
    .context("cannot set up the locks on Redis")?;

    let sessions = match config.sign_in.sessions {
        SessionStore::Redis => Sessions::Shared(SharedSessions::new(redis.clone())),
        SessionStore::Process => Sessions::Process(ProcessSessions::default()),
    };
    let cache = Cache::new(redis.clone(), client.clone(), CacheConfig::default());
    let shops = shops(config, ShopStore::new(database.clone()), cache.clone(), redis.clone());
    let voucher_store = VoucherStore::new(database.clone());
    let sales = Arc::new(SaleCache::new(voucher_store.clone(), timeout));
    let stock_events = StockEvents::listen(client.clone(), redis.clone(), sales.clone());
    let vouchers = Vouchers {
        store: voucher_store,
        redis: redis.clone(),
        stock_events: stock_events.clone(),
        shops: shops.clone(),
        zone,
        lab: config.sale.lab,
    };
    let users = Users {
        store: UserStore::new(database.clone()),
        codes: Codes::new(redis.clone(), Arc::new(LogSender), config.sign_in.clone()),
        sessions,
    };
    let store = OrderStore::new(database.clone(), zone);
    let clock = Arc::new(move || zone.now());
    let ids = Arc::new(IdGenerator::new(redis.clone(), clock, "order", config.sale.id_block));
    let limits = GroupCommitLimits {
        batch: config.sale.group_batch,
        queue: config.sale.group_queue,
        in_flight: config.sale.group_in_flight,
        timeout,
    };
    let stream_limits = StreamLimits {
        batch: config.sale.stream_batch,
        backlog: config.sale.stream_backlog,
        min_idle: config.sale.stream_min_idle,
        timeout,
        redis_timeout: config.redis.redis_timeout,
    };
    let stream = OrderStream::start(
        client.clone(),
        redis.clone(),
        store.clone(),
        ids.clone(),
        stream_limits,
    )
    .await
    .context("cannot join the stream of orders on Redis")?;
    let lifetime = Lifetime::new(store.clone(), stock_events);
    let context = PurchaseContext {
        stream,
        group_commit: GroupCommit::new(store.clone(), ids.clone(), limits),
        store,
        ids,
        locks,
        process_locks: ProcessLocks::new(),
        setnx_lease: config.sale.setnx_lease,
        database_timeout: timeout,
    };
    let limits = AdmissionLimits {
        in_flight: config.sale.max_purchases,
        // Leaves time for the steps after the wait for a connection.
        max_wait: timeout / 3,
        per_user_per_second: config.sale.per_user_per_second,
        per_address_per_second: config.sale.per_address_per_second,
    };
    let admission = Admission::new(limits);
    let purchases = PurchaseService::new(context, sales, config.sale.lab);
    let metrics = Metrics {
        shops: shops.clone(),
        cache,
        purchases: purchases.clone(),
        admission: admission.clone(),
        sessions: users.sessions.clone(),
        database: database.clone(),
        connections,
        started: SystemTime::now(),
    };
    let health = Health { database, redis, draining };
    Ok(AppState { users, shops, vouchers, admission, purchases, lifetime, health, metrics })
}

/// Shops, with their cache.
fn shops(
    config: &ServeConfig,
    store: ShopStore,
    cache: Cache,
    redis: redis::aio::ConnectionManager,
) -> Shops {
    let filter = config.sale.shop_filter.then(|| existing_shops(&cache, &store));
    let settings = ShopSettings {
        read_strategy: config.sale.shop_cache,
        shop_policy: CachePolicy::new("shop").with_bloom_filter(filter),
        lab: config.sale.lab,
        per_shop_per_second: config.sale.per_shop_per_second,
        zone: config.sale.time_zone,
    };
    Shops::new(store, cache, redis, settings)
}

/// Waits for SIGTERM or SIGINT; returns its name.
async fn stop_signal() -> anyhow::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}
