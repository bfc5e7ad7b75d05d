//! A server's clock that is stepped and, at the end of the fault, stepped back.
//!
//! The server runs under libfaketime, which adds to its clock what a file says. The monotonic clock is left alone,
//! as it is when an administrator or an NTP client steps a clock.

use std::{fmt, io, ops::Range, path::Path, time::Duration};

use tokio::time::sleep;

use crate::chaos::test_cluster::{ServerKind, TestCluster, server};
use workload::Error;

/// A step of a server's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockFault {
    /// Whose clock.
    pub of: ServerKind,
    /// By how many seconds.
    pub seconds: i32,
}

/// Where Debian and Ubuntu, Fedora, Arch and Alpine have the library.
const PLACES: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
    "/usr/local/lib/faketime/libfaketime.so.1",
    "/usr/lib/libfaketime.so.1",
];

/// The library, if it is installed.
pub fn library() -> Option<&'static str> {
    PLACES.into_iter().find(|place| Path::new(place).exists())
}

/// The environment of a server whose clock follows `file`, where the library is installed. The C library comes with it, so that Redis does not use
/// jemalloc, which asks for the time before libfaketime can tell it.
pub fn environment(file: &Path) -> Vec<(&'static str, String)> {
    let Some(library) = library() else { return Vec::new() };
    let of_machine = if cfg!(target_env = "gnu") { ":libc.so.6" } else { "" };
    vec![
        ("LD_PRELOAD", format!("{library}{of_machine}")),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        // Seconds; the file is read so often.
        ("FAKETIME_CACHE_DURATION", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("FAKETIME_DISABLE_SHM", "1".to_owned()),
    ]
}

/// Steps the clock that follows `file` to the machine's plus this many seconds.
///
/// # Errors
/// The system's.
pub fn step(file: &Path, seconds: i32) -> io::Result<()> {
    // The server must never read half of it.
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{seconds:+}s\n"))?;
    std::fs::rename(&new, file)
}

impl ClockFault {
    /// How long it may last, in milliseconds. The server sees it after up to a second.
    pub fn lasts(self) -> Range<u64> {
        1_100..2_200
    }

    /// Injects it, and undoes it.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub async fn inject(self, cluster: &TestCluster, lasts: Duration) -> Result<(), Error> {
        let file = cluster.clock_file(self.of);
        let _turn = cluster.clock_turn(self.of).await;
        step(&file, self.seconds).map_err(server("clock"))?;
        sleep(lasts).await;
        step(&file, 0).map_err(server("clock"))
    }
}

impl fmt::Display for ClockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (minutes, way) =
            (self.seconds.abs() / 60, if self.seconds < 0 { "back" } else { "on" });
        write!(f, "step the clock of {} {minutes} minutes {way}", self.of)
    }
}
