//! Faults injected in the middle of a sale: instances killed and drained, servers that hang, fail or lose data, replies
//! that are lost. The same must hold each time: nothing oversold, no second order, no false reply, and every request
//! answered in time.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use serde_json::json;
use workload::burst::{self, BurstOptions, Report};
use workload::ladder::Strategy;

use crate::law;
use crate::support::api::{get, metric, post};
use crate::support::stack::{SignedIn, Stack, buy};
use testkit::proxy::Mode;
use testkit::wait::eventually;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a burst whose requests are all answered but nine tenths when `fault` is injected. The rest is sent at
/// [`Live::send_rest`](workload::live::Live::send_rest), which `fault` calls once it is in force, or at its end.
pub async fn with_fault(
    options: &BurstOptions,
    total: u64,
    fault: impl Future<Output = ()>,
) -> Report {
    options.live.send_first(total / 10);
    let injecting = async {
        options.live.reached(total / 10).await;
        fault.await;
        options.live.send_rest();
    };
    tokio::join!(burst::run(options), injecting).0.expect("the burst runs")
}

/// The strategies for production; each meets every fault.
const STRATEGIES: [Strategy; 3] =
    [Strategy::ReentrantLock, Strategy::Stream, Strategy::GroupCommit];

/// Those of them whose success means committed.
pub const COMMITTING: [Strategy; 2] = [Strategy::ReentrantLock, Strategy::GroupCommit];

/// What is on sale in a [`big_burst`].
pub const STOCK: u32 = 40;

pub async fn big_burst(stack: &Stack, strategy: Strategy) -> (BurstOptions, u64) {
    let buyers = 120;
    let options = law::options(stack, strategy, buyers, STOCK).await;
    let total = buyers.cast_unsigned() * u64::from(options.tries);
    (options, total)
}

/// Its requests in flight have asked the server that decides them, and do not hear of it. On the stream, the orders that it
/// holds are not committed either, as the sales' rows are locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_killed_in_the_middle_of_a_sale_loses_no_confirmed_order() {
    // So patient that no request in flight gives up before the kill.
    for strategy in STRATEGIES {
        let mut stack = Stack::patient_behind_proxies(&["--lab"]).await;
        stack.add_instance(&["--lab"]).await;
        let (options, total) = big_burst(&stack, strategy).await;
        let mut victim = stack.instances.remove(0);
        let report = with_fault(&options, total, async {
            let (decides, holder) = match strategy {
                Strategy::Stream => (&stack.proxies.redis, Some(lock_all_sales(&stack).await)),
                _ => (&stack.proxies.database, None),
            };
            decides.set(Mode::HangReplies);
            options.live.send_rest();
            eventually("requests are in flight", TIMEOUT, || async {
                metric(&victim.url, "seckill_purchases_in_flight").await > 0
            })
            .await;
            victim.kill();
            if let Some(holder) = holder {
                holder.rollback().await.unwrap();
            }
        })
        .await;
        assert!(report.verdict.is_clean(), "{strategy}: {report:?}");
        assert!(report.connections_lost > 0, "{strategy}: nothing was cut: {report:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_in_the_middle_of_a_sale_finishes_requests_in_flight_and_exits_0() {
    let mut stack = Stack::lab(1).await;
    for strategy in STRATEGIES {
        // Long enough to sell on a busy machine: attempts that are refused afterwards buy nothing.
        stack.add_instance(&["--lab", "--drain-grace-ms", "1500"]).await;
        let (options, total) = big_burst(&stack, strategy).await;
        let mut leaving = stack.instances.pop().expect("a second instance");
        let report = with_fault(&options, total, async {
            leaving.signal("TERM");
            options.live.send_rest();
            leaving.wait_for_line("draining").await;
            let ready = get(&leaving.url, "/health/ready").try_send().await;
            if let Ok(ready) = ready {
                assert_eq!((ready.status, &ready.body["draining"]), (503, &json!(true)));
            }
            let status = leaving.ended().await;
            assert!(status.success(), "{status}:\n{}", leaving.log().join("\n"));
            let refused = get(&leaving.url, "/health/live").try_send().await;
            assert!(refused.is_err(), "still accepting: {refused:?}");
        })
        .await;
        assert!(report.verdict.is_clean(), "{strategy}: {report:?}");
        assert_eq!(report.verdict.orders, i64::from(STOCK));
        // Connections are closed between requests, never within one.
        let cut = (report.connections_lost, report.timeouts);
        assert_eq!(cut, (0, 0), "{strategy}: {report:?}");
    }
}

/// Locks a sale's row while `work` runs, so that purchases wait before their commit.
pub async fn while_sale_is_locked<T>(stack: &Stack, sale: i64, work: impl Future<Output = T>) -> T {
    let holder = lock_sale(stack, sale).await;
    let result = work.await;
    holder.rollback().await.unwrap();
    result
}

/// Locks a sale's row until the transaction ends.
pub async fn lock_sale(stack: &Stack, sale: i64) -> sqlx::Transaction<'static, sqlx::MySql> {
    let mut holder = stack.database.pool.begin().await.unwrap();
    sqlx::query("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = ? FOR UPDATE")
        .bind(sale)
        .execute(&mut *holder)
        .await
        .unwrap();
    holder
}

