//! Scenarios for every exclusive lock, across the two languages. Each function is one row of the
//! table: it returns the figures to print, or an error.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::AsyncCommands;
use tokio::time::sleep;

use crate::client_process::Actor;
use crate::test_bed::{Language, TestBed};

/// A lease in ms, so long that a wake-up by its end cannot pass for one by a message.
pub const LONG: u64 = 20_000;

/// Time limit for a wake-up by a message, on a busy machine.
pub const WAKEUP_LIMIT: Duration = Duration::from_secs(3);

/// How long a waiter must not answer to count as waiting.
pub const WATCH: Duration = Duration::from_millis(150);

/// Increments by each of the four processes.
const INCREMENTS: u64 = 500;

/// The kind of lock that a holder of `kind` excludes: readers share, and exclude writers.
pub fn rival(kind: &str) -> &str {
    if kind == "read" { "write" } else { kind }
}

/// `holder` releases, which wakes `waiter`; returns how long that took, in µs.
pub async fn hand_over(
    holder: &mut Actor,
    release: &str,
    waiter: &mut Actor,
) -> anyhow::Result<u64> {
    let released = holder.ask(release).await?;
    released.ok().context("the release")?;
    let won = waiter.reply(WAKEUP_LIMIT).await.context("not woken by the release")?;
    won.ok().context("the waiter")?;
    Ok(won.ended.saturating_sub(released.begun))
}

