//! The checker: decides whether a history fits a reentrant mutex with expiry.
//!
//! Each guard has a *certain hold*: from the reply to its acquire to the beginning of its release, if
//! that release succeeded; otherwise to the latest moment until which the guard reported the lock as
//! valid. A wipe ends it.
//!
//! Certain holds of different owners must not overlap. That decides the question: if they are
//! disjoint, every acquire can be ordered at or after the end of its predecessor's certain hold, and
//! every hold can end with its own, which is a run of the mutex; if two overlap, there were two
//! holders in any order. The other rules check that each single reply is true.

use std::collections::BTreeMap;
use std::fmt;

use super::event::{Event, EventKind, History, Nanos};

/// One acquire and the events of its guard.
#[derive(Debug, Clone)]
struct Acquire {
    owner: u64,
    guard: u64,
    begun: Nanos,
    /// When it was granted, and with which fencing token.
    granted: Option<(Nanos, Option<u64>)>,
    busy: Option<Nanos>,
    failed: Option<Nanos>,
    /// The latest moment until which it reported the lock as valid.
    valid_until: Nanos,
    /// When it first reported the lock as lost.
    lost: Option<Nanos>,
    release: Option<Nanos>,
    released: Option<Nanos>,
    not_held: Option<Nanos>,
    /// The last event.
    last: Nanos,
}

/// An interval in which one owner must have been the only holder.
#[derive(Debug, Clone, Copy)]
struct CertainHold {
    owner: u64,
    guard: u64,
    from: Nanos,
    until: Nanos,
}

impl fmt::Display for CertainHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            owner,
            guard,
            from,
            until,
        } = self;
        write!(
            f,
            "guard {guard:x} of owner {owner:x} for {} µs",
            (until - from) / 1_000
        )
    }
}

/// Times and conditions of the lock under test.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// The lease of every hold.
    pub lease: Nanos,
    /// How long the lock may stay held after an operation with an unknown outcome.
    pub clean_up: Nanos,
    /// Whether replies may be lost at a wipe. A release whose reply is lost is judged by the lease
    /// alone, and cannot then detect the wipe.
    pub replies_lost_at_wipe: bool,
}

/// Everything in `history` that such a lock could not have produced.
pub fn violations(history: &History, timing: Timing) -> Vec<String> {
    let acquires = acquires(&history.events);
    let mut found = Vec::new();
    let mut certain_holds = Vec::new();
    let mut uncertain = Vec::new();
    for acquire in &acquires {
        match core(acquire, history) {
            Some(core) => certain_holds.push(core),
            None => uncertain.push(acquire),
        }
        replies(acquire, history, timing, &mut found);
    }
    certain_holds.sort_by_key(|core| core.from);
    exclusion(&certain_holds, &mut found);
    for acquire in uncertain {
        early_grants(acquire, &certain_holds, &mut found);
    }
    for acquire in &acquires {
        refusals(
            acquire,
            &acquires,
            &certain_holds,
            (history, timing),
            &mut found,
        );
    }
    tokens(&acquires, history, &mut found);
    found
}

/// How many acquires were granted.
pub fn grants(history: &History) -> usize {
    history.granted_after(0).count()
}

fn acquires(events: &[Event]) -> Vec<Acquire> {
    let mut by_guard: BTreeMap<u64, Acquire> = BTreeMap::new();
    for &Event {
        at,
        owner,
        guard,
        kind,
    } in events
    {
        let acquire = by_guard.entry(guard).or_insert(Acquire {
            owner,
            guard,
            begun: at,
            granted: None,
            busy: None,
            failed: None,
            valid_until: 0,
            lost: None,
            release: None,
            released: None,
            not_held: None,
            last: at,
        });
        acquire.last = acquire.last.max(at);
        match kind {
            EventKind::Acquire => acquire.begun = at,
            EventKind::Granted { fence } => acquire.granted = Some((at, fence)),
            EventKind::Busy => acquire.busy = Some(at),
            EventKind::Failed => acquire.failed = Some(at),
            EventKind::Valid { until } => acquire.valid_until = acquire.valid_until.max(until),
            EventKind::Lost => acquire.lost = acquire.lost.or(Some(at)),
            EventKind::Release => acquire.release = Some(at),
            EventKind::Released => acquire.released = Some(at),
            EventKind::NotHeld => acquire.not_held = Some(at),
            EventKind::Unknown => {}
        }
    }
    by_guard.into_values().collect()
}

fn core(acquire: &Acquire, history: &History) -> Option<CertainHold> {
    let (from, _) = acquire.granted?;
    let released = acquire.released.and(acquire.release);
    let claimed = acquire.release.map_or(acquire.valid_until, |release| {
        acquire.valid_until.min(release)
    });
    let mut until = released.unwrap_or(claimed);
    for wipe in history
        .wipes
        .iter()
        .filter(|wipe| wipe.end >= acquire.begun)
    {
        until = until.min(wipe.begin);
    }
    let core = CertainHold {
        owner: acquire.owner,
        guard: acquire.guard,
        from,
        until,
    };
    (from < until).then_some(core)
}

