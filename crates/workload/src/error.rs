//! Why a run could not be carried out or judged.
//!
//! A [`Error`] is about the set-up (a server away, a wrong token, too few descriptors), never about
//! the sale: a sale that went wrong is a verdict, not an error. Each message names the way out.

use std::{
    io,
    path::{Path, PathBuf},
};

/// An error of the set-up. The binary prints it and exits with code 2.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields, as the messages name them
pub enum Error {
    /// A target did not answer.
    #[error(
        "{url} did not answer {what}: {reason}. Is the service up? `./dev up` starts it, \
         `./dev logs` shows what it says"
    )]
    Unreachable {
        url: String,
        what: &'static str,
        reason: String,
    },
    /// The service refused what the administrator asked for.
    #[error(
        "{what} was refused (HTTP {status}, {code}: {message}){}",
        way_out(code)
    )]
    Refused {
        what: &'static str,
        status: u16,
        code: String,
        message: String,
    },
    /// The database failed.
    #[error(
        "the database failed {what}: {source}. DATABASE_URL must be the service's own (`./dev env` prints it)"
    )]
    Database {
        what: &'static str,
        source: sqlx::Error,
    },
    /// Redis failed.
    #[error(
        "Redis failed {what}: {source}. REDIS_URL must be the service's own (`./dev env` prints it)"
    )]
    Redis {
        what: &'static str,
        source: redis::RedisError,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// Settings that cannot work.
    #[error("{0}")]
    Usage(String),
    /// A task of the tool itself panicked.
    #[error("a task of the load tool failed: {0}. This is a bug in the tool: please report it")]
    Task(#[from] tokio::task::JoinError),
}

/// What to do about a refusal whose own text does not say it.
fn way_out(code: &str) -> &'static str {
    match code {
        "FORBIDDEN" => ". ADMIN_TOKEN must be the service's own (`./dev env` prints it)",
        "OVERLOADED" | "UNAVAILABLE" => ". `./dev logs` shows why",
        _ => "",
    }
}

impl Error {
    /// [`Error::Usage`]: what is `needed` comes from a variable, or from the flag of that name.
    pub fn unset(needed: &str, variable: &str) -> Self {
        let flag = variable.to_lowercase().replace('_', "-");
        Self::Usage(format!(
            "{needed}: set {variable} to the service's own (`eval \"$(./dev env)\"`) or give --{flag}"
        ))
    }

    /// [`Error::File`].
    pub fn file(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::File {
            path: path.to_owned(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_refusal_of_a_token_advises_about_the_token() {
        let refused = |code: &str, message: &str| Error::Refused {
            what: "publishing a sale",
            status: 400,
            code: code.to_owned(),
            message: message.to_owned(),
        };
        let strategy = refused("INVALID_PARAMETER", "strategy must be one of naive").to_string();
        let token = refused("FORBIDDEN", "x-admin-token is missing or wrong").to_string();
        assert!(!strategy.contains("ADMIN_TOKEN"), "{strategy}");
        assert!(
            strategy.ends_with("strategy must be one of naive)"),
            "{strategy}"
        );
        assert!(token.contains("./dev env"), "{token}");
    }
}
