//! A bare axum route: the most that this framework can answer on this machine, to measure the service
//! against. `cargo run --release -p seckill-loadtest --example bare_route -- 127.0.0.1:8090 FILE` answers
//! every GET with the bytes of FILE as JSON, without any middleware.

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use axum::serve::ListenerExt;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: bare_route ADDRESS FILE";
    let (address, file) = (args.next().context(usage)?, args.next().context(usage)?);
    let body: Bytes = std::fs::read(&file).with_context(|| file)?.into();
    let answer = async move || ([(CONTENT_TYPE, "application/json")], body.clone());
    let router = Router::new().route("/", get(answer));
    let listener = tokio::net::TcpListener::bind(&address).await.context(address)?;
    let listener = listener.tap_io(|stream| {
        // Without this the measured rate is that of delayed acknowledgements.
        if let Err(error) = stream.set_nodelay(true) {
            eprintln!("cannot set TCP_NODELAY: {error}");
        }
    });
    axum::serve(listener, router).await?;
    Ok(())
}
