//! A process of the service: the real binary, on a port it keeps over restarts.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use testkit::{
    process::{Process, free_port},
    wait::until,
};
use tokio::time::{Instant, sleep};

use workload::{
    Target,
    http::{Call, Connection},
};

/// How long an instance may take to serve, or to be ready, on a busy machine and while its servers recover.
const LIMIT: Duration = Duration::from_secs(60);
/// How long it may take to end when it is asked to.
const END_LIMIT: Duration = Duration::from_secs(20);
/// Pause before an instance that could not start is started again, as a supervisor does.
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
    /// An instance that does not run yet, on a port of its own; it logs to `folder`.
    pub fn new(program: &Path, number: usize, folder: &Path) -> Result<Self> {
        Ok(Self {
            program: program.to_owned(),
            log: folder.join(format!("instance-{number}.log")),
            target: format!("http://127.0.0.1:{}", free_port()?).parse()?,
            environment: Vec::new(),
            process: None,
        })
    }

    /// Ends it at once, as a crash would, and waits until it is gone.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Asks it to end (SIGTERM), and waits until it is gone; returns how long that took.
    pub async fn end(&mut self) -> Result<Duration> {
        let begin = Instant::now();
        let Some(process) = &self.process else {
            return Ok(Duration::ZERO);
        };
        // It may have ended by itself: then there is nothing to ask.
        if process.terminate().is_ok() && !until(END_LIMIT, async || !process.is_running()).await {
            let target = &self.target;
            let log = process.log_end();
            bail!("{target} did not end {END_LIMIT:?} after SIGTERM:\n{log}");
        }
        self.kill();
        Ok(begin.elapsed())
    }

    /// The running process.
    pub fn process(&self) -> Result<&Process> {
        self.process.as_ref().context("an instance does not run")
    }

    /// Starts it, again and again while the servers it needs are away; returns when it serves.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill();
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut command = Command::new(&self.program);
            command.args(["serve", "--bind", &self.target.authority()]);
            command
                .env_clear()
                .envs(self.environment.iter().map(|(name, value)| (name, value)));
            let process = Process::start(command, &self.log)?;
            let time_left = deadline.saturating_duration_since(Instant::now());
            let live = async || answers(&self.target, "/health/live").await;
            match process.serves(time_left, live).await {
                Ok(()) => {
                    self.process = Some(process);
                    return Ok(());
                }
                Err(error) if Instant::now() >= deadline => return Err(error.into()),
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// Waits until it says that it can sell; returns how long that took.
    pub async fn ready(&self) -> Result<Duration> {
        let begin = Instant::now();
        let ready = async || answers(&self.target, "/health/ready").await;
        self.process()?.serves(LIMIT, ready).await?;
        Ok(begin.elapsed())
    }
}

/// Stops a process for a time (SIGSTOP, SIGCONT).
pub async fn pause(process: &Process, lasts: Duration) -> io::Result<()> {
    process.pause()?;
    sleep(lasts).await;
    process.resume()
}

/// Whether a server answers this path with 200.
pub async fn answers(target: &Target, path: &str) -> bool {
    let mut connection = Connection::new(target.clone(), Duration::from_secs(3));
    let answer = connection.send(&Call::get(path)).await;
    answer.is_ok_and(|response| response.status == 200)
}
