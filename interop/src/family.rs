//! What single members of the lock family promise beyond exclusion, across the two languages: order,
//! sharing, downgrade, rising fences. As in `scenarios`, each function is one row of the table.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::AsyncCommands;

use crate::peer::Actor;
use crate::scenarios::{self, LONG, WATCH, WOKEN};
use crate::stage::{Side, Stage};

/// Waiters of both sides are let in in the order in which they came, and nobody overtakes them.
pub async fn order(stage: &Stage, kind: &str, holder: Side) -> anyhow::Result<String> {
    let name = stage.name();
    let mut mine = stage.actor(holder, 0);
    mine.get(&format!("lock {kind} {name} {LONG}")).await?;
    let mut waiters = Vec::new();
    for number in 0..6 {
        let side = if number % 2 == 0 { holder.other() } else { holder };
        let waiter = stage.actor(side, number / 2);
        waiter.tell(&format!("lock {kind} {name} {LONG}"))?;
        waiter.tell(&format!("unlock {kind} {name}"))?;
        queued(stage, &name, number + 1).await?;
        waiters.push(waiter);
    }
    for side in [Side::Java, Side::Rust] {
        let try_it = format!("try {kind} {name} 0");
        stage.actor(side, 0).ask(&try_it).await?.no().context("one who does not queue")?;
    }
    let released = mine.ask(&format!("unlock {kind} {name}")).await?;
    released.ok()?;
    let mut last = released.begun;
    for (number, waiter) in waiters.iter_mut().enumerate() {
        let won = waiter.reply(WOKEN).await.with_context(|| format!("waiter {number}"))?;
        won.ok()?;
        ensure!(won.ended >= last, "waiter {number} was in before the one in front of it");
        let left = waiter.reply(WOKEN).await?;
        left.ok()?;
        // It was in until after it began to leave, so the next one is in later than that.
        last = left.begun;
    }
    stage.gone(&name).await?;
    Ok(format!("six in order within {} ms", (last - released.begun) / 1000))
}

/// A Rust waiter that is killed in the queue is passed over within a lease.
pub async fn dead_waiter(stage: &Stage, kind: &str) -> anyhow::Result<String> {
    let name = stage.name();
    let lock = format!("lock {kind} {name} {LONG}");
    let mut mine = stage.actor(Side::Java, 0);
    mine.get(&lock).await?;
    let doomed = stage.cast.start(Side::Rust).await?;
    let dead = doomed.actor();
    let (mut second, mut third) = (stage.actor(Side::Rust, 0), stage.actor(Side::Java, 1));
    for (number, waiter) in [&dead, &second, &third].into_iter().enumerate() {
        waiter.tell(&lock)?;
        queued(stage, &name, number + 1).await?;
    }
    doomed.kill().await?;
    let begun = Instant::now();
    mine.get(&format!("unlock {kind} {name}")).await?;
    second.reply(stage.cast.watchdog + WOKEN).await.context("the one behind it")?.ok()?;
    let took = begun.elapsed().as_millis();
    third.silent(WATCH).await.context("the last one")?;
    second.get(&format!("unlock {kind} {name}")).await?;
    third.reply(WOKEN).await.context("the last one")?.ok()?;
    third.get(&format!("unlock {kind} {name}")).await?;
    stage.gone(&name).await?;
    Ok(format!("passed over in {took} ms, lease {} ms", stage.cast.watchdog.as_millis()))
}

/// Readers of both sides read together; a writer waits for the last of them.
pub async fn readers_share(stage: &Stage, _: &str, writer: Side) -> anyhow::Result<String> {
    let name = stage.name();
    let mut readers = [stage.actor(Side::Java, 0), stage.actor(Side::Rust, 0)];
    for reader in &mut readers {
        reader.get(&format!("lock read {name} {LONG}")).await.context("a reader")?;
    }
    let mode = stage.fields(&name).await?.remove("mode");
    ensure!(mode.as_deref() == Some("read"), "the mode is {mode:?}");
    let mut waiter = stage.actor(writer, 1);
    waiter.tell(&format!("lock write {name} {LONG}"))?;
    stage.listened(&name, 1).await?;
    waiter.silent(WATCH).await.context("the writer, with two readers")?;
    let [first, last] = &mut readers;
    first.get(&format!("unlock read {name}")).await?;
    waiter.silent(WATCH).await.context("the writer, with one reader")?;
    let released = last.ask(&format!("unlock read {name}")).await?;
    released.ok()?;
    let won = waiter.reply(WOKEN).await.context("the writer was not woken")?;
    won.ok()?;
    for reader in &mut readers {
        reader
            .ask(&format!("try read {name} 0"))
            .await?
            .no()
            .context("a reader beside a writer")?;
    }
    waiter.get(&format!("unlock write {name}")).await?;
    stage.gone(&name).await?;
    Ok(woke_after(released.begun, won.ended))
}

/// A writer's release wakes the waiting readers of both sides, all of them.
pub async fn readers_woken(stage: &Stage, _: &str, writer: Side) -> anyhow::Result<String> {
    let name = stage.name();
    let mut mine = stage.actor(writer, 0);
    mine.get(&format!("lock write {name} {LONG}")).await?;
    let mut readers: Vec<Actor> = [Side::Java, Side::Rust, Side::Java, Side::Rust]
        .into_iter()
        .enumerate()
        .map(|(number, side)| stage.actor(side, number / 2))
        .collect();
    for reader in &readers {
        reader.tell(&format!("lock read {name} {LONG}"))?;
    }
    for reader in &mut readers {
        reader.silent(WATCH).await.context("a reader")?;
    }
    let released = mine.ask(&format!("unlock write {name}")).await?;
    released.ok()?;
    let mut last = 0;
    // All are in at once: none leaves before the others are in.
    for reader in &mut readers {
        let won = reader.reply(WOKEN).await.context("a reader was not woken")?;
        won.ok()?;
        last = last.max(won.ended);
    }
    for reader in &mut readers {
        reader.get(&format!("unlock read {name}")).await?;
    }
    stage.gone(&name).await?;
    Ok(woke_after(released.begun, last))
}

