//! The strategy `stream`, step by step: pending, committed and refused orders, and entries that are written by a Java
//! node, repeated or invalid. Faults during a sale are in `stream_faults` and `resilience`.

use std::time::Duration;

use chrono::TimeDelta;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use seckill::clock::Zone;
use seckill::id::EPOCH_SECONDS;
use serde_json::json;

use crate::resilience::while_sale_is_locked;
use crate::support::api::{Answer, get, post};
use crate::support::stack::{SignedIn, Stack, buy};
use testkit::wait::eventually;

const TIMEOUT: Duration = Duration::from_secs(30);

async fn look_up(stack: &Stack, user: &SignedIn, id: i64) -> Answer {
    get(stack.url(), &format!("/voucher-order/{id}")).token(&user.token).send().await
}

/// A sale's stock counter and claims.
async fn counter_and_claims(
    redis: &mut MultiplexedConnection,
    sale: i64,
) -> (Option<i64>, Vec<i64>) {
    let stock = redis.get(format!("seckill:stock:{sale}")).await.unwrap();
    let claims: Vec<String> = redis.smembers(format!("seckill:order:{sale}")).await.unwrap();
    // Beside the mark under which they are complete.
    let mut claims: Vec<i64> = claims.iter().filter_map(|claim| claim.parse().ok()).collect();
    claims.sort_unstable();
    (stock, claims)
}

/// Waits until counter and claims are these.
async fn counted(stack: &Stack, sale: i64, expected: (Option<i64>, Vec<i64>)) {
    let redis = stack.redis.conn().await;
    eventually(&format!("counter and claims are {expected:?}"), TIMEOUT, || {
        let (mut redis, expected) = (redis.clone(), expected.clone());
        async move { counter_and_claims(&mut redis, sale).await == expected }
    })
    .await;
}

/// Adds an entry as a Java node's script does; returns its id.
async fn add_entry(redis: &mut MultiplexedConnection, fields: &[(&str, &str)]) -> String {
    let mut add = redis::cmd("XADD");
    add.arg("stream.orders").arg("*");
    for (name, value) in fields {
        add.arg(name).arg(value);
    }
    add.query_async(redis).await.unwrap()
}

async fn rows(stack: &Stack) -> i64 {
    stack.database.number("SELECT COUNT(*) FROM tb_voucher_order WHERE voucher_id <> 0").await
}

async fn stock(stack: &Stack, sale: i64) -> i64 {
    let row = format!("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = {sale}");
    stack.database.number(&row).await
}

#[tokio::test]
async fn an_order_is_pending_until_it_is_committed_and_only_its_buyer_sees_it() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(2, "stream").await;
    let users = stack.users(2).await;
    let id = while_sale_is_locked(&stack, sale, async {
        let bought = buy(stack.url(), &users[0], sale).await;
        let id = bought.bought();
        assert_eq!(bought.status, 202);
        let pending = look_up(&stack, &users[0], id).await;
        assert_eq!(
            (pending.status, &pending.body),
            (202, &bought.body),
            "the answer of the purchase"
        );
        look_up(&stack, &users[1], id).await.shows_no_order();
        let again = buy(stack.url(), &users[0], sale).await;
        again.refused(200, "ALREADY_ORDERED");
        assert_eq!(again.body["orderId"], bought.body["orderId"]);
        id
    })
    .await;
    stack.stream_drained().await;
    stack.settled().await;
    let order = look_up(&stack, &users[0], id).await;
    assert_eq!((&order.data()["id"], &order.data()["status"]), (&json!(id), &json!(1)));
    look_up(&stack, &users[1], id).await.refused(200, "ORDER_NOT_FOUND");
    buy(stack.url(), &users[0], sale).await.refused(200, "ALREADY_ORDERED");
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (1, 1));
    let mut redis = stack.redis.conn().await;
    assert_eq!(counter_and_claims(&mut redis, sale).await, (Some(1), vec![users[0].id]));
}

