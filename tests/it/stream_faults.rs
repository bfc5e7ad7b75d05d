//! Faults during a sale on the stream, in addition to those that `resilience` injects on every strategy.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use ladder::Strategy;
use seckill_loadtest::chaos::redis_data::{self, RedisData};
use workload::burst::Report;
use workload::checker::Verdict;
use workload::reply::{ORDER_NOT_FOUND, Reply};

use crate::resilience::{STOCK, big_burst, lock_all_sales, lock_sale, with_fault};
use crate::support::api::get;
use crate::support::stack::{Stack, buy};
use testkit::redis_server::RedisServer;
use testkit::wait::eventually;

const TIMEOUT: Duration = Duration::from_secs(40);

fn assert_all_sold(report: &Report) {
    assert!(report.verdict.is_clean(), "{report:?}");
    assert_eq!(report.verdict.orders, i64::from(STOCK), "{report:?}");
}

/// Everything is lost but the sessions, without which no buyer could go on. Some orders are in flight because the sale's row
/// is locked at that moment. Those that the instances cannot add again end as a definite no, and their places are sold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_redis_lost_everything_a_pending_order_ends_as_a_row_or_a_definite_no() {
    let stack = Stack::lab(2).await;
    for round in 0..3 {
        let (options, total) = big_burst(&stack, Strategy::Stream).await;
        let report = with_fault(&options, total / (round + 1), async {
            let holder = lock_all_sales(&stack).await;
            options.live.send_rest();
            options.live.reached(total / (round + 1)).await;
            let forget = redis::Script::new(
                "for _, key in ipairs(redis.call('KEYS', '*')) do \
                 if string.sub(key, 1, 6) ~= 'login:' then redis.call('DEL', key) end end",
            );
            let mut redis = stack.redis.conn().await;
            let _: () = forget.invoke_async(&mut redis).await.unwrap();
            holder.rollback().await.unwrap();
        })
        .await;
        stack.settled().await;
        for (id, user) in pending_without_a_row(&report) {
            let user = stack.users(user - 1_000_000).await.pop().expect("its buyer");
            let look_up = get(stack.url(), &format!("/voucher-order/{id}")).token(&user.token);
            look_up.send().await.refused(200, "ORDER_NOT_FOUND");
        }
        // While a lost order was pending, nobody else got its place.
        let (lost, places) = (report.verdict.lost, report.verdict.stock_left);
        let rest = Verdict { lost: 0, false_sold_out: 0, ..report.verdict.clone() };
        assert!(rest.is_clean() && places <= lost, "{report:?}");
        for user in &stack.users(1000).await[300..][..places as usize] {
            let sale = i64::try_from(report.voucher_id).unwrap();
            eventually("its place is sold", TIMEOUT, || async {
                buy(stack.url(), user, sale).await.body["success"] == true
            })
            .await;
        }
        stack.stream_drained().await;
        let rows = format!(
            "SELECT COUNT(*) FROM tb_voucher_order WHERE voucher_id = {}",
            report.voucher_id
        );
        assert_eq!(
            stack.database.number(&rows).await,
            i64::from(STOCK),
            "none was made after its no"
        );
    }
}

