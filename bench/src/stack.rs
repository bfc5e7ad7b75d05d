//! The processes under measurement: instances of the service, the baselines, nginx. They are children of
//! the benchmark, listen on free ports of 127.0.0.1, and end with it.

use std::ffi::OsStr;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};
use workload::Target;
use workload::http::{Call, Connection};

use crate::ground::{Buyers, Ground};

/// Longest wait for a server to be ready.
const START: Duration = Duration::from_secs(30);

/// A process that is asked to end (SIGTERM: nginx would leave its workers behind otherwise) when this goes
/// out of scope.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    child: Child,
    /// Processes that work for it.
    behind: Vec<u32>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already may have left its id to somebody else.
        let runs = matches!(self.child.try_wait(), Ok(None));
        let pid = i32::try_from(self.child.id()).ok().filter(|_| runs).and_then(Pid::from_raw);
        if let Some(pid) = pid
            && let Err(fault) = kill_process(pid, Signal::TERM)
        {
            eprintln!("cannot end process {pid:?}: {fault}");
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
        cpu_s(self.child.id()) + self.behind.iter().map(|pid| cpu_s(*pid)).sum::<f64>()
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
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
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
    nginx.behind = vec![one.child.id(), two.child.id()];
    Ok(nginx)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

async fn start(
    mut command: Command,
    address: SocketAddr,
    folder: &Path,
    name: &str,
) -> anyhow::Result<Server> {
    let log: PathBuf = folder.join(format!("{name}.log"));
    let out = File::create(&log)?;
    let program = command.get_program().to_owned();
    let child = command
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let mut server = Server { address, child, behind: Vec::new() };
    let mut connection = Connection::new(server.target(), Duration::from_secs(2));
    let deadline = Instant::now() + START;
    loop {
        let call = Call::get("/health/ready");
        if connection.send(&call).await.is_ok_and(|answer| answer.status == 200) {
            return Ok(server);
        }
        let ended = server.child.try_wait()?;
        if ended.is_some() || Instant::now() > deadline {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let tail: Vec<_> = said.lines().rev().take(5).collect();
            bail!("{name} is not ready: {}", tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
        sleep(Duration::from_millis(50)).await;
    }
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