/// A writer that takes the reading side and gives the writing side back goes on reading, and the
/// other side sees that.
pub async fn downgrade(stage: &Stage, _: &str, holder: Side) -> anyhow::Result<String> {
    let name = stage.name();
    let (mut mine, mut other) = (stage.actor(holder, 0), stage.actor(holder.other(), 0));
    mine.get(&format!("lock write {name} {LONG}")).await?;
    mine.get(&format!("lock read {name} {LONG}")).await?;
    other.ask(&format!("try read {name} 0")).await?.no().context("a reader beside a writer")?;
    mine.get(&format!("unlock write {name}")).await?;
    let mut writer = stage.actor(holder.other(), 1);
    writer.ask(&format!("try write {name} 0")).await?.no().context("a writer beside a reader")?;
    other.ask(&format!("try read {name} 0")).await?.ok().context("a second reader")?;
    other.get(&format!("unlock read {name}")).await?;
    writer.ask(&format!("try write {name} 0")).await?.no().context("a writer beside a reader")?;
    mine.get(&format!("unlock read {name}")).await?;
    writer.ask(&format!("try write {name} 0")).await?.ok().context("a writer at last")?;
    writer.get(&format!("unlock write {name}")).await?;
    stage.gone(&name).await?;
    Ok("read on".to_owned())
}

/// Each acquire, of whichever side, has a higher fence than all before.
pub async fn fences(stage: &Stage, kind: &str) -> anyhow::Result<String> {
    let name = stage.name();
    let mut last = 0;
    for number in 0..10 {
        let side = if number % 2 == 0 { Side::Java } else { Side::Rust };
        let mut actor = stage.actor(side, number / 2);
        actor.get(&format!("lock {kind} {name} {LONG}")).await?;
        let fence: u64 = actor.get(&format!("fence {kind} {name}")).await?.parse()?;
        ensure!(fence > last, "{side:?}'s fence is {fence} after {last}");
        let counter: u64 =
            stage.redis.clone().get(format!("redisson_lock_token:{{{name}}}")).await?;
        ensure!(fence == counter, "{side:?}'s fence is {fence}, the counter says {counter}");
        last = fence;
        actor.get(&format!("unlock {kind} {name}")).await?;
    }
    stage.gone(&name).await?;
    Ok(format!("ten in turn, up to {last}"))
}

/// Permits are counted alike, and one that is given back wakes a waiter of the other side.
pub async fn permits(stage: &Stage, kind: &str, giver: Side) -> anyhow::Result<String> {
    let mut took = Vec::new();
    for _ in 0..10 {
        let name = stage.name();
        let (mut mine, mut other) = (stage.actor(giver, 0), stage.actor(giver.other(), 0));
        let mut waiter = stage.actor(giver.other(), 1);
        mine.get(&format!("permits {kind} {name} 2")).await?;
        other.ask(&format!("permits {kind} {name} 9")).await?.no().context("set twice")?;
        mine.get(&format!("lock {kind} {name}")).await?;
        ensure!(other.get(&format!("available {kind} {name}")).await? == "1", "not counted");
        other.get(&format!("lock {kind} {name}")).await?;
        for actor in [&mut mine, &mut other] {
            ensure!(actor.get(&format!("available {kind} {name}")).await? == "0", "not counted");
            actor.ask(&format!("try {kind} {name} 0")).await?.no().context("a third permit")?;
        }
        waiter.tell(&format!("lock {kind} {name}"))?;
        stage.listened(&name, 1).await?;
        waiter.silent(WATCH).await.context("the waiter")?;
        let released = mine.ask(&format!("unlock {kind} {name}")).await?;
        released.ok()?;
        let won = waiter.reply(WOKEN).await.context("not woken by the permit")?;
        won.ok()?;
        took.push(won.ended.saturating_sub(released.begun));
        for actor in [&mut waiter, &mut other] {
            actor.get(&format!("unlock {kind} {name}")).await?;
        }
        ensure!(mine.get(&format!("available {kind} {name}")).await? == "2", "not all came back");
    }
    took.sort_unstable();
    Ok(format!("woken in {:.1} ms", took[took.len() / 2] as f64 / 1000.0))
}

/// With one permit, a semaphore excludes like a lock.
pub async fn one_permit(stage: &Stage, kind: &str) -> anyhow::Result<String> {
    let (name, counter) = (stage.name(), format!("{}:counter", stage.name()));
    stage.actor(Side::Java, 0).get(&format!("permits {kind} {name} 1")).await?;
    scenarios::increments(stage, kind, &name, &counter).await
}

/// Wait until so many stand in a fair lock's queue.
async fn queued(stage: &Stage, name: &str, waiters: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let length: usize =
            stage.redis.clone().llen(format!("redisson_lock_queue:{{{name}}}")).await?;
        if length == waiters {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{length} of {waiters} stand in the queue");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn woke_after(begun: u64, ended: u64) -> String {
    format!("{:.1} ms of {LONG}", ended.saturating_sub(begun) as f64 / 1000.0)
}
