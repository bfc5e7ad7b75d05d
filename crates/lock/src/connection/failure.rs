//! Classification of failed commands by what is known about their effect: not executed, rejected,
//! or unknown.

use redis::{ErrorKind, RedisError, ServerErrorKind};

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

    pub(crate) fn of(error: &RedisError) -> Self {
        let cause = Cause::from(error.clone());
        // A refused connection is the one I/O error that can only come before anything is sent.
        if error.is_connection_refusal() {
            return Self::NotExecuted(cause);
        }
        if is_login_refusal(error) {
            return Self::LoginRefused(cause);
        }
        match error.kind() {
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::NoScript
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask,
            ) => Self::NotExecuted(cause),
            ErrorKind::Server(_) => Self::Rejected(cause),
            ErrorKind::Extension => match error.code() {
                Some("BUSY" | "OOM" | "MISCONF" | "NOREPLICAS") => Self::NotExecuted(cause),
                _ => Self::Rejected(cause),
            },
            // Settings that contradict each other.
            ErrorKind::InvalidClientConfig => Self::Rejected(cause),
            ErrorKind::Client
            | ErrorKind::ClusterConnectionNotFound
            | ErrorKind::EmptySentinelList
            | ErrorKind::MasterNameNotFoundBySentinel
            | ErrorKind::RESP3NotSupported => Self::NotExecuted(cause),
            _ => Self::Unknown(cause),
        }
    }
}

pub(crate) fn is_login_refusal(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
}
