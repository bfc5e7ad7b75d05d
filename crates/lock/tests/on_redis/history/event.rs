//! The events of a history: one line of JSON each, in a file per process, so that the events of a
//! killed process are kept.
//!
//! Times are nanoseconds of CLOCK_MONOTONIC, which is one clock for all processes of a machine.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Nanoseconds of the machine's monotonic clock.
pub type Nanos = u64;

/// The present moment.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    let whole = Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32);
    nanos(whole)
}

pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).expect("a duration of this century")
}

/// An event of one acquire, whose guard has a number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub at: Nanos,
    /// Unique among the owners of all processes.
    pub owner: u64,
    /// Unique among the acquires of all processes; the high 32 bits are the process.
    pub guard: u64,
    pub kind: EventKind,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum EventKind {
    /// An acquire was begun.
    Acquire,
    /// It was granted, with a fencing token if the lock has them.
    Granted { fence: Option<u64> },
    /// It was refused: another owner had the lock.
    Busy,
    /// It failed or was cancelled; the server may have run it, or may still run it.
    Failed,
    /// The guard reported that the lock is held until then; `at` is before that call.
    Valid { until: Nanos },
    /// The guard reported that the lock is lost.
    Lost,
    /// A release was begun.
    Release,
    /// It succeeded: the lock was held until then.
    Released,
    /// The release found that the lock was no longer held.
    NotHeld,
    /// The outcome of the release is unknown: no reply, or the guard was dropped.
    Unknown,
}

/// Something that happened on the server between two moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    pub begin: Nanos,
    pub end: Nanos,
}

/// The events of all processes, in order.
#[derive(Debug, Default, Clone)]
pub struct History {
    pub events: Vec<Event>,
    /// Losses of the lock's key: restarts, forced unlocks, failovers that may lose it.
    pub wipes: Vec<Span>,
}

impl History {
    /// What was granted after this moment.
    pub fn granted_after(&self, moment: Nanos) -> impl Iterator<Item = &Event> {
        self.events
            .iter()
            .filter(|event| matches!(event.kind, EventKind::Granted { .. }))
            .filter(move |event| event.at > moment)
    }

    /// A guard that reported its lock as valid after this moment and did not begin to release it.
    pub fn holder_after(&self, moment: Nanos) -> Option<u64> {
        let later = self.events.iter().filter(|event| event.at > moment);
        later
            .filter(|event| matches!(event.kind, EventKind::Valid { .. }))
            .map(|event| event.guard)
            .find(|guard| !self.has_released(*guard))
    }

    /// Whether a guard reported its lock as valid after this moment.
    pub fn is_valid_after(&self, guard: u64, moment: Nanos) -> bool {
        self.events
            .iter()
            .filter(|event| event.guard == guard && event.at > moment)
            .any(|event| matches!(event.kind, EventKind::Valid { .. }))
    }

    fn has_released(&self, guard: u64) -> bool {
        self.events
            .iter()
            .any(|event| event.guard == guard && matches!(event.kind, EventKind::Release))
    }
}

/// Writes the history file of one process.
pub struct Recorder(Mutex<File>);

impl Recorder {
    pub fn create(path: &Path) -> Self {
        Self(Mutex::new(
            File::create(path).expect("create the history file"),
        ))
    }

    pub fn record(&self, event: Event) {
        let mut line = serde_json::to_string(&event).expect("an event is JSON");
        line.push('\n');
        let mut file = self.0.lock().expect("no writer panicked");
        file.write_all(line.as_bytes()).expect("write the history");
    }
}

/// Reads a history file. A last line that was cut off by the end of its process is left out.
pub fn read(path: &Path) -> Vec<Event> {
    let text = std::fs::read_to_string(path).expect("read the history");
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).expect("an event"))
        .collect()
}
