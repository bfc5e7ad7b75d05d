//! Options of sign-in: codes and their limits, and the webhook that sends codes.

use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::{Args, ValueEnum};
use secrecy::{ExposeSecret, SecretString};

use super::parse;
use crate::connection::http_post::Endpoint;

/// Options of sign-in.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sign-in")]
pub struct SignInConfig {
    /// Codes that one phone may be sent within ten minutes.
    #[arg(long, env = "CODE_SENDS", default_value_t = 5)]
    pub code_sends: u32,
    /// Codes that may be sent for one client address within ten minutes; 0 for no limit. Clients on this machine are not
    /// limited (see --unlimited-clients).
    #[arg(long, env = "CODE_SENDS_PER_ADDRESS", default_value_t = 100)]
    pub code_sends_per_address: u32,
    /// Wrong guesses from one client address within ten minutes; 0 for no limit. Clients on this machine are not limited.
    #[arg(long, env = "CODE_GUESSES_PER_ADDRESS", default_value_t = 50)]
    pub code_guesses_per_address: u32,
    /// How sign-in codes are sent: `log` writes them to the log, at debug level; `webhook` posts them to
    /// --code-webhook-url, for a service that sends the text message.
    #[arg(long, env = "CODE_SENDER", value_enum, default_value_t = CodeSenderName::Log)]
    pub code_sender: CodeSenderName,
    /// Where --code-sender webhook posts codes: http:// or https://, without user and password.
    #[arg(long, env = "CODE_WEBHOOK_URL", value_name = "URL", hide_env_values = true)]
    pub code_webhook_url: Option<SecretString>,
    /// Secret that signs these requests: 24 to 64 bytes in base64, as of `openssl rand -base64 32`; `whsec_` may stand
    /// before it.
    #[arg(long, env = "CODE_WEBHOOK_SECRET", hide_env_values = true)]
    pub code_webhook_secret: Option<SecretString>,
    /// Longest time that sending one code may take, with up to three attempts; milliseconds.
    #[arg(long = "code-webhook-timeout-ms", env = "CODE_WEBHOOK_TIMEOUT_MS", default_value = "5000",
          value_parser = parse::milliseconds)]
    pub code_webhook_timeout: Duration,
}

/// What sends sign-in codes.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum CodeSenderName {
    /// The log: for learning and testing.
    Log,
    /// A signed HTTP request.
    Webhook,
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
    /// Settings that are missing, unusable or of no use, by name and never by value.
    pub fn webhook(&self) -> anyhow::Result<Option<WebhookSettings>> {
        if self.code_sender == CodeSenderName::Log {
            ensure!(
                self.code_webhook_url.is_none() && self.code_webhook_secret.is_none(),
                "CODE_WEBHOOK_URL and CODE_WEBHOOK_SECRET are of no use without --code-sender webhook (CODE_SENDER)"
            );
            return Ok(None);
        }
        let (Some(url), Some(secret)) = (&self.code_webhook_url, &self.code_webhook_secret) else {
            bail!(
                "--code-sender webhook (CODE_SENDER) needs CODE_WEBHOOK_URL and CODE_WEBHOOK_SECRET"
            );
        };
        let endpoint = Endpoint::parse(url.expose_secret())
            .map_err(|error| anyhow!("CODE_WEBHOOK_URL (--code-webhook-url) {error:#}"))?;
        let secret = secret.expose_secret().trim();
        let key = BASE64.decode(secret.strip_prefix("whsec_").unwrap_or(secret)).ok();
        let key = key.filter(|key| (24..=64).contains(&key.len()));
        let key = key.ok_or_else(|| {
            anyhow!("CODE_WEBHOOK_SECRET must be 24 to 64 bytes in base64: openssl rand -base64 32")
        })?;
        Ok(Some(WebhookSettings { endpoint, key, timeout: self.code_webhook_timeout }))
    }
}
