//! A MariaDB of chaos's own, in a folder of its own. It keeps what it has committed when it is killed.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use sqlx::{Connection, MySqlConnection};
use tokio::time::{sleep, timeout};

use super::process::{Process, free_port};
use workload::Error;

/// How it is called in messages.
const WHAT: &str = "mariadbd";
/// How long it may take to answer after a start, which includes recovery after a crash.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A MariaDB server bound to 127.0.0.1.
#[derive(Debug)]
pub struct Database {
    folder: PathBuf,
    port: u16,
    password: String,
    process: Option<Process>,
}

impl Database {
    /// Makes an empty server in `folder`, which must exist, and starts it.
    ///
    /// # Errors
    /// [`Error::Server`], with the end of what the server said.
    pub async fn start(folder: &Path) -> Result<Self, Error> {
        let password = format!("{:016x}", rand::random::<u64>());
        let folder = folder.to_owned();
        let mut database = Self { folder, port: free_port()?, password, process: None };
        database.install()?;
        database.restart().await?;
        Ok(database)
    }

    /// The address of the database `seckill` for somebody who reaches the server at `port`.
    pub fn url_at(&self, port: u16) -> String {
        format!("mysql://seckill:{}@127.0.0.1:{port}/seckill", self.password)
    }

    /// Its address.
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn install(&self) -> Result<(), Error> {
        let fault = |error: std::io::Error| Error::server(WHAT, format!("setting up: {error}"));
        let data = self.folder.join("data");
        std::fs::create_dir_all(&data).map_err(fault)?;
        let users = format!(
            "CREATE DATABASE IF NOT EXISTS seckill CHARACTER SET utf8mb4;\n\
             CREATE USER IF NOT EXISTS 'seckill'@'127.0.0.1' IDENTIFIED BY '{}';\n\
             GRANT ALL ON seckill.* TO 'seckill'@'127.0.0.1';\n",
            self.password
        );
        std::fs::write(self.folder.join("init.sql"), users).map_err(fault)?;
        // From inside the folder, as this program splits a path at spaces; --force, as it would
        // insist on looking up the name of the machine.
        let mut install = Command::new("mariadb-install-db");
        install.args(["--no-defaults", "--datadir=.", "--force", "--skip-test-db"]);
        install.args(["--skip-name-resolve", "--auth-root-authentication-method=socket"]);
        install.args(as_root()).current_dir(&data).stdin(Stdio::null());
        let output = install.output().map_err(fault)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(Error::server(WHAT, format!("mariadb-install-db failed: {said}")))
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

    /// Starts it on what it had committed; returns when it answers.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub async fn restart(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        let mut command = Command::new("mariadbd");
        command.arg("--no-defaults").args(as_root());
        command.arg(format!("--datadir={}", self.folder.join("data").display()));
        command.arg(format!("--init-file={}", self.folder.join("init.sql").display()));
        command.arg(format!("--port={}", self.port));
        command.args(["--bind-address=127.0.0.1", "--socket=mariadb.sock", "--skip-name-resolve"]);
        command.args(["--pid-file=mariadb.pid", "--character-set-server=utf8mb4"]);
        // A committed order survives the loss of power, as in a deployment.
        command.args(["--innodb-flush-log-at-trx-commit=1", "--max-connections=300"]);
        // Small, so that it is quick to make and to recover.
        command.args(["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M"]);
        let mut process = Process::start(WHAT, command, &self.folder.join("mariadb.log"))?;
        loop {
            let connecting = MySqlConnection::connect(&self.url());
            if let Ok(Ok(connection)) = timeout(Duration::from_secs(2), connecting).await {
                // It answered: how this connection ends does not matter.
                connection.close().await.ok();
                self.process = Some(process);
                return Ok(());
            }
            if !process.runs() || Instant::now() > deadline {
                return Err(Error::server(WHAT, end_of(&self.folder.join("mariadb.log"))));
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The running process, for stopping it and letting it go on.
    pub fn process(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }
}

/// It refuses to be root unless told; here it owns nothing but its folder.
fn as_root() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() { &["--user=root"] } else { &[] }
}

/// The last lines of a log, for a message.
pub(super) fn end_of(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.len().saturating_sub(12);
    format!("it did not start; its log ends with:\n{}", lines[last..].join("\n"))
}
