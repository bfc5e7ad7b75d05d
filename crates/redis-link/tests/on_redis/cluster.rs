//! Commands on a Redis Cluster: to the node of each key, sent again only if they were not executed.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis_link::{Outcome, Redis, Server};
use testkit::raw::{calls_of, query};
use testkit::redis_cluster::RedisCluster;
use testkit::redis_server::RedisServer;

use super::{LATE, LIMIT, PATIENT, TIMEOUT, assert_outcome, count, eventually, soon};

fn cluster_of(cluster: &RedisCluster, limit: Duration) -> Redis {
    let nodes: Vec<String> = cluster.nodes.iter().map(RedisServer::address).collect();
    let server = Server::from_url(&format!("redis-cluster://{}", nodes.join(","))).unwrap();
    Redis::new(server, limit, limit).unwrap()
}

#[tokio::test]
async fn an_applications_commands_reach_their_nodes_once() {
    let cluster = RedisCluster::start().await;
    let nodes: Vec<String> = cluster.nodes.iter().map(|node| node.address()).collect();
    let redis = cluster_of(&cluster, PATIENT);
    let mut commands = redis.commands();

    // On all three masters, in one pipeline, with replies in the order of the commands.
    let keys: Vec<String> = (0..60).map(|number| format!("key:{number}")).collect();
    let mut pipeline = redis::pipe();
    for (number, key) in keys.iter().enumerate() {
        pipeline
            .set(key, number)
            .ignore()
            .cmd("PING")
            .ignore()
            .get(key);
    }
    let found: Vec<usize> = pipeline.query_async(&mut commands).await.unwrap();
    assert_eq!(found, (0..60).collect::<Vec<_>>());
    assert_eq!(redis.masters().await.unwrap().len(), 3);

    // A transaction has one slot.
    let mut transaction = redis::pipe();
    transaction.atomic().incr("{t}a", 1).incr("{t}b", 1);
    let counts: (i64, i64) = transaction.query_async(&mut commands).await.unwrap();
    assert_eq!(counts, (1, 1));
    let mut two_slots = redis::pipe();
    two_slots.atomic().incr("{t}a", 1).incr("{u}a", 1);
    let refused = two_slots
        .query_async::<(i64, i64)>(&mut commands)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("several slots"), "{refused}");

    // While a slot is moved, its old node answers for the keys that it still has, and the new node for the
    // others. Of a pipeline, only the commands for the others are sent again.
    let slot = cluster.slot("{t}a").await;
    let source = cluster.owner(0, slot).await.unwrap();
    let target = (source + 1) % 3;
    cluster.begin_move(slot, source, target).await;
    let mut counters = redis::pipe();
    counters.incr("{t}a", 1).incr("{t}new", 1).incr("{t}b", 1);
    let counts: (i64, i64, i64) = counters.query_async(&mut commands).await.unwrap();
    assert_eq!(counts, (2, 1, 2));
    let mut moved = redis::pipe();
    moved.atomic().incr("{t}new", 1).incr("{t}new", 1);
    let counts: (i64, i64) = moved.query_async(&mut commands).await.unwrap();
    assert_eq!(
        counts,
        (2, 3),
        "a transaction at the node that the slot is moved to"
    );

    // Keys that do not exist might still be on the old node. The new node says so until the move has ended, or the
    // command is given up: after 20 tries 20 ms apart.
    let began = Instant::now();
    let mut absent = redis::cmd("EXISTS");
    absent.arg("{t}x").arg("{t}y");
    let refused = absent.query_async::<i64>(&mut commands).await.unwrap_err();
    assert_eq!(refused.code(), Some("TRYAGAIN"), "{refused}");
    assert!(
        began.elapsed() >= Duration::from_millis(400),
        "{:?}",
        began.elapsed()
    );

    let waiting = redis.moved("{t}a");
    let client = redis.client_of("{t}a").await.unwrap();
    assert_eq!(
        client.get_connection_info().addr().to_string(),
        nodes[source]
    );
    cluster.end_move(slot, source, target).await;
    let count: i64 = commands.incr("{t}a", 1).await.unwrap();
    assert_eq!(count, 3);
    soon("the move is noticed", waiting).await;
    let client = redis.client_of("{t}a").await.unwrap();
    assert_eq!(
        client.get_connection_info().addr().to_string(),
        nodes[target]
    );
}

#[tokio::test]
async fn a_cluster_answers_as_long_as_one_master_does() {
    let mut cluster = RedisCluster::start().await;
    let redis = cluster_of(&cluster, PATIENT);
    redis.ping().await.unwrap();
    cluster.nodes[0].kill();
    cluster.nodes[1].pause();
    for _ in 0..10 {
        tokio::time::timeout(PATIENT / 2, redis.ping())
            .await
            .expect("the third answers")
            .unwrap();
    }
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    let answer = tokio::time::timeout(PATIENT / 2, redis.ping())
        .await
        .expect("an answer");
    answer.expect_err("no master is left");
}

