//! Locks on a Redis Cluster: ordinary and sharded Pub/Sub, moving slots.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind};
use redisson_lock::{Error, Guard, LockConfig, Locks, Server};
use tokio::task::JoinHandle;

use super::{LONG_LEASE, connected, eventually, nothing_left, query, soon, wait_for};
use testkit::proxy::Proxy;
use testkit::redis_cluster::RedisCluster;

/// Starts proxies that the nodes announce as their own addresses from now on. Returns them with a URL that
/// leads through them.
pub(super) async fn behind_proxies(cluster: &RedisCluster) -> (Vec<Proxy>, String) {
    let mut proxies = Vec::new();
    for node in &cluster.nodes {
        let proxy = Proxy::start(node.address()).await.unwrap();
        let port = proxy.address.port().to_string();
        let mut raw = node.conn().await;
        let _: () = query(&mut raw, "CONFIG", &["SET", "cluster-announce-port", &port]).await;
        proxies.push(proxy);
    }
    for node in &cluster.nodes {
        let mut raw = node.conn().await;
        eventually("every node knows the proxies", async || {
            let nodes: String = query(&mut raw, "CLUSTER", &["NODES"]).await;
            proxies
                .iter()
                .all(|proxy| nodes.contains(&format!(":{}@", proxy.address.port())))
        })
        .await;
    }
    let proxied: Vec<String> = proxies
        .iter()
        .map(|proxy| proxy.address.to_string())
        .collect();
    let url = format!("redis-cluster://{}", proxied.join(","));
    (proxies, url)
}

/// One node is enough to find the others.
async fn connect(cluster: &RedisCluster) -> Locks {
    let server = Server::cluster([cluster.nodes[2].url()]).unwrap();
    connected(server, LockConfig::default().with_lease(LONG_LEASE))
        .await
        .expect("connect")
}

fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// Starts a waiter; returns when it is subscribed to ordinary and sharded messages on `node`.
async fn waiter(
    cluster: &RedisCluster,
    node: usize,
    locks: &Locks,
    name: &str,
) -> JoinHandle<Guard> {
    let waiter = wait_for(&locks.lock(name));
    subscribed(cluster, node, name).await;
    waiter
}

async fn subscribed(cluster: &RedisCluster, node: usize, name: &str) {
    let mut raw = cluster.nodes[node].conn().await;
    eventually("both subscriptions exist", async || {
        let (_, ordinary): (String, i64) =
            query(&mut raw, "PUBSUB", &["NUMSUB", &channel(name)]).await;
        let (_, sharded): (String, i64) =
            query(&mut raw, "PUBSUB", &["SHARDNUMSUB", &channel(name)]).await;
        (ordinary, sharded) == (1, 1)
    })
    .await;
}

#[tokio::test]
async fn a_release_publishes_ordinary_and_sharded_messages() {
    let cluster = RedisCluster::start().await;
    let locks = connect(&cluster).await;
    let (name, _) = cluster.name_on(1).await;
    let (sender, mut messages) = tokio::sync::mpsc::unbounded_channel::<PushInfo>();
    let client = Client::open(format!("{}?protocol=resp3", cluster.nodes[1].url())).unwrap();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let mut raw: MultiplexedConnection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap();
    for subscribe in ["SUBSCRIBE", "SSUBSCRIBE"] {
        let _: redis::Value = query(&mut raw, subscribe, &[&channel(&name)]).await;
    }
    let lock = locks.lock(&name);
    for forced in [false, true] {
        let guard = lock.acquire().await.unwrap();
        if forced {
            assert!(lock.force_unlock().await.unwrap());
            drop(guard);
        } else {
            guard.release().await.unwrap();
        }
        let mut kinds = Vec::new();
        while kinds.len() < 2 {
            let push = soon("a message", messages.recv()).await.unwrap();
            if matches!(push.kind, PushKind::Message | PushKind::SMessage) {
                let text: Vec<String> = push
                    .data
                    .into_iter()
                    .map(|v| redis::from_redis_value(v).unwrap())
                    .collect();
                assert_eq!(text, [channel(&name), "0".to_owned()]);
                kinds.push(push.kind);
            }
        }
        kinds.sort_by_key(|kind| *kind == PushKind::SMessage);
        assert_eq!(kinds, [PushKind::Message, PushKind::SMessage]);
    }
}

