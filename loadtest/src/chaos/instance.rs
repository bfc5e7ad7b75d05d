//! A process of the service: the real binary, on a port it keeps over restarts.

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{database::end_of, process::Process};
use workload::{
    Error, Target,
    http::{Call, Connection},
};

/// How it is called in messages.
const WHAT: &str = "seckill";
/// How long it may take to serve, or to be ready, on a busy machine and while its servers recover.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause before one that could not start is started again, as a supervisor does.
const PAUSE: Duration = Duration::from_millis(50);

/// An instance.
#[derive(Debug)]
pub struct Instance {
    /// The binary.
    pub program: PathBuf,
    /// Where it logs.
    pub log: PathBuf,
    /// Where it is reached.
    pub target: Target,
    /// Its environment; nothing else is passed on to it.
    pub environment: Vec<(&'static str, String)>,
    /// The running process.
    pub process: Option<Process>,
}

impl Instance {
    /// Ends it at once, as a crash would.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub async fn kill(&mut self) -> Result<(), Error> {
        match self.process.take() {
            Some(process) => process.kill().await,
            None => Ok(()),
        }
    }

    /// Starts it, again and again while the servers it needs are away; returns when it serves.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.kill().await?;
        let deadline = Instant::now() + LIMIT;
        let mut process = self.launch()?;
        while !answers(&self.target, "/health/live").await {
            if Instant::now() > deadline {
                return Err(Error::server(WHAT, end_of(&self.log)));
            }
            if !process.runs() {
                sleep(PAUSE).await;
                process = self.launch()?;
            }
            sleep(Duration::from_millis(2)).await;
        }
        self.process = Some(process);
        Ok(())
    }

    fn launch(&self) -> Result<Process, Error> {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--bind", &format!("127.0.0.1:{}", self.target.port())]);
        command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        Process::start(WHAT, command, &self.log)
    }

    /// Waits until it says that it can sell.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub async fn ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + LIMIT;
        while !answers(&self.target, "/health/ready").await {
            if Instant::now() > deadline {
                return Err(Error::server(
                    WHAT,
                    format!("{} is not ready {LIMIT:?} after the last fault", self.target),
                ));
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

async fn answers(target: &Target, path: &str) -> bool {
    let mut connection = Connection::new(target.clone(), Duration::from_secs(3));
    let answer = connection.send(&Call::get(path)).await;
    answer.is_ok_and(|response| response.status == 200)
}
