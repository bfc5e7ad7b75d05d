//! Bare axum route: the upper bound of this framework on this machine. It sends the same body as the service and does
//! no work for it: no session, no database, no middleware.

use std::net::SocketAddr;
use std::path::Path;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::any;

/// An order's reply.
pub const ORDERED: &str =
    r#"{"success":true,"data":663823142027984897,"orderId":"663823142027984897"}"#;

/// The reply when nothing is left.
pub const SOLD_OUT: &str = r#"{"success":false,"errorMsg":"库存不足！","code":"SOLD_OUT"}"#;

/// Answers purchases with an order, and those under `/sold-out` with "sold out"; also on the Unix socket `unix`, for nginx.
pub async fn serve(bind: SocketAddr, unix: &Path) -> anyhow::Result<()> {
    let reply = |body: &'static str| any(move || async move { json(body) });
    let router = Router::new()
        .route("/voucher-order/seckill/{id}", reply(ORDERED))
        .route("/sold-out/voucher-order/seckill/{id}", reply(SOLD_OUT))
        .route("/health/ready", reply(ORDERED));
    let tcp = super::server::serve(bind, router.clone());
    tokio::try_join!(tcp, super::server::serve_unix(unix, router))?;
    Ok(())
}

fn json(body: &'static str) -> ([(axum::http::HeaderName, &'static str); 1], &'static str) {
    ([(CONTENT_TYPE, "application/json")], body)
}
