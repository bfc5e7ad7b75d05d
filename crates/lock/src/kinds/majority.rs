//! The majority lock: one name on several independent Redis servers, held by the owner that holds it
//! on more than half of them. The algorithm known as Redlock, with its limits.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis_link::Server;

use crate::config::LockConfig;
use crate::error::Error;
use crate::kinds::multi::MultiLock;
use crate::kinds::several::{Members, majority_of};
use crate::locks::Locks;

/// Several independent Redis servers, whose [`MajorityLock`]s survive the loss of a minority. Cheap to
/// clone.
///
/// The servers have to be independent masters: replicas of one another, or nodes of one cluster,
/// count as one server here. Use an odd number, usually five; of three one may fail.
#[derive(Debug, Clone)]
pub struct Majority {
    servers: Arc<[Locks]>,
}

impl Majority {
    /// Connect to the servers at these addresses, as [`Server::from_url`] reads them; a minority may be
    /// unreachable now.
    ///
    /// # Cancellation
    /// Dropping the future closes the connections.
    ///
    /// # Errors
    /// [`Error::Rejected`] as [`new`](Self::new), and for an address that cannot be used. The first
    /// error when no majority answers within the command timeout.
    pub async fn connect<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        config: LockConfig,
    ) -> Result<Self, Error> {
        let lazy = |url| Locks::lazy(Server::from_url(url)?, config.clone());
        let servers: Vec<Locks> = urls.into_iter().map(lazy).collect::<Result<_, _>>()?;
        let all = Self::new(&servers)?;
        let mut pings: FuturesUnordered<_> = servers.iter().map(Locks::ping).collect();
        let (mut answered, mut first) = (0, None);
        while answered < all.quorum() {
            match pings.next().await {
                Some(Ok(())) => answered += 1,
                Some(Err(error)) => first = first.or(Some(error)),
                None => return Err(first.unwrap_or(Error::Closed)),
            }
        }
        drop(pings);
        Ok(all)
    }

    /// These servers.
    ///
    /// # Errors
    /// [`Error::Rejected`] when there is none, or one is given twice, which would have two votes.
    pub fn new<'a>(servers: impl IntoIterator<Item = &'a Locks>) -> Result<Self, Error> {
        let servers: Arc<[Locks]> = servers.into_iter().cloned().collect();
        let refuse = |cause: &'static str| {
            Err(Error::Rejected {
                operation: "connect",
                cause: cause.into(),
            })
        };
        if servers.is_empty() {
            return refuse("a majority needs at least one server");
        }
        for (index, locks) in servers.iter().enumerate() {
            if servers[..index]
                .iter()
                .any(|one| Arc::ptr_eq(one.shared(), locks.shared()))
            {
                return refuse("a server is given twice, and would have two votes");
            }
        }
        Ok(Self { servers })
    }

    /// The lock of this name on the servers. Sends nothing.
    pub fn lock(&self, name: &str) -> MajorityLock {
        let members = self.servers.iter().map(|locks| locks.lock(name)).collect();
        MultiLock {
            members: Members::new(members, true),
        }
    }

    /// How many servers must agree.
    pub fn quorum(&self) -> usize {
        majority_of(self.servers.len())
    }

    /// The [`shutdown`](Locks::shutdown) of every server's locks.
    ///
    /// # Cancellation
    /// As there.
    pub async fn shutdown(&self) {
        futures_util::future::join_all(self.servers.iter().map(Locks::shutdown)).await;
    }
}

/// One lock on the servers of a [`Majority`] (Redlock): an owner holds it while it holds it on a
/// majority of them, N/2+1, so that it survives the loss of a minority.
///
/// All servers are asked at once. Each gets a tenth of the lease to answer (never more than its
/// command timeout); once a majority has granted, the others get as long again as that took. The
/// lock counts as acquired if its **validity** is then positive: the lease, less the time since the
/// requests were sent, less a drift of lease/100 + 2 ms for clocks that do not run alike. Whatever
/// else a server granted, in time or after its answer was no longer awaited, is released in the
/// background, on every server. The watchdog renews on each server independently;
/// [`valid_for`](crate::MultiGuard::valid_for) grows only when a majority has renewed, and
/// [`lost`](crate::MultiGuard::lost) ends when fewer than a majority are left.
///
/// While a majority is held, a server that has lost the key, or did not grant it at first, is asked
/// again: at once after the loss, then every third of the lease. It grants only where the key is
/// absent, never over another owner. So a rolling restart of all servers does not lose the lock, if
/// the next server is stopped only after [`held`](crate::MultiGuard::held) counts the last one again: at
/// the latest two thirds of the lease after it answers. This is done in the background, by the first
/// of the [`Locks`] that granted it, until that is shut down; and not with a fixed lease.
///
/// # What it cannot promise
/// It is the same lease as that of one server, made to survive the loss of servers; it does not make
/// an expired lease harmless. Martin Kleppmann, "How to do distributed locking" (2016), and Salvatore
/// Sanfilippo's reply "Is Redlock safe?" are the two sides of the debate. What both agree on:
///
/// - **Pauses.** A holder that is stopped (by its machine, a debugger, a slow disk) between checking
///   `valid_for` and acting on it acts too late, and so does a request that is delayed on its way to
///   the protected resource. Only the resource can refuse that: by a fencing token that rises with
///   each acquire, or by a constraint of the database. This lock has no such token.
/// - **Clocks.** Leases run on the servers' clocks. A clock that jumps, or runs faster than the
///   drift allows for, ends leases early. Let the servers' time be slewed, never stepped.
/// - **Restarts.** A server that forgets a key before its lease has ended, because it writes nothing
///   to disk, or not with `appendfsync always`, or is replaced by a replica that lags, votes twice.
///   Keep a restarted server away for longer than the longest lease, or have it fsync always.
/// - **Order.** Waiters are woken by messages, but not in order, and many contenders at once may
///   split the votes between them and try again after a random pause.
///
/// # On the wire
/// A [`ReentrantLock`](crate::ReentrantLock) of this name on each server; no key of its own. The servers
/// do not know of each other.
///
/// ```no_run
/// # async fn example() -> Result<(), redisson_lock::Error> {
/// use redisson_lock::{LockConfig, Majority};
///
/// let urls = ["redis://10.0.0.1/", "redis://10.0.0.2/", "redis://10.0.0.3/"];
/// let servers = Majority::connect(urls, LockConfig::default()).await?;
/// if let Some(guard) = servers.lock("lock:settlement").try_acquire().await? {
///     // ... the work, as long as `guard.valid_for()` is enough for it ...
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
pub type MajorityLock = MultiLock;
