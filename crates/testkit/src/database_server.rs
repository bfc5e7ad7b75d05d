//! A throw-away MariaDB, MySQL or OceanBase server. It keeps what it has committed when it is killed.

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

/// How long a start (with recovery after a crash) or a statement of the administrator may take, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a paused server's last system call may take.
const STANDSTILL: Duration = Duration::from_millis(30);
/// Time limit of one attempt to connect: a paused server accepts and says nothing.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// The password of the users `seckill` and `admin` of every server of this process. None of its characters has to be
/// escaped in an address or in SQL.
pub(crate) static PASSWORD: LazyLock<String> =
    LazyLock::new(|| format!("{:016x}", rand::random::<u64>()));

/// The product that is started. `TEST_DATABASE_PRODUCT` names it, and `PATH` leads to its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// `mariadbd`, where the variable is not set.
    MariaDb,
    /// `mysqld`, where the variable says `mysql`.
    MySql,
    /// OceanBase's engine as one server, `seekdb`, where the variable says `oceanbase`.
    OceanBase,
}

impl Product {
    fn program(self) -> &'static str {
        match self {
            Self::MariaDb => "mariadbd",
            Self::MySql => "mysqld",
            Self::OceanBase => "seekdb",
        }
    }

    /// What the environment asks for.
    pub fn chosen() -> io::Result<Self> {
        match std::env::var("TEST_DATABASE_PRODUCT").as_deref() {
            Err(_) | Ok("" | "mariadb") => Ok(Self::MariaDb),
            Ok("mysql") => Ok(Self::MySql),
            Ok("oceanbase") => Ok(Self::OceanBase),
            Ok(other) => Err(io::Error::other(format!(
                "TEST_DATABASE_PRODUCT is {other:?}, not mariadb, mysql or oceanbase"
            ))),
        }
    }
}

/// A collation that all products have, in every address; the driver's own choice is not in the smallest OceanBase.
pub const COLLATION: &str = "collation=utf8mb4_general_ci";

