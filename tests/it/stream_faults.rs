//! Faults during a sale on the stream, in addition to those that `resilience` injects on every strategy.

use seckill_loadtest::chaos::redis_data::{self, RedisData};
use workload::burst::Report;
use workload::checker::Verdict;
use workload::ladder::Strategy;
use workload::reply::{ORDER_NOT_FOUND, Reply};

use crate::resilience::{STOCK, big_burst, with_fault};
use crate::support::eventually;
use crate::support::stack::{Stack, buy, buy_eventually};

/// Everything is lost but the sessions, without which no buyer could go on. Some orders are in flight because the sale's row
/// is locked at that moment. Those that the instances cannot add again end as a definite no, and their places are sold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_goes_on_after_a_redis_lost_everything_or_was_killed() {
    let mut stack = Stack::lab(2).await;
    for round in 0..3 {
        let (options, total) = big_burst(&stack, Strategy::Stream).await;
        let report = with_fault(&options, total / (round + 1), async {
            let holder = stack.lock_all_sales().await;
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
            stack.look_up(&stack.user(user).await, id).await.refused(200, "ORDER_NOT_FOUND");
        }
        // While a lost order was pending, nobody else got its place.
        let (lost, places) = (report.verdict.lost, report.verdict.stock_left);
        let rest = Verdict { lost: 0, false_sold_out: 0, ..report.verdict.clone() };
        assert!(rest.is_clean() && places <= lost, "{report:?}");
        let sale = report.voucher_id.cast_signed();
        for user in &stack.users(1000).await[300..][..places as usize] {
            stack.buy_eventually(user, sale).await;
        }
        stack.stream_drained().await;
        assert_eq!(stack.orders(sale).await, i64::from(STOCK), "none was made after its no");
    }

    // Killed, it comes back with its log, and has lost nothing.
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

/// What was admitted after the snapshot is lost with it. The sale's row is locked at that moment, so that nothing of it is
/// committed before. Each of these orders ends as a row or a definite no; after a no it never becomes one, and nobody gets
/// two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_redis_that_comes_back_with_an_old_snapshot_each_pending_order_ends_and_a_no_stays_one()
 {
    let mut stack = Stack::start(2, &[]).await;
    let sale = stack.publish(100, "stream").await;
    let users = stack.users(21).await;
    stack.buy(&users[20], sale).await.bought();
    stack.stream_drained().await;
    redis_data::take_snapshot(&stack.redis).await.unwrap();
    let holder = stack.lock_sale(sale).await;
    let orders = stack.pending_orders(&users[..20], sale).await;
    stack.redis.kill();
    redis_data::restart(&mut stack.redis, RedisData::Old).await.unwrap();
    holder.rollback().await.unwrap();
    let mut refused = Vec::new();
    for (user, order) in &orders {
        let answer = stack.decided(user, *order).await;
        if answer.body["success"] == false {
            answer.refused(200, "ORDER_NOT_FOUND");
            refused.push(*order);
        }
    }
    for user in &users {
        eventually("everybody has one", || async {
            let answer = buy(&stack.instances[1].url, user, sale).await;
            answer.status == 202 || answer.body["code"] == "ALREADY_ORDERED"
        })
        .await;
    }
    stack.stream_drained().await;
    let orders = "SELECT COUNT(*) * 1000 + COUNT(DISTINCT user_id) FROM tb_voucher_order WHERE voucher_id <> 0";
    assert_eq!(stack.database.number(orders).await, 21_021);
    for order in refused {
        let row = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE id = {order}");
        assert_eq!(stack.database.number(&row).await, 0, "after a no");
    }
}

/// Entries that were delivered to an instance that stands still (SIGSTOP) are decided by the other while it does, not when it
/// goes on; and then it does not commit them again.
#[tokio::test]
async fn entries_of_an_instance_that_stands_still_are_claimed() {
    let mut stack = Stack::start(1, &[]).await;
    let sale = stack.publish(50, "stream").await;
    let users = stack.users(11).await;
    let holder = stack.lock_sale(sale).await;
    let pending = stack.pending_orders(&users[..10], sale).await.len();
    stack.delivered(pending).await;
    stack.instances[0].signal("STOP");
    stack.add_instance(&[]).await;
    holder.rollback().await.unwrap();
    stack.stream_drained().await;
    let pending = pending as i64;
    assert_eq!(stack.all_orders().await, pending, "committed while the other stands still");
    stack.instances[0].signal("CONT");
    // It takes part again, and what it had read is sold once.
    buy_eventually(&stack.instances[0].url, &users[10], sale).await;
    stack.stream_drained().await;
    assert_eq!((stack.all_orders().await, stack.stock(sale).await), (pending + 1, 49 - pending));
}