/// The counter was lost, and begun anew by a node that does not begin it at random: what the buyer is told is an order that
/// another user has. It ends as a refusal, the place is returned, and the buyer may buy again.
#[tokio::test]
async fn an_id_that_another_user_has_ends_as_a_refusal() {
    let stack = Stack::start(1, &["--id-block", "1"]).await;
    let (other_sale, sale) = (stack.publish(1, "row-lock").await, stack.publish(2, "stream").await);
    let users = stack.users(3).await;
    buy(stack.url(), &users[2], stack.publish(1, "row-lock").await).await.bought();
    let (mut redis, now) = (stack.redis.conn().await, Zone(chrono_tz::Asia::Shanghai).now());
    for day in [now, now + TimeDelta::days(1)] {
        let counter = format!("icr:order:{}", day.format("%Y:%m:%d"));
        let _: () = redis.set(counter, 41).await.unwrap();
    }
    // Whatever second it is when the purchase comes.
    let now = now.and_utc().timestamp() - EPOCH_SECONDS;
    let rows = (now - 1..now + 120)
        .map(|second| format!("({}, {}, {other_sale}, 1)", second << 32 | 42, users[0].id));
    let rows = rows.collect::<Vec<_>>().join(",");
    stack
        .database
        .run(&format!(
            "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded) VALUES {rows}"
        ))
        .await;
    let id = while_sale_is_locked(&stack, sale, async {
        let id = buy(stack.url(), &users[1], sale).await.bought();
        assert_eq!(id & 0xffff_ffff, 42);
        id
    })
    .await;
    stack.stream_drained().await;
    look_up(&stack, &users[1], id).await.refused(200, "ORDER_FAILED");
    assert_eq!(look_up(&stack, &users[0], id).await.data()["voucherId"], other_sale);
    assert_eq!(counter_and_claims(&mut redis, sale).await, (Some(2), vec![]));
    let again = buy(stack.url(), &users[1], sale).await.bought();
    stack.stream_drained().await;
    assert_eq!(look_up(&stack, &users[1], again).await.data()["voucherId"], sale);
    assert_eq!(counter_and_claims(&mut redis, sale).await, (Some(1), vec![users[1].id]));
}

/// Two nodes gave out one id. Of both entries one becomes the order, and neither buyer hears before that there is none.
#[tokio::test]
async fn of_two_entries_with_one_id_both_are_pending_and_one_is_refused() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(2, "stream").await;
    let (users, mut redis) = (stack.users(2).await, stack.redis.conn().await);
    const ID: i64 = 660_000_000_000_000_001;
    while_sale_is_locked(&stack, sale, async {
        for user in &users {
            let (user, sale, id) = (user.id.to_string(), sale.to_string(), ID.to_string());
            add_entry(&mut redis, &[("userId", &user), ("voucherId", &sale), ("id", &id)]).await;
        }
        for user in &users {
            eventually("it is known as pending", TIMEOUT, || async {
                look_up(&stack, user, ID).await.status == 202
            })
            .await;
        }
    })
    .await;
    stack.stream_drained().await;
    let (first, second) =
        (look_up(&stack, &users[0], ID).await, look_up(&stack, &users[1], ID).await);
    let (ordered, refused) =
        if first.body["success"] == true { (first, second) } else { (second, first) };
    assert_eq!(ordered.data()["id"], ID);
    refused.refused(200, "ORDER_FAILED");
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (1, 1));
}

#[tokio::test]
async fn entries_of_a_java_node_are_consumed_and_a_repeated_one_counts_once() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(5, "stream").await.to_string();
    let mut redis = stack.redis.conn().await;
    let entry = [("userId", "7"), ("voucherId", sale.as_str()), ("id", "660000000000000001")];
    add_entry(&mut redis, &entry).await;
    stack.stream_drained().await;
    let row = "SELECT COUNT(*) FROM tb_voucher_order WHERE id = 660000000000000001 AND user_id = 7";
    assert_eq!(stack.database.number(row).await, 1);
    // Delivered again after a commit whose acknowledgement was lost: alone, and among new ones.
    add_entry(&mut redis, &entry).await;
    stack.stream_drained().await;
    let sale_id = sale.parse().unwrap();
    while_sale_is_locked(&stack, sale_id, async {
        // So that what follows is one batch: the consumer is busy with this one.
        let other = [("id", "660000000000000002"), ("more", "x"), ("userId", "8")];
        add_entry(&mut redis, &[&other[..], &[("voucherId", sale.as_str())]].concat()).await;
        add_entry(&mut redis, &entry).await;
        let third = [("userId", "9"), ("voucherId", sale.as_str()), ("id", "660000000000000003")];
        add_entry(&mut redis, &third).await;
    })
    .await;
    stack.stream_drained().await;
    assert_eq!((rows(&stack).await, stock(&stack, sale_id).await), (3, 2));
    assert_eq!(redis.xlen_of("stream.orders.dead").await, 0);
}

/// Lengths of streams, without the crate's feature for them.
trait Length {
    async fn xlen_of(&mut self, stream: &str) -> u64;
}

impl Length for MultiplexedConnection {
    async fn xlen_of(&mut self, stream: &str) -> u64 {
        redis::cmd("XLEN").arg(stream).query_async(self).await.unwrap()
    }
}

