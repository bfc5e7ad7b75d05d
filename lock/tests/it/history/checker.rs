//! Decides whether a history fits a reentrant mutex with expiry.
//!
//! Each guard has a *core*: from the moment its acquire was answered to the moment its release was
//! begun, if the release then said that all was well; else to the furthest moment up to which it
//! ever claimed the lock. A wiped server excuses what lies behind the wipe.
//!
//! Cores of different owners must not meet. That decides the question: where they are disjoint,
//! every acquire can be thought to take effect at the end of its own core's predecessor or later,
//! and every hold to end with its core, which is a run of the mutex; and where two meet, there were
//! two holders, whatever the order. What is asked on top is that each single answer is true.

use std::collections::BTreeMap;
use std::fmt;

use super::event::{Event, History, Nanos, What};

/// One acquire and what became of it.
#[derive(Debug, Clone)]
struct Acquire {
    owner: u64,
    guard: u64,
    begun: Nanos,
    /// When it was granted, and with which fence.
    granted: Option<(Nanos, Option<u64>)>,
    busy: Option<Nanos>,
    failed: Option<Nanos>,
    /// Up to when it claimed the lock at most.
    claimed: Nanos,
    /// When it first said that the lock is lost.
    lost: Option<Nanos>,
    release: Option<Nanos>,
    released: Option<Nanos>,
    not_held: Option<Nanos>,
    /// The last event.
    last: Nanos,
}

/// An interval in which one owner must have been the only one.
#[derive(Debug, Clone, Copy)]
struct Core {
    owner: u64,
    guard: u64,
    from: Nanos,
    to: Nanos,
}

impl fmt::Display for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, guard, from, to } = self;
        write!(f, "guard {guard:x} of owner {owner:x} for {} µs", (to - from) / 1_000)
    }
}

/// How the lock under test measures time.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The lease of every hold.
    pub lease: Nanos,
    /// How long after an operation without an outcome the lock may stay taken.
    pub clean_up: Nanos,
    /// Whether replies may get lost as the server is wiped. A release whose reply is lost is
    /// believed by the lease, and can then not tell of the wipe.
    pub deaf_wipes: bool,
}

/// Everything in `history` that no such lock could have done.
pub fn violations(history: &History, terms: Terms) -> Vec<String> {
    let acquires = acquires(&history.events);
    let mut found = Vec::new();
    let mut cores = Vec::new();
    let mut coreless = Vec::new();
    for acquire in &acquires {
        match core(acquire, history) {
            Some(core) => cores.push(core),
            None => coreless.push(acquire),
        }
        answers(acquire, history, terms, &mut found);
    }
    cores.sort_by_key(|core| core.from);
    exclusion(&cores, &mut found);
    for acquire in coreless {
        moments(acquire, &cores, &mut found);
    }
    for acquire in &acquires {
        refusals(acquire, &acquires, &cores, (history, terms), &mut found);
    }
    fences(&acquires, history, &mut found);
    found
}

/// How many acquires were granted.
pub fn grants(history: &History) -> usize {
    history.events.iter().filter(|event| matches!(event.what, What::Granted { .. })).count()
}

fn acquires(events: &[Event]) -> Vec<Acquire> {
    let mut by_guard: BTreeMap<u64, Acquire> = BTreeMap::new();
    for &Event { at, owner, guard, what } in events {
        let acquire = by_guard.entry(guard).or_insert(Acquire {
            owner,
            guard,
            begun: at,
            granted: None,
            busy: None,
            failed: None,
            claimed: 0,
            lost: None,
            release: None,
            released: None,
            not_held: None,
            last: at,
        });
        acquire.last = acquire.last.max(at);
        match what {
            What::Acquire => acquire.begun = at,
            What::Granted { fence } => acquire.granted = Some((at, fence)),
            What::Busy => acquire.busy = Some(at),
            What::Failed => acquire.failed = Some(at),
            What::Claims { until } => acquire.claimed = acquire.claimed.max(until),
            What::Lost => acquire.lost = acquire.lost.or(Some(at)),
            What::Release => acquire.release = Some(at),
            What::Released => acquire.released = Some(at),
            What::NotHeld => acquire.not_held = Some(at),
            What::Unsure => {}
        }
    }
    by_guard.into_values().collect()
}

fn core(acquire: &Acquire, history: &History) -> Option<Core> {
    let (from, _) = acquire.granted?;
    let released = acquire.released.and(acquire.release);
    let claimed = acquire.release.map_or(acquire.claimed, |at| acquire.claimed.min(at));
    let mut to = released.unwrap_or(claimed);
    for wipe in history.wipes.iter().filter(|wipe| wipe.end >= acquire.begun) {
        to = to.min(wipe.begin);
    }
    let core = Core { owner: acquire.owner, guard: acquire.guard, from, to };
    (from < to).then_some(core)
}

