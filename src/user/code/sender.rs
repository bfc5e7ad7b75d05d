//! Senders of sign-in codes: the log, for learning and testing, or a webhook that a provider of text messages is attached
//! to.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::webhook::{SendFailure, Webhook};
use crate::config::WebhookSettings;
use crate::user::phone::Phone;

/// What sends codes, and how often it did.
pub struct CodeSender {
    webhook: Option<Webhook>,
    counts: [AtomicU64; OUTCOMES.len()],
}

/// Outcomes, as labels of the metric.
const OUTCOMES: [&str; 4] = ["sent", "not_sent", "refused", "unknown"];

impl CodeSender {
    /// A webhook with these settings, or the log.
    pub fn new(webhook: Option<WebhookSettings>) -> Self {
        CodeSender { webhook: webhook.map(Webhook::new), counts: Default::default() }
    }

    /// Sends a code that is valid for `valid`.
    ///
    /// # Errors
    /// See [`Webhook::send`].
    pub async fn send(
        &self,
        phone: &Phone,
        code: &str,
        valid: Duration,
    ) -> Result<(), SendFailure> {
        let sent = match &self.webhook {
            Some(webhook) => webhook.send(phone, code, valid).await,
            None => {
                // At debug level only, because a reader of the log can sign in as that user. Enabled with
                // `RUST_LOG=info,seckill::user::code=debug`.
                tracing::debug!(phone = phone.as_str(), code, "sign-in code");
                Ok(())
            }
        };
        let outcome = match &sent {
            Ok(()) => 0,
            Err(SendFailure::NotSent(_)) => 1,
            Err(SendFailure::Refused(_)) => 2,
            Err(SendFailure::Unknown(_)) => 3,
        };
        self.counts[outcome].fetch_add(1, Relaxed);
        sent
    }

    /// How many codes had each outcome.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Relaxed));
        OUTCOMES.into_iter().zip(counts)
    }
}
