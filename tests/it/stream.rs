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
use testkit::redis_server::RedisServer;
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
    let mut claims: Vec<i64> = redis.smembers(format!("seckill:order:{sale}")).await.unwrap();
    claims.sort_unstable();
    (stock, claims)
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

/// The name of an epoch of this server.
pub async fn epoch(redis: &mut MultiplexedConnection) -> String {
    let info: String = redis::cmd("INFO").arg("server").query_async(redis).await.unwrap();
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    format!("{}:1", run.expect("a run id"))
}

async fn rows(stack: &Stack) -> i64 {
    stack.database.number("SELECT COUNT(*) FROM tb_voucher_order").await
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
    let left: Vec<String> = redis.keys("seckill:place:*").await.unwrap();
    assert!(left.is_empty(), "no status is kept of a committed order: {left:?}");
}

/// The counter was lost, and begun anew by a node that does not begin it at random: what the buyer is told is an order that
/// another user has. It ends as a refusal, the place is returned, and the buyer may buy again.
#[tokio::test]
async fn an_id_that_another_user_has_ends_as_a_refusal() {
    let stack = Stack::start(1, &["--id-block", "1"]).await;
    let (other_sale, sale) = (stack.publish(1, "row-lock").await, stack.publish(2, "stream").await);
    let users = stack.users(2).await;
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
        assert_eq!(look_up(&stack, &users[1], id).await.status, 202, "its entry waits");
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
            assert_eq!(look_up(&stack, user, ID).await.status, 202, "{}", user.id);
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
        let other = [("userId", "8"), ("voucherId", sale.as_str()), ("id", "660000000000000002")];
        add_entry(&mut redis, &other).await;
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
    })
    .await;
    stack.stream_drained().await;
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (2, 8));
    look_up(&stack, &users[1], ids[1]).await.refused(200, "ORDER_FAILED");
    assert_eq!(
        counter_and_claims(&mut redis, sale).await,
        (Some(8), vec![users[0].id, users[2].id])
    );
    assert_eq!(redis.xlen_of("stream.orders.dead").await, 2);
    let left: bool = redis.exists("stream.orders.failures").await.unwrap();
    assert!(!left, "failures are deleted with their entries");
    // Once the fault is removed the buyer may try again.
    stack.database.run("DROP TRIGGER poison").await;
    buy(stack.url(), &users[1], sale).await.bought();
    stack.stream_drained().await;
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (3, 7));
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
        buy(stack.url(), &users[3], sale).await.bought();
        let (stock, claims) = counter_and_claims(&mut redis, sale).await;
        assert_eq!(stock, Some(0), "4, less 1 sold, 2 in flight and this one");
        assert_eq!(claims, users[..4].iter().map(|user| user.id).collect::<Vec<_>>());
        for user in &users[..4] {
            buy(stack.url(), user, sale).await.refused(200, "ALREADY_ORDERED");
        }
        buy(stack.url(), &users[4], sale).await.refused(200, "SOLD_OUT");
    })
    .await;
    stack.stream_drained().await;
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (4, 0));
}

#[tokio::test]
async fn stranded_stock_and_claims_without_an_order_are_found() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(2, "stream").await;
    let users = stack.users(2).await;
    let mut redis = stack.redis.conn().await;
    // As if an order had been cancelled and Redis had never got its stock back.
    let _: () = redis.set(format!("seckill:stock:{sale}"), 0).await.unwrap();
    let _: () = redis.sadd(format!("seckill:order:{sale}"), users[0].id).await.unwrap();
    for user in &users {
        eventually("it sells again", TIMEOUT, || async {
            buy(stack.url(), user, sale).await.status == 202
        })
        .await;
    }
    stack.stream_drained().await;
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (2, 0));
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
            assert_eq!(counter_and_claims(&mut redis, sale).await, (Some(2), vec![]));
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
        assert_eq!(counter_and_claims(&mut redis, sale).await, (Some(1), vec![user.id]));
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

