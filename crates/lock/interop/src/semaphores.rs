//! Scenarios for both kinds of semaphore, across the two languages. As in `scenarios`, each function is
//! one row.

use std::time::Duration;

use anyhow::{Context, ensure};
use redis::AsyncCommands;

use crate::client_process::{WAKEUP_LIMIT, WATCHDOG};
use crate::scenarios::{LOCK, LONG, hand_over, unless_java_fails_alone};
use crate::test_bed::Scene;

/// Both languages count permits alike, and a released permit wakes a waiter of the other language.
pub async fn permits(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut took = Vec::new();
    for _ in 0..10 {
        let scene = scene.anew();
        let (mut holder, mut other) = (scene.holder(), scene.other());
        let mut waiter = scene.actor(scene.waiter, 1);
        holder.get("permits 2").await?;
        other.refused("permits 9").await.context("set twice")?;
        holder.get("lock").await?;
        other.shows("available", 1).await?;
        other.get("lock").await?;
        for actor in [&mut holder, &mut other] {
            actor.shows("available", 0).await?;
            actor.refused("try 0").await.context("a third permit")?;
        }
        waiter.begins("lock").await?;
        took.push(hand_over(&scene, &mut holder, "unlock", &mut waiter).await?);
        for actor in [&mut waiter, &mut other] {
            actor.get("unlock").await?;
        }
        holder.shows("available", 2).await?;
    }
    took.sort_unstable();
    Ok(format!("woken in {:.1?}", took[took.len() / 2]))
}

/// Two permits in one acquire: both or none, and a waiter for two is woken by the release of two.
pub async fn several(scene: &Scene<'_>) -> anyhow::Result<String> {
    // Some versions of Redisson wait for as many messages as leased permits; a release of several is one.
    unless_java_fails_alone(scene, scene.waiter, two_at_once).await
}

async fn two_at_once(scene: &Scene<'_>) -> anyhow::Result<String> {
    let (mut holder, mut other) = (scene.holder(), scene.other());
    let (mut waiter, lock) = (scene.actor(scene.waiter, 1), format!("lock {LONG} 2"));
    holder.get("permits 3").await?;
    holder.get(&lock).await?;
    other.shows("available", 1).await?;
    waiter
        .begins(&lock)
        .await
        .context("for two permits, with one free")?;
    other
        .shows("available", 1)
        .await
        .context("one of two was taken")?;
    let took = hand_over(scene, &mut holder, "unlock 2", &mut waiter).await?;
    holder.shows("available", 1).await?;
    waiter.get("unlock 2").await?;
    other.shows("available", 3).await?;
    Ok(format!("woken in {took:.1?}"))
}

/// Permits are added to a semaphore only if it exists, and wake a waiter.
pub async fn added_if_exists(scene: &Scene<'_>) -> anyhow::Result<String> {
    let (mut adder, mut waiter) = (scene.holder(), scene.other());
    adder
        .refused("add-if-exists 2")
        .await
        .context("there is none")?;
    ensure!(scene.ttl().await? == -2, "it created the semaphore");
    waiter.get("permits 0").await?;
    waiter.begins("lock").await?;
    let took = hand_over(scene, &mut adder, "add-if-exists 2", &mut waiter).await?;
    adder.shows("available", 1).await?;
    waiter.get("unlock").await?;
    Ok(format!("woken in {took:.1?}"))
}

/// The permit of a holder that is killed is free when its lease ends, not before, also for a waiter of
/// the other language, which no message wakes.
pub async fn killed(scene: &Scene<'_>) -> anyhow::Result<String> {
    let (lease, doomed) = (WATCHDOG, scene.bed.launcher.start(scene.holder).await?);
    let (mut holder, mut waiter) = (scene.on(&doomed), scene.other());
    holder.get("permits 1").await?;
    let held = holder.get(&format!("lock {}", lease.as_millis())).await?;
    doomed.kill().await?;
    waiter.send(LOCK).await?;
    let won = waiter.reply(lease + WAKEUP_LIMIT).await?.ok()?;
    let (after, lease) = (
        won.ended.saturating_sub(held.begun).as_millis(),
        lease.as_millis(),
    );
    ensure!(
        after + 20 >= lease,
        "acquired after {after} ms, within the lease"
    );
    waiter.get("unlock").await?;
    waiter.shows("available", 1).await?;
    Ok(format!("in after {after} ms, lease {lease}"))
}

/// A permit whose lease is extended stays acquired, as the other language observes.
pub async fn extended(scene: &Scene<'_>) -> anyhow::Result<String> {
    let (mut holder, mut other) = (scene.holder(), scene.other());
    let lease = WATCHDOG;
    holder.get("permits 1").await?;
    holder.get(&format!("lock {}", lease.as_millis())).await?;
    holder.get(&format!("extend {LONG}")).await?;
    tokio::time::sleep(lease + Duration::from_millis(300)).await;
    other.refused("try 0").await.context("it was extended")?;
    let acquired: usize = scene
        .redis()
        .zcard(format!("{{{}}}:timeout", scene.name))
        .await?;
    ensure!(acquired == 1, "{acquired} permits are recorded");
    holder.get("unlock").await?;
    other.get("try 0").await.context("it was released")?;
    other.get("unlock").await?;
    Ok(format!(
        "kept beyond its first lease of {} ms",
        lease.as_millis()
    ))
}
