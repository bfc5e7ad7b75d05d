//! Readiness has a connection of its own: an instance that is overloaded stays ready, or all of them would turn unready
//! together.

use tokio::task::JoinSet;

use crate::resilience::while_sale_is_locked;
use crate::support::api::{get, metric};
use crate::support::eventually;
use crate::support::stack::{Stack, buy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_whose_connections_all_wait_for_a_row_is_ready() {
    let stack = Stack::start(1, &["--database-connections", "2"]).await;
    let sale = stack.publish(50, "row-lock").await;
    let users = stack.users(40).await;
    let in_use =
        async || metric(stack.url(), "seckill_database_connections{state=\"in_use\"}").await;
    let mut purchases = JoinSet::new();
    while_sale_is_locked(&stack, sale, async {
        // Each is refused after a while, and tried again, so that there are always some that wait.
        for user in users {
            let url = stack.url().to_owned();
            purchases.spawn(async move { while buy(&url, &user, sale).await.status != 200 {} });
        }
        eventually("all connections wait", async || in_use().await == 2).await;
        let ready = get(stack.url(), "/health/ready").send().await;
        assert_eq!(ready.status, 200, "{ready:?}");
        assert_eq!(in_use().await, 2);
    })
    .await;
    purchases.join_all().await;
}
