//! The guarantees of every strategy in the ladder: the safe strategies keep them, the unsafe ones are *observed* to
//! break them, on one instance and on two processes. In a whole sale the checker of `workload` decides: it compares every
//! reply with every row. An unsafe strategy may break nothing but what the ladder says. No instance is killed here: that
//! `memory-queue` then loses orders is shown in [`crate::memory_queue`].

use std::time::Duration;

use futures_util::{StreamExt, stream};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use strategies::Strategy;
use workload::Environment;
use workload::burst::{self, BurstOptions, Report};
use workload::conformance::Conformance;
use workload::order_rows::OrderRows;

use crate::support::database::shows_uncommitted_rows;
use crate::support::eventually;
use crate::support::hold::Hold;
use crate::support::stack::{Stack, buy};

/// Users, attempts of each at once, and how many are on sale: more buyers than stock, several tries a
/// buyer.
const BUYERS: u32 = 60;
const TRIES: u32 = 4;
const STOCK: u32 = 20;

/// Sales that run at the same time: no more, or on a busy machine they take each other's time.
const AT_ONCE: usize = 2;

/// Options for a sale of `stock` to `buyers` users against every instance of `stack`.
pub fn options(stack: &Stack, strategy: Strategy, buyers: u32, stock: u32) -> BurstOptions {
    let targets = stack
        .instances
        .iter()
        .map(|instance| instance.url.parse().expect("an address"));
    BurstOptions {
        buyers,
        tries: TRIES,
        stock,
        strategy: strategy.name().to_owned(),
        timeout: Duration::from_secs(40),
        ..BurstOptions::new(Environment::silent(stack.access(), targets.collect()))
    }
}

/// A burst on a new sale.
pub async fn run(stack: &Stack, options: &BurstOptions) -> Report {
    let sale = burst::publish(options).await.expect("a sale");
    run_on(stack, options, sale).await
}

/// A burst on this sale, which begins when it is open.
async fn run_on(stack: &Stack, options: &BurstOptions, sale: u64) -> Report {
    let orders = OrderRows::open(&options.environment.access.database_url).await;
    let orders = orders.expect("the orders' table");
    if options.strategy == Strategy::Stream.name() {
        stack.opened(sale.cast_signed()).await;
    }
    let buyers = burst::prepare(options).await.expect("the buyers");
    burst::run_until_sold_out(sale, options, &orders, buyers)
        .await
        .expect("the burst runs")
}

/// As [`run`], of the usual size.
pub async fn sale(stack: &Stack, strategy: Strategy) -> Report {
    run(stack, &options(stack, strategy, BUYERS, STOCK)).await
}

pub fn assert_holds(report: &Report) {
    assert!(
        report.verdict.is_clean(),
        "{}: {:?}",
        report.strategy,
        report.verdict
    );
    let sold = report.verdict.orders;
    assert_eq!(
        sold,
        i64::from(STOCK),
        "{}: not all sold: {:?}",
        report.strategy,
        report.replies
    );
    assert_eq!(
        report.unknown, 0,
        "{}: {:?}",
        report.strategy, report.replies
    );
}

/// Runs every strategy and compares what happened with what the ladder allows and demands.
async fn ladder(stack: &Stack) {
    let instances = u32::try_from(stack.instances.len()).unwrap();
    // Each second order that can happen is observed. One strategy at a time, because the hold is on the tables.
    for strategy in Strategy::ALL {
        if strategy.second_order_on(instances).can_break() && shows_uncommitted_rows() {
            observe_second_order(stack, strategy).await;
        }
    }
    // Nothing else may break. All sales are published before the first burst, which may keep a slow database busy.
    let mut published = Vec::new();
    for strategy in Strategy::ALL {
        let options = options(stack, strategy, BUYERS, STOCK);
        let sale = burst::publish(&options).await.expect("a sale");
        published.push((strategy, options, sale));
    }
    let sales = published
        .into_iter()
        .map(async |(strategy, options, sale)| {
            let report = run_on(stack, &options, sale).await;
            if strategy.holds_on(instances) {
                assert_holds(&report);
                return;
            }
            let conformance = Conformance::from_report(strategy, instances, &report, false);
            let violated = matches!(conformance, Conformance::Violation(_));
            assert!(
                !violated,
                "{strategy}: {conformance:?}, {:?}",
                report.replies
            );
        });
    at_once(sales).await;
}