#[tokio::test]
async fn an_order_that_the_database_refuses_is_undone_and_can_be_looked_up() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(2, "stream").await;
    let users = stack.users(3).await;
    let mut redis = stack.redis.conn().await;
    let first = buy(stack.url(), &users[0], sale).await.bought();
    stack.stream_drained().await;
    // Redis loses a claim: the database does not.
    let claims = format!("seckill:order:{sale}");
    let _: () = redis.srem(&claims, users[0].id).await.unwrap();
    let second = buy(stack.url(), &users[0], sale).await.bought();
    stack.stream_drained().await;
    let refused = look_up(&stack, &users[0], second).await;
    refused.refused(200, "ALREADY_ORDERED");
    assert_eq!(refused.body["orderId"], first.to_string(), "the existing order");
    assert_eq!(counter_and_claims(&mut redis, sale).await, (Some(1), vec![users[0].id]));
    // The stock counter is higher than the stock.
    let _: () = redis.set(format!("seckill:stock:{sale}"), 5).await.unwrap();
    buy(stack.url(), &users[1], sale).await.bought();
    stack.stream_drained().await;
    let late = buy(stack.url(), &users[2], sale).await;
    if late.status == 202 {
        let late = late.bought();
        stack.stream_drained().await;
        look_up(&stack, &users[2], late).await.refused(200, "SOLD_OUT");
        // That showed the counter to be wrong: it is rebuilt.
        eventually("the purchase itself is refused", TIMEOUT, || async {
            buy(stack.url(), &users[2], sale).await.body["code"] == "SOLD_OUT"
        })
        .await;
    } else {
        late.refused(200, "SOLD_OUT");
    }
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (2, 0));
}

#[tokio::test]
async fn an_entry_that_cannot_be_committed_is_dead_lettered_once_and_delays_no_other() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(10, "stream").await;
    let users = stack.users(3).await;
    let mut redis = stack.redis.conn().await;
    stack
        .database
        .run(&format!(
            "CREATE TRIGGER poison BEFORE INSERT ON tb_voucher_order FOR EACH ROW \
             IF NEW.user_id = {} THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'poison'; END IF",
            users[1].id
        ))
        .await;
    let mut ids = Vec::new();
    while_sale_is_locked(&stack, sale, async {
        for user in &users {
            ids.push(buy(stack.url(), user, sale).await.bought());
        }
        add_entry(&mut redis, &[("userId", "x"), ("nonsense", "y")]).await;
        let voucher = sale.to_string();
        add_entry(&mut redis, &[("userId", "0"), ("voucherId", &voucher), ("id", "5")]).await;
    })
    .await;
    stack.stream_drained().await;
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (2, 8));
    look_up(&stack, &users[1], ids[1]).await.refused(200, "ORDER_FAILED");
    assert_eq!(
        counter_and_claims(&mut redis, sale).await,
        (Some(8), vec![users[0].id, users[2].id])
    );
    assert_eq!(redis.xlen_of("stream.orders.dead").await, 3);
    // Once the fault is removed the buyer may try again.
    stack.database.run("DROP TRIGGER poison").await;
    buy(stack.url(), &users[1], sale).await.bought();
    stack.stream_drained().await;
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (3, 7));
}

/// One that Redis would not count down: the call admits nobody, and the sale is counted.
#[tokio::test]
async fn a_counter_that_is_no_whole_number_is_counted_anew() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(4, "stream").await;
    let users = stack.users(1).await;
    let mut redis = stack.redis.conn().await;
    stack.opened(sale).await;
    let _: () = redis.set(format!("seckill:stock:{sale}"), "1e3").await.unwrap();
    buy(stack.url(), &users[0], sale).await.bought();
    stack.stream_drained().await;
    assert_eq!((rows(&stack).await, self::stock(&stack, sale).await), (1, 3));
    assert_eq!(counter_and_claims(&mut redis, sale).await.0, Some(3));
}

