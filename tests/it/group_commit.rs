//! Group commit, one queue at a time: order of service, second orders, orders that cannot be inserted, and a full
//! queue. Whole sales are tested in `law` and `resilience`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::join_all;
use seckill::clock::Zone;
use seckill::connection;
use seckill::error::Error;
use seckill::id::IdGenerator;
use seckill::keys::{KeyStyle, Keys};
use seckill::order::model::Buyer;
use seckill::order::store::OrderStore;
use seckill::order::strategy::group_commit::queue::{GroupCommit, GroupCommitLimits};
use seckill::voucher::sales::{Sale, SaleCache};
use seckill::voucher::store::VoucherStore;
use secrecy::SecretString;

use crate::support::database::{TestDatabase, is_oceanbase, shows_uncommitted_rows};
use crate::support::eventually;
use crate::support::stack::Stack;
use testkit::proxy::Mode;
use tokio::time::Instant;

const SALE: i64 = 9;
const ORDERS: &str = "SELECT COUNT(*) FROM tb_voucher_order";
const LIMITS: GroupCommitLimits = GroupCommitLimits {
    batch: 512,
    queue: 4096,
    in_flight: 2,
    timeout: Duration::from_secs(10),
};

/// The queues of one process, without HTTP.
struct Node {
    group_commit: GroupCommit,
    sales: SaleCache,
}

/// Servers with a sale of this stock, and no instance.
async fn stack_with(stock: i64) -> Stack {
    let stack = Stack::start(0, &[]).await;
    add_sale(&stack, SALE, stock).await;
    stack
}

async fn add_sale(stack: &Stack, id: i64, stock: i64) {
    for insert in [
        format!(
            "INSERT INTO tb_voucher (id, shop_id, title, pay_value, actual_value, type) \
             VALUES ({id}, 1, 't', 1, 1, 1)"
        ),
        format!(
            "INSERT INTO tb_seckill_voucher \
             (voucher_id, stock, issued, begin_time, end_time, strategy) VALUES \
             ({id}, {stock}, {stock}, '2022-01-01', '2037-01-01', 'group-commit')"
        ),
    ] {
        stack.database.run(&insert).await;
    }
}

/// User 5 has this order of the sale.
async fn add_order(stack: &Stack, sale: i64) {
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES";
    stack
        .database
        .run(&format!("{insert} (1, 5, {sale})"))
        .await;
}

impl Node {
    async fn new(stack: &Stack, limits: GroupCommitLimits) -> Node {
        Node::with_database(&stack.database.url(), stack, limits).await
    }

    async fn with_database(url: &SecretString, stack: &Stack, limits: GroupCommitLimits) -> Node {
        let database = connection::mysql::connect(url, 8, limits.timeout)
            .await
            .unwrap();
        let server = connection::redis::server(&stack.redis.url().into(), None, None).unwrap();
        let redis = connection::redis::connect(server, limits.timeout)
            .await
            .unwrap()
            .commands();
        let zone = Zone(chrono_tz::Asia::Shanghai);
        let keys = Keys::new(KeyStyle::Default);
        // The clock stands still, so that the ids of a block follow each other.
        let second = zone.seconds()();
        let ids = IdGenerator::new(redis.clone(), Arc::new(move || second), keys.clone(), 1000);
        let sales = SaleCache::new(
            VoucherStore::new(database.clone()),
            redis,
            keys,
            limits.timeout,
        );
        Node {
            group_commit: GroupCommit::new(OrderStore::new(database, zone), Arc::new(ids), limits),
            sales,
        }
    }

    async fn sale(&self) -> Arc<Sale> {
        self.sales.get(SALE).await.unwrap()
    }

    /// Buys for these users, queued in this order.
    async fn buy(&self, users: impl IntoIterator<Item = i64>) -> Vec<Result<i64, Error>> {
        self.buy_of(users.into_iter().map(|user| (SALE, user)))
            .await
    }

    /// Makes these purchases, pairs of voucher and user, queued together in this order.
    async fn buy_of(
        &self,
        purchases: impl IntoIterator<Item = (i64, i64)>,
    ) -> Vec<Result<i64, Error>> {
        // All sales have the window of this one.
        let sale = self.sale().await;
        join_all(
            purchases
                .into_iter()
                .map(|(voucher, user)| self.order(&sale, voucher, user)),
        )
        .await
    }