/// Little memory and disk, and few lines in its log. Of `log_disk_size` it takes 128 MB at first.
const OCEANBASE_PARAMETERS: [&str; 5] = [
    "memory_budget=1G",
    "datafile_size=64M",
    "log_disk_size=2G",
    "syslog_level=WARN",
    "max_syslog_file_count=1",
];

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

    /// A server whose files do not exist yet.
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
        format!("mysql://seckill:{password}@127.0.0.1:{port}/seckill?{COLLATION}&ssl-mode=DISABLED")
    }

    /// The address of the database `seckill`.
    pub fn url(&self) -> String {
        format!(
            "mysql://seckill:{}@127.0.0.1:{}/seckill?{COLLATION}",
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
        let connecting = timeout(LIMIT, MySqlConnection::connect(&url)).await;
        let late = |_| io::Error::other(format!("no connection within {LIMIT:?}"));
        connecting.map_err(late)?.map_err(io::Error::other)
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
        let product = Product::chosen()?;
        let arguments = match product {
            Product::OceanBase => self.arguments_of_oceanbase(),
            Product::MariaDb | Product::MySql => self.arguments_of_mysql(product),
        };
        // A write beyond the limit of a file's size has to fail. The signal that comes with it is ignored, as it would end
        // the server.
        let mut command = Command::new("sh");
        command.args([
            "-c",
            r#"trap "" XFSZ; program=$0; exec "$program" "$@""#,
            product.program(),
        ]);
        command.args(arguments).envs(
            self.settings
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        );
        let process = Process::start(command, &self.files.join("database.log"))?;
        process
            .serves(LIMIT, async || {
                if product == Product::OceanBase {
                    self.make_users().await;
                }
                self.answers().await
            })
            .await?;
        self.process = Some(process);
        Ok(())
    }

    fn arguments_of_mysql(&self, product: Product) -> Vec<String> {
        let folder = self.files.display();
        let mut arguments = vec!["--no-defaults".to_owned()];
        arguments.extend(as_root().iter().map(|&argument| argument.to_owned()));
        arguments.extend([
            format!("--datadir={folder}/data"),
            format!("--tmpdir={folder}"),
            format!("--init-file={folder}/init.sql"),
            format!("--port={}", self.port),
            // Different for each server, as replication needs it.
            format!("--server-id={}", self.port),
        ]);
        let common = [
            "--bind-address=127.0.0.1",
            "--socket=database.sock",
            "--skip-name-resolve",
            "--pid-file=database.pid",
            "--character-set-server=utf8mb4",
            // A committed order survives the loss of power, as in a deployment.
            "--innodb-flush-log-at-trx-commit=1",
            "--max-connections=1000",
            // Small, so that it is quick to make and to recover.
            "--innodb-buffer-pool-size=64M",
        ];
        let of_product = match product {
            Product::MySql => &[
                "--innodb-redo-log-capacity=64M",
                "--mysqlx=OFF",
                // Its folder for files that statements read and write may not exist.
                "--secure-file-priv=NULL",
                // Its binary log is on by default. Without the first of these, only administrators could create triggers; with
                // GTIDs, nobody could count in a table that no rollback reaches.
                "--log-bin-trust-function-creators=1",
                "--gtid-mode=OFF",
                "--enforce-gtid-consistency=OFF",
            ][..],
            _ => &["--innodb-log-file-size=32M"],
        };
        let fixed = common
            .iter()
            .chain(of_product)
            .map(|&argument| argument.to_owned());
        arguments.extend(fixed);
        arguments.extend(self.settings.arguments.iter().cloned());
        arguments
    }

    /// The program that `./dev` installs listens on 127.0.0.1 only. It has no settings of MySQL, and takes none of the test's.
    fn arguments_of_oceanbase(&self) -> Vec<String> {
        let mut arguments = vec![
            "--nodaemon".to_owned(),
            format!("--port={}", self.port),
            format!("--base-dir={}/data", self.files.display()),
        ];
        for parameter in OCEANBASE_PARAMETERS {
            arguments.extend(["--parameter", parameter].map(str::to_owned));
        }
        arguments
    }

    /// Makes the users of a new OceanBase, whose root has no password until then.
    async fn make_users(&self) {
        let root = format!("mysql://root@127.0.0.1:{}?{COLLATION}", self.port);
        let Ok(Ok(mut connection)) = timeout(CONNECT_LIMIT, MySqlConnection::connect(&root)).await
        else {
            return;
        };
        let password = format!("ALTER USER root IDENTIFIED BY '{}'", *PASSWORD);
        for statement in users().lines().chain([password.as_str()]) {
            // A failure shows when somebody signs in.
            if run(&mut connection, statement).await.is_err() {
                return;
            }
        }
    }

    /// Kills it, and starts it again on a copy of `original`'s files. The original stands still while they are copied, so
    /// they are as a crash would leave them.
    pub(crate) async fn start_as_copy(&mut self, original: &Self) -> io::Result<()> {
        self.kill();
        let source = original.files.join("data");
        let destination = self.files.join("data");
        let process = original.process()?;
        process.pause()?;
        // A thread that is writing ends that write before it stands still.
        tokio::time::sleep(STANDSTILL).await;
        let copying = tokio::task::spawn_blocking(move || {
            std::fs::remove_dir_all(&destination)?;
            run_to_success(Command::new("cp").arg("-R").args([&source, &destination]))
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
    let late = |_| io::Error::other(format!("`{statement}` was not done within {LIMIT:?}"));
    running
        .map_err(late)?
        .map(drop)
        .map_err(|error| io::Error::other(format!("`{statement}`: {error}")))
}

/// What makes the database `seckill`, its user and the administrator: a statement a line, as MySQL reads them.
fn users() -> String {
    let password = &*PASSWORD;
    format!(
        "CREATE DATABASE IF NOT EXISTS seckill CHARACTER SET utf8mb4;\n\
         CREATE USER IF NOT EXISTS 'seckill'@'127.0.0.1' IDENTIFIED BY '{password}';\n\
         GRANT ALL ON seckill.* TO 'seckill'@'127.0.0.1';\n\
         GRANT ALL ON `seckill\\_%`.* TO 'seckill'@'127.0.0.1';\n\
         CREATE USER IF NOT EXISTS 'admin'@'127.0.0.1' IDENTIFIED BY '{password}';\n\
         GRANT ALL ON *.* TO 'admin'@'127.0.0.1' WITH GRANT OPTION;\n"
    )
}

/// Makes the system tables, and the file of statements that make the users at each start.
fn install(files: &Path) -> io::Result<()> {
    let data = files.join("data");
    std::fs::create_dir_all(&data)?;
    // Each server of a replicated database makes the users for itself.
    let text = format!("SET SESSION sql_log_bin = 0;\n{}", users());
    std::fs::write(files.join("init.sql"), text)?;
    let mut install = match Product::chosen()? {
        Product::OceanBase => return Ok(()),
        // Without --force, it insists on looking up the name of the machine.
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
    // From inside the folder, as mariadb-install-db splits a path at spaces. The folder for temporary files is not shared:
    // a starting MariaDB removes what others keep there.
    run_to_success(
        install
            .args(as_root())
            .arg("--tmpdir=..")
            .current_dir(&data)
            .stdin(Stdio::null()),
    )
}

/// Runs a command to its end.
fn run_to_success(command: &mut Command) -> io::Result<()> {
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

/// The argument without which a server refuses to run as root. Here it owns nothing but its folder.
fn as_root() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() {
        &["--user=root"]
    } else {
        &[]
    }
}
