//! The balancers of a rolling restart, run from the shipped configurations: nginx, which passes requests on and notices
//! an instance's end by refused connections; HAProxy as a plain TCP balancer, which asks for readiness.

use std::{fmt, fs, path::Path, process::Command, time::Duration};

use anyhow::Result;
use testkit::process::{Process, free_port};

use crate::chaos::instance::answers;
use workload::Target;

/// How long a balancer may take to pass requests on.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Connections that it may hold.
const CONNECTIONS: &str = "4096";

/// What is in front of the instances.
#[derive(Debug, Clone, Copy)]
pub enum Balancer {
    /// nginx: it reuses its connections to the instances, and does not ask for readiness.
    Nginx,
    /// HAProxy: it passes each TCP connection of a client to one instance, asks for readiness, and retries nothing.
    Tcp,
}

impl fmt::Display for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nginx => "nginx",
            Self::Tcp => "TCP balancer",
        })
    }
}

impl Balancer {
    /// Starts it in front of `instances`; its files go to `folder`. Returns its process and where it listens, once a request
    /// reaches an instance.
    pub async fn start(self, instances: &[Target], folder: &Path) -> Result<(Process, Target)> {
        let listen = format!("127.0.0.1:{}", free_port()?);
        let [file, log] = ["conf", "log"].map(|end| folder.join(format!("{self}.{end}")));
        let instances: Vec<String> = instances.iter().map(Target::authority).collect();
        let (mut command, text) = match self {
            Self::Nginx => {
                let mut command = Command::new("nginx");
                command
                    .arg("-p")
                    .arg(folder.join(""))
                    .args(["-e", "stderr"]);
                // Without a master, so that killing it leaves no worker behind.
                command.args(["-g", "daemon off; master_process off;", "-c"]);
                (
                    command,
                    nginx(
                        include_str!("../../../deploy/nginx.conf"),
                        &listen,
                        &instances,
                    ),
                )
            }
            Self::Tcp => {
                let mut command = Command::new("haproxy");
                command.args(["-db", "-f"]);
                let text = include_str!("../../../deploy/tcp-balancer.cfg");
                (command, haproxy(text, &listen, &instances))
            }
        };
        fs::write(&file, text)?;
        command.arg(&file);
        let process = Process::start(command, &log)?;
        let target: Target = format!("http://{listen}").parse()?;
        process
            .serves(START_LIMIT, async || answers(&target, "/health/live").await)
            .await?;
        Ok((process, target))
    }
}

/// The shipped configuration of nginx with its placeholders filled in. It names two servers; further ones get the settings
/// of the second. There is no lab, so its address leads nowhere.
pub fn nginx(text: &str, listen: &str, instances: &[String]) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("server ${NGX_TWO}") {
            let servers: Vec<_> = instances
                .iter()
                .skip(1)
                .map(|address| line.replace("${NGX_TWO}", address))
                .collect();
            lines.push(servers.join("\n"));
        } else {
            lines.push(line.to_owned());
        }
    }
    let text = lines.join("\n") + "\n";
    let first_instance = instances.first().map(String::as_str).unwrap_or_default();
    [
        ("LISTEN", listen),
        ("FILES", "16384"),
        ("CONNECTIONS", CONNECTIONS),
        ("ONE", first_instance),
        ("LAB", "127.0.0.1:1"),
    ]
    .iter()
    .fold(text, |text, (name, value)| {
        text.replace(&format!("${{NGX_{name}}}"), value)
    })
}

fn haproxy(text: &str, listen: &str, instances: &[String]) -> String {
    let servers = instances.iter().enumerate();
    let servers = servers.map(|(index, address)| format!("    server i{index} {address}\n"));
    text.replace("${HAP_LISTEN}", listen)
        .replace("${HAP_RETRIES}", "0")
        + &servers.collect::<String>()
}
