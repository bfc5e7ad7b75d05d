//! The lab's runs: one at a time; the last ones are kept in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::UnboundedSender;
use workload::comparison::RunState;
use workload::comparison::document::{Setting, State};

const KEPT: usize = 20;

/// The runs that are kept.
pub struct Runs {
    /// Newest first.
    kept: Mutex<VecDeque<Arc<RunState>>>,
    /// Leads to the task that conducts runs.
    begin: UnboundedSender<Arc<RunState>>,
}

impl Runs {
    /// No runs yet; each run that begins is sent to `begin`.
    pub fn new(begin: UnboundedSender<Arc<RunState>>) -> Self {
        Self {
            kept: Mutex::default(),
            begin,
        }
    }

    /// Begins a run, unless one is under way.
    pub fn begin(&self, setting: Setting) -> Option<Arc<RunState>> {
        let id = format!("{:08x}", rand::random::<u32>());
        let run = Arc::new(RunState::new(id, setting));
        let mut kept = self.kept();
        if kept.front().is_some_and(|run| run.state().is_under_way()) {
            return None;
        }
        // Fails where the lab is ending.
        self.begin.send(run.clone()).ok()?;
        kept.push_front(run.clone());
        kept.truncate(KEPT);
        Some(run)
    }

    /// The run that is under way.
    pub fn under_way(&self) -> Option<Arc<RunState>> {
        let newest = self.kept().front().cloned();
        newest.filter(|run| run.state().is_under_way())
    }

    /// The run that is selling.
    pub fn selling(&self) -> Option<Arc<RunState>> {
        let run = self.under_way()?;
        (run.state() == State::Running).then_some(run)
    }

    /// A run by its id.
    pub fn find(&self, id: &str) -> Option<Arc<RunState>> {
        self.kept().iter().find(|run| run.id() == id).cloned()
    }

    /// All that are kept, newest first.
    pub fn all(&self) -> Vec<Arc<RunState>> {
        self.kept().iter().cloned().collect()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Arc<RunState>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
