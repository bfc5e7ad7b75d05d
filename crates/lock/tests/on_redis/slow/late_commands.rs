//! Random histories in which any command may arrive late, after up to hundreds of others. A late command takes no lock
//! for nobody, and ends no hold.
//!
//! Each history prints its seed, which `LOCK_HISTORY_SEED` repeats; `LOCK_HISTORY_OPERATIONS` makes it longer.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redis::aio::MultiplexedConnection;
use redisson_lock::kind::LockKind;
use redisson_lock::{Error, Lock, LockConfig, Locks, Owner, Server};

use crate::cluster::behind_proxies;
use crate::late_acquire::holding;
use crate::late_release::monitored;
use crate::{LONG_LEASE, TIMEOUT, eventually};
use testkit::proxy::{Mode, Proxy};
use testkit::redis_cluster::RedisCluster;
use testkit::redis_server::RedisServer;

/// Operations of one history, unless the environment says otherwise.
const OPERATIONS: u32 = 300;

/// The hash tag of all names: the proxy keeps requests with the word `late` in them, and on a cluster all names are in
/// one slot.
const TAG: &str = "{late}";

/// How long a waiting call waits: for one try or two.
const WAIT: Duration = Duration::from_millis(5);

/// The command timeout in a history in which some calls are given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(3);

/// Releases what was acquired.
type Release = Box<dyn FnOnce() -> BoxFuture<'static, Result<(), Error>>>;

/// Where the histories happen.
struct Scene<'a> {
    proxy: &'a Proxy,
    /// A connection past the proxy.
    raw: MultiplexedConnection,
    locks: Locks,
    /// Whether a call without an answer closes its connection, so that the next one has another.
    gives_up: bool,
    random: StdRng,
    operations: u32,
}

/// A setting from the environment, or `otherwise`.
fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

impl<'a> Scene<'a> {
    async fn new(
        server: Server,
        proxy: &'a Proxy,
        raw: MultiplexedConnection,
        gives_up: bool,
    ) -> Self {
        // Calls that are not to be given up have to be answered within it.
        let timeout = if gives_up { GIVEN_UP_AFTER } else { TIMEOUT };
        let config = LockConfig::default()
            .with_lease(LONG_LEASE)
            .with_command_timeout(timeout);
        let seed = setting("LOCK_HISTORY_SEED", rand::random::<u32>().into());
        println!("LOCK_HISTORY_SEED={seed}");
        Scene {
            proxy,
            raw,
            locks: Locks::connect(server, config).await.unwrap(),
            gives_up,
            random: StdRng::seed_from_u64(seed),
            operations: setting("LOCK_HISTORY_OPERATIONS", OPERATIONS.into()) as u32,
        }
    }

    async fn every_kind(mut self) {
        let locks = self.locks.clone();
        let name = |kind: &str| format!("{TAG}:{kind}");
        self.history_of_kind(&locks.lock(&name("reentrant"))).await;
        self.history_of_kind(&locks.fenced(&name("fenced"))).await;
        self.history_of_kind(&locks.fair(&name("fair"))).await;
        self.history_of_kind(locks.read_write(&name("read")).read())
            .await;
        self.history_of_kind(locks.read_write(&name("write")).write())
            .await;
        let setnx = locks.setnx(&name("setnx"), LONG_LEASE);
        let acquire = async |_: &Owner, _: bool| -> Result<Option<Release>, Error> {
            let guard = setnx.try_acquire().await?;
            Ok(guard.map(|guard| -> Release { Box::new(|| guard.release().boxed()) }))
        };
        self.history(&name("setnx"), acquire, async |_| None).await;
        locks.shutdown().await;
    }

    async fn history_of_kind<K: LockKind>(&mut self, lock: &Lock<K>) {
        let acquire = async |owner: &Owner, waits: bool| -> Result<Option<Release>, Error> {
            let guard = match waits {
                true => lock.acquire_within_as(owner, WAIT).await?,
                false => lock.try_acquire_as(owner).await?,
            };
            Ok(guard.map(|guard| -> Release { Box::new(|| guard.release().boxed()) }))
        };
        let count = async |owner: &Owner| Some(lock.hold_count(owner).await.unwrap());
        self.history(lock.name(), acquire, count).await;
    }

