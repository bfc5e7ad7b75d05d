//! Reads of shops, and what their cache promises: each way in which a cache can let the database down is provoked and
//! measured.
//!
//! All scenarios have one frame: temporary shops are made, the scenario has them read by the driver of reads (`reads`) and
//! returns its checks, and the shops are removed. Requests go to the instances themselves and not through a proxy, because
//! `GET /metrics` of each counts its loads.
//!
//! `hot_key` is a mission of the lab, which reads a shop that exists.

use std::{path::PathBuf, time::Duration};

use clap::Subcommand;
use testkit::wait::until;
use tokio_util::sync::CancellationToken;
use workload::{Environment, Error};

use crate::{options::Run, report::Checked};

mod avalanche;
pub(crate) mod hot_key;
mod keys;
mod penetration;
mod reads;
mod shops;
mod stage;
mod stampede;
mod steady;
mod updates;

use stage::Stage;

/// How long the clean-up waits for a server that is away.
const CLEAN_UP: Duration = Duration::from_secs(15);

/// The scenarios.
#[derive(Debug, Subcommand)]
pub enum Scenario {
    /// A hot key expires under readers of two instances: loads per expiry, and waiting times (breakdown)
    Stampede(Run<Environment>),
    /// Random ids that do not exist: how many reach the database
    Penetration(Run<Environment>),
    /// Keys stored together: how many expire in the worst second, with and without jitter
    Avalanche(Run<Environment>),
    /// Changes of a shop under readers: how long an old value is still served
    Updates(Run<Environment>),
    /// Steady reads with a mixed hit ratio, second by second; break something meanwhile
    Read {
        #[command(flatten)]
        #[allow(missing_docs)] // A doc comment would become the help of the whole command.
        pace: steady::Pace,
        #[command(flatten)]
        #[allow(missing_docs)]
        run: Run<Environment>,
    },
}

impl Scenario {
    /// Runs the scenario to its end or until `stop`; returns its report, and the file for its JSON. Whatever happens in it,
    /// rows and keys are removed afterwards.
    ///
    /// # Errors
    /// An [`Error`] of the set-up.
    pub async fn run(self, stop: &CancellationToken) -> Result<(Checked, Option<PathBuf>), Error> {
        let (Self::Stampede(run)
        | Self::Penetration(run)
        | Self::Avalanche(run)
        | Self::Updates(run)
        | Self::Read { run, .. }) = &self;
        let mut stage = Stage::open(run.options.clone(), stop).await?;
        let result = self.on_shops(&mut stage).await;
        let mut cleaned = Ok(());
        until(CLEAN_UP, async || {
            cleaned = stage.clean_up().await;
            cleaned.is_ok()
        })
        .await;
        if let Err(error) = cleaned {
            stage
                .progress
                .say(&format!("not all was cleaned up: {error}"));
        }
        let mut report = stage.with_redis_in_time(result?);
        if stop.is_cancelled() {
            report = report.unclear_at_worst().cut_short();
        }
        Ok((report, run.json.clone()))
    }

    async fn on_shops(&self, stage: &mut Stage) -> Result<Checked, Error> {
        stage.make_shops().await?;
        match self {
            Self::Stampede(_) => stampede::run(stage).await,
            Self::Penetration(_) => penetration::run(stage).await,
            Self::Avalanche(_) => avalanche::run(stage).await,
            Self::Updates(_) => updates::run(stage).await,
            Self::Read { pace, .. } => steady::run(pace, stage).await,
        }
    }
}
