//! Failed commands, sorted by what they leave known. Words and kinds only; nothing is sent here.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::super::Error;

/// What is known after a command failed.
#[derive(Debug)]
pub(in super::super) enum Failure {
    /// It was never carried out: no connection, or the server cannot serve now.
    NotDone(String),
    /// The server refused it.
    Rejected(String),
    /// It may have been carried out.
    Unknown(String),
}

impl Failure {
    /// The error of an operation that changes nothing, or whose possible effect is undone.
    pub(in super::super) fn unavailable(self, operation: &'static str) -> Error {
        match self {
            Self::NotDone(cause) | Self::Unknown(cause) => Error::Unavailable { operation, cause },
            Self::Rejected(cause) => Error::Rejected { operation, cause },
        }
    }

    /// The error of an operation whose effect matters to the caller.
    pub(in super::super) fn outcome(self, operation: &'static str) -> Error {
        match self {
            Self::NotDone(cause) => Error::Unavailable { operation, cause },
            Self::Rejected(cause) => Error::Rejected { operation, cause },
            Self::Unknown(cause) => Error::Unknown { operation, cause },
        }
    }

    /// The cause in words.
    pub(in super::super) fn cause(self) -> String {
        match self {
            Self::NotDone(cause) | Self::Rejected(cause) | Self::Unknown(cause) => cause,
        }
    }

    pub(super) fn of(error: &RedisError) -> Self {
        let words = error.to_string();
        // A refused connection is the one I/O error that can only come before anything is sent.
        if error.is_connection_refusal() {
            return Self::NotDone(words);
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
            ) => Self::NotDone(words),
            ErrorKind::Server(_) => Self::Rejected(words),
            ErrorKind::Extension => match error.code() {
                Some("BUSY" | "OOM" | "MISCONF" | "NOREPLICAS") => Self::NotDone(words),
                _ => Self::Rejected(words),
            },
            ErrorKind::AuthenticationFailed
            | ErrorKind::InvalidClientConfig
            | ErrorKind::Client
            | ErrorKind::ClusterConnectionNotFound
            | ErrorKind::EmptySentinelList
            | ErrorKind::MasterNameNotFoundBySentinel
            | ErrorKind::RESP3NotSupported => Self::NotDone(words),
            _ => Self::Unknown(words),
        }
    }
}
