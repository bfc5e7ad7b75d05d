//! Options of `serve`: the HTTP server's; and the check of all of them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use secrecy::{ExposeSecret, SecretString};

use super::networks::ClientNetworks;
use super::parse;
use super::sale::SaleConfig;
use super::servers::{DatabaseConfig, RedisConfig};
use super::sign_in::SignInConfig;

/// Fewest characters of [`HttpConfig::admin_token`]: 64 bits where it is hexadecimal.
const MIN_ADMIN_TOKEN: usize = 16;

/// Options of `serve`.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)] // each part is documented by its type
pub struct ServeConfig {
    #[command(flatten)]
    pub database: DatabaseConfig,
    #[command(flatten)]
    pub redis: RedisConfig,
    #[command(flatten)]
    pub http: HttpConfig,
    #[command(flatten)]
    pub sign_in: SignInConfig,
    #[command(flatten)]
    pub sale: SaleConfig,
}

/// Options of the HTTP server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "HTTP server")]
pub struct HttpConfig {
    /// Address to listen on; port 0 takes a free one, which the log names.
    #[arg(long = "bind", env = "BIND_ADDR", default_value = "127.0.0.1:8081")]
    pub bind: SocketAddr,
    /// This instance's name, as traced steps show it: letters, digits, `.`, `-` and `:`; by default the address it listens on.
    #[arg(long, env = "NODE_NAME", value_parser = parse::node_name)]
    pub node_name: Option<String>,
    /// Secret of admin writes, sent as x-admin-token: 16 printable ASCII characters or more, without spaces. Without one
    /// all of them are refused.
    #[arg(long, env = "ADMIN_TOKEN", hide_env_values = true)]
    pub admin_token: Option<SecretString>,
    /// Proxies, and clients without a rate limit.
    #[command(flatten)]
    pub clients: ClientNetworks,
    /// Longest time one request may take; milliseconds.
    #[arg(long = "request-timeout-ms", env = "REQUEST_TIMEOUT_MS", default_value = "30000",
          value_parser = parse::milliseconds)]
    pub request_timeout: Duration,
    /// On SIGTERM: how long connections are still accepted after readiness turned false, so that a load balancer can
    /// notice: longer than it takes to; milliseconds.
    #[arg(long = "drain-grace-ms", env = "DRAIN_GRACE_MS", default_value = "500",
          value_parser = parse::milliseconds)]
    pub drain_grace: Duration,
    /// On SIGTERM: how long idle connections are kept open after that, for a request that is on its way: longer than a
    /// proxy keeps them; milliseconds.
    #[arg(long = "drain-idle-ms", env = "DRAIN_IDLE_MS", default_value = "5000",
          value_parser = parse::milliseconds)]
    pub drain_idle: Duration,
    /// On SIGTERM: longest time until the process ends; milliseconds.
    #[arg(long = "drain-deadline-ms", env = "DRAIN_DEADLINE_MS", default_value = "35000",
          value_parser = parse::milliseconds)]
    pub drain_deadline: Duration,
}

impl ServeConfig {
    /// The longest time from the beginning of a purchase to the beginning of its commit: reading the sale, checking the buyer,
    /// a transaction and a retry of it, and waiting for others in between, each within the database's time limit; and two
    /// Redis commands.
    pub fn commits_within(&self) -> Duration {
        5 * self.database.database_timeout + 2 * self.redis.redis_timeout
    }

    /// The longest time that one purchase may take. To [`ServeConfig::commits_within`] it adds the look-up of the session
    /// before, and after it the commit, the look-up of its outcome (two steps), and the release of the lock.
    pub fn purchase_limit(&self) -> Duration {
        self.commits_within() + 3 * self.database.database_timeout + 2 * self.redis.redis_timeout
    }

    /// The lease of the strategy `setnx-lock`, which is safe only while its lease outlives the work: it is never renewed.
    pub fn setnx_lease(&self) -> Duration {
        self.purchase_limit() + Duration::from_secs(2)
    }

    /// Refuses an empty secret, which an empty header would match, and one that can be guessed.
    fn check_admin_token(&self) -> anyhow::Result<()> {
        let Some(token) = &self.http.admin_token else {
            return Ok(());
        };
        let token = token.expose_secret();
        let length = token.chars().count();
        ensure!(
            length >= MIN_ADMIN_TOKEN,
            "ADMIN_TOKEN has {length} characters; it needs at least {MIN_ADMIN_TOKEN}, as whoever guesses it can \
             publish sales. Set a longer one (openssl rand -hex 16), or none at all, which refuses admin writes"
        );
        ensure!(
            token.chars().all(|c| c.is_ascii_graphic()),
            "ADMIN_TOKEN must be printable ASCII without spaces, to fit into the header x-admin-token"
        );
        Ok(())
    }

    /// Checks that settings do not contradict each other.
    ///
    /// # Errors
    /// The first contradiction, with the flags to change.
    pub fn check(&self) -> anyhow::Result<()> {
        self.check_admin_token()?;
        self.redis.key_style()?;
        self.sign_in.webhook()?;
        let purchase = self.purchase_limit();
        ensure!(
            self.http.request_timeout > purchase,
            "--request-timeout-ms ({:?}) must be longer than a purchase may take ({purchase:?}, from \
             --database-timeout-ms and --redis-timeout-ms), or replies would be cut off",
            self.http.request_timeout
        );
        ensure!(
            self.http.request_timeout > self.sign_in.code_webhook_timeout,
            "--request-timeout-ms ({:?}) must be longer than --code-webhook-timeout-ms ({:?}), or replies would be cut off",
            self.http.request_timeout,
            self.sign_in.code_webhook_timeout
        );
        ensure!(
            self.sale.lock_lease >= 3 * self.redis.redis_timeout,
            "--lock-lease-ms ({:?}) must be at least three times --redis-timeout-ms ({:?}), or one slow \
             renewal would lose the lock",
            self.sale.lock_lease,
            self.redis.redis_timeout
        );
        ensure!(
            self.http.drain_deadline > self.http.drain_grace + self.http.drain_idle + purchase,
            "--drain-deadline-ms ({:?}) must be longer than --drain-grace-ms, --drain-idle-ms and what a purchase \
             may take ({purchase:?}) together, or purchases would be cut off",
            self.http.drain_deadline
        );
        Ok(())
    }
}
