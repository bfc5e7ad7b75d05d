//! A Redis that loses data during a sale on the stream. A sale through all faults is a round of chaos, in [`crate::slow`].

use seckill_loadtest::chaos::redis_data::{self, RedisData};

use crate::support::stack::Stack;

/// Deletes all keys but the sessions, without which no buyer could go on.
const FORGET: &str = "
for _, key in ipairs(redis.call('KEYS', '*')) do
  if string.sub(key, 1, 6) ~= 'login:' then redis.call('DEL', key) end
end";

/// Makes Redis lose this while orders are pending. None of them is committed yet, since the sale's row is locked.
async fn lose(stack: &mut Stack, what: &str) {
    let mut redis = stack.redis.conn().await;
    let mut commands = redis::pipe();
    commands.atomic();
    match what {
        "stream" | "stream, mended" => {
            commands.del("stream.orders");
        }
        "all keys" => {
            commands.cmd("EVAL").arg(FORGET).arg(0);
        }
        // "nothing" and "all since a snapshot": a restart.
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
        // Somebody creates stream and group again in the same moment, so that nobody sees that the group was missing.
        commands
            .cmd("XGROUP")
            .arg(&["CREATE", "stream.orders", "g1", "$", "MKSTREAM"]);
    }
    commands.exec_async(&mut redis).await.unwrap();
}

/// Each of these orders ends as a row, or with a definite no, after which it never becomes a row. And the whole sale is sold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_redis_loses_each_pending_order_is_decided_and_a_no_is_final() {
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
