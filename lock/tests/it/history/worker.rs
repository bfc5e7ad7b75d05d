//! One of the processes that use the lock: this test binary, run again with [`PLAN`] set.
//!
//! It takes turns at random, seeded, until its standard input ends, which it also does when the
//! process that started it dies. What it does and sees goes to its history file.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redisson_lock::Owner;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::event::{Event, Recorder, What, nanos, now};
use super::register::Register;
use super::subject::{COMMAND, End, Held, Kind, LEASE, Subject};

/// The variable that holds a worker's plan.
pub const PLAN: &str = "LOCK_HISTORY_PLAN";

/// What a worker is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    pub kind: Kind,
    /// Tells processes apart.
    pub process: u64,
    pub seed: u64,
    /// How many tasks take turns at once.
    pub tasks: u64,
    /// Whether an owner is used for one turn only.
    pub fresh_owners: bool,
    /// Which part of the turns is long, so long that the lock has to be renewed.
    pub long: f64,
    /// Whether the register is shown the fences; without, it lets everybody in.
    pub show_fences: bool,
    /// The Redis of the lock, perhaps behind a proxy; or the nodes of a cluster.
    pub redis: Vec<String>,
    /// The Redis of the protected register, which meets no faults.
    pub register: String,
    pub file: PathBuf,
}

#[test]
#[ignore = "not a test: a process of the history tests"]
fn worker() {
    let Ok(plan) = std::env::var(PLAN) else { return };
    let plan: Plan = serde_json::from_str(&plan).unwrap();
    let stop = CancellationToken::new();
    std::thread::spawn({
        let stop = stop.clone();
        move || {
            std::io::stdin().read_to_end(&mut Vec::new()).ok();
            stop.cancel();
            // Whatever happens, this process does not outlive the test for long.
            std::thread::sleep(Duration::from_secs(30));
            std::process::exit(2);
        }
    });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run(plan, stop));
}

async fn run(plan: Plan, stop: CancellationToken) {
    let subject = Subject::connect(plan.kind, &plan.redis).await;
    let shared = Arc::new(Shared {
        recorder: Recorder::create(&plan.file),
        register: Register::connect(&plan.register).await,
        subject: subject.clone(),
        next: AtomicU64::new(plan.process << 32),
    });
    let tasks: Vec<_> = (0..plan.tasks)
        .map(|task| {
            let random = StdRng::seed_from_u64(plan.seed ^ (plan.process << 8 | task));
            let mut turns = Turns {
                owner: subject.owner(),
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
    // What clean-ups are under way end with the lease at the latest.
    let deadline = Instant::now() + LEASE * 4 + COMMAND * 4;
    while !subject.is_clean() {
        assert!(Instant::now() < deadline, "something is left");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

struct Shared {
    recorder: Recorder,
    register: Register,
    subject: Subject,
    next: AtomicU64,
}

impl Shared {
    /// A number that is used once among all processes.
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// One task of a worker.
struct Turns {
    shared: Arc<Shared>,
    random: StdRng,
    owner: Option<Owner>,
    /// The owner's number in the history.
    number: u64,
    plan: Plan,
}

/// A guard with its number.
struct Taken {
    number: u64,
    held: Held,
}

impl Turns {
    fn record(&self, guard: u64, what: What) {
        self.record_at(now(), guard, what);
    }

    fn record_at(&self, at: u64, guard: u64, what: What) {
        self.shared.recorder.record(Event { at, owner: self.number, guard, what });
    }

    /// Take the lock once or several times, hold it a while, give it back.
    async fn turn(&mut self) {
        if self.plan.fresh_owners || self.random.random_bool(0.2) {
            (self.owner, self.number) = (self.shared.subject.owner(), self.shared.number());
        }
        let Some(first) = self.acquire().await else {
            let pause = Duration::from_micros(self.random.random_range(0..5_000));
            return tokio::time::sleep(pause).await;
        };
        let mut taken = vec![first];
        while self.owner.is_some() && taken.len() < 4 && self.random.random_bool(0.25) {
            match self.acquire().await {
                Some(again) => taken.push(again),
                None => break,
            }
        }
        let long = self.random.random_bool(self.plan.long);
        let most = if long { LEASE.as_micros() as u64 * 3 / 2 } else { 6_000 };
        let hold = Duration::from_micros(self.random.random_range(0..most));
        let end = Instant::now() + hold;
        if let Some(fence) = taken[0].held.fence() {
            let shown = if self.plan.show_fences { fence } else { 0 };
            self.shared.register.increment(shown, hold / 2).await;
        }
        while self.claim(&taken) && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            tokio::time::sleep(left.min(Duration::from_millis(2))).await;
        }
        while !taken.is_empty() {
            let which = self.random.random_range(0..taken.len());
            let gone = taken.swap_remove(which);
            self.release(gone).await;
            self.claim(&taken);
        }
    }

    async fn acquire(&mut self) -> Option<Taken> {
        let number = self.shared.number();
        let limit = Duration::from_millis(match self.random.random_range(0..10) {
            0..3 => 0,
            3..6 => self.random.random_range(1..30),
            _ => self.random.random_range(30..2_000),
        });
        // Now and then the caller loses patience, at any moment.
        let patience = match self.random.random_bool(0.05) {
            true => Duration::from_micros(self.random.random_range(0..20_000)),
            false => Duration::MAX,
        };
        self.record(number, What::Acquire);
        let acquire = self.shared.subject.acquire(self.owner, limit);
        let held = match tokio::time::timeout(patience, acquire).await {
            Ok(Ok(Some(held))) => held,
            Ok(Ok(None)) => {
                self.record(number, What::Busy);
                return None;
            }
            Ok(Err(_)) | Err(_) => {
                self.record(number, What::Failed);
                return None;
            }
        };
        self.record(number, What::Granted { fence: held.fence() });
        let taken = Taken { number, held };
        self.claim(std::slice::from_ref(&taken));
        Some(taken)
    }

    /// Write down for how long each guard says the lock is ours; `false` if one says it is not.
    fn claim(&self, taken: &[Taken]) -> bool {
        let mut all = true;
        for Taken { number, held } in taken {
            // The clock is read first, so that the claim is never made longer than it was.
            let at = now();
            let valid = nanos(held.valid_for());
            let what = if valid > 0 {
                What::Claims { until: at.saturating_add(valid) }
            } else {
                What::Lost
            };
            self.record_at(at, *number, what);
            all &= valid > 0;
        }
        all
    }

    async fn release(&mut self, taken: Taken) {
        self.record(taken.number, What::Release);
        if self.random.random_bool(0.05) {
            drop(taken.held);
            return self.record(taken.number, What::Unsure);
        }
        let what = match self.shared.subject.release(taken.held).await {
            End::Released => What::Released,
            End::NotHeld => What::NotHeld,
            End::Unsure => What::Unsure,
        };
        self.record(taken.number, what);
    }
}
