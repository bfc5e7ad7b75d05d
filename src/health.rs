//! Liveness and readiness probes. Live: the process answers. Ready: Redis and the database answer, and the process is
//! not draining.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::connection::fresh_cache::FreshCache;
use crate::connection::mysql::{self, Database};
use crate::connection::redis::Redis;

/// A backing server that takes longer to answer counts as unavailable.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// How long the result of a probe is used again, since anybody may ask as often as they like.
const FRESH_FOR: Duration = Duration::from_millis(200);

/// What readiness depends on.
#[derive(Clone)]
#[allow(missing_docs)] // the parts under their names
pub struct Health {
    /// On a connection of its own.
    pub database: Database,
    pub redis: Redis,
    pub draining: CancellationToken,
    probes: FreshCache<(), Readiness, Infallible>,
}

impl Health {
    /// Readiness by these servers. `database` needs one connection, which nothing else uses: a probe that had to wait for
    /// one behind purchases would fail under load alone, on all instances at once.
    pub fn new(database: Database, redis: Redis, draining: CancellationToken) -> Self {
        Health {
            database,
            redis,
            draining,
            probes: FreshCache::new(FRESH_FOR, 1),
        }
    }

    /// Whether this instance can sell. All who ask at the same moment share a probe. Ends within a second, whatever the
    /// servers do.
    pub async fn readiness(&self) -> Readiness {
        let Ok(mut readiness) = self.probes.get((), async || Ok(self.probe().await)).await;
        readiness.draining = self.draining.is_cancelled();
        readiness.success &= !readiness.draining;
        readiness
    }

    async fn probe(&self) -> Readiness {
        let (database, redis) = tokio::join!(
            tokio::time::timeout(PROBE_LIMIT, mysql::ping(&self.database)),
            tokio::time::timeout(PROBE_LIMIT, self.redis.ping()),
        );
        let database = matches!(database, Ok(Ok(())));
        let redis = matches!(redis, Ok(Ok(())));
        Readiness {
            success: database && redis,
            database,
            redis,
            draining: false,
        }
    }
}

/// The reply to a liveness probe.
#[derive(Serialize, ToSchema)]
pub struct Liveness {
    success: bool,
}

/// The reply to a readiness probe: what an instance needs to sell, and whether it is available.
#[derive(Clone, Serialize, ToSchema)]
pub struct Readiness {
    /// Whether this instance can sell.
    pub success: bool,
    /// Whether the database answers and takes writes.
    pub database: bool,
    /// Whether Redis answers; of a cluster, any master.
    pub redis: bool,
    /// Whether the instance is about to end.
    draining: bool,
}

/// Whether the process answers.
#[utoipa::path(
    get, path = "/health/live", tag = "service",
    responses((status = 200, body = Liveness, description = "It does.")),
)]
pub async fn live() -> impl IntoResponse {
    axum::Json(Liveness { success: true })
}

/// Whether this instance can sell.
#[utoipa::path(
    get, path = "/health/ready", tag = "service",
    responses(
        (status = 200, body = Readiness, description = "It can."),
        (status = 503, body = Readiness, description = "It cannot; the body says what is missing."),
    ),
)]
pub async fn ready(State(health): State<Health>) -> impl IntoResponse {
    let readiness = health.readiness().await;
    let status = if readiness.success {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, axum::Json(readiness))
}
