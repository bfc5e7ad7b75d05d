//! The sessions of all nodes, in Redis, each remembered for a moment by the nodes that see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use quick_cache::sync::Cache;
use redis::AsyncCommands;
use redis::aio::ConnectionManager;

use super::renewals::{self, Renewed};
use super::{CurrentUser, REMEMBERED, SESSION_TTL, SessionStats, Token};
use crate::conn::shared_trip::SharedTrip;
use crate::error::Error;

/// How long a node believes what Redis said of a token. A logout on any node is thus honoured on all
/// within a second, with time to spare, and a busy user's session is looked up about once a second
/// instead of at every request.
const BELIEVED_FOR: Duration = Duration::from_millis(800);

/// The sessions. Cheap to clone.
#[derive(Clone)]
pub struct SharedSessions {
    redis: ConnectionManager,
    renewals: SharedTrip<Token, Renewed>,
    recent: Arc<Cache<Token, Seen>>,
    lookups: Arc<Lookups>,
}

/// Lookups, by who answered.
#[derive(Default)]
struct Lookups {
    memory: AtomicU64,
    redis: AtomicU64,
}

/// What Redis said of a token.
#[derive(Clone)]
struct Seen {
    user: Arc<CurrentUser>,
    believed_until: Instant,
}

impl SharedSessions {
    /// Sessions kept on this Redis.
    pub fn new(redis: ConnectionManager) -> Self {
        let renewals = renewals::start(redis.clone());
        let recent = Arc::new(Cache::new(REMEMBERED));
        SharedSessions { redis, renewals, recent, lookups: Arc::default() }
    }

    /// Opens a session; fields and time to live are written atomically.
    pub async fn create(&self, user: &CurrentUser) -> Result<Token, Error> {
        let token = Token::random();
        let fields = [
            ("id", user.id.to_string()),
            ("nickName", user.nick_name.clone()),
            ("icon", user.icon.clone()),
        ];
        redis::pipe()
            .atomic()
            .hset_multiple(token.key(), &fields)
            .ignore()
            .expire(token.key(), SESSION_TTL.as_secs().cast_signed())
            .ignore()
            .query_async::<()>(&mut self.redis.clone())
            .await?;
        Ok(token)
    }

    /// Finds the session of `token` and starts its time to live anew: from memory, or in one round
    /// trip.
    pub(super) async fn renew(&self, token: Token) -> Result<Option<Arc<CurrentUser>>, Error> {
        let now = Instant::now();
        if let Some(seen) = self.recent.get(&token)
            && now < seen.believed_until
        {
            self.lookups.memory.fetch_add(1, Relaxed);
            return Ok(Some(seen.user));
        }
        self.lookups.redis.fetch_add(1, Relaxed);
        let renewed = self.renewals.ask(token).await;
        let user = renewed.unwrap_or(Err(Error::Unavailable("Redis")))?.map(Arc::new);
        match &user {
            // Counted from before the question: a logout in between is honoured in time.
            Some(user) => {
                let seen = Seen { user: user.clone(), believed_until: now + BELIEVED_FOR };
                self.recent.insert(token, seen);
            }
            None => drop(self.recent.remove(&token)),
        }
        Ok(user)
    }

    /// Ends a session: here at once, on every other node within a second.
    pub(super) async fn end(&self, token: Token) -> Result<(), Error> {
        let () = self.redis.clone().del(token.key()).await?;
        self.recent.remove(&token);
        Ok(())
    }

    pub(super) fn stats(&self) -> SessionStats {
        SessionStats {
            remembered: self.recent.len(),
            from_memory: self.lookups.memory.load(Relaxed),
            from_redis: self.lookups.redis.load(Relaxed),
        }
    }

    pub(super) async fn shutdown(&self) {
        self.renewals.shutdown().await;
    }
}
