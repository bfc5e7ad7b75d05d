//! The calls of every lock kind with an owner: acquire, wait, force unlock, and the queries.

use std::marker::PhantomData;
use std::time::Duration;

use crate::config::clamp_lease;
use crate::connection::command_connection::CommandConnection;
use crate::error::Error;
use crate::holding::guard::Guard;
use crate::kind::LockKind;
use crate::locks::Locks;
use crate::name::Name;
use crate::owner::Owner;
use crate::waiting::acquirer::Acquirer;

/// A lock in Redis that many processes share.
///
/// Creating one is cheap and sends nothing; keep it or create it for every use. What each kind
/// promises is documented at [`ReentrantLock`](crate::ReentrantLock), [`FencedLock`](crate::FencedLock),
/// [`FairLock`](crate::FairLock), [`ReadLock`](crate::ReadLock) and
/// [`WriteLock`](crate::WriteLock).
///
/// Each [`acquire`](Self::acquire) has a new owner, and owners exclude each other. An owner that holds
/// the lock acquires it again (re-entry) by [`acquire_as`](Self::acquire_as), with [`Guard::owner`] or
/// with an owner that [`Locks::owner`] made. Each guard then releases one acquire.
///
/// # Errors
/// Every call fails with [`Error::InvalidName`], and sends nothing, for a name that could not work on a
/// Redis Cluster: empty, or with braces that form no hash tag (`a{b`, `a}b`, `a{}b`).
///
/// # Cancellation
/// Every future may be dropped at any time. A command that is under way is finished in the
/// background, and what it acquired is released.
#[derive(Debug, Clone)]
pub struct Lock<K: LockKind> {
    pub(super) acquirer: Acquirer,
    kind: PhantomData<K>,
}

impl<K: LockKind> Lock<K> {
    pub(crate) fn new(locks: Locks, name: Name) -> Self {
        let acquirer = Acquirer {
            locks,
            name,
            kind: K::KIND,
            lease: None,
        };
        Self {
            acquirer,
            kind: PhantomData,
        }
    }

    /// The same lock with a fixed lease (at least 1 ms) that the watchdog does not renew: it expires by
    /// itself, whether or not the work is done. Re-entry never shortens a lease.
    #[must_use]
    pub fn without_renewal(mut self, lease: Duration) -> Self {
        self.acquirer.lease = Some(clamp_lease(lease));
        self
    }

    /// Acquire the lock, waiting as long as it takes.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire), but while Redis does not answer, the call goes on trying:
    /// it fails with [`Error::Unavailable`] only after
    /// [`LockConfig::with_outage_limit`](crate::LockConfig::with_outage_limit).
    pub async fn acquire(&self) -> Result<Guard<K>, Error> {
        self.acquire_as(&self.new_owner()).await
    }

