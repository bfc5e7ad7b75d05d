//! A throw-away MariaDB or MySQL server. It keeps what it has committed when it is killed.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, LazyLock},
    time::Duration,
};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use sqlx::{Connection, Executor, MySqlConnection};
use tokio::time::timeout;

use super::process::{Process, TemporaryFolder, free_port};

/// How long a start, which includes recovery after a crash, and what the administrator does may take, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a paused server's last system call may take.
const STANDSTILL: Duration = Duration::from_millis(30);
/// Time limit of one attempt to connect: a paused server accepts and says nothing.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Of the users `seckill` and `admin` of every server of this process, without characters that an address or SQL would
/// read otherwise.
pub(crate) static PASSWORD: LazyLock<String> =
    LazyLock::new(|| format!("{:016x}", rand::random::<u64>()));

/// Which of the two is started: `TEST_DATABASE_PRODUCT`, by the program that is first in `PATH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// `mariadbd`, where the variable is not set.
    MariaDb,
    /// `mysqld`, where the variable says `mysql`.
    MySql,
}

impl Product {
    /// What the environment asks for.
    pub fn chosen() -> io::Result<Self> {
        match std::env::var("TEST_DATABASE_PRODUCT").as_deref() {
            Err(_) | Ok("" | "mariadb") => Ok(Self::MariaDb),
            Ok("mysql") => Ok(Self::MySql),
            Ok(other) => Err(io::Error::other(format!(
                "TEST_DATABASE_PRODUCT is {other:?}, neither mariadb nor mysql"
            ))),
        }
    }
}

/// A server bound to 127.0.0.1, with an empty database `seckill`.
#[derive(Debug)]
pub struct DatabaseServer {
    process: Option<Process>,
    pub(crate) port: u16,
    files: PathBuf,
    pub(crate) settings: Settings,
    // Dropped last: the process writes to it.
    _folder: Arc<TemporaryFolder>,
}

/// What a server is started with besides the usual.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Added to its command line, behind the usual arguments.
    pub arguments: Vec<String>,
    /// Added to its environment.
    pub environment: Vec<(&'static str, String)>,
}

impl DatabaseServer {
    /// Makes an empty server in a folder below `folder`, and starts it.
    ///
    /// # Errors
    /// It is not installed, or did not start: then with the end of its log.
    pub async fn start_in(folder: Arc<TemporaryFolder>, settings: Settings) -> io::Result<Self> {
        let mut server = Self::new(folder, settings)?;
        let files = server.files.clone();
        // In a thread of its own: this one may serve proxies meanwhile.
        let installing = tokio::task::spawn_blocking(move || install(&files));
        installing.await.map_err(io::Error::other)??;
        server.try_restart().await?;
        Ok(server)
    }

    /// One that does not exist yet.
    pub(crate) fn new(folder: Arc<TemporaryFolder>, settings: Settings) -> io::Result<Self> {
        let port = free_port()?;
        let files = folder.path().join(format!("database-{port}"));
        Ok(Self {
            process: None,
            port,
            files,
            settings,
            _folder: folder,
        })
    }

    /// The address of the database `seckill` for a client that reaches the server through a proxy at `port`: without TLS,
    /// which newer servers offer unasked, and in which a proxy would see no statement.
    pub fn url_at(&self, port: u16) -> String {
        let password = &*PASSWORD;
        format!("mysql://seckill:{password}@127.0.0.1:{port}/seckill?ssl-mode=DISABLED")
    }

    /// The address of the database `seckill`.
    pub fn url(&self) -> String {
        format!(
            "mysql://seckill:{}@127.0.0.1:{}/seckill",
            *PASSWORD, self.port
        )
    }

    /// The address of the database `seckill` for a user who may do everything, such as making the server read-only; what
    /// such a user writes is not stopped by that.
    pub fn admin_url(&self) -> String {
        self.url().replacen("seckill:", "admin:", 1)
    }

    /// A connection of that user.
    pub async fn admin(&self) -> io::Result<MySqlConnection> {
        let url = self.admin_url();
        timeout(LIMIT, MySqlConnection::connect(&url))
            .await?
            .map_err(io::Error::other)
    }

    /// The file that holds all tables where it was started with `--innodb-file-per-table=0`.
    pub fn tablespace(&self) -> PathBuf {
        self.files.join("data/ibdata1")
    }

    /// Limits every file of the running server to this many bytes, as a full disk would; `None` lifts that.
    pub fn limit_file_size(&self, bytes: Option<u64>) -> io::Result<()> {
        let pid = i32::try_from(self.process()?.id())
            .ok()
            .and_then(Pid::from_raw);
        let limit = Rlimit {
            current: bytes,
            maximum: getrlimit(Resource::Fsize).maximum,
        };
        Ok(prlimit(pid, Resource::Fsize, limit).map(drop)?)
    }

