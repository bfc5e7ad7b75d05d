//! Buying: success, every refusal of the contract with its text and code, bad input, and what Redis
//! and the tables hold.

use std::time::Instant;

use chrono::TimeDelta;
use hyper::Method;
use redis::AsyncCommands;
use seckill::clock::Zone;
use serde_json::json;

use crate::support::api::{call, get, post};
use crate::support::stack::{SignedIn, Stack, buy};

#[tokio::test]
async fn an_order_is_made_once_and_can_be_looked_up() {
    let stack = Stack::lab(2).await;
    let [first_url, second_url] = [&stack.instances[0].url, &stack.instances[1].url];
    let sale = stack.publish(2, "reentrant-lock").await;
    let users = stack.users(2).await;

    let first = buy(first_url, &users[0], sale).await;
    let id = first.data().as_i64().unwrap();
    assert_eq!(
        first.body,
        json!({ "success": true, "data": id, "orderId": id.to_string() })
    );

    // A client that lost the reply and asks again learns of its order, on either instance.
    let again = buy(second_url, &users[0], sale).await;
    assert_eq!(again.refused(200, "ALREADY_ORDERED"), "不能重复下单！");
    assert_eq!(
        (&again.body["data"], &again.body["orderId"]),
        (&json!(id), &json!(id.to_string()))
    );

    let order = get(second_url, &format!("/voucher-order/{id}"))
        .token(&users[0].token)
        .send()
        .await;
    let order = order.data();
    assert_eq!(
        (
            &order["id"],
            &order["orderId"],
            &order["userId"],
            &order["voucherId"],
            &order["status"]
        ),
        (
            &json!(id),
            &json!(id.to_string()),
            &json!(users[0].id),
            &json!(sale),
            &json!(1)
        )
    );
    let zone = Zone(chrono_tz::Asia::Shanghai);
    let created: chrono::NaiveDateTime = order["createTime"]
        .as_str()
        .unwrap()
        .parse()
        .expect("a local date-time");
    assert!(
        (zone.now() - created).abs() < TimeDelta::seconds(30),
        "{created}"
    );
    // Another user's order is not found, like one that does not exist.
    stack.settled().await;
    for id in [id, 1] {
        stack
            .look_up(&users[1], id)
            .await
            .refused(200, "ORDER_NOT_FOUND");
    }

    // The body form is the same purchase.
    let second = post(first_url, "/voucher-order/seckill").token(&users[1].token);
    let second = second.json(json!({ "voucherId": sale })).send().await;
    assert!(second.data().as_i64().unwrap() != id);
}

/// The ids of a page of the user's orders.
async fn page_of(base: &str, user: &SignedIn, page: &str) -> Vec<i64> {
    let path = format!("/voucher-order/of/me{page}");
    let answer = get(base, &path).token(&user.token).send().await;
    let orders = answer.data().as_array().expect("a list");
    orders
        .iter()
        .map(|order| order["id"].as_i64().expect("an id"))
        .collect()
}

/// A page has ten orders, cancelled ones included. Refusals of the stream are no orders.
#[tokio::test]
async fn a_users_orders_are_listed_newest_first_each_once_and_without_refused_ones() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(2).await;
    let user = users[0].id;
    // Inserted in no particular order, so that the last row is not the newest order.
    let mut rows: Vec<String> = [1008, 1001, 1011, 1004, 1010, 1002, 1006, 1003, 1009, 1007]
        .iter()
        .map(|id| format!("({id}, {user}, {}, 1)", id + 1000))
        .collect();
    rows.push(format!("(1005, {user}, 2005, 4)"));
    rows.push(format!("(3001, {user}, 3001, 4), (3002, {user}, 0, 4)"));
    rows.push(format!("(3003, {}, 2001, 1)", users[1].id));
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES";
    let insert = format!("{insert} {}", rows.join(", "));
    stack.database.run(&insert).await;
    let sale = stack.publish(2, "reentrant-lock").await;
    let newest = stack.buy(&users[0], sale).await.bought();
    let mut expected = vec![newest];
    expected.extend((1001..=1011).rev());

    let url = stack.url();
    let list = get(url, "/voucher-order/of/me").token(&users[0].token);
    let listed = list.send().await.data()[0].clone();
    assert_eq!(&listed, stack.look_up(&users[0], newest).await.data());
    let first = page_of(url, &users[0], "").await;
    assert_eq!(first, expected[..10], "the first page");
    let second = page_of(url, &users[0], "?current=2").await;
    assert_eq!(second, expected[10..], "the second page");
    assert_eq!(page_of(url, &users[0], "?current=3").await, [0; 0]);
    assert_eq!(page_of(url, &users[1], "?current=1").await, [3003]);
}