/// As if each had been admitted alone, in the order of arrival.
#[tokio::test]
async fn buyers_that_are_admitted_in_one_call_get_their_own_answers() {
    let server = RedisServer::start().await;
    let mut redis = server.conn().await;
    let epoch = epoch(&mut redis).await;
    let _: () = redis.set("stream.orders.epoch", &epoch).await.unwrap();
    let counters = [("seckill:stock:1", 2), ("seckill:stock:2", 9), ("seckill:stock:4", 9)];
    let _: () = redis.mset(&counters).await.unwrap();
    let _: () = redis.sadd("stream.orders.counters", &[1, 2, 3]).await.unwrap();
    let _: () = redis.hset("seckill:place:6", 99, "r 1 ALREADY_ORDERED 5").await.unwrap();
    // What the call whose reply was lost has added.
    let lost = [("userId", "4"), ("voucherId", "1"), ("id", "98")];
    let lost = add_entry(&mut redis, &lost).await;
    let admit = redis::Script::new(include_str!("../../lua/stream_admit.lua"));
    let mut admit = admit.key("stream.orders");
    admit.key("stream.orders.epoch").key("stream.orders.counters").key("stream.orders.held");
    admit.arg(5).arg("0-0");
    admit.arg(&epoch).arg("g1").arg("c1");
    let buyers = [
        (7, 1, 11, ""),
        (7, 1, 12, "claimed"),
        (8, 1, 13, ""),
        (9, 1, 14, "sold out: 3"),
        (8, 1, 15, "claimed"),
        (6, 1, 99, "refused: ALREADY_ORDERED 5"),
        (4, 1, 98, &lost),
        (7, 2, 16, ""),
        (8, 2, 18, ""),
        (9, 2, 19, "full"),
        (5, 3, 17, "no counter"),
        (5, 4, 20, "no counter"),
    ];
    for of_sale in buyers.chunk_by(|one, next| one.1 == next.1) {
        admit.arg(of_sale[0].1).arg(of_sale.len());
        for (user, ..) in of_sale {
            admit.arg(user);
        }
        for (_, _, order, _) in of_sale {
            admit.arg(order);
        }
    }
    let answer: Vec<String> = admit.invoke_async(&mut redis).await.unwrap();
    for (reply, buyer) in answer.iter().zip(buyers) {
        let expected = if buyer.3.is_empty() { is_entry(reply) } else { reply == buyer.3 };
        assert!(expected, "{buyer:?} {reply:?}");
    }
    assert_eq!(counter_and_claims(&mut redis, 1).await, (Some(0), vec![7, 8]));
    assert_eq!(counter_and_claims(&mut redis, 2).await, (Some(7), vec![7, 8]));
    assert_eq!(redis.xlen_of("stream.orders").await, 5);
}

fn is_entry(reply: &str) -> bool {
    reply.split_once('-').is_some_and(|(ms, _)| ms.parse::<u64>().is_ok())
}

/// Another node may have the same id by now: the id counter may have started over. So it may have where another server, or
/// this one started anew, has data that name the epoch; and they may be older than what was answered in it.
#[tokio::test]
async fn an_id_that_was_leased_in_another_epoch_or_on_another_server_is_not_admitted() {
    let server = RedisServer::start().await;
    let mut redis = server.conn().await;
    let this = epoch(&mut redis).await;
    let (a, b) = (format!("{this}1"), format!("{this}2"));
    let elsewhere = format!("{:040x}:1", 10);
    let _: () = redis.set("seckill:stock:1", 4).await.unwrap();
    let _: () = redis.sadd("stream.orders.counters", 1).await.unwrap();
    let admit = redis::Script::new(include_str!("../../lua/stream_admit.lua"));
    for (epoch, leased_in, expected) in [
        (None, &*a, "other epoch"),
        (Some(&*a), "", "other epoch"),
        (Some(&*a), &*b, "other epoch"),
        (Some(&*elsewhere), &*elsewhere, "other epoch"),
        (Some(&*a), &*a, ""),
        // Sent again in the next epoch, which still has it: it counts once.
        (Some(&*b), &*a, ""),
    ] {
        let _: () = match epoch {
            Some(epoch) => redis.set("stream.orders.epoch", epoch).await.unwrap(),
            None => redis.del("stream.orders.epoch").await.unwrap(),
        };
        let mut admit = admit.key("stream.orders");
        admit.key("stream.orders.epoch").key("stream.orders.counters").key("stream.orders.held");
        admit.arg(100).arg("0-0");
        admit.arg(leased_in).arg("g1").arg("").arg(1).arg(1).arg(7).arg(9);
        let answer: Vec<String> = admit.invoke_async(&mut redis).await.unwrap();
        let (admitted, reply) = (is_entry(&answer[0]), answer[0].as_str());
        assert_eq!(if admitted { "" } else { reply }, expected, "{epoch:?} {leased_in}");
    }
    assert_eq!(counter_and_claims(&mut redis, 1).await, (Some(3), vec![7]));
}

