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

type Run = for<'a> fn(&'a TestBed, &'a str) -> BoxFuture<'a, anyhow::Result<String>>;

struct Row {
    what: &'static str,
    run: Run,
}

/// Makes rows: the type of an `async fn` cannot be named.
macro_rules! rows {
    ($($what:literal => $function:path $(, $language:ident)?;)*) => {
        &[$(Row { what: $what, run: |bed, kind| {
            $function(bed, kind $(, Language::$language)?).boxed()
        } }),*]
    };
}

/// For every kind with one holder at a time.
const EXCLUSIVE: &[Row] = rows! {
    "Java releases, Rust is woken" => scenarios::woken, Java;
    "Rust releases, Java is woken" => scenarios::woken, Rust;
    "Java re-enters, seen alike" => scenarios::reentry, Java;
    "Rust re-enters, seen alike" => scenarios::reentry, Rust;
    "Java's watchdog" => scenarios::watchdog, Java;
    "Rust's watchdog" => scenarios::watchdog, Rust;
    "Java is killed, Rust gets in" => scenarios::killed, Java;
    "Rust is killed, Java gets in" => scenarios::killed, Rust;
    "Rust frees Java's by force" => scenarios::forced, Java;
    "Java frees Rust's by force" => scenarios::forced, Rust;
    "Java and six waiters" => scenarios::many_waiters, Java;
    "Rust and six waiters" => scenarios::many_waiters, Rust;
    "four processes count" => scenarios::counter;
};

/// For fair locks.
const FAIR: &[Row] = rows! {
    "Java holds, six come in order" => fair::order, Java;
    "Rust holds, six come in order" => fair::order, Rust;
    "a killed waiter is passed over" => fair::dead_waiter;
    "Java gives up, Rust behind it gets in" => fair::gives_up, Java;
    "Rust gives up, Java behind it gets in" => fair::gives_up, Rust;
    "eight holders die, Java first" => fair::dying_holders, Java;
    "eight holders die, Rust first" => fair::dying_holders, Rust;
    "Java holds and maps its names" => fair::mapped_names, Java;
    "Rust holds, Java maps its names" => fair::mapped_names, Rust;
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
    "Java holds all or none" => clients::all_or_none, Java;
    "Rust holds all or none" => clients::all_or_none, Rust;
    "four processes count" => scenarios::counter;
};

/// For read locks, which exclude writers.
const READ: &[Row] = rows! {
    "Java reads, Rust's writer is woken" => scenarios::woken, Java;
    "Rust reads, Java's writer is woken" => scenarios::woken, Rust;
    "Java re-enters, seen alike" => scenarios::reentry, Java;
    "Rust re-enters, seen alike" => scenarios::reentry, Rust;
    "Java's watchdog" => scenarios::watchdog, Java;
    "Rust's watchdog" => scenarios::watchdog, Rust;
    "Java is killed, Rust's writer gets in" => scenarios::killed, Java;
    "Rust is killed, Java's writer gets in" => scenarios::killed, Rust;
    "both read, Java's writer waits" => kinds::readers_share, Java;
    "both read, Rust's writer waits" => kinds::readers_share, Rust;
    "Java writes, four readers are woken" => kinds::readers_woken, Java;
    "Rust writes, four readers are woken" => kinds::readers_woken, Rust;
    "Java downgrades" => kinds::downgrade, Java;
    "Rust downgrades" => kinds::downgrade, Rust;
    "Java renews its own hold only" => versions::own_renewal, Java;
    "Rust renews its own hold only" => versions::own_renewal, Rust;
    "two Redissons and Rust read" => versions::readers_of_two_versions;
};

/// For fenced locks.
const FENCED: &[Row] = rows! {
    "fences rise across both" => kinds::fences;
};

/// For both kinds of semaphore.
const PERMITS: &[Row] = rows! {
    "Java gives a permit, Rust is woken" => semaphores::permits, Java;
    "Rust gives a permit, Java is woken" => semaphores::permits, Rust;
    "one permit, four processes count" => semaphores::one_permit;
    "Java gives two, Rust waits for two" => semaphores::several, Java;
    "Rust gives two, Java waits for two" => semaphores::several, Rust;
};

/// For semaphores whose permits have no lease.
const SEMAPHORE: &[Row] = rows! {
    "Java adds permits if it exists" => semaphores::added_if_exists, Java;
    "Rust adds permits if it exists" => semaphores::added_if_exists, Rust;
};

/// For leased semaphores.
const LEASED: &[Row] = rows! {
    "Java is killed, Rust gets its permit" => semaphores::killed, Java;
    "Rust is killed, Java gets its permit" => semaphores::killed, Rust;
    "Java extends its lease" => semaphores::extended, Java;
    "Rust extends its lease" => semaphores::extended, Rust;
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
        for row in groups.iter().copied().flatten() {
            let name = format!("{kind}: {}", row.what);
            if !name.contains(only) {
                continue;
            }
            let begun = Instant::now();
            let mut outcome = Outcome::NotRun("not run".to_owned());
            for _ in 0..repeat.max(1) {
                outcome = match supported {
                    Err(language) => Outcome::NotRun(format!("{language:?} has no {kind} lock")),
                    Ok(()) => once(bed, row, kind).await,
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

async fn once(bed: &TestBed, row: &Row, kind: &str) -> Outcome {
    match tokio::time::timeout(LIMIT, (row.run)(bed, kind)).await {
        Ok(Ok(figures)) => Outcome::Passed(figures),
        Ok(Err(error)) if error.is::<RedissonDefect>() || error.is::<Unsupported>() => {
            Outcome::NotRun(format!("{kind}, {}: {error:#}", row.what))
        }
        Ok(Err(error)) => Outcome::Failed(format!("{error:#}")),
        Err(_) => Outcome::Failed(format!("not done within {} s", LIMIT.as_secs())),
    }
}
