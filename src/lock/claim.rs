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

impl Claim {
    /// The owner's field in the lock's hash.
    pub(super) fn field(&self) -> String {
        match self.kind {
            Kind::Write => self.writer(),
            _ => self.owner.to_string(),
        }
    }

    /// The owner's field as a writer.
    pub(super) fn writer(&self) -> String {
        format!("{}:write", self.owner)
    }

    /// The channel on which this owner hears that it is worth trying again.
    pub(super) fn channel(&self) -> Arc<str> {
        match self.kind {
            Kind::Reentrant | Kind::Fenced => self.name.channel().clone(),
            Kind::Fair => format!("{}:{}", self.name.channel(), self.owner).into(),
            Kind::Read | Kind::Write => self.name.prefixed("redisson_rwlock").into(),
        }
    }

    /// What the keys of all holds of this owner begin with; `:<number>` follows.
    pub(super) fn holds(&self) -> String {
        format!("{}:{}:rwlock_timeout", self.name.suffixed(), self.owner)
    }
}
