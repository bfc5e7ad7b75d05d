//! Scenarios for single kinds of lock, across the two languages: queue order, shared reading,
//! downgrade, fencing tokens, permits. As in `scenarios`, each function is one row of the table.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::AsyncCommands;

use crate::client_process::Actor;
use crate::scenarios::{self, LONG, WAKEUP_LIMIT, WATCH};
use crate::test_bed::{Language, TestBed};

/// Waiters of both languages acquire in the order of their arrival, and are not overtaken.
pub async fn order(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let mut holding = bed.actor(holder, 0);
    holding.get(&format!("lock {kind} {name} {LONG}")).await?;
    let mut waiters = Vec::new();
    for number in 0..6 {
        let language = if number % 2 == 0 { holder.other() } else { holder };
        let waiter = bed.actor(language, number / 2);
        waiter.send(&format!("lock {kind} {name} {LONG}"))?;
        waiter.send(&format!("unlock {kind} {name}"))?;
        queued(bed, &name, number + 1).await?;
        waiters.push(waiter);
    }
    for language in [Language::Java, Language::Rust] {
        let try_it = format!("try {kind} {name} 0");
        bed.actor(language, 0).ask(&try_it).await?.no().context("an attempt without queueing")?;
    }
    let released = holding.ask(&format!("unlock {kind} {name}")).await?;
    released.ok()?;
    let mut last = released.begun;
    for (number, waiter) in waiters.iter_mut().enumerate() {
        let won = waiter.reply(WAKEUP_LIMIT).await.with_context(|| format!("waiter {number}"))?;
        won.ok()?;
        ensure!(won.ended >= last, "waiter {number} acquired before the one in front of it");
        let left = waiter.reply(WAKEUP_LIMIT).await?;
        left.ok()?;
        // It held the lock until after its release began, so the next acquires later than that.
        last = left.begun;
    }
    bed.gone(&name).await?;
    Ok(format!("six in order within {} ms", (last - released.begun) / 1000))
}

/// A Rust waiter that is killed in the queue is removed within a lease.
pub async fn dead_waiter(bed: &TestBed, kind: &str) -> anyhow::Result<String> {
    let name = bed.name();
    let lock = format!("lock {kind} {name} {LONG}");
    let mut holding = bed.actor(Language::Java, 0);
    holding.get(&lock).await?;
    let doomed = bed.launcher.start(Language::Rust).await?;
    let dead = doomed.actor();
    let (mut second, mut third) = (bed.actor(Language::Rust, 0), bed.actor(Language::Java, 1));
    for (number, waiter) in [&dead, &second, &third].into_iter().enumerate() {
        waiter.send(&lock)?;
        queued(bed, &name, number + 1).await?;
    }
    doomed.kill().await?;
    let begun = Instant::now();
    holding.get(&format!("unlock {kind} {name}")).await?;
    second.reply(bed.launcher.watchdog + WAKEUP_LIMIT).await.context("the one behind it")?.ok()?;
    let took = begun.elapsed().as_millis();
    third.waits(WATCH).await.context("the last one")?;
    second.get(&format!("unlock {kind} {name}")).await?;
    third.reply(WAKEUP_LIMIT).await.context("the last one")?.ok()?;
    third.get(&format!("unlock {kind} {name}")).await?;
    bed.gone(&name).await?;
    Ok(format!("removed in {took} ms, lease {} ms", bed.launcher.watchdog.as_millis()))
}

/// Readers of both languages hold the lock together; a writer waits for the last of them.
pub async fn readers_share(bed: &TestBed, _: &str, writer: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let mut readers = [bed.actor(Language::Java, 0), bed.actor(Language::Rust, 0)];
    for reader in &mut readers {
        reader.get(&format!("lock read {name} {LONG}")).await.context("a reader")?;
    }
    let mode = bed.fields(&name).await?.remove("mode");
    ensure!(mode.as_deref() == Some("read"), "the mode is {mode:?}");
    let mut waiter = bed.actor(writer, 1);
    waiter.send(&format!("lock write {name} {LONG}"))?;
    bed.subscribed(&name, 1).await?;
    waiter.waits(WATCH).await.context("the writer, with two readers")?;
    let [first, last] = &mut readers;
    first.get(&format!("unlock read {name}")).await?;
    waiter.waits(WATCH).await.context("the writer, with one reader")?;
    let released = last.ask(&format!("unlock read {name}")).await?;
    released.ok()?;
    let won = waiter.reply(WAKEUP_LIMIT).await.context("the writer was not woken")?;
    won.ok()?;
    for reader in &mut readers {
        reader
            .ask(&format!("try read {name} 0"))
            .await?
            .no()
            .context("a reader beside a writer")?;
    }
    waiter.get(&format!("unlock write {name}")).await?;
    bed.gone(&name).await?;
    Ok(woke_after(released.begun, won.ended))
}

