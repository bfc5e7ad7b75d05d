//! A bare axum route: the most that this framework can answer here. It sends the same body as the
//! service, and does nothing for it: no session, no database, no middleware.

use std::net::SocketAddr;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::any;

/// An order's reply.
pub const ORDERED: &str =
    r#"{"success":true,"data":663823142027984897,"orderId":"663823142027984897"}"#;

/// The reply to those who come too late.
pub const SOLD_OUT: &str = r#"{"success":false,"errorMsg":"库存不足！","code":"SOLD_OUT"}"#;

/// Answers purchases by an order, and those under `/late` by "sold out".
pub async fn serve(bind: SocketAddr) -> anyhow::Result<()> {
    let says = |body: &'static str| any(move || async move { json(body) });
    let router = Router::new()
        .route("/voucher-order/seckill/{id}", says(ORDERED))
        .route("/late/voucher-order/seckill/{id}", says(SOLD_OUT))
        .route("/health/ready", says(ORDERED));
    super::serve(bind, router).await
}

fn json(body: &'static str) -> ([(axum::http::HeaderName, &'static str); 1], &'static str) {
    ([(CONTENT_TYPE, "application/json")], body)
}