/// Locks the rows of all sales until the transaction ends.
pub async fn lock_all_sales(stack: &Stack) -> sqlx::Transaction<'static, sqlx::MySql> {
    let mut holder = stack.database.pool.begin().await.unwrap();
    let lock = "SELECT stock FROM tb_seckill_voucher FOR UPDATE";
    sqlx::query(lock).execute(&mut *holder).await.unwrap();
    holder
}

pub async fn wait_for_purchase_lock(stack: &Stack, user: &SignedIn) {
    let key = format!("lock:order:{}", user.id);
    let redis = stack.redis.conn().await;
    eventually("the purchase holds its lock", TIMEOUT, || {
        let (mut redis, key) = (redis.clone(), key.clone());
        async move { redis.exists(&key).await.unwrap() }
    })
    .await;
}

/// Waits until the order is inserted, and not committed yet.
pub async fn wait_for_insert(stack: &Stack, user: &SignedIn) {
    let orders = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE user_id = {}", user.id);
    eventually("the order is inserted", TIMEOUT, || async {
        stack.database.uncommitted(&orders).await == 1
    })
    .await;
}

#[tokio::test]
async fn without_redis_purchases_get_503_until_it_is_back() {
    let mut stack = Stack::lab(1).await;
    let sale = stack.publish(2, "reentrant-lock").await;
    let user = stack.users(1).await.remove(0);
    stack.redis.kill();
    let started = Instant::now();
    let answer = buy(stack.url(), &user, sale).await;
    answer.refused(503, "UNAVAILABLE");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    // Public reads do not need Redis, even with a token; readiness says what is missing.
    get(stack.url(), "/shop/1").token(&user.token).send().await.data();
    let ready = get(stack.url(), "/health/ready").send().await;
    assert_eq!((ready.status, &ready.body["redis"]), (503, &json!(false)));
    assert_eq!(ready.body["database"], true);
    get(stack.url(), "/health/live").send().await.data();
    post(stack.url(), "/user/code?phone=13800000001").send().await.refused(503, "UNAVAILABLE");

    stack.redis.restart().await;
    eventually("it sells again", TIMEOUT, || async {
        buy(stack.url(), &user, sale).await.status == 200
    })
    .await;
    eventually("it is ready again", TIMEOUT, || async {
        get(stack.url(), "/health/ready").send().await.status == 200
    })
    .await;
}

#[tokio::test]
async fn a_taken_id_is_replaced_by_another() {
    let stack = Stack::lab(1).await;
    let sale = stack.publish(5, "reentrant-lock").await;
    let users = stack.users(2).await;
    buy(stack.url(), &users[0], sale).await.data();
    let (first, mut taken) = (users[0].id, Vec::new());
    // Another node was given the same numbers after the counter was lost: it has taken the next numbers of this
    // instance's block, more than a purchase tries, in every second of the next two minutes.
    for second in 0..120 {
        for number in 1..=8 {
            let voucher = 1_000_000 + 10 * second + number;
            taken.push(format!(
                "SELECT (((id >> 32) + {second}) << 32) | ((id & 0xffffffff) + {number}), 5, {voucher} \
                 FROM tb_voucher_order WHERE user_id = {first}"
            ));
        }
    }
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id) ";
    stack.database.run(&(insert.to_owned() + &taken.join(" UNION ALL "))).await;
    let id = buy(stack.url(), &users[1], sale).await.data().as_i64().unwrap();
    let row = format!("SELECT user_id FROM tb_voucher_order WHERE id = {id}");
    assert_eq!(stack.database.number(&row).await, users[1].id);
    stack.instances[0].wait_for_line("order id already taken").await;
}