/// A writer's release wakes all waiting readers of both languages.
pub async fn readers_woken(bed: &TestBed, _: &str, writer: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let mut holding = bed.actor(writer, 0);
    holding.get(&format!("lock write {name} {LONG}")).await?;
    let mut readers: Vec<Actor> = [Language::Java, Language::Rust, Language::Java, Language::Rust]
        .into_iter()
        .enumerate()
        .map(|(number, language)| bed.actor(language, number / 2))
        .collect();
    for reader in &readers {
        reader.send(&format!("lock read {name} {LONG}"))?;
    }
    for reader in &mut readers {
        reader.waits(WATCH).await.context("a reader")?;
    }
    let released = holding.ask(&format!("unlock write {name}")).await?;
    released.ok()?;
    let mut last = 0;
    // All hold the lock at once: none releases before the others have acquired.
    for reader in &mut readers {
        let won = reader.reply(WAKEUP_LIMIT).await.context("a reader was not woken")?;
        won.ok()?;
        last = last.max(won.ended);
    }
    for reader in &mut readers {
        reader.get(&format!("unlock read {name}")).await?;
    }
    bed.gone(&name).await?;
    Ok(woke_after(released.begun, last))
}

/// A writer that acquires the read lock and releases the write lock goes on reading, as the other
/// language observes.
pub async fn downgrade(bed: &TestBed, _: &str, holder: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let (mut holding, mut other) = (bed.actor(holder, 0), bed.actor(holder.other(), 0));
    holding.get(&format!("lock write {name} {LONG}")).await?;
    holding.get(&format!("lock read {name} {LONG}")).await?;
    other.ask(&format!("try read {name} 0")).await?.no().context("a reader beside a writer")?;
    holding.get(&format!("unlock write {name}")).await?;
    let mut writer = bed.actor(holder.other(), 1);
    writer.ask(&format!("try write {name} 0")).await?.no().context("a writer beside a reader")?;
    other.ask(&format!("try read {name} 0")).await?.ok().context("a second reader")?;
    other.get(&format!("unlock read {name}")).await?;
    writer.ask(&format!("try write {name} 0")).await?.no().context("a writer beside a reader")?;
    holding.get(&format!("unlock read {name}")).await?;
    writer.ask(&format!("try write {name} 0")).await?.ok().context("a writer at last")?;
    writer.get(&format!("unlock write {name}")).await?;
    bed.gone(&name).await?;
    Ok("read on".to_owned())
}

/// Each acquire, in either language, has a higher fencing token than all before.
pub async fn fences(bed: &TestBed, kind: &str) -> anyhow::Result<String> {
    let name = bed.name();
    let mut last = 0;
    for number in 0..10 {
        let language = if number % 2 == 0 { Language::Java } else { Language::Rust };
        let mut actor = bed.actor(language, number / 2);
        actor.get(&format!("lock {kind} {name} {LONG}")).await?;
        let fence: u64 = actor.get(&format!("fence {kind} {name}")).await?.parse()?;
        ensure!(fence > last, "{language:?}'s token is {fence} after {last}");
        let counter: u64 = bed.redis.clone().get(format!("redisson_lock_token:{{{name}}}")).await?;
        ensure!(fence == counter, "{language:?}'s token is {fence}, the counter says {counter}");
        last = fence;
        actor.get(&format!("unlock {kind} {name}")).await?;
    }
    bed.gone(&name).await?;
    Ok(format!("ten in turn, up to {last}"))
}

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
        let released = holding.ask(&format!("unlock {kind} {name}")).await?;
        released.ok()?;
        let won = waiter.reply(WAKEUP_LIMIT).await.context("not woken by the release")?;
        won.ok()?;
        took.push(won.ended.saturating_sub(released.begun));
        for actor in [&mut waiter, &mut other] {
            actor.get(&format!("unlock {kind} {name}")).await?;
        }
        ensure!(
            holding.get(&format!("available {kind} {name}")).await? == "2",
            "not all permits are free"
        );
    }
    took.sort_unstable();
    Ok(format!("woken in {:.1} ms", took[took.len() / 2] as f64 / 1000.0))
}

/// A semaphore with one permit excludes like a lock.
pub async fn one_permit(bed: &TestBed, kind: &str) -> anyhow::Result<String> {
    let (name, counter) = (bed.name(), format!("{}:counter", bed.name()));
    bed.actor(Language::Java, 0).get(&format!("permits {kind} {name} 1")).await?;
    scenarios::increments(bed, kind, &name, &counter).await
}

/// Waits until a fair lock's queue has so many waiters.
async fn queued(bed: &TestBed, name: &str, waiters: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let length: usize =
            bed.redis.clone().llen(format!("redisson_lock_queue:{{{name}}}")).await?;
        if length == waiters {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{length} of {waiters} are queued");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn woke_after(begun: u64, ended: u64) -> String {
    format!("{:.1} ms of {LONG}", ended.saturating_sub(begun) as f64 / 1000.0)
}
