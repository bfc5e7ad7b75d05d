//! A majority lock takes back servers that have lost its key: a rolling restart of all servers does
//! not lose the lock.

use std::time::Duration;

use redis::AsyncCommands;
use redisson_lock::{Error, LockConfig, Locks, LostReason, Majority};

use super::all_kinds::hold_as_another_owner;
use super::majority::{
    LEASE, acquire_on_all, lock_of, nothing_left_on, process, process_with, servers, three,
    two_processes,
};
use super::{calls_of, eventually, renewed, soon};
use testkit::proxy::{Mode, Proxy};
use testkit::redis_server::RedisServer;

const NAME: &str = "lock:settlement";

async fn exists(server: &RedisServer) -> bool {
    server.conn().await.exists(NAME).await.unwrap()
}

#[tokio::test]
async fn a_rolling_restart_of_all_servers_does_not_lose_the_lock() {
    let (mut servers, [here, there]) = two_processes(LEASE).await;
    let (lock, other) = (lock_of(&here), lock_of(&there));
    let guard = acquire_on_all(&lock, 3).await;
    let lost = guard.lost();
    let mut lost = std::pin::pin!(lost);
    for (number, server) in servers.iter_mut().enumerate() {
        // It comes back empty.
        server.restart().await;
        assert!(!exists(server).await || guard.held() == 3);
        tokio::select! {
            reason = &mut lost => panic!("lost after restart {number}: {reason}"),
            () = eventually("the server is taken back", async || {
                exists(server).await && guard.held() == 3
            }) => {}
        }
        assert!(other.try_acquire().await.unwrap().is_none());
    }
    // What was taken back is renewed as well: without, a lease without renewal would end it.
    renewed(|| guard.valid_for()).await;
    renewed(|| guard.valid_for()).await;
    assert_eq!(guard.held(), 3);
    guard.release().await.unwrap();
    other.acquire().await.unwrap().release().await.unwrap();
    nothing_left_on(&servers, &[&here, &there]).await;
}

/// So long that its vote was lost as unreachable.
#[tokio::test]
async fn a_server_that_was_away_for_long_is_taken_back() {
    let (mut servers, locks, lock) = three(LEASE).await;
    servers[2].kill();
    // It does not grant the lock at first either.
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.held(), 2);
    servers[2].restart().await;
    eventually("it has all votes", async || guard.held() == 3).await;
    servers[1].kill();
    eventually("one vote is lost", async || guard.held() == 2).await;
    servers[1].restart().await;
    eventually("the server is taken back", async || guard.held() == 3).await;
    assert!(exists(&servers[1]).await);
    guard.release().await.unwrap();
    nothing_left_on(&servers, &[&locks]).await;
}

#[tokio::test]
async fn the_vote_of_another_owner_is_taken_back_only_when_it_is_free() {
    let (servers, locks, lock) = three(LEASE).await;
    let guard = acquire_on_all(&lock, 3).await;
    let mut raw = servers[0].conn().await;
    hold_as_another_owner(&mut raw, NAME).await;
    let fields: Vec<String> = raw.hkeys(NAME).await.unwrap();
    eventually("one vote is lost", async || guard.held() == 2).await;
    let before = calls_of(&mut raw, "evalsha").await;
    eventually("it was tried twice", async || {
        assert_eq!(raw.hkeys::<_, Vec<String>>(NAME).await.unwrap(), fields);
        assert_eq!(guard.held(), 2);
        calls_of(&mut raw, "evalsha").await >= before + 2
    })
    .await;
    assert_eq!(raw.hkeys::<_, Vec<String>>(NAME).await.unwrap(), fields);
    let _: () = raw.del(NAME).await.unwrap();
    eventually("the vote is taken back", async || guard.held() == 3).await;
    guard.release().await.unwrap();
    nothing_left_on(&servers, &[&locks]).await;
}

