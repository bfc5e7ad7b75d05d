//! A throw-away HAProxy that leads one TCP address to one of several servers, as it is told.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::process::{Process, TemporaryFolder, free_port};
use super::wait::until;

/// How long a start may take, and the answer to a command, on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// A running HAProxy, bound to 127.0.0.1.
#[derive(Debug)]
pub struct HaProxy {
    port: u16,
    servers: usize,
    /// Where it takes commands (its runtime API).
    socket: PathBuf,
    _process: Process,
    // Dropped last: the process writes to it.
    _folder: Arc<TemporaryFolder>,
}

impl HaProxy {
    /// Starts one before these addresses, in a folder below `folder`. New connections are led to the first of them, and end
    /// at once while it does not listen: there are no retries and no health checks.
    ///
    /// # Errors
    /// It is not installed (Debian's package `haproxy`), or did not start: then with the end of its log.
    pub async fn start_in(folder: Arc<TemporaryFolder>, servers: &[String]) -> io::Result<Self> {
        let port = free_port()?;
        let files = folder.path().join(format!("haproxy-{port}"));
        std::fs::create_dir_all(&files)?;
        let socket = files.join("commands");
        let mut lines = format!(
            "global\n  stats socket {} level admin\n\
             defaults\n  mode tcp\n  retries 0\n  timeout connect 2s\n  timeout client 1h\n  timeout server 1h\n\
             listen tcp\n  bind 127.0.0.1:{port}\n",
            socket.display()
        );
        for (number, address) in servers.iter().enumerate() {
            let disabled = if number == 0 { "" } else { " disabled" };
            lines.push_str(&format!("  server s{number} {address}{disabled}\n"));
        }
        let configuration = files.join("haproxy.cfg");
        std::fs::write(&configuration, lines)?;
        let mut command = Command::new("haproxy");
        // In the foreground, in one process.
        command.arg("-db").arg("-f").arg(&configuration);
        let process = Process::start(command, &files.join("haproxy.log"))?;
        let listens = until(LIMIT, async || {
            !process.is_running() || TcpStream::connect(("127.0.0.1", port)).await.is_ok()
        });
        if !listens.await || !process.is_running() {
            let log = process.log_end();
            return Err(io::Error::other(format!("haproxy did not start:\n{log}")));
        }
        let servers = servers.len();
        Ok(Self { port, servers, socket, _process: process, _folder: folder })
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leads new connections to this server, and to no other; those that are open stay where they are.
    pub async fn lead_to(&self, server: usize) -> io::Result<()> {
        for number in 0..self.servers {
            let state = if number == server { "ready" } else { "maint" };
            self.command(&format!("set server tcp/s{number} state {state}")).await?;
        }
        Ok(())
    }

    /// Runs a command of the runtime API that answers nothing where it succeeds.
    async fn command(&self, command: &str) -> io::Result<()> {
        let answer = async {
            let mut stream = UnixStream::connect(&self.socket).await?;
            stream.write_all(format!("{command}\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            io::Result::Ok(answer)
        };
        let answer = timeout(LIMIT, answer).await??;
        if answer.trim().is_empty() {
            return Ok(());
        }
        Err(io::Error::other(format!("haproxy answered {command:?} with {:?}", answer.trim())))
    }
}