#[tokio::test]
async fn a_missing_stock_counter_is_rebuilt_from_the_database_and_the_entries_in_flight() {
    let stack = Stack::start(2, &[]).await;
    let sale = stack.publish(4, "stream").await;
    let users = stack.users(6).await;
    let mut redis = stack.redis.conn().await;
    buy(stack.url(), &users[0], sale).await.bought();
    stack.stream_drained().await;
    while_sale_is_locked(&stack, sale, async {
        for user in &users[1..3] {
            buy(stack.url(), user, sale).await.bought();
        }
        let _: () = redis
            .del(&[format!("seckill:stock:{sale}"), format!("seckill:order:{sale}")])
            .await
            .unwrap();
        // What is in flight may be committed or not: nothing is counted until the row is free.
        buy(stack.url(), &users[3], sale).await.refused(503, "UNAVAILABLE");
        for user in &users[1..3] {
            buy(stack.url(), user, sale).await.refused(200, "ALREADY_ORDERED");
        }
    })
    .await;
    stack.opened(sale).await;
    buy(stack.url(), &users[3], sale).await.bought();
    let (stock, claims) = counter_and_claims(&mut redis, sale).await;
    assert_eq!(stock, Some(0), "4, less 1 sold, 2 in flight and this one");
    assert_eq!(claims, users[..4].iter().map(|user| user.id).collect::<Vec<_>>());
    for user in &users[..4] {
        buy(stack.url(), user, sale).await.refused(200, "ALREADY_ORDERED");
    }
    buy(stack.url(), &users[4], sale).await.refused(200, "SOLD_OUT");
    stack.stream_drained().await;
    assert_eq!((rows(&stack).await, self::stock(&stack, sale).await), (4, 0));
}

#[tokio::test]
async fn a_cancelled_order_returns_its_stock_and_claim_once() {
    let stack = Stack::start(2, &[]).await;
    let sale = stack.publish(2, "stream").await;
    let user = stack.users(1).await.remove(0);
    let mut redis = stack.redis.conn().await;
    let mut cancelled = Vec::new();
    for _ in 0..3 {
        let id = buy(stack.url(), &user, sale).await.bought();
        stack.stream_drained().await;
        assert_eq!(counter_and_claims(&mut redis, sale).await, (Some(1), vec![user.id]));
        for base in stack.urls().iter().cycle().take(3) {
            post(base, &format!("/voucher-order/{id}/cancel"))
                .token(&user.token)
                .send()
                .await
                .data();
            counted(&stack, sale, (Some(2), vec![])).await;
        }
        cancelled.push(id);
    }
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (3, 2));
    // Delivered again, as after a crash between the delivery and the deletion of the outbox's row, when the user holds
    // a claim for another order.
    buy(stack.url(), &user, sale).await.bought();
    stack.stream_drained().await;
    for id in cancelled {
        stack
            .database
            .run(&format!(
                "INSERT INTO tb_stock_return (order_id, voucher_id, user_id) VALUES ({id}, {sale}, {})",
                user.id
            ))
            .await;
        eventually("it is delivered again", TIMEOUT, || async {
            stack.database.number("SELECT COUNT(*) FROM tb_stock_return").await == 0
        })
        .await;
        counted(&stack, sale, (Some(1), vec![user.id])).await;
    }
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (4, 1));
}

#[tokio::test]
async fn an_instance_that_stops_leaves_the_group() {
    let mut stack = Stack::start(2, &[]).await;
    let sale = stack.publish(1, "stream").await;
    buy(stack.url(), &stack.users(1).await[0], sale).await.bought();
    stack.stream_drained().await;
    let mut consumers = redis::cmd("XINFO");
    consumers.arg("CONSUMERS").arg("stream.orders").arg("g1");
    let mut redis = stack.redis.conn().await;
    let present: Vec<redis::Value> = consumers.query_async(&mut redis).await.unwrap();
    assert!(!present.is_empty(), "one of them has read the entry");
    for instance in &mut stack.instances {
        instance.signal("TERM");
        assert!(instance.ended().await.success());
    }
    let present: Vec<redis::Value> = consumers.query_async(&mut redis).await.unwrap();
    assert_eq!(present.len(), 0);
}

#[tokio::test]
async fn a_full_stream_and_added_stock() {
    let stack = Stack::start(1, &["--stream-backlog", "1"]).await;
    let sale = stack.publish(2, "stream").await;
    let users = stack.users(3).await;
    while_sale_is_locked(&stack, sale, async {
        buy(stack.url(), &users[0], sale).await.bought();
        let full = buy(stack.url(), &users[1], sale).await;
        full.refused(503, "OVERLOADED");
    })
    .await;
    stack.stream_drained().await;
    let path = format!("/voucher/seckill/{sale}/stock");
    post(stack.url(), &path).admin().json(json!({ "add": 3 })).send().await.data();
    counted(&stack, sale, (Some(4), vec![users[0].id])).await;
    for user in &users[1..] {
        buy(stack.url(), user, sale).await.bought();
        stack.stream_drained().await;
    }
    counted(&stack, sale, (Some(2), users.iter().map(|user| user.id).collect())).await;
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (3, 2));
    let metrics = get(stack.url(), "/metrics").text().await;
    assert!(metrics.contains("seckill_stream_ordered_total 3\n"), "{metrics}");
}