    async fn order(&self, sale: &Sale, voucher_id: i64, user_id: i64) -> Result<i64, Error> {
        // So late that other limits end the purchase first.
        let deadline = Instant::now() + 6 * LIMITS.timeout;
        self.order_until(deadline, sale, voucher_id, user_id).await
    }

    async fn order_until(
        &self,
        deadline: Instant,
        sale: &Sale,
        voucher_id: i64,
        user_id: i64,
    ) -> Result<i64, Error> {
        self.group_commit
            .order(
                Buyer {
                    user_id,
                    voucher_id,
                },
                sale,
                deadline,
            )
            .await
            .outcome
    }
}

/// What the buyers are told: a code, and the order that a refusal names.
fn codes_for_buyers(outcomes: &[Result<i64, Error>]) -> Vec<String> {
    let codes = outcomes.iter().map(|outcome| match outcome {
        Ok(_) => "ORDERED".to_owned(),
        Err(Error::AlreadyOrdered(Some(id))) => format!("ALREADY_ORDERED {id}"),
        Err(Error::OutcomeUnknown(None)) => "OUTCOME_UNKNOWN without an id".to_owned(),
        Err(Error::DuplicateId) => "DUPLICATE_ID".to_owned(),
        Err(error) => error.code().to_owned(),
    });
    codes.collect()
}

#[tokio::test]
async fn concurrent_purchases_share_a_commit_and_are_served_in_order_of_arrival() {
    let stack = stack_with(1000).await;
    let node = Node::new(&stack, LIMITS).await;
    let outcomes = node.buy(1..=300).await;
    let ids: std::collections::HashSet<i64> = outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap())
        .collect();
    assert_eq!(ids.len(), 300);
    assert_eq!(stack.tables(SALE).await, (300, 700));
    let stats = node.group_commit.stats();
    assert!(stats.sizes.counted().count <= 2, "{stats:?}");
    assert_eq!(stats.sizes.counted().seconds, 300.0);

    // The stock does not suffice.
    stack
        .database
        .run("UPDATE tb_seckill_voucher SET stock = 10, issued = 310")
        .await;
    // In the reverse of the order in which rows are inserted.
    let outcomes = codes_for_buyers(&node.buy((301..=360).rev()).await);
    assert_eq!(outcomes[..10], ["ORDERED"; 10]);
    assert_eq!(outcomes[10..], ["SOLD_OUT"; 50]);
    assert_eq!(stack.tables(SALE).await, (310, 0));
    assert_eq!(codes_for_buyers(&node.buy([399]).await), ["SOLD_OUT"]);
    node.group_commit.finished().await;
}

#[tokio::test]
async fn a_second_order_is_refused_with_the_id_of_the_first_on_either_node() {
    let stack = stack_with(100).await;
    let first_node = Node::new(&stack, LIMITS).await;
    let second_node = Node::new(&stack, LIMITS).await;
    // Several times in one batch, again later, and on another node, among buyers who are new.
    let first = first_node.buy([5, 6, 5, 7, 5]).await;
    let id = *first[0].as_ref().unwrap();
    let again = format!("ALREADY_ORDERED {id}");
    assert_eq!(
        codes_for_buyers(&first),
        ["ORDERED", "ORDERED", &again, "ORDERED", &again]
    );
    for node in [&first_node, &second_node] {
        assert_eq!(codes_for_buyers(&node.buy([200, 5, 201]).await)[1], again);
    }
    assert_eq!(stack.tables(SALE).await, (5, 95));
    // The same, when the stock ends in the batch that has a second order.
    stack
        .database
        .run("UPDATE tb_seckill_voucher SET stock = 2, issued = 7")
        .await;
    let last = codes_for_buyers(&first_node.buy([5, 300, 301, 302]).await);
    assert_eq!(last, [again.as_str(), "ORDERED", "ORDERED", "SOLD_OUT"]);
    assert_eq!(stack.tables(SALE).await, (7, 0));
    // After a cancelled order its user may buy again.
    stack
        .database
        .run("UPDATE tb_seckill_voucher SET stock = 1")
        .await;
    stack
        .database
        .run(&format!(
            "UPDATE tb_voucher_order SET status = 4 WHERE id = {id}"
        ))
        .await;
    let anew = first_node.buy([5]).await;
    let Ok(new) = anew[0] else {
        panic!("no order after a cancelled one: {anew:?}");
    };
    assert_ne!(new, id);
    // Of the user's two orders, the refusal names the one that is not cancelled.
    let refused = codes_for_buyers(&second_node.buy([5, 5]).await);
    assert_eq!(refused, [&*format!("ALREADY_ORDERED {new}"); 2]);
}

