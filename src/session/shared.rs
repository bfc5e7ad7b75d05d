//! Sessions in Redis, shared by all nodes. Each node caches the sessions that it sees for less than a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use quick_cache::sync::Cache;
use redis::AsyncCommands;
use redis::aio::ConnectionManager;

use super::renewal::{self, Renewed};
use super::token::{MAX_IN_MEMORY, SESSION_TTL, Token};
use super::user::CurrentUser;
use crate::connection::coalescer::Coalescer;
use crate::error::Error;

/// How long a node uses a session that it read from Redis. A logout on any node thus takes effect on all within a
/// second, with time to spare, and a busy user's session is looked up about once a second instead of at every request.
const CACHE_TTL: Duration = Duration::from_millis(800);

/// The sessions. Cheap to clone.
#[derive(Clone)]
pub struct SharedSessions {
    redis: ConnectionManager,
    renewals: Coalescer<Token, Renewed>,
    recent: Arc<Cache<Token, Cached>>,
    lookups: Arc<Lookups>,
}

/// Lookups, by the place that answered.
#[derive(Default)]
struct Lookups {
    memory: AtomicU64,
    redis: AtomicU64,
}

/// A session that was read from Redis.
#[derive(Clone)]
struct Cached {
    user: Arc<CurrentUser>,
    expires_at: Instant,
}

impl SharedSessions {
    /// Sessions kept on this Redis.
    pub fn new(redis: ConnectionManager) -> Self {
        let renewals = renewal::start(redis.clone());
        let recent = Arc::new(Cache::new(MAX_IN_MEMORY));
        SharedSessions { redis, renewals, recent, lookups: Arc::default() }
    }

    /// Opens a session; fields and time to live are written atomically.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where Redis does not answer.
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
        if let Some(cached) = self.recent.get(&token)
            && now < cached.expires_at
        {
            self.lookups.memory.fetch_add(1, Relaxed);
            return Ok(Some(cached.user));
        }
        self.lookups.redis.fetch_add(1, Relaxed);
        let renewed = self.renewals.request(token).await;
        let user = renewed.unwrap_or(Err(Error::Unavailable("Redis")))?.map(Arc::new);
        match &user {
            // Counted from before the lookup, so that a logout in between takes effect in time.
            Some(user) => {
                let cached = Cached { user: user.clone(), expires_at: now + CACHE_TTL };
                self.recent.insert(token, cached);
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

    /// Sessions in memory, lookups answered from memory, lookups answered by Redis.
    pub(super) fn stats(&self) -> (usize, u64, u64) {
        let Lookups { memory, redis } = &*self.lookups;
        (self.recent.len(), memory.load(Relaxed), redis.load(Relaxed))
    }

    pub(super) async fn shutdown(&self) {
        self.renewals.shutdown().await;
    }
}
