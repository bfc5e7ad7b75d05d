//! Scenarios for the queue of fair locks, across the two languages. As in `scenarios`, each function is
//! one row.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::client_process::{Actor, Language, WAKEUP_LIMIT, WATCH, WATCHDOG};
use crate::scenarios::{LOCK, hand_over, unless_java_fails_alone};
use crate::test_bed::{Launcher, Scene};

/// Waiters of both languages acquire in the order of their arrival, and are not overtaken.
pub async fn order(scene: &Scene<'_>) -> anyhow::Result<String> {
    in_order(scene, scene.holder(), scene.alternately(scene.waiter, 6)).await
}

/// A Rust waiter that is killed in the queue is removed within a lease.
pub async fn dead_waiter(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut holder = scene.actor(Language::Java, 0);
    holder.get(LOCK).await?;
    let doomed = scene.bed.launcher.start(Language::Rust).await?;
    let mut second = scene.actor(Language::Rust, 0);
    let mut third = scene.actor(Language::Java, 1);
    for (number, waiter) in [&scene.actor_in(&doomed), &second, &third]
        .into_iter()
        .enumerate()
    {
        waiter.send(LOCK).await?;
        scene.queued(number + 1).await?;
    }
    doomed.kill().await?;
    let begun = Instant::now();
    holder.get("unlock").await?;
    second
        .reply(WATCHDOG + WAKEUP_LIMIT)
        .await
        .context("the one behind it")?
        .ok()?;
    let took = begun.elapsed().as_millis();
    third.waits(WATCH).await?;
    hand_over(scene, &mut second, "unlock", &mut third).await?;
    third.get("unlock").await?;
    Ok(format!(
        "removed in {took} ms, lease {} ms",
        WATCHDOG.as_millis()
    ))
}

/// A waiter that gives up at its time limit leaves no place in the queue: the lock is free for a try
/// of either language as soon as the holder releases it, and the waiter behind it is first.
pub async fn gives_up(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut impatient = scene.holder();
    let mut holder = scene.counterpart();
    let mut behind = scene.actor(scene.waiter, 1);
    let mut took = Duration::ZERO;
    for queue_up in [false, true] {
        holder.get(LOCK).await?;
        impatient.send("try 500").await?;
        scene.queued(1).await?;
        if queue_up {
            behind.send(LOCK).await?;
            scene.queued(2).await?;
        }
        impatient
            .reply(WAKEUP_LIMIT)
            .await?
            .no()
            .context("the one that gives up")?;
        if queue_up {
            took = hand_over(scene, &mut holder, "unlock", &mut behind).await?;
        } else {
            holder.get("unlock").await?;
            behind.get("try 0").await?;
        }
        behind.get("unlock").await?;
        scene.gone().await?;
    }
    Ok(format!("the one behind it in {took:.1?}"))
}

/// Eight waiters, alternately of both languages, each of which acquires for a second and dies, follow
/// each other in order.
pub async fn dying_holders(scene: &Scene<'_>) -> anyhow::Result<String> {
    // In ms.
    let lease = 1000_u64;
    // All eight have to follow each other within this.
    let limit = Duration::from_secs(11);
    let mut holder = scene.counterpart();
    holder.get(LOCK).await?;
    let mut waiters = scene.alternately(scene.holder, 8);
    for (number, waiter) in waiters.iter().enumerate() {
        // It never releases.
        waiter.send(&format!("lock {lease}")).await?;
        scene.queued(number + 1).await?;
    }
    let released = holder.get("unlock").await?;
    let begun = Instant::now();
    let mut last = released.begun;
    for (number, waiter) in waiters.iter_mut().enumerate() {
        let won = waiter.reply(limit.saturating_sub(begun.elapsed())).await;
        let won = won.with_context(|| format!("waiter {number}"))?.ok()?;
        // The lease began a moment before its holder's answer.
        let after = won.ended.saturating_sub(last).as_millis();
        ensure!(
            number == 0 || after + 200 >= u128::from(lease),
            "waiter {number} ({:?}) acquired {after} ms after the one in front of it",
            waiter.language
        );
        last = won.ended;
    }
    let took = last.saturating_sub(released.begun).as_millis();
    // The last of them has a lease as well.
    tokio::time::sleep(Duration::from_millis(lease + 100)).await;
    Ok(format!(
        "eight in order within {took} ms, seven leases of {lease}"
    ))
}

/// Java maps its names. All its keys have the mapped name, also those of the queue. The Rust client is given
/// the mapped name.
pub async fn mapped_names(scene: &Scene<'_>) -> anyhow::Result<String> {
    // Some versions leave the queue's name unmapped, so that Java has another queue.
    unless_java_fails_alone(scene, Language::Java, one_queue).await
}

async fn one_queue(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mapped = scene.named(format!("mapped:{}", scene.name));
    let launcher = Launcher {
        prefix: Some("mapped:"),
        ..scene.bed.launcher.clone()
    };
    let java = launcher.start(Language::Java).await?;
    let actor = |language| match language {
        Language::Java => scene.actor_in(&java),
        Language::Rust => mapped.actor(Language::Rust, 0),
    };
    let waiters = [scene.waiter, scene.holder, scene.waiter, scene.holder].map(actor);
    in_order(&mapped, actor(scene.holder), waiters.into()).await
}

/// `holder` acquires and releases. The waiters that came meanwhile acquire in the order of their arrival,
/// and each releases at once.
async fn in_order(
    scene: &Scene<'_>,
    mut holder: Actor,
    mut waiters: Vec<Actor>,
) -> anyhow::Result<String> {
    holder.get(LOCK).await?;
    for (number, waiter) in waiters.iter().enumerate() {
        waiter.send(LOCK).await?;
        waiter.send("unlock").await?;
        scene.queued(number + 1).await?;
    }
    for language in [Language::Java, Language::Rust] {
        scene
            .actor(language, 0)
            .refused("try 0")
            .await
            .context("an attempt without queueing")?;
    }
    let released = holder.get("unlock").await?;
    let mut last = released.begun;
    for (number, waiter) in waiters.iter_mut().enumerate() {
        let won = waiter
            .wakes()
            .await
            .with_context(|| format!("waiter {number}"))?;
        ensure!(
            won.ended >= last,
            "waiter {number} acquired before the one in front of it"
        );
        // It held the lock until after its release began, so the next acquires later than that.
        last = waiter.wakes().await?.begun;
    }
    let took = last.saturating_sub(released.begun).as_millis();
    Ok(format!("{} in order within {took} ms", waiters.len()))
}
