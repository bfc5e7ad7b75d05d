//! Many sales whose rows are locked: one that is freed does not wait for the others.

use crate::support::eventually;
use crate::support::stack::Stack;

const SALES: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_freed_does_not_wait_for_those_that_are_still_locked() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(2).await;
    let sales = stack.publish_each(5, ["stream"; SALES]).await;
    let (freed, locked) = sales.split_last().unwrap();
    let holder_of_freed = stack.lock_sale(*freed).await;
    let mut holder = stack.database.pool.begin().await.unwrap();
    for sale in locked {
        let lock = "SELECT stock FROM tb_seckill_voucher WHERE voucher_id = ? FOR UPDATE";
        let lock = sqlx::query(lock).bind(sale);
        lock.execute(&mut *holder).await.unwrap();
    }
    let mut orders = Vec::new();
    for sale in &sales {
        orders.push(stack.buy(&users[0], *sale).await.bought());
    }
    for sale in &sales {
        eventually(&format!("an entry of {sale} was tried"), async || {
            let lines = stack.instances[0].lines_with("a sale's entries are not decided");
            let of_sale = format!("voucher_id={sale} ");
            lines.iter().any(|line| line.contains(&of_sale))
        })
        .await;
    }
    holder_of_freed.rollback().await.unwrap();
    // Within seconds, however many sales are locked: attempts at all of them, one after the other, would take longer than
    // [`crate::support::PATIENCE`].
    stack.decided(&users[0], orders[SALES - 1]).await.data();
    stack.buy_eventually(&users[1], *freed).await;
    for sale in locked {
        assert_eq!(stack.orders(*sale).await, 0, "its row is locked");
    }
    holder.rollback().await.unwrap();
    stack.stream_drained().await;
    for sale in &sales {
        assert!(stack.orders(*sale).await > 0);
    }
}
