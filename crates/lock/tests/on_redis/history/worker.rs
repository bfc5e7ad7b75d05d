//! A worker process: this test binary, run again with [`PLAN`] set.
//!
//! It acquires and releases the lock at random, seeded, until its standard input ends; that also happens
//! when the process that started it dies. It records each call and its result in its history file.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redisson_lock::{Error, LockUsage, Locks, Owner};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::event::{Event, EventKind, Recorder, nanos, now};
use super::lock_under_test::{AnyGuard, COMMAND, Settings};

/// The environment variable with a worker's plan, as JSON.
pub const PLAN: &str = "LOCK_HISTORY_PLAN";

/// The parameters of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    pub lock: Settings,
    /// The number of this process.
    pub process: u64,
    pub seed: u64,
    /// The number of concurrent tasks.
    pub tasks: u64,
    /// The share of turns that are so long that the lock has to be renewed.
    pub long: f64,
    /// The share of turns that begin with a new owner; the others reuse that of the turn before.
    pub new_owner: f64,
    /// While this file exists, a holder goes on holding.
    pub hold: PathBuf,
    pub file: PathBuf,
}

#[test]
#[ignore = "not a test: a worker process of the history tests"]
fn worker() {
    let Ok(plan) = std::env::var(PLAN) else {
        return;
    };
    let plan: Plan = serde_json::from_str(&plan).unwrap();
    let stop = CancellationToken::new();
    std::thread::spawn({
        let stop = stop.clone();
        move || {
            std::io::stdin().read_to_end(&mut Vec::new()).ok();
            stop.cancel();
            // In any case this process ends soon after the test.
            std::thread::sleep(Duration::from_secs(30));
            std::process::exit(2);
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(plan, stop));
}

async fn run(plan: Plan, stop: CancellationToken) {
    let locks = plan.lock.locks();
    let shared = Arc::new(Shared {
        recorder: Recorder::create(&plan.file),
        locks: locks.clone(),
        next: AtomicU64::new(plan.process << 32),
    });
    let tasks: Vec<_> = (0..plan.tasks)
        .map(|task| {
            let random = StdRng::seed_from_u64(plan.seed ^ (plan.process << 8 | task));
            let mut turns = Turns {
                owner: locks.owner(),
                number: shared.number(),
                plan: plan.clone(),
                shared: shared.clone(),
                random,
            };
            let stop = stop.clone();
            tokio::spawn(async move {
                while !stop.is_cancelled() {
                    turns.turn().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    // Clean-ups that are under way end soon: the faults are over, and the server answers.
    let deadline = Instant::now() + plan.lock.lease * 4 + COMMAND * 4;
    while locks.usage() != LockUsage::default() {
        assert!(Instant::now() < deadline, "something is left");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

struct Shared {
    recorder: Recorder,
    locks: Locks,
    next: AtomicU64,
}

impl Shared {
    /// A number that is unique among all processes.
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// One task of a worker.
struct Turns {
    shared: Arc<Shared>,
    random: StdRng,
    owner: Owner,
    /// The owner's number in the history.
    number: u64,
    plan: Plan,
}

/// A guard with its number.
struct NumberedGuard {
    number: u64,
    held: Box<dyn AnyGuard>,
}

impl Turns {
    fn record(&self, guard: u64, kind: EventKind) {
        self.record_at(now(), guard, kind);
    }

    fn record_at(&self, moment: u64, guard: u64, kind: EventKind) {
        self.shared.recorder.record(Event {
            at: moment,
            owner: self.number,
            guard,
            kind,
        });
    }

    /// Acquires the lock once or several times, holds it for a while, and releases it.
    async fn turn(&mut self) {
        if self.random.random_bool(self.plan.new_owner) {
            self.owner = self.shared.locks.owner();
            self.number = self.shared.number();
        }
        let Some(first) = self.acquire().await else {
            let pause = Duration::from_micros(self.random.random_range(0..5_000));
            return tokio::time::sleep(pause).await;
        };
        let mut guards = vec![first];
        while guards.len() < 4 && self.random.random_bool(0.25) {
            match self.acquire().await {
                Some(again) => guards.push(again),
                None => break,
            }
        }
        let long = self.random.random_bool(self.plan.long);
        let longest = if long {
            self.plan.lock.lease.as_micros() as u64 * 3 / 2
        } else {
            6_000
        };
        let hold = Duration::from_micros(self.random.random_range(0..longest));
        let end = Instant::now() + hold;
        while self.record_validity(&guards) && self.pause_before(end).await {}
        while !guards.is_empty() {
            let which = self.random.random_range(0..guards.len());
            let gone = guards.swap_remove(which);
            self.release(gone).await;
            self.record_validity(&guards);
        }
    }

    /// Waits for a moment; `false` at once after `end`, unless the plan's file `hold` exists.
    async fn pause_before(&self, end: Instant) -> bool {
        let remaining_time = end.saturating_duration_since(Instant::now());
        let goes_on = !remaining_time.is_zero() || self.plan.hold.exists();
        if goes_on {
            let pause = remaining_time.clamp(Duration::from_millis(1), Duration::from_millis(2));
            tokio::time::sleep(pause).await;
        }
        goes_on
    }

    async fn acquire(&mut self) -> Option<NumberedGuard> {
        let number = self.shared.number();
        let limit = Duration::from_millis(match self.random.random_range(0..10) {
            0..3 => 0,
            3..6 => self.random.random_range(1..30),
            _ => self.random.random_range(30..2_000),
        });
        // Sometimes the caller cancels the call, at any moment.
        let cancel_after = match self.random.random_bool(0.05) {
            true => Duration::from_micros(self.random.random_range(0..20_000)),
            false => Duration::MAX,
        };
        self.record(number, EventKind::Acquire);
        let acquire = self
            .plan
            .lock
            .kind
            .acquire(&self.shared.locks, &self.owner, limit);
        let held = match tokio::time::timeout(cancel_after, acquire).await {
            Ok(Ok(Some(held))) => held,
            // Only a call that does not wait says that another owner holds the lock: a limit may also
            // be reached while a reply is outstanding.
            Ok(Ok(None)) if limit.is_zero() => {
                self.record(number, EventKind::Busy);
                return None;
            }
            Ok(Ok(None) | Err(_)) | Err(_) => {
                self.record(number, EventKind::Failed);
                return None;
            }
        };
        self.record(
            number,
            EventKind::Granted {
                fence: held.fence(),
            },
        );
        let guard = NumberedGuard { number, held };
        self.record_validity(std::slice::from_ref(&guard));
        Some(guard)
    }

    /// Records for how long each guard reports the lock as valid; `false` if one reports it as lost.
    fn record_validity(&self, guards: &[NumberedGuard]) -> bool {
        let mut all = true;
        for NumberedGuard { number, held } in guards {
            // The clock is read first, so that the recorded validity is never longer than the true one.
            let moment = now();
            let valid = nanos(held.valid_for());
            let kind = if valid > 0 {
                EventKind::Valid {
                    until: moment.saturating_add(valid),
                }
            } else {
                EventKind::Lost
            };
            self.record_at(moment, *number, kind);
            all &= valid > 0;
        }
        all
    }

    async fn release(&mut self, guard: NumberedGuard) {
        self.record(guard.number, EventKind::Release);
        if self.random.random_bool(0.05) {
            drop(guard.held);
            return self.record(guard.number, EventKind::Unknown);
        }
        let kind = match guard.held.release().await {
            Ok(()) => EventKind::Released,
            Err(Error::Lost(_)) => EventKind::NotHeld,
            Err(_) => EventKind::Unknown,
        };
        self.record(guard.number, kind);
    }
}
