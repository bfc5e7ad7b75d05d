//! Tests of the checker with histories written by hand: for each rule one that only this rule rejects,
//! and one that differs just enough to be accepted.

use super::checker::{Timing, violations};
use super::event::{Event, EventKind, History, Nanos, Span};
use EventKind::{Acquire, Busy, Failed, Granted, Lost, NotHeld, Release, Released, Unknown, Valid};

const TIMING: Timing = Timing {
    lease: 100,
    clean_up: 50,
    replies_lost_at_wipe: false,
};

/// The violations in events given as (owner, guard, at, kind).
fn found_in(events: &[(u64, u64, Nanos, EventKind)], wipes: &[(Nanos, Nanos)]) -> Vec<String> {
    let events = events.iter().map(|&(owner, guard, at, kind)| Event {
        at,
        owner,
        guard,
        kind,
    });
    let wipes = wipes.iter().map(|&(begin, end)| Span { begin, end });
    let history = History {
        events: events.collect(),
        wipes: wipes.collect(),
    };
    violations(&history, TIMING)
}

fn granted() -> EventKind {
    Granted { fence: None }
}

fn fenced(token: u64) -> EventKind {
    Granted { fence: Some(token) }
}

#[track_caller]
fn accepted(events: &[(u64, u64, Nanos, EventKind)], wipes: &[(Nanos, Nanos)]) {
    let found = found_in(events, wipes);
    assert!(found.is_empty(), "{found:?}");
}

#[track_caller]
fn rejected(words: &str, events: &[(u64, u64, Nanos, EventKind)], wipes: &[(Nanos, Nanos)]) {
    let found = found_in(events, wipes);
    assert!(
        found.len() == 1 && found[0].contains(words),
        "{words}: {found:?}"
    );
}

/// Owner 1 holds from 10 to 50, and its release confirms that.
const FIRST: [(u64, u64, Nanos, EventKind); 4] = [
    (1, 1, 0, Acquire),
    (1, 1, 10, Granted { fence: None }),
    (1, 1, 50, Release),
    (1, 1, 60, Released),
];

fn with(further: &[(u64, u64, Nanos, EventKind)]) -> Vec<(u64, u64, Nanos, EventKind)> {
    [&FIRST, further].concat()
}

#[test]
fn two_holders_are_rejected() {
    let second = |moment| {
        [
            (2, 2, 5, Acquire),
            (2, 2, moment, granted()),
            (2, 2, moment, Valid { until: 140 }),
        ]
    };
    rejected("two holders", &with(&second(40)), &[]);
    // Granted between the release and its reply.
    accepted(&with(&second(55)), &[]);
}

#[test]
fn an_inner_release_does_not_free_the_lock() {
    let outer = [(1, 1, 0, Acquire), (1, 1, 5, granted())];
    let inner = [
        (1, 2, 6, Acquire),
        (1, 2, 7, granted()),
        (1, 2, 10, Release),
        (1, 2, 12, Released),
    ];
    let end = [(1, 1, 60, Release), (1, 1, 65, Released)];
    let second = |moment| {
        [
            (2, 3, 8, Acquire),
            (2, 3, moment, granted()),
            (2, 3, moment, Valid { until: 150 }),
        ]
    };
    rejected(
        "two holders",
        &[&outer[..], &inner, &end, &second(20)].concat(),
        &[],
    );
    accepted(&[&outer[..], &inner, &end, &second(62)].concat(), &[]);
}

#[test]
fn no_other_owner_acquires_before_the_validity_ends() {
    let holder = [
        (1, 1, 0, Acquire),
        (1, 1, 5, granted()),
        (1, 1, 6, Valid { until: 100 }),
    ];
    // The process was stopped; no owner may acquire before the validity ends, any owner after it.
    let late = [
        (1, 1, 300, Lost),
        (1, 1, 301, Release),
        (1, 1, 302, NotHeld),
    ];
    let second = |moment| {
        [
            (2, 2, 20, Acquire),
            (2, 2, moment, granted()),
            (2, 2, moment + 5, Release),
            (2, 2, moment + 6, Released),
        ]
    };
    rejected(
        "two holders",
        &[&holder[..], &late, &second(90)].concat(),
        &[],
    );
    accepted(&[&holder[..], &late, &second(101)].concat(), &[]);
    // Without a reply to the release, the validity ends with the beginning of the release.
    let unknown = [(1, 1, 30, Release), (1, 1, 60, Unknown)];
    accepted(&[&holder[..], &unknown, &second(35)].concat(), &[]);
}

