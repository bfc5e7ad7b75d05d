//! The strategy `memory-queue`: who is admitted is told yes before the order is written. An instance that is killed loses what
//! waits in its memory; one that is asked to end writes it first, or says how many orders it loses. Meanwhile the sale's row
//! is locked, so that for certain nothing is written.
//!
//! With `RECORD=FOLDER` the run is written there for `scripts/record_learn.py`: the recording of the page `/learn`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use strategies::Strategy;
use testkit::proxy::Mode;
use workload::burst::{self, BurstOptions, Report};
use workload::buyers::Buyer;
use workload::comparison::document::{Event, InjectedFault, Story};
use workload::comparison::story::Attempts;
use workload::conformance::Conformance;
use workload::order_rows::OrderRows;
use workload::reply::Reply;

use crate::law::options;
use crate::support::eventually;
use crate::support::stack::{SignedIn, Stack, buy};

/// Half of them buy on each instance.
const BUYERS: i64 = 8;

/// A sale on two instances, of which the second was killed when all buyers were answered and nothing was written.
struct KilledSale {
    stack: Stack,
    sale: i64,
    buyers: Arc<[Buyer]>,
    report: Report,
    story: Option<Story>,
}

impl KilledSale {
    async fn new() -> Self {
        let mut stack = Stack::lab(2).await;
        let options = BurstOptions {
            tries: 1,
            traced: true,
            ..options(&stack, Strategy::MemoryQueue, BUYERS as u32, BUYERS as u32)
        };
        let voucher_id = burst::publish(&options).await.expect("a sale");
        let sale = voucher_id.cast_signed();
        let rows = OrderRows::open(&stack.access().database_url).await;
        let rows = rows.expect("the orders' table");
        let buyers = burst::prepare(&options).await.expect("buyers");
        let locked = rows.lock([voucher_id; 2]).await.expect("the row");
        let began = Instant::now();
        let records = burst::sell(voucher_id, &options, &buyers).await;
        let records = records.expect("replies");
        for record in &records {
            let reply = &record.observed.reply;
            assert!(matches!(reply, Reply::Ordered(_)), "{reply:?}");
        }
        assert_eq!(stack.orders(sale).await, 0, "nothing is written");
        stack.instances.pop().expect("an instance").kill();
        let killed = Event {
            at: began.elapsed().as_secs_f64(),
            what: InjectedFault::KillInstance,
            seconds: None,
            node: None,
            cut: None,
        };
        locked.end().await.expect("the row is free");
        eventually("the other instance writes what it has", async || {
            stack.orders(sale).await >= BUYERS / 2
        })
        .await;
        let written = began.elapsed().as_secs_f64();
        let report = burst::judge(voucher_id, &options, &rows, &buyers, records).await;
        let report = report.expect("a report");
        let orders = &report.snapshot.rows;
        let commits = orders.iter().map(|row| (row.id, written)).collect();
        let attempts = Attempts::from_records(&report.records, &[], &commits);
        let story = attempts.lost(orders, &[killed]);
        KilledSale {
            stack,
            sale,
            buyers,
            report,
            story,
        }
    }