/// First both nodes sell to the same buyers, and the database may roll back a batch; then to different ones, until all is sold
/// out.
#[tokio::test]
async fn two_nodes_that_sell_many_sales_in_opposite_order_agree_and_do_not_deadlock() {
    let stack = Stack::start_on(TestDatabase::on_own_server().await, 0, &[]).await;
    join_all((SALE..50).map(|sale| add_sale(&stack, sale, 9))).await;
    let first_node = Node::new(&stack, LIMITS).await;
    let second_node = Node::new(&stack, LIMITS).await;
    // Sells to six users at each node, of whom these are the first; returns the server's count of deadlocks.
    let sell = async |first_up: i64, first_down: i64| {
        let purchases =
            |first| (first..first + 6).flat_map(|user| (SALE..50).map(move |sale| (sale, user)));
        let (outcomes_up, outcomes_down) = tokio::join!(
            first_node.buy_of(purchases(first_up)),
            second_node.buy_of(purchases(first_down).rev())
        );
        let mut failures = [outcomes_up, outcomes_down].concat();
        failures.retain(|outcome| {
            !matches!(
                outcome,
                Ok(_) | Err(Error::SoldOut | Error::AlreadyOrdered(_))
            )
        });
        assert!(failures.is_empty(), "{failures:?}");
        if is_oceanbase() {
            // It counts no deadlocks: a transaction that waits too long gives up.
            return 0;
        }
        let deadlocks =
            "SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME='lock_deadlocks'";
        stack.database.number(deadlocks).await
    };
    let before = sell(1, 1).await;
    for first in [11, 21, 31] {
        assert_eq!(sell(first, 100 + first).await, before);
    }
    assert_eq!(
        stack
            .database
            .number("SELECT SUM(ABS(stock)) FROM tb_seckill_voucher")
            .await,
        0
    );
    assert_eq!(stack.database.number(ORDERS).await, 9 * 41);
}

/// In these batches some orders are dropped (user 5 has an order), or do not fit into the stock, or both. Before the commit, and
/// if it fails, no buyer is told that there is an order, nor that others took the last of the stock.
#[tokio::test]
async fn a_batch_of_which_only_a_part_is_kept_is_answered_by_what_its_commit_did() {
    let limits = GroupCommitLimits {
        timeout: Duration::from_secs(2),
        ..LIMITS
    };
    let stack = stack_with(100).await;
    let proxy = &stack.proxies.database;
    let url = stack.database.url_through(proxy.address).into();
    let batches: [(i64, &[i64]); 3] = [(100, &[5, 6, 7]), (2, &[6, 7, 8]), (2, &[5, 6, 7, 8])];
    // Each batch ends with a text that takes two. Where only the stock is in the way, one that takes three comes before it.
    let takes_two = "stock - 2";
    let takes_three = "stock - 3";
    let faults = [
        Mode::LoseRequest(takes_two),
        Mode::LoseReplyTo(takes_two),
        Mode::LoseReplyToThenCut(takes_two),
        Mode::LoseReplyTo(takes_three),
    ];
    for mode in faults {
        let is_done =
            mode != Mode::LoseRequest(takes_two) && mode != Mode::LoseReplyTo(takes_three);
        for (stock, users) in batches {
            if mode == Mode::LoseReplyTo(takes_three) && users.contains(&5) {
                continue;
            }
            stack.database.run("DELETE FROM tb_voucher_order").await;
            let refill =
                format!("UPDATE tb_seckill_voucher SET stock = {stock}, issued = {stock} + 1");
            stack.database.run(&refill).await;
            add_order(&stack, SALE).await;
            proxy.set(Mode::Forward);
            let node = Node::with_database(&url, &stack, limits).await;
            node.sale().await;
            proxy.set(mode);
            let outcomes = node.buy(users.iter().copied()).await;
            let case = format!("{mode:?}, stock {stock}, {users:?}: {outcomes:?}");
            let expected = users.iter().map(|user| match (user, mode) {
                (5, _) => "ALREADY_ORDERED 1",
                (8, Mode::LoseReplyTo(_)) if is_done => "SOLD_OUT",
                (6 | 7, Mode::LoseReplyTo(_)) if is_done => "ORDERED",
                (6 | 7, Mode::LoseReplyToThenCut(_)) => "OUTCOME_UNKNOWN",
                _ => "UNAVAILABLE",
            });
            assert_eq!(
                codes_for_buyers(&outcomes),
                expected.collect::<Vec<_>>(),
                "{case}"
            );
            for (user, outcome) in users.iter().zip(&outcomes) {
                if let Ok(id) | Err(Error::OutcomeUnknown(Some(id))) = outcome {
                    assert!(
                        stack.database.has_order(*id, *user).await,
                        "user {user}, {case}"
                    );
                }
            }
            let kept = if is_done { 2 } else { 0 };
            assert_eq!(stack.tables(SALE).await, (1 + kept, stock - kept), "{case}");
        }
    }
}

