//! The Rust client's commands for the two kinds of semaphore.

use std::time::Duration;

use anyhow::Context;
use futures_util::future::FutureExt;
use lock::LeasedSemaphore;

use super::held::{Held, Kept};
use super::{Actor, Command, Fault, millis, yes_or_no};

/// The lease of a permit that was acquired without one.
const LEASE: Duration = Duration::from_secs(60);

impl Actor {
    pub(super) async fn on_semaphore(&mut self, command: Command<'_>) -> anyhow::Result<String> {
        let semaphore = self.locks.semaphore(command.name);
        let permits = match (command.verb, command.more) {
            ("permits", [permits]) => {
                return Ok(yes_or_no(semaphore.try_set_permits(permits.parse()?).await?));
            }
            ("add-if-exists", [permits]) => {
                return Ok(yes_or_no(semaphore.add_permits_if_exists(permits.parse()?).await?));
            }
            ("available", []) => return Ok(format!("ok {}", semaphore.available().await?)),
            ("lock", more) => Some(semaphore.acquire(self.permits(more)?).await?),
            ("try", more @ [wait, ..]) => {
                semaphore.acquire_within(self.permits(more)?, millis(wait)?).await?
            }
            _ => return command.unknown(),
        };
        let hold = permits.map(|permits| Held::releasing(|| permits.release().boxed()));
        Ok(self.hold(command, hold))
    }

    pub(super) async fn on_leased(&mut self, command: Command<'_>) -> anyhow::Result<String> {
        let semaphore = self.locks.leased_semaphore(command.name, LEASE);
        let permits = match (command.verb, command.more) {
            ("permits", [permits]) => {
                return Ok(yes_or_no(semaphore.try_set_permits(permits.parse()?).await?));
            }
            ("available", []) => return Ok(format!("ok {}", semaphore.available().await?)),
            ("extend", [lease]) => {
                let Some(Held { kept: Kept::Leased(permit), .. }) = self.last(command) else {
                    anyhow::bail!("no permit is held");
                };
                permit.extend(millis(lease)?).await?;
                return Ok("ok".to_owned());
            }
            ("lock", more) => {
                Some(self.leased(command.name, more)?.acquire(self.permits(more)?).await?)
            }
            ("try", more @ [wait, ..]) => {
                semaphore.acquire_within(self.permits(more)?, millis(wait)?).await?
            }
            _ => return command.unknown(),
        };
        let hold = |permits| Held { fence: None, lost: None, kept: Kept::Leased(permits) };
        Ok(self.hold(command, permits.map(hold)))
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
