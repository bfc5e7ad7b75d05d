//! The text that commits a purchase is long on its way: what holds until it arrives, and what the buyer is told.

use redis::AsyncCommands;
use testkit::proxy::Mode;

use crate::decided::REFUSALS;
use crate::resilience::{TAKES_STOCK, committing_sales};
use crate::support::eventually;
use crate::support::stack::{Stack, buy};

/// The text that commits is held on its way: meanwhile another purchase of the same user, on another
/// instance, is refused by the lock.
#[tokio::test]
async fn the_purchase_lock_is_held_until_the_commit() {
    let mut stack = Stack::patient_behind_proxies(&["--lab"]).await;
    stack.add_instance(&["--lab"]).await;
    let user = stack.users(1).await.remove(0);
    for (strategy, key) in [
        ("reentrant-lock", "lock:order:"),
        ("setnx-lock", "lock:setnx:order:"),
    ] {
        let sale = stack.publish(5, strategy).await;
        let key = format!("{key}{}", user.id);
        let mut redis = stack.redis.conn().await;
        stack.proxies.database.set(Mode::HoldCommits);
        let first = stack.start_buying(&user, sale);
        // Without its time to live, it does not end by itself.
        eventually("the lock is held", async || {
            redis.persist::<_, bool>(&key).await.unwrap()
        })
        .await;
        let second = buy(&stack.instances[1].url, &user, sale).await;
        second.refused(200, "LOCK_BUSY");
        assert_eq!(stack.orders(sale).await, 0, "the COMMIT is held");
        stack.proxies.database.set(Mode::Forward);
        first.await.unwrap().data();
        eventually("the lock is released", async || {
            !redis.exists::<_, bool>(&key).await.unwrap()
        })
        .await;
        stack.database.run("DELETE FROM tb_voucher_order").await;
    }
}

/// The purchase stops waiting for its text, decides that there is no order, and says so. Then the text arrives: it must not make
/// the order that was denied.
#[tokio::test]
async fn a_text_that_arrives_after_its_purchase_was_denied_makes_no_order() {
    let stack = Stack::behind_proxies(&["--database-timeout-ms", "1500"]).await;
    let user = stack.users(1).await.remove(0);
    for (sale, refusals) in committing_sales(&stack).await.into_iter().zip(1..) {
        stack.ready().await;
        stack.proxies.database.set(Mode::HoldRequests(TAKES_STOCK));
        let denied = stack.buy(&user, sale).await;
        // A busy machine may decide only after the answer.
        let is_unknown = denied.body["code"] == "OUTCOME_UNKNOWN";
        denied.refused(
            503,
            if is_unknown {
                "OUTCOME_UNKNOWN"
            } else {
                "UNAVAILABLE"
            },
        );
        eventually("it is refused", async || {
            stack.database.number(REFUSALS).await == refusals
        })
        .await;
        stack.proxies.database.pass_held().await;
        stack.proxies.database.set(Mode::Forward);
        assert_eq!(stack.tables(sale).await, (0, 2), "what was denied");
        stack.buy_eventually(&user, sale).await;
        assert_eq!(stack.tables(sale).await, (1, 1));
    }
}
