//! "No such order" is said only when it is certain: not of an order whose transaction may still commit or that a call may
//! still make, and not by a server that takes no writes.

use chrono::Utc;
use redis::AsyncCommands;
use sqlx::{MySql, Transaction};

use crate::support::api::{Answer, call, metric};
use crate::support::database::TestDatabase;
use crate::support::stack::{SignedIn, Stack};

/// The routes by which an owner asks about an order. The answer of each has to be true.
const ROUTES: [(&str, &str); 3] = [("GET", ""), ("POST", "/cancel"), ("POST", "/pay")];

/// An id as the strategies without a stream draw them.
const ORDER: i64 = (150_000_000 << 32) + 1;

pub const MINUTE: i64 = 60;
pub const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// Longer than a test may take. So what it plants is young or old, however busy the machine is.
pub const AN_HOUR_OF_GRACE: [&str; 2] = ["--stream-unsure-ms", "3600000"];

async fn ask(stack: &Stack, user: &SignedIn, order: i64, (method, what): (&str, &str)) -> Answer {
    let method = method.parse().expect("a method");
    let path = format!("/voucher-order/{order}{what}");
    call(method, stack.url(), &path)
        .token(&user.token)
        .send()
        .await
}

/// The open transaction of a purchase that has inserted its order.
async fn inserted(stack: &Stack, user: &SignedIn, sale: i64) -> Transaction<'static, MySql> {
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES";
    stack
        .database
        .hold(&format!("{insert} ({ORDER}, {}, {sale})", user.id))
        .await
}

#[tokio::test]
async fn an_order_is_not_reported_missing_while_it_may_be_committed_or_the_server_is_read_only() {
    let stack = Stack::start_on(TestDatabase::on_own_server().await, 1, &[]).await;
    let sale = stack.publish(5, "row-lock").await;
    let user = stack.users(1).await.remove(0);
    stack.settled().await;
    for route in ROUTES {
        let purchase = inserted(&stack, &user, sale).await;
        ask(&stack, &user, ORDER, route)
            .await
            .refused(503, "UNAVAILABLE");
        purchase.rollback().await.expect("a rollback");
        ask(&stack, &user, ORDER, route)
            .await
            .refused(200, "ORDER_NOT_FOUND");

        let purchase = inserted(&stack, &user, sale).await;
        ask(&stack, &user, ORDER, route)
            .await
            .refused(503, "UNAVAILABLE");
        purchase.commit().await.expect("a commit");
        assert_eq!(
            ask(&stack, &user, ORDER, route).await.data()["id"],
            ORDER,
            "{route:?}"
        );
        stack.database.run("DELETE FROM tb_voucher_order").await;
    }

    // A read-only server never says that an order is missing.
    inserted(&stack, &user, sale)
        .await
        .commit()
        .await
        .expect("a commit");
    stack.database.run("SET GLOBAL read_only = 1").await;
    for route in ROUTES {
        ask(&stack, &user, ORDER + 1, route)
            .await
            .refused(503, "UNAVAILABLE");
    }
    // An order that it has is shown.
    assert_eq!(
        ask(&stack, &user, ORDER, ROUTES[0]).await.data()["id"],
        ORDER
    );
    // Another server may know better whether the order is paid.
    let paid = "SET GLOBAL read_only = 0; UPDATE tb_voucher_order SET status = 2; SET GLOBAL read_only = 1";
    stack.database.run(paid).await;
    for route in &ROUTES[1..] {
        ask(&stack, &user, ORDER, *route)
            .await
            .refused(503, "UNAVAILABLE");
    }
    stack.database.run("SET GLOBAL read_only = 0").await;
    for route in ROUTES {
        ask(&stack, &user, ORDER + 1, route)
            .await
            .refused(200, "ORDER_NOT_FOUND");
    }
}