/// Runs sales, or whole judgements, some at a time: most of a sale is the wait until its tables no longer change.
pub async fn at_once(sales: impl IntoIterator<Item = impl Future<Output = ()>>) {
    let sales = stream::iter(sales);
    sales.for_each_concurrent(AT_ONCE, |sale| sale).await;
}

/// Two purchases of one buyer, on the first and the last instance. The first one stands still where its strategy breaks,
/// until the second one has passed there as well. Both succeed; with `naive`, more is sold than there was.
async fn observe_second_order(stack: &Stack, strategy: Strategy) {
    let oversells = strategy.row().oversell.can_break();
    let stock = if oversells { 1 } else { 2 };
    let sale = stack.publish(stock, strategy.name()).await;
    let user = stack.users(1).await.remove(0);
    // `lock-in-transaction` holds its lock while it inserts, and has released it when it changes the stock.
    let stops_at_insert = strategy != Strategy::LockInTransaction;
    let event = if stops_at_insert {
        "AFTER INSERT ON tb_voucher_order"
    } else {
        "BEFORE UPDATE ON tb_seckill_voucher"
    };
    let hold = Hold::first(&stack.database, event, "TRUE").await;
    let orders = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE voucher_id = {sale}");

    let first = stack.start_buying(&user, sale);
    eventually("the first order is inserted", || async {
        stack.database.uncommitted(&orders).await == 1
    })
    .await;
    let lease = format!("lock:setnx-unowned:order:{}", user.id);
    let mut redis = stack.redis.conn().await;
    eventually("its short lease has ended", async || {
        !redis.exists::<_, bool>(&lease).await.unwrap()
    })
    .await;
    let last = stack.urls().pop().unwrap();
    let buyer = user.clone();
    let second = tokio::spawn(async move { buy(&last, &buyer, sale).await });
    eventually("the second order has passed", || async {
        let database = &stack.database;
        if stops_at_insert {
            database.number(&orders).await == 1
        } else {
            database.uncommitted(&orders).await == 2
        }
    })
    .await;
    hold.release().await;
    let ids = [
        first.await.unwrap().bought(),
        second.await.unwrap().bought(),
    ];
    assert_ne!(ids[0], ids[1], "{strategy}");
    assert_eq!(stack.database.number(&orders).await, 2, "{strategy}");
    assert_eq!(stack.stock(sale).await, stock - 2, "{strategy}");
    stack.database.run("DROP TRIGGER hold").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_keeps_what_it_promises_on_one_instance() {
    ladder(&Stack::lab(1).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_keeps_what_it_promises_on_two_instances() {
    ladder(&Stack::lab(2).await).await;
}

/// Deletes all locks and the counter of ids, again and again.
async fn keep_deleting_keys(mut redis: MultiplexedConnection) {
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
}

/// With a Redis that loses its keys again and again, locks included, the unique index prevents second orders. That the locks
/// do, too, is shown in [`crate::late_commit`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_unique_index_suffices_without_the_redis_locks() {
    let stack = Stack::lab(2).await;
    let strategies = [
        Strategy::SetnxLock,
        Strategy::ReentrantLock,
        Strategy::Stream,
        Strategy::GroupCommit,
        Strategy::UnitRows,
    ];
    let sales = strategies.map(async |strategy| {
        let report = sale(&stack, strategy).await;
        assert!(
            report.verdict.is_clean(),
            "{strategy}: {:?}",
            report.verdict
        );
        assert_eq!(report.verdict.orders, i64::from(STOCK), "{strategy}");
    });
    let redis = stack.redis.conn().await;
    tokio::select! {
        () = at_once(sales) => {}
        () = keep_deleting_keys(redis) => unreachable!(),
    }
}