/// A sale of which two are left.
const SCARCE: i64 = 10;
/// A sale of which user 5 has an order.
const OTHER: i64 = 11;
/// A sale without a row.
const GONE: i64 = 12;

/// [`SALE`], [`SCARCE`], [`OTHER`], and no row of [`GONE`].
async fn stack_with_several() -> Stack {
    let stack = stack_with(100).await;
    add_sale(&stack, SCARCE, 2).await;
    add_sale(&stack, OTHER, 50).await;
    add_order(&stack, OTHER).await;
    stack
}

async fn tables(stack: &Stack) -> [(i64, i64); 3] {
    [
        stack.tables(SALE).await,
        stack.tables(SCARCE).await,
        stack.tables(OTHER).await,
    ]
}

#[tokio::test]
async fn a_batch_of_several_sales_gives_each_order_the_outcome_that_it_has_alone() {
    let stack = stack_with_several().await;
    let node = Node::new(&stack, LIMITS).await;
    let purchases = [
        (OTHER, 5),
        (SCARCE, 3),
        (SALE, 1),
        (GONE, 1),
        (SCARCE, 2),
        (SCARCE, 1),
        (SALE, 1),
        (OTHER, 6),
        (SALE, 5),
    ];
    let outcomes = node.buy_of(purchases).await;
    let id = outcomes[2].as_ref().expect("an order");
    let earlier = "ALREADY_ORDERED 1";
    let first = format!("ALREADY_ORDERED {id}");
    let ordered = "ORDERED";
    let gone = "VOUCHER_NOT_FOUND";
    let sold_out = "SOLD_OUT";
    assert_eq!(
        codes_for_buyers(&outcomes),
        [
            earlier, ordered, ordered, gone, ordered, sold_out, &first, ordered, ordered
        ]
    );
    assert_eq!(tables(&stack).await, [(2, 98), (2, 0), (2, 49)]);
    let sizes = node.group_commit.stats().sizes.counted();
    assert_eq!((sizes.count, sizes.seconds), (1, 5.0));
    // A sale that is sold out keeps no other from being committed, wherever it stands.
    assert_eq!(
        codes_for_buyers(&node.buy_of([(SCARCE, 7), (GONE, 7), (OTHER, 7)]).await),
        [sold_out, gone, ordered]
    );
    let later = codes_for_buyers(&node.buy_of([(SCARCE, 8), (GONE, 8), (OTHER, 5)]).await);
    assert_eq!(later, [sold_out, gone, earlier]);
    assert_eq!(tables(&stack).await, [(2, 98), (2, 0), (3, 48)]);
    assert_eq!(stack.database.number(ORDERS).await, 7);
    // Nor does one whose row cannot be changed at all.
    let bad = "CREATE TRIGGER bad BEFORE UPDATE ON tb_seckill_voucher FOR EACH ROW \
               IF NEW.voucher_id = 11 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'bad'; END IF";
    stack.database.run(bad).await;
    let later = node
        .buy_of([(OTHER, 8), (SALE, 8), (OTHER, 9), (SALE, 9)])
        .await;
    assert!(
        matches!(&later[..], [Err(_), Ok(_), Err(_), Ok(_)]),
        "{later:?}"
    );
    assert_eq!(tables(&stack).await, [(4, 96), (2, 0), (3, 48)]);
}

