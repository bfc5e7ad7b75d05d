//! Sessions: a token in the client's hand, a hash in Redis under `login:token:{token}`, shared by
//! every node of either language. Nothing here knows how a user signs in.
//!
//! - [`shared`]: the sessions of all nodes, each remembered for a moment; [`renewals`]: those that are asked
//!   for at the same time share a round trip.
//! - [`process`]: sessions in one node's memory, for the lab.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Error;

mod process;
mod renewals;
mod shared;

pub use process::ProcessSessions;
pub use shared::SharedSessions;

/// How long a session lives after its last request: 36 000 minutes, as on a Java node.
pub const SESSION_TTL: Duration = Duration::from_secs(36_000 * 60);

/// Sessions a node remembers at most: some 20 MB when full.
const REMEMBERED: usize = 100_000;

/// The cookie's name.
const COOKIE: &str = "SESSION";

/// A user, as others see it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = User)]
#[serde(rename_all = "camelCase")]
pub struct CurrentUser {
    /// The user's id.
    #[schema(example = 1)]
    pub id: i64,
    /// The name shown to others.
    #[schema(example = "user_3k9x2m7q1a")]
    pub nick_name: String,
    /// The address of the user's picture; may be empty.
    pub icon: String,
}

/// Characters of a token.
const TOKEN_LENGTH: usize = 32;

/// A session token: 32 hexadecimal characters, 122 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; TOKEN_LENGTH]);

impl fmt::Debug for Token {
    /// A token is a secret: it shows nothing of itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// A new token that cannot be guessed (a version 4 UUID from the system's random source).
    pub fn random() -> Self {
        let mut text = [0; TOKEN_LENGTH];
        uuid::Uuid::new_v4().simple().encode_lower(&mut text);
        Token(text)
    }

    /// Reads the `authorization` header's value, with or without the `Bearer ` prefix. Anything that
    /// is not a token's shape is `None`, so that no forged text ever becomes part of a Redis key.
    pub fn parse(header: &str) -> Option<Self> {
        let text = header.strip_prefix("Bearer ").unwrap_or(header);
        let text: [u8; TOKEN_LENGTH] = text.as_bytes().try_into().ok()?;
        text.iter().all(u8::is_ascii_hexdigit).then_some(Token(text))
    }

    /// The token's text, for the one reply that hands it out.
    pub fn as_str(&self) -> &str {
        // Hexadecimal digits, as every way to make one sees to.
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The cookie in which [`ProcessSessions`] hand it out.
    pub fn cookie(&self) -> String {
        format!("{COOKIE}={}; Path=/; HttpOnly; SameSite=Lax", self.as_str())
    }

    /// Reads a `cookie` header's value.
    pub fn from_cookie(header: &str) -> Option<Self> {
        let pairs = header.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(|(name, _)| *name == COOKIE).find_map(|(_, value)| Token::parse(value))
    }

    fn key(&self) -> String {
        format!("login:token:{}", self.as_str())
    }
}

/// What one process's sessions did; counters only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Sessions in memory.
    pub remembered: usize,
    /// Lookups answered from memory. Sessions that live in memory alone are not counted.
    pub from_memory: u64,
    /// Lookups that Redis was asked for.
    pub from_redis: u64,
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
    pub async fn renew(&self, token: Token) -> Result<Option<Arc<CurrentUser>>, Error> {
        match self {
            Sessions::Shared(sessions) => sessions.renew(token).await,
            Sessions::Process(sessions) => Ok(sessions.find(token)),
        }
    }

    /// Ends a session.
    pub async fn end(&self, token: Token) -> Result<(), Error> {
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

    /// How many are remembered, and who knew the sessions that were looked up.
    pub fn stats(&self) -> SessionStats {
        match self {
            Sessions::Shared(sessions) => sessions.stats(),
            Sessions::Process(sessions) => {
                SessionStats { remembered: sessions.len(), ..SessionStats::default() }
            }
        }
    }

    /// Ends what runs in the background. To be called when no request can come in any more.
    pub async fn shutdown(&self) {
        if let Sessions::Shared(sessions) = self {
            sessions.shutdown().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_32_hex_characters_with_or_without_the_prefix() {
        let token = Token::random();
        assert_eq!(Token::parse(token.as_str()), Some(token));
        assert_eq!(Token::parse(&format!("Bearer {}", token.as_str())), Some(token));
        for forged in ["", "Bearer ", "abc", "*", &"g".repeat(32), &"a".repeat(33)] {
            assert_eq!(Token::parse(forged), None, "{forged}");
        }
    }
}
