//! External programs: whether one is installed, and its output.

use std::process::{Command, Output};

use anyhow::Context;

/// Runs a program to its end.
///
/// # Errors
/// It cannot be started. A status other than 0 is not an error here.
pub async fn output(mut command: Command) -> anyhow::Result<Output> {
    tokio::task::spawn_blocking(move || {
        let name = command.get_program().to_owned();
        command.output().with_context(|| format!("running {}", name.display()))
    })
    .await?
}

/// Whether `PATH` holds a program of this name.
pub fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}
