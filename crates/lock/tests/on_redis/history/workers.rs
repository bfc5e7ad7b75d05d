//! The worker processes of one history: starts, stops and signals them, and reads their events.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::checker::{Timing, grants, violations};
use super::event::{History, Span, nanos, now, read};
use super::lock_under_test::{COMMAND, Kind, LEASE, Settings};
use super::worker::{PLAN, Plan};
use crate::{eventually, soon};
use testkit::process::TemporaryFolder;

/// The number of processes, and of tasks in each.
const PROCESSES: u64 = 3;
const TASKS: u64 = 3;

/// How often the lock is granted in each history, at least.
const GRANTS: usize = 20;

/// The running worker processes.
pub struct Workers {
    seed: u64,
    workers: Vec<(Child, PathBuf)>,
    lease: Duration,
    hold: PathBuf,
    wipes: Vec<Span>,
    replies_lost_at_wipe: bool,
    // Dropped last: the workers write to it.
    _folder: TemporaryFolder,
}

impl Workers {
    /// Starts workers on this Redis, with plans that `change` may change; returns when each of them has
    /// held the lock.
    pub async fn start(kind: Kind, redis: &str, change: impl Fn(&mut Plan)) -> Self {
        let seed = match std::env::var("LOCK_HISTORY_SEED") {
            Ok(seed) => seed.parse().expect("LOCK_HISTORY_SEED is a number"),
            Err(_) => rand::random(),
        };
        println!("LOCK_HISTORY_SEED={seed}");
        let folder = TemporaryFolder::new().expect("create the history's folder");
        let hold = folder.path().join("hold");
        let mut lease = LEASE;
        let mut workers = Vec::new();
        for process in 0..PROCESSES {
            let file = folder.path().join(format!("{process}.jsonl"));
            let mut plan = Plan {
                lock: Settings {
                    kind,
                    redis: redis.to_owned(),
                    lease,
                },
                process,
                seed,
                tasks: TASKS,
                long: 0.03,
                new_owner: 0.2,
                hold: hold.clone(),
                file: file.clone(),
            };
            change(&mut plan);
            lease = plan.lock.lease;
            let child = Command::new(std::env::current_exe().expect("this program"))
                .args([
                    "--exact",
                    "history::worker::worker",
                    "--ignored",
                    "--nocapture",
                ])
                .env(PLAN, serde_json::to_string(&plan).expect("a plan is JSON"))
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .kill_on_drop(true)
                .spawn()
                .expect("run this program again");
            workers.push((child, file));
        }
        let workers = Self {
            seed,
            workers,
            lease,
            hold,
            wipes: Vec::new(),
            replies_lost_at_wipe: false,
            _folder: folder,
        };
        for (_, file) in &workers.workers {
            eventually("every process has held the lock", async || {
                std::fs::read_to_string(file).is_ok_and(|history| history.contains("Granted"))
            })
            .await;
        }
        workers
    }

    /// Waits until the lock was granted often.
    pub async fn granted(&self) {
        eventually("the lock was granted often", async || {
            grants(&self.so_far()) >= GRANTS
        })
        .await;
    }

    /// Stops a worker from running (SIGSTOP), or lets it run again (SIGCONT).
    pub fn signal(&self, worker: usize, signal: Signal) {
        let id = self.workers[worker].0.id().expect("the worker runs");
        let id = Pid::from_raw(i32::try_from(id).expect("a process id")).expect("not zero");
        kill_process(id, signal).expect("signal a worker");
    }

    /// Kills a worker, as a crash would.
    pub async fn kill(&mut self, worker: usize) {
        self.workers[worker].0.kill().await.expect("kill a worker");
    }

    /// The events so far, in order.
    pub fn so_far(&self) -> History {
        let mut events: Vec<_> = self
            .workers
            .iter()
            .flat_map(|(_, file)| read(file))
            .collect();
        events.sort_by_key(|event| event.at);
        History {
            events,
            wipes: self.wipes.clone(),
        }
    }

    /// The number of violations so far in which two hold the lock at once.
    pub fn two_holders(&self) -> usize {
        // Only events before a moment in the past, up to which every process's history has been written: a
        // release that is not read yet would look like a hold.
        let moment = now() - nanos(COMMAND);
        let mut history = self.so_far();
        history.events.retain(|event| event.at < moment);
        two_holders(&self.violations(&history))
    }

    /// Runs an action that makes the server lose its locks.
    pub async fn wipe(&mut self, action: impl Future<Output = ()>) {
        let begin = now();
        action.await;
        self.wipes.push(Span { begin, end: now() });
    }

    /// The same for an action that also breaks connections, so that replies are lost.
    pub async fn wipe_and_cut(&mut self, action: impl Future<Output = ()>) {
        self.replies_lost_at_wipe = true;
        self.wipe(action).await;
    }

    /// From now on a holder goes on holding, until [`let_go`](Self::let_go); returns its guard's number
    /// once it has done so for a while.
    pub async fn keep_holding(&self) -> u64 {
        std::fs::write(&self.hold, "").expect("write the file that holders look for");
        // Later than any release that began before.
        let later = now() + nanos(COMMAND * 2);
        let mut holder = None;
        eventually("there is a holder that goes on", async || {
            holder = self.so_far().holder_after(later);
            holder.is_some()
        })
        .await;
        holder.expect("set by the condition")
    }

    /// Holders go on as they would without [`keep_holding`](Self::keep_holding).
    pub fn let_go(&self) {
        std::fs::remove_file(&self.hold).expect("remove the file that holders look for");
    }

    /// Stops all workers and waits until each has cleaned up. Workers that were killed may have failed.
    pub async fn finish(mut self, killed: &[usize]) -> Self {
        for (child, _) in &mut self.workers {
            drop(child.stdin.take());
        }
        for (i, (child, _)) in self.workers.iter_mut().enumerate() {
            let status = soon("a worker ends", child.wait())
                .await
                .expect("wait for a worker");
            assert!(
                status.success() || killed.contains(&i),
                "worker {i}: {status}"
            );
        }
        self
    }

    /// The violations that the checker finds.
    fn violations(&self, history: &History) -> Vec<String> {
        // How long the lock may stay held after an operation with an unknown outcome.
        let clean_up = nanos(self.lease + COMMAND * 4 + Duration::from_secs(1));
        let replies_lost_at_wipe = self.replies_lost_at_wipe;
        violations(
            history,
            Timing {
                lease: nanos(self.lease),
                clean_up,
                replies_lost_at_wipe,
            },
        )
    }

    /// Fails unless the checker finds two holders at once.
    pub fn assert_two_holders(&self) {
        let found = self.violations(&self.so_far());
        let two = two_holders(&found);
        println!("{two} of {} violations are two holders", found.len());
        assert!(two > 0, "seed {}: passed as a mutex", self.seed);
    }

    /// Fails if the history is not that of a mutex, or has too few grants.
    pub fn assert_holds(&self) {
        let history = self.so_far();
        let found = self.violations(&history);
        let grants = grants(&history);
        println!("{grants} grants, {} events", history.events.len());
        assert!(
            found.is_empty(),
            "seed {}: {} violations in {grants} grants, the first of them:\n{}",
            self.seed,
            found.len(),
            found[..found.len().min(5)].join("\n")
        );
        assert!(grants >= GRANTS, "only {grants} grants");
    }
}

/// The number of violations in which two hold the lock at once.
fn two_holders(violations: &[String]) -> usize {
    violations
        .iter()
        .filter(|line| line.starts_with("two holders"))
        .count()
}
