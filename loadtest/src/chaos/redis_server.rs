//! A redis-server of chaos's own, in a folder of its own. It can come back with what it last wrote,
//! with an old snapshot, or with nothing.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::time::{sleep, timeout};

use super::{
    database::end_of,
    process::{Process, free_port},
};
use workload::{Error, redis_connection::connect};

/// How it is called in messages.
const WHAT: &str = "redis-server";
/// How long it may take to answer after a start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// What Redis knows when it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Back {
    /// Everything it had written to its append-only file.
    Intact,
    /// What it knew when the snapshot was taken, early in the sale.
    Old,
    /// Nothing.
    Empty,
}

/// A redis-server bound to 127.0.0.1.
#[derive(Debug)]
pub struct RedisServer {
    folder: PathBuf,
    port: u16,
    process: Option<Process>,
}

impl RedisServer {
    /// Starts an empty server in `folder`, which must exist.
    ///
    /// # Errors
    /// [`Error::Server`], with the end of its log.
    pub async fn start(folder: &Path) -> Result<Self, Error> {
        let mut server = Self { folder: folder.to_owned(), port: free_port()?, process: None };
        server.restart(Back::Empty).await?;
        Ok(server)
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs one command without arguments that matter here, such as SAVE.
    ///
    /// # Errors
    /// [`Error::Redis`].
    pub async fn command(&self, words: &[&str]) -> Result<redis::Value, Error> {
        let mut redis = connect(&self.url()).await?;
        let mut command = redis::Cmd::new();
        command.arg(words);
        command
            .query_async(&mut redis)
            .await
            .map_err(|source| Error::Redis { what: "in the middle of a fault", source })
    }

    /// Writes the snapshot that [`Back::Old`] comes back with.
    ///
    /// # Errors
    /// [`Error::Redis`].
    pub async fn take_snapshot(&self) -> Result<(), Error> {
        self.command(&["SAVE"]).await.map(drop)
    }

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

    /// Starts it with what it is to know; returns when it answers.
    ///
    /// # Errors
    /// [`Error::Server`], [`Error::Redis`].
    pub async fn restart(&mut self, back: Back) -> Result<(), Error> {
        if back != Back::Intact {
            remove(&self.folder.join("appendonlydir"))?;
        }
        if back == Back::Empty {
            remove(&self.folder.join("dump.rdb"))?;
        }
        // It reads the snapshot only where it has no append-only file and is not told to keep one.
        let keeps = if back == Back::Old { "no" } else { "yes" };
        let log = self.folder.join("redis.log");
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", ""]);
        command.args(["--appendonly", keeps, "--appendfsync", "everysec", "--dir"]);
        command.arg(&self.folder);
        let mut process = Process::start(WHAT, command, &log)?;
        let deadline = Instant::now() + START_LIMIT;
        loop {
            // Another server may have taken the port first, and would answer as well. It answers INFO while
            // it still reads its file.
            if let Ok(Ok(info)) = timeout(Duration::from_secs(2), self.command(&["INFO"])).await {
                let info = string(info);
                let ours = info.contains(&format!("process_id:{}\r", process.id()));
                if ours && info.contains("\nloading:0\r") {
                    break;
                }
            }
            if !process.runs() || Instant::now() > deadline {
                return Err(Error::server(WHAT, end_of(&log)));
            }
            sleep(Duration::from_millis(5)).await;
        }
        self.process = Some(process);
        if back == Back::Old {
            self.keep_from_now_on(deadline).await?;
        }
        Ok(())
    }

    /// Turns the append-only file on, and waits until it holds everything.
    async fn keep_from_now_on(&self, deadline: Instant) -> Result<(), Error> {
        self.command(&["CONFIG", "SET", "appendonly", "yes"]).await?;
        loop {
            let info = string(self.command(&["INFO", "persistence"]).await?);
            let says = |line: &str| info.lines().any(|found| found.trim() == line);
            if says("aof_rewrite_in_progress:0") && says("aof_rewrite_scheduled:0") {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::server(WHAT, "its append-only file is not written".to_owned()));
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The running process, for stopping it and letting it go on.
    pub fn process(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }
}

fn string(value: redis::Value) -> String {
    redis::from_redis_value(value).unwrap_or_default()
}

fn remove(path: &Path) -> Result<(), Error> {
    let removed =
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::File { path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}