/// User 5 has an order, so the batch's text stops. User 6 has cancelled one.
#[tokio::test]
async fn a_cancelled_order_is_in_nobodys_way() {
    let stack = stack_with(100).await;
    add_order(&stack, SALE).await;
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES";
    let cancelled = format!("{insert} (2, 6, {SALE}, 4)");
    stack.database.run(&cancelled).await;
    let node = Node::new(&stack, LIMITS).await;
    let outcomes = codes_for_buyers(&node.buy([5, 6, 7]).await);
    assert_eq!(outcomes, ["ALREADY_ORDERED 1", "ORDERED", "ORDERED"]);
}

/// Part of a text that inserts one order alone.
const ALONE: &str = "INSERT INTO tb_voucher_order";
/// Part of a text that inserts several orders.
const SEVERAL: &str = "),(";
/// Part of the request that locks sales without waiting for their rows.
const AT_ONCE: &str = "FOR UPDATE NOWAIT";

#[tokio::test]
async fn a_sale_whose_row_is_locked_delays_the_others_once() {
    const LOCKED: i64 = GONE + 1;
    let stack = stack_with_several().await;
    add_sale(&stack, LOCKED, 100).await;
    let proxy = &stack.proxies.database;
    let url = stack.database.url_through(proxy.address).into();
    let node = Node::with_database(&url, &stack, LIMITS).await;
    node.sale().await;
    let holder = stack.lock_sale(LOCKED).await;
    // The sale that is in the way is looked for without waiting a second time: a request that waits would be lost.
    proxy.set(Mode::LoseRequest("FOR UPDATE; "));
    proxy.count(SEVERAL);
    let locked_out = node.buy_of([(LOCKED, 1), (LOCKED, 1)]);
    let other_purchases = async {
        // One batch with the sale that is locked.
        let first = node.buy_of([(SALE, 1), (OTHER, 11)]).await;
        assert!(first.iter().all(Result::is_ok), "{first:?}");
        assert_eq!(
            node.group_commit.stats().sizes.counted().count,
            1,
            "the others share a commit"
        );
        // The batch waits for the row, finds out which sale is locked, and goes on without that sale.
        assert_eq!(
            proxy.counted(SEVERAL),
            2,
            "with all, then without that sale"
        );
    };
    let (locked_out, ()) = tokio::join!(locked_out, other_purchases);
    assert_eq!(
        codes_for_buyers(&locked_out),
        ["UNAVAILABLE"; 2],
        "{locked_out:?}"
    );
    eventually("its batch has ended", async || {
        node.group_commit.depth().batches == 0
    })
    .await;
    // The locked sale keeps a queue of its own for as long as its row is locked.
    proxy.count(AT_ONCE);
    let waiting = node.buy_of([(LOCKED, 2)]);
    let other_purchases = node.buy_of([(SALE, 2), (OTHER, 12)]);
    tokio::select! {
        outcomes = other_purchases => assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}"),
        waiting = waiting => panic!("told while the row is locked: {waiting:?}"),
    }
    assert_eq!(proxy.counted(AT_ONCE), 0, "a batch has met the locked row");
    holder.rollback().await.unwrap();
    // It sells again, and then shares batches with the others.
    let again = node.buy_of([(LOCKED, 3)]).await;
    assert!(again[0].is_ok(), "{again:?}");
    node.group_commit.finished().await;
    let before = node.group_commit.stats().sizes.counted().count;
    let together = node.buy_of([(LOCKED, 4), (SALE, 4), (OTHER, 4)]).await;
    assert!(together.iter().all(Result::is_ok), "{together:?}");
    assert_eq!(node.group_commit.stats().sizes.counted().count - before, 1);
}

/// Found one after the other, each would delay the others by two lock waits of a second.
#[tokio::test]
async fn all_sales_whose_rows_are_locked_are_found_at_once() {
    const LOCKED: i64 = 6;
    let stack = stack_with(100).await;
    for sale in SALE + 1..=SALE + LOCKED + 1 {
        add_sale(&stack, sale, 5).await;
    }
    let node = Node::new(&stack, LIMITS).await;
    node.sale().await;
    let mut holder = stack.lock_sale(SALE + 1).await;
    // One by one: with a list the server may read, and lock, the whole table.
    for sale in SALE + 2..=SALE + LOCKED {
        let lock = format!("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = {sale}");
        let lock = format!("{lock} FOR UPDATE");
        sqlx::Executor::execute(&mut *holder, lock.as_str())
            .await
            .unwrap();
    }
    let locked_out = node.buy_of((1..=LOCKED).map(|offset| (SALE + offset, 1)));
    let other_purchases = async {
        let began = Instant::now();
        let healthy = [(SALE, 1), (SALE + LOCKED + 1, 1)];
        let outcomes = node.buy_of(healthy).await;
        let took = began.elapsed();
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert!(took < Duration::from_secs(6), "{took:?}");
        holder.rollback().await.unwrap();
    };
    let (locked_out, ()) = tokio::join!(locked_out, other_purchases);
    for (sale, outcome) in (SALE + 1..).zip(&locked_out) {
        assert!(
            matches!(outcome, Ok(_) | Err(Error::Conflict)),
            "{sale}: {outcome:?}"
        );
    }
    // They sell again.
    let again = node
        .buy_of((1..=LOCKED).map(|offset| (SALE + offset, 2)))
        .await;
    assert!(again.iter().all(Result::is_ok), "{again:?}");
}

