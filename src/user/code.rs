//! Sign-in codes: six digits, valid for two minutes, single use. The codes sent to one phone and the wrong guesses at a
//! code are limited; both are counted in Redis, so all nodes share the limits.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use redis::AsyncCommands;
use tokio_util::task::TaskTracker;

use sender::CodeSender;
use webhook::SendFailure;

use super::phone::Phone;
use crate::config::SignInConfig;
use crate::connection::redis::RoutedConnection;
use crate::error::Error;
use crate::request::client_address::ClientAddress;
use crate::request::context::in_current_context;
use crate::scripts::{ADDRESS_COUNT, CODE_SEND, CODE_USE};

pub mod sender;
pub mod webhook;

/// How long a code is valid, seconds.
const CODE_TTL_SECONDS: u64 = 120;

/// The window in which sent codes, and wrong guesses from one address, are counted, seconds.
const WINDOW_SECONDS: u64 = 600;

/// Wrong guesses after which a code is invalid.
const ATTEMPTS: u32 = 5;

/// The reply where a code is not known to be sent.
const UNSENT: Error = Error::Unavailable("the sender of sign-in codes");

/// What is counted of an address, in the names of its keys.
const SENDS: &str = "sends";
const GUESSES: &str = "guesses";

/// Passed to `CODE_SEND` in place of what it is not to do.
const SKIP: &str = "-";

/// Issues and spends codes. Cheap to clone.
#[derive(Clone)]
pub struct Codes {
    redis: RoutedConnection,
    limits: SignInConfig,
    sender: Arc<CodeSender>,
    tasks: TaskTracker,
}

impl Codes {
    /// Codes kept on this Redis, and sent by `sender`.
    pub fn new(redis: RoutedConnection, limits: SignInConfig, sender: CodeSender) -> Self {
        Codes { redis, limits, sender: Arc::new(sender), tasks: TaskTracker::new() }
    }

    /// What sends the codes, for its counters.
    pub fn sender(&self) -> &CodeSender {
        &self.sender
    }

    /// Waits until no code is being sent any more. None may be sent afterwards.
    pub async fn shutdown(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Sends a new code; an earlier one becomes invalid. A code that the sender refuses, or cannot send, leaves an earlier
    /// one valid and does not count for the phone. One that may have been sent is valid and counts. Once begun, this goes on
    /// when its future is dropped because the client hung up.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] with the seconds to wait; [`Error::Unavailable`] where Redis did not answer, or the code
    /// is not known to be sent.
    pub async fn send(&self, phone: &Phone, from: ClientAddress) -> Result<(), Error> {
        self.count(SENDS, from, self.limits.code_sends_per_address).await?;
        let code = format!("{:06}", rand::rng().random_range(0..1_000_000));
        if !self.sender.can_fail() {
            self.store(phone, Some(&code), true).await?;
            let valid = Duration::from_secs(CODE_TTL_SECONDS);
            return self.sender.send(phone, &code, valid).await.map_err(|_| UNSENT);
        }
        let (codes, phone) = (self.clone(), phone.clone());
        let work = async move { codes.send_then_store(&phone, &code).await };
        let task = self.tasks.spawn(in_current_context(work));
        task.await.unwrap_or_else(|error| Err(Error::Internal(format!("sending a code: {error}"))))
    }

    /// As [`Codes::send`], by a sender that can fail.
    async fn send_then_store(&self, phone: &Phone, code: &str) -> Result<(), Error> {
        self.store(phone, None, true).await?;
        let sent = self.sender.send(phone, code, Duration::from_secs(CODE_TTL_SECONDS)).await;
        if let Err(error) = &sent {
            tracing::warn!(%error, "a sign-in code could not be sent");
        }
        if let Err(SendFailure::NotSent(_) | SendFailure::Refused(_)) = sent {
            let sends = beside_code(phone, "sends");
            let uncounted = self.change_counter(sends, self.limits.code_sends, -1).await;
            if let Err(error) = uncounted {
                tracing::debug!(%error, "a code that was not sent counts until its window ends");
            }
            return Err(UNSENT);
        }
        self.store(phone, Some(code), false).await?;
        sent.map_err(|_| UNSENT)
    }

    /// Counts a code that is sent to this phone, makes it the valid one, or both.
    async fn store(&self, phone: &Phone, code: Option<&str>, count: bool) -> Result<(), Error> {
        let limit = if count { self.limits.code_sends.to_string() } else { SKIP.to_owned() };
        let wait: u64 = CODE_SEND
            .key(code_key(phone))
            .key(beside_code(phone, "sends"))
            .key(beside_code(phone, "attempts"))
            .arg(code.unwrap_or(SKIP))
            .arg(CODE_TTL_SECONDS)
            .arg(limit)
            .arg(WINDOW_SECONDS)
            .invoke_async(&mut self.redis.clone())
            .await?;
        match wait {
            0 => Ok(()),
            wait => Err(Error::TooManyRequests { retry_after_seconds: wait }),
        }
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
            .arg(ATTEMPTS)
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
        self.change_counter(format!("login:code:{what}:from:{from}"), limit, change).await
    }

    /// Changes a counter; returns the seconds to wait.
    async fn change_counter(&self, key: String, limit: u32, change: i32) -> Result<u64, Error> {
        Ok(ADDRESS_COUNT
            .key(key)
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
