//! Outages that concern the stream alone: one sale whose row is locked, and a `stream.orders` that is gone while the rest
//! of Redis stands. Neither may delay other sales, or leave an order pending for good.

use std::time::Duration;

use redis::AsyncCommands;

use crate::resilience::{lock_sale, while_sale_is_locked};
use crate::support::api::get;
use crate::support::stack::{SignedIn, Stack, buy};
use testkit::wait::eventually;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until the buyer is told that the order is committed.
async fn committed(stack: &Stack, user: &SignedIn, id: i64) {
    let path = format!("/voucher-order/{id}");
    eventually("the order is committed", TIMEOUT, || async {
        get(stack.url(), &path).token(&user.token).send().await.status == 200
    })
    .await;
    get(stack.url(), &path).token(&user.token).send().await.data();
}

async fn orders_of(stack: &Stack, sale: i64) -> i64 {
    let count = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE voucher_id = {sale}");
    stack.database.number(&count).await
}

/// Nobody asks for the other one, which a purchase here would: a Java node's script needs its counter.
#[tokio::test]
async fn a_sale_with_a_key_of_another_type_keeps_no_other_closed() {
    let stack = Stack::start(1, &[]).await;
    let mut redis = stack.redis.conn().await;
    let (broken, other) = (stack.publish(2, "stream").await, stack.publish(2, "stream").await);
    let (claims, open) = (stack.keys.claims(broken), stack.keys.open(other));
    let mut replace = redis::pipe();
    replace.atomic().del(&claims).set(&claims, "no set").del(&open);
    replace.exec_async(&mut redis).await.unwrap();
    eventually("the other one is open again", TIMEOUT, || {
        let (mut redis, open) = (redis.clone(), open.clone());
        async move { redis.exists(&open).await.unwrap() }
    })
    .await;
}

/// Six, which is more than are committed at once.
#[tokio::test]
async fn sales_whose_rows_are_locked_delay_no_other_sale() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(6).await;
    let mut locked = Vec::new();
    for _ in 0..6 {
        locked.push(stack.publish(10, "stream").await);
    }
    let free = stack.publish(10, "stream").await;
    let mut holder = stack.database.pool.begin().await.unwrap();
    for sale in &locked {
        // Each by its key: a list of ids may scan the table, and lock all of it.
        sqlx::query("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = ? FOR UPDATE")
            .bind(sale)
            .execute(&mut *holder)
            .await
            .unwrap();
    }
    for sale in &locked {
        buy(stack.url(), &users[0], *sale).await.bought();
    }
    for user in &users[1..] {
        let id = buy(stack.url(), user, free).await.bought();
        committed(&stack, user, id).await;
    }
    for sale in &locked {
        assert_eq!(orders_of(&stack, *sale).await, 0, "its row is locked");
    }
    holder.rollback().await.unwrap();
    stack.stream_drained().await;
    for sale in &locked {
        assert_eq!(orders_of(&stack, *sale).await, 1);
    }
}

/// More entries than are kept in memory: the others stay pending in Redis, and are read again when the row is free.
#[tokio::test]
async fn more_entries_of_a_locked_sale_than_are_kept_in_memory_are_committed_later() {
    let stack = Stack::start(1, &["--stream-batch", "4"]).await;
    let (locked, free) = (stack.publish(60, "stream").await, stack.publish(60, "stream").await);
    let users = stack.users(60).await;
    let pending = while_sale_is_locked(&stack, locked, async {
        let pending = stack.pending_orders(&users, locked).await.len() as i64;
        for user in &users[..5] {
            let id = buy(stack.url(), user, free).await.bought();
            committed(&stack, user, id).await;
        }
        pending
    })
    .await;
    stack.stream_drained().await;
    assert_eq!((orders_of(&stack, locked).await, orders_of(&stack, free).await), (pending, 5));
}

#[tokio::test]
async fn an_instance_that_stops_while_a_row_is_locked_leaves_the_entries_to_another() {
    // It waits for the row a few times as long as a statement may take.
    let mut stack = Stack::start(1, &["--database-timeout-ms", "1000"]).await;
    let sale = stack.publish(5, "stream").await;
    let users = stack.users(3).await;
    let holder = lock_sale(&stack, sale).await;
    let pending = stack.pending_orders(&users, sale).await.len() as i64;
    let mut leaving = stack.instances.pop().unwrap();
    leaving.signal("TERM");
    // Within the drain's deadline, or it fails.
    assert!(leaving.ended().await.success());
    stack.add_instance(&[]).await;
    holder.rollback().await.unwrap();
    stack.stream_drained().await;
    assert_eq!(orders_of(&stack, sale).await, pending);
}

/// Evicted, or deleted by hand, with orders in it; everything else in Redis stands. Each of these orders ends as a row or a
/// definite no, and the whole sale is sold.
#[tokio::test]
async fn a_lost_stream_is_noticed_and_its_orders_are_decided() {
    for by_hand in [false, true] {
        let stack = Stack::start(2, &[]).await;
        let sale = stack.publish(20, "stream").await;
        let users = stack.users(26).await;
        let mut redis = stack.redis.conn().await;
        let pending = while_sale_is_locked(&stack, sale, async {
            let pending = stack.pending_orders(&users[..6], sale).await;
            let mut lose = redis::pipe();
            lose.atomic().del("stream.orders");
            if by_hand {
                // Somebody mends it at once, and so hides that there was no group.
                let create = ["CREATE", "stream.orders", "g1", "$", "MKSTREAM"];
                lose.cmd("XGROUP").arg(&create);
            }
            let _: () = lose.query_async(&mut redis).await.unwrap();
            pending
        })
        .await;
        for (user, id) in pending {
            let path = format!("/voucher-order/{id}");
            eventually("the order is decided", TIMEOUT, || async {
                get(stack.url(), &path).token(&user.token).send().await.status == 200
            })
            .await;
        }
        let left = format!("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = {sale}");
        for user in users.iter().cycle() {
            if stack.database.number(&left).await == 0 {
                break;
            }
            buy(stack.url(), user, sale).await;
            stack.stream_drained().await;
        }
        assert_eq!(orders_of(&stack, sale).await, 20);
    }
}

