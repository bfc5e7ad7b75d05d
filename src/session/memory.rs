//! [`SessionMemory`]: the sessions that this process has read lately, kept for a moment.
//!
//! A session is valid only under the number of logouts with which it was read. The number is taken *before* Redis is
//! asked, and a logout raises it after Redis has deleted the session. So what was read before a logout here is not used
//! after it, in whatever order the two arrive.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use quick_cache::sync::Cache;

use super::token::Token;
use super::user::CurrentUser;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Counters of logouts that all tokens share: a logout also makes this process look up the few other sessions with the
/// same counter once more.
const COUNTERS: usize = 1024;

/// The sessions in memory.
pub(super) struct SessionMemory {
    sessions: Cache<Token, Session>,
    logouts: Box<[AtomicU64]>,
    hasher: RandomState,
}

/// A session that was read from Redis.
#[derive(Clone)]
struct Session {
    user: Arc<CurrentUser>,
    expires_at: Instant,
    logouts: Logouts,
}

/// The number of logouts at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Logouts(u64);

impl SessionMemory {
    /// At most `capacity` sessions.
    pub(super) fn new(capacity: usize) -> Self {
        SessionMemory {
            sessions: Cache::new(capacity),
            logouts: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }

    /// The user of the session, where it is valid at `now`.
    pub(super) fn get(&self, token: &Token, now: Instant) -> Option<Arc<CurrentUser>> {
        let session = self.sessions.get(token)?;
        let is_valid = now < session.expires_at && session.logouts == self.logouts(token);
        is_valid.then_some(session.user)
    }

    /// To be taken before Redis is asked for the session.
    pub(super) fn logouts(&self, token: &Token) -> Logouts {
        Logouts(self.counter(token).load(Ordering::Acquire))
    }

    /// Keeps a session that was read after `logouts` was taken.
    pub(super) fn keep(
        &self,
        token: Token,
        user: Arc<CurrentUser>,
        logouts: Logouts,
        expires_at: Instant,
    ) {
        self.sessions.insert(token, Session { user, expires_at, logouts });
    }

    /// Redis has no such session.
    pub(super) fn remove(&self, token: &Token) {
        self.sessions.remove(token);
    }

    /// Redis has deleted the session: nothing that was read before is used any more.
    pub(super) fn end(&self, token: &Token) {
        self.counter(token).fetch_add(1, Ordering::AcqRel);
        self.sessions.remove(token);
    }

    /// Sessions in memory.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    fn counter(&self, token: &Token) -> &AtomicU64 {
        &self.logouts[self.hasher.hash_one(token) as usize % COUNTERS]
    }
}

#[cfg(test)]
mod interleavings;