/// An order of the stream whose sale is locked can be neither paid nor cancelled, and it is not missing. Every route says what
/// is known of it, while it is pending and after its refusal.
#[tokio::test]
async fn a_pending_order_is_pending_and_a_refused_one_is_refused_on_every_route() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(1, "stream").await;
    let users = stack.users(2).await;
    let mut holder = stack.lock_sale(sale).await;
    let order = stack.buy(&users[0], sale).await.bought();
    for route in ROUTES {
        let pending = ask(&stack, &users[0], order, route).await;
        if route.0 == "GET" {
            assert_eq!(pending.body["code"], "PENDING", "{pending:?}");
        } else {
            pending.refused(503, "OUTCOME_UNKNOWN");
        }
        assert_eq!(
            pending.body["orderId"],
            order.to_string(),
            "{route:?} {pending:?}"
        );
        // Another user learns nothing of it.
        ask(&stack, &users[1], order, route).await.shows_no_order();
    }
    let sell_out = format!("UPDATE tb_seckill_voucher SET stock = 0 WHERE voucher_id = {sale}");
    sqlx::Executor::execute(&mut *holder, sell_out.as_str())
        .await
        .expect("no stock");
    holder.commit().await.expect("a commit");
    stack.wait_for_code(&users[0], order, "SOLD_OUT").await;
    for route in ROUTES {
        ask(&stack, &users[0], order, route)
            .await
            .refused(200, "SOLD_OUT");
        ask(&stack, &users[1], order, route).await.shows_no_order();
    }
}

/// Makes the data of the stream this many seconds old, by the clock of Redis.
pub async fn age_stream(stack: &Stack, seconds: i64) {
    let mut redis = stack.redis.conn().await;
    let pending = &*stack.keys.pending;
    let mark: String = redis.hget(pending, "mark").await.expect("a mark");
    let [server, _, join] = mark.split(' ').collect::<Vec<_>>()[..] else {
        panic!("a mark of three words: {mark}")
    };
    let (now, micros): (i64, i64) = testkit::raw::query(&mut redis, "TIME", &[]).await;
    let since = (now - seconds) * 1_000_000 + micros;
    let older = format!("{server} {since} {join}");
    let _: () = redis.hset(pending, "mark", older).await.expect("a mark");
}

/// An id that was drawn so many seconds ago.
pub fn drawn_ago(seconds: i64) -> i64 {
    let now = Utc::now().with_timezone(&chrono_tz::Asia::Shanghai);
    let local_seconds = now.naive_local().and_utc().timestamp();
    ((local_seconds - 1_640_995_200 - seconds) << 32) + 1
}

#[tokio::test]
async fn an_order_is_reported_missing_once_neither_its_id_nor_the_streams_data_is_young() {
    let stack = Stack::start(1, &AN_HOUR_OF_GRACE).await;
    let user = stack.users(1).await.remove(0);
    for (data_age, id_age, is_missing) in [
        (0, 2 * HOUR, false),
        (2 * HOUR, 0, false),
        (30 * MINUTE, 90 * MINUTE, false),
        (90 * MINUTE, 30 * MINUTE, false),
        // A clock may have been ahead, but none is ahead by a day.
        (2 * HOUR, -30 * MINUTE, false),
        (2 * HOUR, -2 * DAY, true),
        (2 * HOUR, 90 * MINUTE, true),
        (2 * HOUR, 2 * DAY, true),
        // The id is older than the data, so the order may have been lost with earlier data: it is counted.
        (2 * HOUR, 3 * HOUR, true),
    ] {
        age_stream(&stack, data_age).await;
        let unknown = "seckill_stream_lost_total";
        let before = metric(stack.url(), unknown).await;
        let answer = stack.look_up(&user, drawn_ago(id_age)).await;
        let expected = if is_missing {
            (200, "ORDER_NOT_FOUND")
        } else {
            (503, "UNAVAILABLE")
        };
        let outcome = (
            answer.status,
            answer.body["code"].as_str().unwrap_or_default(),
        );
        let ages = format!("data of {data_age} s, an id of {id_age} s");
        assert_eq!(outcome, expected, "{ages}: {answer:?}");
        let counted = metric(stack.url(), unknown).await - before;
        assert_eq!(counted, u64::from(id_age == 3 * HOUR), "{ages}");
    }
}
