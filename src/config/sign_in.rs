//! Options of sign-in: codes and their limits, and the webhook that sends codes.

use std::time::Duration;

use anyhow::anyhow;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use secrecy::{ExposeSecret, SecretString};

use super::parse;
use crate::connection::http_post::Endpoint;

/// Options of sign-in.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sign-in")]
pub struct SignInConfig {
    /// Codes that one phone may be sent within two minutes, as long as a code works.
    #[arg(long, env = "CODE_SENDS", default_value_t = 3)]
    pub code_sends: u32,
    /// Codes that may be sent for one client address within ten minutes; 0 for no limit.
    #[arg(long, env = "CODE_SENDS_PER_ADDRESS", default_value_t = 100)]
    pub code_sends_per_address: u32,
    /// Wrong guesses from one client address within ten minutes; 0 for no limit.
    #[arg(long, env = "CODE_GUESSES_PER_ADDRESS", default_value_t = 50)]
    pub code_guesses_per_address: u32,
    /// Where sign-in codes are posted, for a service that sends the text message: http:// or https://, without user and
    /// password. Without it they are logged, at debug level.
    #[arg(
        long,
        env = "CODE_WEBHOOK_URL",
        value_name = "URL",
        hide_env_values = true,
        requires = "code_webhook_secret"
    )]
    pub code_webhook_url: Option<SecretString>,
    /// Secret that signs these requests: 24 to 64 bytes in base64, as of `openssl rand -base64 32`; `whsec_` may stand
    /// before it.
    #[arg(
        long,
        env = "CODE_WEBHOOK_SECRET",
        hide_env_values = true,
        requires = "code_webhook_url"
    )]
    pub code_webhook_secret: Option<SecretString>,
    /// Longest time that sending one code may take, with up to three attempts; milliseconds.
    #[arg(long = "code-webhook-timeout-ms", env = "CODE_WEBHOOK_TIMEOUT_MS", default_value = "5000",
          value_parser = parse::milliseconds)]
    pub code_webhook_timeout: Duration,
}

/// Settings of the webhook that sends codes.
#[derive(Clone)]
pub struct WebhookSettings {
    /// Where codes are posted.
    pub endpoint: Endpoint,
    /// The key of the signature.
    pub key: Vec<u8>,
    /// Longest time for one code, all attempts included.
    pub timeout: Duration,
}

impl SignInConfig {
    /// The webhook that sends codes; `None` where they are logged.
    ///
    /// # Errors
    /// Settings that are unusable, by name and never by value.
    pub fn webhook(&self) -> anyhow::Result<Option<WebhookSettings>> {
        let both = self
            .code_webhook_url
            .as_ref()
            .zip(self.code_webhook_secret.as_ref());
        let Some((url, secret)) = both else {
            return Ok(None);
        };
        let endpoint = Endpoint::parse(url.expose_secret())
            .map_err(|error| anyhow!("CODE_WEBHOOK_URL (--code-webhook-url) {error:#}"))?;
        let secret = secret.expose_secret().trim();
        let key = BASE64
            .decode(secret.strip_prefix("whsec_").unwrap_or(secret))
            .ok();
        let key = key.filter(|key| (24..=64).contains(&key.len()));
        let key = key.ok_or_else(|| {
            anyhow!("CODE_WEBHOOK_SECRET must be 24 to 64 bytes in base64: openssl rand -base64 32")
        })?;
        Ok(Some(WebhookSettings {
            endpoint,
            key,
            timeout: self.code_webhook_timeout,
        }))
    }
}
