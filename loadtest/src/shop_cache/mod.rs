//! Reads of shops, and what their cache promises: the ways in which a cache lets the database down, each made to happen and
//! each measured.
//!
//! Each case has `place` make temporary shops, has them read by the one driver of reads (`reads`), and returns its checks.
//! The instances are asked themselves, not through a proxy, because `GET /metrics` of each tells which layer answered.

use std::path::PathBuf;

use clap::Subcommand;
use workload::Error;

use crate::{options::Run, report::Checked};

mod avalanche;
mod keys;
mod metrics;
mod penetration;
mod place;
mod reads;
mod shops;
mod stampede;
mod steady;
mod updates;

/// The cases.
#[derive(Debug, Subcommand)]
pub enum Scenario {
    /// A hot key expires under readers of two instances: loads per expiry, and waiting times (breakdown)
    Stampede(Run<stampede::StampedeOptions>),
    /// Random ids that do not exist: how many reach the database
    Penetration(Run<penetration::PenetrationOptions>),
    /// Keys stored together: how many expire in the worst second, with and without jitter
    Avalanche(Run<avalanche::AvalancheOptions>),
    /// Changes of a shop under readers: how long an old value is still served
    Updates(Run<updates::UpdatesOptions>),
    /// Steady reads with a mixed hit ratio, second by second; break something meanwhile
    Read(Run<steady::ReadOptions>),
}

impl Scenario {
    /// Runs it; its report, and where that goes as JSON.
    pub async fn run(self) -> Result<(Checked, Option<PathBuf>), Error> {
        Ok(match self {
            Self::Stampede(Run { options, json }) => (stampede::run(&options).await?, json),
            Self::Penetration(Run { options, json }) => (penetration::run(&options).await?, json),
            Self::Avalanche(Run { options, json }) => (avalanche::run(&options).await?, json),
            Self::Updates(Run { options, json }) => (updates::run(&options).await?, json),
            Self::Read(Run { options, json }) => (steady::run(&options).await?, json),
        })
    }
}
