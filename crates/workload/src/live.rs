//! Live counters of a run, and progress lines on stderr.

use std::{
    io::{IsTerminal, Write},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::reply::Reply;

/// Counters of one run, shared with its observers, such as a progress line; and its signals.
#[derive(Debug, Default)]
pub struct Live {
    /// Requests answered, or given up on.
    done: AtomicU64,
    /// Successes among them.
    orders: AtomicU64,
    /// Successes that cannot all be right. The verdict, which knows the tables, may find more.
    violations: AtomicU64,
    /// The reply and the latency of each attempt to buy, since they were taken last.
    window: Mutex<Vec<(Reply, Duration)>>,
    /// Cancelled when all connections are open and the first request is sent.
    pub opened: CancellationToken,
    /// Cancelled when nothing more shall be sent; what is under way is waited for.
    pub stop: CancellationToken,
}

impl Live {
    /// The counters of a run that is stopped by this token.
    pub fn stopped_by(stop: &CancellationToken) -> Self {
        Self {
            stop: stop.clone(),
            ..Self::default()
        }
    }

    /// Counts one finished request.
    pub fn count(&self, ordered: bool) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.orders.fetch_add(u64::from(ordered), Ordering::Relaxed);
    }

    /// Counts one finished attempt to buy.
    pub fn attempt(&self, reply: &Reply, latency: Duration) {
        self.count(reply.is_success());
        lock(&self.window).push((reply.clone(), latency));
    }

    /// Counts one success that is one too many.
    pub fn violation(&self) {
        self.violations.fetch_add(1, Ordering::Relaxed);
    }

    /// The reply and the latency of each attempt to buy that finished since the last call.
    pub fn take_window(&self) -> Vec<(Reply, Duration)> {
        std::mem::take(&mut *lock(&self.window))
    }

    /// Requests finished so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Successes so far.
    pub fn orders(&self) -> u64 {
        self.orders.load(Ordering::Relaxed)
    }
}

/// A line of progress: how much of `total` (0: not known) is done. Violations are red if `colour`.
fn progress_line(what: &str, total: u64, live: &Live, rate: f64, colour: bool) -> String {
    let mut line = format!("{what}: {}", live.done());
    if total > 0 {
        line += &format!("/{total}");
    }
    line += &format!(" done, {rate:.0}/s");
    if live.orders() > 0 {
        line += &format!(", orders {}", live.orders());
    }
    match (live.violations.load(Ordering::Relaxed), colour) {
        (0, _) => {}
        (count, true) => line += &format!(", \x1b[31mviolations {count}\x1b[0m"),
        (count, false) => line += &format!(", violations {count}"),
    }
    line
}

/// Locks a mutex. What it holds, counts and records, is as good after a panic as before.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where progress goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nowhere: for tests.
    Silent,
    /// Lines on stderr: one that is rewritten on a terminal, one per second elsewhere.
    Stderr,
}

impl Progress {
    /// Writes one line.
    pub fn say(self, text: &str) {
        if self == Self::Stderr {
            say(text);
        }
    }

    /// Runs `work` and meanwhile shows `what`, how much of `total` (0: not known) is done, and how fast.
    pub async fn watch<T>(
        self,
        what: &str,
        total: u64,
        live: &Live,
        work: impl Future<Output = T>,
    ) -> T {
        if self == Self::Silent {
            return work.await;
        }
        let terminal = std::io::stderr().is_terminal();
        let begin = Instant::now();
        let mut tick = interval(Duration::from_millis(if terminal { 200 } else { 1000 }));
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        tick.tick().await;
        let mut work = std::pin::pin!(work);
        let mut done_before = 0;
        let mut last_tick = begin;
        loop {
            let line = |rate: f64| progress_line(what, total, live, rate, terminal);
            tokio::select! {
                biased;
                result = &mut work => {
                    let rate = live.done() as f64 / begin.elapsed().as_secs_f64().max(1e-6);
                    if terminal {
                        rewrite("");
                    }
                    say(&line(rate));
                    return result;
                }
                _ = tick.tick() => {
                    let done = live.done();
                    let now = Instant::now();
                    let span = (now - last_tick).as_secs_f64().max(1e-6);
                    let rate = (done - done_before) as f64 / span;
                    done_before = done;
                    last_tick = now;
                    if terminal { rewrite(&line(rate)) } else { say(&line(rate)) }
                }
            }
        }
    }
}

/// Progress is a courtesy: a closed stderr must not end the run, so its errors are dropped.
fn say(text: &str) {
    writeln!(std::io::stderr(), "{text}").ok();
}

fn rewrite(text: &str) {
    let mut stderr = std::io::stderr();
    write!(stderr, "\r\x1b[2K{text}")
        .and_then(|()| stderr.flush())
        .ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_shows_orders_and_violations_once_there_are_some() {
        let live = Live::default();
        live.count(false);
        let line = |colour| progress_line("naive", 9, &live, 1.4, colour);
        assert_eq!(line(true), "naive: 1/9 done, 1/s");
        live.count(true);
        live.violation();
        assert_eq!(line(false), "naive: 2/9 done, 1/s, orders 1, violations 1");
        assert!(line(true).ends_with(", \x1b[31mviolations 1\x1b[0m"));
    }
}
