//! Faults during a sale on the stream, in addition to those that `resilience` injects on every strategy.

use std::time::Duration;

use ladder::Strategy;
use workload::burst::Report;

use crate::resilience::{big_burst, with_fault};
use crate::support::stack::Stack;
use testkit::wait::eventually;

const TIMEOUT: Duration = Duration::from_secs(40);

fn assert_all_sold(report: &Report) {
    assert!(report.verdict.is_clean(), "{:?} {:?}", report.verdict, report.replies);
    assert_eq!(report.verdict.orders, 100, "{:?}", report.replies);
}

/// Everything is lost but the sessions, without which no buyer could go on. Some orders are in flight
/// because the sale's row is locked at that moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_loses_everything_loses_no_pending_order() {
    let stack = Stack::lab(2).await;
    for round in 0..3 {
        let (options, total) = big_burst(&stack, Strategy::Stream).await;
        let report = with_fault(&options, total / (round + 1), async {
            let mut holder = stack.database.pool.begin().await.unwrap();
            sqlx::query("SELECT COUNT(*) FROM tb_seckill_voucher FOR UPDATE")
                .execute(&mut *holder)
                .await
                .unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            let forget = redis::Script::new(
                "for _, key in ipairs(redis.call('KEYS', '*')) do \
                 if string.sub(key, 1, 6) ~= 'login:' then redis.call('DEL', key) end end",
            );
            let mut redis = stack.redis.conn().await;
            let _: () = forget.invoke_async(&mut redis).await.unwrap();
            holder.rollback().await.unwrap();
        })
        .await;
        assert!(report.verdict.is_clean(), "{:?} {:?}", report.verdict, report.replies);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_and_comes_back_with_its_log_loses_nothing() {
    let mut stack = Stack::lab(2).await;
    let (options, total) = big_burst(&stack, Strategy::Stream).await;
    let redis = &mut stack.redis;
    let report = with_fault(&options, total, redis.restart()).await;
    assert!(report.verdict.is_clean(), "{:?} {:?}", report.verdict, report.replies);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_stopped_instance_are_taken_over_by_the_other() {
    let stack = Stack::lab(2).await;
    let (options, total) = big_burst(&stack, Strategy::Stream).await;
    let report = with_fault(&options, total, async {
        stack.instances[1].signal("STOP");
        tokio::time::sleep(Duration::from_secs(8)).await;
        stack.instances[1].signal("CONT");
    })
    .await;
    assert_all_sold(&report);
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
    for user in &users {
        crate::support::stack::buy(stack.url(), user, sale).await.bought();
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
