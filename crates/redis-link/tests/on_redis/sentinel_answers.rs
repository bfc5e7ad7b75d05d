//! Sentinels that contradict each other or themselves, as they do during a failover and in a
//! partition. Two masters that know nothing of each other stand for the old and the new one: the old
//! one goes on answering as a master.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use redis::RedisConnectionInfo;
use redis::aio::MultiplexedConnection;
use redis_link::{Outcome, Redis, Server};
use testkit::proxy::{Mode, Proxy};
use testkit::raw::{calls_of, command, connections, query};
use testkit::redis_server::{RedisServer, Role};
use testkit::scripted_sentinel::{Says, ScriptedSentinel};
use tokio::task::JoinHandle;

use super::{assert_outcome, behind, count, eventually, is_on, soon};

/// How many commands have to fail, where a single success would be wrong.
const TRIES: u32 = 5;

/// Their time limit: each of them waits for so long, where a sentinel is silent.
const SHORT: Duration = Duration::from_secs(2);

fn behind_scripted<'a>(
    sentinels: impl IntoIterator<Item = &'a ScriptedSentinel>,
) -> (Redis, JoinHandle<()>) {
    behind(
        sentinels.into_iter().map(ScriptedSentinel::url),
        "any",
        SHORT,
    )
}

/// Fails unless all commands fail, and none of them reaches the server to which `raw` leads.
async fn stays_unavailable(redis: &Redis, raw: &mut MultiplexedConnection) {
    let _: () = query(raw, "CONFIG", &["RESETSTAT"]).await;
    for _ in 0..TRIES {
        count(redis, "n").await.unwrap_err();
    }
    assert_eq!(
        calls_of(raw, "incrby").await + calls_of(raw, "incr").await,
        0
    );
}

/// `SENTINEL MASTER` of the sentinel that leads a failover names the old address together with the new
/// epoch, until all replicas follow the new master or `failover-timeout` is over.
#[tokio::test]
async fn the_new_master_is_used_although_its_failover_goes_on() {
    let (old, new) = tokio::join!(RedisServer::start(), RedisServer::start());
    let sentinel = ScriptedSentinel::start(Says::master(1, &old.address())).await;
    let (redis, _watch) = behind_scripted([&sentinel]);
    assert!(is_on(&redis, &mut old.conn().await).await);
    let moved = redis.moved("n");
    sentinel.say(Says::during_failover(2, &old.address(), &new.address()));
    soon("connections of one's own move", moved).await;
    let mut raw = new.conn().await;
    eventually("the new master is used", async || {
        is_on(&redis, &mut raw).await
    })
    .await;
}

/// With a real sentinel: the failover goes on for as long as the stopped replica does not follow.
#[tokio::test]
async fn a_stopped_replica_does_not_delay_the_change_of_masters() {
    let old = RedisServer::start().await;
    let replica = |priority: &str| {
        let arguments = vec!["--replica-priority".to_owned(), priority.to_owned()];
        RedisServer::start_with_arguments(Role::ReplicaOf(old.port()), arguments)
    };
    let (new, second, stopped) = tokio::join!(replica("1"), replica("100"), replica("100"));
    let configuration = format!(
        "sentinel monitor any 127.0.0.1 {} 1\n\
         sentinel down-after-milliseconds any 120000\n\
         sentinel failover-timeout any 120000\n",
        old.port()
    );
    let leader = RedisServer::start_as(Role::Sentinel(configuration)).await;
    let mut leader_connection = leader.conn().await;
    let mut failover = leader_connection.clone();
    let (redis, _watch) = behind([leader.url()], "any", SHORT);
    assert!(is_on(&redis, &mut old.conn().await).await);
    stopped.pause();
    eventually("the failover begins", async || {
        // Refused until the sentinel has heard from a replica that it can promote.
        command("SENTINEL", &["FAILOVER", "any"])
            .exec_async(&mut failover)
            .await
            .is_ok()
    })
    .await;
    // A promotion closes the connections of clients, also those that are being made.
    eventually("the new master is used", async || {
        let Ok(mut raw) = new.client().get_multiplexed_async_connection().await else {
            return false;
        };
        is_on(&redis, &mut raw).await
    })
    .await;
    let fields: HashMap<String, String> =
        query(&mut leader_connection, "SENTINEL", &["MASTER", "any"]).await;
    assert_eq!(
        fields["port"],
        old.port().to_string(),
        "the failover is over: {fields:?}"
    );
    drop(second);
}

