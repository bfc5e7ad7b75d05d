//! Scenarios for both kinds of semaphore, across the two languages. As in `scenarios`, each function is
//! one row of the table.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::AsyncCommands;

use crate::scenarios::{self, LONG, RedissonDefect, WAKEUP_LIMIT, WATCH, hand_over, millis};
use crate::test_bed::{Language, TestBed};

/// Both languages count permits alike, and a released permit wakes a waiter of the other language.
pub async fn permits(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let mut took = Vec::new();
    for _ in 0..10 {
        let name = bed.name();
        let (mut holding, mut other) = (bed.actor(holder, 0), bed.actor(holder.other(), 0));
        let mut waiter = bed.actor(holder.other(), 1);
        holding.get(&format!("permits {kind} {name} 2")).await?;
        other.ask(&format!("permits {kind} {name} 9")).await?.no().context("set twice")?;
        holding.get(&format!("lock {kind} {name}")).await?;
        ensure!(other.get(&format!("available {kind} {name}")).await? == "1", "not counted");
        other.get(&format!("lock {kind} {name}")).await?;
        for actor in [&mut holding, &mut other] {
            ensure!(actor.get(&format!("available {kind} {name}")).await? == "0", "not counted");
            actor.ask(&format!("try {kind} {name} 0")).await?.no().context("a third permit")?;
        }
        waiter.send(&format!("lock {kind} {name}"))?;
        bed.subscribed(&name, 1).await?;
        waiter.waits(WATCH).await.context("the waiter")?;
        took.push(hand_over(&mut holding, &format!("unlock {kind} {name}"), &mut waiter).await?);
        for actor in [&mut waiter, &mut other] {
            actor.get(&format!("unlock {kind} {name}")).await?;
        }
        ensure!(
            holding.get(&format!("available {kind} {name}")).await? == "2",
            "not all permits are free"
        );
    }
    took.sort_unstable();
    Ok(format!("woken in {:.1} ms", millis(took[took.len() / 2])))
}

/// A semaphore with one permit excludes like a lock.
pub async fn one_permit(bed: &TestBed, kind: &str, _: Language) -> anyhow::Result<String> {
    let (name, counter) = (bed.name(), format!("{}:counter", bed.name()));
    bed.actor(Language::Java, 0).get(&format!("permits {kind} {name} 1")).await?;
    scenarios::increments(bed, kind, &name, &counter).await
}

/// Two permits in one acquire: both or none, and a waiter for two is woken by the release of two.
pub async fn several(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let waiter = holder.other();
    let result = two_at_once(bed, kind, holder, waiter).await;
    // Some versions of Redisson wait for as many messages as permits; a release of several is one.
    if result.is_err()
        && (kind, waiter) == ("leased", Language::Java)
        && let Err(why) = two_at_once(bed, kind, waiter, waiter).await
    {
        let text = format!("Java fails as well when Java releases ({why:#})");
        return Err(RedissonDefect(text).into());
    }
    result
}

async fn two_at_once(
    bed: &TestBed,
    kind: &str,
    holder: Language,
    waiter: Language,
) -> anyhow::Result<String> {
    let name = bed.name();
    let (mut holding, mut other) = (bed.actor(holder, 0), bed.actor(waiter, 0));
    let mut waiting = bed.actor(waiter, 1);
    holding.get(&format!("permits {kind} {name} 3")).await?;
    holding.get(&format!("lock {kind} {name} {LONG} 2")).await?;
    ensure!(other.get(&format!("available {kind} {name}")).await? == "1", "not counted");
    waiting.send(&format!("lock {kind} {name} {LONG} 2"))?;
    bed.subscribed(&name, 1).await?;
    waiting.waits(WATCH).await.context("a waiter for two permits, with one free")?;
    ensure!(other.get(&format!("available {kind} {name}")).await? == "1", "one of two was taken");
    let took = hand_over(&mut holding, &format!("unlock {kind} {name} 2"), &mut waiting).await?;
    ensure!(holding.get(&format!("available {kind} {name}")).await? == "1", "not counted");
    waiting.get(&format!("unlock {kind} {name} 2")).await?;
    ensure!(other.get(&format!("available {kind} {name}")).await? == "3", "not all are free");
    Ok(format!("woken in {:.1} ms", millis(took)))
}

/// Permits are added to a semaphore only if it exists, and wake a waiter.
pub async fn added_if_exists(bed: &TestBed, kind: &str, adder: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let (mut adding, mut other) = (bed.actor(adder, 0), bed.actor(adder.other(), 0));
    adding.ask(&format!("add-if-exists {kind} {name} 2")).await?.no().context("there is none")?;
    ensure!(bed.ttl(&name).await? == -2, "it created the semaphore");
    other.get(&format!("permits {kind} {name} 0")).await?;
    other.send(&format!("lock {kind} {name}"))?;
    bed.subscribed(&name, 1).await?;
    other.waits(WATCH).await.context("the waiter")?;
    let add = format!("add-if-exists {kind} {name} 2");
    let took = hand_over(&mut adding, &add, &mut other).await?;
    ensure!(adding.get(&format!("available {kind} {name}")).await? == "1", "not counted");
    other.get(&format!("unlock {kind} {name}")).await?;
    Ok(format!("woken in {:.1} ms", millis(took)))
}

/// The permit of a holder that is killed is free when its lease ends, not before, also for a waiter of
/// the other language, which no message wakes.
pub async fn killed(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let doomed = bed.launcher.start(holder).await?;
    let (mut holding, mut other) = (doomed.actor(), bed.actor(holder.other(), 0));
    let lease = bed.launcher.watchdog.as_millis();
    holding.get(&format!("permits {kind} {name} 1")).await?;
    let held = holding.ask(&format!("lock {kind} {name} {lease}")).await?;
    held.ok()?;
    doomed.kill().await?;
    other.send(&format!("lock {kind} {name} {LONG}"))?;
    let won = other.reply(bed.launcher.watchdog + WAKEUP_LIMIT).await.context("the waiter")?;
    won.ok()?;
    let after = u128::from(won.ended.saturating_sub(held.begun) / 1000);
    ensure!(after + 20 >= lease, "acquired after {after} ms, within the lease");
    other.get(&format!("unlock {kind} {name}")).await?;
    ensure!(other.get(&format!("available {kind} {name}")).await? == "1", "not all are free");
    Ok(format!("in after {after} ms, lease {lease}"))
}

/// A permit whose lease is extended stays acquired, as the other language observes.
pub async fn extended(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let (mut holding, mut other) = (bed.actor(holder, 0), bed.actor(holder.other(), 0));
    let lease = bed.launcher.watchdog;
    holding.get(&format!("permits {kind} {name} 1")).await?;
    holding.get(&format!("lock {kind} {name} {}", lease.as_millis())).await?;
    holding.get(&format!("extend {kind} {name} {LONG}")).await?;
    let begun = Instant::now();
    tokio::time::sleep(lease + Duration::from_millis(300)).await;
    other.ask(&format!("try {kind} {name} 0")).await?.no().context("it was extended")?;
    let kept = begun.elapsed().as_millis();
    let acquired: usize = bed.redis.clone().zcard(format!("{{{name}}}:timeout")).await?;
    ensure!(acquired == 1, "{acquired} permits are recorded");
    holding.get(&format!("unlock {kind} {name}")).await?;
    other.ask(&format!("try {kind} {name} 0")).await?.ok().context("it was released")?;
    other.get(&format!("unlock {kind} {name}")).await?;
    Ok(format!("kept for {kept} ms, first lease {}", lease.as_millis()))
}
