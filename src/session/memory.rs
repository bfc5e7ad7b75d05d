//! [`SessionMemory`]: the sessions that this process has read, and for how long it may use them.
//!
//! A session in memory has not ended, as far as this process has been told: when its end is reported, it is removed. If that
//! happens while the session is being read from Redis, the reader cannot store it any more. So a session that was read before
//! its end is never found after it, whichever of the two replies arrives first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::{Cache, GuardResult};
use tokio::time::Instant;

use super::token::Token;
use super::user::CurrentUser;
use crate::error::Error;

/// How long a session is used after Redis was last asked, either for the session or, by a PING, whether all ends were reported.
/// A sign-out on any node thus takes effect on all within a second, with time to spare.
pub(super) const TRUST: Duration = Duration::from_millis(800);

/// How long a session is used at most while ends are reported, so that a session in use is renewed.
const MAX_AGE: Duration = Duration::from_secs(300);

/// The sessions in memory.
pub(super) struct SessionMemory {
    /// Each with the moment when Redis was asked for it.
    sessions: Cache<Token, (Arc<CurrentUser>, Instant)>,
    created_at: Instant,
    /// Until when all ends are known to have been reported, in nanoseconds after `created_at`.
    reported_until: AtomicU64,
}

impl SessionMemory {
    pub(super) fn new(capacity: usize) -> Self {
        SessionMemory {
            sessions: Cache::new(capacity),
            created_at: Instant::now(),
            reported_until: AtomicU64::new(0),
        }
    }

    /// The user of the session, where it is valid now.
    pub(super) fn get(&self, token: &Token) -> Option<Arc<CurrentUser>> {
        // Before the session is looked up: what a new connection confirms does not hold for sessions from before it.
        let now = Instant::now();
        let max_age = self.max_age(now);
        let (user, asked_at) = self.sessions.get(token)?;
        (now.saturating_duration_since(asked_at) < max_age).then_some(user)
    }

    fn max_age(&self, now: Instant) -> Duration {
        if self.is_tracked(now) { MAX_AGE } else { TRUST }
    }

    /// What `load` finds in Redis; a session that does not end meanwhile is kept. If several callers read one session at the
    /// same time, only the first one's result is kept.
    pub(super) async fn read(
        &self,
        token: &Token,
        load: impl Future<Output = Result<Option<CurrentUser>, Error>>,
    ) -> Result<Option<Arc<CurrentUser>>, Error> {
        let asked_at = Instant::now();
        let max_age = self.max_age(asked_at);
        self.sessions
            .remove_if(token, |(_, asked_at)| asked_at.elapsed() >= max_age);
        let place = self
            .sessions
            .get_value_or_guard(token, Some(Duration::ZERO));
        let user = load.await?.map(Arc::new);
        if let (GuardResult::Guard(place), Some(user)) = (place, &user) {
            // Refused where the session ended meanwhile.
            drop(place.insert((user.clone(), asked_at)));
        }
        Ok(user)
    }

    /// The session has ended, or changed, in Redis: nothing that was read before is used any more.
    pub(super) fn end(&self, token: &Token) {
        self.sessions.remove(token);
    }

    /// Every session may have ended.
    pub(super) fn end_all(&self) {
        self.sessions.clear();
    }

    /// Every end before `asked_at` was reported, of all sessions that were read since the last [`SessionMemory::end_all`].
    pub(super) fn confirm(&self, asked_at: Instant) {
        self.reported_until
            .store(self.nanos(asked_at + TRUST), Ordering::Release);
    }

    /// Ends are no longer reported.
    pub(super) fn lose_track(&self) {
        self.reported_until.store(0, Ordering::Release);
    }

    pub(super) fn is_tracked(&self, now: Instant) -> bool {
        self.nanos(now) < self.reported_until.load(Ordering::Acquire)
    }

    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// From `created_at` to `instant`; 64 bits are enough for 584 years.
    fn nanos(&self, instant: Instant) -> u64 {
        u64::try_from(
            instant
                .saturating_duration_since(self.created_at)
                .as_nanos(),
        )
        .unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_session_that_was_read_before_its_end_is_not_used_after_it() {
        let memory = SessionMemory::new(8);
        let token = Token::random();
        assert!(
            !memory.is_tracked(memory.created_at),
            "nothing was reported yet"
        );
        let user = CurrentUser {
            id: 1,
            nick_name: String::new(),
            icon: String::new(),
        };
        let found = || Ok(Some(user.clone()));
        let kept = Some(Arc::new(user.clone()));
        let ends: [fn(&SessionMemory, &Token); 2] = [
            |memory, token| memory.end(token),
            |memory, _| memory.end_all(),
        ];
        for end in ends {
            assert_eq!(memory.read(&token, async { found() }).await.unwrap(), kept);
            assert_eq!(memory.get(&token), kept);
            end(&memory, &token);
            assert_eq!(memory.get(&token), None);
            let read = memory.read(&token, async {
                end(&memory, &token);
                found()
            });
            assert_eq!(read.await.unwrap(), kept);
            assert_eq!(memory.get(&token), None, "it was asked for before the end");
        }
        // Two at a time: the second neither waits for the first nor takes its place.
        let first = memory.read(&token, async {
            assert_eq!(memory.read(&token, async { found() }).await.unwrap(), kept);
            assert_eq!(memory.get(&token), None);
            found()
        });
        assert_eq!(first.await.unwrap(), kept);
        assert_eq!(memory.get(&token), kept);
        // A PING counts from when it was sent, not from its answer.
        let Some(long_ago) = Instant::now().checked_sub(TRUST) else {
            return;
        };
        memory.confirm(long_ago);
        assert!(!memory.is_tracked(Instant::now()));
    }

    /// It may have ended as soon as Redis had read it.
    #[tokio::test(start_paused = true)]
    async fn a_session_is_as_old_as_the_question_for_it() {
        let memory = SessionMemory::new(8);
        let token = Token::random();
        let read = memory.read(&token, async {
            tokio::time::advance(TRUST).await;
            Ok(Some(CurrentUser {
                id: 1,
                nick_name: String::new(),
                icon: String::new(),
            }))
        });
        assert!(read.await.unwrap().is_some());
        assert_eq!(memory.get(&token), None);
    }

    /// Its time to live goes down in Redis while this process answers for it: a session in use must not end.
    #[tokio::test(start_paused = true)]
    async fn a_session_in_use_is_looked_up_often_enough_to_be_renewed() {
        let memory = SessionMemory::new(8);
        let token = Token::random();
        let user = CurrentUser {
            id: 1,
            nick_name: String::new(),
            icon: String::new(),
        };
        let mut looked_up = Instant::now();
        for _ in 0..7200 {
            // No end is ever missing, so nothing else makes this process ask.
            memory.confirm(Instant::now());
            if memory.get(&token).is_none() {
                let read = memory.read(&token, async { Ok(Some(user.clone())) });
                read.await.unwrap();
                looked_up = Instant::now();
            }
            let answered_alone = looked_up.elapsed();
            assert!(
                answered_alone < Duration::from_secs(600),
                "{answered_alone:?}"
            );
            tokio::time::advance(Duration::from_millis(500)).await;
        }
    }
}
