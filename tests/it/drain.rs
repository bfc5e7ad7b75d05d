//! Graceful shutdown: an instance that is to stop waits for what it has begun, beyond the grace period in which it still
//! accepts connections. Each step leaves it one thing to wait for, so that no other keeps it running. What becomes of
//! connections is shown by unit tests of `http/listen.rs`, and by a rolling restart, in [`crate::slow`].

use redis::AsyncCommands;
use serde_json::json;

use crate::reads::{lock, unlock};
use crate::resilience::COMMITTING;
use crate::support::api::get;
use crate::support::stack::Stack;

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
async fn a_drain_waits_for_a_purchase_whose_client_hung_up_and_for_a_read() {
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
        assert!(
            client.await.is_err_and(|end| end.is_cancelled()),
            "{strategy}"
        );
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
    let stranger = lock(&stack, "tb_voucher_order WRITE").await;
    let read = get(stack.url(), "/voucher-order/of/me").token(&user.token);
    let client = tokio::spawn(read.send());
    stack
        .database
        .wait_for_statement("ORDER BY tb_voucher_order.id DESC")
        .await;
    drain_beyond_the_grace(&mut stack).await;
    unlock(stranger).await;
    assert_eq!(client.await.unwrap().data(), &json!([]));
    stack.instances[0].ended().await;
}
