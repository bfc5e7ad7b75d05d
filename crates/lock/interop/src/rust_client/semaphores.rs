//! The Rust client's commands for the two kinds of semaphore.

use std::time::Duration;

use anyhow::Context;
use futures_util::future::FutureExt;
use lock::LeasedSemaphore;

use super::held::{Held, Kept};
use super::{Actor, Fault, millis, unknown, yes_or_no};

/// The lease of a permit that was acquired without one.
const LEASE: Duration = Duration::from_secs(60);

impl Actor {
    pub(super) async fn on_semaphore(
        &mut self,
        command: &str,
        name: &str,
        held: String,
        more: &[&str],
    ) -> anyhow::Result<String> {
        let semaphore = self.locks.semaphore(name);
        let permits = match (command, more) {
            ("permits", [permits]) => {
                return Ok(yes_or_no(semaphore.try_set_permits(permits.parse()?).await?));
            }
            ("add-if-exists", [permits]) => {
                return Ok(yes_or_no(semaphore.add_permits_if_exists(permits.parse()?).await?));
            }
            ("available", []) => return Ok(format!("ok {}", semaphore.available().await?)),
            ("lock", more) => Some(semaphore.acquire(self.permits(more)?).await?),
            ("try", [wait, ..]) => {
                semaphore.acquire_within(self.permits(more)?, millis(wait)?).await?
            }
            _ => return unknown(command),
        };
        let hold = permits.map(|permits| Held::releasing(|| permits.release().boxed()));
        Ok(self.hold(held, hold))
    }

    pub(super) async fn on_leased(
        &mut self,
        command: &str,
        name: &str,
        held: String,
        more: &[&str],
    ) -> anyhow::Result<String> {
        let semaphore = self.locks.leased_semaphore(name, LEASE);
        let permits = match (command, more) {
            ("permits", [permits]) => {
                return Ok(yes_or_no(semaphore.try_set_permits(permits.parse()?).await?));
            }
            ("available", []) => return Ok(format!("ok {}", semaphore.available().await?)),
            ("extend", [lease]) => {
                let last = self.held.get_mut(&held).and_then(|held| held.last_mut());
                let Some(Held { kept: Kept::Leased(permit), .. }) = last else {
                    anyhow::bail!("no permit is held");
                };
                permit.extend(millis(lease)?).await?;
                return Ok("ok".to_owned());
            }
            ("lock", more) => Some(self.leased(name, more)?.acquire(self.permits(more)?).await?),
            ("try", [wait, ..]) => {
                semaphore.acquire_within(self.permits(more)?, millis(wait)?).await?
            }
            _ => return unknown(command),
        };
        let hold = |permits| Held { fence: None, lost: None, kept: Kept::Leased(permits) };
        Ok(self.hold(held, permits.map(hold)))
    }

    /// With the lease of the first argument.
    fn leased(&self, name: &str, more: &[&str]) -> anyhow::Result<LeasedSemaphore> {
        let more = if self.fault == Some(Fault::IgnoresLeases) { &[] } else { more };
        let lease = more.first().map_or(Ok(LEASE), |lease| millis(lease))?;
        Ok(self.locks.leased_semaphore(name, lease))
    }

    /// How many permits: the argument after the lease or the time limit.
    fn permits(&self, more: &[&str]) -> anyhow::Result<u32> {
        if self.fault == Some(Fault::AcquiresOnePermit) {
            return Ok(1);
        }
        more.get(1).map_or(Ok(1), |permits| permits.parse().context("a number of permits"))
    }
}
