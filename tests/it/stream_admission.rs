//! Admission on the stream while calls of its script are on their way: what the buyer is told if the purchase may still be
//! admitted, and if it was never sent.

use std::time::Duration;

use futures_util::future::join_all;
use redis::Script;
use seckill::voucher::sales::FRESH_FOR;
use testkit::proxy::Mode;

use crate::support::api::{Answer, get};
use crate::support::eventually;
use crate::support::stack::Stack;

/// The hash by which calls name the script.
fn sha1_of(script: &str) -> &'static str {
    let text = [include_str!("../../lua/stream_mark.lua"), script].concat();
    Script::new(&text).get_hash().to_owned().leak()
}

/// The id that an unknown outcome names.
pub fn unknown_order(answer: &Answer) -> i64 {
    answer.refused(503, "OUTCOME_UNKNOWN");
    let id = answer.body["orderId"].as_str().expect("the id to look up");
    id.parse().expect("a number")
}

/// The first call is held on its way, and its connection is closed. The second call is answered with a refusal or a failure,
/// whose cause is then removed. Only now the first call arrives.
#[tokio::test]
async fn a_purchase_that_may_still_be_admitted_is_not_answered_with_a_refusal() {
    let stack = Stack::patient_behind_proxies(&[]).await;
    let users = stack.users(3).await;
    let mut redis = stack.redis.conn().await;
    let sale = stack.publish(5, "stream").await;
    // So that the instance has the session in memory.
    let me = get(stack.url(), "/user/me").token(&users[2].token);
    me.send().await.data();
    let counter = stack.keys.stock(sale);
    let claims = stack.keys.claims(sale);
    // So that the sale is not counted meanwhile.
    let holder = stack.lock_sale(sale).await;
    let mut ids = Vec::new();
    for (user, refusal) in users.iter().zip(["sold out", "claimed", "no replica"]) {
        let mut refuse = redis::pipe();
        match refusal {
            "sold out" => refuse.set(&counter, 0),
            "claimed" => refuse.sadd(&claims, user.id),
            // Redis refuses all later calls, and has done nothing.
            _ => refuse
                .cmd("CONFIG")
                .arg(&["SET", "min-replicas-to-write", "1"]),
        };
        refuse.exec_async(&mut redis).await.unwrap();
        let held = Mode::HoldRequestWith(user.id.to_string().leak());
        stack.proxies.redis.set(held);
        let answer = stack.buy(user, sale).await;
        assert_eq!(stack.proxies.redis.held(), 1, "{refusal}");
        ids.push(unknown_order(&answer));
        let mut allow = redis::pipe();
        allow
            .cmd("CONFIG")
            .arg(&["SET", "min-replicas-to-write", "0"]);
        allow.set(&counter, 4).srem(&claims, user.id);
        allow.exec_async(&mut redis).await.unwrap();
        stack.proxies.redis.pass_held().await;
    }
    holder.rollback().await.unwrap();
    stack.stream_drained().await;
    // On a busy machine the held call may arrive too late.
    for (user, id) in users.iter().zip(ids) {
        let answer = stack.decided(user, id).await;
        if answer.body["success"] == false {
            answer.refused(200, "ORDER_NOT_FOUND");
        }
        let has_order = stack.database.has_order(id, user.id).await;
        assert_eq!(answer.body["success"], has_order, "{answer:?}");
    }
}