    /// `127.0.0.1:<port>`
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends it at once, as a crash would (SIGKILL), and waits until it is gone.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it on what it had committed, killing it first if it still runs; returns when it answers.
    pub async fn try_restart(&mut self) -> io::Result<()> {
        self.kill();
        let (program, own) = match Product::chosen()? {
            Product::MariaDb => ("mariadbd", &["--innodb-log-file-size=32M"][..]),
            // Its folder for files that statements read and write may not exist. Its binary log is on by default, and would
            // leave triggers to administrators, and counting in a table that no rollback reaches to nobody.
            Product::MySql => (
                "mysqld",
                &[
                    "--innodb-redo-log-capacity=64M",
                    "--mysqlx=OFF",
                    "--secure-file-priv=NULL",
                    "--log-bin-trust-function-creators=1",
                    "--gtid-mode=OFF",
                    "--enforce-gtid-consistency=OFF",
                ][..],
            ),
        };
        // A write beyond a limit of the file's size fails; the signal that comes with it would end the server.
        let mut command = Command::new("sh");
        command.args([
            "-c",
            r#"trap "" XFSZ; program=$0; exec "$program" "$@""#,
            program,
        ]);
        command.arg("--no-defaults").args(as_root());
        command.arg(format!("--datadir={}", self.files.join("data").display()));
        command.arg(format!("--tmpdir={}", self.files.display()));
        command.arg(format!(
            "--init-file={}",
            self.files.join("init.sql").display()
        ));
        command.arg(format!("--port={}", self.port));
        // Of its own, as those that replicate each other need it.
        command.arg(format!("--server-id={}", self.port));
        command.args([
            "--bind-address=127.0.0.1",
            "--socket=database.sock",
            "--skip-name-resolve",
        ]);
        command.args(["--pid-file=database.pid", "--character-set-server=utf8mb4"]);
        // A committed order survives the loss of power, as in a deployment.
        command.args([
            "--innodb-flush-log-at-trx-commit=1",
            "--max-connections=1000",
        ]);
        // Small, so that it is quick to make and to recover.
        command
            .arg("--innodb-buffer-pool-size=64M")
            .args(own)
            .args(&self.settings.arguments);
        command.envs(
            self.settings
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        );
        let process = Process::start(command, &self.files.join("database.log"))?;
        process.serves(LIMIT, async || self.answers().await).await?;
        self.process = Some(process);
        Ok(())
    }

    /// Kills it, and starts it again with what `other` has, which stands still while its files are copied: they are as a
    /// crash would leave them.
    pub(crate) async fn start_as_copy(&mut self, other: &Self) -> io::Result<()> {
        self.kill();
        let (from, to) = (other.files.join("data"), self.files.join("data"));
        let process = other.process()?;
        process.pause()?;
        // What a thread is writing is written before it stands still.
        tokio::time::sleep(STANDSTILL).await;
        let copying = tokio::task::spawn_blocking(move || {
            std::fs::remove_dir_all(&to)?;
            succeeded(Command::new("cp").arg("-R").args([&from, &to]))
        });
        let copied = copying.await;
        process.resume()?;
        copied.map_err(io::Error::other)??;
        self.try_restart().await
    }

    /// The running process.
    pub fn process(&self) -> io::Result<&Process> {
        self.process
            .as_ref()
            .ok_or_else(|| io::Error::other("the database server does not run"))
    }

    async fn answers(&self) -> bool {
        let connecting = MySqlConnection::connect(&self.url());
        let Ok(Ok(connection)) = timeout(CONNECT_LIMIT, connecting).await else {
            return false;
        };
        // It answered: how this connection ends does not matter.
        connection.close().await.ok();
        true
    }
}

/// Runs one statement.
pub async fn run(connection: &mut MySqlConnection, statement: &str) -> io::Result<()> {
    let running = timeout(LIMIT, connection.execute(statement)).await;
    running?
        .map(drop)
        .map_err(|error| io::Error::other(format!("`{statement}`: {error}")))
}

/// Makes the system tables, the database `seckill`, its user and the administrator.
fn install(files: &Path) -> io::Result<()> {
    let (data, password) = (files.join("data"), &*PASSWORD);
    std::fs::create_dir_all(&data)?;
    // A statement a line, as MySQL reads them. Each server of a replicated database makes them for itself.
    let users = format!(
        "SET SESSION sql_log_bin = 0;\n\
         CREATE DATABASE IF NOT EXISTS seckill CHARACTER SET utf8mb4;\n\
         CREATE USER IF NOT EXISTS 'seckill'@'127.0.0.1' IDENTIFIED BY '{password}';\n\
         GRANT ALL ON seckill.* TO 'seckill'@'127.0.0.1';\n\
         GRANT ALL ON `seckill\\_%`.* TO 'seckill'@'127.0.0.1';\n\
         CREATE USER IF NOT EXISTS 'admin'@'127.0.0.1' IDENTIFIED BY '{password}';\n\
         GRANT ALL ON *.* TO 'admin'@'127.0.0.1' WITH GRANT OPTION;\n"
    );
    std::fs::write(files.join("init.sql"), users)?;
    let mut install = match Product::chosen()? {
        // --force, as it would insist on looking up the name of the machine.
        Product::MariaDb => {
            let mut install = Command::new("mariadb-install-db");
            install.args(["--no-defaults", "--datadir=.", "--force", "--skip-test-db"]);
            install.args([
                "--skip-name-resolve",
                "--auth-root-authentication-method=socket",
            ]);
            install
        }
        Product::MySql => {
            let mut install = Command::new("mysqld");
            install.args(["--no-defaults", "--datadir=.", "--initialize-insecure"]);
            install
        }
    };
    // From inside the folder, as the first of them splits a path at spaces. Of the folder for temporary files, which is
    // not shared: a starting MariaDB removes what others keep there.
    succeeded(
        install
            .args(as_root())
            .arg("--tmpdir=..")
            .current_dir(&data)
            .stdin(Stdio::null()),
    )
}

/// Runs a command that ends by itself.
fn succeeded(command: &mut Command) -> io::Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.output().map_err(|error| {
        io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program} failed: {said}")))
}

/// It refuses to be root unless told; here it owns nothing but its folder.
fn as_root() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() {
        &["--user=root"]
    } else {
        &[]
    }
}
