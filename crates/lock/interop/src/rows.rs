//! The rows: the scenarios that are run for each kind of lock. Each leaves nothing in Redis.
//! A row that one of the libraries does not support is reported as not run, never as passed.

use std::time::{Duration, Instant};

use anyhow::bail;
use futures_util::future::{FutureExt, LocalBoxFuture};

use crate::client_process::{Language, NoResult};
use crate::rust_client::Fault;
use crate::test_bed::{Scene, TestBed};
use crate::{fair, kinds, scenarios};

/// Time limit of a row.
const LIMIT: Duration = Duration::from_secs(180);

/// The row that has to fail for each fault of the Rust client.
pub const DETECTED_BY: [(Fault, &str); 6] = [
    (
        Fault::IgnoresMessages,
        "reentrant: Java releases, Rust is woken",
    ),
    (
        Fault::PublishesNothing,
        "reentrant: Rust releases, Java is woken",
    ),
    (Fault::NeverLocks, "reentrant: four processes count"),
    (Fault::NeverRenews, "reentrant: Rust's watchdog"),
    (Fault::ReleasesAllHolds, "reentrant: Rust re-enters"),
    (Fault::IgnoresQueues, "fair: Java holds, six come in order"),
];

/// How a row ended: with figures, or why it failed; by [`NoResult`] if it was not run.
pub type Outcome = anyhow::Result<String>;

type Run = for<'a> fn(&'a Scene<'a>) -> LocalBoxFuture<'a, anyhow::Result<String>>;

struct Row {
    kinds: &'static [&'static str],
    /// The row's name. If it contains `{holder}`, the row is run with each language as the holder;
    /// `{other}` is the other language.
    what: &'static str,
    run: Run,
}

/// Makes rows. It is a macro because the type of an `async fn` cannot be named.
macro_rules! rows {
    ($($($kind:ident)+: $what:literal => $function:path;)*) => {
        &[$(Row {
            kinds: &[$(stringify!($kind)),+],
            what: $what,
            run: |scene| $function(scene).boxed_local(),
        }),*]
    };
}

const KINDS: &[&str] = &["reentrant", "fair", "write", "read", "fenced", "multi"];

const ROWS: &[Row] = rows! {
    reentrant fair write fenced: "{holder} releases, {other} is woken" => scenarios::woken;
    read: "{holder} reads, {other}'s writer is woken" => scenarios::woken;
    reentrant fair write read fenced: "{holder} re-enters, seen alike" => scenarios::reentry;
    reentrant fair write read fenced: "{holder}'s watchdog" => scenarios::watchdog;
    reentrant fair write fenced: "{holder} is killed, {other} gets in" => scenarios::killed;
    read: "{holder} is killed, {other}'s writer gets in" => scenarios::killed;
    reentrant fair write fenced: "{other} frees {holder}'s by force" => scenarios::forced;
    reentrant fair write fenced: "{holder} and six waiters" => scenarios::many_waiters;
    reentrant fair write fenced multi: "four processes count" => scenarios::counter;
    fair: "{holder} holds, six come in order" => fair::order;
    fair: "a killed waiter is passed over" => fair::dead_waiter;
    fair: "{holder} gives up, {other} behind it gets in" => fair::gives_up;
    fair: "eight holders die, {holder} first" => fair::dying_holders;
    fair: "{holder} holds, Java maps its names" => fair::mapped_names;
    read: "both read, {holder}'s writer waits" => kinds::readers_share;
    read: "{holder} writes, four readers are woken" => kinds::readers_woken;
    read: "{holder} downgrades" => kinds::downgrade;
    read: "{holder} renews its own hold only" => kinds::own_renewal;
    read: "two Redissons and Rust read" => kinds::readers_of_two_versions;
    fenced: "fences rise across both" => kinds::fences;
    multi: "{holder} holds all or none" => kinds::all_or_none;
    reentrant fair write read fenced: "Java frees Rust's by force, Rust hears it" => scenarios::loss_heard;
    reentrant fair write read fenced: "Rust with the rights of the README" => scenarios::few_rights;
};

/// Runs all rows whose name contains `only`, and prints each result.
pub async fn run(bed: &TestBed, only: &str) -> Vec<(String, Outcome)> {
    let mut outcomes = Vec::new();
    for kind in KINDS {
        for row in ROWS.iter().filter(|row| row.kinds.contains(kind)) {
            let holders = if row.what.contains("{holder}") { 2 } else { 1 };
            for holder in [Language::Java, Language::Rust].into_iter().take(holders) {
                let what = row.what.replace("{holder}", &format!("{holder:?}"));
                let what = what.replace("{other}", &format!("{:?}", holder.counterpart()));
                let name = format!("{kind}: {what}");
                if !name.contains(only) {
                    continue;
                }
                let begun = Instant::now();
                let outcome = run_row(row.run, &bed.scene(kind, holder)).await;
                let took = begun.elapsed().as_secs_f64();
                println!("  {took:5.1} s  {name}: {}", text(&outcome));
                outcomes.push((name, outcome));
            }
        }
    }
    outcomes
}

/// Runs a row within the time limit.
async fn run_row(run: Run, scene: &Scene<'_>) -> Outcome {
    match tokio::time::timeout(LIMIT, run_and_expect_gone(run, scene)).await {
        Ok(outcome) => outcome,
        Err(_) => bail!("not done within {} s", LIMIT.as_secs()),
    }
}

async fn run_and_expect_gone(run: Run, scene: &Scene<'_>) -> Outcome {
    let figures = run(scene).await?;
    scene.gone().await?;
    Ok(figures)
}

/// An outcome to print.
pub fn text(outcome: &Outcome) -> String {
    match outcome {
        Ok(figures) => format!("ok: {figures}"),
        Err(why) if why.is::<NoResult>() => format!("not run: {why:#}"),
        Err(why) => format!("FAILED: {why:#}"),
    }
}
