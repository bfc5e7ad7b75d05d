//! The processes under measurement: instances of the service, the baselines, nginx. They are children of
//! the benchmark, listen on free ports of 127.0.0.1, and end with it.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use testkit::process::{Process, free_port};
use testkit::wait::until;
use workload::Target;
use workload::http::{Call, Connection};

use crate::ground::{Buyers, Ground};

/// Longest wait for nginx to end by itself.
const END: Duration = Duration::from_secs(5);
/// Longest wait for a server to be ready.
const START: Duration = Duration::from_secs(30);

/// A server process, ended when dropped.
#[derive(Debug)]
pub struct Server {
    /// Its address.
    pub address: SocketAddr,
    process: Process,
    /// The instances behind nginx.
    behind: Vec<u32>,
}

impl Drop for Server {
    /// Lets nginx end by itself (SIGTERM): killed, it would leave its workers behind.
    fn drop(&mut self) {
        if self.behind.is_empty() {
            return;
        }
        // Fails only for a process that has ended already.
        self.process.terminate().ok();
        let begin = Instant::now();
        while self.process.is_running() && begin.elapsed() < END {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Server {
    /// Its base URL.
    pub fn target(&self) -> Target {
        // An address and nothing else always makes a URL.
        format!("http://{}", self.address).parse().unwrap_or_else(|fault| panic!("{fault}"))
    }

    /// Processor time that it and what is behind it have used, in seconds; 0 where the system does not tell.
    pub fn cpu_s(&self) -> f64 {
        cpu_s(self.process.id()) + self.behind.iter().map(|pid| cpu_s(*pid)).sum::<f64>()
    }
}

/// User and system time of a process, in seconds (proc(5): fields 14 and 15, in hundredths).
pub fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// A port of 127.0.0.1 that was free a moment ago.
fn free() -> anyhow::Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, free_port()?).into())
}

/// Starts an instance of the service, with `flags` beyond the addresses.
pub async fn instance(ground: &Ground, name: &str, flags: &[&str]) -> anyhow::Result<Server> {
    let bind = free()?;
    let mut command = Command::new(&ground.seckill);
    command
        .args(["serve", "--lab", "--bind", &bind.to_string()])
        .args(flags)
        .env("DATABASE_URL", &ground.access.database_url)
        .env("REDIS_URL", &ground.access.redis_url)
        .env("ADMIN_TOKEN", &ground.access.admin_token)
        .env("TIME_ZONE", ground.access.time_zone.name());
    start(command, bind, &ground.folder, name).await
}

/// Starts the bare route.
pub async fn bare(ground: &Ground) -> anyhow::Result<Server> {
    let bind = free()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["baseline-bare", "--bind", &bind.to_string()]);
    start(command, bind, &ground.folder, "bare").await
}

/// Starts the tuned one-transaction-per-order, with so many connections to the database.
pub async fn plain(ground: &Ground, buyers: &Buyers, pool: u32) -> anyhow::Result<Server> {
    let bind = free()?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["baseline-plain", "--bind", &bind.to_string(), "--connections", &pool.to_string()])
        .arg("--buyers")
        .arg(&buyers.file)
        .env("DATABASE_URL", &ground.access.database_url)
        .env("REDIS_URL", &ground.access.redis_url);
    start(command, bind, &ground.folder, "plain").await
}

/// Starts nginx with the project's own configuration before two instances.
pub async fn nginx(ground: &Ground, one: &Server, two: &Server) -> anyhow::Result<Server> {
    let bind = free()?;
    let home = ground.folder.join("nginx");
    std::fs::create_dir_all(&home)?;
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/nginx.conf");
    let text = std::fs::read_to_string(&template).context("deploy/nginx.conf")?;
    let text = text
        .replace("${NGX_LISTEN}", &bind.to_string())
        .replace("${NGX_FILES}", "8192")
        .replace("${NGX_CONNECTIONS}", "8000")
        .replace("${NGX_ONE}", &one.address.to_string())
        .replace("${NGX_TWO}", &two.address.to_string());
    std::fs::write(home.join("nginx.conf"), text)?;
    // As root its workers would become `nobody`, who may not be allowed into this folder.
    let root = std::env::var("USER").is_ok_and(|user| user == "root") || is_root();
    let user = if root { "user root;" } else { "" };
    let mut command = Command::new("nginx");
    command.arg("-p").arg(home.join("")).args(["-c", "nginx.conf", "-e", "stderr"]);
    command.args(["-g", &format!("daemon off; {user}")]);
    let mut nginx = start(command, bind, &ground.folder, "nginx").await?;
    nginx.behind = vec![one.process.id(), two.process.id()];
    Ok(nginx)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

async fn start(
    command: Command,
    address: SocketAddr,
    folder: &Path,
    name: &str,
) -> anyhow::Result<Server> {
    let process = Process::start(command, &folder.join(format!("{name}.log")))?;
    let server = Server { address, process, behind: Vec::new() };
    let mut connection = Connection::new(server.target(), Duration::from_secs(2));
    let mut ready = false;
    until(START, async || {
        let answer = connection.send(&Call::get("/health/ready")).await;
        ready = answer.is_ok_and(|answer| answer.status == 200);
        ready || !server.process.is_running()
    })
    .await;
    ensure!(ready, "{name} is not ready: {}", server.process.log_end());
    Ok(server)
}

/// Runs a program to its end.
pub async fn output(mut command: Command) -> anyhow::Result<Output> {
    tokio::task::spawn_blocking(move || {
        let name = command.get_program().to_owned();
        command.output().with_context(|| format!("running {}", name.display()))
    })
    .await?
}

/// Whether a program of this name can be found.
pub fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(OsStr::new(name)).is_file())
}
