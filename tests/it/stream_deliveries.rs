//! What the admission script leaves to the consumer of the process that calls it.

use std::collections::HashMap;
use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::resilience::while_sale_is_locked;
use crate::stream::epoch;
use crate::support::stack::{SignedIn, Stack, buy};
use testkit::redis_server::RedisServer;
use testkit::wait::eventually;

const TIMEOUT: Duration = Duration::from_secs(40);

/// How many entries are pending, by consumer.
pub async fn pending(redis: &mut MultiplexedConnection) -> HashMap<String, u64> {
    let mut pending = redis::cmd("XPENDING");
    pending.arg("stream.orders").arg("g1").arg("-").arg("+").arg(1000);
    let entries: Vec<(String, String, u64, u64)> = pending.query_async(redis).await.unwrap();
    entries.into_iter().fold(HashMap::new(), |mut counts, (_, consumer, _, _)| {
        *counts.entry(consumer).or_default() += 1;
        counts
    })
}

/// How many entries each consumer holds.
pub async fn held(redis: &mut MultiplexedConnection) -> HashMap<String, u64> {
    let (mut counts, mut records) = (HashMap::new(), redis::cmd("XRANGE"));
    records.arg("stream.orders.held").arg("-").arg("+");
    let records: Vec<(String, [String; 4])> = records.query_async(redis).await.unwrap();
    for (last, [_, consumer, _, first]) in records {
        let mut range = redis::cmd("XRANGE");
        range.arg("stream.orders").arg(first).arg(last);
        let entries: Vec<redis::Value> = range.query_async(redis).await.unwrap();
        *counts.entry(consumer).or_default() += entries.len() as u64;
    }
    counts
}

#[tokio::test]
async fn what_is_added_is_held_by_the_caller_once_nothing_older_waits() {
    let server = RedisServer::start().await;
    let mut redis = server.conn().await;
    let epoch = epoch(&mut redis).await;
    let prepare = redis::Script::new(
        "redis.call('XGROUP', 'CREATE', 'stream.orders', 'g1', '0', 'MKSTREAM') \
         redis.call('SET', 'stream.orders.epoch', ARGV[1]) \
         redis.call('SET', 'seckill:stock:1', 900) \
         redis.call('SADD', 'stream.orders.counters', 1) \
         return redis.call('XADD', 'stream.orders', '*', 'userId', 5, 'voucherId', 1, 'id', 10)",
    );
    let older: String = prepare.arg(&epoch).invoke_async(&mut redis).await.unwrap();
    let script = redis::Script::new(include_str!("../../lua/stream_admit.lua"));
    let admit = async |consumer: &str, buyers: &[(i64, i64)]| {
        let mut admit = script.key("stream.orders");
        admit.key("stream.orders.epoch").key("stream.orders.counters").key("stream.orders.held");
        admit.arg(1000).arg("").arg(&epoch).arg("g1").arg(consumer);
        let (users, orders): (Vec<i64>, Vec<i64>) = buyers.iter().copied().unzip();
        admit.arg(1).arg(buyers.len()).arg(users).arg(orders);
        admit.invoke_async::<Vec<String>>(&mut server.conn().await).await.unwrap()
    };
    let counts = |of: &[(&str, u64)]| -> HashMap<String, u64> {
        of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    };
    // The older one is delivered.
    let reply = admit("c1", &[(6, 11), (7, 12)]).await;
    assert_eq!(reply[2..], [&epoch, "held", &older, "10", "5", "1"]);
    assert_eq!(pending(&mut redis).await, counts(&[("c1", 1)]));
    assert_eq!(held(&mut redis).await, counts(&[("c1", 2)]));
    // Whoever takes nothing leaves them to others.
    assert_eq!(admit("", &[(8, 13)]).await[1..], [&*epoch, ""]);
    let reply = admit("c2", &[(9, 14), (9, 15)]).await;
    assert_eq!((&*reply[1], &*reply[2], &*reply[3]), ("claimed", &*epoch, "held"));
    assert_eq!(reply[5..], ["13", "8", "1"]);
    // Nothing is added, so nothing is delivered.
    assert_eq!(admit("c2", &[(9, 16)]).await, ["claimed", &epoch, ""]);
    // More of them wait than one call delivers.
    let many: Vec<(i64, i64)> = (100..170).map(|user| (user, user)).collect();
    admit("", &many).await;
    let reply = admit("c3", &[(200, 200)]).await;
    assert_eq!((&*reply[2], reply.len()), ("", 3 + 4 * 64));
    assert_eq!(pending(&mut redis).await, counts(&[("c1", 1), ("c2", 1), ("c3", 64)]));
    assert_eq!(held(&mut redis).await, counts(&[("c1", 2), ("c2", 1)]));
}