/// A Redis that was stopped for a while executes what was sent on a connection that is closed by now, and leaves entries to a
/// consumer that does not hear of it: here by scripts in the consumer's name, of which one reads and one holds.
#[tokio::test]
async fn entries_that_a_consumer_does_not_hear_of_are_found() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(3, "stream").await;
    let users = stack.users(3).await;
    buy(stack.url(), &users[0], sale).await.bought();
    stack.stream_drained().await;
    let add = "local consumer = redis.call('XINFO', 'CONSUMERS', KEYS[1], 'g1')[1][2] \
               local entry = redis.call('XADD', KEYS[1], '*', 'userId', ARGV[1], 'voucherId', ARGV[2], 'id', ARGV[3]) ";
    let read = "return #redis.call('XREADGROUP', 'GROUP', 'g1', consumer, 'STREAMS', KEYS[1], '>')";
    let hold = "redis.call('XGROUP', 'SETID', KEYS[1], 'g1', entry) \
                redis.call('XADD', KEYS[2], entry, 'consumer', consumer, 'first', entry) \
                return 1";
    let mut redis = stack.redis.conn().await;
    for (user, id, leave) in [(&users[1], 98, read), (&users[2], 99, hold)] {
        let script = redis::Script::new(&format!("{add}{leave}"));
        let mut script = script.key("stream.orders");
        script.key("stream.orders.held").arg(user.id).arg(sale).arg(id);
        assert_eq!(script.invoke_async::<i64>(&mut redis).await.unwrap(), 1);
    }
    stack.stream_drained().await;
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (3, 0));
    eventually("no record is left", TIMEOUT, || {
        let mut redis = redis.clone();
        async move { redis.xlen_of("stream.orders.held").await == 0 }
    })
    .await;
}

/// Two consumers that acknowledge the same entry, because one was stopped for long: the effects happen once.
#[tokio::test]
async fn the_effects_of_an_acknowledgement_happen_once() {
    let server = RedisServer::start().await;
    let mut redis = server.conn().await;
    let mut group = redis::cmd("XGROUP");
    group.arg("CREATE").arg("stream.orders").arg("g1").arg("0").arg("MKSTREAM");
    let _: () = group.query_async(&mut redis).await.unwrap();
    let entry = add_entry(&mut redis, &[("userId", "7"), ("voucherId", "1"), ("id", "9")]).await;
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg("g1").arg("c1").arg("STREAMS").arg("stream.orders").arg(">");
    let _: redis::Value = read.query_async(&mut redis).await.unwrap();
    let _: () = redis.set("seckill:stock:1", 4).await.unwrap();
    let _: () = redis.sadd("seckill:order:1", &[7, 8]).await.unwrap();
    let acknowledge = redis::Script::new(include_str!("../../lua/stream_acknowledge.lua"));
    for first in [1, 0, 0] {
        let mut acknowledge = acknowledge.key("stream.orders");
        acknowledge.key("stream.orders.failures").key("stream.orders.dead");
        acknowledge.key("stream.orders.counters").key("stream.orders.held");
        acknowledge.arg("g1").arg("c1").arg("seckill-").arg(60).arg(100).arg(0).arg(1).arg(0);
        acknowledge.arg(&entry).arg(9).arg(7).arg(1);
        acknowledge.arg("dead letter").arg("why");
        let done: i64 = acknowledge.invoke_async(&mut redis).await.unwrap();
        assert_eq!(done, first);
        assert_eq!(counter_and_claims(&mut redis, 1).await, (Some(5), vec![8]));
        assert_eq!(redis.xlen_of("stream.orders.dead").await, 1);
    }
}

/// Has a consumer hold the entry that was added last, as the admission script does.
async fn hold(redis: &mut MultiplexedConnection, entry: &str, consumer: &str) {
    let (mut past, mut record) = (redis::cmd("XGROUP"), redis::cmd("XADD"));
    past.arg("SETID").arg("stream.orders").arg("g1").arg(entry);
    record.arg("stream.orders.held").arg(entry).arg(&["consumer", consumer, "first", entry]);
    let () = past.query_async(redis).await.unwrap();
    let () = record.query_async(redis).await.unwrap();
}

