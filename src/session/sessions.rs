//! Sessions in Redis or in the process, behind one type. Where Redis does not answer, the error is
//! [`Error::Unavailable`].

use std::sync::Arc;

use super::process::ProcessSessions;
use super::shared::{SessionStats, SharedSessions};
use super::token::Token;
use super::user::CurrentUser;
use crate::error::Error;

/// The sessions, in either place.
#[derive(Clone)]
pub enum Sessions {
    /// In Redis, shared by all nodes.
    Shared(SharedSessions),
    /// In this process's memory. Lab only.
    Process(ProcessSessions),
}

impl Sessions {
    /// Opens a session.
    pub async fn create(&self, user: &CurrentUser) -> Result<Token, Error> {
        match self {
            Sessions::Shared(sessions) => sessions.create(user).await,
            Sessions::Process(sessions) => Ok(sessions.create(user)),
        }
    }

    /// The user of the session of `token`, whose time to live is renewed; `None` without such a session.
    pub async fn renew(&self, token: Token) -> Result<Option<Arc<CurrentUser>>, Error> {
        match self {
            Sessions::Shared(sessions) => sessions.renew(token).await,
            Sessions::Process(sessions) => Ok(sessions.find(token)),
        }
    }

    /// Ends a session: here at once, on other nodes within a second.
    pub async fn end(&self, token: Token) -> Result<(), Error> {
        match self {
            Sessions::Shared(sessions) => sessions.end(token).await,
            Sessions::Process(sessions) => {
                sessions.end(token);
                Ok(())
            }
        }
    }

    /// Whether the token travels in a cookie instead of the `authorization` header.
    pub fn uses_cookie(&self) -> bool {
        matches!(self, Sessions::Process(_))
    }

    /// Counters for metrics.
    pub fn stats(&self) -> SessionStats {
        match self {
            Sessions::Shared(sessions) => sessions.stats(),
            Sessions::Process(sessions) => {
                SessionStats { in_memory: sessions.len(), ..SessionStats::default() }
            }
        }
    }

    /// Stops the background task. To be called after the last request.
    pub async fn shutdown(&self) {
        if let Sessions::Shared(sessions) = self {
            sessions.shutdown().await;
        }
    }
}
