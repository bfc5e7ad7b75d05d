//! Servers under test: instances of the service, the baselines and nginx. Each is a child process that listens on a
//! free port of 127.0.0.1 and ends with the benchmark.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use testkit::process::{Process, free_port};
use workload::Target;

use crate::bench::baseline::DATABASE;
use crate::bench::environment::Environment;
use crate::chaos::instance::answers;
use crate::rolling::balancer;

/// Longest wait for a server to be ready.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Longest wait for a server to end; after it, it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(3);
/// Purchases in flight that the overloaded instance admits; it refuses more. As many as there are clients at the peak: with
/// more in flight, every purchase would wait longer and the rate would stay the same.
const OVERLOAD_PURCHASES: &str = "256";

/// A server process; dropping it ends it.
#[derive(Debug)]
pub struct Server {
    pub target: Target,
    process: Process,
    /// Ids of all processes that work for it: its own, nginx's workers, and those of the instances behind them.
    pids: Vec<u32>,
}

impl Drop for Server {
    /// Asks it to end (SIGTERM): killed, nginx would leave its workers behind, and a build that counts what it executes
    /// would not write its counts.
    fn drop(&mut self) {
        // Terminating fails only for a process that has ended already.
        if self.process.terminate().is_err() {
            return;
        }
        let deadline = Instant::now() + STOP_LIMIT;
        while self.process.is_running() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Server {
    /// Processor time that all its processes have used, in seconds.
    pub fn processor_s(&self) -> f64 {
        self.pids.iter().copied().map(processor_s).sum()
    }

    /// Resident memory of its own process, in bytes: now, and at its peak (proc(5)).
    pub fn memory(&self) -> anyhow::Result<[u64; 2]> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let size = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            let kilobytes = line.context("no such size")?.trim().trim_end_matches(" kB");
            anyhow::Ok(kilobytes.parse::<u64>()? * 1024)
        };
        Ok([size("VmRSS:")?, size("VmHWM:")?])
    }
}

/// User and system time of a process, in seconds (proc(5): fields 14 and 15, in hundredths).
pub fn processor_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat
        .rsplit_once(')')
        .map_or("", |(_, after_name)| after_name)
        .split_whitespace();
    fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

/// All servers under test.
#[derive(Debug)]
pub struct Servers {
    /// Instances of the service. The first also publishes the sales of others.
    pub instances: [Server; 2],
    /// An instance that refuses early (see [`OVERLOAD_PURCHASES`]), and keeps no shops in memory.
    pub strict: Server,
    /// An instance without logs.
    pub quiet: Server,
    /// The baseline of one tuned transaction per order.
    pub transaction: Server,
    /// Processes of the bare route.
    pub bare: [Server; 2],
    /// nginx in front of the instances.
    pub nginx: Server,
    /// The same in front of the bare route.
    pub nginx_bare: Server,
}

impl Servers {
    pub async fn start(environment: &Environment) -> anyhow::Result<Self> {
        let first_instance = instance(environment, "one", &[]).await?;
        let second_instance = instance(environment, "two", &[]).await?;
        let instances = [first_instance, second_instance];
        let first_bare = baseline(environment, "bare", None).await?;
        let second_bare = baseline(environment, "bare-two", None).await?;
        let bare = [first_bare, second_bare];
        let database_url = Some(&*environment.access.database_url);
        let strict = [
            "--max-purchases",
            OVERLOAD_PURCHASES,
            "--shop-cache",
            "mutex",
        ];
        Ok(Self {
            nginx: nginx(environment, "nginx", &instances).await?,
            nginx_bare: nginx(environment, "nginx-bare", &bare).await?,
            strict: instance(environment, "strict", &strict).await?,
            quiet: instance(environment, "quiet", &["--log", "off"]).await?,
            transaction: baseline(environment, "transaction", database_url).await?,
            instances,
            bare,
        })
    }
}

fn free_address() -> anyhow::Result<String> {
    Ok(format!("127.0.0.1:{}", free_port()?))
}

/// Starts an instance of the service, with `flags` beyond the addresses.
pub async fn instance(
    environment: &Environment,
    name: &str,
    flags: &[&str],
) -> anyhow::Result<Server> {
    let bind = free_address()?;
    let access = &environment.access;
    let mut command = Command::new(&environment.args.seckill);
    command
        .args(["serve", "--lab", "--bind", &bind])
        // Behind nginx the generator would be a client whose rate is limited; and all its reads are of one shop.
        .args([
            "--unlimited-clients",
            "127.0.0.0/8",
            "--per-shop-per-second",
            "0",
        ])
        .args(flags)
        .env("DATABASE_URL", &access.database_url)
        .env("REDIS_URL", &access.redis_url)
        .env("ADMIN_TOKEN", &access.admin_token)
        .env("TIME_ZONE", access.time_zone.name())
        .envs([("DRAIN_GRACE_MS", "1"), ("DRAIN_IDLE_MS", "1")]);
    start(environment, name, command, &bind).await
}

/// Starts this program as a baseline.
async fn baseline(
    environment: &Environment,
    name: &str,
    database_url: Option<&str>,
) -> anyhow::Result<Server> {
    let bind = free_address()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["baseline", "--bind", &bind]);
    command.envs(database_url.map(|url| (DATABASE, url)));
    start(environment, name, command, &bind).await
}

/// Starts nginx with the project's own configuration in front of two servers, whose processor time counts as its own.
async fn nginx(
    environment: &Environment,
    name: &str,
    servers: &[Server; 2],
) -> anyhow::Result<Server> {
    let bind = free_address()?;
    let home = environment.args.out.join(name);
    let addresses = servers.each_ref().map(|server| server.target.authority());
    std::fs::create_dir_all(&home)?;
    let text = balancer::nginx(
        include_str!("../../../deploy/nginx.conf"),
        &bind,
        &addresses,
    );
    std::fs::write(home.join("nginx.conf"), text)?;
    // Started by root, its workers would become `nobody`, which may not be allowed into this folder.
    let user = if rustix::process::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    let mut command = Command::new("nginx");
    command
        .arg("-p")
        .arg(home.join(""))
        .args(["-c", "nginx.conf", "-e", "stderr"]);
    command.args(["-g", &format!("daemon off; {user}")]);
    let mut nginx = start(environment, name, command, &bind).await?;
    // Its workers, as proc(5) lists them.
    let pid = nginx.process.id();
    let workers = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    nginx.pids.extend(
        workers
            .split_whitespace()
            .filter_map(|pid| pid.parse::<u32>().ok()),
    );
    nginx
        .pids
        .extend(servers.iter().flat_map(|server| &server.pids));
    Ok(nginx)
}

/// Starts `command` in the benchmark's folder, and waits until it is ready on `address`.
async fn start(
    environment: &Environment,
    name: &str,
    mut command: Command,
    address: &str,
) -> anyhow::Result<Server> {
    let log = environment.args.out.join(format!("{name}.log"));
    // Emptied, because `Process` appends to it.
    std::fs::write(&log, "")?;
    let target: Target = format!("http://{address}").parse()?;
    command.current_dir(&environment.args.out);
    let process = Process::start(command, &log)?;
    let ready = process
        .serves(START_LIMIT, async || {
            answers(&target, "/health/ready").await
        })
        .await;
    ready.with_context(|| name.to_owned())?;
    let pids = vec![process.id()];
    Ok(Server {
        target,
        process,
        pids,
    })
}