#[tokio::test]
async fn every_refusal_has_the_contracts_text_on_every_strategy() {
    let stack = Stack::lab(1).await;
    let users = stack.users(2).await;
    let refused = async |user: usize, sale: i64, code: &str, text: &str| {
        let answer = stack.buy(&users[user], sale).await;
        assert_eq!(answer.refused(200, code), text, "{answer:?}");
        answer
    };
    for strategy in strategies::Strategy::ALL {
        let name = strategy.name();
        let sale = stack.publish(1, name).await;
        stack.buy_committed(&users[0], sale).await;
        refused(1, sale, "SOLD_OUT", "库存不足！").await;
        // A buyer who has an order gets it, even when the sale is sold out.
        let again = refused(0, sale, "ALREADY_ORDERED", "不能重复下单！").await;
        assert!(again.body["orderId"].is_string(), "{again:?}");

        let early = publish_for(&stack, name, "2037-01-01", "2037-02-01").await;
        refused(0, early, "SALE_NOT_BEGUN", "秒杀尚未开始！").await;
        let over = publish_for(&stack, name, "2022-01-01", "2022-02-01").await;
        refused(0, over, "SALE_ENDED", "秒杀已经结束！").await;
        let off = stack.publish(5, name).await;
        let take_off = format!("UPDATE tb_voucher SET status = 2 WHERE id = {off}");
        stack.database.run(&take_off).await;
        refused(0, off, "VOUCHER_NOT_FOUND", "优惠券不存在！").await;
    }
}

/// A sale that is on from the first of these days to the second.
async fn publish_for(stack: &Stack, strategy: &str, begin: &str, end: &str) -> i64 {
    let mut body = Stack::sale(5, strategy);
    body["beginTime"] = json!(format!("{begin}T00:00:00"));
    body["endTime"] = json!(format!("{end}T00:00:00"));
    stack.publish_as(body).await
}

/// A unit test of `voucher/sales.rs` shows that the clock is the database's, not the node's.
#[tokio::test]
async fn nothing_is_sold_before_the_sale_begins() {
    let stack = Stack::start(1, &[]).await;
    let user = stack.users(1).await.remove(0);
    let sale = publish_for(&stack, "reentrant-lock", "2037-01-01", "2037-02-01").await;
    stack.buy(&user, sale).await.refused(200, "SALE_NOT_BEGUN");
    stack
        .database
        .set_sale(sale, "begin_time = NOW() + INTERVAL 2 SECOND")
        .await;
    stack.buy_eventually(&user, sale).await;
    let sold = format!(
        "SELECT COUNT(*) FROM tb_voucher_order o JOIN tb_seckill_voucher s USING (voucher_id) \
         WHERE o.voucher_id = {sale} AND o.create_time >= s.begin_time"
    );
    assert_eq!(stack.database.number(&sold).await, 1);
}

