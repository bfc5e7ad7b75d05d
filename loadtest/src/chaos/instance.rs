//! A process of the service: the real binary, on a port it keeps over restarts.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use testkit::{
    process::{Process, free_port},
    wait::until,
};
use tokio::time::{Instant, sleep};

use workload::{
    Error, Target,
    http::{Call, Connection},
};

/// How it is called in messages.
const WHAT: &str = "seckill";
/// How long it may take to serve, or to be ready, on a busy machine and while its servers recover.
const LIMIT: Duration = Duration::from_secs(60);
/// How long it may take to end when it is asked to.
const END_LIMIT: Duration = Duration::from_secs(20);
/// Pause before one that could not start is started again, as a supervisor does.
const PAUSE: Duration = Duration::from_millis(50);

/// An instance.
#[derive(Debug)]
pub struct Instance {
    program: PathBuf,
    log: PathBuf,
    pub target: Target,
    /// Its environment; nothing else is passed on to it.
    pub environment: Vec<(&'static str, String)>,
    process: Option<Process>,
}

impl Instance {
    /// One that does not run yet, on a port of its own; it logs to `folder`.
    pub fn new(program: &Path, number: usize, folder: &Path) -> Result<Self, Error> {
        let port = free_port().map_err(server(WHAT))?;
        Ok(Self {
            program: program.to_owned(),
            log: folder.join(format!("instance-{number}.log")),
            target: format!("http://127.0.0.1:{port}").parse()?,
            environment: Vec::new(),
            process: None,
        })
    }

    /// Ends it at once, as a crash would, and waits until it is gone.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Asks it to end (SIGTERM), and waits until it is gone.
    pub async fn end(&mut self) -> Result<(), Error> {
        let Some(process) = &self.process else { return Ok(()) };
        // It may have ended by itself: then there is nothing to ask.
        if process.terminate().is_ok() && !until(END_LIMIT, async || !process.is_running()).await {
            let (target, log) = (&self.target, process.log_end());
            let reason = format!("{target} did not end {END_LIMIT:?} after SIGTERM:\n{log}");
            return Err(Error::server(WHAT, reason));
        }
        self.kill();
        Ok(())
    }

    /// Stops it from running for a time (SIGSTOP, SIGCONT).
    pub async fn pause(&self, lasts: Duration) -> Result<(), Error> {
        let Some(process) = &self.process else { return Ok(()) };
        pause(process, lasts).await.map_err(server(WHAT))
    }

    /// Starts it, again and again while the servers it needs are away; returns when it serves.
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.kill();
        let deadline = Instant::now() + LIMIT;
        loop {
            let process = self.launch()?;
            let left = deadline.saturating_duration_since(Instant::now());
            let live = async || answers(&self.target, "/health/live").await;
            match process.serves(left, live).await {
                Ok(()) => {
                    self.process = Some(process);
                    return Ok(());
                }
                Err(error) if Instant::now() >= deadline => return Err(server(WHAT)(error)),
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    fn launch(&self) -> Result<Process, Error> {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--bind", &format!("127.0.0.1:{}", self.target.port())]);
        command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        Process::start(command, &self.log).map_err(server(WHAT))
    }

    /// Waits until it says that it can sell; returns how long that took.
    pub async fn ready(&self) -> Result<Duration, Error> {
        let begin = Instant::now();
        let ready = async || answers(&self.target, "/health/ready").await;
        match &self.process {
            Some(process) => process.serves(LIMIT, ready).await.map_err(server(WHAT))?,
            None => return Err(Error::server(WHAT, format!("{} does not run", self.target))),
        }
        Ok(begin.elapsed())
    }
}

/// Stops a process for a time (SIGSTOP, SIGCONT).
pub async fn pause(process: &Process, lasts: Duration) -> io::Result<()> {
    process.pause()?;
    sleep(lasts).await;
    process.resume()
}

/// An error of a server that the run itself started.
pub fn server(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::server(what, error.to_string())
}

/// Whether it answers this path with 200.
pub async fn answers(target: &Target, path: &str) -> bool {
    let mut connection = Connection::new(target.clone(), Duration::from_secs(3));
    let answer = connection.send(&Call::get(path)).await;
    answer.is_ok_and(|response| response.status == 200)
}
