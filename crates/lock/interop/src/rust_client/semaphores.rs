//! The Rust client's commands for the two kinds of semaphore.

use std::time::Duration;

use anyhow::Context;
use futures_util::future::FutureExt;
use lock::{LeasedPermits, LeasedSemaphore, Permits};

use super::held::{Held, Kept};
use super::{Actor, Fault, millis, unknown, yes_or_no};

/// The lease of a permit that was acquired without one.
const LEASE: Duration = Duration::from_secs(60);

impl Actor {
    pub(super) async fn on_semaphore(
        &mut self,
        command: &str,
        name: &str,
        more: &[&str],
    ) -> anyhow::Result<String> {
        let semaphore = self.locks.semaphore(name);
        let held = format!("semaphore {name}");
        Ok(match (command, more) {
            ("supports", []) => "ok".to_owned(),
            ("permits", [permits]) => yes_or_no(semaphore.try_set_permits(permits.parse()?).await?),
            ("add-if-exists", [permits]) => {
                yes_or_no(semaphore.add_permits_if_exists(permits.parse()?).await?)
            }
            ("lock", more) => {
                let permits = semaphore.acquire(self.permits(more)?).await?;
                self.hold_permits(held, Some(permits))
            }
            ("try", [wait, ..]) => {
                let permits = semaphore.acquire_within(self.permits(more)?, millis(wait)?).await?;
                self.hold_permits(held, permits)
            }
            ("unlock", _) => self.unlock(name, &held).await?,
            ("available", []) => format!("ok {}", semaphore.available().await?),
            ("count", [counter, times]) => {
                for _ in 0..times.parse()? {
                    let permits = semaphore.acquire(1).await?;
                    self.increment(counter).await?;
                    permits.release().await?;
                }
                "ok".to_owned()
            }
            _ => return unknown(command),
        })
    }

    pub(super) async fn on_leased(
        &mut self,
        command: &str,
        name: &str,
        more: &[&str],
    ) -> anyhow::Result<String> {
        let semaphore = self.locks.leased_semaphore(name, LEASE);
        let held = format!("leased {name}");
        Ok(match (command, more) {
            ("supports", []) => "ok".to_owned(),
            ("permits", [permits]) => yes_or_no(semaphore.try_set_permits(permits.parse()?).await?),
            ("lock", more) => {
                let permit = self.leased(name, more)?.acquire(self.permits(more)?).await?;
                self.hold_leased(held, Some(permit))
            }
            ("try", [wait, ..]) => {
                let permit = semaphore.acquire_within(self.permits(more)?, millis(wait)?).await?;
                self.hold_leased(held, permit)
            }
            ("unlock", _) => self.unlock(name, &held).await?,
            ("extend", [lease]) => {
                let last = self.held.get_mut(&held).and_then(|held| held.last_mut());
                let Some(Held { kept: Kept::Leased(permit), .. }) = last else {
                    anyhow::bail!("no permit is held");
                };
                permit.extend(millis(lease)?).await?;
                "ok".to_owned()
            }
            ("available", []) => format!("ok {}", semaphore.available().await?),
            ("count", [counter, times]) => {
                for _ in 0..times.parse()? {
                    let permit = semaphore.acquire(1).await?;
                    self.increment(counter).await?;
                    permit.release().await?;
                }
                "ok".to_owned()
            }
            _ => return unknown(command),
        })
    }

    /// With the lease of the first argument.
    fn leased(&self, name: &str, more: &[&str]) -> anyhow::Result<LeasedSemaphore> {
        let more = if self.fault == Some(Fault::IgnoresLeases) { &[] } else { more };
        let lease = more.first().map_or(Ok(LEASE), |lease| millis(lease))?;
        Ok(self.locks.leased_semaphore(name, lease))
    }

    fn hold_permits(&mut self, held: String, permits: Option<Permits>) -> String {
        let Some(permits) = permits else { return yes_or_no(false) };
        self.hold(held, Held::releasing(|| permits.release().boxed()));
        yes_or_no(true)
    }

    fn hold_leased(&mut self, held: String, permit: Option<LeasedPermits>) -> String {
        let Some(permit) = permit else { return yes_or_no(false) };
        self.hold(held, Held { fence: None, lost: None, kept: Kept::Leased(permit) });
        yes_or_no(true)
    }

    /// How many permits: the argument after the lease or the time limit.
    fn permits(&self, more: &[&str]) -> anyhow::Result<u32> {
        if self.fault == Some(Fault::AcquiresOnePermit) {
            return Ok(1);
        }
        more.get(1).map_or(Ok(1), |permits| permits.parse().context("a number of permits"))
    }
}
