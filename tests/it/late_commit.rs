//! A COMMIT that is long on its way: what is promised until it, and what is told of it.

use redis::AsyncCommands;
use testkit::proxy::Mode;

use crate::resilience::committing_sales;
use crate::support::eventually;
use crate::support::stack::{Stack, buy};

/// The order is inserted, and its COMMIT is held on its way: meanwhile another purchase of the same user, on another
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
        stack.wait_for_insert(&user).await;
        // Then it does not end by itself.
        assert!(
            redis.persist::<_, bool>(&key).await.unwrap(),
            "{strategy}: the lock is free"
        );
        let second = buy(&stack.instances[1].url, &user, sale).await;
        second.refused(200, "LOCK_BUSY");
        assert_eq!(stack.orders(sale).await, 0, "the COMMIT is held");
        stack.proxies.database.set(Mode::Forward);
        first.await.unwrap().data();
        let is_free = async || !redis.exists::<_, bool>(&key).await.unwrap();
        eventually("the lock is released", is_free).await;
        stack.database.run("DELETE FROM tb_voucher_order").await;
    }
}

/// The purchase gives its COMMIT up, and it arrives afterwards, while the purchase looks up what became of it. An order that
/// may still come into being is not told as one that was never made.
#[tokio::test]
async fn a_commit_that_arrives_while_it_is_looked_up_is_not_told_as_a_failure() {
    // Before the server ends the idle transaction, after 5 s.
    let stack = Stack::behind_proxies(&["--database-timeout-ms", "1500"]).await;
    let user = stack.users(1).await.remove(0);
    for sale in committing_sales(&stack).await {
        stack.ready().await;
        stack.proxies.database.set(Mode::HoldCommits);
        let mut buying = std::pin::pin!(stack.buy(&user, sale));
        let early = tokio::select! {
            () = stack.database.wait_for_statement("FOR UPDATE") => None,
            // This machine is so busy that the look-up did not get a connection in time.
            answer = &mut buying => Some(answer),
        };
        stack.proxies.database.set(Mode::Forward);
        let answer = match early {
            Some(answer) => answer,
            None => buying.await,
        };
        // A definite success, unless a busy machine's look-up ran out of time, or the server ended the transaction first.
        let id = match answer.body["code"].as_str() {
            None => answer.bought(),
            Some("OUTCOME_UNKNOWN") => answer.body["orderId"]
                .as_str()
                .expect("the id to look up")
                .parse()
                .unwrap(),
            _ => {
                answer.refused(503, "UNAVAILABLE");
                let mut id = 0;
                eventually("it sells", async || {
                    let again = stack.buy(&user, sale).await;
                    id = again.body["data"].as_i64().unwrap_or_default();
                    again.status == 200 && again.body["success"] == true
                })
                .await;
                id
            }
        };
        let exists = async || stack.database.has_order(id, user.id).await;
        eventually("the order exists", exists).await;
    }
}
