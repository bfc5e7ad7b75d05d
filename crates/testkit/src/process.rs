//! Child processes and temporary folders that end with this process.
//!
//! Dropping a child kills it, dropping a folder removes it. If this process is killed, a watcher does the same: a shell
//! that waits for the end of its standard input, a pipe whose other end only this process holds.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, process};

use rustix::process::{Pid, Signal, kill_process};

use super::wait::until;

/// Lines of a log that an error message quotes.
const QUOTED_LINES: usize = 12;

/// A running child process, in a process group of its own, so that Ctrl-C in a terminal does not reach it.
#[derive(Debug)]
pub struct Process {
    // Dropped first: it kills by id, and the id may belong to another process once the child has been waited for.
    watcher: Option<Watcher>,
    child: Mutex<Child>,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; its output is appended to the file `log`.
    ///
    /// # Errors
    /// The system's, with the program's name: it is not installed, or the log cannot be written.
    pub fn start(mut command: Command, log: &Path) -> io::Result<Self> {
        let output = OpenOptions::new().create(true).append(true).open(log)?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0);
        let child = command.spawn().map_err(|error| {
            let program = command.get_program().display();
            io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
        })?;
        let id = child.id().to_string();
        let mut process = Self {
            watcher: None,
            child: Mutex::new(child),
            log: log.to_owned(),
        };
        process.watcher = Some(Watcher::start(r#"kill -KILL "$0""#, id.as_ref())?);
        Ok(process)
    }

    /// Waits until `condition` holds, which says that the server is up.
    ///
    /// # Errors
    /// When it did not hold within `limit`, or the process ended. The error quotes the end of the log.
    pub async fn serves(
        &self,
        limit: Duration,
        mut condition: impl AsyncFnMut() -> bool,
    ) -> io::Result<()> {
        let mut holds = false;
        until(limit, async || {
            holds = condition().await;
            holds || !self.is_running()
        })
        .await;
        if holds {
            return Ok(());
        }
        let log = self.log.display();
        let end = self.log_end();
        Err(io::Error::other(format!(
            "the server does not answer; {log} ends with:\n{end}"
        )))
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.child().id()
    }

    /// Whether it has not ended yet.
    pub fn is_running(&self) -> bool {
        matches!(self.child().try_wait(), Ok(None))
    }

    /// Stops it from running without ending it (SIGSTOP): its connections stay open, nothing answers.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it run again (SIGCONT).
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    /// The end of its log, for an error message.
    pub fn log_end(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        // The lock is held until the signal is sent: nobody else waits for the child, so its id stays its own.
        let mut child = self.child();
        if child.try_wait()?.is_some() {
            return Err(io::Error::other("the process has ended by itself"));
        }
        Ok(kill_process(Pid::from_child(&child), signal)?)
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    /// Kills it (SIGKILL), as a crash would, and waits until it is gone.
    fn drop(&mut self) {
        self.watcher = None;
        end(&mut self.child());
    }
}

/// A new, empty folder, removed when dropped.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
    _watcher: Watcher,
}

impl TemporaryFolder {
    /// Makes one in the system's folder for temporary files.
    pub fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("throw-away-{}-{number}", process::id()));
        fs::create_dir(&path)?;
        // It waits a moment: the servers that write to the folder are being killed in the same way.
        let watcher = Watcher::start(r#"sleep 1; rm -rf "$0""#, path.as_os_str())?;
        Ok(Self {
            path,
            _watcher: watcher,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{}: {error}", self.path.display());
        }
    }
}

/// A shell that runs a command with one argument, `$0`, once this process has ended.
#[derive(Debug)]
struct Watcher(Child);

impl Watcher {
    fn start(command: &str, argument: &OsStr) -> io::Result<Self> {
        let script = format!(r#"trap "" INT TERM HUP; read _; {command}"#);
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).arg(argument).process_group(0);
        shell
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        shell.spawn().map(Self)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

fn end(child: &mut Child) {
    // A panic here would hide the error of the test that is failing.
    if let Err(error) = child.kill().and_then(|()| child.wait()) {
        eprintln!("process {}: {error}", child.id());
    }
}

/// A port of 127.0.0.1 on which nothing listens, and that this process was not given before. It is none of those that
/// Linux gives to outgoing connections (from 32768 on), which could take it before the server listens there.
pub fn free_port() -> io::Result<u16> {
    const FIRST: u32 = 20_000;
    const PORTS: u32 = 12_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Processes that run at the same time begin at different ports.
    let begin = process::id().wrapping_mul(61) % PORTS;
    let mut taken = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..PORTS {
        let port = FIRST + (begin + GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS;
        match TcpListener::bind(("127.0.0.1", port as u16)) {
            Ok(_) => return Ok(port as u16),
            Err(error) => taken = error,
        }
    }
    Err(taken)
}