#[tokio::test]
async fn a_lost_majority_lock_takes_nothing_back() {
    let (mut servers, locks, lock) = three(LEASE).await;
    let guard = lock.acquire().await.unwrap();
    servers[0].kill();
    servers[1].kill();
    assert_eq!(
        soon("the loss is detected", guard.lost()).await,
        LostReason::Unreachable
    );
    servers[0].restart().await;
    servers[1].restart().await;
    // Meanwhile another lock tries to take a server back, at the same intervals.
    let other = Majority::new(&locks).unwrap().lock("other");
    let held = acquire_on_all(&other, 3).await;
    let mut raw = servers[0].conn().await;
    hold_as_another_owner(&mut raw, "other").await;
    eventually("one vote is lost", async || held.held() == 2).await;
    let before = calls_of(&mut raw, "evalsha").await;
    eventually("the other has tried twice", async || {
        assert_eq!(
            (exists(&servers[0]).await, exists(&servers[1]).await),
            (false, false)
        );
        assert_eq!(guard.valid_for(), Duration::ZERO);
        calls_of(&mut raw, "evalsha").await >= before + 2
    })
    .await;
    held.release().await.unwrap();
    let _: () = raw.del("other").await.unwrap();
    assert_eq!(
        guard.release().await,
        Err(Error::Lost(LostReason::Unreachable))
    );
    nothing_left_on(&servers, &[&locks]).await;
}

/// The try has been sent when the guard is released, and is executed later.
#[tokio::test]
async fn a_release_undoes_what_is_being_taken_back() {
    let servers = servers::<3>().await;
    let proxy = Proxy::start(servers[0].address()).await.unwrap();
    let mut locks = process(&servers, LEASE);
    let config = LockConfig::default().with_lease(LEASE);
    locks[0] = Locks::lazy(proxy.redis(), config).unwrap();
    let lock = lock_of(&locks);
    let guard = acquire_on_all(&lock, 3).await;
    let mut raw = servers[0].conn().await;
    hold_as_another_owner(&mut raw, NAME).await;
    eventually("one vote is lost", async || guard.held() == 2).await;
    proxy.set(Mode::HoldRequests("EVALSHA"));
    let _: () = raw.del(NAME).await.unwrap();
    eventually("a try is on its way", async || proxy.held() == 1).await;
    proxy.set(Mode::Forward);
    guard.release().await.unwrap();
    proxy.pass_held().await;
    nothing_left_on(&servers, &[&locks]).await;
}

/// It waits for clean-ups under way for up to two command timeouts, and none is.
#[tokio::test]
async fn a_shutdown_while_it_is_held_ends_at_once() {
    let servers = servers::<3>().await;
    let config = LockConfig::default().with_command_timeout(Duration::from_secs(60));
    let locks = process_with(&servers, config);
    let lock = lock_of(&locks);
    let guard = lock.acquire().await.unwrap();
    for locks in &locks {
        soon("the shutdown", locks.shutdown()).await;
    }
    // Its guards can still release it.
    guard.release().await.unwrap();
    for server in &servers {
        assert!(!exists(server).await);
    }
}

/// The majority ends before its keys do, by the drift that is allowed for clocks.
#[tokio::test]
async fn a_release_after_the_loss_says_lost_and_gives_the_keys_back() {
    let servers = servers::<3>().await;
    let locks = process(&servers, Duration::from_secs(60));
    let lock = lock_of(&locks).without_renewal(Duration::from_secs(1));
    let mut not_lost = Vec::new();
    for _ in 0..5 {
        let guard = lock.acquire().await.unwrap();
        let reason = soon("the loss is noticed", guard.lost()).await;
        match guard.release().await {
            Err(Error::Lost(then)) if then == reason => {}
            outcome => not_lost.push(outcome),
        }
    }
    assert!(not_lost.is_empty(), "{} of 5: {not_lost:?}", not_lost.len());
    nothing_left_on(&servers, &[&locks]).await;
}
