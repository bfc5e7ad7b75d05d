//! The state of a comparison while it runs: the runner writes it, pages and progress lines read it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use super::document::{Document, Event, InjectedFault, Lane, Setting, State};
use strategies::Strategy;

use crate::{
    buyers::Buyer,
    generator::Record,
    live::{Live, lock},
};

/// A comparison's state, shared.
#[derive(Debug, Default)]
pub struct RunState {
    document: Mutex<Document>,
    pub(super) begun: OnceLock<Instant>,
    /// The counters of each lane; they are also how the load is stopped.
    pub(super) live: [Arc<Live>; 2],
    /// All buyers, once they are signed in.
    pub(super) buyers: OnceLock<Vec<Buyer>>,
    /// Every attempt of each lane, once all are over.
    pub(super) records: OnceLock<Vec<Vec<Record>>>,
}

impl RunState {
    /// A comparison that begins now.
    pub fn new(id: String, setting: Setting) -> Self {
        let lane = |strategy: &Strategy| Lane {
            strategy: *strategy,
            idea: strategy.row().idea,
            safe: setting.is_safe(*strategy),
            ..Lane::default()
        };
        let document = Document {
            id,
            started_at: chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string(),
            lanes: setting.lanes.iter().map(lane).collect(),
            setting,
            ..Document::default()
        };
        Self {
            document: Mutex::new(document),
            ..Self::default()
        }
    }

    /// The document as it stands, without the first `from` samples of each lane.
    pub fn document(&self, from: usize) -> Document {
        let mut document = self.lock().clone();
        for lane in &mut document.lanes {
            lane.samples.drain(..from.min(lane.samples.len()));
        }
        document
    }

    /// Its id.
    pub fn id(&self) -> String {
        self.lock().id.clone()
    }

    /// How far the run is.
    pub fn state(&self) -> State {
        self.lock().state
    }

    /// Stops the load: no attempt is begun any more; those under way are finished and judged.
    pub fn stop(&self) {
        self.live.iter().for_each(|live| live.stop.cancel());
    }

    /// Adds an event, which happens now; returns its index.
    pub(super) fn record_event(
        &self,
        what: InjectedFault,
        seconds: Option<f64>,
        node: Option<String>,
    ) -> usize {
        let mut document = self.lock();
        document.events.push(Event {
            at: self.seconds(),
            what,
            seconds,
            node,
            cut: None,
        });
        document.events.len() - 1
    }

    /// Seconds since the first request.
    pub(super) fn seconds(&self) -> f64 {
        self.begun
            .get()
            .map_or(0.0, |begun| begun.elapsed().as_secs_f64())
    }

    /// Marks the run as failed, with the reason.
    pub fn fail(&self, why: &impl ToString) {
        let mut document = self.lock();
        document.state = State::Failed;
        document.failure = Some(why.to_string());
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Document> {
        lock(&self.document)
    }
}
