//! One process of chaos's own: started, killed, stopped and continued, and gone when dropped.
//!
//! Knows nothing of what it runs. Signals go by id to what was started here and nowhere else. Each
//! process has a group of its own, so that a Ctrl-C in the terminal ends the tool alone, which then
//! ends them; and a watcher that ends it should the tool be killed itself.

use std::{
    fs::OpenOptions,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use workload::Error;

/// Waits for the end of its input, which is the end of the tool, and then kills the process.
const WATCH: &str = r#"trap "" INT TERM HUP; read _; kill -KILL "$0""#;

/// A running process.
#[derive(Debug)]
pub struct Process {
    what: &'static str,
    child: Child,
    watcher: Child,
}

impl Process {
    /// Starts `command`; what it says is appended to the file `log`.
    ///
    /// # Errors
    /// [`Error::Server`], naming `what`.
    pub fn start(what: &'static str, mut command: Command, log: &Path) -> Result<Self, Error> {
        let fault = |error: std::io::Error| Error::server(what, format!("starting: {error}"));
        let output = OpenOptions::new().create(true).append(true).open(log).map_err(fault)?;
        let errors = output.try_clone().map_err(fault)?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let mut child = command.spawn().map_err(fault)?;
        let mut watcher = Command::new("sh");
        watcher.args(["-c", WATCH, &child.id().to_string()]).process_group(0);
        watcher.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        match watcher.spawn() {
            Ok(watcher) => Ok(Self { what, child, watcher }),
            Err(error) => {
                child.kill().and_then(|()| child.wait()).map_err(fault)?;
                Err(fault(error))
            }
        }
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended yet.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it at once, as a crash would (SIGKILL), and waits until it is gone.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub async fn kill(mut self) -> Result<(), Error> {
        let fault = |error: std::io::Error| Error::server(self.what, format!("killing: {error}"));
        // The watcher first: once the process is waited for, its id may be somebody else's.
        self.watcher.kill().and_then(|()| self.watcher.wait()).map_err(fault)?;
        self.child.kill().map_err(fault)?;
        while self.child.try_wait().map_err(fault)?.is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Stops it from running without ending it (SIGSTOP): its connections stay open, nothing answers.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub fn stop(&mut self) -> Result<(), Error> {
        self.signal(Signal::STOP)
    }

    /// Lets it run on (SIGCONT).
    ///
    /// # Errors
    /// [`Error::Server`].
    pub fn go_on(&mut self) -> Result<(), Error> {
        self.signal(Signal::CONT)
    }

    fn signal(&mut self, signal: Signal) -> Result<(), Error> {
        // A child that has ended keeps its id until it is waited for, which only happens here.
        if !self.runs() {
            return Err(Error::server(self.what, "it has ended by itself".to_owned()));
        }
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(|error| Error::server(self.what, format!("signalling: {error}")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        for child in [&mut self.watcher, &mut self.child] {
            // Fails only for one that has ended already.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// A port that was free a moment ago.
///
/// # Errors
/// [`Error::Server`] when there is none.
pub fn free_port() -> Result<u16, Error> {
    std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .map(|address| address.port())
        .map_err(|error| Error::server("server", format!("no free port: {error}")))
}
