//! Sign-in codes: six digits, valid for two minutes, single use. The codes sent to one phone and the wrong guesses at a
//! code are limited; both are counted in Redis, so all nodes share the limits.

use rand::Rng;
use redis::AsyncCommands;

use super::phone::Phone;
use crate::config::SignInConfig;
use crate::connection::redis::SharedConnection;
use crate::error::Error;
use crate::request::client_address::ClientAddress;
use crate::scripts::{CODE_SEND, CODE_USE};

/// How long a code is valid, seconds.
const CODE_TTL_SECONDS: u64 = 120;

/// The window in which sent codes, and wrong guesses from one address, are counted, seconds.
const WINDOW_SECONDS: u64 = 600;

/// Issues and spends codes.
#[derive(Clone)]
pub struct Codes {
    redis: SharedConnection,
    limits: SignInConfig,
}

impl Codes {
    /// Codes kept on this Redis.
    pub fn new(redis: SharedConnection, limits: SignInConfig) -> Self {
        Codes { redis, limits }
    }

    /// Sends a new code; an earlier one becomes invalid.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] with the seconds to wait; [`Error::Unavailable`] where Redis did not answer.
    pub async fn send(&self, phone: &Phone, from: ClientAddress) -> Result<(), Error> {
        let code = format!("{:06}", rand::rng().random_range(0..1_000_000));
        let wait: u64 = CODE_SEND
            .key(code_key(phone))
            .key(format!("login:code:sends:{}", phone.as_str()))
            .key(attempts_key(phone))
            .key(format!("login:code:sends:from:{from}"))
            .arg(&code)
            .arg(CODE_TTL_SECONDS)
            .arg(self.limits.code_sends)
            .arg(WINDOW_SECONDS)
            .arg(limit(self.limits.code_sends_per_address, from))
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
    pub async fn spend(
        &self,
        phone: &Phone,
        guess: &str,
        from: ClientAddress,
    ) -> Result<bool, Error> {
        let outcome: i64 = CODE_USE
            .key(code_key(phone))
            .key(attempts_key(phone))
            .key(format!("login:code:guesses:from:{from}"))
            .arg(guess)
            .arg(self.limits.code_attempts)
            .arg(limit(self.limits.code_guesses_per_address, from))
            .arg(WINDOW_SECONDS)
            .invoke_async(&mut self.redis.clone())
            .await?;
        match outcome {
            wait @ ..0 => Err(Error::TooManyRequests { retry_after_seconds: wait.unsigned_abs() }),
            outcome => Ok(outcome == 1),
        }
    }
}

/// The limit for an address; 0 means none.
fn limit(limit: u32, from: ClientAddress) -> u32 {
    if from.is_unlimited() { 0 } else { limit }
}

fn code_key(phone: &Phone) -> String {
    format!("login:code:{}", phone.as_str())
}

fn attempts_key(phone: &Phone) -> String {
    format!("login:code:attempts:{}", phone.as_str())
}
