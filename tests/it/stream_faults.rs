//! A Redis that loses data during a sale on the stream. A sale through all faults is a round of chaos, in [`crate::slow`].

use seckill_loadtest::chaos::redis_data::{self, RedisData};

use crate::support::stack::Stack;

/// All but the sessions, without which no buyer could go on.
const FORGET: &str = "
for _, key in ipairs(redis.call('KEYS', '*')) do
  if string.sub(key, 1, 6) ~= 'login:' then redis.call('DEL', key) end
end";

/// What Redis loses while orders are pending, of which nothing is committed, as the sale's row is locked.
async fn lose(stack: &mut Stack, what: &str) {
    let mut redis = stack.redis.conn().await;
    let mut lose = redis::pipe();
    lose.atomic();
    match what {
        "stream" | "stream, mended" => {
            lose.del("stream.orders");
        }
        "all keys" => {
            lose.cmd("EVAL").arg(FORGET).arg(0);
        }
        _ => {
            let data = if what == "nothing" {
                RedisData::Intact
            } else {
                RedisData::Old
            };
            stack.redis.kill();
            return redis_data::restart(&mut stack.redis, data).await.unwrap();
        }
    }
    if what == "stream, mended" {
        // By somebody, at once, which hides that there was no group.
        lose.cmd("XGROUP")
            .arg(&["CREATE", "stream.orders", "g1", "$", "MKSTREAM"]);
    }
    lose.exec_async(&mut redis).await.unwrap();
}

/// Each of these orders ends as a row or a definite no, after which it never becomes one; and the whole sale is sold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_redis_loses_each_pending_order_ends_and_a_no_stays_one() {
    let mut stack = Stack::start(2, &[]).await;
    let users = stack.users(26).await;
    for what in [
        "stream",
        "stream, mended",
        "all keys",
        "nothing",
        "all since a snapshot",
    ] {
        let sale = stack.publish(20, "stream").await;
        redis_data::take_snapshot(&stack.redis).await.unwrap();
        let holder = stack.lock_sale(sale).await;
        let pending = stack.pending_orders(&users[..6], sale).await;
        lose(&mut stack, what).await;
        holder.rollback().await.unwrap();
        let mut refused = Vec::new();
        for (user, order) in pending {
            let answer = stack.decided(user, order).await;
            if answer.body["success"] == false {
                assert_ne!(what, "nothing", "{answer:?}");
                answer.refused(200, "ORDER_NOT_FOUND");
                refused.push((user.id, order));
            }
        }
        for user in users.iter().cycle() {
            if stack.stock(sale).await == 0 {
                break;
            }
            stack.buy(user, sale).await;
            stack.stream_drained().await;
        }
        assert_eq!(stack.orders(sale).await, 20, "{what}");
        for (user, order) in refused {
            assert!(
                !stack.database.has_order(order, user).await,
                "{what}: after a no"
            );
        }
    }
}
