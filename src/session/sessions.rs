//! Sessions in Redis or in the process, behind one type. Where Redis does not answer, the error is
//! [`Error::Unavailable`].

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::shared::{SessionStats, SharedSessions};
use super::token::{MAX_IN_MEMORY, Token};
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

    /// Ends a session: here at once, on other nodes within a second at the latest.
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

    /// Stops the background tasks. To be called after the last request.
    pub async fn shutdown(&self) {
        if let Sessions::Shared(sessions) = self {
            sessions.shutdown().await;
        }
    }
}

/// Sessions in one process's memory, as a servlet container keeps them. A second node behind the same proxy does not
/// have them and answers 401, which is why sessions moved to Redis. Not for production: they end with the process. Cheap to
/// clone.
#[derive(Clone, Default)]
pub struct ProcessSessions(Arc<Mutex<HashMap<Token, Arc<CurrentUser>>>>);

impl ProcessSessions {
    fn create(&self, user: &CurrentUser) -> Token {
        let token = Token::random();
        let mut sessions = self.0.lock();
        if sessions.len() >= MAX_IN_MEMORY {
            sessions.clear();
        }
        sessions.insert(token, Arc::new(user.clone()));
        token
    }

    fn find(&self, token: Token) -> Option<Arc<CurrentUser>> {
        self.0.lock().get(&token).cloned()
    }

    fn end(&self, token: Token) {
        self.0.lock().remove(&token);
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }
}
