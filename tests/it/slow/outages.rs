//! Whole sales through outages of seconds: of Redis, and of one instance's connection to the database in each way that
//! matters. What one purchase is told when its connection fails is shown in [`crate::resilience`] and beside it.

use std::time::Duration;

use testkit::proxy::Mode;
use workload::ladder::Strategy;
use workload::reply::TIME_OUT;

use crate::resilience::{big_burst, with_fault};
use crate::support::stack::Stack;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_paused_for_five_seconds_delays_a_sale_and_breaks_nothing() {
    let stack = Stack::lab(2).await;
    for strategy in [Strategy::ReentrantLock, Strategy::Stream] {
        let (options, total) = big_burst(&stack, strategy).await;
        let report = with_fault(&options, total, async {
            stack.redis.pause();
            options.live.send_rest();
            tokio::time::sleep(Duration::from_secs(5)).await;
            stack.redis.resume();
        })
        .await;
        assert!(report.verdict.is_clean(), "{strategy}: {report:?}");
        assert_eq!(report.count(TIME_OUT), 0, "every request is answered: {report:?}");
    }
    // It recovers by itself: the rest of the stock can be sold.
    let sale = stack.publish(1, "reentrant-lock").await;
    let user = &stack.users(1).await[0];
    stack.buy_eventually(user, sale).await;
}

/// The connection of one instance to its database fails in the middle of a sale, in each way that matters, while another
/// instance continues to sell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_fails_in_the_middle_of_a_sale_causes_no_false_reply() {
    // Above what a busy disk holds a statement up for: that is no fault of these.
    let mut stack = Stack::behind_proxies(&["--lab", "--database-timeout-ms", "3000"]).await;
    stack.add_instance(&["--lab"]).await;
    for (strategy, mode) in [
        (Strategy::ReentrantLock, Mode::LoseCommitReply),
        (Strategy::ReentrantLock, Mode::Cut),
        (Strategy::Stream, Mode::LoseCommitReply),
        (Strategy::Stream, Mode::LoseCommitReplyThenCut),
        (Strategy::Stream, Mode::LoseRequest("INTO tb_voucher_order")),
        (Strategy::Stream, Mode::Cut),
        (Strategy::GroupCommit, Mode::LoseCommitReply),
        (Strategy::GroupCommit, Mode::LoseCommitReplyThenCut),
        (Strategy::GroupCommit, Mode::LoseCommit),
        (Strategy::GroupCommit, Mode::LoseRequest("INTO tb_voucher_order")),
        (Strategy::GroupCommit, Mode::Cut),
    ] {
        let (options, total) = big_burst(&stack, strategy).await;
        let report = with_fault(&options, total, async {
            stack.proxies.database.set(mode);
            options.live.send_rest();
            // Half of the requests are answered meanwhile.
            options.live.reached(total / 2).await;
            stack.proxies.database.set(Mode::Forward);
        })
        .await;
        assert!(report.verdict.is_clean(), "{strategy}, {mode:?}: {report:?}");
        assert_eq!(report.count(TIME_OUT), 0, "{strategy}, {mode:?}: {report:?}");
        stack.ready().await;
    }
}
