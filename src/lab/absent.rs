//! The lab in a build without the feature `lab`: there is none, and [`Lab`] has no value.

use std::net::SocketAddr;

use crate::config::ServeConfig;

/// The lab, which this build does not have.
#[derive(Clone)]
pub enum Lab {}

impl Lab {
    /// Refuses, always.
    pub fn new(_: &ServeConfig, _: String, _: SocketAddr) -> anyhow::Result<Self> {
        anyhow::bail!("this build has no lab")
    }

    /// The name of this instance.
    pub fn node(&self) -> &str {
        match *self {}
    }

    /// Stops what runs.
    pub async fn shutdown(&self) {
        match *self {}
    }
}
