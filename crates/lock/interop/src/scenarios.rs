//! Scenarios for every exclusive lock, across the two languages. Each function is one row: it returns
//! the figures to print, or an error.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use redis::AsyncCommands;
use tokio::time::sleep;

use crate::client_process::{Actor, Language, NoResult, WAKEUP_LIMIT, WATCH, WATCHDOG};
use crate::test_bed::{Launcher, Scene};

/// A lease in ms, so long that a wake-up by its end cannot pass for one by a message.
pub const LONG: u64 = 20_000;

/// The command that locks for [`LONG`].
pub const LOCK: &str = "lock 20000";

/// Increments by each of the four processes.
const INCREMENTS: u64 = 500;

/// The README of the lock crate, which states the rights that its Redis user needs.
const README: &str = include_str!("../../README.md");

/// Runs a scenario in which `part` is the language of the process that may be at fault. If it fails with
/// Java in that part, and among Java processes alone as well, the row has no result: the defect is
/// Redisson's.
pub async fn unless_java_fails_alone(
    scene: &Scene<'_>,
    part: Language,
    scenario: impl AsyncFn(&Scene<'_>) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let result = scenario(scene).await;
    if result.is_err() && part == Language::Java {
        let alone = Scene {
            holder: Language::Java,
            waiter: Language::Java,
            ..scene.anew()
        };
        if let Err(why) = scenario(&alone).await {
            bail!(NoResult(format!("Java alone fails as well ({why:#})")));
        }
    }
    result
}

/// Once a waiter has subscribed, `holder` releases, which wakes `waiter`. Returns how long it took from the
/// release until the waiter has acquired.
pub async fn hand_over(
    scene: &Scene<'_>,
    holder: &mut Actor,
    release: &str,
    waiter: &mut Actor,
) -> anyhow::Result<Duration> {
    scene.subscribed(1).await?;
    let released = holder.get(release).await?;
    Ok(waiter.wakes().await?.ended.saturating_sub(released.begun))
}

/// The other language waits and is woken by the release, well before the lease ends.
pub async fn woken(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut took = Vec::new();
    for _ in 0..11 {
        let scene = scene.anew();
        let mut holder = scene.holder();
        let mut waiter = scene.rival(scene.waiter);
        holder.get(LOCK).await?;
        waiter.begins(LOCK).await?;
        ensure!(
            scene.ttl().await? > LONG as i64 / 2,
            "too little of the lease is left"
        );
        took.push(hand_over(&scene, &mut holder, "unlock", &mut waiter).await?);
        waiter.get("unlock").await?;
        scene.gone().await?;
    }
    // The first one loads classes and subscribes on a new connection.
    let took = &mut took[1..];
    took.sort_unstable();
    Ok(format!(
        "{:.1?} (max {:.1?}) of {LONG} ms",
        took[took.len() / 2],
        took[took.len() - 1]
    ))
}

/// Both languages and Redis show the same hold count; only the last release frees the lock.
pub async fn reentry(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut holder = scene.holder();
    let mut counterpart = scene.counterpart();
    let mut rivals = [scene.rival(scene.waiter), scene.rival(scene.holder)];
    let hold_count_in_redis = async |depth: u32| -> anyhow::Result<()> {
        let mut fields = scene.fields().await?;
        fields.remove("mode"); // read-write locks have their mode in a field of its own
        let counts: Vec<_> = fields.values().collect();
        ensure!(
            counts == [&depth.to_string()],
            "held {depth} times, but the hash is {fields:?}"
        );
        Ok(())
    };
    for depth in 1..=3 {
        holder.get(LOCK).await?;
        hold_count_in_redis(depth).await?;
    }
    for depth in [3, 2, 1] {
        holder.shows("depth", depth).await?;
        counterpart.shows("depth", 0).await?;
        counterpart.shows("locked", true).await?;
        let remaining_ms: u64 = counterpart.get("remaining").await?.answer.parse()?;
        // Redisson adds the lease to what is left when a writer or reader enters again.
        ensure!(
            (1..=LONG * 3).contains(&remaining_ms),
            "{remaining_ms} ms remain"
        );
        for rival in &mut rivals {
            rival.refused("try 0").await?;
        }
        hold_count_in_redis(depth).await?;
        holder.get("unlock").await?;
    }
    scene.gone().await?;
    counterpart.get(LOCK).await?;
    holder.fails("unlock").await?;
    counterpart.shows("depth", 1).await?;
    counterpart.get("unlock").await?;
    Ok("depth 3".to_owned())
}

/// A watchdog renews the lease until the release.
pub async fn watchdog(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut holder = scene.holder();
    let mut rival = scene.rival(scene.waiter);
    let lease = WATCHDOG;
    holder.get("lock").await?;
    let begun = Instant::now();
    while begun.elapsed() < lease * 3 {
        let pttl = scene.ttl().await?;
        let held = 1..=lease.as_millis() as i64 + 100;
        ensure!(
            held.contains(&pttl),
            "after {:.1?} its PTTL is {pttl} ms",
            begun.elapsed()
        );
        rival.refused("try 0").await?;
        sleep(Duration::from_millis(50)).await;
    }
    holder.get("unlock").await?;
    scene.gone().await?;
    // It is not renewed after its release.
    sleep(lease / 2).await;
    Ok(format!("held 3 leases of {} ms", lease.as_millis()))
}

/// A holder that is killed loses the lock when its lease ends, not before, and a waiter gets it.
pub async fn killed(scene: &Scene<'_>) -> anyhow::Result<String> {
    // Some versions of Redisson leave a fair waiter asleep when a holder that had renewed its lease
    // dies, whatever its language.
    unless_java_fails_alone(scene, scene.waiter, outlived).await
}

async fn outlived(scene: &Scene<'_>) -> anyhow::Result<String> {
    let lease = WATCHDOG;
    let doomed = scene.bed.launcher.start(scene.holder).await?;
    let mut holder = scene.actor_in(&doomed);
    let mut waiter = scene.rival(scene.waiter);
    holder.get("lock").await?;
    waiter.send("lock").await?;
    waiter
        .waits(lease * 2)
        .await
        .context("while the holder lives")?;
    doomed.kill().await?;
    let killed = Instant::now();
    let pttl = scene.ttl().await?;
    ensure!(pttl > 0, "the key of a killed holder has a PTTL of {pttl}");
    waiter.reply(lease + WAKEUP_LIMIT).await?.ok()?;
    let after = killed.elapsed().as_millis() as i64;
    // The PTTL was read a moment after the kill, and both are whole milliseconds.
    ensure!(
        after >= pttl - 20,
        "acquired {after} ms after the kill, with {pttl} ms of lease left"
    );
    waiter.get("unlock").await?;
    Ok(format!("in after {after} ms, lease had {pttl}"))
}

/// The other language force-unlocks the lock: waiters of both languages are woken, one after the
/// other, and the former holder's release has no effect.
pub async fn forced(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut holder = scene.holder();
    let mut counterpart = scene.counterpart();
    let mut waiters = [scene.actor(scene.holder, 1), scene.actor(scene.waiter, 1)];
    for _ in 0..2 {
        holder.get(LOCK).await?;
    }
    for (number, waiter) in waiters.iter_mut().enumerate() {
        waiter.begins(LOCK).await?;
        scene.subscribed(number + 1).await?;
    }
    counterpart.shows("force", true).await?;
    let begun = Instant::now();
    let [first, second] = &mut waiters;
    let (next, last) = tokio::select! {
        reply = first.wakes() => { reply?; (first, second) }
        reply = second.wakes() => { reply?; (second, first) }
    };
    // Only now: while the lock is free, Redisson's fair lock reports no error here.
    holder.fails("unlock").await?;
    next.shows("depth", 1).await?;
    last.waits(WATCH).await?;
    next.get("unlock").await?;
    last.wakes().await?;
    last.get("unlock").await?;
    let took = begun.elapsed().saturating_sub(WATCH).as_millis();
    counterpart.shows("force", false).await?;
    Ok(format!("two waiters in {took} ms of {LONG}"))
}

/// Three waiters of each language wait for one holder; each acquires, none by the end of a lease.
pub async fn many_waiters(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut holder = scene.holder();
    holder.get(LOCK).await?;
    let mut waiters = scene.alternately(scene.holder, 6);
    for waiter in &mut waiters {
        waiter.begins(LOCK).await?;
        waiter.send("unlock").await?;
    }
    let begun = Instant::now();
    holder.get("unlock").await?;
    let mut only_java = true;
    let mut stuck = Vec::new();
    for waiter in &mut waiters {
        match waiter
            .reply(WAKEUP_LIMIT.saturating_sub(begun.elapsed()))
            .await
        {
            Ok(reply) => {
                reply.ok()?;
                waiter.wakes().await?;
            }
            Err(why) => {
                only_java &= waiter.language == Language::Java;
                stuck.push(format!("{why:#}"));
            }
        }
    }
    if stuck.is_empty() {
        return Ok(format!("six waiters in {} ms", begun.elapsed().as_millis()));
    }
    let holders = scene.fields().await?;
    let pttl = scene.ttl().await?;
    let text = format!("{}; held by {holders:?} for {pttl} ms", stuck.join("; "));
    // A writer's release wakes those of Redisson's threads that sleep at that moment. One that has
    // just found the lock held, and is about to sleep, sleeps until the lease it saw ends. About one
    // in 150 times, this happens among Java processes alone.
    if scene.kind == "write" && only_java && holders.is_empty() {
        bail!(NoResult(format!(
            "Redisson lost a wake-up, as it does alone ({text})"
        )));
    }
    bail!("not woken: {text}")
}

/// Two processes of each language increment one counter by reading and writing it.
pub async fn counter(scene: &Scene<'_>) -> anyhow::Result<String> {
    let counter = format!("{}:counter", scene.name);
    let mut actors = scene.alternately(Language::Java, 4);
    let begun = Instant::now();
    for actor in &actors {
        actor.send(&format!("count {counter} {INCREMENTS}")).await?;
    }
    for actor in &mut actors {
        actor.reply(Duration::from_secs(120)).await?.ok()?;
    }
    let took = begun.elapsed().as_secs_f64();
    let wanted = INCREMENTS * 4;
    let found: u64 = scene.redis().get(counter).await?;
    ensure!(
        found == wanted,
        "{wanted} increments, but the counter says {found}"
    );
    Ok(format!(
        "{found} of {wanted}, {:.0}/s",
        wanted as f64 / took
    ))
}

/// A Rust client whose Redis user has the rights that the lock's README lists, and no others, takes
/// turns with Java.
pub async fn few_rights(scene: &Scene<'_>) -> anyhow::Result<String> {
    let rights = README
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER app on >secret "));
    let rights = rights.context("the README states no rights")?;
    let mut acl = redis::cmd("ACL");
    acl.arg(&["SETUSER", "app", "reset", "on", ">secret"]);
    acl.arg(rights.split_whitespace().collect::<Vec<_>>());
    acl.exec_async(&mut scene.redis()).await?;
    let launcher = &scene.bed.launcher;
    let url = launcher.url.replacen("redis://", "redis://app:secret@", 1);
    let limited = Launcher {
        url,
        ..launcher.clone()
    }
    .start(Language::Rust)
    .await?;

    let mut rust = scene.actor_in(&limited);
    let mut java = scene.rival(Language::Java);
    let mut slowest = Duration::ZERO;
    for _ in 0..2 {
        rust.get(LOCK).await?;
        java.begins(LOCK).await?;
        slowest = slowest.max(hand_over(scene, &mut rust, "unlock", &mut java).await?);

        rust.begins(LOCK).await?;
        slowest = slowest.max(hand_over(scene, &mut java, "unlock", &mut rust).await?);
        rust.get("unlock").await?;
    }
    rust.get("lock").await.context("with a watchdog")?;
    sleep(WATCHDOG + WATCH).await;
    java.refused("try 0").await.context("the renewal")?;
    rust.shows("force", true).await?;
    Ok(format!("four turns, woken within {slowest:.1?}"))
}

/// Java force-unlocks what Rust holds: Rust notices the loss at its next renewal.
pub async fn loss_heard(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut rust = scene.actor(Language::Rust, 0);
    let mut java = scene.actor(Language::Java, 0);
    // The first `force` loads the classes that Java needs for it.
    java.get("force").await?;
    rust.get("lock").await?;
    rust.send("lost").await?;
    rust.waits(WATCHDOG * 2).await.context("while it is held")?;
    let forced = java.get("force").await?;
    ensure!(forced.answer == "true", "nothing to free");
    let lost = rust.wakes().await?;
    let took = lost.ended.saturating_sub(forced.begun);
    rust.fails("unlock").await?;
    if scene.kind == "read" {
        // Redisson leaves the keys of the holds to their leases.
        sleep(WATCHDOG).await;
    }
    Ok(format!("after {} ms: {}", took.as_millis(), lost.answer))
}
