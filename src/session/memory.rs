//! [`SessionMemory`]: the sessions that this process has read, and for how long it may use them.
//!
//! A session that is in memory has not ended, as far as this process has been told: what ends a session raises a counter
//! and then removes the session. A session that was read is kept only while the counter is as it was *before* Redis was
//! asked, which is compared while its place is reserved. So a session that was read before its end is never kept after
//! it, in whatever order the two arrive; and a session in memory does not depend on the counters, which other tokens
//! share.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quick_cache::sync::{Cache, EntryAction, EntryResult};

use super::token::Token;
use super::user::CurrentUser;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How long a session is used after Redis was asked, for it or for ends of sessions that were not yet reported. A
/// sign-out on any node thus takes effect on all within a second, with time to spare.
pub(super) const TRUST: Duration = Duration::from_millis(800);

/// How long a session is used at most while ends are reported, so that a session in use is renewed.
pub(super) const MAX_AGE: Duration = Duration::from_secs(300);

/// Counters of ends that all tokens share: an end also makes this process not keep the few sessions with the same counter
/// that are being looked up.
const COUNTERS: usize = if cfg!(test) { 4 } else { 1024 };

/// The sessions in memory.
pub(super) struct SessionMemory {
    sessions: Cache<Token, Session>,
    ends: Box<[AtomicU64]>,
    hasher: RandomState,
    created_at: Instant,
    /// Until when all ends are known to have been reported, in nanoseconds after `created_at`.
    reported_until: AtomicU64,
}

/// A session that was read from Redis.
#[derive(Clone)]
struct Session {
    user: Arc<CurrentUser>,
    read_at: Instant,
}

/// The number of ends at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends(u64);

impl SessionMemory {
    /// At most `capacity` sessions.
    pub(super) fn new(capacity: usize) -> Self {
        SessionMemory {
            sessions: Cache::new(capacity),
            ends: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            created_at: Instant::now(),
            reported_until: AtomicU64::new(0),
        }
    }

    /// The user of the session, where it is valid at `now`.
    pub(super) fn get(&self, token: &Token, now: Instant) -> Option<Arc<CurrentUser>> {
        // Before the session is looked for: what a new connection confirms is not true of sessions from before it.
        let max_age = if self.is_tracked(now) { MAX_AGE } else { TRUST };
        let session = self.sessions.get(token)?;
        (now < session.read_at + max_age).then_some(session.user)
    }

    /// To be taken before Redis is asked for the session.
    pub(super) fn ends(&self, token: &Token) -> Ends {
        Ends(self.counter(token).load(Ordering::Acquire))
    }

    /// Keeps a session that was asked for at `read_at`, after `ends` was taken, unless it may have ended since.
    pub(super) fn keep(&self, token: &Token, user: Arc<CurrentUser>, ends: Ends, read_at: Instant) {
        let replace = |_: &Token, _: &mut Session| EntryAction::<()>::ReplaceWithGuard;
        let reserved = match self.sessions.entry(token, Some(Duration::ZERO), replace) {
            EntryResult::Vacant(reserved) | EntryResult::Replaced(reserved, _) => reserved,
            // Another request is keeping it.
            _ => return,
        };
        if ends == self.ends(token) {
            // It is not inserted where its end comes now, which removes the reservation.
            drop(reserved.insert(Session { user, read_at }));
        }
    }

    /// Redis has no such session.
    pub(super) fn remove(&self, token: &Token) {
        self.sessions.remove(token);
    }

    /// The session has ended, or changed, in Redis: nothing that was read before is used any more.
    pub(super) fn end(&self, token: &Token) {
        self.counter(token).fetch_add(1, Ordering::AcqRel);
        self.sessions.remove(token);
    }

    /// Every session may have ended.
    pub(super) fn end_all(&self) {
        for counter in &self.ends {
            counter.fetch_add(1, Ordering::AcqRel);
        }
        self.sessions.clear();
    }

    /// Every end before `asked_at` was reported, of all sessions that were read since the last [`SessionMemory::end_all`].
    pub(super) fn confirm(&self, asked_at: Instant) {
        self.reported_until.store(self.nanos(asked_at + TRUST), Ordering::Release);
    }

    /// Ends are no longer reported.
    pub(super) fn lose_track(&self) {
        self.reported_until.store(0, Ordering::Release);
    }

    /// Whether ends are reported.
    pub(super) fn is_tracked(&self, now: Instant) -> bool {
        self.nanos(now) < self.reported_until.load(Ordering::Acquire)
    }

    /// Sessions in memory.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    fn counter(&self, token: &Token) -> &AtomicU64 {
        &self.ends[self.hasher.hash_one(token) as usize % COUNTERS]
    }

    /// Enough for 584 years.
    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.created_at).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod interleavings;
