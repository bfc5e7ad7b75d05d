//! `loadtest lab`: a page that runs real sales on real instances, two strategies side by side, while faults can be
//! injected. A process of its own beside the instances, so that nothing which generates load, kills or flushes is part of
//! the service. What changes anything needs the administrator's token.
//!
//! `api` has the routes and their `refusal`s, `runs` the runs, `session_story` the sign-in that is told request by request,
//! `page` the files.
//! The sales, the checker and the faults are [`workload::comparison`], which `loadtest compare` runs, too.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use futures_util::FutureExt;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use workload::Environment;
use workload::comparison::{self, RunState};
use workload::live::Progress;

mod api;
mod page;
mod refusal;
mod runs;
mod session_story;

use api::Lab;
use runs::Runs;

/// What the lab works with, and where it listens.
#[derive(Clone, Debug, Args)]
pub struct LabOptions {
    #[command(flatten)]
    #[allow(missing_docs)] // A doc comment would become the help of the whole command.
    pub environment: Environment,
    /// Address to listen on; a proxy leads /lab here
    #[arg(long, env = "LAB_BIND", default_value = "127.0.0.1:8089")]
    pub bind: SocketAddr,
}

/// Listens, and serves until `stop`; a run that is under way then is stopped, and judged first.
///
/// # Errors
/// Where there is no administrator's token, or the address is in use.
pub async fn run(options: LabOptions, stop: CancellationToken) -> anyhow::Result<()> {
    options.environment.access.admin_header("the lab")?;
    let listener = TcpListener::bind(options.bind)
        .await
        .with_context(|| format!("cannot listen on {} (--bind)", options.bind))?;
    println!("the lab: http://{}/lab", listener.local_addr()?);
    serve(options, listener, stop).await
}

/// Serves on `listener` until `stop`, as [`run`] does. Without an administrator's token nothing can be begun.
///
/// # Errors
/// Where the listener fails.
pub async fn serve(
    options: LabOptions,
    listener: TcpListener,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let environment = Environment {
        progress: Progress::Silent,
        ..options.environment
    };
    let (begin, mut begun) = mpsc::unbounded_channel();
    let lab = Arc::new(Lab {
        environment: environment.clone(),
        runs: Runs::new(begin),
        faults: TaskTracker::new(),
        hot_key: Mutex::default(),
    });
    let (served, ()) = tokio::join!(
        serve_requests(listener, &lab, &stop),
        conduct_runs(&environment, &mut begun, &stop),
    );
    served
}

/// Answers requests until `stop`, and waits for the faults under way.
async fn serve_requests(
    listener: TcpListener,
    lab: &Arc<Lab>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let router = api::routes(lab.clone());
    axum::serve(listener, router)
        .with_graceful_shutdown(stop.clone().cancelled_owned())
        .await?;
    lab.faults.close();
    lab.faults.wait().await;
    Ok(())
}

/// Conducts the runs that are begun, one after the other, until `stop`.
async fn conduct_runs(
    environment: &Environment,
    begun: &mut mpsc::UnboundedReceiver<Arc<RunState>>,
    stop: &CancellationToken,
) {
    while let Some(Some(run)) = stop.run_until_cancelled(begun.recv()).await {
        // A panic ends one run, and not the lab.
        let selling = AssertUnwindSafe(comparison::run(environment, &run)).catch_unwind();
        let failure = tokio::select! {
            outcome = selling => match outcome {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it panicked".to_owned(),
            },
            never = async {
                stop.cancelled().await;
                run.stop();
                std::future::pending().await
            } => never,
        };
        eprintln!("loadtest: a run of the lab failed: {failure}");
        run.fail(&failure);
    }
}