/// Entries in the stream, by letter: `o` and `h` are acknowledged here, where they were pending and held; `p` and `g` are
/// pending under another consumer, and held by it; `j` was acknowledged by a consumer of another kind, and nobody has looked
/// at it; `u` is not delivered yet; `r` is to be delivered anew; `l` is held by another, but the records of that are lost.
#[tokio::test]
async fn an_acknowledgement_deletes_its_entries_and_no_others() {
    let server = RedisServer::start().await;
    let mut redis = server.conn().await;
    let acknowledge = redis::Script::new(include_str!("../../lua/stream_acknowledge.lua"));
    for entries in [
        "ooo", "hhh", "ohoh", "ooou", "ju", "joo", "ojo", "hjh", "oju", "opo", "ogo", "poo", "gho",
        "oop", "hhg", "oopu", "jpo", "opjou", "roo", "rhh", "ohrp", "lo", "olho",
    ] {
        let () = redis::cmd("FLUSHALL").query_async(&mut redis).await.unwrap();
        let mut group = redis::cmd("XGROUP");
        group.arg("CREATE").arg("stream.orders").arg("g1").arg("0").arg("MKSTREAM");
        let () = group.query_async(&mut redis).await.unwrap();
        let mut mark = redis::cmd("XGROUP");
        mark.arg("CREATE").arg("stream.orders.held").arg("seckill-epoch").arg("0").arg("MKSTREAM");
        let () = mark.query_async(&mut redis).await.unwrap();
        let (mut own, mut held, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for letter in entries.chars() {
            let fields = [("userId", "7"), ("voucherId", "1"), ("id", "9")];
            let entry = add_entry(&mut redis, &fields).await;
            let consumer = match letter {
                'o' | 'h' => "seckill-own",
                'p' | 'g' | 'l' => "seckill-other",
                _ => "c1",
            };
            if ['h', 'g', 'l'].contains(&letter) {
                hold(&mut redis, &entry, consumer).await;
            } else if ['o', 'p', 'j'].contains(&letter) {
                let mut read = redis::cmd("XREADGROUP");
                read.arg("GROUP").arg("g1").arg(consumer).arg("STREAMS").arg("stream.orders");
                let _: redis::Value = read.arg(">").query_async(&mut redis).await.unwrap();
            } else if letter == 'r' {
                let mut past = redis::cmd("XGROUP");
                past.arg("SETID").arg("stream.orders").arg("g1").arg(&entry);
                let () = past.query_async(&mut redis).await.unwrap();
            }
            if letter == 'j' {
                let mut acknowledge = redis::cmd("XACK");
                acknowledge.arg("stream.orders").arg("g1").arg(&entry);
                let () = acknowledge.query_async(&mut redis).await.unwrap();
            }
            if letter == 'h' {
                held.push(entry.clone());
            }
            if consumer == "seckill-own" { &mut own } else { &mut others }.push(entry);
        }
        if entries.contains('r') {
            let mut anew = redis::cmd("XGROUP");
            anew.arg("SETID").arg("stream.orders").arg("g1").arg("0");
            let () = anew.query_async(&mut redis).await.unwrap();
        }
        if entries.contains('l') {
            let () = redis.del("stream.orders.held").await.unwrap();
        }
        // The second time after a lost reply.
        for deleted in [own.len(), 0] {
            let mut acknowledge = acknowledge.key("stream.orders");
            acknowledge.key("stream.orders.failures").key("stream.orders.dead");
            acknowledge.key("stream.orders.counters").key("stream.orders.held");
            acknowledge.arg("g1").arg("seckill-own").arg("seckill-").arg(60).arg(100);
            acknowledge.arg(held.len()).arg(1).arg(own.len()).arg(&held).arg(&own);
            assert_eq!(acknowledge.invoke_async(&mut redis).await, Ok(deleted), "{entries}");
            let mut range = redis::cmd("XRANGE");
            range.arg("stream.orders").arg("-").arg("+");
            let left: Vec<(String, Vec<String>)> = range.query_async(&mut redis).await.unwrap();
            let left: Vec<String> = left.into_iter().map(|(entry, _)| entry).collect();
            assert_eq!(left, others, "{entries}");
        }
        let records = entries.matches('g').count() as u64;
        assert_eq!(redis.xlen_of("stream.orders.held").await, records, "{entries}");
    }
}

/// What a consumer holds it may refuse; what another one holds, or has taken over, it may not.
#[tokio::test]
async fn a_refusal_counts_where_the_consumer_holds_the_entry() {
    let server = RedisServer::start().await;
    let mut redis = server.conn().await;
    let acknowledge = redis::Script::new(include_str!("../../lua/stream_acknowledge.lua"));
    let mut group = redis::cmd("XGROUP");
    group.arg("CREATE").arg("stream.orders").arg("g1").arg("0").arg("MKSTREAM");
    let () = group.query_async(&mut redis).await.unwrap();
    let _: () = redis.set("seckill:stock:1", 4).await.unwrap();
    for (user, holder, refused) in [(7, "seckill-a", true), (8, "seckill-b", false)] {
        let fields = [("userId", &*user.to_string()), ("voucherId", "1"), ("id", "9")];
        let entry = add_entry(&mut redis, &fields).await;
        hold(&mut redis, &entry, holder).await;
        let mut acknowledge = acknowledge.key("stream.orders");
        acknowledge.key("stream.orders.failures").key("stream.orders.dead");
        acknowledge.key("stream.orders.counters").key("stream.orders.held");
        acknowledge.arg("g1").arg("seckill-a").arg("seckill-").arg(60).arg(100);
        acknowledge.arg(0).arg(1).arg(0).arg(&entry).arg(9).arg(user).arg(1);
        acknowledge.arg("refused").arg("ORDER_FAILED");
        let deleted: i64 = acknowledge.invoke_async(&mut redis).await.unwrap();
        assert_eq!(deleted == 1, refused, "{holder}");
    }
    assert_eq!(counter_and_claims(&mut redis, 1).await.0, Some(5));
    assert_eq!(redis.xlen_of("stream.orders").await, 1);
}

/// A consumer that stood still while another one took its entry over: what it decided before does not count any more, for
/// the other one may be committing the order.
#[tokio::test]
async fn a_refusal_by_a_consumer_that_was_overtaken_does_nothing() {
    let server = RedisServer::start().await;
    let mut redis = server.conn().await;
    let mut group = redis::cmd("XGROUP");
    group.arg("CREATE").arg("stream.orders").arg("g1").arg("0").arg("MKSTREAM");
    let _: () = group.query_async(&mut redis).await.unwrap();
    let entry = add_entry(&mut redis, &[("userId", "7"), ("voucherId", "1"), ("id", "9")]).await;
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg("g1").arg("c1").arg("STREAMS").arg("stream.orders").arg(">");
    let _: redis::Value = read.query_async(&mut redis).await.unwrap();
    let mut claim = redis::cmd("XCLAIM");
    claim.arg("stream.orders").arg("g1").arg("c2").arg(0).arg(&entry);
    let _: redis::Value = claim.query_async(&mut redis).await.unwrap();
    let _: () = redis.set("seckill:stock:1", 4).await.unwrap();
    let _: () = redis.sadd("seckill:order:1", 7).await.unwrap();
    let _: () = redis.hset("seckill:place:7", 9, "p 1 1-0").await.unwrap();
    let acknowledge = redis::Script::new(include_str!("../../lua/stream_acknowledge.lua"));
    for resolution in ["sold out", "already ordered", "refused", "dead letter"] {
        let mut acknowledge = acknowledge.key("stream.orders");
        acknowledge.key("stream.orders.failures").key("stream.orders.dead");
        acknowledge.key("stream.orders.counters").key("stream.orders.held");
        acknowledge.arg("g1").arg("c1").arg("seckill-").arg(60).arg(100).arg(0).arg(1).arg(0);
        acknowledge.arg(&entry).arg(9).arg(7).arg(1);
        acknowledge.arg(resolution).arg("SOLD_OUT");
        let done: i64 = acknowledge.invoke_async(&mut redis).await.unwrap();
        assert_eq!(done, 0, "{resolution}");
        assert_eq!(counter_and_claims(&mut redis, 1).await, (Some(4), vec![7]), "{resolution}");
        let status: String = redis.hget("seckill:place:7", 9).await.unwrap();
        assert_eq!(status, "p 1 1-0", "{resolution}");
        assert_eq!(redis.xlen_of("stream.orders").await, 1, "{resolution}: it is the other's");
        assert_eq!(redis.xlen_of("stream.orders.dead").await, 0, "{resolution}");
    }
    // That the order is committed is true whoever says it.
    let mut acknowledge = acknowledge.key("stream.orders");
    acknowledge.key("stream.orders.failures").key("stream.orders.dead");
    acknowledge.key("stream.orders.counters").key("stream.orders.held");
    acknowledge.arg("g1").arg("c1").arg("seckill-").arg(60).arg(100).arg(0).arg(1).arg(1);
    let done: i64 = acknowledge.arg(&entry).invoke_async(&mut redis).await.unwrap();
    assert_eq!((done, redis.xlen_of("stream.orders").await), (1, 0));
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
        assert!(full.headers.contains_key("retry-after"));
    })
    .await;
    stack.stream_drained().await;
    let path = format!("/voucher/seckill/{sale}/stock");
    post(stack.url(), &path).admin().json(json!({ "add": 3 })).send().await.data();
    for user in &users[1..] {
        buy(stack.url(), user, sale).await.bought();
        stack.stream_drained().await;
    }
    let mut redis = stack.redis.conn().await;
    assert_eq!(counter_and_claims(&mut redis, sale).await.0, Some(2));
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (3, 2));
    let metrics = get(stack.url(), "/metrics").text().await;
    assert!(metrics.contains("seckill_stream_ordered_total 3\n"), "{metrics}");
}
