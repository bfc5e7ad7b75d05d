//! Configuration by command line and environment, a struct for each concern. Every flag shows its unit and default in
//! `--help`; settings that contradict each other are refused at start, by [`ServeConfig::check`].

use clap::{Parser, Subcommand};

mod networks;
mod parse;
mod sale;
mod serve;
mod servers;
mod sign_in;
mod tools;

pub use networks::{ClientNetworks, Networks};
pub use sale::SaleConfig;
pub use serve::{HttpConfig, ServeConfig};
pub use servers::{CHANGE_CONNECTIONS, DatabaseConfig, LogConfig, LogFormat, RedisConfig};
pub use sign_in::{SignInConfig, WebhookSettings};
pub use tools::{AuditConfig, DoctorConfig, SeedConfig};

/// A flash-sale backend that never oversells and never loses a confirmed order.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
    /// Logging.
    #[command(flatten)]
    pub log: LogConfig,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve HTTP until SIGTERM or Ctrl-C, then drain.
    Serve(Box<ServeConfig>),
    /// Create or update the tables; may be run again at any time.
    Migrate(DatabaseConfig),
    /// Insert sample shops and vouchers; with --tokens, also sign users in for load tools.
    Seed(SeedConfig),
    /// Check the orders of each sale: nothing oversold, no second order, no stock lost.
    Audit(AuditConfig),
    /// Check the backing servers, the schema, the scripts, the time zone and the clocks.
    Doctor(DoctorConfig),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(extra: &[&str]) -> anyhow::Result<()> {
        let base = [
            "seckill",
            "serve",
            "--database-url",
            "mysql://h/d",
            "--redis-url",
            "redis://h/",
        ];
        match Cli::try_parse_from(base.iter().chain(extra))?.command {
            Command::Serve(config) => config.check(),
            other => panic!("parsed as {other:?}"),
        }
    }

    #[test]
    fn contradictions_and_bad_values_are_refused() {
        for bad in [
            ["--lock-lease-ms", "2000"],
            ["--drain-deadline-ms", "1000"],
            ["--drain-idle-ms", "30000"],
            ["--database-timeout-ms", "0"],
            ["--database-connections", "0"],
            ["--time-zone", "Moon/Crater"],
            ["--stream-batch", "8193"],
            ["--admin-token", "                    "],
            ["--trusted-proxies", "localhost"],
            ["--code-webhook-secret", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
            ["--code-webhook-url", "http://127.0.0.1:8090/"],
            ["--code-webhook-timeout-ms", "30000"],
        ] {
            assert!(serve(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_webhook_needs_an_address_and_a_secret_that_are_usable() {
        let webhook = |url: &str, secret: &str| {
            serve(&["--code-webhook-url", url, "--code-webhook-secret", secret])
        };
        let url = "http://127.0.0.1:8090/sms";
        let secret = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        webhook(url, secret).unwrap();
        webhook("http://[::1]:8090/sms?to=cn", secret).unwrap();
        webhook(url, &format!("whsec_{secret}")).unwrap();
        let addresses = [
            "",
            "sms",
            "ftp://h/",
            "http://",
            "/sms",
            "http://user:hidden@h/",
        ];
        let bad = addresses.map(|url| (url, secret));
        for (url, secret) in bad
            .into_iter()
            .chain([(url, "c2hvcnQ="), (url, "not base64")])
        {
            let error = webhook(url, secret).unwrap_err().to_string();
            assert!(error.contains("CODE_WEBHOOK"), "{error}");
            assert!(
                !error.contains(secret) && !error.contains("hidden"),
                "{error}"
            );
        }
    }
}
