//! Faults injected in the middle of a sale: instances killed and drained, servers that hang, fail or lose data, replies
//! that are lost. The same must hold each time: nothing oversold, no second order, no false reply, and every request
//! answered in time.

use std::time::{Duration, Instant};

use serde_json::json;
use workload::burst::{self, BurstOptions, Report};
use workload::ladder::Strategy;
use workload::reply::{CONNECTION_LOST, TIME_OUT};

use crate::law;
use crate::support::api::{get, metric, post};
use crate::support::eventually;
use crate::support::stack::Stack;
use testkit::proxy::Mode;

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
    let burst = async { burst::run(options).await.expect("the burst runs") };
    tokio::join!(burst, injecting).0
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
    let options = law::options(stack, strategy, buyers, STOCK);
    let total = u64::from(buyers * options.tries);
    (options, total)
}

/// Its requests in flight have asked the server that decides them, and do not hear of it. On the stream, the orders that it
/// holds are not committed either, as the sales' rows are locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_killed_in_a_sale_loses_no_confirmed_order_and_sigterm_no_request() {
    let mut stack = Stack::lab(1).await;
    for strategy in STRATEGIES {
        // So patient that no request in flight gives up before the kill.
        stack.add_proxied(&["--lab"], true).await;
        let (options, total) = big_burst(&stack, strategy).await;
        let mut victim = stack.instances.pop().expect("a second instance");
        let report = with_fault(&options, total, async {
            let (decides, holder) = match strategy {
                Strategy::Stream => (&stack.proxies.redis, Some(stack.lock_all_sales().await)),
                _ => (&stack.proxies.database, None),
            };
            decides.set(Mode::HangReplies);
            options.live.send_rest();
            eventually("requests are in flight", || async {
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
        assert!(report.count(CONNECTION_LOST) > 0, "{strategy}: nothing was cut: {report:?}");
        stack.proxies.database.set(Mode::Forward);
        stack.proxies.redis.set(Mode::Forward);

        // SIGTERM finishes the requests in flight.
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
            leaving.ended().await;
            let refused = get(&leaving.url, "/health/live").try_send().await;
            assert!(refused.is_err(), "still accepting: {refused:?}");
        })
        .await;
        assert!(report.verdict.is_clean(), "{strategy}: {report:?}");
        assert_eq!(report.verdict.orders, i64::from(STOCK));
        // Connections are closed between requests, never within one.
        let cut = (report.count(CONNECTION_LOST), report.count(TIME_OUT));
        assert_eq!(cut, (0, 0), "{strategy}: {report:?}");
    }
}

/// Locks a sale's row while `work` runs, so that purchases wait before their commit.
pub async fn while_sale_is_locked<T>(stack: &Stack, sale: i64, work: impl Future<Output = T>) -> T {
    let holder = stack.lock_sale(sale).await;
    let result = work.await;
    holder.rollback().await.unwrap();
    result
}

#[tokio::test]
async fn without_redis_purchases_get_503_until_it_is_back() {
    let mut stack = Stack::lab(1).await;
    let sale = stack.publish(2, "reentrant-lock").await;
    let user = stack.users(1).await.remove(0);
    stack.redis.kill();
    let started = Instant::now();
    let answer = stack.buy(&user, sale).await;
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
    stack.buy_eventually(&user, sale).await;
    stack.ready().await;
}

/// A sale of two vouchers on each strategy whose success means committed.
pub async fn committing_sales(stack: &Stack) -> Vec<i64> {
    stack.publish_each(2, COMMITTING.iter().map(|strategy| strategy.name())).await
}

#[tokio::test]
async fn without_the_database_purchases_get_503_until_it_is_back() {
    let stack = Stack::behind_proxies(&[]).await;
    let (sales, user) = (committing_sales(&stack).await, stack.users(1).await.remove(0));
    for mode in [Mode::Cut, Mode::Hang] {
        stack.proxies.database.set(mode);
        for sale in &sales {
            let started = Instant::now();
            stack.buy(&user, *sale).await.refused(503, "UNAVAILABLE");
            let took = started.elapsed();
            assert!(took < Duration::from_secs(20), "{mode:?}: {took:?}");
        }
        let ready = get(stack.url(), "/health/ready").send().await;
        assert_eq!((ready.status, &ready.body["database"]), (503, &json!(false)), "{mode:?}");
        stack.proxies.database.set(Mode::Forward);
        stack.ready().await;
    }
    for sale in sales {
        stack.buy_eventually(&user, sale).await;
        assert_eq!(stack.orders(sale).await, 1);
    }
}

/// An order that was made has its id in the answer, also where it is not known whether it was: to be looked up.
#[tokio::test]
async fn a_commit_without_a_reply_is_resolved_before_the_answer_or_told_as_unknown() {
    let stack = Stack::patient_behind_proxies(&[]).await;
    let users = stack.users(2).await;
    let lost = || stack.instances[0].lines_with("the commit's reply was lost").len();
    let buy_with = async |mode, user, sale| {
        let before = lost();
        stack.proxies.database.set(mode);
        let answer = stack.buy(user, sale).await;
        stack.proxies.database.set(Mode::Forward);
        eventually("it is logged", async || lost() > before).await;
        answer
    };
    for sale in committing_sales(&stack).await {
        buy_with(Mode::LoseCommit, &users[0], sale).await.refused(503, "UNAVAILABLE");
        assert_eq!(stack.tables(sale).await, (0, 2), "a definite no");
        let id = buy_with(Mode::LoseCommitReply, &users[1], sale).await.bought();
        assert!(stack.database.has_order(id, users[1].id).await);
    }
    for sale in committing_sales(&stack).await {
        stack.ready().await;
        let answer = buy_with(Mode::LoseCommitReplyThenCut, &users[0], sale).await;
        answer.refused(503, "OUTCOME_UNKNOWN");
        let id: i64 = answer.body["orderId"].as_str().expect("an id").parse().unwrap();
        eventually("the order is found", async || {
            stack.look_up(&users[0], id).await.body["data"]["id"] == id
        })
        .await;
        let again = stack.buy(&users[0], sale).await;
        assert_eq!(again.body["orderId"], id.to_string(), "{again:?}");
    }
}
