//! The checker: decides whether a history fits a reentrant mutex with expiry.
//!
//! Each guard has a *certain hold*: from the reply to its acquire to the beginning of its release, if
//! that release succeeded; otherwise to the latest moment until which the guard reported the lock as
//! valid. A wipe ends it.
//!
//! Certain holds of different owners must not overlap. That decides the question. If none overlap, there
//! is a run of the mutex that gives this history: each hold begins at or after the end of the certain
//! hold before it, and ends together with its own. If two overlap, the lock had two holders at once,
//! whatever the order of the other events. The other rules check that each single reply is true.

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

impl Acquire {
    /// When the release began, if it succeeded.
    fn successful_release(&self) -> Option<Nanos> {
        self.released.and(self.release)
    }
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

/// A grant with its fencing token.
struct FencedGrant {
    owner: u64,
    token: u64,
    begun: Nanos,
    granted: Nanos,
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

/// Everything in `history` that a mutex with this timing could not have produced.
pub fn violations(history: &History, timing: Timing) -> Vec<String> {
    let acquires = acquires(&history.events);
    let mut found = Vec::new();
    let mut certain_holds = Vec::new();
    let mut uncertain = Vec::new();
    for acquire in &acquires {
        match certain_hold(acquire, history) {
            Some(hold) => certain_holds.push(hold),
            None => uncertain.push(acquire),
        }
        check_replies(acquire, history, timing, &mut found);
    }
    certain_holds.sort_by_key(|hold| hold.from);
    check_exclusion(&certain_holds, &mut found);
    for acquire in uncertain {
        check_early_grant(acquire, &certain_holds, &mut found);
    }
    for acquire in &acquires {
        check_refusal(
            acquire,
            &acquires,
            &certain_holds,
            history,
            timing,
            &mut found,
        );
    }
    check_tokens(&acquires, history, &mut found);
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

fn certain_hold(acquire: &Acquire, history: &History) -> Option<CertainHold> {
    let (from, _) = acquire.granted?;
    let reported_until = acquire.release.map_or(acquire.valid_until, |release| {
        acquire.valid_until.min(release)
    });
    let mut until = acquire.successful_release().unwrap_or(reported_until);
    for wipe in history
        .wipes
        .iter()
        .filter(|wipe| wipe.end >= acquire.begun)
    {
        until = until.min(wipe.begin);
    }
    if from >= until {
        return None;
    }
    Some(CertainHold {
        owner: acquire.owner,
        guard: acquire.guard,
        from,
        until,
    })
}

/// At most one owner at a time.
fn check_exclusion(certain_holds: &[CertainHold], found: &mut Vec<String>) {
    // The holds not over yet: while only one owner holds the lock, all of them are that owner's.
    let mut open: Vec<CertainHold> = Vec::new();
    for hold in certain_holds {
        open.retain(|before| before.until > hold.from);
        if let Some(earlier) = open.iter().find(|before| before.owner != hold.owner) {
            let overlap = hold.until.min(earlier.until) - hold.from;
            found.push(format!(
                "two holders at once for {} µs: {earlier}, and {hold} from {} µs later",
                overlap / 1_000,
                (hold.from - earlier.from) / 1_000
            ));
        }
        open.push(*hold);
    }
}

/// An acquire without a certain hold: its hold may have ended before the reply came. It also needs a moment between its
/// beginning and the reply at which nobody else held the lock.
fn check_early_grant(acquire: &Acquire, certain_holds: &[CertainHold], found: &mut Vec<String>) {
    let Some((granted, _)) = acquire.granted else {
        return;
    };
    let mut moment = acquire.begun;
    for hold in certain_holds
        .iter()
        .filter(|hold| hold.owner != acquire.owner)
    {
        if hold.from <= moment && hold.until > moment {
            moment = hold.until;
        }
    }
    if moment > granted {
        found.push(format!(
            "granted while others held it all the time: {acquire:?}"
        ));
    }
}

/// Replies that contradict the times of their own guard.
fn check_replies(acquire: &Acquire, history: &History, timing: Timing, found: &mut Vec<String>) {
    let Some((granted, _)) = acquire.granted else {
        return;
    };
    for wipe in history.wipes.iter().filter(|wipe| wipe.begin > granted) {
        let is_released_after_wipe = acquire
            .successful_release()
            .is_some_and(|release| wipe.end < release);
        if !timing.replies_lost_at_wipe && is_released_after_wipe {
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
fn check_refusal(
    acquire: &Acquire,
    all: &[Acquire],
    certain_holds: &[CertainHold],
    history: &History,
    timing: Timing,
    found: &mut Vec<String>,
) {
    let Some(busy) = acquire.busy else { return };
    let is_holder = certain_holds.iter().any(|hold| {
        hold.owner == acquire.owner && hold.from <= acquire.begun && busy <= hold.until
    });
    if is_holder {
        found.push(format!("refused to its own holder: {acquire:?}"));
    }
    // A lock released just before a failover may exist again on the replica.
    let may_be_restored = history.wipes.iter().any(|wipe| {
        wipe.begin <= busy && acquire.begun <= wipe.end + timing.lease + timing.clean_up
    });
    let is_explained = all
        .iter()
        .any(|rival| may_have_held(rival, acquire, busy, timing));
    if !may_be_restored && !is_explained {
        found.push(format!(
            "refused although no other owner can have held it: {acquire:?}"
        ));
    }
}

/// Whether the owner of `rival` may have held the lock between the beginning of `refused` and its refusal.
fn may_have_held(rival: &Acquire, refused: &Acquire, busy: Nanos, timing: Timing) -> bool {
    if rival.busy.is_some() {
        return false;
    }
    let end = match (rival.released, rival.not_held) {
        (Some(end), _) => end,
        (None, Some(end)) => end + timing.clean_up,
        // Failed, unknown, or its process ended.
        (None, None) => rival.last.max(rival.valid_until) + timing.lease + timing.clean_up,
    };
    rival.owner != refused.owner && rival.begun <= busy && end >= refused.begun
}

/// Fencing tokens rise from hold to hold, and are equal within a hold. A wipe resets them.
fn check_tokens(acquires: &[Acquire], history: &History, found: &mut Vec<String>) {
    let mut grants: Vec<FencedGrant> = acquires
        .iter()
        .filter_map(|acquire| {
            let (granted, token) = acquire.granted?;
            Some(FencedGrant {
                owner: acquire.owner,
                token: token?,
                begun: acquire.begun,
                granted,
            })
        })
        .collect();
    grants.sort_by_key(|grant| grant.granted);
    for (i, earlier) in grants.iter().enumerate() {
        for later in &grants[i + 1..] {
            let is_wiped_between = history
                .wipes
                .iter()
                .any(|wipe| wipe.end >= earlier.granted && wipe.begin <= later.granted);
            if later.begun < earlier.granted || is_wiped_between {
                continue;
            }
            let fits = if earlier.owner == later.owner {
                later.token >= earlier.token
            } else {
                later.token > earlier.token
            };
            if !fits {
                found.push(format!(
                    "token {} was issued after {} ({})",
                    later.token, earlier.token, earlier.granted
                ));
            }
        }
    }
}
