//! The rows of the table: the scenarios run for each kind of lock. A row that one of the libraries does
//! not support is reported as not run, never as passed.

use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt};

use crate::client_process::Unsupported;
use crate::rust_client::Fault;
use crate::scenarios::{self, RedissonDefect};
use crate::test_bed::{Language, TestBed};
use crate::{clients, fair, kinds, semaphores, versions};

/// Time limit of a row.
const LIMIT: Duration = Duration::from_secs(180);

/// How a row ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// As it should, with figures.
    Passed(String),
    /// The error.
    Failed(String),
    /// The reason why it was not run.
    NotRun(String),
}

/// The row that has to fail for each fault of the Rust client.
pub const DETECTED_BY: [(Fault, &str); 9] = [
    (Fault::IgnoresMessages, "reentrant: Java releases, Rust is woken"),
    (Fault::PublishesNothing, "reentrant: Rust releases, Java is woken"),
    (Fault::NeverLocks, "reentrant: four processes count"),
    (Fault::NeverRenews, "reentrant: Rust's watchdog"),
    (Fault::ReleasesAllHolds, "reentrant: Rust re-enters"),
    (Fault::HearsNoLoss, "reentrant: Java frees Rust's by force, Rust hears it"),
    (Fault::IgnoresQueues, "fair: Java holds, six come in order"),
    (Fault::AcquiresOnePermit, "semaphore: Java gives two, Rust waits for two"),
    (Fault::IgnoresLeases, "leased: Rust is killed, Java gets its permit"),
];

type Run = for<'a> fn(&'a TestBed, &'a str, Language) -> BoxFuture<'a, anyhow::Result<String>>;

struct Row {
    /// Run with either language in place of `{holder}`, where it is there; the other one is `{other}`.
    what: &'static str,
    run: Run,
}

/// Makes rows: the type of an `async fn` cannot be named.
macro_rules! rows {
    ($($what:literal => $function:path;)*) => {
        &[$(Row { what: $what, run: |bed, kind, holder| $function(bed, kind, holder).boxed() }),*]
    };
}

/// For every kind with one holder at a time.
const EXCLUSIVE: &[Row] = rows! {
    "{holder} releases, {other} is woken" => scenarios::woken;
    "{holder} re-enters, seen alike" => scenarios::reentry;
    "{holder}'s watchdog" => scenarios::watchdog;
    "{holder} is killed, {other} gets in" => scenarios::killed;
    "{other} frees {holder}'s by force" => scenarios::forced;
    "{holder} and six waiters" => scenarios::many_waiters;
    "four processes count" => scenarios::counter;
};

/// For fair locks.
const FAIR: &[Row] = rows! {
    "{holder} holds, six come in order" => fair::order;
    "a killed waiter is passed over" => fair::dead_waiter;
    "{holder} gives up, {other} behind it gets in" => fair::gives_up;
    "eight holders die, {holder} first" => fair::dying_holders;
    "{holder} holds, Java maps its names" => fair::mapped_names;
};

/// For every kind with an owner.
const OWNED: &[Row] = rows! {
    "Java frees Rust's by force, Rust hears it" => clients::loss_heard;
};

/// For every kind.
const ALL: &[Row] = rows! {
    "Rust with the rights of the README" => clients::few_rights;
};

/// For locks over several names.
const MULTI: &[Row] = rows! {
    "{holder} holds all or none" => clients::all_or_none;
    "four processes count" => scenarios::counter;
};

/// For read locks, which exclude writers.
const READ: &[Row] = rows! {
    "{holder} reads, {other}'s writer is woken" => scenarios::woken;
    "{holder} re-enters, seen alike" => scenarios::reentry;
    "{holder}'s watchdog" => scenarios::watchdog;
    "{holder} is killed, {other}'s writer gets in" => scenarios::killed;
    "both read, {holder}'s writer waits" => kinds::readers_share;
    "{holder} writes, four readers are woken" => kinds::readers_woken;
    "{holder} downgrades" => kinds::downgrade;
    "{holder} renews its own hold only" => versions::own_renewal;
    "two Redissons and Rust read" => versions::readers_of_two_versions;
};

