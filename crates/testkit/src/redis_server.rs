//! A throw-away redis-server: started on a free port with its data in a temporary folder, killed, paused and
//! restarted at will, gone when dropped. It is the program that the environment variable REDIS_SERVER names, such as
//! a valkey-server, or else the `redis-server` on the PATH.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};

use super::process::{Process, TemporaryFolder, free_port};

/// How long a server may take to answer its first PING, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The arguments of a server that keeps every write. A write is in the file before its reply is sent, so it survives
/// SIGKILL; only a power failure would need fsync. Not `everysec`: while an fsync is under way, that sends replies before the
/// writes are in the file.
pub const KEEPS_WRITES: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "no"];

/// What a server is started as.
#[derive(Debug, Clone)]
pub enum Role {
    /// A server of its own that forgets its data when it ends.
    Alone,
    /// A server that [keeps every write](KEEPS_WRITES), so that its data outlives [`RedisServer::kill`].
    Durable,
    /// A copy of the server on this port.
    ReplicaOf(u16),
    /// A node of a cluster that is yet to be made, with its node timeout in milliseconds.
    ClusterNode(u64),
    /// A sentinel with this configuration.
    Sentinel(String),
}

/// A running redis-server, bound to 127.0.0.1.
#[derive(Debug)]
pub struct RedisServer {
    process: Option<Process>,
    port: u16,
    /// Where the nodes of a cluster talk to each other. Its default, the port plus 10,000, does not
    /// exist for every free port.
    bus: u16,
    /// What it is started as the next time.
    pub role: Role,
    /// What is added to its environment the next time it is started.
    pub environment: Vec<(&'static str, String)>,
    /// What is added to its command line whenever it is started.
    pub arguments: Vec<String>,
    data: PathBuf,
    // Dropped last: the process writes to it.
    folder: Arc<TemporaryFolder>,
}

impl RedisServer {
    /// Starts a server that forgets its data when it ends.
    pub async fn start() -> Self {
        Self::start_as(Role::Alone).await
    }

    /// Starts a server in a role, in a folder of its own; panics where [`start_in`](Self::start_in) fails.
    pub async fn start_as(role: Role) -> Self {
        Self::start_with_arguments(role, Vec::new()).await
    }

    /// As [`start_as`](Self::start_as), with more arguments on its command line.
    pub async fn start_with_arguments(role: Role, arguments: Vec<String>) -> Self {
        let folder = Arc::new(TemporaryFolder::new().expect("a temporary folder"));
        let started = Self::start_in(folder, role, arguments).await;
        started.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a server in a role, with its data and its log in a folder below `folder`.
    ///
    /// # Errors
    /// It is not installed, or did not start: then with the end of its log.
    pub async fn start_in(
        folder: Arc<TemporaryFolder>,
        role: Role,
        arguments: Vec<String>,
    ) -> io::Result<Self> {
        let mut server = Self {
            process: None,
            port: 0,
            bus: 0,
            role,
            environment: Vec::new(),
            arguments,
            data: PathBuf::new(),
            folder,
        };
        // A free port may be taken by another process before the server binds it: then try others.
        for attempt in 1.. {
            server.port = free_port()?;
            server.bus = free_port()?;
            server.data = server.folder.path().join(format!("redis-{}", server.port));
            std::fs::create_dir_all(&server.data)?;
            match server.try_restart().await {
                Err(_) if attempt < 5 => {}
                started => return started.map(|()| server),
            }
        }
        unreachable!("the fifth attempt returns")
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of a cluster node's bus.
    pub fn bus(&self) -> u16 {
        self.bus
    }

    /// `redis://127.0.0.1:<port>/`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// `127.0.0.1:<port>`
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The folder of its data files.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// A client for it; makes no connection yet.
    pub fn client(&self) -> Client {
        Client::open(self.url()).expect("a valid address")
    }

    /// A connection, with generous time limits.
    pub async fn conn(&self) -> MultiplexedConnection {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(10)))
            .set_response_timeout(Some(Duration::from_secs(10)));
        self.client()
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("connect to the test server")
    }

    /// Ends it at once, as a crash would (SIGKILL), and waits until it is gone.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// As [`try_restart`](Self::try_restart); panics where that fails.
    pub async fn restart(&mut self) {
        self.try_restart()
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Starts it again on the same port and data, killing it first if it still runs; returns when it answers.
    ///
    /// # Errors
    /// It did not come back: with the end of its log.
    pub async fn try_restart(&mut self) -> io::Result<()> {
        self.kill();
        let program = env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let mut command = Command::new(program);
        command
            .args(self.arguments()?)
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .arg("--dir")
            .arg(&self.data)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        let process = Process::start(command, &self.data.join("redis.log"))?;
        process
            .serves(START_LIMIT, async || self.answers(process.id()).await)
            .await?;
        self.process = Some(process);
        Ok(())
    }

    /// Stops it from running without ending it (SIGSTOP): connections stay open, nothing answers.
    pub fn pause(&self) {
        self.process()
            .and_then(Process::pause)
            .expect("a server to pause");
    }

    /// Lets it run again (SIGCONT).
    pub fn resume(&self) {
        self.process()
            .and_then(Process::resume)
            .expect("a server to resume");
    }

    /// The running process.
    pub fn process(&self) -> io::Result<&Process> {
        self.process
            .as_ref()
            .ok_or_else(|| io::Error::other("redis-server does not run"))
    }

    /// Whether this process answers: another server may have taken the port first, and would answer as well.
    async fn answers(&self, id: u32) -> bool {
        let line = format!("process_id:{id}");
        let info = self.info().await;
        info.is_ok_and(|info| info.lines().any(|found| found.trim() == line))
    }

    async fn info(&self) -> RedisResult<String> {
        let mut connection = self.client().get_multiplexed_async_connection().await?;
        // PING is refused while the server loads its data; INFO is not.
        let _pong: String = redis::cmd("PING").query_async(&mut connection).await?;
        redis::cmd("INFO")
            .arg("server")
            .query_async(&mut connection)
            .await
    }

    /// The command line of its role. A configuration file comes first.
    fn arguments(&self) -> io::Result<Vec<String>> {
        let mut line = match &self.role {
            Role::Sentinel(configuration) => {
                // It keeps what it learns in the file, so a restart must not write it anew.
                let file = self.data.join("sentinel.conf");
                if !file.exists() {
                    std::fs::write(&file, configuration)?;
                }
                return Ok(vec![file.display().to_string(), "--sentinel".to_owned()]);
            }
            Role::Durable => KEEPS_WRITES.join(" "),
            Role::Alone => String::new(),
            Role::ReplicaOf(port) => format!("--replicaof 127.0.0.1 {port}"),
            Role::ClusterNode(timeout) => format!(
                "--cluster-enabled yes --cluster-port {} --cluster-node-timeout {timeout} \
                 --cluster-replica-validity-factor 0 --cluster-require-full-coverage no",
                self.bus
            ),
        };
        line.push_str(" --repl-diskless-sync-delay 0");
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        words.extend(["--save".to_owned(), String::new()]);
        Ok(words)
    }
}