/// Each instance commits what it admitted, so its batches are as large as those of group commit, whatever the number of
/// instances. Until it has found that nothing older waits it takes nothing.
#[tokio::test]
async fn an_instance_holds_what_it_admitted() {
    let stack = Stack::start(2, &[]).await;
    let sale = stack.publish(100, "stream").await;
    let users = stack.users(96).await;
    let redis = stack.redis.conn().await;
    // The consumer that has all of what these buyers bought at one instance, if one has.
    let consumer_of = async |url: &str, users: &[SignedIn]| {
        let before = held(&mut redis.clone()).await;
        for user in users {
            buy(url, user, sale).await.bought();
        }
        let after = held(&mut redis.clone()).await;
        let more = |(name, count): (&String, &u64)| {
            (count - before.get(name).unwrap_or(&0) == users.len() as u64).then(|| name.clone())
        };
        after.iter().find_map(more)
    };
    while_sale_is_locked(&stack, sale, async {
        let urls = stack.urls();
        for try_number in 1.. {
            let users =
                users.chunks(8).nth(try_number - 1).expect("each has a consumer of its own");
            let one = consumer_of(&urls[0], &users[..4]).await;
            let other = consumer_of(&urls[1], &users[4..]).await;
            if one.is_some() && other.is_some() && one != other {
                break;
            }
            eventually("nothing waits any more", TIMEOUT, async || {
                let mut redis = redis.clone();
                let (pending, held) = (pending(&mut redis).await, held(&mut redis).await);
                pending.values().chain(held.values()).sum::<u64>() == 8 * try_number as u64
            })
            .await;
        }
    })
    .await;
    stack.stream_drained().await;
    let orders = stack.database.number("SELECT COUNT(*) FROM tb_voucher_order").await;
    assert_eq!(orders + stack.database.number("SELECT stock FROM tb_seckill_voucher").await, 100);
}

/// What an instance adds again after a restart of Redis that lost nothing, or whose reply it did not get, is there once.
#[tokio::test]
async fn what_is_added_again_has_one_entry() {
    let server = RedisServer::start().await;
    let mut redis = server.conn().await;
    let replay = async |order: i64, user: i64, entry: &str| {
        let script = redis::Script::new(include_str!("../../lua/stream_replay.lua"));
        let mut replay = script.key("stream.orders");
        replay.key("stream.orders.counters").arg(60).arg(order).arg(user).arg(1).arg(entry);
        replay.invoke_async::<[String; 1]>(&mut server.conn().await).await.unwrap()[0].clone()
    };
    let [lost, another] = [replay(11, 5, "1-1").await, replay(12, 6, "1-2").await];
    assert_eq!(replay(11, 5, "1-1").await, lost, "no reply had come");
    assert_eq!(replay(11, 5, &lost).await, lost);
    // Its number is another order's by now.
    let third = replay(13, 7, &another).await;
    assert!(third != another && third != lost);
    let _: () = redis.hset("seckill:place:8", 14, "r 1 SOLD_OUT").await.unwrap();
    assert_eq!(replay(14, 8, "1-4").await, "", "it was refused");
    let mut add = redis::cmd("XADD");
    add.arg("stream.orders").arg("*").arg(&["userId", "9", "voucherId", "1", "id", "15"]);
    let present: String = add.query_async(&mut redis).await.unwrap();
    assert_eq!(replay(15, 9, &present).await, present, "no status says so");
    let length: u64 =
        redis::cmd("XLEN").arg("stream.orders").query_async(&mut redis).await.unwrap();
    assert_eq!(length, 4);
}