    /// A buyer whose order was lost.
    fn loser(&self) -> SignedIn {
        let is_lost = |reply: &Reply| {
            let id = reply.success_id();
            let mut rows = self.report.snapshot.rows.iter();
            rows.all(|row| Some(row.id) != id)
        };
        let mut records = self.report.records.iter();
        let record = records.find(|record| is_lost(&record.observed.reply));
        let user_id = record.expect("a lost order").observed.user_id;
        let buyer = self.buyers.iter().find(|buyer| buyer.user_id == user_id);
        let token = &buyer.expect("a buyer").token;
        SignedIn {
            id: user_id.cast_signed(),
            token: token.to_str().expect("a token").to_owned(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_instance_loses_the_confirmed_orders_in_its_memory() {
    let killed = KilledSale::new().await;
    let verdict = &killed.report.verdict;
    // Of one order the database may have had the whole text.
    assert!(
        (BUYERS / 2 - 1..=BUYERS / 2).contains(&verdict.lost),
        "{verdict:?}"
    );
    assert_eq!(verdict.orders + verdict.lost, BUYERS);
    assert_eq!(verdict.stock_left, verdict.lost);
    let conformance = Conformance::from_report(Strategy::MemoryQueue, 2, &killed.report, false);
    assert_eq!(conformance, Conformance::Broken("lost".to_owned()));
    let story = killed.story.as_ref().expect("a story");
    let endings = story.requests.iter().map(|request| {
        let steps: Vec<&str> = request.steps.iter().map(|step| &*step.step).collect();
        assert_eq!(steps[..3], ["arrived", "admitted", "queued"], "{story:?}");
        steps[steps.len() - 1]
    });
    let mut endings: Vec<&str> = endings.collect();
    endings.sort_unstable();
    assert_eq!(endings, ["consumed", "killed"]);
    record(story);

    // Nobody knows of it: in Redis the buyer has ordered, and the unit is sold.
    let KilledSale { stack, sale, .. } = &killed;
    let again = stack.buy(&killed.loser(), *sale).await;
    again.refused(200, "ALREADY_ORDERED");
    assert!(again.body["orderId"].is_null(), "{again:?}");
    let another = stack.users(1).await.remove(0);
    stack.buy(&another, *sale).await.refused(200, "SOLD_OUT");
}

/// Writes the story as the raw data of a run has it, if `RECORD` names a folder.
fn record(story: &Story) {
    let Some(folder) = std::env::var_os("RECORD") else {
        return;
    };
    let run = json!({ "lanes": [{ "strategy": "memory-queue", "stories": [story] }] });
    let file = Path::new(&folder).join("lost.json");
    std::fs::write(file, run.to_string()).expect("a recording");
}

/// On the instance that admitted the buyer, and on the other.
#[tokio::test]
async fn second_orders_and_what_is_sold_out_are_refused_before_anything_is_written() {
    let stack = Stack::lab(2).await;
    let users = stack.users(3).await;
    let sale = stack.publish(2, "memory-queue").await;
    let locked = stack.lock_sale(sale).await;
    let order = stack.buy(&users[0], sale).await.bought();
    for url in stack.urls() {
        let again = buy(&url, &users[0], sale).await;
        again.refused(200, "ALREADY_ORDERED");
        assert!(again.body["orderId"].is_null(), "{again:?}");
    }
    let [_, other_url] = &stack.urls()[..] else {
        unreachable!("two instances")
    };
    buy(other_url, &users[1], sale).await.bought();
    for url in stack.urls() {
        buy(&url, &users[2], sale).await.refused(200, "SOLD_OUT");
    }
    assert_eq!(stack.tables(sale).await, (0, 2));
    locked.rollback().await.unwrap();
    eventually("both instances write", async || {
        stack.tables(sale).await == (2, 0)
    })
    .await;
    let again = buy(other_url, &users[0], sale).await;
    again.refused(200, "ALREADY_ORDERED");
    assert_eq!(again.body["orderId"], order.to_string());
}

#[tokio::test]
async fn a_clean_stop_writes_what_waits_or_says_how_many_orders_are_lost() {
    let mut stack = Stack::start(0, &[]).await;
    let users = stack.users(3).await;
    stack.add_instance(&["--lab"]).await;
    let sale = stack.publish(3, "memory-queue").await;
    let locked = stack.lock_sale(sale).await;
    for user in &users {
        stack.buy(user, sale).await.bought();
    }
    let mut instance = stack.instances.remove(0);
    instance.terminate();
    instance.wait_for_line("draining").await;
    assert_eq!(stack.tables(sale).await, (0, 3));
    locked.rollback().await.unwrap();
    instance.ended().await;
    assert_eq!(stack.tables(sale).await, (3, 0));

    let limits = [
        ["--database-timeout-ms", "500"],
        ["--redis-timeout-ms", "500"],
        ["--drain-grace-ms", "1"],
        ["--drain-idle-ms", "1"],
        ["--drain-deadline-ms", "6100"],
    ];
    stack
        .add_instance(&[&["--lab"], &*limits.concat()].concat())
        .await;
    let sale = stack.publish(3, "memory-queue").await;
    let locked = stack.lock_sale(sale).await;
    let mut confirmed = 0;
    for user in &users {
        // With these limits a busy machine may refuse some.
        let answer = stack.buy(user, sale).await;
        confirmed += usize::from(answer.body["success"] == true);
    }
    let mut instance = stack.instances.remove(0);
    instance.terminate();
    instance.ended_with(1).await;
    let lost = instance.lines_with("confirmed orders of memory-queue are lost");
    assert!(
        lost.len() == 1 && lost[0].contains(&format!("lost={confirmed}")),
        "{}",
        instance.log().join("\n")
    );
    locked.rollback().await.unwrap();
}

/// The script may have run: then nobody may say that nothing was done.
#[tokio::test]
async fn a_purchase_that_redis_does_not_answer_is_of_unknown_outcome() {
    let stack = Stack::behind_proxies(&["--lab"]).await;
    let [first, user] = &stack.users(2).await[..] else {
        unreachable!("two users")
    };
    let sale = stack.publish(3, "memory-queue").await;
    // Redis knows the script from here on.
    stack.buy_committed(first, sale).await;
    let redis = &stack.proxies.redis;
    redis.set(Mode::HoldRequestWith("seckill:stock:"));
    let unknown = stack.buy(user, sale).await;
    redis.pass_held().await;
    assert_eq!(stack.counter(sale).await, Some(1), "it has run");
    unknown.refused(503, "OUTCOME_UNKNOWN");
    assert!(unknown.body["orderId"].is_string(), "{unknown:?}");
    stack.buy(user, sale).await.refused(200, "ALREADY_ORDERED");
}

/// The counter and the claims of a sale are in one slot of a cluster.
#[tokio::test]
async fn it_sells_in_the_key_style_of_a_cluster() {
    let stack = Stack::in_cluster_style(1, &["--lab"]).await;
    let user = stack.users(1).await.remove(0);
    let sale = stack.publish(2, "memory-queue").await;
    stack.buy_committed(&user, sale).await;
    assert_eq!(stack.counter(sale).await, Some(1));
    assert_eq!(stack.claims(sale).await, [user.id]);
}