/// For fenced locks.
const FENCED: &[Row] = rows! {
    "fences rise across both" => kinds::fences;
};

/// For both kinds of semaphore.
const PERMITS: &[Row] = rows! {
    "{holder} gives a permit, {other} is woken" => semaphores::permits;
    "one permit, four processes count" => semaphores::one_permit;
    "{holder} gives two, {other} waits for two" => semaphores::several;
};

/// For semaphores whose permits have no lease.
const SEMAPHORE: &[Row] = rows! {
    "{holder} adds permits if it exists" => semaphores::added_if_exists;
};

/// For leased semaphores.
const LEASED: &[Row] = rows! {
    "{holder} is killed, {other} gets its permit" => semaphores::killed;
    "{holder} extends its lease" => semaphores::extended;
};

/// The kinds of lock and their rows.
const KINDS: &[(&str, &[&[Row]])] = &[
    ("reentrant", &[EXCLUSIVE, OWNED, ALL]),
    ("fair", &[EXCLUSIVE, FAIR, OWNED, ALL]),
    ("write", &[EXCLUSIVE, OWNED, ALL]),
    ("read", &[READ, OWNED, ALL]),
    ("fenced", &[EXCLUSIVE, FENCED, OWNED, ALL]),
    ("multi", &[MULTI]),
    ("semaphore", &[PERMITS, SEMAPHORE, ALL]),
    ("leased", &[PERMITS, LEASED, ALL]),
];

/// Runs all rows whose name contains `only`, and prints each result. A repeated row passes if every
/// run does.
pub async fn run(bed: &TestBed, only: &str, repeat: u32) -> anyhow::Result<Vec<(String, Outcome)>> {
    let mut outcomes = Vec::new();
    for (kind, groups) in KINDS {
        let supported = bed.supports(kind).await?;
        let languages = [Language::Java, Language::Rust];
        let rows = groups.iter().copied().flatten().flat_map(|row| {
            let holders =
                if row.what.contains("{holder}") { &languages[..] } else { &languages[..1] };
            holders.iter().map(move |holder| (row, *holder))
        });
        for (row, holder) in rows {
            let what = row.what.replace("{holder}", &format!("{holder:?}"));
            let what = what.replace("{other}", &format!("{:?}", holder.other()));
            let name = format!("{kind}: {what}");
            if !name.contains(only) {
                continue;
            }
            let begun = Instant::now();
            let mut outcome = Outcome::NotRun("not run".to_owned());
            for _ in 0..repeat.max(1) {
                outcome = match supported {
                    Err(language) => Outcome::NotRun(format!("{language:?} has no {kind} lock")),
                    Ok(()) => once((row.run)(bed, kind, holder), &name).await,
                };
                if !matches!(outcome, Outcome::Passed(_)) {
                    break;
                }
            }
            let took = begun.elapsed().as_secs_f64();
            match &outcome {
                Outcome::Passed(figures) => println!("  ok      {took:5.1} s  {name}: {figures}"),
                Outcome::Failed(why) => println!("  FAILED  {took:5.1} s  {name}: {why}"),
                Outcome::NotRun(why) if supported.is_ok() => {
                    println!("  -       {took:5.1} s  {why}")
                }
                Outcome::NotRun(_) => {}
            }
            outcomes.push((name, outcome));
        }
    }
    Ok(outcomes)
}

async fn once(row: BoxFuture<'_, anyhow::Result<String>>, name: &str) -> Outcome {
    match tokio::time::timeout(LIMIT, row).await {
        Ok(Ok(figures)) => Outcome::Passed(figures),
        Ok(Err(error)) if error.is::<RedissonDefect>() || error.is::<Unsupported>() => {
            Outcome::NotRun(format!("{name}: {error:#}"))
        }
        Ok(Err(error)) => Outcome::Failed(format!("{error:#}")),
        Err(_) => Outcome::Failed(format!("not done within {} s", LIMIT.as_secs())),
    }
}