/// The counter of ids was lost, and another node inserts orders under the ids of this one.
#[tokio::test]
async fn an_id_of_another_buyer_fails_its_order_alone_and_a_buyers_own_row_is_their_order() {
    let stack = stack_with(100).await;
    let node = Node::new(&stack, LIMITS).await;
    let first = *node.buy([1]).await[0].as_ref().expect("an order");
    let insert = async |id: i64, user: i64| {
        let order = format!("({id}, {user}, {SALE})");
        let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES";
        stack.database.run(&format!("{insert} {order}")).await;
    };
    // The ids of a batch follow each other. The second order's id belongs to another buyer's order.
    insert(first + 2, 99).await;
    let outcomes = codes_for_buyers(&node.buy([2, 3, 4]).await);
    assert_eq!(outcomes, ["ORDERED", "DUPLICATE_ID", "ORDERED"]);
    assert_eq!(stack.tables(SALE).await, (4, 97));
    // A row that this batch has not inserted takes nothing from the stock.
    insert(first + 5, 6).await;
    let outcomes = codes_for_buyers(&node.buy([5, 6, 7]).await);
    assert_eq!(outcomes, ["ORDERED"; 3]);
    assert_eq!(stack.tables(SALE).await, (7, 95));
}

#[tokio::test]
async fn a_buyer_whose_row_is_locked_or_cannot_be_inserted_delays_no_other() {
    let stack = stack_with(100).await;
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES";
    let holder = stack
        .database
        .hold(&format!("{insert} (1, 13, {SALE})"))
        .await;
    let impatient = GroupCommitLimits {
        timeout: Duration::from_secs(3),
        ..LIMITS
    };
    let refused = Node::new(&stack, impatient).await.buy([13]).await.remove(0);
    assert!(
        matches!(refused, Err(Error::Conflict | Error::Unavailable(_))),
        "{refused:?}"
    );

    // This node goes on trying for as long as the other purchases may take.
    let patient = GroupCommitLimits {
        timeout: 6 * LIMITS.timeout,
        ..LIMITS
    };
    let proxy = &stack.proxies.database;
    let url = stack.database.url_through(proxy.address).into();
    let node = Node::with_database(&url, &stack, patient).await;
    let sale = node.sale().await;
    proxy.count(SEVERAL);
    // Queued together: this runtime has one thread.
    let other_purchases = async {
        let other_buyers = (1..=30).filter(|user| *user != 13);
        for outcome in join_all(other_buyers.map(|user| node.order(&sale, SALE, user))).await {
            outcome.expect("an order while the row of another is locked");
        }
        assert_eq!(stack.tables(SALE).await, (29, 71));
        assert_eq!(proxy.counted(SEVERAL), 1, "tried once more with all");
        holder.rollback().await.unwrap();
    };
    let (locked_out, ()) = tokio::join!(node.order(&sale, SALE, 13), other_purchases);
    // On a slow machine it may have given up before the others were done.
    if let Err(error) = locked_out {
        assert!(matches!(error, Error::Conflict), "{error:?}");
        let again = node.order(&sale, SALE, 13).await;
        again.expect("an order once the row is unlocked");
    }
    assert_eq!(node.group_commit.stats().splits.load(Relaxed), 1);
    assert_eq!(stack.tables(SALE).await, (30, 70));

    // A buyer whose order cannot be inserted fails alone.
    stack.database.run("DELETE FROM tb_voucher_order").await;
    stack
        .database
        .run("UPDATE tb_seckill_voucher SET stock = 100")
        .await;
    let bad = "CREATE TRIGGER bad BEFORE INSERT ON tb_voucher_order FOR EACH ROW \
               IF NEW.user_id = 13 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'bad luck'; END IF";
    stack.database.run(bad).await;
    let node = Node::new(&stack, LIMITS).await;
    let outcomes = node.buy(1..=30).await;
    for (user, outcome) in (1..).zip(&outcomes) {
        assert_eq!(outcome.is_ok(), user != 13, "user {user}: {outcome:?}");
    }
    assert_eq!(stack.tables(SALE).await, (29, 71));
    assert_eq!(node.group_commit.stats().splits.load(Relaxed), 1);
}

