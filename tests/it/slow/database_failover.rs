//! A database that fails over: a MariaDB primary and its semi-synchronous replica behind a proxy, as one address. What was
//! confirmed is there afterwards, nothing is told that is not so, and the service sells again without a restart.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::database_failover::is_mariadb;
use futures_util::future::join_all;
use sqlx::{Connection, Executor, MySqlConnection, Row};
use testkit::replicated_database::Replication;
use testkit::wait::eventually;

use crate::support::api::{Answer, get};
use crate::support::database::TestDatabase;
use crate::support::stack::{SignedIn, Stack};

const TIMEOUT: Duration = Duration::from_secs(40);

/// One for each way of writing an order.
const STRATEGIES: [&str; 4] = ["reentrant-lock", "row-lock", "group-commit", "stream"];

/// Buyers of one sale, each of whom asks until the purchase is certain.
struct Buyers<'a> {
    stack: &'a Stack,
    sale: i64,
    users: &'a [SignedIn],
}

/// What the buyers were told.
#[derive(Default)]
struct Told {
    /// Orders of which one was told that it is committed, or waits.
    orders: Vec<i64>,
    /// When the first of these that was asked for after the promotion was committed.
    first_after: Option<Instant>,
    /// Answers 503: nothing was done, and nothing is known.
    failed: usize,
    unknown: usize,
}

impl Buyers<'_> {
    /// Each of the users buys in turn, the last one after the promotion.
    async fn buy(&self, promoted: &AtomicBool) -> Told {
        let mut told = Told::default();
        let order_is_there = async |order: i64| {
            let row = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE id = {order}");
            let there = async || self.stack.database.number(&row).await == 1;
            eventually("the order is committed", TIMEOUT, there).await;
        };
        for (number, user) in self.users.iter().enumerate() {
            if number + 1 == self.users.len() {
                let is_over = async || promoted.load(Ordering::Relaxed);
                eventually("the promotion", TIMEOUT, is_over).await;
            }
            let deadline = Instant::now() + TIMEOUT;
            loop {
                let was_promoted = promoted.load(Ordering::Relaxed);
                let answer = self.stack.buy(user, self.sale).await;
                match order_of(&answer) {
                    Some(order) => {
                        if was_promoted && told.first_after.is_none() {
                            // A success of the stream means that it waits.
                            order_is_there(order).await;
                            told.first_after = Some(Instant::now());
                        }
                        told.orders.push(order);
                        break;
                    }
                    None if answer.body["code"] == "OUTCOME_UNKNOWN" => told.unknown += 1,
                    // An earlier try of the same buyer may still be at work.
                    None if answer.body["code"] == "LOCK_BUSY" => {}
                    None => {
                        answer.refused(503, "UNAVAILABLE");
                        told.failed += 1;
                    }
                }
                assert!(Instant::now() < deadline, "nothing is sold: {answer:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        told
    }
}

/// The order that an answer names as the user's.
fn order_of(answer: &Answer) -> Option<i64> {
    let bought = answer.body["success"] == true || answer.body["code"] == "ALREADY_ORDERED";
    bought.then(|| answer.body["orderId"].as_str().expect("an order").parse().expect("an id"))
}

/// Each strategy's buyers buy, while `fault` happens to the database; it says when the new primary was there. Prints how
/// long the service needed, and returns the orders that the buyers were told of.
async fn sell_during(
    stack: &Stack,
    sales: &[i64],
    users: &[SignedIn],
    fault: impl AsyncFnOnce(),
) -> Vec<Vec<i64>> {
    let promoted = AtomicBool::new(false);
    let buying = sales.iter().map(|&sale| {
        let buyers = Buyers { stack, sale, users };
        let promoted = &promoted;
        async move { buyers.buy(promoted).await }
    });
    let (told, at) = tokio::join!(join_all(buying), async {
        fault().await;
        promoted.store(true, Ordering::Relaxed);
        Instant::now()
    });
    for (strategy, told) in STRATEGIES.iter().zip(&told) {
        let first = told.first_after.expect("a sale after the promotion");
        let after = first.saturating_duration_since(at);
        let Told { failed, unknown, .. } = told;
        println!(
            "{strategy}: sells {after:?} after the promotion; {failed} failed, {unknown} unknown"
        );
    }
    told.into_iter().map(|told| told.orders).collect()
}

/// Has the service open many connections, also those for reads.
async fn open_connections(stack: &Stack, users: &[SignedIn]) {
    let reading = users.iter().map(|user| async {
        let path = format!("/shop/of/name?name={}", user.id);
        let (found, mine) = tokio::join!(
            get(stack.url(), &path).send(),
            get(stack.url(), "/voucher-order/of/me").token(&user.token).send(),
        );
        found.data();
        mine.data();
    });
    join_all(reading).await;
}

/// Every order that a buyer was told of is there, and the stock is what they left.
async fn assert_kept(stack: &Stack, sales: &[i64], told: &[Vec<i64>], stock: i64) {
    stack.stream_drained().await;
    for ((strategy, sale), told) in STRATEGIES.iter().zip(sales).zip(told) {
        let ids = told.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let kept = format!(
            "SELECT COUNT(*) FROM tb_voucher_order WHERE voucher_id = {sale} AND id IN ({ids})"
        );
        eventually("every order is committed", TIMEOUT, async || {
            stack.database.number(&kept).await == told.len() as i64
        })
        .await;
        let (orders, left) = stack.tables(*sale).await;
        assert_eq!(orders + left, stock, "{strategy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_primary_is_used_at_once_and_keeps_what_was_confirmed() {
    if !is_mariadb() {
        return;
    }
    let database = TestDatabase::replicated(Replication::SemiSynchronous).await;
    let mut stack = Stack::start_on(database, 1, &[]).await;
    let users = stack.users(48).await;
    let (first, second) = users.split_at(24);
    let stock = 1000;
    let sales = stack.publish_each(stock, STRATEGIES).await;
    open_connections(&stack, &users).await;

    // The primary's machine is lost, and the replica promoted.
    let mut pair = stack.database.pair.take().expect("a pair");
    let mut told = sell_during(&stack, &sales, first, async || {
        let some = async || stack.all_orders().await > 8;
        eventually("some are sold", TIMEOUT, some).await;
        pair.kill_primary();
        // Purchases meet a primary that is gone.
        tokio::time::sleep(Duration::from_millis(700)).await;
        pair.promote().await.expect("promote");
    })
    .await;
    assert_kept(&stack, &sales, &told, stock).await;

    // The roles are changed by plan: the old primary stays, read-only, and so do the connections to it.
    pair.rejoin().await.expect("rejoin");
    open_connections(&stack, &users).await;
    let before = stack.all_orders().await;
    let later = sell_during(&stack, &sales, second, async || {
        let some = async || stack.all_orders().await > before + 8;
        eventually("some are sold", TIMEOUT, some).await;
        pair.switch_over().await.expect("switch over");
    })
    .await;
    for (told, later) in told.iter_mut().zip(later) {
        told.extend(later);
    }
    assert_kept(&stack, &sales, &told, stock).await;
    // It is left altogether, by reads too, which would see its old state for as long as its connections live.
    let mut old = MySqlConnection::connect(&pair.replica().admin_url()).await.expect("connect");
    let left = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
                WHERE USER = 'seckill' AND DB = 'seckill'";
    stack.database.pool.close().await;
    eventually("the old primary is left", TIMEOUT, async || {
        old.fetch_one(left).await.expect("a number").get::<i64, _>(0) == 0
    })
    .await;
    // Dropped with it, after the service.
    stack.database.pair = Some(pair);
}