/// At most one owner at a time.
fn exclusion(certain_holds: &[CertainHold], found: &mut Vec<String>) {
    // The holds not over yet: while only one owner holds the lock, all of them are that owner's.
    let mut open: Vec<CertainHold> = Vec::new();
    for core in certain_holds {
        open.retain(|before| before.until > core.from);
        if let Some(earlier) = open.iter().find(|before| before.owner != core.owner) {
            let both = core.until.min(earlier.until) - core.from;
            found.push(format!(
                "two holders at once for {} µs: {earlier}, and {core} from {} µs later",
                both / 1_000,
                (core.from - earlier.from) / 1_000
            ));
        }
        open.push(*core);
    }
}

/// A grant that ended before its reply also needs a moment without another holder.
fn early_grants(acquire: &Acquire, certain_holds: &[CertainHold], found: &mut Vec<String>) {
    let Some((granted, _)) = acquire.granted else {
        return;
    };
    let mut moment = acquire.begun;
    for core in certain_holds
        .iter()
        .filter(|core| core.owner != acquire.owner)
    {
        if core.from <= moment && core.until > moment {
            moment = core.until;
        }
    }
    if moment > granted {
        found.push(format!(
            "granted while others held it all the time: {acquire:?}"
        ));
    }
}

/// Replies that contradict the times of their own guard.
fn replies(acquire: &Acquire, history: &History, timing: Timing, found: &mut Vec<String>) {
    let Some((granted, _)) = acquire.granted else {
        return;
    };
    for wipe in history.wipes.iter().filter(|wipe| wipe.begin > granted) {
        let released = acquire.released.and(acquire.release);
        if !timing.replies_lost_at_wipe && released.is_some_and(|release| wipe.end < release) {
            found.push(format!(
                "a release succeeded for a lock that was wiped: {acquire:?}"
            ));
        }
        // After a wipe, only a validity confirmed before it may be reported.
        if acquire.valid_until > wipe.end + timing.lease {
            found.push(format!(
                "valid for over a lease after {wipe:?}: {acquire:?}"
            ));
        }
    }
    let Some(gone) = acquire.not_held.into_iter().chain(acquire.lost).min() else {
        return;
    };
    let is_excused = history
        .wipes
        .iter()
        .any(|wipe| wipe.end >= acquire.begun && wipe.begin <= gone);
    if gone < acquire.valid_until && !is_excused {
        found.push(format!(
            "gone {} µs before its validity ended: {acquire:?}",
            (acquire.valid_until - gone) / 1_000
        ));
    }
}

/// "Busy" requires another owner that may have held the lock, and is never a reply to the holder.
fn refusals(
    acquire: &Acquire,
    all: &[Acquire],
    certain_holds: &[CertainHold],
    (history, timing): (&History, Timing),
    found: &mut Vec<String>,
) {
    let Some(busy) = acquire.busy else { return };
    if certain_holds
        .iter()
        .any(|core| core.owner == acquire.owner && core.from <= acquire.begun && busy <= core.until)
    {
        found.push(format!("refused to its own holder: {acquire:?}"));
    }
    // A lock released just before a failover may exist again on the replica.
    let restored = history.wipes.iter().any(|span| {
        span.begin <= busy && acquire.begun <= span.end + timing.lease + timing.clean_up
    });
    let is_explained = all
        .iter()
        .any(|rival| may_have_held(rival, acquire, busy, timing));
    if !restored && !is_explained {
        found.push(format!(
            "refused although no other owner can have held it: {acquire:?}"
        ));
    }
}

/// Whether the owner of `rival` may have held the lock between the beginning of `refused` and its refusal.
fn may_have_held(rival: &Acquire, refused: &Acquire, busy: Nanos, timing: Timing) -> bool {
    let end = match (rival.released, rival.not_held) {
        _ if rival.busy.is_some() => return false,
        (Some(end), _) => end,
        (None, Some(end)) => end + timing.clean_up,
        // Failed, unknown, or its process ended.
        (None, None) => rival.last.max(rival.valid_until) + timing.lease + timing.clean_up,
    };
    rival.owner != refused.owner && rival.begun <= busy && end >= refused.begun
}

/// Fencing tokens rise from hold to hold, and are equal within a hold. A wipe resets them.
fn tokens(acquires: &[Acquire], history: &History, found: &mut Vec<String>) {
    let mut granted_tokens: Vec<(Nanos, Nanos, u64, u64)> = acquires
        .iter()
        .filter_map(|acquire| {
            let (granted, token) = acquire.granted?;
            Some((acquire.begun, granted, token?, acquire.owner))
        })
        .collect();
    granted_tokens.sort_by_key(|&(_, granted, ..)| granted);
    for (i, &(_, granted, token, owner)) in granted_tokens.iter().enumerate() {
        for &(begun, later, other_token, other_owner) in &granted_tokens[i + 1..] {
            let is_wiped_between = history
                .wipes
                .iter()
                .any(|wipe| wipe.end >= granted && wipe.begin <= later);
            if begun < granted || is_wiped_between {
                continue;
            }
            let fits = if owner == other_owner {
                other_token >= token
            } else {
                other_token > token
            };
            if !fits {
                found.push(format!(
                    "token {other_token} was issued after {token} ({granted})"
                ));
            }
        }
    }
}