#[tokio::test]
async fn a_purchase_past_its_time_is_refused_before_anything_is_sent() {
    let stack = stack_with(100).await;
    let proxy = &stack.proxies.database;
    let url = stack.database.url_through(proxy.address).into();
    let limits = GroupCommitLimits {
        in_flight: 1,
        timeout: Duration::from_secs(2),
        ..LIMITS
    };
    let node = Node::with_database(&url, &stack, limits).await;
    let sale = node.sale().await;
    proxy.count(ALONE);
    // A batch ends at the first deadline of its purchases.
    let now = Instant::now();
    let later = now + 6 * LIMITS.timeout;
    let both = tokio::join!(
        node.order_until(now, &sale, SALE, 1),
        node.order_until(later, &sale, SALE, 2),
    );
    assert_eq!(codes_for_buyers(&[both.0, both.1]), ["UNAVAILABLE"; 2]);
    assert_eq!(proxy.counted(ALONE), 0);

    // A purchase that waits for longer than a step of the database may take is not begun.
    proxy.set(Mode::HoldCommits);
    let first = node.order(&sale, SALE, 3);
    let second = async {
        eventually("the first batch has begun", async || {
            proxy.counted(ALONE) == 1
        })
        .await;
        node.order(&sale, SALE, 4).await
    };
    let (_, second) = tokio::join!(first, second);
    assert_eq!(codes_for_buyers(&[second]), ["UNAVAILABLE"]);
    assert_eq!(proxy.counted(ALONE), 1);
    proxy.set(Mode::Forward);
}

#[tokio::test]
async fn purchases_beyond_the_queue_limit_or_past_the_end_of_the_sale_are_refused() {
    let stack = stack_with(100).await;
    let node = Node::new(
        &stack,
        GroupCommitLimits {
            batch: 1,
            queue: 5,
            ..LIMITS
        },
    )
    .await;
    // All are queued before the worker begins: this runtime has one thread.
    let outcomes = codes_for_buyers(&node.buy(1..=20).await);
    assert_eq!(outcomes[..5], ["ORDERED"; 5]);
    assert_eq!(outcomes[5..], ["OVERLOADED"; 15]);
    assert_eq!(stack.tables(SALE).await, (5, 95));
    // And the queue accepts purchases again.
    assert!(node.buy([20]).await[0].is_ok());

    if !shows_uncommitted_rows() {
        return;
    }
    // A purchase that is still queued when the sale ends is refused.
    let soon = "UPDATE tb_seckill_voucher SET end_time = UTC_TIMESTAMP() + INTERVAL 2 SECOND";
    stack.database.run(soon).await;
    // One batch at a time: the second buyer has to wait.
    let node = Node::new(
        &stack,
        GroupCommitLimits {
            in_flight: 1,
            ..LIMITS
        },
    )
    .await;
    let sale = node.sale().await;
    let first = node.order(&sale, SALE, 201);
    let second = async {
        eventually("the first is in flight", || async {
            stack.database.uncommitted(ORDERS).await == 7
        })
        .await;
        sale.window
            .require_open()
            .expect("the sale is on when the second is queued");
        node.order(&sale, SALE, 202).await
    };
    let both = async { tokio::join!(first, second) };
    tokio::pin!(both);
    let closed = eventually("the sale has closed", || {
        let open = sale.window.require_open().is_ok();
        async move { !open }
    });
    let lock = "SELECT stock FROM tb_seckill_voucher FOR UPDATE";
    let holder = stack.database.hold(lock).await;
    tokio::select! {
        both = &mut both => panic!("answered before the commit: {both:?}"),
        () = closed => {}
    }
    holder.rollback().await.unwrap();
    let (first, second) = both.await;
    assert!(first.is_ok(), "{first:?}");
    assert!(matches!(second, Err(Error::SaleEnded)), "{second:?}");
}
