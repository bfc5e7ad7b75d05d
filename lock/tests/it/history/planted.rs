//! Histories written by hand: for each rule of the checker, one that only this rule rejects, and
//! next to it one that differs by what makes it right.

use super::checker::{Terms, violations};
use super::event::{Event, History, Nanos, What, Wipe};
use What::{Acquire, Busy, Claims, Failed, Granted, Lost, NotHeld, Release, Released, Unsure};

const TERMS: Terms = Terms { lease: 100, clean_up: 50, deaf_wipes: false };

/// Events as (owner, guard, at, what).
fn judge(events: &[(u64, u64, Nanos, What)], wipes: &[(Nanos, Nanos)]) -> Vec<String> {
    let events = events.iter().map(|&(owner, guard, at, what)| Event { at, owner, guard, what });
    let wipes = wipes.iter().map(|&(begin, end)| Wipe { begin, end });
    violations(&History { events: events.collect(), wipes: wipes.collect() }, TERMS)
}

fn granted() -> What {
    Granted { fence: None }
}

fn fenced(fence: u64) -> What {
    Granted { fence: Some(fence) }
}

#[track_caller]
fn fits(events: &[(u64, u64, Nanos, What)], wipes: &[(Nanos, Nanos)]) {
    let found = judge(events, wipes);
    assert!(found.is_empty(), "{found:?}");
}

#[track_caller]
fn rejected(words: &str, events: &[(u64, u64, Nanos, What)], wipes: &[(Nanos, Nanos)]) {
    let found = judge(events, wipes);
    assert!(found.len() == 1 && found[0].contains(words), "{words}: {found:?}");
}

/// Owner 1 holds from 10 to 50 and says so at its release.
const FIRST: [(u64, u64, Nanos, What); 4] = [
    (1, 1, 0, Acquire),
    (1, 1, 10, Granted { fence: None }),
    (1, 1, 50, Release),
    (1, 1, 60, Released),
];

fn with(more: &[(u64, u64, Nanos, What)]) -> Vec<(u64, u64, Nanos, What)> {
    [&FIRST, more].concat()
}

#[test]
fn two_holders() {
    let second =
        |at| [(2, 2, 5, Acquire), (2, 2, at, granted()), (2, 2, at, Claims { until: 140 })];
    rejected("two holders", &with(&second(40)), &[]);
    // Granted between the release and its answer.
    fits(&with(&second(55)), &[]);
}

#[test]
fn an_inner_release_does_not_free_the_lock() {
    let outer = [(1, 1, 0, Acquire), (1, 1, 5, granted())];
    let inner =
        [(1, 2, 6, Acquire), (1, 2, 7, granted()), (1, 2, 10, Release), (1, 2, 12, Released)];
    let end = [(1, 1, 60, Release), (1, 1, 65, Released)];
    let other = |at| [(2, 3, 8, Acquire), (2, 3, at, granted()), (2, 3, at, Claims { until: 150 })];
    rejected("two holders", &[&outer[..], &inner, &end, &other(20)].concat(), &[]);
    fits(&[&outer[..], &inner, &end, &other(62)].concat(), &[]);
}

#[test]
fn a_claim_is_kept_to_its_end() {
    let holder = [(1, 1, 0, Acquire), (1, 1, 5, granted()), (1, 1, 6, Claims { until: 100 })];
    // It was stopped after its claim; nobody may come before the claim ends, and anybody after.
    let late = [(1, 1, 300, Lost), (1, 1, 301, Release), (1, 1, 302, NotHeld)];
    let other = |at| {
        [
            (2, 2, 20, Acquire),
            (2, 2, at, granted()),
            (2, 2, at + 5, Release),
            (2, 2, at + 6, Released),
        ]
    };
    rejected("two holders", &[&holder[..], &late, &other(90)].concat(), &[]);
    fits(&[&holder[..], &late, &other(101)].concat(), &[]);
    // Without an answer to the release, the claim ends with its beginning.
    let unsure = [(1, 1, 30, Release), (1, 1, 60, Unsure)];
    fits(&[&holder[..], &unsure, &other(35)].concat(), &[]);
}

#[test]
fn a_grant_needs_a_moment() {
    // Granted and over before the answer came, but there was no moment for it.
    let second = |at| [(2, 2, 20, Acquire), (2, 2, at, granted()), (2, 2, at, Lost)];
    rejected("all the time", &with(&second(45)), &[]);
    fits(&with(&second(51)), &[]);
}

#[test]
fn a_wipe_excuses_what_lies_behind_it_for_one_lease() {
    let holder = |until| {
        [(1, 1, 0, Acquire), (1, 1, 5, granted()), (1, 1, 50, Claims { until }), (1, 1, 160, Lost)]
    };
    let other =
        [(2, 2, 20, Acquire), (2, 2, 35, granted()), (2, 2, 45, Release), (2, 2, 46, Released)];
    fits(&[&holder(130)[..], &other].concat(), &[(30, 31)]);
    rejected("two holders", &[&holder(130)[..], &other].concat(), &[]);
    rejected("over a lease after", &[&holder(140)[..], &other].concat(), &[(30, 31)]);
}

#[test]
fn a_release_of_a_wiped_lock_does_not_succeed() {
    rejected("was wiped", &FIRST, &[(20, 30)]);
    // The wipe may have come just after the release.
    fits(&FIRST, &[(20, 52)]);
}

#[test]
fn nothing_goes_before_its_claim_ends() {
    let holder = [(1, 1, 0, Acquire), (1, 1, 5, granted()), (1, 1, 6, Claims { until: 100 })];
    let gone = |at| [(1, 1, at - 5, Release), (1, 1, at, NotHeld)];
    rejected("before its claim ended", &[&holder[..], &gone(50)].concat(), &[]);
    fits(&[&holder[..], &gone(50)].concat(), &[(20, 30)]);
    fits(&[&holder[..], &gone(101)].concat(), &[]);
    let lost = [(1, 1, 50, Lost)];
    rejected("before its claim ended", &[&holder[..], &lost].concat(), &[]);
}

#[test]
fn busy_needs_another_holder() {
    let refused = |begun| [(2, 2, begun, Acquire), (2, 2, begun + 1, Busy)];
    fits(&with(&refused(59)), &[]);
    rejected("nobody can have held it", &with(&refused(61)), &[]);
    // Where the outcome is unknown, a lease and a clean-up may pass.
    let failed = [(1, 1, 0, Acquire), (1, 1, 10, Failed)];
    fits(&[&failed[..], &refused(150)].concat(), &[]);
    rejected("nobody can have held it", &[&failed[..], &refused(170)].concat(), &[]);
}

#[test]
fn a_holder_is_not_refused() {
    let stranger = [(2, 2, 0, Acquire), (2, 2, 70, Failed)];
    let again = |owner| [(owner, 3, 20, Acquire), (owner, 3, 25, Busy)];
    rejected("its own holder", &[&with(&stranger)[..], &again(1)].concat(), &[]);
    fits(&[&with(&stranger)[..], &again(3)].concat(), &[]);
}

#[test]
fn fences_rise() {
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
    fits(&history(7, 8), &[]);
    rejected("fence 7 was given after 7", &history(7, 7), &[]);
    rejected("fence 6 was given after 7", &history(7, 6), &[]);
    // The counter was lost with everything else.
    fits(&history(7, 1), &[(26, 27)]);
}
