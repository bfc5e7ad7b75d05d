//! The workload of the soak: each task acquires some lock, perhaps re-enters it, holds it for a while, releases or
//! drops it, again and again, and counts the results.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock::kind::LockKind;
use lock::{Error, Guard, Lock, Locks, Owner};
use rand::Rng;
use rand::rngs::StdRng;
use tokio::time::{sleep, timeout};

use crate::Plant;
use crate::held_spans::HeldSpans;

/// How many names there are: as many of each kind, read-write locks counting twice.
const NAMES: u32 = 50;

/// What happened, by number.
#[derive(Default)]
pub struct Tally {
    pub acquired: AtomicU64,
    pub faults: AtomicU64,
    busy: AtomicU64,
    dropped: AtomicU64,
    unavailable: AtomicU64,
    unknown: AtomicU64,
    lost: AtomicU64,
    unexpected: Mutex<Vec<String>>,
}

impl Tally {
    /// All numbers on a line.
    pub fn line(&self) -> String {
        let value = |number: &AtomicU64| number.load(Ordering::Relaxed);
        format!(
            "{} acquired, {} busy, {} waiters dropped, {} unavailable, {} unknown, {} lost, {} faults",
            value(&self.acquired),
            value(&self.busy),
            value(&self.dropped),
            value(&self.unavailable),
            value(&self.unknown),
            value(&self.lost),
            value(&self.faults),
        )
    }

    /// Errors that no fault explains.
    pub fn unexpected(&self) -> Vec<String> {
        self.unexpected.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn error(&self, error: &Error) {
        let number = match error {
            Error::Unavailable { .. } => &self.unavailable,
            Error::Unknown { .. } => &self.unknown,
            Error::Lost(_) | Error::NotHeld => &self.lost,
            other => {
                let mut unexpected = self.unexpected.lock().unwrap_or_else(PoisonError::into_inner);
                // Enough to see what it is.
                if unexpected.len() < 20 {
                    unexpected.push(format!("an error that no fault explains: {other}"));
                }
                return;
            }
        };
        number.fetch_add(1, Ordering::Relaxed);
    }
}

/// Take locks until told to stop.
pub async fn work(
    locks: Locks,
    held_spans: Arc<HeldSpans>,
    tally: Arc<Tally>,
    stop: Arc<AtomicBool>,
    random: StdRng,
    planted: Option<Plant>,
) {
    let mut worker =
        Worker { me: locks.owner(), locks, held_spans, tally, random, planted, kept: Vec::new() };
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = worker.turn().await {
            worker.tally.error(&error);
        }
        let pause = worker.random.random_range(0..100);
        sleep(Duration::from_millis(pause)).await;
    }
    if planted == Some(Plant::Task) {
        std::future::pending::<()>().await;
    }
}

struct Worker {
    me: Owner,
    locks: Locks,
    held_spans: Arc<HeldSpans>,
    tally: Arc<Tally>,
    random: StdRng,
    planted: Option<Plant>,
    /// For the planted growth.
    kept: Vec<Vec<u8>>,
}

impl Worker {
    async fn turn(&mut self) -> Result<(), Error> {
        self.me = self.locks.owner();
        let number = self.random.random_range(0..NAMES);
        let name = format!("soak:{number}");
        match number % 5 {
            0 => self.hold(self.locks.reentrant(&name)?, &name, true).await,
            1 => self.hold(self.locks.fair(&name)?, &name, true).await,
            2 => self.hold(self.locks.fenced(&name)?, &name, true).await,
            _ if self.random.random_bool(0.4) => {
                let lock = self.locks.read_write(&name)?;
                self.hold(lock.write().clone(), &name, true).await
            }
            _ => {
                let lock = self.locks.read_write(&name)?;
                self.hold(lock.read().clone(), &name, false).await
            }
        }
    }

    async fn hold<K: LockKind>(
        &mut self,
        mut lock: Lock<K>,
        name: &str,
        exclusive: bool,
    ) -> Result<(), Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if self.random.random_bool(0.2) {
            lock = lock.with_lease(self.millis(50..1500));
        }
        let Some(guard) = self.take(&lock).await? else {
            if self.planted == Some(Plant::Overlap) {
                // As if it had been told that it has it.
                let id = NEXT.fetch_add(1, Ordering::Relaxed);
                self.held_spans.enter(name, id, exclusive);
                sleep(Duration::from_millis(5)).await;
                self.held_spans.leave(name, id, true);
            }
            return Ok(());
        };
        self.tally.acquired.fetch_add(1, Ordering::Relaxed);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        if !guard.valid_for().is_zero() {
            self.held_spans.enter(name, id, exclusive);
        }
        let work = self.work(&lock).await;
        self.held_spans.leave(name, id, !guard.valid_for().is_zero());
        match self.planted {
            Some(Plant::Guard) => {
                self.planted = None;
                std::mem::forget(guard);
                return work;
            }
            Some(Plant::Memory) => self.kept.push(vec![1; 100_000]),
            _ => {}
        }
        if self.random.random_bool(0.8) {
            guard.release().await?;
        } else {
            drop(guard);
        }
        work
    }

    /// One of the ways to take a lock; `None` if it was busy, or if waiting was given up.
    async fn take<K: LockKind>(&mut self, lock: &Lock<K>) -> Result<Option<Guard<K>>, Error> {
        let time_limit = self.millis(0..800);
        let guard = match self.random.random_range(0..3) {
            0 => lock.try_acquire(&self.me).await?,
            1 => lock.acquire_within(&self.me, time_limit).await?,
            // Dropped at whatever it is waiting for.
            _ => match timeout(time_limit / 10, lock.acquire(&self.me)).await {
                Ok(guard) => Some(guard?),
                Err(_) => {
                    self.tally.dropped.fetch_add(1, Ordering::Relaxed);
                    return Ok(None);
                }
            },
        };
        if guard.is_none() {
            self.tally.busy.fetch_add(1, Ordering::Relaxed);
        }
        Ok(guard)
    }

    /// What is done under the lock; now and then it is taken once more meanwhile.
    async fn work<K: LockKind>(&mut self, lock: &Lock<K>) -> Result<(), Error> {
        // Rarely longer than a lease: the watchdog has to renew.
        let long = self.random.random_bool(0.01);
        let time = self.millis(if long { 500..3000 } else { 0..20 });
        if self.random.random_bool(0.2) {
            let again = lock.try_acquire(&self.me).await?;
            sleep(time).await;
            if let Some(again) = again {
                again.release().await?;
            }
        } else {
            sleep(time).await;
        }
        Ok(())
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(range))
    }
}
