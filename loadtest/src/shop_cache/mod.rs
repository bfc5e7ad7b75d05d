//! Reads of shops, and what their cache promises: the ways in which a cache lets the database down, each made to happen and
//! each measured.
//!
//! The instances are asked themselves, not through a proxy, because `GET /metrics` of each tells which layer answered.
//! Each scenario prepares, has shops read by the one driver of all loads ([`workload::driver`]), and returns its checks;
//! it undoes what it made.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use workload::Error;

use self::place::Place;
use crate::report::Checked;

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

/// The scenarios.
#[derive(Debug, Subcommand)]
pub enum Scenario {
    /// A hot key expires under readers of two instances: loads per expiry, and waiting times (breakdown)
    Stampede(Placed<stampede::StampedeOptions>),
    /// Random ids that do not exist: how many reach the database
    Penetration(Placed<penetration::PenetrationOptions>),
    /// Keys stored together: how many expire in the worst second, with and without jitter
    Avalanche(Placed<avalanche::AvalancheOptions>),
    /// Changes of a shop under readers: how long an old value is still served
    Updates(Placed<updates::UpdatesOptions>),
    /// Steady reads with a mixed hit ratio, second by second; break something meanwhile
    Read(Placed<steady::ReadOptions>),
}

/// A scenario's options, where it runs, and where its report goes.
#[derive(Debug, Args)]
pub struct Placed<O: Args> {
    #[command(flatten)]
    #[allow(missing_docs)] // A doc comment would become the help of the whole command.
    pub options: O,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub place: Place,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Scenario {
    /// Runs it; its report, and where that goes as JSON.
    ///
    /// # Errors
    /// An [`Error`] of the set-up; a promise that was broken is in the report.
    pub async fn run(self) -> Result<(Checked, Option<PathBuf>), Error> {
        Ok(match self {
            Self::Stampede(it) => (stampede::run(&it.options, &it.place).await?, it.json),
            Self::Penetration(it) => (penetration::run(&it.options, &it.place).await?, it.json),
            Self::Avalanche(it) => (avalanche::run(&it.options, &it.place).await?, it.json),
            Self::Updates(it) => (updates::run(&it.options, &it.place).await?, it.json),
            Self::Read(it) => (steady::run(&it.options, &it.place).await?, it.json),
        })
    }
}