/// The orders that were answered as pending and of which nothing is known, and their buyers.
fn pending_without_a_row(report: &Report) -> impl Iterator<Item = (i64, i64)> {
    let pending = report.records.iter().filter_map(|record| match record.observed.reply {
        Reply::Pending(id) => Some((id, record.observed.user_id.cast_signed())),
        Reply::Withdrawn { id, ref code } if code == ORDER_NOT_FOUND => {
            Some((id, record.observed.user_id.cast_signed()))
        }
        _ => None,
    });
    pending.filter(|(id, _)| report.snapshot.rows.iter().all(|row| row.id != *id))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_and_comes_back_with_its_log_loses_nothing() {
    let mut stack = Stack::lab(2).await;
    let (options, total) = big_burst(&stack, Strategy::Stream).await;
    let redis = &mut stack.redis;
    let report = with_fault(&options, total, async {
        redis.kill();
        options.live.send_rest();
        redis.restart().await;
    })
    .await;
    assert!(report.verdict.is_clean(), "{report:?}");
}

/// The claims of those who bought after the snapshot are lost with it, and until an instance has noticed the data still name the
/// epoch. A buyer who is admitted twice would hold two places until the second is refused, and others would be told "sold out"
/// meanwhile. The sale's row is locked, so that no order is committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_comes_back_with_an_old_snapshot_admits_nobody_twice() {
    let mut stack = Stack::start(1, &[]).await;
    let sale = stack.publish(100, "stream").await;
    let users = stack.users(41).await;
    let url = stack.url().to_owned();
    buy(&url, &users[40], sale).await.bought();
    stack.stream_drained().await;
    redis_data::take_snapshot(&stack.redis).await.unwrap();
    let holder = lock_sale(&stack, sale).await;
    let first = join_all(users[..40].iter().map(async |user| buy(&url, user, sale).await.bought()));
    let first = first.await;
    let again = users[..40].iter().map(async |user| {
        loop {
            let answer = buy(&url, user, sale).await;
            if answer.status != 503 {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let again = while_it_comes_back(&mut stack.redis, join_all(again)).await;
    holder.rollback().await.unwrap();
    for (answer, id) in again.iter().zip(first) {
        answer.refused(200, "ALREADY_ORDERED");
        assert_eq!(answer.body["orderId"], id.to_string());
    }
    stack.stream_drained().await;
    assert_eq!(stack.database.number("SELECT COUNT(*) FROM tb_voucher_order").await, 41);
}

/// Until its instance has added it again, Redis knows nothing of an order that was admitted after the snapshot, and neither does
/// another instance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_redis_that_comes_back_with_an_old_snapshot_no_pending_order_is_said_not_to_exist() {
    let mut stack = Stack::start(2, &[]).await;
    let sale = stack.publish(100, "stream").await;
    let users = stack.users(9).await;
    let [url, other] = [0, 1].map(|at| stack.instances[at].url.clone());
    buy(&url, &users[8], sale).await.bought();
    stack.stream_drained().await;
    redis_data::take_snapshot(&stack.redis).await.unwrap();
    let holder = lock_sale(&stack, sale).await;
    let mut orders = Vec::new();
    for user in &users[..8] {
        orders.push((user, buy(&url, user, sale).await.bought()));
    }
    let is_back = AtomicBool::new(false);
    let look_ups = orders.iter().map(async |(user, order)| {
        loop {
            let began_after = is_back.load(Ordering::Relaxed);
            let path = format!("/voucher-order/{order}");
            let answer = get(&other, &path).token(&user.token).send().await;
            match answer.status {
                503 => {}
                202 if !began_after => {}
                _ => return answer,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    stack.redis.kill();
    let restart = async {
        let restarted = redis_data::restart(&mut stack.redis, RedisData::Old).await;
        is_back.store(true, Ordering::Relaxed);
        restarted
    };
    let look_ups = tokio::time::timeout(TIMEOUT, join_all(look_ups));
    let (restarted, answers) = tokio::join!(restart, look_ups);
    restarted.unwrap();
    for answer in answers.expect("answers in time") {
        assert_eq!(answer.status, 202, "{answer:?}");
    }
    holder.rollback().await.unwrap();
}

/// Kills Redis, and restarts it with its snapshot, while `work` is done.
async fn while_it_comes_back<T>(redis: &mut RedisServer, work: impl Future<Output = T>) -> T {
    redis.kill();
    let work = tokio::time::timeout(TIMEOUT, work);
    let (restarted, done) = tokio::join!(redis_data::restart(redis, RedisData::Old), work);
    restarted.unwrap();
    done.expect("answers in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_goes_on_while_an_instance_stands_still() {
    let stack = Stack::lab(2).await;
    let (options, total) = big_burst(&stack, Strategy::Stream).await;
    let report = with_fault(&options, total, async {
        stack.instances[1].signal("STOP");
        options.live.send_rest();
        tokio::time::sleep(Duration::from_secs(8)).await;
        stack.instances[1].signal("CONT");
    })
    .await;
    assert_all_sold(&report);
}

/// Entries that were delivered to an instance that stands still (SIGSTOP) are committed by the other while it does, not
/// when it goes on; and then it does not commit them again. They are left to it by a script in its consumer's name, as
/// entries that it had read or admitted just before.
#[tokio::test]
async fn entries_of_an_instance_that_stands_still_are_taken_over() {
    let mut stack = Stack::start(1, &[]).await;
    let sale = stack.publish(50, "stream").await;
    let users = stack.users(11).await;
    let mut redis = stack.redis.conn().await;
    let first = eventually_consumers(&stack, 1).await;
    stack.add_instance(&[]).await;
    let both = eventually_consumers(&stack, 2).await;
    let standing = both.iter().find(|name| !first.contains(name)).expect("a second consumer");
    stack.instances[1].signal("STOP");
    let deliver = redis::Script::new(
        "local first \
         for at = 3, #ARGV do \
           redis.call('DECR', 'seckill:stock:' .. ARGV[2]) \
           redis.call('SADD', 'seckill:order:' .. ARGV[2], ARGV[at]) \
           local entry = redis.call('XADD', KEYS[1], '*', 'userId', ARGV[at], 'voucherId', ARGV[2], 'id', 1000 + at) \
           if at <= 6 then \
             redis.call('XREADGROUP', 'GROUP', 'g1', ARGV[1], 'STREAMS', KEYS[1], '>') \
           else \
             first = first or entry \
           end \
           if at == #ARGV then \
             redis.call('XGROUP', 'SETID', KEYS[1], 'g1', entry) \
             redis.call('XADD', KEYS[2], entry, 'consumer', ARGV[1], 'first', first) \
           end \
         end \
         return #ARGV - 2",
    );
    let mut deliver = deliver.key("stream.orders");
    deliver.key("stream.orders.held").arg(standing).arg(sale);
    for user in &users[..10] {
        deliver.arg(user.id);
    }
    assert_eq!(deliver.invoke_async::<i64>(&mut redis).await.unwrap(), 10);
    stack.stream_drained().await;
    let orders = "SELECT COUNT(*) FROM tb_voucher_order";
    assert_eq!(stack.database.number(orders).await, 10, "committed while the other stands still");
    stack.instances[1].signal("CONT");
    // It takes part again, and what it had read is sold once.
    buy(&stack.instances[1].url, &users[10], sale).await.bought();
    stack.stream_drained().await;
    assert_eq!(stack.database.number(orders).await, 11);
    assert_eq!(stack.database.number("SELECT stock FROM tb_seckill_voucher").await, 39);
}

/// The names of the group's consumers, once there are `count`.
async fn eventually_consumers(stack: &Stack, count: usize) -> Vec<String> {
    let redis = stack.redis.conn().await;
    let names = async || {
        let mut asking = redis::cmd("XINFO");
        asking.arg("CONSUMERS").arg("stream.orders").arg("g1");
        // An error before there is a group.
        let found: redis::RedisResult<Vec<HashMap<String, redis::Value>>> =
            asking.query_async(&mut redis.clone()).await;
        let name = |of: HashMap<String, redis::Value>| {
            redis::from_redis_value(of["name"].clone()).expect("a name")
        };
        found.unwrap_or_default().into_iter().map(name).collect::<Vec<String>>()
    };
    eventually("the group has its consumers", TIMEOUT, async || names().await.len() == count).await;
    names().await
}

/// Entries that were delivered to a dead instance and not acknowledged are committed by the other, and its consumer is
/// removed from the group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_dead_consumer_are_taken_over() {
    let mut stack = Stack::lab(1).await;
    let sale = stack.publish(50, "stream").await;
    let users = stack.users(30).await;
    stack.add_instance(&["--lab"]).await;
    // Both get some entries, and cannot commit them.
    let mut holder = stack.database.pool.begin().await.unwrap();
    sqlx::query("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = ? FOR UPDATE")
        .bind(sale)
        .execute(&mut *holder)
        .await
        .unwrap();
    for (user, url) in users.iter().zip(stack.urls().iter().cycle()) {
        buy(url, user, sale).await.bought();
    }
    let mut dead = stack.instances.pop().expect("a second instance");
    dead.kill();
    holder.rollback().await.unwrap();
    stack.stream_drained().await;
    assert_eq!(stack.database.number("SELECT COUNT(*) FROM tb_voucher_order").await, 30);
    let redis = stack.redis.conn().await;
    eventually("the dead consumer is removed", TIMEOUT, || {
        let mut redis = redis.clone();
        async move {
            let mut asking = redis::cmd("XINFO");
            asking.arg("CONSUMERS").arg("stream.orders").arg("g1");
            let consumers: Vec<redis::Value> = asking.query_async(&mut redis).await.unwrap();
            consumers.len() == 1
        }
    })
    .await;
}
