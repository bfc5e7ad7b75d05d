//! Sessions: a token in the client's hand, a hash in Redis under `login:token:{token}`, shared by
//! every node of either language. Nothing here knows how a user signs in.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quick_cache::sync::Cache;
use redis::aio::ConnectionManager;
use redis::{AsyncCommands, Script};
use serde::Serialize;

use crate::error::Error;

/// How long a session lives after its last request: 36 000 minutes, as on a Java node.
pub const SESSION_TTL: Duration = Duration::from_secs(36_000 * 60);

/// How long a node believes what Redis said of a token. A logout on any node is thus honoured on all
/// within a second, with time to spare, and a busy user's session is renewed about once a second
/// instead of at every request.
const BELIEVED_FOR: Duration = Duration::from_millis(800);

/// Sessions a node remembers at most: some 20 MB when full.
const REMEMBERED: usize = 100_000;

/// The cookie's name.
const COOKIE: &str = "SESSION";

static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/session_renew.lua")));

/// Who is signed in.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CurrentUser {
    /// `tb_user.id`.
    pub id: i64,
    /// The name shown to others.
    pub nick_name: String,
    /// The address of the user's picture; may be empty.
    pub icon: String,
}

/// A session token: 32 lowercase hexadecimal characters, 122 random bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token(String);

impl Token {
    /// A new token that cannot be guessed (a version 4 UUID from the system's random source).
    pub fn random() -> Self {
        Token(uuid::Uuid::new_v4().simple().to_string())
    }

    /// Reads the `authorization` header's value, with or without the `Bearer ` prefix. Anything that
    /// is not a token's shape is `None`, so that no forged text ever becomes part of a Redis key.
    pub fn parse(header: &str) -> Option<Self> {
        let text = header.strip_prefix("Bearer ").unwrap_or(header);
        let is_token = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_token.then(|| Token(text.to_owned()))
    }

    /// The token's text, for the one reply that hands it out.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The cookie in which [`ProcessSessions`] hand it out.
    pub fn cookie(&self) -> String {
        format!("{COOKIE}={}; Path=/; HttpOnly; SameSite=Lax", self.0)
    }

    /// Reads a `cookie` header's value.
    pub fn from_cookie(header: &str) -> Option<Self> {
        let pairs = header.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(|(name, _)| *name == COOKIE).find_map(|(_, value)| Token::parse(value))
    }

    fn key(&self) -> String {
        format!("login:token:{}", self.0)
    }
}

/// The sessions, wherever they are kept.
#[derive(Clone)]
pub enum Sessions {
    /// In Redis, shared by all nodes.
    Shared(SharedSessions),
    /// In this process's memory: where the story starts. Lab only.
    Process(ProcessSessions),
}

impl Sessions {
    /// Opens a session.
    pub async fn create(&self, user: &CurrentUser) -> Result<Token, Error> {
        match self {
            Sessions::Shared(sessions) => sessions.create(user).await,
            Sessions::Process(sessions) => Ok(sessions.create(user)),
        }
    }

    /// Finds the session of `token` and starts its time to live anew.
    pub async fn renew(&self, token: &Token) -> Result<Option<CurrentUser>, Error> {
        match self {
            Sessions::Shared(sessions) => sessions.renew(token).await,
            Sessions::Process(sessions) => Ok(sessions.find(token)),
        }
    }

    /// Ends a session.
    pub async fn end(&self, token: &Token) -> Result<(), Error> {
        match self {
            Sessions::Shared(sessions) => sessions.end(token).await,
            Sessions::Process(sessions) => {
                sessions.end(token);
                Ok(())
            }
        }
    }

    /// Whether the token travels in a cookie instead of the `authorization` header.
    pub fn uses_cookie(&self) -> bool {
        matches!(self, Sessions::Process(_))
    }
}

/// The sessions of all nodes, in Redis, each remembered for a moment by the nodes that see it.
#[derive(Clone)]
pub struct SharedSessions {
    redis: ConnectionManager,
    recent: Arc<Cache<Token, Seen>>,
}

/// What Redis said of a token.
#[derive(Clone)]
struct Seen {
    user: CurrentUser,
    believed_until: Instant,
}

impl SharedSessions {
    /// Sessions kept on this Redis.
    pub fn new(redis: ConnectionManager) -> Self {
        SharedSessions { redis, recent: Arc::new(Cache::new(REMEMBERED)) }
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
    pub async fn renew(&self, token: &Token) -> Result<Option<CurrentUser>, Error> {
        let now = Instant::now();
        if let Some(seen) = self.recent.get(token)
            && now < seen.believed_until
        {
            return Ok(Some(seen.user));
        }
        let found: Option<(i64, String, String)> = RENEW
            .key(token.key())
            .arg(SESSION_TTL.as_secs())
            .invoke_async(&mut self.redis.clone())
            .await?;
        let user = found.map(|(id, nick_name, icon)| CurrentUser { id, nick_name, icon });
        match &user {
            // Counted from before the question: a logout in between is honoured in time.
            Some(user) => {
                let seen = Seen { user: user.clone(), believed_until: now + BELIEVED_FOR };
                self.recent.insert(token.clone(), seen);
            }
            None => drop(self.recent.remove(token)),
        }
        Ok(user)
    }

    /// Ends a session: here at once, on every other node within a second.
    pub async fn end(&self, token: &Token) -> Result<(), Error> {
        let () = self.redis.clone().del(token.key()).await?;
        self.recent.remove(token);
        Ok(())
    }
}

/// Sessions in one process's memory, as a servlet container keeps them. A second node behind the same
/// proxy knows nothing of them and answers 401: the reason why sessions moved to Redis. Never for
/// production: they end with the process.
#[derive(Clone, Default)]
pub struct ProcessSessions(Arc<Mutex<HashMap<Token, CurrentUser>>>);

impl ProcessSessions {
    fn create(&self, user: &CurrentUser) -> Token {
        let token = Token::random();
        let mut sessions = self.sessions();
        if sessions.len() >= REMEMBERED {
            sessions.clear();
        }
        sessions.insert(token.clone(), user.clone());
        token
    }

    fn find(&self, token: &Token) -> Option<CurrentUser> {
        self.sessions().get(token).cloned()
    }

    fn end(&self, token: &Token) {
        self.sessions().remove(token);
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Token, CurrentUser>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_32_hex_characters_with_or_without_the_prefix() {
        let token = Token::random();
        assert_eq!(Token::parse(token.as_str()), Some(token.clone()));
        assert_eq!(Token::parse(&format!("Bearer {}", token.as_str())), Some(token));
        for forged in ["", "Bearer ", "abc", "*", &"g".repeat(32), &"a".repeat(33)] {
            assert_eq!(Token::parse(forged), None, "{forged}");
        }
    }
}
