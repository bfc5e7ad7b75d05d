//! A real redis-server process of a test's own: started on a free port with its data in a
//! temporary folder, killed, paused and restarted at will, and gone when dropped. Nothing here
//! knows what is tested.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};

/// How long a server may take to answer its first PING, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(20);

/// What a server is started as.
#[derive(Clone)]
pub enum Role {
    /// A server of its own that forgets its data when it ends.
    Alone,
    /// A server that keeps every write, so that its data outlives [`RedisServer::kill`].
    Durable,
    /// A copy of the server on this port.
    ReplicaOf(u16),
    /// A node of a cluster that is yet to be made, with its node timeout in milliseconds.
    ClusterNode(u64),
    /// A sentinel with this configuration.
    Sentinel(String),
}

/// A running redis-server, bound to 127.0.0.1.
pub struct RedisServer {
    port: u16,
    /// Where the nodes of a cluster talk to each other. Its default, the port plus 10,000, does not
    /// exist for every free port.
    bus: u16,
    folder: PathBuf,
    role: Role,
    child: Option<Child>,
    /// Ends the server and removes its folder if this process is killed before it can.
    watcher: Option<Child>,
}

impl RedisServer {
    /// Start a server that forgets its data when it ends.
    pub async fn start() -> Self {
        Self::start_as(Role::Alone).await
    }

    /// Start a server; with `append_only` it keeps every write, so that its data outlives
    /// [`kill`](Self::kill).
    pub async fn start_with(append_only: bool) -> Self {
        Self::start_as(if append_only { Role::Durable } else { Role::Alone }).await
    }

    /// Start a server in a role.
    pub async fn start_as(role: Role) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("seckill-redis-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("create the server's folder");
        let mut server = Self { port: 0, bus: 0, folder, role, child: None, watcher: None };
        // A free port may be taken by another process before the server binds it: then try another.
        for _ in 0..5 {
            (server.port, server.bus) = (free_port(), free_port());
            if server.launch().await {
                return server;
            }
            // Its watcher must not live on to remove the folder of the next attempt.
            server.kill();
        }
        panic!("redis-server did not start; is it installed?\n{}", server.log());
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

    /// A client for it; makes no connection yet.
    pub fn client(&self) -> Client {
        Client::open(self.url()).expect("a valid address")
    }

    /// A raw connection of its own, with generous time limits.
    pub async fn conn(&self) -> MultiplexedConnection {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(10)))
            .set_response_timeout(Some(Duration::from_secs(10)));
        self.client()
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("connect to the test server")
    }

    /// End it at once, as a crash would (SIGKILL), and wait until it is gone.
    pub fn kill(&mut self) {
        // The watcher first: once the server is waited for, its id may be somebody else's.
        for mut child in [self.watcher.take(), self.child.take()].into_iter().flatten() {
            child.kill().expect("kill redis-server");
            child.wait().expect("wait for redis-server");
        }
    }

    /// Start it again on the same port and folder, killing it first if it still runs; returns when
    /// it answers.
    pub async fn restart(&mut self) {
        self.kill();
        assert!(self.launch().await, "redis-server did not come back\n{}", self.log());
    }

    /// Stop it from running without ending it (SIGSTOP): connections stay open, nothing answers.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Let it run again (SIGCONT).
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Start the process and wait until it answers; `false` if it ended instead.
    async fn launch(&mut self) -> bool {
        let child = Command::new("redis-server")
            .args(self.arguments())
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--dir", &self.folder.display().to_string()])
            .args(["--logfile", "redis.log"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("run redis-server");
        // Its standard input is a pipe from this process, and ends when this process does.
        let watcher = Command::new("sh")
            .args(["-c", r#"trap "" INT TERM; read _; kill -KILL "$0"; rm -rf "$1""#])
            .args([child.id().to_string(), self.folder.display().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("run sh");
        let id = child.id();
        self.child = Some(child);
        self.watcher = Some(watcher);
        let client = self.client();
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            // Another server may have taken the port first, and would answer as well.
            if let Ok(mut conn) = client.get_multiplexed_async_connection().await
                && redis::cmd("PING").query_async::<String>(&mut conn).await.is_ok()
                && let Ok(info) =
                    redis::cmd("INFO").arg("server").query_async::<String>(&mut conn).await
            {
                return info.lines().any(|line| line.trim() == format!("process_id:{id}"));
            }
            if !self.running() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    /// What the command line says of its role. A configuration file comes first.
    fn arguments(&self) -> Vec<String> {
        let mut line = match &self.role {
            Role::Sentinel(configuration) => {
                // It keeps what it learns in the file, so a restart must not write it anew.
                let file = self.folder.join("sentinel.conf");
                if !file.exists() {
                    std::fs::write(&file, configuration).expect("write sentinel.conf");
                }
                return vec![file.display().to_string(), "--sentinel".to_owned()];
            }
            Role::Durable => "--appendonly yes --appendfsync always".to_owned(),
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
        words
    }

    fn running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// `kill` is part of every shell, and needs no unsafe code here.
    fn signal(&self, signal: &str) {
        let id = self.child.as_ref().expect("the server runs").id();
        let kill = format!("kill -{signal} {id}");
        let status = Command::new("sh").args(["-c", &kill]).status().expect("run kill");
        assert!(status.success(), "{kill} failed");
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("redis.log")).unwrap_or_default()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        for mut child in [self.watcher.take(), self.child.take()].into_iter().flatten() {
            // A test that fails here has failed already; do not hide its message by a second panic.
            if let Err(error) = child.kill().and_then(|()| child.wait()) {
                eprintln!("process {}: {error}", child.id());
            }
        }
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("{}: {error}", self.folder.display());
        }
    }
}

/// A port that was free a moment ago, and that nobody else in this process was given.
fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let socket = TcpListener::bind("127.0.0.1:0").expect("bind any port");
        let port = socket.local_addr().expect("a bound address").port();
        if GIVEN.lock().expect("no panic while it is held").insert(port) {
            return port;
        }
    }
}
