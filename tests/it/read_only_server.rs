//! A server that was made read-only is the primary no more: it takes no sale, not even from a user who has the right to
//! write there all the same. The primary, and so the service's next connection, would know nothing of it.

use std::time::Duration;

use secrecy::ExposeSecret;
use testkit::wait::eventually;

use crate::database_failover::doctor;
use crate::support::api::get;
use crate::support::database::TestDatabase;
use crate::support::stack::Stack;

const TIMEOUT: Duration = Duration::from_secs(40);

/// One for each way of writing an order.
const STRATEGIES: [&str; 4] = ["reentrant-lock", "row-lock", "group-commit", "unit-rows"];

/// MariaDB's READ_ONLY ADMIN and MySQL's CONNECTION_ADMIN are among them.
const GRANT: &str = "GRANT ALL ON *.* TO 'seckill'@'127.0.0.1'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_known_to_be_read_only_takes_no_sale_from_a_user_who_may_write_there() {
    let database = TestDatabase::on_own_server().await;
    // `doctor` warns of that right.
    let doctor = || doctor(database.url().expose_secret());
    let advice = "may write to a read-only server";
    let before = doctor();
    assert!(!before.contains(advice), "{before}");
    database.run(GRANT).await;
    let granted = doctor();
    assert!(granted.contains(advice), "{granted}");

    let stack = Stack::start_on(database, 1, &[]).await;
    let user = &stack.users(1).await[0];
    let sales = stack.publish_each(20, STRATEGIES).await;
    stack.database.run("SET GLOBAL read_only = 1").await;
    // Its probe asks the server.
    eventually("the service knows that it is read-only", TIMEOUT, async || {
        get(stack.url(), "/health/ready").send().await.status == 503
    })
    .await;
    for (strategy, sale) in STRATEGIES.iter().zip(&sales) {
        let answer = stack.buy(user, *sale).await;
        assert_eq!(answer.body["code"], "UNAVAILABLE", "{strategy}: {answer:?}");
        assert_eq!(answer.status, 503, "{strategy}");
    }
    assert_eq!(stack.all_orders().await, 0);
    stack.database.run("SET GLOBAL read_only = 0").await;
    for sale in sales {
        stack.buy_within(user, sale, TIMEOUT).await;
    }
}
