//! The guarantees of every strategy in the ladder: the safe strategies keep them, the unsafe ones are *observed* to
//! break them, on one instance and on two processes. The checker of `workload` decides: it compares every reply with
//! every row.

use std::time::Duration;

use ladder::Strategy;
use workload::burst::{self, BurstOptions, BuyerSource, Report};

use crate::support::stack::Stack;

/// Users, attempts of each at once, and how many are on sale: more buyers than stock, several tries a
/// buyer.
const BUYERS: i64 = 60;
const TRIES: u32 = 4;
const STOCK: u32 = 20;

/// A race may not show in one sale; it must in this many.
const SALES_UNTIL_IT_SHOWS: u32 = 40;

/// Options for a sale of `stock` to `buyers` users against every instance of `stack`.
pub async fn options(stack: &Stack, strategy: Strategy, buyers: i64, stock: u32) -> BurstOptions {
    let crowd = stack.users(buyers).await.into_iter().map(|user| burst_buyer(&user)).collect();
    let mut options = BurstOptions::new(stack.access(), stack.targets());
    options.buyers = BuyerSource::Given(crowd);
    options.tries = TRIES;
    options.stock = stock;
    options.strategy = strategy.name().to_owned();
    options.timeout = Duration::from_secs(40);
    options
}

fn burst_buyer(user: &crate::support::stack::SignedIn) -> workload::buyers::Buyer {
    workload::buyers::Buyer { user_id: user.id.cast_unsigned(), token: user.token.parse().unwrap() }
}

async fn sale(stack: &Stack, strategy: Strategy) -> Report {
    burst::run(&options(stack, strategy, BUYERS, STOCK).await).await.expect("the burst runs")
}

pub fn assert_holds(report: &Report) {
    assert!(report.verdict.is_clean(), "{}: {:?}", report.strategy, report.verdict);
    let sold = report.verdict.orders;
    assert_eq!(sold, i64::from(STOCK), "{}: not all sold: {:?}", report.strategy, report.replies);
    assert_eq!(report.unknown, 0, "{}: {:?}", report.strategy, report.replies);
}

/// Runs every strategy and compares what happened with what the ladder allows and demands.
async fn ladder(instances: u32) {
    let stack = Stack::lab(instances as usize).await;
    for strategy in Strategy::ALL {
        let oversell = strategy.row().oversell.can_break();
        let second_order = strategy.second_order_on(instances).can_break();
        if strategy.holds_on(instances) {
            let report = sale(&stack, strategy).await;
            assert_holds(&report);
            continue;
        }
        // A purchase that outlasts a lease of milliseconds: on a fast machine few do.
        if strategy == Strategy::SetnxUnowned {
            let slow =
                "CREATE TRIGGER slow AFTER INSERT ON tb_voucher_order FOR EACH ROW DO SLEEP(0.01)";
            stack.database.run(slow).await;
        }
        // What can happen must be observed, and nothing else may happen.
        let (mut oversold, mut duplicates) = (0, 0);
        for _ in 0..SALES_UNTIL_IT_SHOWS {
            let verdict = sale(&stack, strategy).await.verdict;
            oversold += verdict.oversold;
            duplicates += verdict.duplicates;
            assert_eq!((verdict.lost, verdict.phantom), (0, 0), "{strategy}: {verdict:?}");
            if (oversold > 0 || !oversell) && (duplicates > 0 || !second_order) {
                break;
            }
        }
        assert_eq!(oversold > 0, oversell, "{strategy}: {oversold} oversold");
        assert_eq!(duplicates > 0, second_order, "{strategy}: {duplicates} duplicates");
        stack.database.run("DROP TRIGGER IF EXISTS slow").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_on_one_instance() {
    ladder(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_on_two_instances() {
    ladder(2).await;
}

/// To compare the lock's value and then delete it, in two commands, does not keep a second order away either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_compared_before_its_deletion_breaks_all_the_same() {
    let stack = Stack::start(2, &["--lab", "--setnx-unowned-compare"]).await;
    let slow = "CREATE TRIGGER slow AFTER INSERT ON tb_voucher_order FOR EACH ROW DO SLEEP(0.01)";
    stack.database.run(slow).await;
    for _ in 0..SALES_UNTIL_IT_SHOWS {
        let verdict = sale(&stack, Strategy::SetnxUnowned).await.verdict;
        assert_eq!((verdict.oversold, verdict.lost, verdict.phantom), (0, 0, 0), "{verdict:?}");
        if verdict.duplicates > 0 {
            return;
        }
    }
    panic!("no second order in {SALES_UNTIL_IT_SHOWS} sales");
}

/// Without the unique index, the lock alone prevents a second order. Transactions take long between the insert and the
/// commit, so that a lock that is missing there, or released early, lets a second order in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_redis_locks_suffice_without_the_unique_index() {
    let stack = Stack::lab(2).await;
    stack.database.run("ALTER TABLE tb_voucher_order DROP KEY uk_one_order_per_user").await;
    let slow = "CREATE TRIGGER slow AFTER INSERT ON tb_voucher_order FOR EACH ROW DO SLEEP(0.03)";
    stack.database.run(slow).await;
    for strategy in [Strategy::SetnxLock, Strategy::ReentrantLock] {
        for _ in 0..3 {
            assert_holds(&sale(&stack, strategy).await);
        }
    }
}

/// With a Redis that loses its keys again and again, locks included, the unique index prevents second orders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_unique_index_suffices_when_redis_loses_its_keys() {
    let stack = Stack::lab(2).await;
    let strategies = [
        Strategy::SetnxLock,
        Strategy::ReentrantLock,
        Strategy::Stream,
        Strategy::GroupCommit,
        Strategy::UnitRows,
    ];
    for strategy in strategies {
        let options = options(&stack, strategy, BUYERS, STOCK).await;
        let mut redis = stack.redis.conn().await;
        let deleting_keys = async {
            loop {
                let deleted: Result<(), _> = redis::Script::new(
                    "for _, key in ipairs(redis.call('KEYS', 'lock:*')) do redis.call('DEL', key) end \
                     for _, key in ipairs(redis.call('KEYS', 'icr:*')) do redis.call('DEL', key) end",
                )
                .invoke_async(&mut redis)
                .await;
                deleted.expect("delete the locks and the counter");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let report = tokio::select! {
            report = burst::run(&options) => report.expect("the burst runs"),
            () = deleting_keys => unreachable!(),
        };
        assert!(report.verdict.is_clean(), "{strategy}: {:?}", report.verdict);
        assert_eq!(report.verdict.orders, i64::from(STOCK), "{strategy}");
    }
}
