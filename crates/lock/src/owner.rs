//! Owners of locks. An owner is a value that the caller passes, not the identity of a task or a
//! thread: task ids are reused, shared by the branches of a `join!`, and changed by a `spawn`.

use std::fmt;

use uuid::Uuid;

/// An owner of locks; on the wire `<client uuid>:<decimal id>`.
///
/// An owner may acquire a lock it already holds (re-entry), from any task, through the
/// [`Locks`](crate::Locks) that made it or a clone; two owners exclude each other even within one
/// process. Make one per unit of work with [`Locks::owner`](crate::Locks::owner).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    client: Uuid,
    id: u64,
}

impl Owner {
    /// An owner of this client. Ids are 63 bits wide: other clients read them as signed.
    pub(crate) fn new(client: Uuid, id: u64) -> Self {
        Self {
            client,
            id: id & (u64::MAX >> 1),
        }
    }

    pub(crate) fn is_of(&self, client: Uuid) -> bool {
        self.client == client
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client.hyphenated(), self.id)
    }
}
