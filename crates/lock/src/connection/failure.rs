//! Classification of failed commands by what is known about their effect: not executed, rejected,
//! or unknown.

use redis::RedisError;
use redis_link::Outcome;

use crate::error::{Cause, Error};

/// What is known after a command failed; each variant carries the cause.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command was never executed: no connection, or the server cannot serve now.
    NotExecuted(Cause),
    Rejected(Cause),
    /// The server refused the login, so that nothing was executed; it may accept it later.
    LoginRefused(Cause),
    /// The command may have been executed.
    Unknown(Cause),
}

impl Failure {
    /// The error of an operation that changes nothing, or whose possible effect is undone.
    pub(crate) fn into_unavailable(self, operation: &'static str) -> Error {
        match self {
            Self::NotExecuted(cause) | Self::Unknown(cause) => {
                Error::Unavailable { operation, cause }
            }
            Self::Rejected(cause) | Self::LoginRefused(cause) => {
                Error::Rejected { operation, cause }
            }
        }
    }

    /// The error of an operation whose effect matters to the caller: unknown stays unknown.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        match self {
            Self::NotExecuted(cause) => Error::Unavailable { operation, cause },
            Self::Rejected(cause) | Self::LoginRefused(cause) => {
                Error::Rejected { operation, cause }
            }
            Self::Unknown(cause) => Error::Unknown { operation, cause },
        }
    }

    pub(crate) fn cause(self) -> Cause {
        match self {
            Self::NotExecuted(cause)
            | Self::Rejected(cause)
            | Self::LoginRefused(cause)
            | Self::Unknown(cause) => cause,
        }
    }

    pub(crate) fn from_redis_error(error: &RedisError) -> Self {
        let cause = Cause::from(error.clone());
        match Outcome::of(error) {
            Outcome::NotExecuted => Self::NotExecuted(cause),
            Outcome::Rejected => Self::Rejected(cause),
            Outcome::LoginRefused => Self::LoginRefused(cause),
            Outcome::Unknown => Self::Unknown(cause),
        }
    }
}