/// A stack with a user and a sale of two vouchers.
pub async fn selling(stack: Stack, strategy: Strategy) -> (Stack, SignedIn, i64) {
    let strategy = strategy.name();
    let sale = stack.publish(2, strategy).await;
    let user = stack.users(1).await.remove(0);
    (stack, user, sale)
}

#[tokio::test]
async fn without_the_database_purchases_get_503_until_it_is_back() {
    for strategy in COMMITTING {
        let stack = Stack::behind_proxies(&[]).await;
        let (stack, user, sale) = selling(stack, strategy).await;
        for mode in [Mode::Cut, Mode::Hang] {
            stack.proxies.database.set(mode);
            let started = Instant::now();
            let answer = buy(stack.url(), &user, sale).await;
            answer.refused(503, "UNAVAILABLE");
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{mode:?}: {:?}",
                started.elapsed()
            );
            let ready = get(stack.url(), "/health/ready").send().await;
            assert_eq!((ready.status, &ready.body["database"]), (503, &json!(false)), "{mode:?}");
            stack.proxies.database.set(Mode::Forward);
            eventually("it is ready again", TIMEOUT, || async {
                get(stack.url(), "/health/ready").send().await.status == 200
            })
            .await;
        }
        eventually("it sells again", TIMEOUT, || async {
            buy(stack.url(), &user, sale).await.status == 200
        })
        .await;
        assert_eq!(stack.database.number("SELECT COUNT(*) FROM tb_voucher_order").await, 1);
    }
}

#[tokio::test]
async fn a_commit_whose_reply_is_lost_is_resolved_before_the_purchase_is_answered() {
    for strategy in COMMITTING {
        let stack = Stack::patient_behind_proxies(&[]).await;
        let (stack, user, sale) = selling(stack, strategy).await;
        stack.proxies.database.set(Mode::LoseCommitReply);
        // The order exists, and the buyer gets its id.
        let id = buy(stack.url(), &user, sale).await.data().as_i64().unwrap();
        stack.instances[0].wait_for_line("the commit's reply was lost").await;
        let row = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE id = {id}");
        assert_eq!(stack.database.number(&row).await, 1);
    }
}

#[tokio::test]
async fn a_commit_that_never_arrived_is_a_definite_failure() {
    for strategy in COMMITTING {
        let stack = Stack::patient_behind_proxies(&[]).await;
        let (stack, user, sale) = selling(stack, strategy).await;
        stack.proxies.database.set(Mode::LoseCommit);
        buy(stack.url(), &user, sale).await.refused(503, "UNAVAILABLE");
        stack.instances[0].wait_for_line("the commit's reply was lost").await;
        assert_eq!(stack.database.number("SELECT COUNT(*) FROM tb_voucher_order").await, 0);
        let stock = format!("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = {sale}");
        assert_eq!(stack.database.number(&stock).await, 2);
    }
}

#[tokio::test]
async fn a_commit_that_cannot_be_resolved_is_reported_as_unknown_and_can_be_looked_up() {
    for strategy in COMMITTING {
        let stack = Stack::patient_behind_proxies(&[]).await;
        let (stack, user, sale) = selling(stack, strategy).await;
        stack.proxies.database.set(Mode::LoseCommitReplyThenCut);
        let answer = buy(stack.url(), &user, sale).await;
        answer.refused(503, "OUTCOME_UNKNOWN");
        let id = answer.body["orderId"].as_str().expect("the id to look up").to_owned();
        stack.proxies.database.set(Mode::Forward);
        eventually("the order is found", TIMEOUT, || async {
            let order =
                get(stack.url(), &format!("/voucher-order/{id}")).token(&user.token).send().await;
            order.body["data"]["orderId"] == id.as_str()
        })
        .await;
        let again = buy(stack.url(), &user, sale).await;
        assert_eq!(again.body["orderId"], id.as_str(), "{again:?}");
    }
}
