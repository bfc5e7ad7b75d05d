//! Who believes to hold what, and whether two of them were right at once. Memory only.
//!
//! A guard's `valid_for` never comes back once it is zero. So a span during which a lock was held is
//! believed as a whole if the guard was still valid at its end; and two believed spans of one lock
//! that overlap, one of them exclusive, are what must never be.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// All spans that are open, by lock, and what was found wrong.
#[derive(Default)]
pub struct Ledger {
    open: Mutex<HashMap<String, Vec<Span>>>,
    violations: Mutex<Vec<String>>,
}

struct Span {
    id: u64,
    exclusive: bool,
    /// Who came while it was open although he should not have.
    intruders: Vec<u64>,
}

impl Ledger {
    /// Somebody has the lock from now on.
    pub fn enter(&self, name: &str, id: u64, exclusive: bool) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let spans = open.entry(name.to_owned()).or_default();
        for span in spans.iter_mut().filter(|span| span.exclusive || exclusive) {
            span.intruders.push(id);
        }
        spans.push(Span { id, exclusive, intruders: Vec::new() });
    }

    /// Somebody is about to give it back; `valid`: its guard can still be believed.
    pub fn leave(&self, name: &str, id: u64, valid: bool) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(spans) = open.get_mut(name) else { return };
        let Some(at) = spans.iter().position(|span| span.id == id) else { return };
        let span = spans.swap_remove(at);
        if spans.is_empty() {
            open.remove(name);
        }
        if valid && !span.intruders.is_empty() {
            let text = format!("{name}: held by {id}, taken meanwhile by {:?}", span.intruders);
            self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
    }

    /// What was found wrong.
    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
