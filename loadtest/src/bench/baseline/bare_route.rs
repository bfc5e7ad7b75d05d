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

/// A shop, as long as the one that is read beside it.
const SHOP: &str = r#"{"success":true,"data":{"id":1,"name":"压测 load tests","typeId":10,"images":"","address":"127.0.0.1","x":120.15,"y":30.32,"avgPrice":80,"sold":0,"comments":0,"score":0,"openHours":"00:00-24:00","createTime":"2026-01-01T00:00:00","updateTime":"2026-01-01T00:00:00"}}"#;

/// Answers purchases with an order, those under `/sold-out` with "sold out", and reads with a shop; also on the Unix socket `unix`, for nginx.
pub async fn serve(bind: SocketAddr, unix: &Path) -> anyhow::Result<()> {
    let reply = |body: &'static str| any(move || async move { json(body) });
    let router = Router::new()
        .route("/voucher-order/seckill/{id}", reply(ORDERED))
        .route("/sold-out/voucher-order/seckill/{id}", reply(SOLD_OUT))
        .route("/shop/{id}", reply(SHOP))
        .route("/health/ready", reply(ORDERED));
    let tcp = super::server::serve(bind, router.clone());
    tokio::try_join!(tcp, super::server::serve_unix(unix, router))?;
    Ok(())
}

fn json(body: &'static str) -> ([(axum::http::HeaderName, &'static str); 1], &'static str) {
    ([(CONTENT_TYPE, "application/json")], body)
}
