//! The whole route table, and what every request passes through, outermost first.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state as with_state};
use axum::routing::{get, post};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_http::catch_panic::CatchPanicLayer;

use crate::error::Error;
use crate::http::auth::{AdminToken, renew_session, require_admin, require_user};
use crate::http::extract::BODY_LIMIT_BYTES;
use crate::http::middleware::{RequestPolicy, panicked, per_request};
use crate::http::page;
use crate::http::spans::Spans;
use crate::lab::Lab;
use crate::order::lifetime::Lifetime;
use crate::order::purchase::Purchasing;
use crate::request::admission::Admission;
use crate::shop::Shops;
use crate::user::Users;
use crate::voucher::Vouchers;
use crate::{health, lab, metrics, openapi, order, shop, user, voucher};
use cache::Cache;

/// Everything the routes work with.
#[derive(Clone)]
#[allow(missing_docs)] // one part a feature, under its name
pub struct Parts {
    pub users: Users,
    pub shops: Shops,
    pub vouchers: Vouchers,
    pub admission: Admission,
    pub purchasing: Purchasing,
    pub lifetime: Lifetime,
    pub cache: Cache,
    pub health: health::Health,
    pub admin: AdminToken,
    pub request_timeout: Duration,
    pub draining: CancellationToken,
    /// Clients' open connections.
    pub connections: TaskTracker,
    /// Spans of requests; none in most builds.
    pub spans: Spans,
    /// With `--lab` only.
    pub lab: Option<Lab>,
}

/// The service's router.
pub fn router(parts: Parts) -> Router {
    let signed_in = || from_fn(require_user);
    let admin = || with_state(parts.admin.clone(), require_admin);
    let sessions = parts.users.sessions.clone();
    let zone = parts.vouchers.zone;

    let users = Router::new()
        .route("/user/code", post(user::send_code))
        .route("/user/login", post(user::login))
        .merge(
            Router::new()
                .route("/user/logout", post(user::logout))
                .route("/user/me", get(user::me))
                .route("/user/{id}", get(user::get))
                .route_layer(signed_in()),
        )
        .with_state(parts.users.clone());
    let codes =
        Router::new().route("/lab/code/{phone}", get(user::sent_code)).with_state(parts.users);

    let shops = Router::new()
        .route("/shop/{id}", get(shop::get))
        .route("/shop/of/type", get(shop::of_type))
        .route("/shop/of/name", get(shop::of_name))
        .route("/shop-type/list", get(shop::types))
        .merge(
            Router::new().route("/shop", post(shop::create).put(shop::update)).route_layer(admin()),
        )
        .with_state(parts.shops.clone());

    let vouchers = Router::new()
        .route("/voucher/list/{shopId}", get(voucher::list))
        .merge(
            Router::new()
                .route("/voucher", post(voucher::publish))
                .route("/voucher/seckill", post(voucher::publish_seckill))
                .route("/voucher/seckill/{id}/stock", post(voucher::add_stock))
                .route_layer(admin()),
        )
        .with_state(parts.vouchers);

    let checkout = order::Checkout {
        admission: parts.admission.clone(),
        purchasing: parts.purchasing.clone(),
        sessions: sessions.clone(),
    };
    // They find their session themselves, once they are admitted.
    let purchases = Router::new()
        .route("/voucher-order/seckill", post(order::buy_by_body))
        .route("/voucher-order/seckill/{id}", post(order::buy))
        .with_state(checkout);

    let orders = Router::new()
        .route("/voucher-order/of/me", get(order::mine))
        .route("/voucher-order/{orderId}", get(order::get))
        .with_state(parts.purchasing.clone())
        .merge(
            Router::new()
                .route("/voucher-order/{orderId}/pay", post(order::pay))
                .route("/voucher-order/{orderId}/cancel", post(order::cancel))
                .with_state(parts.lifetime),
        )
        .route_layer(signed_in());

    let health = Router::new()
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .with_state(parts.health.clone());
    let metrics = Router::new().route("/metrics", get(metrics::get)).with_state(metrics::Metrics {
        shops: parts.shops,
        cache: parts.cache,
        purchasing: parts.purchasing,
        admission: parts.admission,
        sessions: sessions.clone(),
        database: parts.health.database,
        connections: parts.connections,
        started: SystemTime::now(),
    });

    let pages = page::routes(parts.lab.is_some(), zone);
    let lab = parts.lab.as_ref().map_or_else(Router::new, |lab| {
        Router::new()
            .route("/lab/about", get(lab::about))
            .route("/lab/runs", get(lab::runs))
            .route("/lab/runs/{id}", get(lab::run))
            .route("/lab/runs/{id}/raw", get(lab::raw))
            .route("/lab/runs/{id}/report", get(lab::report))
            .merge(
                Router::new()
                    .route("/lab/runs", post(lab::start))
                    .route("/lab/runs/{id}/stop", post(lab::stop))
                    .route("/lab/faults", post(lab::fault))
                    .route("/lab/instance/kill", post(lab::kill))
                    .route_layer(admin()),
            )
            .with_state(lab.clone())
            .merge(codes)
    });

    let docs = Router::new()
        .route("/docs", get(openapi::page))
        .route("/docs/", get(openapi::index))
        .route("/docs/openapi.json", get(openapi::document))
        .route("/docs/{file}", get(openapi::file));

    let policy = RequestPolicy {
        timeout: parts.request_timeout,
        draining: parts.draining,
        traced_as: parts.lab.as_ref().map(|lab| lab.node().into()),
        spans: parts.spans,
    };
    Router::new()
        .merge(users)
        .merge(shops)
        .merge(vouchers)
        .merge(orders)
        .layer(with_state(sessions, renew_session))
        .merge(purchases)
        // Probes carry no token, and must answer when Redis does not.
        .merge(health)
        .merge(metrics)
        .merge(lab)
        .merge(docs)
        .merge(pages)
        .fallback(async || Error::NotFound)
        .method_not_allowed_fallback(async || Error::MethodNotAllowed)
        // As one: each call of `layer` would box every request once more.
        .layer((
            with_state(Arc::new(policy), per_request),
            CatchPanicLayer::custom(panicked),
            DefaultBodyLimit::max(BODY_LIMIT_BYTES),
        ))
}
