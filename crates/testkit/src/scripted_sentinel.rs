//! A sentinel that says what a test tells it to: a server that answers `SENTINEL MASTER` and
//! `SENTINEL GET-MASTER-ADDR-BY-NAME`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::RedisResult;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::raw::command;

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Says {
    /// The epoch of the master's configuration, and its address by each of the two commands.
    Master(u64, [String; 2]),
    /// Nothing: connections are accepted, requests read, but not answered.
    Nothing,
}

impl Says {
    /// The master of an epoch, by both commands.
    pub fn master(epoch: u64, address: &str) -> Self {
        Self::during_failover(epoch, address, address)
    }

    /// The leader of a failover until the last replica follows the new master: the new epoch, but
    /// `SENTINEL MASTER` names the old address.
    pub fn during_failover(epoch: u64, old: &str, new: &str) -> Self {
        Self::Master(epoch, [old.to_owned(), new.to_owned()])
    }
}

/// A running scripted sentinel, which ends with its connections when dropped.
#[derive(Debug)]
pub struct ScriptedSentinel {
    address: SocketAddr,
    says: watch::Sender<Says>,
    connections: Arc<AtomicU64>,
    answers: watch::Receiver<u64>,
    _tasks: JoinSet<()>,
}

impl ScriptedSentinel {
    /// Starts one on a free port of 127.0.0.1.
    pub async fn start(says: Says) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (says, script) = watch::channel(says);
        let (answered, answers) = watch::channel(0);
        let connections = Arc::<AtomicU64>::default();
        let count = connections.clone();
        let answered = Arc::new(answered);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let script = script.clone();
                let answered = answered.clone();
                // Ends with an error when the client hangs up.
                open.spawn(async move { serve(client, script, &answered).await.ok() });
            }
        });
        Self {
            address,
            says,
            connections,
            answers,
            _tasks: tasks,
        }
    }

    /// `127.0.0.1:<port>`
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Its address as a sentinel.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Answers this from now on.
    pub fn say(&self, says: Says) {
        self.says.send_replace(says);
    }

    /// How many connections it has accepted.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }

    /// Waits until it has answered this many more look-ups of the master.
    pub async fn answers(&self, count: u64) {
        let mut answers = self.answers.clone();
        let goal = *answers.borrow_and_update() + count;
        answers
            .wait_for(|answered| *answered >= goal)
            .await
            .expect("it runs");
    }
}

/// Answers one client until it hangs up.
async fn serve(
    mut client: TcpStream,
    mut script: watch::Receiver<Says>,
    answered: &watch::Sender<u64>,
) -> RedisResult<()> {
    let mut decoder = Default::default();
    loop {
        let words = redis::parse_redis_value_async(&mut decoder, &mut client).await?;
        let words: Vec<String> = redis::from_redis_value(words)?;
        let request = words.join(" ").to_ascii_uppercase();
        // Fails only when the sentinel is dropped.
        let says = script
            .wait_for(|says| *says != Says::Nothing)
            .await
            .map(|says| says.clone());
        let says = says.map_err(io::Error::other)?;
        let Says::Master(epoch, addresses) = says else {
            continue;
        };
        let [(host, port), (new_host, new_port)] = addresses
            .each_ref()
            .map(|address| address.rsplit_once(':').expect("host:port"));
        let epoch = epoch.to_string();
        // A reply that is an array of texts has the form of a command.
        let reply = if request.starts_with("SENTINEL MASTER ") {
            let fields = ["any", "ip", host, "port", port, "config-epoch", &epoch];
            command("name", &fields).get_packed_command()
        } else if request.starts_with("SENTINEL GET-MASTER-ADDR-BY-NAME ") {
            command(new_host, &[new_port]).get_packed_command()
        } else {
            b"+OK\r\n".to_vec()
        };
        client.write_all(&reply).await?;
        if request.starts_with("SENTINEL GET-MASTER") {
            answered.send_modify(|count| *count += 1);
        }
    }
}