/// Redis is silent, and the sale ends. What waits for its turn is refused in time; what was on its way comes too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_that_was_never_sent_is_refused_within_its_limit_and_none_is_admitted_after_the_end()
 {
    let stack = Stack::behind_proxies(&["--database-timeout-ms", "2000"]).await;
    let users = stack.users(300).await;
    let sale = stack.publish(1000, "stream").await;
    // So that the instance has sessions and ids in memory.
    let earlier_sale = stack.publish(1, "stream").await;
    stack.buy_committed(&users[0], earlier_sale).await;
    let signed_in = users.iter().map(|user| {
        let me = get(stack.url(), "/user/me").token(&user.token);
        me.send()
    });
    for me in join_all(signed_in).await {
        me.data();
    }
    let ends = "end_time = NOW() + INTERVAL 4 SECOND";
    stack.database.set_sale(sale, ends).await;
    // After this time the instance has read the sale's new end.
    tokio::time::sleep(FRESH_FOR).await;
    let admit = sha1_of(include_str!("../../lua/stream_admit.lua"));
    stack.proxies.redis.set(Mode::HoldRequests(admit));
    let answers = join_all(users.iter().map(|user| stack.buy(user, sale))).await;
    let mut unknown = 0;
    for answer in answers {
        match answer.body["code"].as_str() {
            Some("OUTCOME_UNKNOWN") => {
                unknown_order(&answer);
                unknown += 1;
            }
            Some("SALE_ENDED") => assert_eq!(answer.status, 200),
            _ => drop(answer.refused(503, "UNAVAILABLE")),
        }
    }
    // The purchase that came first, and those of a call or two after it. On a busy machine the sale may have ended before.
    assert!(unknown < 150, "{unknown} were on their way");
    eventually("the sale has ended", async || {
        stack.database.of_sale(sale, "NOW() >= end_time").await == 1
    })
    .await;
    stack.proxies.redis.set(Mode::Forward);
    stack.proxies.redis.pass_held().await;
    stack.stream_drained().await;
    assert_eq!(stack.orders(sale).await, 0);
}

/// The purchase was sent while the sale was on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_that_reaches_redis_after_the_sales_end_is_not_admitted() {
    let stack = Stack::patient_behind_proxies(&[]).await;
    let sale = stack.publish(5, "stream").await;
    stack.counted(sale, 5).await;
    let ends = "end_time = NOW() + INTERVAL 2 SECOND";
    stack.database.set_sale(sale, ends).await;
    assert_not_admitted_after(&stack, sale, async || {
        eventually("the sale has ended", async || {
            stack.database.of_sale(sale, "NOW() >= end_time").await == 1
        })
        .await;
    })
    .await;
}

/// By then a look-up may have said that there is no such order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_that_reaches_redis_after_the_grace_of_its_id_is_not_admitted() {
    let stack = Stack::patient_behind_proxies(&["--stream-unsure-ms", "1000"]).await;
    let sale = stack.publish(5, "stream").await;
    stack.counted(sale, 5).await;
    assert_not_admitted_after(&stack, sale, async || {
        assert!(stack.proxies.redis.held() > 0, "it was never sent");
        // An id has whole seconds, and the grace begins at the end of its second.
        tokio::time::sleep(Duration::from_secs(3)).await;
    })
    .await;
}

/// Holds the call that is to admit a purchase on its way until `wait` is over; asserts that it admits nothing.
async fn assert_not_admitted_after(stack: &Stack, sale: i64, wait: impl AsyncFnOnce()) {
    let user = stack.users(1).await.remove(0);
    let admit = sha1_of(include_str!("../../lua/stream_admit.lua"));
    stack.proxies.redis.set(Mode::HoldRequests(admit));
    let buying = stack.start_buying(&user, sale);
    eventually("the call is on its way", async || {
        stack.proxies.redis.held() > 0 || buying.is_finished()
    })
    .await;
    wait().await;
    stack.proxies.redis.set(Mode::Forward);
    stack.proxies.redis.pass_held().await;
    let answer = buying.await.unwrap();
    assert_eq!(answer.body["success"], false, "{answer:?}");
    stack.stream_drained().await;
    assert_eq!(stack.orders(sale).await, 0);
}

/// A count has read stock and orders. Its last call is held on its way, and the connection is closed. The sale is counted again,
/// and sells, before the held call arrives.
#[tokio::test]
async fn a_count_that_arrives_late_sets_nothing() {
    let stack = Stack::patient_behind_proxies(&[]).await;
    let users = stack.users(3).await;
    let sale = stack.publish(4, "stream").await;
    let open = sha1_of(include_str!("../../lua/stream_open.lua"));
    stack.proxies.redis.set(Mode::HoldRequestWith(open));
    stack.add_stock(sale, 1).await;
    eventually("the count is on its way", async || {
        stack.proxies.redis.held() == 1
    })
    .await;
    stack.counted(sale, 5).await;
    for user in &users {
        stack.buy_committed(user, sale).await;
    }
    assert_eq!(
        (stack.stock(sale).await, stack.counter(sale).await),
        (2, Some(2))
    );
    stack.proxies.redis.pass_held().await;
    assert_eq!(stack.counter(sale).await, Some(2));
}
