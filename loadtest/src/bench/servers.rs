//! Servers under test: instances of the service, the baselines and nginx. Each is a child process that listens on a
//! free port of 127.0.0.1 and ends with the benchmark.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use testkit::process::{Process, free_port};
use workload::Target;

use crate::bench::environment::Environment;
use crate::chaos::instance::answers;
use crate::rolling::balancer;

/// Longest wait for a server to be ready.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Longest wait for a server to end; after it, it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(3);
/// Purchases in flight that the overloaded instance admits; beyond it, it refuses. As many as there are clients at the
/// peak: with more in flight, every purchase waits longer and the rate stays the same.
const OVERLOAD_PURCHASES: &str = "256";

/// A server process; dropping it ends it.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    /// The same as a base URL.
    pub target: Target,
    /// None where others have started it.
    process: Option<Process>,
    /// Ids of all processes that work for it: its own, nginx's workers, and those of the instances behind them.
    pids: Vec<u32>,
}

impl Drop for Server {
    /// Asks it to end (SIGTERM): killed, nginx would leave its workers behind, and a build that counts what it executes
    /// would not write its counts.
    fn drop(&mut self) {
        let Some(process) = &self.process else { return };
        // Terminating fails only for a process that has ended already.
        if process.terminate().is_err() {
            return;
        }
        let deadline = Instant::now() + STOP_LIMIT;
        while process.is_running() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Server {
    /// One that others have started; `pid` where it is known.
    pub fn other(address: SocketAddr, target: Target, pid: Option<u32>) -> Self {
        Server { address, target, process: None, pids: pid.into_iter().collect() }
    }

    /// Processor time that all its processes have used, in seconds; NaN where none is known.
    pub fn processor_s(&self) -> f64 {
        match self.pids.is_empty() {
            true => f64::NAN,
            false => self.pids.iter().copied().map(processor_s).sum(),
        }
    }

    /// Resident memory, in bytes.
    pub fn memory(&self) -> anyhow::Result<u64> {
        self.status("VmRSS:")
    }

    /// The most resident memory that it ever had, in bytes.
    pub fn peak_memory(&self) -> anyhow::Result<u64> {
        self.status("VmHWM:")
    }

    /// A size in /proc/PID/status, in bytes.
    fn status(&self, field: &str) -> anyhow::Result<u64> {
        let pid = self.pids.first().context("whose memory?")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kilobytes =
            line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        Ok(kilobytes.context("the memory of an instance")? * 1024)
    }
}

/// User and system time of a process, in seconds (proc(5): fields 14 and 15, in hundredths).
pub fn processor_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// All servers under test.
#[derive(Debug)]
pub struct Servers {
    /// An instance of the service.
    pub one: Server,
    /// A second instance on the same database and Redis.
    pub two: Server,
    /// An instance that refuses early; see [`OVERLOAD_PURCHASES`].
    pub strict: Server,
    /// An instance without logs.
    pub quiet: Server,
    /// The tuned one-transaction-per-order.
    pub transaction: Server,
    pub bare: Server,
    /// A second process of it.
    pub bare_two: Server,
    /// nginx in front of [`Servers::one`] and [`Servers::two`].
    pub nginx: Server,
    /// The same in front of both processes of the bare route.
    pub nginx_bare: Server,
}

impl Servers {
    pub async fn start(environment: &Environment) -> anyhow::Result<Self> {
        let one = instance(environment, "one", &[]).await?;
        let two = instance(environment, "two", &[]).await?;
        let bare = bare_route(environment, "bare").await?;
        let bare_two = bare_route(environment, "bare-two").await?;
        let behind = [("bare", &bare), ("bare-two", &bare_two)];
        let nginx_bare = nginx(environment, "nginx-bare", behind).await?;
        let strict = ["--max-purchases", OVERLOAD_PURCHASES];
        Ok(Self {
            nginx: nginx(environment, "nginx", [("one", &one), ("two", &two)]).await?,
            nginx_bare,
            strict: instance(environment, "strict", &strict).await?,
            quiet: instance(environment, "quiet", &["--log", "off"]).await?,
            transaction: transaction(environment).await?,
            one,
            two,
            bare,
            bare_two,
        })
    }
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(([127, 0, 0, 1], free_port()?).into())
}

/// The Unix socket of a server, which nginx reaches it by, as of `./dev up`. Relative to the folder of both, as the
/// kernel takes no long paths.
fn socket(name: &str) -> String {
    format!("{name}.sock")
}

/// Starts an instance of the service, with `flags` beyond the addresses.
pub async fn instance(
    environment: &Environment,
    name: &str,
    flags: &[&str],
) -> anyhow::Result<Server> {
    let (bind, access) = (free_address()?, &environment.settings.access);
    let mut command = Command::new(&environment.settings.seckill);
    command
        .args(["serve", "--lab", "--bind", &bind.to_string(), "--bind-unix", &socket(name)])
        // Through nginx the generator is a visitor, whose rate is limited.
        .args(["--unlimited-clients", "127.0.0.0/8"])
        .args(flags)
        .env("DATABASE_URL", &access.database_url)
        .env("REDIS_URL", &access.redis_url)
        .env("ADMIN_TOKEN", &access.admin_token)
        .env("TIME_ZONE", access.time_zone.name())
        .envs([("DRAIN_GRACE_MS", "1"), ("DRAIN_IDLE_MS", "1")]);
    start((command, bind), name, environment).await
}

/// This program as the baseline `name`, and its address.
fn baseline(name: &str) -> anyhow::Result<(Command, SocketAddr)> {
    let bind = free_address()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["baseline", name, "--bind", &bind.to_string()]);
    Ok((command, bind))
}

async fn bare_route(environment: &Environment, name: &str) -> anyhow::Result<Server> {
    let (mut command, bind) = baseline("bare")?;
    command.args(["--bind-unix", &socket(name)]);
    start((command, bind), name, environment).await
}

async fn transaction(environment: &Environment) -> anyhow::Result<Server> {
    let buyers = environment.settings.folder.join("buyers");
    std::fs::write(&buyers, environment.lines_of_buyers()?)?;
    let (mut command, bind) = baseline("transaction")?;
    command
        .arg("--buyers")
        .arg(&buyers)
        .env("DATABASE_URL", &environment.settings.access.database_url);
    start((command, bind), "transaction", environment).await
}

/// Starts nginx with the project's own configuration in front of two servers, given with their names. Their processor time
/// counts as its own.
async fn nginx(
    environment: &Environment,
    name: &str,
    servers: [(&str, &Server); 2],
) -> anyhow::Result<Server> {
    let bind = free_address()?;
    let home = environment.settings.folder.join(name);
    let sockets = servers.map(|(name, _)| format!("unix:{}", socket(name)));
    std::fs::create_dir_all(&home)?;
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/nginx.conf");
    let text = std::fs::read_to_string(&template).context("deploy/nginx.conf")?;
    let text = balancer::nginx(&text, &bind.to_string(), &sockets);
    std::fs::write(home.join("nginx.conf"), text)?;
    // As root its workers would become `nobody`, which may not be allowed into this folder.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let mut command = Command::new("nginx");
    command.arg("-p").arg(home.join("")).args(["-c", "nginx.conf", "-e", "stderr"]);
    command.args(["-g", &format!("daemon off; {user}")]);
    let mut nginx = start((command, bind), name, environment).await?;
    let workers = nginx.pids.iter().flat_map(|&pid| children(pid)).collect::<Vec<_>>();
    nginx.pids.extend(workers);
    nginx.pids.extend(servers.iter().flat_map(|(_, server)| &server.pids));
    Ok(nginx)
}

/// The processes that this one has started, as proc(5) lists them.
fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    list.unwrap_or_default().split(' ').filter_map(|pid| pid.parse().ok()).collect()
}

/// Starts `command` in the benchmark's folder, and waits until it is ready on `address`.
async fn start(
    (mut command, address): (Command, SocketAddr),
    name: &str,
    environment: &Environment,
) -> anyhow::Result<Server> {
    let log = environment.settings.folder.join(format!("{name}.log"));
    // `Process` appends to it.
    std::fs::write(&log, "")?;
    let target: Target = format!("http://{address}").parse()?;
    command.current_dir(&environment.settings.folder);
    let process = Process::start(command, &log)?;
    let ready = process.serves(START_LIMIT, async || answers(&target, "/health/ready").await).await;
    ready.with_context(|| name.to_owned())?;
    let pids = vec![process.id()];
    Ok(Server { address, target, process: Some(process), pids })
}
