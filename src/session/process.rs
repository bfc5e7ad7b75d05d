//! Sessions in the process, beside those in Redis: lab only.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::token::{MAX_IN_MEMORY, Token};
use super::user::CurrentUser;

/// Sessions in one process's memory, as a servlet container keeps them. A second node behind the same proxy does not
/// have them and answers 401, which is why sessions moved to Redis. Not for production: they end with the process. Cheap to
/// clone.
#[derive(Clone, Default)]
pub struct ProcessSessions(Arc<Mutex<HashMap<Token, Arc<CurrentUser>>>>);

impl ProcessSessions {
    /// Opens a session.
    pub fn create(&self, user: CurrentUser) -> Token {
        let token = Token::random();
        let mut sessions = self.0.lock();
        if sessions.len() >= MAX_IN_MEMORY {
            sessions.clear();
        }
        sessions.insert(token, Arc::new(user));
        token
    }

    /// The user of a session.
    pub fn find(&self, token: Token) -> Option<Arc<CurrentUser>> {
        self.0.lock().get(&token).cloned()
    }

    /// Ends a session.
    pub fn end(&self, token: Token) {
        self.0.lock().remove(&token);
    }
}