#[test]
fn a_grant_needs_a_moment_without_another_holder() {
    // The second hold ended before its reply arrived. The lock must have been free at some moment from request to reply.
    let second = |moment| {
        [
            (2, 2, 20, Acquire),
            (2, 2, moment, granted()),
            (2, 2, moment, Lost),
        ]
    };
    rejected("all the time", &with(&second(45)), &[]);
    accepted(&with(&second(51)), &[]);
}

/// The wipe ends at 31 and a lease is 100: a validity until 131 may be reported, a later one not.
#[test]
fn a_wipe_excuses_a_reported_validity_for_one_lease() {
    let holder = |until| {
        [
            (1, 1, 0, Acquire),
            (1, 1, 5, granted()),
            (1, 1, 50, Valid { until }),
            (1, 1, 160, Lost),
        ]
    };
    let second = [
        (2, 2, 20, Acquire),
        (2, 2, 35, granted()),
        (2, 2, 45, Release),
        (2, 2, 46, Released),
    ];
    accepted(&[&holder(130)[..], &second].concat(), &[(30, 31)]);
    rejected("two holders", &[&holder(130)[..], &second].concat(), &[]);
    rejected(
        "over a lease after",
        &[&holder(140)[..], &second].concat(),
        &[(30, 31)],
    );
}

#[test]
fn a_release_of_a_wiped_lock_does_not_succeed() {
    rejected("was wiped", &FIRST, &[(20, 30)]);
    // The wipe may have happened just after the release.
    accepted(&FIRST, &[(20, 52)]);
}

#[test]
fn no_hold_is_lost_before_its_validity_ends() {
    let holder = [
        (1, 1, 0, Acquire),
        (1, 1, 5, granted()),
        (1, 1, 6, Valid { until: 100 }),
    ];
    let gone = |moment| [(1, 1, moment - 5, Release), (1, 1, moment, NotHeld)];
    rejected(
        "before its validity ended",
        &[&holder[..], &gone(50)].concat(),
        &[],
    );
    accepted(&[&holder[..], &gone(50)].concat(), &[(20, 30)]);
    accepted(&[&holder[..], &gone(101)].concat(), &[]);
    let lost = [(1, 1, 50, Lost)];
    rejected(
        "before its validity ended",
        &[&holder[..], &lost].concat(),
        &[],
    );
}

#[test]
fn a_refusal_needs_another_holder() {
    let refused = |begun| [(2, 2, begun, Acquire), (2, 2, begun + 1, Busy)];
    accepted(&with(&refused(59)), &[]);
    rejected("no other owner can have held it", &with(&refused(61)), &[]);
    // After an unknown outcome, the lock may be held for a lease and a clean-up.
    let failed = [(1, 1, 0, Acquire), (1, 1, 10, Failed)];
    accepted(&[&failed[..], &refused(150)].concat(), &[]);
    rejected(
        "no other owner can have held it",
        &[&failed[..], &refused(170)].concat(),
        &[],
    );
}

/// A failover counts as a wipe, and may bring back a lock that was released.
#[test]
fn a_wipe_excuses_a_refusal() {
    let refused = |begun| with(&[(2, 2, begun, Acquire), (2, 2, begun + 1, Busy)]);
    accepted(&refused(200), &[(55, 60)]);
    rejected(
        "no other owner can have held it",
        &refused(211),
        &[(55, 60)],
    );
}

#[test]
fn a_holder_is_not_refused() {
    // It may have held the lock, which explains a refusal. So only the rule about the holder itself rejects the history.
    let stranger = [(2, 2, 0, Acquire), (2, 2, 70, Failed)];
    let again = |owner| [(owner, 3, 20, Acquire), (owner, 3, 25, Busy)];
    rejected(
        "its own holder",
        &[&with(&stranger)[..], &again(1)].concat(),
        &[],
    );
    accepted(&[&with(&stranger)[..], &again(3)].concat(), &[]);
}

#[test]
fn tokens_rise() {
    let history = |first, second| {
        [
            (1, 1, 0, Acquire),
            (1, 1, 10, fenced(first)),
            (1, 1, 20, Release),
            (1, 1, 25, Released),
            (2, 2, 30, Acquire),
            (2, 2, 35, fenced(second)),
        ]
    };
    accepted(&history(7, 8), &[]);
    rejected("token 7 was issued after 7", &history(7, 7), &[]);
    rejected("token 6 was issued after 7", &history(7, 6), &[]);
    // The wipe lost the counter, too.
    accepted(&history(7, 1), &[(26, 27)]);
}
