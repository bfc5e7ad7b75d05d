//! Reads of shops, and what their cache promises: each way in which a cache can let the database down is provoked and
//! measured.
//!
//! All cases have one frame: temporary shops are made, the case has them read by the driver of reads (`reads`) and returns
//! its checks, and the shops are removed. Requests go to the instances themselves and not through a proxy, because
//! `GET /metrics` of each counts its loads.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use testkit::wait::until;
use tokio_util::sync::CancellationToken;
use workload::{Environment, Error};

use crate::{options::Run, report::Checked};

mod avalanche;
mod keys;
mod penetration;
mod reads;
mod shops;
mod stage;
mod stampede;
mod steady;
mod updates;

use keys::RedisKeys;
use shops::ShopTable;
use stage::{Case, Stage};

/// How long the clean-up waits for a server that is away.
const CLEAN_UP: Duration = Duration::from_secs(15);

/// The cases.
#[derive(Debug, Subcommand)]
pub enum Scenario {
    /// A hot key expires under readers of two instances: loads per expiry, and waiting times (breakdown)
    Stampede(Run<On<stampede::Options>>),
    /// Random ids that do not exist: how many reach the database
    Penetration(Run<On<penetration::Options>>),
    /// Keys stored together: how many expire in the worst second, with and without jitter
    Avalanche(Run<On<avalanche::Options>>),
    /// Changes of a shop under readers: how long an old value is still served
    Updates(Run<On<updates::Options>>),
    /// Steady reads with a mixed hit ratio, second by second; break something meanwhile
    Read(Run<On<steady::Options>>),
}

/// The options of a case, and where it runs.
#[derive(Debug, Args)]
pub struct On<C: Args> {
    #[command(flatten)]
    case: C,
    #[command(flatten)]
    environment: Environment,
}

impl Scenario {
    /// Runs the case to its end or until `stop`; returns its report, and the file for its JSON.
    ///
    /// # Errors
    /// An [`Error`] of the set-up.
    pub async fn run(self, stop: &CancellationToken) -> Result<(Checked, Option<PathBuf>), Error> {
        match self {
            Self::Stampede(run) => on_shops(run, stop).await,
            Self::Penetration(run) => on_shops(run, stop).await,
            Self::Avalanche(run) => on_shops(run, stop).await,
            Self::Updates(run) => on_shops(run, stop).await,
            Self::Read(run) => on_shops(run, stop).await,
        }
    }
}

/// Runs a case on temporary shops. Whatever happens in it, rows and keys are removed afterwards.
async fn on_shops<C: Case>(
    Run {
        options: On { case, environment },
        json,
    }: Run<On<C>>,
    stop: &CancellationToken,
) -> Result<(Checked, Option<PathBuf>), Error> {
    let Environment {
        access,
        nodes,
        progress,
        ..
    } = environment;
    let table = ShopTable::open(&access.database_url).await?;
    let keys = RedisKeys::open(&access).await?;
    let mut stage = Stage {
        access,
        nodes,
        progress,
        table,
        keys,
        shops: Vec::new(),
        stop: stop.clone(),
    };
    let result = make_shops_and_run(&case, &mut stage).await;
    let mut cleaned = Ok(());
    until(CLEAN_UP, async || {
        cleaned = clean_up(&stage).await;
        cleaned.is_ok()
    })
    .await;
    if let Err(error) = cleaned {
        progress.say(&format!("not all was cleaned up: {error}"));
    }
    let report = result?;
    let report = if stop.is_cancelled() {
        report.cut_short_and_unclear()
    } else {
        report
    };
    Ok((report, json))
}

async fn make_shops_and_run<C: Case>(case: &C, stage: &mut Stage) -> Result<Checked, Error> {
    let message = format!("making {} temporary shops", C::SHOPS);
    stage.progress.say(&message);
    stage.shops = stage.table.make_temporary(C::SHOPS).await?;
    stage.keys.remove(&stage.shops).await?;
    // The filters do not know the new rows. The service fills a new one, which does.
    stage.keys.drop_filters().await?;
    case.run(stage).await
}

async fn clean_up(stage: &Stage) -> Result<(), Error> {
    // Rows first, so that they are not cached again.
    stage.table.remove_temporary().await?;
    stage.keys.remove(&stage.shops).await?;
    stage.keys.drop_filters().await
}
