//! Reads of shops, and what their cache promises: the ways in which a cache lets the database down, each made to happen and
//! each measured.
//!
//! All cases share one frame: `stage` makes temporary shops and removes them, a case has them read by the one driver of
//! reads (`reads`) and returns its checks. The instances are asked themselves, not through a proxy, because
//! `GET /metrics` of each counts its loads.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use workload::{Environment, Error};

use crate::{options::Run, report::Checked};

mod avalanche;
mod counts;
mod keys;
mod penetration;
mod reads;
mod shops;
mod stage;
mod stampede;
mod steady;
mod updates;

use stage::{Case, Stage};

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
    /// Runs it; its report, and where that goes as JSON.
    pub async fn run(self) -> Result<(Checked, Option<PathBuf>), Error> {
        match self {
            Self::Stampede(run) => on_stage(run).await,
            Self::Penetration(run) => on_stage(run).await,
            Self::Avalanche(run) => on_stage(run).await,
            Self::Updates(run) => on_stage(run).await,
            Self::Read(run) => on_stage(run).await,
        }
    }
}

async fn on_stage<C: Case + Args>(
    Run { options: On { case, environment }, json }: Run<On<C>>,
) -> Result<(Checked, Option<PathBuf>), Error> {
    Ok((Stage::run(&case, environment).await?, json))
}
