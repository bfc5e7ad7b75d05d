//! Sessions in one process's memory, as a servlet container keeps them. A second node behind the same proxy does not
//! have them and answers 401, which is why sessions moved to Redis. Not for production: they end with the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::token::{MAX_IN_MEMORY, Token};
use super::user::CurrentUser;

/// The sessions of one process. Cheap to clone.
#[derive(Clone, Default)]
pub struct ProcessSessions(Arc<Mutex<HashMap<Token, Arc<CurrentUser>>>>);

impl ProcessSessions {
    pub(super) fn create(&self, user: &CurrentUser) -> Token {
        let token = Token::random();
        let mut sessions = self.sessions();
        if sessions.len() >= MAX_IN_MEMORY {
            sessions.clear();
        }
        sessions.insert(token, Arc::new(user.clone()));
        token
    }

    pub(super) fn find(&self, token: Token) -> Option<Arc<CurrentUser>> {
        self.sessions().get(&token).cloned()
    }

    pub(super) fn end(&self, token: Token) {
        self.sessions().remove(&token);
    }

    pub(super) fn len(&self) -> usize {
        self.sessions().len()
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Token, Arc<CurrentUser>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
