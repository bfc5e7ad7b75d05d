//! The servers that a tool's command works with. Opens nothing.

use std::fmt;

use chrono_tz::Tz;
use hyper::header::HeaderValue;

use crate::{
    Error, Target,
    keys::{KeyStyle, Keys},
    live::Progress,
};

/// The servers that a tool's command works with, as command lines take them.
#[derive(Debug, Clone, clap::Args)]
pub struct Environment {
    #[command(flatten)]
    #[allow(missing_docs)] // A doc comment would become the help of the whole command.
    pub access: Access,
    /// The proxy before all instances, or, without one, all of them; the attempts of one user go to them in turn
    #[arg(
        long,
        env = "TARGETS",
        value_delimiter = ',',
        value_name = "URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub targets: Vec<Target>,
    /// The instances themselves, past the proxy; what runs on one instance asks the first
    #[arg(
        long,
        env = "NODES",
        value_delimiter = ',',
        value_name = "URL",
        default_value = "http://127.0.0.1:8081,http://127.0.0.1:8082"
    )]
    pub nodes: Vec<Target>,
    /// Kills the last of --nodes by `sh -c`; whoever started that starts it again. Without it no instance is killed
    #[arg(long, env = "KILL_COMMAND", value_name = "COMMAND")]
    pub kill_command: Option<String>,
    #[arg(skip = Progress::Stderr)]
    #[allow(missing_docs)]
    pub progress: Progress,
}

impl Environment {
    /// These targets, for tests: without instances past them, and without progress.
    pub fn silent(access: Access, targets: Vec<Target>) -> Self {
        Self {
            access,
            targets,
            nodes: Vec::new(),
            kill_command: None,
            progress: Progress::Silent,
        }
    }

    /// Whether there is an instance that can be spared, and a way to kill it.
    pub fn can_kill(&self) -> bool {
        self.kill_command.is_some() && self.nodes.len() > 1
    }

    /// Where sales are published.
    pub fn first_target(&self) -> Result<&Target, Error> {
        let first = self.targets.first();
        first.ok_or_else(|| Error::Usage("at least one target is needed".to_owned()))
    }
}

/// Addresses and secrets of the deployment under test, as the tools' command lines take them.
#[derive(Clone, clap::Args)]
pub struct Access {
    /// The service's database, mysql://user:password@host:port/database
    #[arg(
        long,
        env = "DATABASE_URL",
        hide_env_values = true,
        default_value = "",
        hide_default_value = true,
        value_name = "URL"
    )]
    pub database_url: String,
    /// The service's Redis, as the service is told it (sessions and cached shops are there)
    #[arg(
        long,
        env = "REDIS_URL",
        hide_env_values = true,
        default_value = "",
        hide_default_value = true,
        value_name = "URL"
    )]
    pub redis_url: String,
    /// How the service names its keys [default: cluster where Redis is one, else default]
    #[arg(long, env = "KEY_STYLE", value_enum, value_name = "STYLE")]
    pub key_style: Option<KeyStyle>,
    /// The administrator's token, for publishing a sale or changing a shop
    #[arg(
        long,
        env = "ADMIN_TOKEN",
        hide_env_values = true,
        default_value = "",
        hide_default_value = true,
        value_name = "TOKEN"
    )]
    pub admin_token: String,
    /// The zone of the service's date-times
    #[arg(
        long,
        env = "TIME_ZONE",
        default_value = "Asia/Shanghai",
        value_name = "ZONE"
    )]
    pub time_zone: Tz,
}

impl Access {
    /// The names of the service's keys.
    pub fn keys(&self) -> Keys {
        Keys::for_redis(&self.redis_url, self.key_style)
    }

    /// The administrator's token as a header, for `what`.
    pub fn admin_header(&self, what: &str) -> Result<HeaderValue, Error> {
        if self.admin_token.is_empty() {
            let needed = format!("{what} needs the administrator's token");
            return Err(Error::unset(&needed, "ADMIN_TOKEN"));
        }
        let unusable = "the administrator's token cannot be sent in a header";
        HeaderValue::from_str(&self.admin_token).map_err(|_| Error::Usage(unusable.to_owned()))
    }
}

/// Without the secrets.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("time_zone", &self.time_zone)
            .finish_non_exhaustive()
    }
}