/// At most one owner at a time.
fn exclusion(cores: &[Core], found: &mut Vec<String>) {
    // Those that may still be met: with one owner inside, all of them are that owner's.
    let mut open: Vec<Core> = Vec::new();
    for core in cores {
        open.retain(|before| before.to > core.from);
        if let Some(other) = open.iter().find(|before| before.owner != core.owner) {
            let both = core.to.min(other.to) - core.from;
            found.push(format!(
                "two holders at once for {} µs: {other}, and {core} from {} µs later",
                both / 1_000,
                (core.from - other.from) / 1_000
            ));
        }
        open.push(*core);
    }
}

/// A grant that was over before it was answered needs a moment, too, at which nobody else held it.
fn moments(acquire: &Acquire, cores: &[Core], found: &mut Vec<String>) {
    let Some((granted, _)) = acquire.granted else { return };
    let mut moment = acquire.begun;
    for core in cores.iter().filter(|core| core.owner != acquire.owner) {
        if core.from <= moment && core.to > moment {
            moment = core.to;
        }
    }
    if moment > granted {
        found.push(format!("granted while others held it all the time: {acquire:?}"));
    }
}

/// What single answers say for themselves.
fn answers(acquire: &Acquire, history: &History, terms: Terms, found: &mut Vec<String>) {
    let Some((granted, _)) = acquire.granted else { return };
    let wipes = history.wipes.iter();
    for wipe in wipes.clone().filter(|wipe| wipe.begin > granted) {
        let released = acquire.released.and(acquire.release);
        if !terms.deaf_wipes && released.is_some_and(|release| wipe.end < release) {
            found.push(format!("a release succeeded for a lock that was wiped: {acquire:?}"));
        }
        // Only what was confirmed before the wipe can be claimed after it.
        if acquire.claimed > wipe.end + terms.lease {
            found.push(format!("claimed for over a lease after {wipe:?}: {acquire:?}"));
        }
    }
    let gone = acquire.not_held.into_iter().chain(acquire.lost).min();
    let excused = |at| wipes.clone().any(|wipe| wipe.end >= acquire.begun && wipe.begin <= at);
    if let Some(at) = gone.filter(|&at| at < acquire.claimed && !excused(at)) {
        found.push(format!("gone {} µs before its claim ended: {acquire:?}", {
            (acquire.claimed - at) / 1_000
        }));
    }
}

/// "Busy" needs somebody else who may have had the lock, and is never said to its holder.
fn refusals(
    acquire: &Acquire,
    all: &[Acquire],
    cores: &[Core],
    (history, terms): (&History, Terms),
    found: &mut Vec<String>,
) {
    let Some(busy) = acquire.busy else { return };
    if cores
        .iter()
        .any(|core| core.owner == acquire.owner && core.from <= acquire.begun && busy <= core.to)
    {
        found.push(format!("refused to its own holder: {acquire:?}"));
    }
    let may_have = |other: &Acquire| {
        let end = match (other.released, other.not_held) {
            _ if other.busy.is_some() => return false,
            (Some(end), _) => end,
            (None, Some(end)) => end + terms.clean_up,
            // Failed, unsure, or its process ended.
            (None, None) => other.last.max(other.claimed) + terms.lease + terms.clean_up,
        };
        other.owner != acquire.owner && other.begun <= busy && end >= acquire.begun
    };
    // What was released just before a failover may come back to life with the replica.
    let revived = history
        .wipes
        .iter()
        .any(|wipe| wipe.begin <= busy && acquire.begun <= wipe.end + terms.lease + terms.clean_up);
    if !revived && !all.iter().any(may_have) {
        found.push(format!("refused although nobody can have held it: {acquire:?}"));
    }
}

/// Fences rise from hold to hold, and are one within a hold. A wipe starts them anew.
fn fences(acquires: &[Acquire], history: &History, found: &mut Vec<String>) {
    let mut fenced: Vec<(Nanos, Nanos, u64, u64)> = acquires
        .iter()
        .filter_map(|acquire| {
            let (granted, fence) = acquire.granted?;
            Some((acquire.begun, granted, fence?, acquire.owner))
        })
        .collect();
    fenced.sort_by_key(|&(_, granted, ..)| granted);
    for (i, &(_, granted, fence, owner)) in fenced.iter().enumerate() {
        for &(begun, later, other_fence, other) in &fenced[i + 1..] {
            let wiped = |wipe: &&super::event::Wipe| wipe.end >= granted && wipe.begin <= later;
            if begun < granted || history.wipes.iter().any(|wipe| wiped(&wipe)) {
                continue;
            }
            let fits = if owner == other { other_fence >= fence } else { other_fence > fence };
            if !fits {
                found.push(format!("fence {other_fence} was given after {fence} ({granted})"));
            }
        }
    }
}