#[tokio::test]
async fn bad_input_is_refused_in_the_envelope_without_effect() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(2).await;
    let url = stack.url();
    let sale = stack.publish(1, "group-commit").await;
    stack.buy(&users[0], sale).await.data();
    let token = &users[1].token;

    let json = "application/json";
    let huge = format!(r#"{{"voucherId":{}}}"#, " ".repeat(100_000));
    let bodies = [
        (json, "{", 400, "MALFORMED_JSON"),
        (json, "", 400, "MALFORMED_JSON"),
        (json, "[]", 400, "INVALID_PARAMETER"),
        (json, r#"{"voucherId":"x"}"#, 400, "INVALID_PARAMETER"),
        (json, r#"{"voucherId":1e99}"#, 400, "INVALID_PARAMETER"),
        (json, "{}", 400, "INVALID_PARAMETER"),
        ("text/plain", "{}", 415, "UNSUPPORTED_MEDIA_TYPE"),
        (json, &huge, 413, "PAYLOAD_TOO_LARGE"),
    ];
    for (kind, body, status, code) in bodies {
        let purchase = post(url, "/voucher-order/seckill").token(token);
        let answer = purchase.body(kind, body.to_owned()).send().await;
        answer.refused(status, code);
    }

    let with_zeros = format!("00{sale}");
    let ids = [
        (&*with_zeros, 200, "SOLD_OUT"),
        ("", 404, "NOT_FOUND"),
        ("0", 200, "VOUCHER_NOT_FOUND"),
        ("-1", 200, "VOUCHER_NOT_FOUND"),
        ("999999", 200, "VOUCHER_NOT_FOUND"),
        ("9223372036854775807", 200, "VOUCHER_NOT_FOUND"),
        ("9223372036854775808", 400, "INVALID_PARAMETER"),
        ("99999999999999999999999", 400, "INVALID_PARAMETER"),
        ("+", 400, "INVALID_PARAMETER"),
        ("abc", 400, "INVALID_PARAMETER"),
        ("1.5", 400, "INVALID_PARAMETER"),
        ("%00", 400, "INVALID_PARAMETER"),
        ("1;DROP", 400, "INVALID_PARAMETER"),
        // A full-width 1.
        ("%EF%BC%91", 400, "INVALID_PARAMETER"),
    ];
    for (id, status, code) in ids {
        let purchase = post(url, &format!("/voucher-order/seckill/{id}")).token(token);
        purchase.send().await.refused(status, code);
    }
    for page in ["-1", "x"] {
        let path = format!("/voucher-order/of/me?current={page}");
        let answer = get(url, &path).token(token).send().await;
        answer.refused(400, "INVALID_PARAMETER");
    }
    let far_page = get(url, "/voucher-order/of/me?current=4294967295");
    assert_eq!(far_page.token(token).send().await.data(), &json!([]));
    assert_eq!(stack.all_orders().await, 1, "the first one");
}

#[tokio::test]
async fn unknown_routes_methods_and_callers_are_refused_and_every_reply_has_an_id() {
    let stack = Stack::start(1, &[]).await;
    let url = stack.url();
    let refusals = [
        (Method::GET, "/no/such/route", 404, "NOT_FOUND"),
        (Method::DELETE, "/shop/1", 405, "METHOD_NOT_ALLOWED"),
        (Method::GET, "/user/login", 405, "METHOD_NOT_ALLOWED"),
        (
            Method::POST,
            "/voucher-order/seckill/1",
            401,
            "UNAUTHORIZED",
        ),
        (Method::POST, "/user/logout", 401, "UNAUTHORIZED"),
    ];
    for (method, path, status, code) in refusals {
        let answer = call(method, url, path).send().await;
        answer.refused(status, code);
        assert!(answer.headers.contains_key("x-request-id"), "{answer:?}");
    }
    // A valid id is taken from the proxy, else one is made.
    let live = async |id: &str| {
        let call = get(url, "/health/live").header("x-request-id", id);
        let answer = call.send().await;
        let id = answer.headers["x-request-id"].to_str();
        id.expect("a text").to_owned()
    };
    assert_eq!(live("abc-123").await, "abc-123");
    let made = live(&"a".repeat(100)).await;
    assert!(made.parse::<u64>().is_ok(), "{made}");
}

/// The counter of the ids, and a lock that somebody holds.
#[tokio::test]
async fn what_redis_holds_of_a_purchase_has_the_contracts_shape() {
    let stack = Stack::start(1, &["--lab", "--id-block", "1"]).await;
    let sale = stack.publish(5, "reentrant-lock").await;
    let users = stack.users(3).await;
    let zone = Zone(chrono_tz::Asia::Shanghai);
    // The first lease sets the counter to a random number.
    stack.buy(&users[1], sale).await.data();
    let mut redis = stack.redis.conn().await;
    let before = zone.now();
    let key = format!("icr:order:{}", before.format("%Y:%m:%d"));
    let _: () = redis.set(&key, 41).await.unwrap();
    let id = stack.buy(&users[0], sale).await.data().as_i64().unwrap();
    let seconds = (id >> 32) + 1_640_995_200;
    // The id's second may be one ahead, because the counter is set back above.
    let now = zone.now().and_utc().timestamp() + 1;
    assert!(
        (before.and_utc().timestamp()..=now).contains(&seconds),
        "{seconds} {now}"
    );
    if zone.now().date() == before.date() {
        assert_eq!(id & 0xffff_ffff, 42);
        let counter: String = redis.get(&key).await.unwrap();
        assert_eq!(counter, "42");
    }

    // A lock that is held, as by a Redisson client on a Java node, means busy, and is not changed.
    let user = &users[2];
    let key = format!("lock:order:{}", user.id);
    let field = "0b5d3c1e-7a55-4c0c-9d1f-2d1c3b4a5e6f:57";
    let _: i64 = redis.hset(&key, field, 1).await.unwrap();
    let _: bool = redis.pexpire(&key, 30_000).await.unwrap();
    let busy = stack.buy(user, sale).await;
    assert_eq!(busy.refused(200, "LOCK_BUSY"), "不允许重复下单");
    let holds: i64 = redis.hget(&key, field).await.unwrap();
    assert_eq!(holds, 1);
    let _: i64 = redis.del(&key).await.unwrap();
    stack.buy(user, sale).await.data();
    // Nothing is left behind by the purchase.
    let locks_left: Vec<String> = redis.keys("lock:*").await.unwrap();
    assert!(locks_left.is_empty(), "{locks_left:?}");

    let sale = stack.publish(5, "setnx-lock").await;
    let setnx = format!("lock:setnx:order:{}", user.id);
    let _: () = redis.set_ex(&setnx, "somebody-else", 30).await.unwrap();
    stack.buy(user, sale).await.refused(200, "LOCK_BUSY");
    let owner: String = redis.get(&setnx).await.unwrap();
    assert_eq!(owner, "somebody-else");
}

/// Another node was given the same numbers after the counter was lost. The log's line about that names the request, too.
#[tokio::test]
async fn a_taken_id_is_replaced_by_another_and_every_log_line_of_a_request_names_it() {
    let mut stack = Stack::start(0, &[]).await;
    let user = stack.users(1).await.remove(0);
    for format in ["text", "json"] {
        stack.instances.clear();
        stack.add_instance(&["--log-format", format]).await;
        let published = post(stack.url(), "/voucher/seckill")
            .admin()
            .header("x-request-id", "abc-123")
            .json(Stack::sale(1, "reentrant-lock"))
            .send()
            .await;
        let sale = published.data().as_i64().unwrap();
        let other_sale = stack.publish(2, "reentrant-lock").await;
        let first = stack.buy(&user, other_sale).await.bought();
        // Takes the next numbers of this instance's block, more than a purchase tries, in every second of the next two minutes.
        let taken = (0..120).flat_map(|second| (1..=8).map(move |number| (second, number)));
        let taken = taken.map(|(second, number)| {
            let voucher = 1_000_000 + 10 * second + number;
            format!("({}, 5, {voucher})", first + (second << 32) + number)
        });
        let taken = taken.collect::<Vec<_>>().join(", ");
        let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES";
        stack.database.run(&format!("{insert} {taken}")).await;
        let bought = stack
            .purchase(&user, sale)
            .header("x-request-id", "def-456")
            .send()
            .await;
        let row = format!(
            "SELECT user_id FROM tb_voucher_order WHERE id = {}",
            bought.bought()
        );
        assert_eq!(stack.database.number(&row).await, user.id);
        stack.instances[0]
            .wait_for_line("order id already taken")
            .await;
        let log = stack.instances[0].log();
        let line = |id: &str, text: &str| {
            let line = log.iter().find(|line| line.contains(text));
            let line = line.unwrap_or_else(|| panic!("no line says {text:?}: {log:#?}"));
            if format == "json" {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(line["request"]["id"], id);
                assert_eq!(line["request"]["method"], "POST");
                assert!(
                    line["request"]["path"]
                        .as_str()
                        .unwrap()
                        .starts_with("/voucher")
                );
            } else {
                assert!(
                    line.contains(&format!(" request{{id={id} method=POST path=/v")),
                    "{line}"
                );
            }
        };
        line("abc-123", "sale published");
        line("def-456", "order id already taken");
        assert!(
            log.iter()
                .any(|line| line.contains("serving") && !line.contains("request"))
        );
        stack.database.run("DELETE FROM tb_voucher_order").await;
    }
}

/// A purchase is one text, and a lock two commands. `row-lock` locks and reads first. A connection is handed back without a ping.
#[tokio::test]
async fn a_purchase_costs_no_more_round_trips_than_it_needs() {
    const PURCHASES: u64 = 30;
    const LOCK: &str = "lock:order:";
    // One connection: on a busy machine another one would be opened, and its statements prepared.
    let stack = Stack::patient_behind_proxies(&["--database-connections", "1"]).await;
    let database = &stack.proxies.database;
    let redis = &stack.proxies.redis;
    redis.count(LOCK);
    let users = stack.users(PURCHASES as i64 + 1).await;
    for (strategy, to_database, to_redis) in [
        ("reentrant-lock", 1, 2),
        ("group-commit", 1, 0),
        ("unit-rows", 1, 0),
        ("row-lock", 2, 0),
    ] {
        let sale = stack.publish(100, strategy).await;
        // The first purchase prepares the statements.
        stack.buy(&users[0], sale).await.bought();
        let began = Instant::now();
        let requests_before = database.requests();
        let for_locks_before = redis.counted(LOCK);
        for user in &users[1..] {
            stack.buy(user, sale).await.bought();
        }
        let requests = database.requests() - requests_before;
        let expected = PURCHASES * to_database;
        // Other reads in the meantime: the sale about once a second, and the searches of expiry.
        let background_requests = 15 + 5 * began.elapsed().as_secs();
        assert!(
            (expected..=expected + background_requests).contains(&requests),
            "{strategy}: {requests}"
        );
        let for_locks = redis.counted(LOCK) - for_locks_before;
        assert_eq!(for_locks, PURCHASES * to_redis, "{strategy}");
    }
}