    /// Acquire the lock, run `work` under it, and release it: as [`acquire`](Self::acquire),
    /// [`Guard::run`] and [`Guard::release`], with one error for all. `Ok` means that the lock was held to
    /// the end of the work.
    ///
    /// # Cancellation
    /// Dropping the future drops `work`, and releases the lock in the background.
    ///
    /// # Errors
    /// Those of the work and of [`acquire`](Self::acquire); [`Error::Lost`] as soon as the lock is lost,
    /// and then `work` is dropped. A release that is not answered is no error: it is repeated in the
    /// background.
    pub async fn with<T, E: From<Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let guard = self.acquire().await?;
        let output = guard.run(work).await.map_err(Error::from)?;
        let released = guard.release().await;
        let output = output?;
        match released {
            Err(lost @ Error::Lost(_)) => Err(lost.into()),
            Ok(()) | Err(_) => Ok(output),
        }
    }

    /// Acquire the lock, waiting no longer than `limit`; `None` when others held it until then. With a
    /// limit of zero this is [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire), but [`Error::Unavailable`] only at the limit, or after
    /// [`LockConfig::with_outage_limit`](crate::LockConfig::with_outage_limit): if no try was answered,
    /// or if the last one that the limit did not cut short was not.
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<Guard<K>>, Error> {
        self.acquire_within_as(&self.new_owner(), limit).await
    }

    /// Acquire the lock if it is free; `None` if another owner holds it. One command, limited by the
    /// command timeout.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when Redis does not answer; what the server may have granted is
    /// released in the background. [`Error::Rejected`] when it refuses the command; [`Error::Closed`].
    pub async fn try_acquire(&self) -> Result<Option<Guard<K>>, Error> {
        self.try_acquire_as(&self.new_owner()).await
    }

    /// As [`acquire`](Self::acquire), for this owner. If `owner` holds the lock already (re-entry), it
    /// does not wait for it.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire); [`Error::OtherKind`] when `owner` holds it as another kind;
    /// [`Error::ForeignOwner`] when another [`Locks`] made the owner.
    pub async fn acquire_as(&self, owner: &Owner) -> Result<Guard<K>, Error> {
        self.check_owner(owner)?;
        loop {
            if let Some(guard) = self.acquirer.acquire(owner, Duration::MAX).await? {
                return Ok(Guard::new(guard));
            }
        }
    }

    /// As [`acquire_within`](Self::acquire_within), for this owner.
    ///
    /// # Errors
    /// Those of [`acquire_within`](Self::acquire_within); [`Error::OtherKind`] and
    /// [`Error::ForeignOwner`] as for [`acquire_as`](Self::acquire_as).
    pub async fn acquire_within_as(
        &self,
        owner: &Owner,
        limit: Duration,
    ) -> Result<Option<Guard<K>>, Error> {
        if limit.is_zero() {
            return self.try_acquire_as(owner).await;
        }
        self.check_owner(owner)?;
        Ok(self.acquirer.acquire(owner, limit).await?.map(Guard::new))
    }

    /// As [`try_acquire`](Self::try_acquire), for this owner.
    ///
    /// # Errors
    /// Those of [`try_acquire`](Self::try_acquire); [`Error::OtherKind`] and [`Error::ForeignOwner`] as
    /// for [`acquire_as`](Self::acquire_as).
    pub async fn try_acquire_as(&self, owner: &Owner) -> Result<Option<Guard<K>>, Error> {
        self.check_owner(owner)?;
        Ok(self.acquirer.try_acquire(owner).await?.map(Guard::new))
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        self.acquirer.name.key()
    }

    fn check_owner(&self, owner: &Owner) -> Result<(), Error> {
        self.acquirer.locks.shared().check_owner(owner)
    }

    fn new_owner(&self) -> Owner {
        self.acquirer.locks.owner()
    }

    fn connection(&self) -> Result<&CommandConnection, Error> {
        self.acquirer.locks.connection(&self.acquirer.name)
    }

    /// Release the lock, whichever owner holds it; `false` if it was free. Its holder learns of it as
    /// of every other loss: see [`Guard::lost`]. Of a read-write lock only this side is released:
    /// all readers, or the writer together with its own read holds.
    ///
    /// # Errors
    /// [`Error::Unknown`] when the answer did not come, else as [`try_acquire`](Self::try_acquire).
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let reply = self
            .connection()?
            .force_unlock(&self.acquirer.name, K::KIND)
            .await;
        reply.map_err(|failure| failure.into_error("force unlock"))
    }

    /// How long the holder's lease still lasts; `None` if the lock is free, [`Duration::MAX`] if its
    /// key never expires. Of a read-write lock: the longest lease of either side.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn remaining(&self) -> Result<Option<Duration>, Error> {
        let reply = self.connection()?.pttl(&self.acquirer.name).await;
        let pttl = reply.map_err(|failure| failure.into_unavailable("remaining"))?;
        if pttl == -2 {
            return Ok(None);
        }
        let remaining = u64::try_from(pttl).map_or(Duration::MAX, Duration::from_millis);
        Ok(Some(remaining))
    }

    /// How often `owner` holds the lock, according to the server; 0 if it does not.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn hold_count(&self, owner: &Owner) -> Result<u32, Error> {
        let reply = self
            .connection()?
            .hold_count(&self.acquirer.request(owner))
            .await;
        let count = reply.map_err(|failure| failure.into_unavailable("hold count"))?;
        Ok(count.unwrap_or(0))
    }

    /// Whether any owner holds the lock; of a read-write lock, this side of it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn is_locked(&self) -> Result<bool, Error> {
        let reply = self
            .connection()?
            .is_held(&self.acquirer.name, K::KIND)
            .await;
        reply.map_err(|failure| failure.into_unavailable("is locked"))
    }
}
