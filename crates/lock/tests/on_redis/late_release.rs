//! Releases that Redis executes late, after the same owner has acquired the lock again: they must not
//! release the new hold.

use std::time::Duration;

use redis::RedisConnectionInfo;
use redisson_lock::kind::LockKind;
use redisson_lock::{Error, Lock, LockConfig, Locks, Server};

use super::{TIMEOUT, connected, eventually, start_behind_proxy};
use testkit::proxy::{Mode, Proxy};
use testkit::redis_sentinel::MASTER;
use testkit::redis_server::{RedisServer, Role};

/// Contains `late`, the word by which the proxy picks the requests that it holds back.
const NAME: &str = "lock:late";

/// The release is sent again on a new connection and answered; the first copy comes afterwards.
#[tokio::test]
async fn a_late_copy_of_a_resent_release_spares_the_next_hold() {
    let config = LockConfig::default().with_command_timeout(TIMEOUT);
    let (_server, proxy, locks) = start_behind_proxy(config).await;
    let owner = locks.owner();
    let lock = locks.lock(NAME);
    lock.acquire_as(&owner)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    for round in 0..10 {
        let guard = lock.acquire_as(&owner).await.unwrap();
        proxy.set(Mode::HoldRequest);
        guard.release().await.unwrap();
        assert_eq!(proxy.held(), 1, "no request is late");
        let again = lock.acquire_as(&owner).await.unwrap();
        proxy.pass_held().await;
        assert_eq!(lock.hold_count(&owner).await.unwrap(), 1, "round {round}");
        again.release().await.unwrap();
    }
}

/// With Sentinel, a time-out closes the connection, because the master may have been replaced; what
/// was sent on it may still be retransmitted.
#[tokio::test]
async fn a_release_that_timed_out_spares_the_next_hold() {
    let (_servers, proxy, locks) = behind_sentinel().await;
    spares_the_next_hold(&proxy, &locks, &locks.lock(NAME)).await;
    spares_the_next_hold(&proxy, &locks, &locks.fair("fair:late")).await;
    let lock = locks.read_write("read-write:late");
    spares_the_next_hold(&proxy, &locks, lock.read()).await;
    spares_the_next_hold(&proxy, &locks, lock.write()).await;
}

/// Locks on a master that Sentinel monitors, through a proxy.
pub(super) async fn behind_sentinel() -> ([RedisServer; 2], Proxy, Locks) {
    let (servers, proxy, proxied_server) = monitored().await;
    // The releases end at this timeout; everything else has to be answered within it.
    let config = LockConfig::default().with_command_timeout(Duration::from_secs(3));
    let locks = connected(proxied_server, config).await.unwrap();
    (servers, proxy, locks)
}

/// A master, its sentinel, and a proxy that the sentinel takes for the master.
pub(super) async fn monitored() -> ([RedisServer; 2], Proxy, Server) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let port = proxy.address.port();
    let configuration = format!("sentinel monitor {MASTER} 127.0.0.1 {port} 1\n");
    let sentinel = RedisServer::start_as(Role::Sentinel(configuration)).await;
    let login = RedisConnectionInfo::default();
    let proxied_server = Server::sentinel([sentinel.url()], MASTER, login).unwrap();
    ([server, sentinel], proxy, proxied_server)
}

async fn spares_the_next_hold<K: LockKind>(proxy: &Proxy, locks: &Locks, lock: &Lock<K>) {
    let owner = locks.owner();
    lock.acquire_as(&owner)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let guard = lock.acquire_as(&owner).await.unwrap();
    proxy.set(Mode::HoldRequests("late"));
    fails_as!(guard.release().await, Unknown);
    proxy.set(Mode::Forward);
    let again = lock.acquire_as(&owner).await.unwrap();
    assert!(proxy.held() > 0, "no request is late");
    proxy.pass_held().await;
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1, "{lock:?}");
    again.release().await.unwrap();
    eventually("it is free", async || !lock.is_locked().await.unwrap()).await;
}