#[tokio::test]
async fn a_node_that_hangs_delays_no_other_and_executes_each_command_once() {
    let cluster = RedisCluster::start().await;
    // Long enough for the healthy node on a busy machine.
    let limit = LIMIT * 6;
    let redis = cluster_of(&cluster, limit);
    let (hanging, _) = cluster.name_on(0).await;
    let (healthy, _) = cluster.name_on(1).await;
    for name in [&hanging, &healthy] {
        count(&redis, name).await.unwrap();
    }
    cluster.nodes[0].pause();
    // In the second round commands have timed out. So the slot table is read again, and some commands find
    // no open connection.
    for key in [hanging.clone(), format!("second:{{{hanging}}}")] {
        let pending: Vec<_> = (0..5)
            .map(|_| {
                let redis = redis.clone();
                let name = key.clone();
                tokio::spawn(async move { count(&redis, &name).await })
            })
            .collect();
        for _ in 0..50 {
            count(&redis, &healthy).await.unwrap();
        }
        let started = Instant::now();
        for reply in pending {
            assert_outcome(reply.await.unwrap(), Outcome::Unknown);
        }
        assert!(
            started.elapsed() < limit * 2 + LATE,
            "{:?}",
            started.elapsed()
        );
    }
    cluster.nodes[0].resume();
    let mut raw = cluster.nodes[0].conn().await;
    let executed = async || query::<i64>(&mut raw, "GET", &[&hanging]).await == 6;
    eventually("each is executed", executed).await;
}

/// One command of a pipeline was executed, another one certainly not: its node is gone, or its slot is being moved to that node.
#[tokio::test]
async fn of_a_pipeline_that_fails_in_part_it_is_unknown_what_was_executed() {
    let mut cluster = RedisCluster::start().await;
    let (dead, _) = cluster.name_on(0).await;
    let (healthy, slot) = cluster.name_on(1).await;
    let redis = cluster_of(&cluster, PATIENT);
    count(&redis, &healthy).await.unwrap();
    cluster.begin_move(slot, 1, 0).await;
    cluster.nodes[0].kill();
    // One that has no connection to the dead node.
    let redis = cluster_of(&cluster, PATIENT);
    for refused in [dead, format!("{{{healthy}}}:new")] {
        assert_outcome(count(&redis, &refused).await, Outcome::NotExecuted);
        let mut pipeline = redis::pipe();
        pipeline.incr(&healthy, 1).incr(&refused, 1);
        let mut commands = redis.commands();
        let counted = pipeline.query_async::<(i64, i64)>(&mut commands).await;
        assert_outcome(counted, Outcome::Unknown);
    }
    assert_eq!(count(&redis, &healthy).await.unwrap(), 4);
}

/// How many times these nodes were asked for the slot table.
async fn slot_tables_read(nodes: &[RedisServer]) -> i64 {
    let mut count = 0;
    for node in nodes {
        // Before Redis 7 subcommands are counted together.
        for command in ["cluster|slots", "cluster"] {
            count += calls_of(&mut node.conn().await, command).await;
        }
    }
    count
}

/// A node that does not answer, or serves a slot no more, may have been replaced.
#[tokio::test]
async fn the_slot_table_is_read_again_after_an_error_that_an_old_one_explains() {
    let cluster = RedisCluster::start().await;
    let (silent, _) = cluster.name_on(0).await;
    let (unserved, slot) = cluster.name_on(1).await;
    let (healthy, _) = cluster.name_on(2).await;
    let redis = cluster_of(&cluster, LIMIT * 6);
    for name in [&silent, &unserved, &healthy] {
        count(&redis, name).await.unwrap();
    }
    let mut raw = cluster.nodes[1].conn().await;
    let _: () = query(&mut raw, "CLUSTER", &["DELSLOTS", &slot.to_string()]).await;
    cluster.nodes[0].pause();
    for (name, outcome) in [(unserved, Outcome::NotExecuted), (silent, Outcome::Unknown)] {
        count(&redis, &healthy).await.unwrap();
        let answering = &cluster.nodes[1..];
        let before = slot_tables_read(answering).await;
        count(&redis, &healthy).await.unwrap();
        assert_eq!(slot_tables_read(answering).await, before, "nothing failed");
        assert_outcome(count(&redis, &name).await, outcome);
        count(&redis, &healthy).await.unwrap();
        assert!(slot_tables_read(answering).await > before, "{name}");
    }
}

#[tokio::test]
async fn a_killed_master_is_replaced() {
    let mut cluster = RedisCluster::start_with_replicas(Duration::from_secs(2)).await;
    let redis = cluster_of(&cluster, PATIENT);
    let (dead, _) = cluster.name_on(0).await;
    let (healthy, _) = cluster.name_on(1).await;
    count(&redis, &dead).await.unwrap();
    cluster.nodes[0].kill();
    let killed = Instant::now();
    let mut failed = 0;
    while let Err(error) = count(&redis, &dead).await {
        assert!(killed.elapsed() < TIMEOUT, "{error:?}");
        count(&redis, &healthy)
            .await
            .expect("the healthy node answers");
        failed += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(failed > 0, "no command failed");
    let mut raw = cluster.nodes[3].conn().await;
    let existing: i64 = query(&mut raw, "EXISTS", &[&dead]).await;
    assert_eq!(existing, 1, "not on the replica that took over");
}

#[tokio::test]
async fn a_server_that_is_no_cluster_is_rejected() {
    let single = RedisServer::start().await;
    let server = Server::cluster([single.url()]).unwrap();
    let redis = Redis::new(server, PATIENT, PATIENT).unwrap();
    assert_outcome(redis.ping().await, Outcome::Rejected);
    assert!(
        Server::cluster(["redis://127.0.0.1/1"]).is_err(),
        "a database other than 0"
    );
    assert!(Server::cluster(Vec::<String>::new()).is_err(), "no node");
}
