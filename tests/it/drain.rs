//! Graceful shutdown: an instance that is to stop waits for what it has begun, beyond the grace period in which it still
//! accepts connections. Each test leaves it one thing to wait for, so that no other keeps it running.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use serde_json::json;
use sqlx::Executor;
use workload::http::{Call, Connection, Response};

use crate::resilience::COMMITTING;
use crate::support::api::get;
use crate::support::stack::Stack;
use crate::support::{PATIENCE, eventually};

/// The default of `--drain-grace-ms`.
const GRACE: Duration = Duration::from_millis(500);

/// Sends SIGTERM to the first instance, and waits until the second, which is told later and has nothing to wait for, has
/// ended: the first must still run.
async fn drain_beyond_the_grace(stack: &mut Stack) {
    let mut idle = stack.instances.pop().expect("a second instance");
    for instance in [&stack.instances[0], &idle] {
        instance.terminate();
        instance.wait_for_line("draining").await;
    }
    idle.ended().await;
    assert!(stack.instances[0].is_running(), "it did not wait");
}

/// A purchase waits for the sale's row when the instance is to stop, and the row stays locked beyond the grace period. Its
/// client has hung up, so that there is no connection to wait for. A read has nothing but one.
#[tokio::test]
async fn a_drain_waits_for_a_purchase_whose_client_hung_up_for_a_read_and_for_idle_connections() {
    let mut stack = Stack::start(0, &[]).await;
    let user = stack.users(1).await.remove(0);
    for strategy in COMMITTING {
        for _ in 0..2 {
            stack.add_instance(&[]).await;
        }
        let sale = stack.publish(5, strategy.name()).await;
        let holder = stack.lock_sale(sale).await;
        let client = stack.start_buying(&user, sale);
        stack.wait_for_insert(&user).await;
        client.abort();
        drain_beyond_the_grace(&mut stack).await;
        holder.rollback().await.unwrap();
        assert!(client.await.is_err_and(|end| end.is_cancelled()), "{strategy}");
        stack.instances.remove(0).ended().await;
        assert_eq!(stack.tables(sale).await, (1, 4));
        let left: Vec<String> = stack.redis.conn().await.keys("lock:*").await.unwrap();
        assert!(left.is_empty(), "{left:?}");
        stack.database.run("DELETE FROM tb_voucher_order").await;
    }

    // No purchase, no task of its own: only a connection.
    for _ in 0..2 {
        stack.add_instance(&[]).await;
    }
    let mut holder = stack.database.pool.acquire().await.unwrap();
    holder.execute("LOCK TABLES tb_voucher_order WRITE").await.unwrap();
    let read = get(stack.url(), "/voucher-order/of/me").token(&user.token);
    let client = tokio::spawn(read.send());
    stack.database.wait_for_statement("ORDER BY id DESC").await;
    drain_beyond_the_grace(&mut stack).await;
    holder.execute("UNLOCK TABLES").await.unwrap();
    assert_eq!(client.await.unwrap().data(), &json!([]));
    stack.instances[0].ended().await;

    // A proxy that does not ask for readiness goes on as before, until it is refused: so its connections stay usable until the
    // listener is closed, and their next request is answered.
    stack.instances.clear();
    stack.add_instance(&["--drain-idle-ms", "15000"]).await;
    let (target, live) = (stack.targets().remove(0), Call::get("/health/live"));
    let closes = |reply: &Response| reply.headers.get("connection").is_some_and(|it| it == "close");
    let mut idle = Connection::new(target.clone(), PATIENCE);
    assert!(!closes(&idle.send(&live).await.unwrap()));
    let told = Instant::now();
    stack.instances[0].terminate();
    stack.instances[0].wait_for_line("draining").await;
    let mut new = Connection::new(target, PATIENCE);
    if let Ok(reply) = new.send(&Call::get("/health/ready")).await {
        // One that is accepted as the last of the listener's queue is told to close.
        let too_early = closes(&reply) && told.elapsed() < GRACE;
        assert!(reply.status == 503 && !too_early, "{reply:?}");
    }
    drop(new);
    eventually("the grace period ends", || async {
        get(&stack.instances[0].url, "/health/live").try_send().await.is_err()
    })
    .await;
    // A connection that was closed would be refused now: `Connection` opens one instead.
    let reply = idle.send(&live).await.expect("an answer on the idle connection");
    assert_eq!((reply.status, closes(&reply)), (200, true));
    stack.instances[0].ended().await;
}
