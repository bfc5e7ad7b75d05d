//! One owner's business with one lock, and under which names it appears in Redis. Text only.
//!
//! The names are Redisson's (`RedissonObject.prefixName` and `suffixName`, the same from 3.13 to
//! 4.7): every further key and channel carries the lock's name as its hash tag, so that all of a
//! lock is in one slot of a Redis Cluster.

use std::sync::Arc;

use super::Owner;
use super::kind::Kind;
use super::name::LockName;

/// Who wants, waits for, or holds which lock in which way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) name: LockName,
    pub(super) kind: Kind,
    pub(super) owner: Owner,
}

/// The channel of a lock; of a fair one, what the channel of each waiter begins with.
pub(super) fn channel(name: &LockName, kind: Kind) -> Arc<str> {
    match kind {
        Kind::Reentrant | Kind::Fenced | Kind::Fair => name.channel().clone(),
        Kind::Read | Kind::Write => name.prefixed("redisson_rwlock").into(),
    }
}

impl Claim {
    /// The owner's field in the lock's hash.
    pub(super) fn field(&self) -> String {
        match self.kind {
            Kind::Write => format!("{}:write", self.owner),
            _ => self.owner.to_string(),
        }
    }

    /// The channel on which this owner hears that it is worth trying again.
    pub(super) fn channel(&self) -> Arc<str> {
        let channel = channel(&self.name, self.kind);
        match self.kind {
            Kind::Fair => format!("{channel}:{}", self.owner).into(),
            _ => channel,
        }
    }
}
