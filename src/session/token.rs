//! The session token, and where it is kept: the key in Redis, the header or cookie.

use std::fmt;
use std::time::Duration;

/// How long a session lives after its last request: 36 000 minutes, as on a Java node.
pub const SESSION_TTL: Duration = Duration::from_secs(36_000 * 60);

/// Sessions that a process holds in memory at most: some 30 MB when full.
pub const MAX_IN_MEMORY: usize = 100_000;

const COOKIE: &str = "SESSION";

/// What the keys of all sessions begin with.
pub(super) const KEY_PREFIX: &str = "login:token:";

const TOKEN_LENGTH: usize = 32;

/// A session token: 32 hexadecimal characters, 122 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; TOKEN_LENGTH]);

impl fmt::Debug for Token {
    /// A token is a secret, so nothing of it is shown.
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
        // Counted, not searched for: all at once instead of one after the other.
        let other_bytes = text.iter().filter(|byte| !byte.is_ascii_hexdigit()).count();
        (other_bytes == 0).then_some(Token(text))
    }

    /// The token's text, for the reply to a sign-in.
    pub fn as_str(&self) -> &str {
        // Every constructor makes hexadecimal digits.
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The `set-cookie` value that carries the token of a [`ProcessSessions`](super::ProcessSessions) session.
    pub fn cookie(&self) -> String {
        format!("{COOKIE}={}; Path=/; HttpOnly; SameSite=Lax", self.as_str())
    }

    /// Reads a `cookie` header's value.
    pub fn from_cookie(header: &str) -> Option<Self> {
        let pairs = header
            .split(';')
            .filter_map(|pair| pair.trim().split_once('='));
        pairs
            .filter(|(name, _)| *name == COOKIE)
            .find_map(|(_, value)| Token::parse(value))
    }

    pub(super) fn key(&self) -> String {
        format!("{KEY_PREFIX}{}", self.as_str())
    }

    /// The token of a session's key in Redis.
    pub(super) fn of_key(key: &[u8]) -> Option<Self> {
        Token::parse(str::from_utf8(key.strip_prefix(KEY_PREFIX.as_bytes())?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_32_hex_characters_is_no_token_and_none_is_shown() {
        assert_eq!(format!("{:?}", Token::random()), "Token(…)");
        for forged in ["", "Bearer ", "abc", "*", &"g".repeat(32), &"a".repeat(33)] {
            assert_eq!(Token::parse(forged), None, "{forged}");
        }
    }
}
