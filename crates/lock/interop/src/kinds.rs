//! Scenarios for read-write and fenced locks, across the two languages: shared reading, downgrade,
//! fencing tokens. As in `scenarios`, each function is one row of the table.

use anyhow::{Context, ensure};
use redis::AsyncCommands;

use crate::client_process::Actor;
use crate::scenarios::{LONG, WAKEUP_LIMIT, WATCH, hand_over, millis};
use crate::test_bed::{Language, TestBed};

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
    let took = hand_over(last, &format!("unlock read {name}"), &mut waiter).await?;
    for reader in &mut readers {
        let try_it = format!("try read {name} 0");
        reader.ask(&try_it).await?.no().context("a reader beside a writer")?;
    }
    waiter.get(&format!("unlock write {name}")).await?;
    bed.gone(&name).await?;
    Ok(format!("{:.1} ms of {LONG}", millis(took)))
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
    Ok(format!("{:.1} ms of {LONG}", millis(last.saturating_sub(released.begun))))
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
pub async fn fences(bed: &TestBed, kind: &str, _: Language) -> anyhow::Result<String> {
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
