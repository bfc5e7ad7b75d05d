//! Sign-in codes: six digits, valid for two minutes, single use. The codes sent to one phone and the wrong guesses at a
//! code are limited; both are counted in Redis, so all nodes share the limits.

use rand::Rng;
use redis::AsyncCommands;

use super::phone::Phone;
use crate::config::SignInConfig;
use crate::connection::redis::RoutedConnection;
use crate::error::Error;
use crate::request::client_address::ClientAddress;
use crate::scripts::{ADDRESS_COUNT, CODE_SEND, CODE_USE};

/// How long a code is valid, seconds.
const CODE_TTL_SECONDS: u64 = 120;

/// The window in which sent codes, and wrong guesses from one address, are counted, seconds.
const WINDOW_SECONDS: u64 = 600;

/// What is counted of an address, in the names of its keys.
const SENDS: &str = "sends";
const GUESSES: &str = "guesses";

/// Issues and spends codes.
#[derive(Clone)]
pub struct Codes {
    redis: RoutedConnection,
    limits: SignInConfig,
}

impl Codes {
    /// Codes kept on this Redis.
    pub fn new(redis: RoutedConnection, limits: SignInConfig) -> Self {
        Codes { redis, limits }
    }

    /// Sends a new code; an earlier one becomes invalid.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] with the seconds to wait; [`Error::Unavailable`] where Redis did not answer.
    pub async fn send(&self, phone: &Phone, from: ClientAddress) -> Result<(), Error> {
        self.count(SENDS, from, self.limits.code_sends_per_address).await?;
        let code = format!("{:06}", rand::rng().random_range(0..1_000_000));
        let wait: u64 = CODE_SEND
            .key(code_key(phone))
            .key(beside_code(phone, "sends"))
            .key(beside_code(phone, "attempts"))
            .arg(&code)
            .arg(CODE_TTL_SECONDS)
            .arg(self.limits.code_sends)
            .arg(WINDOW_SECONDS)
            .invoke_async(&mut self.redis.clone())
            .await?;
        if wait > 0 {
            return Err(Error::TooManyRequests { retry_after_seconds: wait });
        }
        // In place of a text message: for learning and testing, at debug level only, because a reader of the log can sign
        // in as that user. Enabled with `RUST_LOG=info,seckill::user::code=debug`.
        tracing::debug!(phone = phone.as_str(), code, "sign-in code");
        Ok(())
    }

    /// The valid code of a phone. For the lab only: with it one can sign in.
    pub async fn sent(&self, phone: &Phone) -> Result<Option<String>, Error> {
        Ok(self.redis.clone().get(code_key(phone)).await?)
    }

    /// Whether `guess` is the phone's code; if so, it is used up.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] with the seconds to wait; [`Error::Unavailable`] where Redis did not answer: the code may
    /// be used up then.
    pub async fn spend(
        &self,
        phone: &Phone,
        guess: &str,
        from: ClientAddress,
    ) -> Result<bool, Error> {
        // Every guess is counted before it is looked at, so that no number of guesses at once passes the limit, and taken
        // back unless it was wrong.
        let limit = self.limits.code_guesses_per_address;
        self.count(GUESSES, from, limit).await?;
        let right = CODE_USE
            .key(code_key(phone))
            .key(beside_code(phone, "attempts"))
            .arg(guess)
            .arg(self.limits.code_attempts)
            .invoke_async(&mut self.redis.clone())
            .await;
        if !matches!(right, Ok(false))
            && let Err(error) = self.change_count(GUESSES, from, limit, -1).await
        {
            tracing::debug!(%error, "a guess that was not wrong counts until its window ends");
        }
        Ok(right?)
    }

    /// Counts what an address did, in a slot of its own.
    async fn count(&self, what: &str, from: ClientAddress, limit: u32) -> Result<(), Error> {
        match self.change_count(what, from, limit, 1).await? {
            0 => Ok(()),
            wait => Err(Error::TooManyRequests { retry_after_seconds: wait }),
        }
    }

    /// Changes such a count; returns the seconds to wait. A limit of 0 means none.
    async fn change_count(
        &self,
        what: &str,
        from: ClientAddress,
        limit: u32,
        change: i32,
    ) -> Result<u64, Error> {
        if limit == 0 || from.is_unlimited() {
            return Ok(0);
        }
        Ok(ADDRESS_COUNT
            .key(format!("login:code:{what}:from:{from}"))
            .arg(limit)
            .arg(WINDOW_SECONDS)
            .arg(change)
            .invoke_async(&mut self.redis.clone())
            .await?)
    }
}

fn code_key(phone: &Phone) -> String {
    format!("login:code:{}", phone.as_str())
}

/// A key that accompanies a code, in the same slot of a cluster.
fn beside_code(phone: &Phone, name: &str) -> String {
    format!("{{{}}}:{name}", code_key(phone))
}