/// The stream of all sales is never empty here: another sale's row is locked.
#[tokio::test]
async fn stranded_stock_is_found_while_entries_of_other_sales_wait() {
    let stack = Stack::start(1, &[]).await;
    let (locked, stranded) = (stack.publish(5, "stream").await, stack.publish(2, "stream").await);
    let users = stack.users(2).await;
    let mut redis = stack.redis.conn().await;
    while_sale_is_locked(&stack, locked, async {
        buy(stack.url(), &users[0], locked).await.bought();
        // As if an order had been cancelled and Redis had never got its stock back.
        let _: () = redis.set(format!("seckill:stock:{stranded}"), 0).await.unwrap();
        for user in &users {
            eventually("it sells again", TIMEOUT, || async {
                buy(stack.url(), user, stranded).await.status == 202
            })
            .await;
        }
        assert_eq!(orders_of(&stack, locked).await, 0, "its row is locked");
    })
    .await;
    stack.stream_drained().await;
    assert_eq!((orders_of(&stack, locked).await, orders_of(&stack, stranded).await), (1, 2));
}

/// A claim without an order, which its user's purchase asks to have counted: the count fails, as the sale's row is locked or
/// the database refuses to list the sales, and nobody asks for it again.
#[tokio::test]
async fn a_count_that_was_asked_for_and_failed_is_made_later() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(5, "stream").await;
    let users = stack.users(3).await;
    buy(stack.url(), &users[0], sale).await.bought();
    stack.stream_drained().await;
    let mut redis = stack.redis.conn().await;
    let claims = format!("seckill:order:{sale}");
    for (user, fault) in users[1..].iter().zip(["a sale is not counted", "sales are not counted"]) {
        let holder = match fault {
            "a sale is not counted" => Some(lock_sale(&stack, sale).await),
            _ => {
                stack.database.run("RENAME TABLE tb_stock_return TO hidden").await;
                None
            }
        };
        let _: () = redis.sadd(&claims, user.id).await.unwrap();
        buy(stack.url(), user, sale).await.refused(200, "ALREADY_ORDERED");
        stack.instances[0].wait_for_line(fault).await;
        match holder {
            Some(holder) => holder.rollback().await.unwrap(),
            None => stack.database.run("RENAME TABLE hidden TO tb_stock_return").await,
        }
        eventually("the claim is gone", TIMEOUT, || async {
            !redis.clone().sismember::<_, _, bool>(&claims, user.id).await.unwrap()
        })
        .await;
    }
}

#[tokio::test]
async fn the_keys_of_a_sale_expire_a_day_after_its_end() {
    let stack = Stack::start(1, &[]).await;
    let user = stack.users(1).await.remove(0);
    let mut redis = stack.redis.conn().await;
    for strategy in ["stream", "reentrant-lock"] {
        let sale = stack.publish(5, strategy).await;
        buy(stack.url(), &user, sale).await.bought();
        stack.stream_drained().await;
        let ends = format!(
            "SELECT UNIX_TIMESTAMP(end_time) FROM tb_seckill_voucher WHERE voucher_id = {sale}"
        );
        let ends = stack.database.number(&ends).await;
        let names = if strategy == "stream" { &["stock", "order", "open"][..] } else { &["stock"] };
        for name in names {
            let key = format!("seckill:{name}:{sale}");
            let at: i64 = redis.expire_time(&key).await.unwrap();
            assert_eq!(at, ends + 86_400, "{key}");
        }
    }
}

/// What an opener leaves behind keeps nobody out: a name that Redis keeps for ten minutes, as its clock was stepped back, and
/// that of one which closed the sale, and then found that the mark had changed.
#[tokio::test]
async fn a_sale_that_was_not_opened_to_the_end_is_opened_by_the_next() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(2).await;
    let sale = stack.publish(2, "stream").await;
    let redis = stack.redis.conn().await;
    let open = format!("seckill:open:{sale}");
    let is_open = async |open: &str| {
        let mut redis = redis.clone();
        redis.get::<_, Option<String>>(open).await.unwrap().is_some_and(|mark| mark.contains(' '))
    };
    let soon = Duration::from_secs(4);
    eventually("the sale is open", TIMEOUT, || is_open(&open)).await;

    let _: () = redis.clone().pset_ex(&open, "someone", 600_000).await.unwrap();
    eventually("nobody opens it for ten minutes", soon, || is_open(&open)).await;
    buy(stack.url(), &users[0], sale).await.bought();

    let holder = lock_sale(&stack, sale).await;
    let _: () = redis.clone().del(&open).await.unwrap();
    eventually("it is being opened", soon, || async {
        redis.clone().exists::<_, bool>(&open).await.unwrap()
    })
    .await;
    let _: () = redis.clone().del("stream.orders.pending").await.unwrap();
    holder.rollback().await.unwrap();
    eventually("its opener cannot", soon, || is_open(&open)).await;
    buy(stack.url(), &users[1], sale).await.bought();
}
