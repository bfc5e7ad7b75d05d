//! Clocks of servers that can be stepped, by libfaketime: it adds to a server's clock what a file says. The monotonic clock
//! is left alone, as it is when an administrator or an NTP client steps a clock.

use std::io;
use std::path::Path;

/// Where Debian and Ubuntu, Fedora, Arch and Alpine have the library.
const PLACES: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
    "/usr/local/lib/faketime/libfaketime.so.1",
    "/usr/lib/libfaketime.so.1",
];

/// The library, if it is installed: Debian's package `faketime`.
pub fn library() -> Option<&'static str> {
    PLACES.into_iter().find(|place| Path::new(place).exists())
}

/// The environment of a server whose clock follows `file`; empty where the library is not installed. The C library is
/// preloaded as well, so that Redis does not use jemalloc, which asks for the time before libfaketime can tell it.
pub fn environment(file: &Path) -> Vec<(&'static str, String)> {
    let Some(library) = library() else {
        return Vec::new();
    };
    let c_library = if cfg!(target_env = "gnu") {
        ":libc.so.6"
    } else {
        ""
    };
    vec![
        ("LD_PRELOAD", format!("{library}{c_library}")),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        // How often the file is read, in seconds.
        ("FAKETIME_CACHE_DURATION", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("FAKETIME_DISABLE_SHM", "1".to_owned()),
    ]
}

/// Steps the clock that follows `file` to the machine's plus this many seconds. The server sees it after up to a second.
pub fn step(file: &Path, seconds: i32) -> io::Result<()> {
    set(file, &format!("{seconds:+}s"))
}

/// Stops the clock that follows `file` at this time, such as `2026-11-30 12:00:00`. The server sees it after up to a second.
pub fn stop(file: &Path, time: &str) -> io::Result<()> {
    set(file, time)
}

fn set(file: &Path, text: &str) -> io::Result<()> {
    // The server must never read half of it.
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{text}\n"))?;
    std::fs::rename(&new, file)
}
