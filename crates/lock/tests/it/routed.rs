//! An application's own commands on a cluster: to the node of each key, sent again only if they were not
//! executed.

use std::time::Duration;

use redis::AsyncCommands;
use redisson_lock::{LockConfig, Locks, Redis, Server};

use super::query;
use testkit::redis_cluster::RedisCluster;

const LIMIT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn an_applications_commands_reach_their_nodes_once() {
    let cluster = RedisCluster::start().await;
    let nodes: Vec<String> = cluster.nodes.iter().map(|node| node.address()).collect();
    let server = Server::from_url(&format!("redis-cluster://{}", nodes.join(","))).unwrap();
    let redis = Redis::new(server, LIMIT, LIMIT).unwrap();
    let mut commands = redis.commands();

    // On all three masters, in one pipeline, with replies in the order of the commands.
    let keys: Vec<String> = (0..60).map(|number| format!("key:{number}")).collect();
    let mut pipeline = redis::pipe();
    for (number, key) in keys.iter().enumerate() {
        pipeline.set(key, number).ignore().cmd("PING").ignore().get(key);
    }
    let found: Vec<usize> = pipeline.query_async(&mut commands).await.unwrap();
    assert_eq!(found, (0..60).collect::<Vec<_>>());
    assert_eq!(redis.masters().await.unwrap().len(), 3);

    // A transaction has one slot.
    let mut transaction = redis::pipe();
    transaction.atomic().incr("{t}a", 1).incr("{t}b", 1);
    let counts: (i64, i64) = transaction.query_async(&mut commands).await.unwrap();
    assert_eq!(counts, (1, 1));
    let mut apart = redis::pipe();
    apart.atomic().incr("{t}a", 1).incr("{u}a", 1);
    let refused = apart.query_async::<(i64, i64)>(&mut commands).await.unwrap_err();
    assert!(refused.to_string().contains("several slots"), "{refused}");

    // While a slot is moved, keys that are there are answered there, and others at the new node: of a
    // pipeline only those are sent again.
    let slot = cluster.slot("{t}a").await;
    let from = cluster.owner(0, slot).await.unwrap();
    let to = (from + 1) % 3;
    cluster.begin_move(slot, from, to).await;
    let mut counters = redis::pipe();
    counters.incr("{t}a", 1).incr("{t}new", 1).incr("{t}b", 1);
    let counts: (i64, i64, i64) = counters.query_async(&mut commands).await.unwrap();
    assert_eq!(counts, (2, 1, 2));
    let mut moved = redis::pipe();
    moved.atomic().incr("{t}new", 1).incr("{t}new", 1);
    let counts: (i64, i64) = moved.query_async(&mut commands).await.unwrap();
    assert_eq!(counts, (2, 3), "a transaction at the node that the slot is moved to");

    let waiting = redis.moved("{t}a");
    let client = redis.client_of("{t}a").await.unwrap();
    assert_eq!(client.get_connection_info().addr().to_string(), nodes[from]);
    cluster.end_move(slot, from, to).await;
    let count: i64 = commands.incr("{t}a", 1).await.unwrap();
    assert_eq!(count, 3);
    tokio::time::timeout(LIMIT, waiting).await.expect("the move is noticed");
    let client = redis.client_of("{t}a").await.unwrap();
    assert_eq!(client.get_connection_info().addr().to_string(), nodes[to]);

    // The locks share the nodes.
    let locks = Locks::connect(redis, LockConfig::default()).await.unwrap();
    let guard = locks.lock("{t}lock").acquire().await.unwrap();
    let mut raw = cluster.nodes[to].conn().await;
    assert_eq!(query::<i64>(&mut raw, "EXISTS", &["{t}lock"]).await, 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_cluster_answers_as_long_as_one_master_does() {
    let mut cluster = RedisCluster::start().await;
    let nodes: Vec<String> = cluster.nodes.iter().map(|node| node.address()).collect();
    let server = Server::from_url(&format!("redis-cluster://{}", nodes.join(","))).unwrap();
    let redis = Redis::new(server, LIMIT, LIMIT).unwrap();
    redis.ping().await.unwrap();
    cluster.nodes[0].kill();
    cluster.nodes[1].pause();
    for _ in 0..10 {
        tokio::time::timeout(LIMIT / 2, redis.ping()).await.expect("the third answers").unwrap();
    }
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    let answer = tokio::time::timeout(LIMIT / 2, redis.ping()).await.expect("an answer");
    answer.expect_err("no master is left");
}
