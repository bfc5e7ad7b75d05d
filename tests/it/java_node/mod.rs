//! Our instances beside a Java node of the course's final stage, which [`node`] simulates on the same Redis and database: claims,
//! counters, dropped entries, sales that it published, and our first start. A whole sale on a mixed pair is in [`crate::slow`].

mod counters;
mod drops;
mod joining;
mod node;
mod published;

pub use self::node::{JavaNode, Reply};

use crate::support::stack::{SignedIn, Stack};

/// Waits until our consumer has looked for entries that others dropped: until it has refused one of another sale.
pub async fn drops_were_looked_for(stack: &Stack, java: &JavaNode, order: i64) {
    let sale = stack.publish(5, "stream").await;
    let user = stack.users(1).await.remove(0);
    let dropped = java.hold(user.id, sale, order, false).await;
    java.acknowledge(&dropped).await;
    stack.wait_for_code(&user, order, "ORDER_FAILED").await;
}

pub async fn has_claim(stack: &Stack, sale: i64, user: &SignedIn) -> bool {
    stack.claims(sale).await.contains(&user.id)
}
