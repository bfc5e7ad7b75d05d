//! Kills the last instance by the operator's command, and waits until it has ended, and until it serves again.

use std::time::{Duration, Instant};

use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    process::Command,
    time::{sleep, timeout},
};

use crate::{
    Environment, Error, Target,
    http::{Call, Connection},
};

/// Longest wait for the end of an instance that is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait for an instance to come back.
const BACK_WITHIN: Duration = Duration::from_secs(30);
/// Time limit of a question to an instance.
const LIMIT: Duration = Duration::from_secs(1);
/// From one question to the next.
const POLL: Duration = Duration::from_millis(50);

/// Kills the last instance; returns it once it has ended.
///
/// # Errors
/// [`Error::Usage`] where there is only one instance, or no command, or the command does not kill it.
pub async fn kill_last_node(environment: &Environment) -> Result<Target, Error> {
    let [_, .., node] = &environment.nodes[..] else {
        return Err(Error::Usage("there is only one instance".to_owned()));
    };
    // The command may only ask a supervisor to kill. The system closes this connection when the process has ended.
    let address = node.authority();
    let connecting = timeout(LIMIT, TcpStream::connect(&address)).await;
    let Ok(Ok(mut connection)) = connecting else {
        return Err(Error::Usage(format!("{node} takes no connections")));
    };
    run_command(environment).await?;
    match timeout(ENDS_WITHIN, connection.read(&mut [0])).await {
        // Closed, or reset.
        Ok(Ok(0) | Err(_)) => Ok(node.clone()),
        Ok(Ok(_)) | Err(_) => Err(Error::Usage(format!(
            "{node} was not killed: --kill-command must kill the last of --nodes"
        ))),
    }
}

/// Waits until the instance serves again, while `is_awaited`; says whether it does.
///
/// # Errors
/// [`Error::Usage`] where it is not back in time.
pub async fn wait_until_back(node: &Target, is_awaited: impl Fn() -> bool) -> Result<bool, Error> {
    let begun = Instant::now();
    let mut connection = Connection::new(node.clone(), LIMIT);
    let ready = Call::get("/health/ready");
    while begun.elapsed() < BACK_WITHIN {
        if !is_awaited() {
            return Ok(false);
        }
        let answered = connection.send(&ready).await;
        if answered.is_ok_and(|response| response.status == 200) {
            return Ok(true);
        }
        sleep(POLL).await;
    }
    let limit = BACK_WITHIN.as_secs();
    Err(Error::Usage(format!(
        "the killed instance was not back within {limit} s: its supervisor must start it again"
    )))
}

/// Runs the operator's command once.
///
/// # Errors
/// [`Error::Usage`] where there is none, or it fails.
pub async fn run_command(environment: &Environment) -> Result<(), Error> {
    let Some(command) = &environment.kill_command else {
        return Err(Error::Usage("--kill-command is not set".to_owned()));
    };
    let failed = |what: String| Error::Usage(format!("killing an instance by {command:?}: {what}"));
    let run = Command::new("sh").arg("-c").arg(command).output();
    let output = run.await.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!("{} {}", output.status, said.trim())))
}
