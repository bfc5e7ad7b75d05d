//! Sessions in Redis, shared by all nodes. Each node keeps those that it has seen in memory until Redis reports that they
//! ended, and looks many up in one round trip: at the start of a sale every buyer's first request needs its session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{AsyncCommands, ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::invalidations;
use super::memory::SessionMemory;
use super::token::{MAX_IN_MEMORY, SESSION_TTL, Token};
use super::user::CurrentUser;
use crate::connection::coalescer::Coalescer;
use crate::connection::redis::{Redis, RoutedConnection};
use crate::error::{Cause, Error};
use crate::keys::KeyStyle;
use crate::scripts::SESSION_RENEW;

/// Sessions that one script call renews at most, so that it never blocks Redis for long.
const MAX_BATCH: usize = 128;

/// A session's time to live is renewed at most this often. A write at every request would cost more than the lookup. It would
/// also be reported to all nodes, which would then look the session up once more. Ten minutes are nothing in 25 days.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(600);

type Renewed = Result<Option<CurrentUser>, Error>;

/// The sessions. Cheap to clone.
#[derive(Clone)]
pub struct SharedSessions {
    redis: RoutedConnection,
    /// Renews many in one script; `None` in the key style of a cluster, where each session is in a slot of its own.
    renewals: Option<Coalescer<Token, Renewed>>,
    memory: Arc<SessionMemory>,
    /// The task that is told which sessions end.
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Lookups answered from memory, and by Redis.
    lookups: Arc<[AtomicU64; 2]>,
}

/// Counters of one process's session lookups, and the sessions in its memory.
#[allow(missing_docs)] // under their names
pub struct SessionStats {
    pub in_memory: usize,
    pub from_memory: u64,
    pub from_redis: u64,
    /// Whether Redis reports sessions that end.
    pub tracked: bool,
}

impl SharedSessions {
    /// Sessions kept on this Redis, whose keys are named in this style.
    pub fn new(redis: RoutedConnection, style: KeyStyle) -> Self {
        let connection = redis.clone();
        let renewals = (style == KeyStyle::Default)
            .then(|| Coalescer::start(MAX_BATCH, move |tokens| renew(connection.clone(), tokens)));
        let memory = Arc::new(SessionMemory::new(MAX_IN_MEMORY));
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        SharedSessions {
            redis,
            renewals,
            memory,
            tasks,
            stop,
            lookups: Arc::default(),
        }
    }

    /// From now on Redis reports sessions that end, until the shutdown; not on a cluster.
    pub fn track(&self, nodes: Redis) {
        if !nodes.is_cluster() {
            let receiving = invalidations::receive(nodes, self.memory.clone());
            self.tasks
                .spawn(self.stop.clone().run_until_cancelled_owned(receiving));
        }
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

    /// The user of the session with this token, from memory, or in one round trip that also renews the session's time to live
    /// where that is due; `None` where there is no such session.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where Redis does not answer.
    pub async fn renew(&self, token: Token) -> Result<Option<Arc<CurrentUser>>, Error> {
        if let Some(user) = self.memory.get(&token) {
            self.lookups[0].fetch_add(1, Relaxed);
            return Ok(Some(user));
        }
        self.lookups[1].fetch_add(1, Relaxed);
        let lookup = async {
            let renewed = match &self.renewals {
                Some(renewals) => renewals.request(token).await,
                // The connection sends commands that come together in one write, and each node answers for itself. Boxed: every
                // request would carry the future's size, and most need no round trip.
                None => Box::pin(renew(self.redis.clone(), vec![token])).await.pop(),
            };
            renewed.unwrap_or(Err(Error::Unavailable(Cause::Redis)))
        };
        self.memory.read(&token, lookup).await
    }

    /// Ends a session: here at once, on every other node as soon as Redis reports it, within a second at the latest.
    pub async fn end(&self, token: Token) -> Result<(), Error> {
        let () = self.redis.clone().del(token.key()).await?;
        self.memory.end(&token);
        Ok(())
    }

    /// Counters for metrics.
    pub fn stats(&self) -> SessionStats {
        let [from_memory, from_redis] = [0, 1].map(|place| self.lookups[place].load(Relaxed));
        let tracked = self.memory.is_tracked(Instant::now());
        SessionStats {
            in_memory: self.memory.len(),
            from_memory,
            from_redis,
            tracked,
        }
    }

    /// Stops the background tasks. To be called after the last request.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        if let Some(renewals) = &self.renewals {
            renewals.shutdown().await;
        }
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Renews these sessions in one script. A key that the Redis user may not use fails the whole script; then each session is
/// renewed alone.
async fn renew(redis: RoutedConnection, tokens: Vec<Token>) -> Vec<Renewed> {
    match renew_together(redis.clone(), &tokens).await {
        Ok(renewed) => renewed,
        Err(error) if is_forbidden(&error) && tokens.len() > 1 => {
            let alone = tokens.iter().map(async |token| {
                let renewed = renew_together(redis.clone(), &[*token]).await;
                let mut renewed = renewed.unwrap_or_else(|error| vec![Err(error.into())]);
                renewed
                    .pop()
                    .unwrap_or(Err(Error::Unavailable(Cause::Redis)))
            });
            join_all(alone).await
        }
        Err(error) => {
            let error = Error::from(error);
            tokens.iter().map(|_| Err(error.clone())).collect()
        }
    }
}

fn is_forbidden(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
}

async fn renew_together(
    mut redis: RoutedConnection,
    tokens: &[Token],
) -> RedisResult<Vec<Renewed>> {
    let mut script = SESSION_RENEW.prepare_invoke();
    script
        .arg(SESSION_TTL.as_secs())
        .arg(RENEWAL_INTERVAL.as_secs());
    for token in tokens {
        script.key(token.key());
    }
    let fields: Vec<String> = script.invoke_async(&mut redis).await?;
    let mut fields = fields.into_iter();
    Ok(tokens.iter().map(|_| user(&mut fields)).collect())
}

/// The user of the next session in the script's reply; `None` where its id is no number.
fn user(fields: &mut impl Iterator<Item = String>) -> Renewed {
    let mut field = || fields.next().unwrap_or_default();
    let id = field();
    let nick_name = field();
    let icon = field();
    let error = field();
    let user = id.parse().ok().map(|id| CurrentUser {
        id,
        nick_name,
        icon,
    });
    if error.is_empty() {
        return Ok(user);
    }
    match &user {
        // It is valid for the rest of its time to live.
        Some(found) => {
            tracing::warn!(user_id = found.id, error, "a session is not renewed");
            Ok(user)
        }
        None => {
            tracing::warn!(error, "a session cannot be read");
            Err(Error::Unavailable(Cause::Redis))
        }
    }
}