    /// Acquires and releases at random. `count` is an owner's hold count on the server, where there is one.
    async fn history(
        &mut self,
        name: &str,
        acquire: impl AsyncFn(&Owner, bool) -> Result<Option<Release>, Error>,
        count: impl AsyncFn(&Owner) -> Option<u32>,
    ) {
        let owners = [(); 3].map(|()| self.locks.owner());
        let mut held: Vec<(Owner, Release)> = Vec::new();
        let mut late = 0;
        for operation in 0..self.operations {
            let owner = owners[self.random.random_range(0..3)];
            match self.random.random_range(0..200) {
                0..40 => self.proxy.set(Mode::HoldRequestWith("late")),
                40..50 => {
                    late += self.proxy.held();
                    self.proxy.set(Mode::Forward);
                    self.proxy.pass_held().await;
                    self.check(name, operation, &held, &owners, &count).await;
                }
                50 if self.gives_up && held.is_empty() => {
                    self.proxy.set(Mode::HoldRequests("late"));
                    fails_as!(acquire(&owner, false).await, Unavailable);
                    self.proxy.set(Mode::Forward);
                }
                51..120 => {
                    // A re-entry does not wait: after one that ends at its limit, the hold count on the server may be wrong
                    // until the owner's next command.
                    let waits = self.random.random_bool(0.3)
                        && held.iter().all(|(holder, _)| *holder != owner);
                    match acquire(&owner, waits).await {
                        Ok(Some(release)) => held.push((owner, release)),
                        // A waiting call ends at its limit, answered or not.
                        Ok(None) | Err(Error::Unavailable { .. }) => {}
                        Err(error) => panic!("{name}, operation {operation}: {error}"),
                    }
                }
                _ if held.is_empty() => {}
                _ => {
                    let (_, release) = held.swap_remove(self.random.random_range(0..held.len()));
                    release().await.unwrap();
                }
            }
        }
        for (_, release) in held.drain(..) {
            release().await.unwrap();
        }
        late += self.proxy.held();
        self.proxy.set(Mode::Forward);
        self.proxy.pass_held().await;
        self.check(name, self.operations, &held, &owners, &count)
            .await;
        println!("{name}: {late} of {} came late", self.operations);
        assert!(late > 0, "nothing came late");
    }

    /// Waits until the server has exactly what this process holds; commands that were given up are cleaned up first.
    async fn check(
        &mut self,
        name: &str,
        operation: u32,
        held: &[(Owner, Release)],
        owners: &[Owner],
        count: &impl AsyncFn(&Owner) -> Option<u32>,
    ) {
        let mut expected: HashMap<Owner, u32> = owners.iter().map(|owner| (*owner, 0)).collect();
        for (owner, _) in held {
            *expected.entry(*owner).or_default() += 1;
        }
        let what = format!("{name}, operation {operation}: {} held", held.len());
        let raw = &mut self.raw;
        let mut reported = Vec::new();
        eventually(&what, async || {
            let keys = holding(raw, name).await;
            let mut wrong = Vec::new();
            if keys.is_empty() != held.is_empty() {
                wrong.push(format!("{} held, keys {keys:?}", held.len()));
            }
            for (owner, expected) in &expected {
                let count = count(owner).await;
                if count.is_some_and(|count| count != *expected) {
                    wrong.push(format!("{owner} holds {expected}, on the server {count:?}"));
                }
            }
            if wrong != reported {
                println!("{what}: {wrong:?}");
                reported.clone_from(&wrong);
            }
            wrong.is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn commands_that_come_late_hold_and_release_nothing() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let raw = server.conn().await;
    let through = proxy.redis().into();
    let scene = Scene::new(through, &proxy, raw, false).await;
    scene.every_kind().await;
}

#[tokio::test]
async fn commands_that_come_late_on_a_master_of_sentinel() {
    let ([server, _sentinel], proxy, through) = monitored().await;
    let raw = server.conn().await;
    let scene = Scene::new(through, &proxy, raw, true).await;
    scene.every_kind().await;
}

#[tokio::test]
async fn commands_that_come_late_on_a_cluster() {
    let cluster = RedisCluster::start().await;
    let slot = cluster.slot(TAG).await;
    let node = cluster.owner(0, slot).await.expect("a master serves it");
    let (proxies, url) = behind_proxies(&cluster).await;
    let through = Server::from_url(&url).unwrap();
    let raw = cluster.nodes[node].conn().await;
    let scene = Scene::new(through, &proxies[node], raw, false).await;
    scene.every_kind().await;
}
