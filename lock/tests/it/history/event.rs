//! What is written down while the locks are used: one line of JSON per event, in a file per
//! process, so that a process that is killed leaves what it has seen.
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

/// Something that happened to a guard. A guard is one acquire, numbered, with its owner.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub at: Nanos,
    /// One number for every owner of every process.
    pub owner: u64,
    /// One number for every acquire of every process.
    pub guard: u64,
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum What {
    /// An acquire was begun.
    Acquire,
    /// It was granted, with a fence if the lock has fences.
    Granted { fence: Option<u64> },
    /// It was refused: somebody else had the lock.
    Busy,
    /// It failed or was given up; it may have been carried out, and may still be.
    Failed,
    /// The guard said that the lock is its owner's until then; `at` is before it was asked.
    Claims { until: Nanos },
    /// The guard said that the lock is lost.
    Lost,
    /// A release was begun.
    Release,
    /// It succeeded: the lock was the owner's until then.
    Released,
    /// The lock was no longer the owner's.
    NotHeld,
    /// Nobody knows: no answer, or the guard was dropped.
    Unsure,
}

/// A moment, somewhere between two, at which the server forgot its locks: lost its data, or was
/// told to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wipe {
    pub begin: Nanos,
    pub end: Nanos,
}

/// Everything that was seen.
#[derive(Debug, Default, Clone)]
pub struct History {
    pub events: Vec<Event>,
    pub wipes: Vec<Wipe>,
}

/// Where one process writes.
pub struct Recorder(Mutex<File>);

impl Recorder {
    pub fn create(path: &Path) -> Self {
        Self(Mutex::new(File::create(path).expect("create the history file")))
    }

    pub fn record(&self, event: Event) {
        let mut line = serde_json::to_string(&event).expect("an event is JSON");
        line.push('\n');
        let mut file = self.0.lock().expect("no writer panicked");
        file.write_all(line.as_bytes()).expect("write the history");
    }
}

/// Read a file back. A last line that was cut short by the end of its process is left out.
pub fn read(path: &Path) -> Vec<Event> {
    let text = std::fs::read_to_string(path).expect("read the history");
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
}