/// Redisson before 3.22 publishes on any node, later versions on the shard.
#[tokio::test]
async fn ordinary_and_sharded_messages_of_redisson_wake_a_waiter() {
    let cluster = RedisCluster::start().await;
    let locks = connect(&cluster).await;
    let (name, _) = cluster.name_on(1).await;
    for (publish, node) in [("PUBLISH", 0), ("SPUBLISH", 1)] {
        let mut raw = cluster.nodes[1].conn().await;
        let foreign = "8743c9c0-0795-4907-87fd-6c719a6b4586:52";
        let _: i64 = query(&mut raw, "HSET", &[&name, foreign, "1"]).await;
        let _: i64 = query(&mut raw, "PEXPIRE", &[&name, "30000"]).await;
        let waiting = waiter(&cluster, 1, &locks, &name).await;
        let _: i64 = query(&mut raw, "DEL", &[&name]).await;
        let mut raw = cluster.nodes[node].conn().await;
        let _: i64 = query(&mut raw, publish, &[&channel(&name), "0"]).await;
        soon("the waiter acquires the lock", waiting)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn commands_and_subscriptions_follow_a_moving_slot() {
    let cluster = RedisCluster::start().await;
    let holder_locks = connect(&cluster).await;
    let waiter_locks = connect(&cluster).await;
    let (name, slot) = cluster.name_on(0).await;
    // Another lock of the same slot, whose key does not exist while the slot moves.
    let neighbour = format!("neighbour:{{{name}}}");
    let guard = holder_locks.lock(&name).acquire().await.unwrap();
    let waiting = waiter(&cluster, 0, &waiter_locks, &name).await;

    cluster.begin_move(slot, 0, 1).await;
    // ASK: the key is not at the old node, and the new one does not serve the slot yet.
    let neighbour_lock = holder_locks.lock(&neighbour);
    let mut raw = cluster.nodes[1].conn().await;
    let _: () = query(&mut raw, "ASKING", &[]).await;
    let _: i64 = query(&mut raw, "HSET", &[&neighbour, "a foreign owner", "1"]).await;
    assert_eq!(
        neighbour_lock.is_locked().await,
        Ok(true),
        "not at the new node"
    );
    let _: () = query(&mut raw, "ASKING", &[]).await;
    let _: i64 = query(&mut raw, "DEL", &[&neighbour]).await;
    // TRYAGAIN: neither the key nor its generation is at the new node.
    fails_as!(neighbour_lock.try_acquire().await, Unavailable);
    let acquired_when_moved = tokio::spawn({
        let neighbour_lock = neighbour_lock.clone();
        async move { neighbour_lock.acquire().await }
    });
    // A key that is still at the old node is used there.
    assert_eq!(holder_locks.lock(&name).is_locked().await, Ok(true));

    cluster.end_move(slot, 0, 1).await;
    let held = soon("the slot has moved", acquired_when_moved).await;
    held.unwrap().unwrap().release().await.unwrap();
    // MOVED: the holder's next command goes to the new node, and the waiter subscribes there.
    subscribed(&cluster, 1, &name).await;
    guard.release().await.unwrap();
    soon("the waiter acquires the lock", waiting)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    for node in &cluster.nodes {
        nothing_left(node, &[&holder_locks, &waiter_locks]).await;
        let mut raw = node.conn().await;
        eventually("no sharded subscription left", async || {
            query::<Vec<String>>(&mut raw, "PUBSUB", &["SHARDCHANNELS"])
                .await
                .is_empty()
        })
        .await;
    }
}