/// Microseconds in milliseconds.
pub fn millis(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

/// `holder` holds the lock; the other language waits and is woken by the release, well before the
/// lease ends.
pub async fn woken(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let rival = rival(kind);
    let (mut first, mut second) = (bed.actor(holder, 0), bed.actor(holder.other(), 0));
    let mut took = Vec::new();
    for _ in 0..11 {
        let name = bed.name();
        first.get(&format!("lock {kind} {name} {LONG}")).await?;
        second.send(&format!("lock {rival} {name} {LONG}"))?;
        bed.subscribed(&name, 1).await?;
        second.waits(WATCH).await.context("the waiter")?;
        let left = bed.ttl(&name).await?;
        ensure!(
            left > WAKEUP_LIMIT.as_millis() as i64 * 2,
            "too little of the lease is left: {left} ms"
        );
        took.push(hand_over(&mut first, &format!("unlock {kind} {name}"), &mut second).await?);
        second.get(&format!("unlock {rival} {name}")).await?;
        bed.gone(&name).await?;
    }
    // The first one loads classes and subscribes on a new connection.
    let took = &mut took[1..];
    took.sort_unstable();
    let (median, max) = (took[took.len() / 2], took[took.len() - 1]);
    Ok(format!("{:.1} ms (max {:.1}) of {LONG}", millis(median), millis(max)))
}

/// Both languages and Redis show the same hold count; only the last release frees the lock.
pub async fn reentry(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let (mut holding, mut other) = (bed.actor(holder, 0), bed.actor(holder.other(), 0));
    let mut neighbour = bed.actor(holder, 0);
    let name = bed.name();
    let hold_count_in_redis = async |depth: u32| -> anyhow::Result<()> {
        let mut fields = bed.fields(&name).await?;
        fields.remove("mode"); // read-write locks say so in a field of its own
        ensure!(fields.len() == 1, "one owner, but the hash is {fields:?}");
        for (owner, count) in &fields {
            ensure!(is_owner(owner, kind), "'{owner}' is not an owner's field");
            ensure!(*count == depth.to_string(), "the count is {count}, not {depth}");
        }
        Ok(())
    };
    for depth in 1..=3 {
        holding.get(&format!("lock {kind} {name} {LONG}")).await?;
        hold_count_in_redis(depth).await?;
    }
    for depth in [3, 2, 1] {
        let seen = holding.get(&format!("depth {kind} {name}")).await?;
        ensure!(seen == depth.to_string(), "the holder sees a depth of {seen}, not {depth}");
        ensure!(other.get(&format!("depth {kind} {name}")).await? == "0", "another's hold counted");
        ensure!(other.get(&format!("locked {kind} {name}")).await? == "true", "seen as free");
        let left: u64 = other.get(&format!("remaining {kind} {name}")).await?.parse()?;
        // Redisson adds the lease to what is left when a writer or reader enters again.
        ensure!((1..=LONG * 3).contains(&left), "{left} ms remain");
        let rival = rival(kind);
        other.ask(&format!("try {rival} {name} 0")).await?.no().context("the other language")?;
        neighbour.ask(&format!("try {rival} {name} 0")).await?.no().context("a neighbour")?;
        hold_count_in_redis(depth).await?;
        holding.get(&format!("unlock {kind} {name}")).await?;
    }
    bed.gone(&name).await?;
    other.get(&format!("lock {kind} {name} {LONG}")).await?;
    holding
        .ask(&format!("unlock {kind} {name}"))
        .await?
        .error()
        .context("unlocking another's lock")?;
    ensure!(other.get(&format!("depth {kind} {name}")).await? == "1", "freed by another owner");
    other.get(&format!("unlock {kind} {name}")).await?;
    bed.gone(&name).await?;
    Ok("depth 3".to_owned())
}

/// A watchdog renews the lease until the release.
pub async fn watchdog(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let (mut holding, mut other) = (bed.actor(holder, 0), bed.actor(holder.other(), 0));
    let (name, lease) = (bed.name(), bed.launcher.watchdog);
    holding.get(&format!("lock {kind} {name}")).await?;
    let begun = Instant::now();
    let mut lowest = i64::MAX;
    while begun.elapsed() < lease * 3 {
        let left = bed.ttl(&name).await?;
        let after = begun.elapsed().as_millis();
        ensure!(left > 0, "after {after} ms the key has a PTTL of {left}");
        ensure!(left <= lease.as_millis() as i64 + 100, "its PTTL is {left} ms");
        lowest = lowest.min(left);
        let rival = rival(kind);
        other.ask(&format!("try {rival} {name} 0")).await?.no().context("the other language")?;
        sleep(Duration::from_millis(50)).await;
    }
    holding.get(&format!("unlock {kind} {name}")).await?;
    bed.gone(&name).await?;
    sleep(lease / 2).await;
    bed.gone(&name).await.context("renewed after its release")?;
    Ok(format!("held 3 leases; PTTL never below {lowest} of {} ms", lease.as_millis()))
}

/// A holder that is killed loses the lock when its lease ends, not before, and a waiter gets it.
pub async fn killed(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let waiter = holder.other();
    let result = outlived(bed, kind, holder, waiter).await;
    // Some versions of Redisson leave a fair waiter asleep when a holder that had renewed its lease
    // dies, whatever its language. The Rust library cannot change that.
    if result.is_err()
        && waiter == Language::Java
        && let Err(why) = outlived(bed, kind, waiter, waiter).await
    {
        return Err(
            RedissonDefect(format!("Java fails as well when Java is killed ({why:#})")).into()
        );
    }
    result
}

async fn outlived(
    bed: &TestBed,
    kind: &str,
    holder: Language,
    waiter: Language,
) -> anyhow::Result<String> {
    let doomed = bed.launcher.start(holder).await?;
    let mut holding = doomed.actor();
    let (mut other, rival) = (bed.actor(waiter, 0), rival(kind));
    let name = bed.name();
    holding.get(&format!("lock {kind} {name}")).await?;
    other.send(&format!("lock {rival} {name}"))?;
    other.waits(bed.launcher.watchdog * 2).await.context("the waiter, while the holder lives")?;
    doomed.kill().await?;
    let (killed, left) = (Instant::now(), bed.ttl(&name).await?);
    ensure!(left > 0, "the key of a killed holder has a PTTL of {left}");
    let won = other.reply(bed.launcher.watchdog + WAKEUP_LIMIT).await.context("the waiter")?;
    won.ok().context("the waiter")?;
    let after = killed.elapsed().as_millis() as i64;
    // The PTTL was read a moment after the kill, and both are whole milliseconds.
    ensure!(after >= left - 20, "acquired {after} ms after the kill, with {left} ms of lease left");
    other.get(&format!("unlock {rival} {name}")).await?;
    bed.gone(&name).await?;
    Ok(format!("in after {after} ms, lease had {left}"))
}

/// A row without a result, because Redisson fails it among Java processes alone.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RedissonDefect(pub String);

/// The other language force-unlocks the lock: waiters of both languages are woken, one after the
/// other, and the former holder's release has no effect.
pub async fn forced(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let mut holding = bed.actor(holder, 0);
    let mut other = bed.actor(holder.other(), 0);
    let mut waiters = [bed.actor(holder, 1), bed.actor(holder.other(), 1)];
    for _ in 0..2 {
        holding.get(&format!("lock {kind} {name} {LONG}")).await?;
    }
    for (number, waiter) in waiters.iter_mut().enumerate() {
        waiter.send(&format!("lock {kind} {name} {LONG}"))?;
        bed.subscribed(&name, number + 1).await?;
        waiter.waits(WATCH).await.context("a waiter")?;
    }
    ensure!(other.get(&format!("force {kind} {name}")).await? == "true", "nothing to free");
    let begun = Instant::now();
    let [one, two] = &mut waiters;
    let (next, last) = tokio::select! {
        reply = one.reply(WAKEUP_LIMIT) => { reply?.ok()?; (one, two) }
        reply = two.reply(WAKEUP_LIMIT) => { reply?.ok()?; (two, one) }
    };
    // Only now: while the lock is free, Redisson's fair lock reports no error here.
    holding.ask(&format!("unlock {kind} {name}")).await?.error().context("the former holder")?;
    ensure!(next.get(&format!("depth {kind} {name}")).await? == "1", "not the new holder's");
    last.waits(WATCH).await.context("the second waiter")?;
    next.get(&format!("unlock {kind} {name}")).await?;
    last.reply(WAKEUP_LIMIT).await.context("the second waiter")?.ok()?;
    last.get(&format!("unlock {kind} {name}")).await?;
    let took = begun.elapsed().saturating_sub(WATCH).as_millis();
    bed.gone(&name).await?;
    ensure!(other.get(&format!("force {kind} {name}")).await? == "false", "freed what is free");
    Ok(format!("two waiters in {took} ms of {LONG}"))
}

/// Three waiters of each language wait for one holder; each acquires, none by the end of a lease.
pub async fn many_waiters(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let mut holding = bed.actor(holder, 0);
    holding.get(&format!("lock {kind} {name} {LONG}")).await?;
    let mut waiters = Vec::new();
    for number in 0..6 {
        let language = if number % 2 == 0 { holder } else { holder.other() };
        let waiter = bed.actor(language, number / 2);
        waiter.send(&format!("lock {kind} {name} {LONG}"))?;
        waiter.send(&format!("unlock {kind} {name}"))?;
        waiters.push(waiter);
    }
    for waiter in &mut waiters {
        waiter.waits(WATCH).await.context("a waiter")?;
    }
    let begun = Instant::now();
    holding.get(&format!("unlock {kind} {name}")).await?;
    let mut stuck = Vec::new();
    for (number, waiter) in waiters.iter_mut().enumerate() {
        let left = WAKEUP_LIMIT.saturating_sub(begun.elapsed());
        let language = if number % 2 == 0 { holder } else { holder.other() };
        match waiter.reply(left).await {
            Ok(reply) => {
                reply.ok()?;
                waiter.reply(WAKEUP_LIMIT).await?.ok()?;
            }
            Err(why) => stuck.push((language, format!("waiter {number} ({language:?}): {why:#}"))),
        }
    }
    if stuck.is_empty() {
        bed.gone(&name).await?;
        return Ok(format!("six waiters in {} ms", begun.elapsed().as_millis()));
    }
    let (holders, left) = (bed.fields(&name).await?, bed.ttl(&name).await?);
    let only_java = stuck.iter().all(|(language, _)| *language == Language::Java);
    let errors: Vec<String> = stuck.into_iter().map(|(_, error)| error).collect();
    let text = format!("{}; held by {holders:?} for {left} ms", errors.join("; "));
    // A writer's release wakes those of Redisson's threads that sleep at that moment. One that has
    // just found the lock held, and is about to sleep, sleeps until the lease it saw ends. About one
    // in 150 times, this happens among Java processes alone.
    if kind == "write" && only_java && holders.is_empty() {
        return Err(
            RedissonDefect(format!("Redisson lost a wake-up, as it does alone ({text})")).into()
        );
    }
    Err(anyhow::anyhow!("not woken: {text}"))
}

/// Two processes of each language increment one counter by reading and writing it.
pub async fn counter(bed: &TestBed, kind: &str, _: Language) -> anyhow::Result<String> {
    let (name, counter) = (bed.name(), format!("{}:counter", bed.name()));
    let figures = increments(bed, kind, &name, &counter).await?;
    bed.gone(&name).await?;
    Ok(figures)
}

/// As [`counter`], for any lock or semaphore of that name.
pub async fn increments(
    bed: &TestBed,
    kind: &str,
    name: &str,
    counter: &str,
) -> anyhow::Result<String> {
    let mut actors = Vec::new();
    for (language, process) in
        [(Language::Java, 0), (Language::Rust, 0), (Language::Java, 1), (Language::Rust, 1)]
    {
        actors.push(bed.actor(language, process));
    }
    let begun = Instant::now();
    for actor in &actors {
        actor.send(&format!("count {kind} {name} {counter} {INCREMENTS}"))?;
    }
    for actor in &mut actors {
        actor.reply(Duration::from_secs(120)).await?.ok()?;
    }
    let took = begun.elapsed().as_secs_f64();
    let (wanted, found): (u64, u64) = (INCREMENTS * 4, bed.redis.clone().get(counter).await?);
    ensure!(found == wanted, "{wanted} increments, but the counter says {found}");
    Ok(format!("{found} of {wanted}, {:.0}/s", wanted as f64 / took))
}

/// `<uuid>:<number>`, and for a write lock `:write` behind it.
fn is_owner(field: &str, kind: &str) -> bool {
    let field = if kind == "write" { field.strip_suffix(":write") } else { Some(field) };
    let Some((client, id)) = field.and_then(|field| field.split_once(':')) else { return false };
    let groups: Vec<&str> = client.split('-').collect();
    let hex = |text: &&str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(hex)
        && id.parse::<i64>().is_ok_and(|id| id >= 0)
}
