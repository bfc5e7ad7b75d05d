//! Sentinels that contradict each other or themselves, as they do during a failover and in a
//! partition. Two masters that know nothing of each other stand for the old and the new one: the old
//! one goes on answering as a master.

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, RedisConnectionInfo};
use redisson_lock::{Error, LockConfig, Locks, Redis, Server};
use std::time::Duration;

use super::loss_at_once::connections;
use super::{calls_of, eventually, query, soon};
use testkit::proxy::{Mode, Proxy};
use testkit::redis_server::{RedisServer, Role};
use testkit::scripted_sentinel::{Says, ScriptedSentinel};

const NAME: &str = "lock:order:1";

/// How many tries have to fail the same way, where a single success would be wrong.
const TRIES: u32 = 10;

fn server<'a>(sentinels: impl IntoIterator<Item = &'a ScriptedSentinel>) -> Server {
    let urls = sentinels.into_iter().map(ScriptedSentinel::url);
    Server::sentinel(urls, "any", RedisConnectionInfo::default()).unwrap()
}

async fn connect<'a>(sentinels: impl IntoIterator<Item = &'a ScriptedSentinel>) -> Locks {
    Locks::connect(server(sentinels), LockConfig::default()).await.expect("connect")
}

/// Whether a lock that is acquired now is on this server.
async fn acquires_on(locks: &Locks, raw: &mut MultiplexedConnection) -> bool {
    match locks.lock(NAME).try_acquire().await {
        Ok(guard) => {
            let guard = guard.expect("it is free");
            // A promotion meanwhile closes this connection, too, and the master may be another one.
            let there = raw.exists::<_, bool>(NAME).await.unwrap_or(false);
            guard.release().await.is_ok() && there
        }
        Err(Error::Unavailable { .. }) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// No master can be used: neither the new one, nor any more the old one, to which `raw` leads.
async fn stays_unavailable(locks: &Locks, raw: &mut MultiplexedConnection) {
    let _: () = query(raw, "CONFIG", &["RESETSTAT"]).await;
    for _ in 0..TRIES {
        let tried = locks.lock(NAME).try_acquire().await;
        assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    }
    assert_eq!((calls_of(raw, "evalsha").await, calls_of(raw, "eval").await), (0, 0));
}

/// `SENTINEL MASTER` of the sentinel that leads a failover names the old address together with the new
/// epoch, until all replicas follow the new master or `failover-timeout` is over.
#[tokio::test]
async fn the_new_master_is_used_although_its_failover_goes_on() {
    let (old, new) = tokio::join!(RedisServer::start(), RedisServer::start());
    let sentinel = ScriptedSentinel::start(Says::master(1, &old.address())).await;
    let limit = Duration::from_secs(5);
    let redis = Redis::new(server([&sentinel]), limit, limit).unwrap();
    let locks = Locks::connect(redis.clone(), LockConfig::default()).await.unwrap();
    assert!(acquires_on(&locks, &mut old.conn().await).await);
    let moved = redis.moved(NAME);
    sentinel.say(Says::during_failover(2, &old.address(), &new.address()));
    soon("connections of one's own move", moved).await;
    let mut raw = new.conn().await;
    eventually("locks are on the new master", async || acquires_on(&locks, &mut raw).await).await;
    let _: () = redis.commands().set("a", 1).await.unwrap();
    assert_eq!(query::<i64>(&mut raw, "GET", &["a"]).await, 1);
}

/// The real thing: the failover goes on for as long as the stopped replica does not follow.
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
    let mut asked = leader.conn().await;
    let mut failover = asked.clone();
    let login = RedisConnectionInfo::default();
    let one = Server::sentinel([leader.url()], "any", login).unwrap();
    let locks = Locks::connect(one, LockConfig::default()).await.unwrap();
    assert!(acquires_on(&locks, &mut old.conn().await).await);
    stopped.pause();
    eventually("the failover begins", async || {
        // Refused until the sentinel has heard from a replica that it can promote.
        let begun: redis::RedisResult<()> =
            redis::cmd("SENTINEL").arg("FAILOVER").arg("any").query_async(&mut failover).await;
        begun.is_ok()
    })
    .await;
    // A promotion closes the connections of clients, also those that are being made.
    eventually("locks are on the new master", async || {
        let Ok(mut raw) = new.client().get_multiplexed_async_connection().await else {
            return false;
        };
        acquires_on(&locks, &mut raw).await
    })
    .await;
    let fields: std::collections::HashMap<String, String> =
        query(&mut asked, "SENTINEL", &["MASTER", "any"]).await;
    assert_eq!(fields["port"], old.port().to_string(), "the failover is over: {fields:?}");
    drop(second);
}

/// As where the new master is on the other side of a partition.
#[tokio::test]
async fn a_replaced_master_is_not_used_while_the_new_one_cannot_be_reached() {
    let (old, new) = tokio::join!(RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(new.address()).await.unwrap();
    proxy.set(Mode::Cut);
    let sentinel = ScriptedSentinel::start(Says::master(1, &old.address())).await;
    let locks = connect([&sentinel]).await;
    let mut raw = old.conn().await;
    assert!(acquires_on(&locks, &mut raw).await);
    sentinel.say(Says::master(2, &proxy.address.to_string()));
    eventually("the old master is left", async || !acquires_on(&locks, &mut raw).await).await;
    stays_unavailable(&locks, &mut raw).await;
    proxy.set(Mode::Forward);
    let mut raw = new.conn().await;
    eventually("locks are on the new master", async || acquires_on(&locks, &mut raw).await).await;
}

/// The sentinel that knows the new master says so once, and is silent from then on.
#[tokio::test]
async fn a_newer_epoch_that_was_heard_once_is_not_forgotten() {
    let (old, new) = tokio::join!(RedisServer::start(), RedisServer::start());
    let first = Says::master(1, &old.address());
    let (leader, stale) =
        tokio::join!(ScriptedSentinel::start(first.clone()), ScriptedSentinel::start(first));
    let locks = connect([&stale, &leader]).await;
    assert!(acquires_on(&locks, &mut old.conn().await).await);
    leader.say(Says::master(2, &new.address()));
    leader.answers(1).await;
    leader.say(Says::Nothing);
    let mut raw = new.conn().await;
    eventually("locks are on the new master", async || acquires_on(&locks, &mut raw).await).await;
    // It is not left for the old one that the stale sentinel names, not even when it fails.
    for _ in 0..3 {
        stale.answers(1).await;
        assert!(acquires_on(&locks, &mut raw).await);
    }
    drop(new);
    stays_unavailable(&locks, &mut old.conn().await).await;
}

/// A single one may be cut off from the others, but not the majority.
#[tokio::test]
async fn sentinels_that_were_set_up_anew_are_believed_if_they_are_the_majority() {
    let (mut old, new) = tokio::join!(RedisServer::start(), RedisServer::start());
    let first = Says::master(5, &old.address());
    let start = || ScriptedSentinel::start(first.clone());
    let sentinels: [_; 3] = tokio::join!(start(), start(), start()).into();
    let locks = connect(&sentinels).await;
    assert!(acquires_on(&locks, &mut old.conn().await).await);
    old.kill();
    let mut raw = new.conn().await;
    sentinels[0].say(Says::master(0, &new.address()));
    sentinels[1].say(Says::Nothing);
    sentinels[2].say(Says::Nothing);
    stays_unavailable(&locks, &mut raw).await;
    sentinels[1].say(Says::master(0, &new.address()));
    eventually("locks are on the new master", async || acquires_on(&locks, &mut raw).await).await;
}

/// `sentinel announce-hostnames` is set for each sentinel by itself.
#[tokio::test]
async fn two_names_of_one_master_are_no_failover() {
    let server = RedisServer::start().await;
    let by_name = format!("localhost:{}", server.port());
    let (one, other) = tokio::join!(
        ScriptedSentinel::start(Says::master(1, &server.address())),
        ScriptedSentinel::start(Says::master(1, &by_name))
    );
    let locks = connect([&one, &other]).await;
    let mut raw = server.conn().await;
    assert!(acquires_on(&locks, &mut raw).await);
    let before = connections(&mut raw).await;
    tokio::join!(one.answers(2), other.answers(2));
    assert!(acquires_on(&locks, &mut raw).await);
    assert_eq!(connections(&mut raw).await, before);
}

/// Else the last of them would wait for as many time limits as there are commands.
#[tokio::test]
async fn commands_without_a_connection_share_one_attempt() {
    let sentinel = ScriptedSentinel::start(Says::Nothing).await;
    let (connecting, command) = (Duration::from_millis(300), Duration::from_secs(60));
    let redis = Redis::new(server([&sentinel]), connecting, command).unwrap();
    let get = || async { redis.commands().get::<_, Option<i64>>("a").await };
    let all = futures_util::future::join_all((0..20).map(|_| get()));
    let replies = soon("every command fails", all).await;
    assert!(replies.iter().all(Result::is_err), "{replies:?}");
    assert_eq!(sentinel.connections(), 1);
}
