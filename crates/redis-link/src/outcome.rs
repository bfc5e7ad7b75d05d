//! What is known about the effect of a command that failed.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// What a failed command has done, as far as its error tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing: there was no connection, or the server cannot serve now. It may be sent again.
    NotExecuted,
    /// Nothing: the server refuses the command, and will again.
    Rejected,
    /// Nothing: the server refused the login. It may accept it later.
    LoginRefused,
    /// Unknown: it may have been executed.
    Unknown,
}

impl Outcome {
    /// The outcome of a command that failed with this error. If it was a pipeline or a script, commands
    /// before the one that failed have been executed all the same.
    pub fn of(error: &RedisError) -> Self {
        // A refused connection is the one I/O error that can only come before anything is sent.
        if error.is_connection_refusal() {
            return Self::NotExecuted;
        }
        if error.kind() == ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
        {
            return Self::LoginRefused;
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
            ) => Self::NotExecuted,
            ErrorKind::Extension
                if matches!(
                    error.code(),
                    Some("BUSY" | "OOM" | "MISCONF" | "NOREPLICAS")
                ) =>
            {
                Self::NotExecuted
            }
            // The last one stands for settings that contradict each other.
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::InvalidClientConfig => {
                Self::Rejected
            }
            ErrorKind::Client
            | ErrorKind::ClusterConnectionNotFound
            | ErrorKind::EmptySentinelList
            | ErrorKind::MasterNameNotFoundBySentinel
            | ErrorKind::RESP3NotSupported => Self::NotExecuted,
            _ => Self::Unknown,
        }
    }
}
