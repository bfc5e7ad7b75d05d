//! Webhook: posts a sign-in code, signed, to a service that sends the text message. The headers and the signature are
//! those of Standard Webhooks (<https://www.standardwebhooks.com>), so receivers may use its libraries.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use backon::Retryable;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, Mac};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde_json::json;
use sha2::Sha256;
use tokio::sync::Semaphore;

use crate::config::WebhookSettings;
use crate::connection::http_post::PostError;
use crate::user::phone::Phone;

/// Codes that are posted at once; further ones are refused.
const MAX_IN_FLIGHT: usize = 64;

/// Pauses before the second and the third attempt.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Posts codes.
pub struct Webhook {
    settings: WebhookSettings,
    permits: Semaphore,
}

impl Webhook {
    /// With these settings; nothing is connected yet.
    pub fn new(settings: WebhookSettings) -> Self {
        Webhook {
            settings,
            permits: Semaphore::new(MAX_IN_FLIGHT),
        }
    }

    /// Posts a code that is valid for `valid` until the receiver takes it, for no longer than the settings allow. It is
    /// posted again only after [`PostError::NotSent`], twice at most, with the same `webhook-id`. Dropping the future
    /// ends the attempt that is under way; the receiver may act on it.
    ///
    /// # Errors
    /// The last attempt's failure; without an attempt where too many codes are being posted.
    pub async fn send(&self, phone: &Phone, code: &str, valid: Duration) -> Result<(), PostError> {
        let Ok(_permit) = self.permits.try_acquire() else {
            return Err(PostError::NotSent(
                "too many codes are being sent".to_owned(),
            ));
        };
        let id = uuid::Uuid::new_v4().to_string();
        let body =
            json!({ "phone": phone.as_str(), "code": code, "validSeconds": valid.as_secs() });
        let body = body.to_string();
        let started = Instant::now();
        let limit = self.settings.timeout;
        let time_left = move || limit.saturating_sub(started.elapsed());
        let pauses = PAUSES
            .into_iter()
            .take_while(move |pause| time_left() > *pause);
        (|| self.post(&id, &body, time_left()))
            .retry(pauses)
            .when(|failure| matches!(failure, PostError::NotSent(_)))
            .await
    }

    async fn post(&self, id: &str, body: &str, limit: Duration) -> Result<(), PostError> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let signature = sign(&self.settings.key, id, now, body);
        let value = |text: &str| {
            HeaderValue::from_str(text).map_err(|error| PostError::Refused(error.to_string()))
        };
        let headers = HeaderMap::from_iter([
            (
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            ),
            (ID, value(id)?),
            (TIMESTAMP, HeaderValue::from(now)),
            (SIGNATURE, value(&signature)?),
        ]);
        self.settings
            .endpoint
            .post(headers, body.to_owned().into(), limit)
            .await
    }
}

/// The value of `webhook-signature`: HMAC-SHA256 over id, time and body.
fn sign(key: &[u8], id: &str, seconds: u64, body: &str) -> String {
    // HMAC takes a key of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return String::new();
    };
    mac.update(format!("{id}.{seconds}.{body}").as_bytes());
    format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
}
