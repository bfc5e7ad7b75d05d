//! The faults of the soak, injected into Redis. Every fault ends by itself and keeps the data: locks then
//! guarantee exclusion throughout.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value, cmd};
use tokio::time::sleep;

use crate::work::Tally;
use testkit::redis_server::RedisServer;

/// A pause, and then one fault.
pub async fn one(
    server: &mut RedisServer,
    random: &mut StdRng,
    tally: &Tally,
) -> anyhow::Result<()> {
    sleep(Duration::from_millis(random.random_range(200..2500))).await;
    tally.faults.fetch_add(1, Ordering::Relaxed);
    match random.random_range(0..100) {
        0..25 => kill(server, "normal").await,
        25..45 => kill(server, "pubsub").await,
        45..60 => {
            let mode = if random.random_bool(0.5) { "ALL" } else { "WRITE" };
            let millis = random.random_range(20..1500);
            send(server, cmd("CLIENT").arg("PAUSE").arg(millis).arg(mode)).await;
        }
        60..80 => send(server, cmd("SCRIPT").arg("FLUSH")).await,
        80..92 => {
            server.pause();
            sleep(Duration::from_millis(random.random_range(50..2000))).await;
            server.resume();
        }
        _ => {
            server.kill();
            sleep(Duration::from_millis(random.random_range(0..1500))).await;
            server.restart().await;
        }
    }
    Ok(())
}

async fn kill(server: &RedisServer, kind: &str) {
    send(server, cmd("CLIENT").arg("KILL").arg("TYPE").arg(kind).arg("SKIPME").arg("yes")).await;
}

/// On a connection of its own, which an earlier fault may still hold up.
async fn send(server: &RedisServer, command: &Cmd) {
    let result: RedisResult<Value> = async {
        let mut connection: MultiplexedConnection =
            server.client().get_multiplexed_async_connection().await?;
        command.query_async(&mut connection).await
    }
    .await;
    if let Err(error) = result {
        println!("a fault that did not come about: {error}");
    }
}
