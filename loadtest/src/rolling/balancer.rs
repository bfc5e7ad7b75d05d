//! The balancers of a rolling restart, run from the shipped configurations: nginx, which passes requests on and notices
//! an instance's end by refused connections; HAProxy as a plain TCP balancer, which asks for readiness.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use clap::ValueEnum;
use testkit::{
    process::{Process, free_port},
    wait::until,
};

use workload::{
    Error, Target,
    http::{Call, Connection},
};

/// How long a balancer may take to pass requests on.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Connections that it may hold.
const CONNECTIONS: &str = "4096";

/// What is in front of the instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Balancer {
    /// nginx, with connections to the instances that it uses again; it does not ask for readiness.
    Nginx,
    /// The same over the instances' Unix sockets.
    NginxUnix,
    /// HAProxy: a TCP connection of a client is one to an instance; it asks for readiness, and retries nothing.
    Tcp,
}

impl fmt::Display for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nginx => "nginx",
            Self::NginxUnix => "nginx over Unix sockets",
            Self::Tcp => "TCP balancer",
        })
    }
}

/// The Unix socket of an instance.
pub fn socket(folder: &Path, instance: &Target) -> PathBuf {
    folder.join(format!("{}.sock", instance.port()))
}

/// A balancer that runs; killed when dropped.
#[derive(Debug)]
pub struct Running {
    _process: Process,
    /// Where it listens.
    pub target: Target,
}

impl Balancer {
    /// Starts it in front of `instances` with its configuration in `deploy`; its files go to `folder`. Returns once a
    /// request reaches an instance.
    ///
    /// # Errors
    /// [`Error::File`] for its configuration; [`Error::Server`]: it is not installed, or did not start.
    pub async fn start(
        self,
        instances: &[Target],
        deploy: &Path,
        folder: &Path,
    ) -> Result<Running, Error> {
        let failed = |reason: String| match self {
            Self::Nginx | Self::NginxUnix => Error::server("nginx", reason),
            Self::Tcp => Error::server("haproxy", reason),
        };
        let port = free_port().map_err(|error| failed(error.to_string()))?;
        let listen = format!("127.0.0.1:{port}");
        let name = match self {
            Self::Nginx | Self::NginxUnix => "nginx.conf",
            Self::Tcp => "tcp-balancer.cfg",
        };
        let template = deploy.join(name);
        let text = fs::read_to_string(&template)
            .map_err(|source| Error::File { path: template.clone(), source })?;
        let tcp = instances.iter().map(Target::authority);
        let unix = instances.iter().map(|it| format!("unix:{}", socket(folder, it).display()));
        let text = match self {
            Self::Nginx => nginx(text, &listen, &tcp.collect::<Vec<_>>()),
            Self::NginxUnix => nginx(text, &listen, &unix.collect::<Vec<_>>()),
            Self::Tcp => haproxy(text, &listen, tcp),
        };
        let file = folder.join(format!("{port}-{name}"));
        fs::write(&file, text).map_err(|source| Error::File { path: file.clone(), source })?;
        let mut command;
        match self {
            Self::Nginx | Self::NginxUnix => {
                command = Command::new("nginx");
                command.arg("-p").arg(folder.join("")).arg("-c").arg(&file).args(["-e", "stderr"]);
                // Without a master, so that killing it leaves no worker behind.
                command.args(["-g", "daemon off; master_process off;"]);
            }
            Self::Tcp => {
                command = Command::new("haproxy");
                command.args(["-db", "-f"]).arg(&file);
            }
        }
        let log = folder.join(format!("{port}.log"));
        let process = Process::start(command, &log).map_err(|error| failed(error.to_string()))?;
        let target: Target = format!("http://{listen}").parse()?;
        let passes = until(START_LIMIT, async || {
            let mut connection = Connection::new(target.clone(), Duration::from_secs(1));
            let answer = connection.send(&Call::get("/health/live")).await;
            answer.is_ok_and(|answer| answer.status == 200) || !process.is_running()
        });
        if passes.await && process.is_running() {
            return Ok(Running { _process: process, target });
        }
        Err(failed(format!(
            "it does not pass requests on; its log ends with:\n{}",
            process.log_end()
        )))
    }
}

/// The shipped configuration has two servers; the others get the settings of the second.
fn nginx(text: String, listen: &str, instances: &[String]) -> String {
    let address = |index: usize| instances.get(index).map(String::as_str).unwrap_or_default();
    let mut lines = Vec::new();
    for line in text.lines() {
        lines.push(line.to_owned());
        if line.trim_start().starts_with("server ${NGX_TWO}") {
            let more = instances.iter().skip(2);
            lines.extend(more.map(|address| line.replace("${NGX_TWO}", address)));
        }
    }
    let values = [
        ("LISTEN", listen),
        ("FILES", "16384"),
        ("CONNECTIONS", CONNECTIONS),
        ("ONE", address(0)),
        ("TWO", address(1.min(instances.len().saturating_sub(1)))),
    ];
    let text = lines.join("\n") + "\n";
    values.iter().fold(text, |text, (name, value)| text.replace(&format!("${{NGX_{name}}}"), value))
}

fn haproxy(text: String, listen: &str, instances: impl Iterator<Item = String>) -> String {
    let servers = instances.enumerate();
    let servers = servers.map(|(index, address)| format!("    server i{index} {address}\n"));
    text.replace("${HAP_LISTEN}", listen).replace("${HAP_RETRIES}", "0")
        + &servers.collect::<String>()
}
