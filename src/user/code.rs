//! Sign-in codes: six digits, valid for two minutes, single use. The codes sent to one phone and the wrong guesses at a
//! code are limited; both are counted in Redis, so all nodes share the limits. Anybody can use up the codes of a phone, so they
//! are counted for two minutes only. Anybody can guess, too, so an address that guesses wrong too often is refused before the
//! code becomes invalid.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rand::Rng;
use redis::AsyncCommands;

use webhook::Webhook;

use super::phone::Phone;
use crate::config::{SignInConfig, WebhookSettings};
use crate::connection::http_post::PostError;
use crate::connection::redis::RoutedConnection;
use crate::error::{Cause, Error};
use crate::request::client_address::ClientAddress;
use crate::scripts::{ADDRESS_COUNT, CODE_USE};

pub mod webhook;

/// How long a code is valid, and the window in which the codes sent to a phone are counted, seconds. So while a phone may get
/// no other code, its last one is valid.
const CODE_TTL_SECONDS: u64 = 120;

/// The window in which the codes sent for one address, and the wrong guesses from it, are counted, seconds.
const ADDRESS_WINDOW_SECONDS: u64 = 600;

/// Wrong guesses at a code after which the address that made them is refused.
const MOST_GUESSES_OF_ADDRESS: u32 = 5;

/// Wrong guesses of all addresses after which a code is invalid.
const MOST_GUESSES: u32 = 10;

/// The reply where a code is not known to be sent.
const UNSENT: Error = Error::Unavailable(Cause::CodeSender);

/// What is counted, in the names of keys: codes sent to a phone or for an address, wrong guesses at a code or from an address.
const SENDS: &str = "sends";
const GUESSES: &str = "guesses";

/// Issues and spends codes. Cheap to clone.
#[derive(Clone)]
pub struct Codes {
    redis: RoutedConnection,
    limits: SignInConfig,
    /// Sends the codes; without it they are logged, for learning and testing.
    webhook: Option<Arc<Webhook>>,
    outcomes: Arc<[AtomicU64; OUTCOMES.len()]>,
}

/// What came of sending a code, as labels of the metric.
const OUTCOMES: [&str; 4] = ["sent", "not_sent", "refused", "unknown"];

impl Codes {
    /// Codes kept on this Redis, and sent by a webhook with these settings, or logged.
    pub fn new(
        redis: RoutedConnection,
        limits: SignInConfig,
        webhook: Option<WebhookSettings>,
    ) -> Self {
        let webhook = webhook.map(Webhook::new).map(Arc::new);
        Codes {
            redis,
            limits,
            webhook,
            outcomes: Arc::default(),
        }
    }

    /// How often sending a code had each outcome.
    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        OUTCOMES
            .into_iter()
            .zip(self.outcomes.iter().map(|count| count.load(Relaxed)))
    }

    /// Sends a new code; an earlier one becomes invalid. A code that the sender refuses, or cannot send, leaves an earlier
    /// one valid and does not count for the phone. One that may have been sent is valid and counts.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] with the seconds to wait; [`Error::Unavailable`] where Redis did not answer, or the code
    /// is not known to be sent.
    pub async fn send(&self, phone: &Phone, from: ClientAddress) -> Result<(), Error> {
        self.count(SENDS, from, self.limits.code_sends_per_address, 1)
            .await?;
        let sends = beside_code(phone, SENDS);
        let limit = self.limits.code_sends;
        self.change_counter(&sends, limit, CODE_TTL_SECONDS, 1)
            .await?;
        let code = format!("{:06}", rand::rng().random_range(0..1_000_000));
        let sent = match &self.webhook {
            Some(webhook) => {
                webhook
                    .send(phone, &code, Duration::from_secs(CODE_TTL_SECONDS))
                    .await
            }
            None => {
                // At debug level only, because a reader of the log can sign in as that user. Enabled with
                // `RUST_LOG=info,seckill::user::code=debug`.
                tracing::debug!(phone = phone.as_str(), code, "sign-in code");
                Ok(())
            }
        };
        let outcome = match &sent {
            Ok(()) => 0,
            Err(PostError::NotSent(_)) => 1,
            Err(PostError::Refused(_)) => 2,
            Err(PostError::Unknown(_)) => 3,
        };
        self.outcomes[outcome].fetch_add(1, Relaxed);
        if let Err(error) = &sent {
            tracing::warn!(%error, "a sign-in code could not be sent");
        }
        if let Err(PostError::NotSent(_) | PostError::Refused(_)) = sent {
            if let Err(error) = self
                .change_counter(&sends, limit, CODE_TTL_SECONDS, -1)
                .await
            {
                tracing::debug!(%error, "a code that was not sent counts until its window ends");
            }
            return Err(UNSENT);
        }
        redis::pipe()
            .atomic()
            .set_ex(code_key(phone), code, CODE_TTL_SECONDS)
            .ignore()
            .del(beside_code(phone, GUESSES))
            .ignore()
            .query_async::<()>(&mut self.redis.clone())
            .await?;
        sent.map_err(|_| UNSENT)
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
        // Every guess is counted before it is checked, so that many guesses at once cannot exceed the limit. A guess that was
        // not wrong is taken back.
        let limit = self.limits.code_guesses_per_address;
        self.count(GUESSES, from, limit, 1).await?;
        let mut spend = CODE_USE.key(code_key(phone));
        spend
            .key(beside_code(phone, GUESSES))
            .arg(guess)
            .arg(from.to_string())
            .arg(MOST_GUESSES_OF_ADDRESS)
            .arg(MOST_GUESSES);
        let answer: Result<i64, _> = spend.invoke_async(&mut self.redis.clone()).await;
        if !matches!(answer, Ok(0))
            && let Err(error) = self.count(GUESSES, from, limit, -1).await
        {
            tracing::debug!(%error, "a guess that was not wrong counts until its window ends");
        }
        match answer? {
            refused if refused < 0 => Err(Error::TooManyRequests {
                retry_after_seconds: refused.unsigned_abs(),
            }),
            right => Ok(right == 1),
        }
    }

    /// Changes the count of what an address did; on a cluster, its key is in a slot of its own. A limit of 0 means no limit.
    async fn count(
        &self,
        what: &str,
        from: ClientAddress,
        limit: u32,
        change: i32,
    ) -> Result<(), Error> {
        if limit == 0 || from.is_unlimited() {
            return Ok(());
        }
        let key = format!("login:code:{what}:from:{from}");
        self.change_counter(&key, limit, ADDRESS_WINDOW_SECONDS, change)
            .await
    }

    async fn change_counter(
        &self,
        key: &str,
        limit: u32,
        window_seconds: u64,
        change: i32,
    ) -> Result<(), Error> {
        let mut count = ADDRESS_COUNT.key(key);
        count.arg(limit).arg(window_seconds).arg(change);
        match count.invoke_async(&mut self.redis.clone()).await? {
            0 => Ok(()),
            wait => Err(Error::TooManyRequests {
                retry_after_seconds: wait,
            }),
        }
    }
}

fn code_key(phone: &Phone) -> String {
    format!("login:code:{}", phone.as_str())
}

/// A key that accompanies a code, in the same slot of a cluster.
fn beside_code(phone: &Phone, name: &str) -> String {
    format!("{{{}}}:{name}", code_key(phone))
}
