//! A lock request: which owner wants, waits for, or holds which lock as which kind, and the field
//! and channel that belong to it in Redis.

use std::sync::Arc;

use crate::kind::Kind;
use crate::name::Name;
use crate::owner::Owner;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockRequest {
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    pub(crate) owner: Owner,
}

/// The channel of a lock; of a fair lock, the prefix of its waiters' channels.
pub(crate) fn channel(name: &Name, kind: Kind) -> String {
    name.prefixed(match kind {
        Kind::Reentrant | Kind::Fenced | Kind::Fair => "redisson_lock__channel",
        Kind::Read | Kind::Write => "redisson_rwlock",
    })
}

impl LockRequest {
    pub(crate) fn field(&self) -> String {
        match self.kind {
            Kind::Write => format!("{}:write", self.owner),
            _ => self.owner.to_string(),
        }
    }

    /// The channel of the messages that wake this owner.
    pub(crate) fn channel(&self) -> Arc<str> {
        let channel = channel(&self.name, self.kind);
        match self.kind {
            Kind::Fair => format!("{channel}:{}", self.owner).into(),
            _ => channel.into(),
        }
    }
}
