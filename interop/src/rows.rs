//! The rows of the table: which scenario is played with which kind of lock. A row that one of the
//! sides cannot play is said to be absent, never passed.

use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt};

use crate::family;
use crate::scenarios::{self, NotOurs};
use crate::side::Fault;
use crate::stage::{Side, Stage};

/// How long any row may take.
const LIMIT: Duration = Duration::from_secs(180);

/// How a row ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// As it should, with figures.
    Passed(String),
    /// What went wrong.
    Failed(String),
    /// Why it cannot be played.
    Absent(String),
}

/// Which row has to fail when the Rust side is broken in this way.
pub const TELLTALE: [(Fault, &str); 5] = [
    (Fault::Deaf, "reentrant: Java releases, Rust is woken"),
    (Fault::Mute, "reentrant: Rust releases, Java is woken"),
    (Fault::Greedy, "reentrant: four processes count"),
    (Fault::Forgetful, "reentrant: Rust's watchdog"),
    (Fault::Shallow, "reentrant: Rust re-enters"),
];

type Play = for<'a> fn(&'a Stage, &'a str) -> BoxFuture<'a, anyhow::Result<String>>;

struct Row {
    what: &'static str,
    play: Play,
}

/// Makes rows, as a function of an `async fn` has a type that cannot be written down.
macro_rules! rows {
    ($($what:literal => $function:path $(, $side:ident)?;)*) => {
        &[$(Row { what: $what, play: |stage, kind| {
            $function(stage, kind $(, Side::$side)?).boxed()
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
    "Java and six waiters" => scenarios::crowd, Java;
    "Rust and six waiters" => scenarios::crowd, Rust;
    "four processes count" => scenarios::counter;
};

/// For fair locks.
const FAIR: &[Row] = rows! {
    "Java holds, six come in order" => family::order, Java;
    "Rust holds, six come in order" => family::order, Rust;
    "a killed waiter is passed over" => family::dead_waiter;
};

/// For the reading side of read-write locks; whoever is kept out is a writer.
const READ: &[Row] = rows! {
    "Java reads, Rust's writer is woken" => scenarios::woken, Java;
    "Rust reads, Java's writer is woken" => scenarios::woken, Rust;
    "Java re-enters, seen alike" => scenarios::reentry, Java;
    "Rust re-enters, seen alike" => scenarios::reentry, Rust;
    "Java's watchdog" => scenarios::watchdog, Java;
    "Rust's watchdog" => scenarios::watchdog, Rust;
    "Java is killed, Rust's writer gets in" => scenarios::killed, Java;
    "Rust is killed, Java's writer gets in" => scenarios::killed, Rust;
    "both read, Java's writer waits" => family::readers_share, Java;
    "both read, Rust's writer waits" => family::readers_share, Rust;
    "Java writes, four readers are woken" => family::readers_woken, Java;
    "Rust writes, four readers are woken" => family::readers_woken, Rust;
    "Java downgrades" => family::downgrade, Java;
    "Rust downgrades" => family::downgrade, Rust;
};

/// For fenced locks.
const FENCED: &[Row] = rows! {
    "fences rise across both" => family::fences;
};

/// For semaphores.
const SEMAPHORE: &[Row] = rows! {
    "Java gives a permit, Rust is woken" => family::permits, Java;
    "Rust gives a permit, Java is woken" => family::permits, Rust;
    "one permit, four processes count" => family::one_permit;
};

/// Kinds of lock and their rows. Those that one of the sides does not have are absent.
const KINDS: &[(&str, &[&[Row]])] = &[
    ("reentrant", &[EXCLUSIVE]),
    ("fair", &[EXCLUSIVE, FAIR]),
    ("write", &[EXCLUSIVE]),
    ("read", &[READ]),
    ("fenced", &[EXCLUSIVE, FENCED]),
    ("semaphore", &[SEMAPHORE]),
];

/// Play all rows whose name contains `only`, saying each as it ends. A row that is repeated has
/// passed if it did every time.
pub async fn play(
    stage: &Stage,
    only: &str,
    repeat: u32,
) -> anyhow::Result<Vec<(String, Outcome)>> {
    let mut outcomes = Vec::new();
    for (kind, groups) in KINDS {
        let supported = stage.supports(kind).await?;
        for row in groups.iter().copied().flatten() {
            let name = format!("{kind}: {}", row.what);
            if !name.contains(only) {
                continue;
            }
            let begun = Instant::now();
            let mut outcome = Outcome::Absent("not played".to_owned());
            for _ in 0..repeat.max(1) {
                outcome = match supported {
                    Err(side) => Outcome::Absent(format!("{side:?} has no {kind} lock")),
                    Ok(()) => once(stage, row, kind).await,
                };
                if !matches!(outcome, Outcome::Passed(_)) {
                    break;
                }
            }
            let took = begun.elapsed().as_secs_f64();
            match &outcome {
                Outcome::Passed(figures) => println!("  ok      {took:5.1} s  {name}: {figures}"),
                Outcome::Failed(why) => println!("  FAILED  {took:5.1} s  {name}: {why}"),
                Outcome::Absent(why) if supported.is_ok() => {
                    println!("  -       {took:5.1} s  {why}")
                }
                Outcome::Absent(_) => {}
            }
            outcomes.push((name, outcome));
        }
    }
    Ok(outcomes)
}

async fn once(stage: &Stage, row: &Row, kind: &str) -> Outcome {
    match tokio::time::timeout(LIMIT, (row.play)(stage, kind)).await {
        Ok(Ok(figures)) => Outcome::Passed(figures),
        Ok(Err(error)) if error.is::<NotOurs>() => {
            Outcome::Absent(format!("{kind}, {}: {error}", row.what))
        }
        Ok(Err(error)) => Outcome::Failed(format!("{error:#}")),
        Err(_) => Outcome::Failed(format!("not done within {} s", LIMIT.as_secs())),
    }
}