/// As when the new master is on the other side of a partition.
#[tokio::test]
async fn a_replaced_master_is_not_used_while_the_new_one_cannot_be_reached() {
    let (old, new) = tokio::join!(RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(new.address()).await.unwrap();
    proxy.set(Mode::Cut);
    let sentinel = ScriptedSentinel::start(Says::master(1, &old.address())).await;
    let (redis, _watch) = behind_scripted([&sentinel]);
    let mut raw = old.conn().await;
    assert!(is_on(&redis, &mut raw).await);
    sentinel.say(Says::master(2, &proxy.address.to_string()));
    eventually("the old master is left", async || {
        !is_on(&redis, &mut raw).await
    })
    .await;
    stays_unavailable(&redis, &mut raw).await;
    proxy.set(Mode::Forward);
    let mut raw = new.conn().await;
    eventually("the new master is used", async || {
        is_on(&redis, &mut raw).await
    })
    .await;
}

/// The sentinel that knows the new master says so once, and is silent from then on.
#[tokio::test]
async fn a_newer_epoch_that_was_heard_once_is_not_forgotten() {
    let (old, new) = tokio::join!(RedisServer::start(), RedisServer::start());
    let first = Says::master(1, &old.address());
    let (leader, stale) = tokio::join!(
        ScriptedSentinel::start(first.clone()),
        ScriptedSentinel::start(first)
    );
    let (redis, _watch) = behind_scripted([&stale, &leader]);
    assert!(is_on(&redis, &mut old.conn().await).await);
    leader.say(Says::master(2, &new.address()));
    leader.answers(1).await;
    leader.say(Says::Nothing);
    let mut raw = new.conn().await;
    eventually("the new master is used", async || {
        is_on(&redis, &mut raw).await
    })
    .await;
    // The new master is not left for the old one, which the stale sentinel names, not even when the new one fails.
    for _ in 0..3 {
        stale.answers(1).await;
        assert!(is_on(&redis, &mut raw).await);
    }
    drop(new);
    stays_unavailable(&redis, &mut old.conn().await).await;
}

/// A single sentinel may be cut off from the others, but not the majority.
#[tokio::test]
async fn sentinels_that_were_set_up_anew_are_believed_if_they_are_the_majority() {
    let (mut old, new) = tokio::join!(RedisServer::start(), RedisServer::start());
    let first = Says::master(5, &old.address());
    let start = || ScriptedSentinel::start(first.clone());
    let sentinels: [_; 3] = tokio::join!(start(), start(), start()).into();
    let (redis, _watch) = behind_scripted(&sentinels);
    assert!(is_on(&redis, &mut old.conn().await).await);
    old.kill();
    let mut raw = new.conn().await;
    sentinels[0].say(Says::master(0, &new.address()));
    sentinels[1].say(Says::Nothing);
    sentinels[2].say(Says::Nothing);
    stays_unavailable(&redis, &mut raw).await;
    sentinels[1].say(Says::master(0, &new.address()));
    eventually("the new master is used", async || {
        is_on(&redis, &mut raw).await
    })
    .await;
}

/// `sentinel announce-hostnames` is set for each sentinel by itself.
#[tokio::test]
async fn two_names_of_one_master_are_no_failover() {
    let server = RedisServer::start().await;
    let by_name = format!("localhost:{}", server.port());
    let (names_address, names_host) = tokio::join!(
        ScriptedSentinel::start(Says::master(1, &server.address())),
        ScriptedSentinel::start(Says::master(1, &by_name))
    );
    let (redis, _watch) = behind_scripted([&names_address, &names_host]);
    let mut raw = server.conn().await;
    assert!(is_on(&redis, &mut raw).await);
    let before = connections(&mut raw).await;
    tokio::join!(names_address.answers(2), names_host.answers(2));
    assert!(is_on(&redis, &mut raw).await);
    assert_eq!(connections(&mut raw).await, before);
}

/// Otherwise the last of them would wait for as many time limits as there are commands.
#[tokio::test]
async fn commands_without_a_connection_share_one_attempt() {
    let sentinel = ScriptedSentinel::start(Says::Nothing).await;
    let connecting = Duration::from_millis(300);
    let command = Duration::from_secs(60);
    let server = Server::sentinel([sentinel.url()], "any", RedisConnectionInfo::default());
    let redis = Redis::new(server.unwrap(), connecting, command).unwrap();
    let counting = join_all((0..20).map(|_| count(&redis, "n")));
    for reply in soon("every command fails", counting).await {
        assert_outcome(reply, Outcome::NotExecuted);
    }
    assert_eq!(sentinel.connections(), 1);
}

/// A cut of the network that is over: no connection is left, and everything can be reached. The second command finds the
/// master, although each sentinel's connection is found to be broken only now.
#[tokio::test]
async fn kept_connections_to_sentinels_that_broke_are_opened_again() {
    let master = RedisServer::start().await;
    let to_master = Proxy::start(master.address()).await.unwrap();
    let says = Says::master(1, &to_master.address.to_string());
    let start = || ScriptedSentinel::start(says.clone());
    let sentinels: [_; 3] = tokio::join!(start(), start(), start()).into();
    let mut proxies = vec![to_master];
    for sentinel in &sentinels {
        proxies.push(Proxy::start(sentinel.address()).await.unwrap());
    }
    let urls = proxies[1..]
        .iter()
        .map(|proxy| format!("redis://{}/", proxy.address));
    let server = Server::sentinel(urls, "any", RedisConnectionInfo::default());
    // Not watched: that would find the broken connections, too.
    let redis = Redis::new(server.unwrap(), SHORT, SHORT).unwrap();
    count(&redis, "n").await.unwrap();
    // The newest connection: once it is closed, those that were open before are closed, too.
    let mut newest = proxies[3]
        .redis()
        .get_multiplexed_async_connection()
        .await
        .unwrap();
    for proxy in &proxies {
        proxy.set(Mode::Cut);
    }
    eventually("the connections are cut", async || {
        command("PING", &[]).exec_async(&mut newest).await.is_err()
    })
    .await;
    for proxy in &proxies {
        proxy.set(Mode::Forward);
    }
    assert_outcome(count(&redis, "n").await, Outcome::Unknown);
    assert_eq!(count(&redis, "n").await.unwrap(), 2);
}

/// A promotion closes the connections of clients, also those that are being made.
#[tokio::test]
async fn a_master_that_closes_the_first_connection_is_asked_again() {
    let master = RedisServer::start().await;
    let proxy = Proxy::start(master.address()).await.unwrap();
    let sentinel = ScriptedSentinel::start(Says::master(1, &proxy.address.to_string())).await;
    proxy.set(Mode::LoseReply);
    let (redis, _watch) = behind_scripted([&sentinel]);
    assert_eq!(count(&redis, "n").await.unwrap(), 1);
    assert_eq!(proxy.mode(), Mode::Forward, "no connection was closed");
}
