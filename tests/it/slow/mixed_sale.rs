//! A sale of 100 on a mixed pair: our instance and a Java node whose consumer commits, drops, crashes and acknowledges
//! late. Every buyer who was told yes gets a row, or a definite no in time, and returned stock is sold.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio_util::sync::CancellationToken;

use crate::java_node::{JavaNode, Reply};
use crate::support::stack::{SignedIn, Stack};
use testkit::wait::eventually;

/// The longest time from a yes until its buyer can know the outcome (10 s, or more on a busy machine), and from the first wave
/// until everything is sold.
const DEFINITE: Duration = Duration::from_secs(30);
const STOCK: i64 = 100;
/// Stock that is added in the middle.
const ADDED: i64 = 10;
const BUYERS: i64 = 160;

/// Codes of a definite no.
const REFUSALS: [&str; 3] = ["ORDER_FAILED", "ALREADY_ORDERED", "SOLD_OUT"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_yes_of_a_mixed_pair_has_a_row_or_a_definite_no() {
    // Small batches, so that the Java consumer gets its share.
    let stack = Stack::start(1, &["--stream-batch", "8"]).await;
    let users = stack.users(BUYERS).await;
    for seed in 1..=2 {
        println!("seed {seed}");
        one_sale(&stack, &users, seed).await;
    }
}

async fn one_sale(stack: &Stack, users: &[SignedIn], seed: u64) {
    let mut java = JavaNode::join(stack).await;
    // The Java node publishes the sales with an even seed.
    let sale = if seed.is_multiple_of(2) {
        java.publish(STOCK).await
    } else {
        stack.publish(STOCK, "stream").await
    };
    let stop = CancellationToken::new();
    let consuming = tokio::spawn(consume(JavaNode::join(stack).await, stop.clone(), seed));
    let adding = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        stack.add_stock(sale, ADDED).await;
    };
    tokio::join!(first_wave(stack, &java, users, sale, seed), adding);
    // Those who were told no try again, until everything is sold.
    eventually("everything is sold", DEFINITE, || async {
        for user in users {
            if stack.orders(sale).await == STOCK + ADDED {
                return true;
            }
            stack.buy(user, sale).await;
        }
        false
    })
    .await;
    stop.cancel();
    consuming.await.unwrap();
    stack.stream_drained().await;
    assert_eq!(stack.tables(sale).await, (STOCK + ADDED, 0));
    stack.counted(sale, 0).await;
}

/// Every buyer tries at one of the two nodes, or at both at once, and waits for the outcome of each yes.
async fn first_wave(stack: &Stack, java: &JavaNode, users: &[SignedIn], sale: i64, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let purchases = users.iter().map(|user| {
        let (at_ours, at_java) =
            [(true, false), (false, true), (true, true)][random.random_range(0..3)];
        let pause = Duration::from_millis(random.random_range(0..500));
        async move {
            tokio::time::sleep(pause).await;
            tokio::join!(
                async {
                    let order = if at_ours {
                        buy_at_ours(stack, user, sale).await
                    } else {
                        None
                    };
                    outcome(stack, user, order).await
                },
                async {
                    let order = if at_java {
                        buy_at_java(java, user, sale).await
                    } else {
                        None
                    };
                    outcome(stack, user, order).await
                }
            );
        }
    });
    join_all(purchases).await;
}

/// The order that the answer names: a new one, or one that had been made before.
async fn buy_at_ours(stack: &Stack, user: &SignedIn, sale: i64) -> Option<i64> {
    let answer = stack.buy(user, sale).await;
    if answer.status == 202 {
        return Some(answer.bought());
    }
    let code = answer.body["code"].as_str().unwrap_or_default();
    assert!(
        ["ALREADY_ORDERED", "SOLD_OUT"].contains(&code),
        "{answer:?}"
    );
    answer.refused(200, code);
    answer.body["orderId"]
        .as_str()
        .map(|id| id.parse().expect("an id"))
}

async fn buy_at_java(java: &JavaNode, user: &SignedIn, sale: i64) -> Option<i64> {
    match java.buy(user.id, sale).await {
        Reply::Admitted(order) => Some(order),
        Reply::SoldOut | Reply::AlreadyOrdered => None,
        Reply::Error(error) => panic!("the Java script failed: {error}"),
    }
}

/// Waits for an order's row, or for a definite no. Until then no answer may be definite.
async fn outcome(stack: &Stack, user: &SignedIn, order: Option<i64>) {
    let Some(order) = order else { return };
    let since = Instant::now();
    loop {
        let answer = stack.look_up(user, order).await;
        let code = answer.body["code"].as_str().unwrap_or_default();
        match (answer.status, code) {
            (200, code) => {
                assert!(code.is_empty() || REFUSALS.contains(&code), "{answer:?}");
                // The row of a refusal is no order.
                let has_row = stack.database.has_order(order, user.id).await;
                assert_eq!(has_row, code.is_empty(), "{answer:?}");
                return;
            }
            // Unavailable, as an entry that a Java node has just added is known only within a second.
            (202, "PENDING") | (503, "UNAVAILABLE") => {}
            _ => panic!("a yes became {answer:?}"),
        }
        assert!(
            since.elapsed() < DEFINITE,
            "order {order} of {} is pending still",
            user.id
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The consumer `c1`: its own pending entries first whenever it starts, then new ones.
async fn consume(java: JavaNode, stop: CancellationToken, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed ^ 0x5eed);
    let mut new = false;
    while !stop.is_cancelled() {
        let Some(delivered) = java.read(new).await else {
            new = true;
            continue;
        };
        let fate = random.random_range(0..20);
        if fate == 5 {
            // It stands still, and then goes on as if nothing had happened.
            let pause = Duration::from_millis(random.random_range(100..7000));
            tokio::time::sleep(pause).await;
        }
        // From 0 to 2 it drops the entry, and at 3 it crashes before it does anything.
        if fate > 3 {
            java.commit(&delivered).await;
        }
        if fate == 3 || fate == 4 {
            // It has crashed, and is started again, at once or after a long time.
            let down = Duration::from_millis([0, 500, 8000][random.random_range(0..3)]);
            stop.run_until_cancelled(tokio::time::sleep(down)).await;
            new = false;
        } else {
            java.acknowledge(&delivered).await;
        }
    }
}
