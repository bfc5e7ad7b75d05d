//! The exclusion check of the soak: spans in which a task believed to hold a lock, and whether two overlapped.
//!
//! A guard's `valid_for` never comes back once it is zero. So a span during which a lock was held is
//! believed as a whole if the guard was still valid at its end; and two believed spans of one lock
//! that overlap, one of them exclusive, are what must never be.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// All open spans, by lock, and the violations found.
#[derive(Default)]
pub struct HeldSpans {
    open: Mutex<HashMap<String, Vec<Span>>>,
    violations: Mutex<Vec<String>>,
}

struct Span {
    id: u64,
    exclusive: bool,
    /// Spans that began while it was open and must not have.
    intruders: Vec<u64>,
}

impl HeldSpans {
    /// A task holds the lock from now on.
    pub fn enter(&self, name: &str, id: u64, exclusive: bool) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let spans = open.entry(name.to_owned()).or_default();
        for span in spans.iter_mut().filter(|span| span.exclusive || exclusive) {
            span.intruders.push(id);
        }
        spans.push(Span { id, exclusive, intruders: Vec::new() });
    }

    /// A task is about to release it; `valid`: its guard still says that it holds.
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

    /// The violations found.
    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
