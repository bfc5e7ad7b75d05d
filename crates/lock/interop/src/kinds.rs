//! Scenarios for read-write, fenced and multi locks, across the two languages. As in `scenarios`, each
//! function is one row.

use std::time::Duration;

use anyhow::{Context, ensure};
use redis::AsyncCommands;
use tokio::time::sleep;

use crate::client_process::{Language, WATCH, WATCHDOG};
use crate::scenarios::{LOCK, LONG, hand_over, unless_java_fails_alone};
use crate::test_bed::{Launcher, Scene};

/// Readers of both languages hold the lock together; a writer waits for the last of them.
pub async fn readers_share(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut readers = [
        scene.actor(Language::Java, 0),
        scene.actor(Language::Rust, 0),
    ];
    for reader in &mut readers {
        reader.get(LOCK).await?;
    }
    let mode = scene.fields().await?.remove("mode");
    ensure!(mode.as_deref() == Some("read"), "the mode is {mode:?}");
    let mut writer = scene.actor(scene.holder, 1);
    writer
        .use_kind("write")
        .begins(LOCK)
        .await
        .context("with two readers")?;
    let [first, last] = &mut readers;
    first.get("unlock").await?;
    writer.waits(WATCH).await.context("with one reader")?;
    let took = hand_over(scene, last, "unlock", &mut writer).await?;
    for reader in &mut readers {
        reader.refused("try 0").await?;
    }
    writer.get("unlock").await?;
    Ok(format!("{took:.1?} of {LONG} ms"))
}

/// A writer's release wakes all waiting readers of both languages.
pub async fn readers_woken(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut writer = scene.rival(scene.holder);
    writer.get(LOCK).await?;
    let mut readers = scene.alternately(Language::Java, 4);
    for reader in &mut readers {
        reader.begins(LOCK).await?;
    }
    let released = writer.get("unlock").await?;
    let mut last = Duration::ZERO;
    // All hold the lock at once: none releases before the others have acquired.
    for reader in &mut readers {
        last = last.max(reader.wakes().await?.ended);
    }
    for reader in &mut readers {
        reader.get("unlock").await?;
    }
    Ok(format!(
        "{:.1?} of {LONG} ms",
        last.saturating_sub(released.begun)
    ))
}

/// A writer that acquires the read lock and releases the write lock goes on reading, as the other
/// language observes.
pub async fn downgrade(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut holder = scene.holder();
    let mut reader = scene.counterpart();
    let mut writer = scene.actor(scene.waiter, 1);
    writer.use_kind("write");
    holder.use_kind("write").get(LOCK).await?;
    holder.use_kind("read").get(LOCK).await?;
    reader
        .refused("try 0")
        .await
        .context("a reader beside a writer")?;
    holder.use_kind("write").get("unlock").await?;
    writer
        .refused("try 0")
        .await
        .context("a writer beside a reader")?;
    reader.get("try 0").await?;
    reader.get("unlock").await?;
    writer
        .refused("try 0")
        .await
        .context("a writer beside the first reader")?;
    holder.use_kind("read").get("unlock").await?;
    writer.get("try 0").await?;
    writer.get("unlock").await?;
    Ok("read on".to_owned())
}

/// Two versions of Redisson and Rust read together, each with its watchdog; then a writer of the second
/// version is woken by the last of them, and wakes them all.
pub async fn readers_of_two_versions(scene: &Scene<'_>) -> anyhow::Result<String> {
    let launcher = &scene.bed.launcher;
    let lease = WATCHDOG;
    let launcher = Launcher {
        redisson: launcher.second.clone(),
        ..launcher.clone()
    };
    let second = launcher.start(Language::Java).await?;
    let mut readers = [
        scene.actor(Language::Java, 0),
        scene.actor_in(&second),
        scene.actor(Language::Rust, 0),
    ];
    for reader in &mut readers {
        reader.get("lock").await?;
    }
    let mut writer = scene.actor_in(&second);
    writer.use_kind("write").send(LOCK).await?;
    for _ in 0..6 {
        writer
            .waits(lease / 2)
            .await
            .context("with three readers")?;
        let fields = scene.fields().await?;
        ensure!(
            fields.len() == 4,
            "the mode and three readers, but the hash is {fields:?}"
        );
    }
    let (last, first) = readers.split_last_mut().context("three readers")?;
    for reader in first {
        reader.get("unlock").await?;
        writer
            .waits(lease + WATCH)
            .await
            .context("while one still reads")?;
    }
    let took = hand_over(scene, last, "unlock", &mut writer).await?;
    for reader in &mut readers {
        reader.begins(LOCK).await.context("beside the writer")?;
    }
    writer.get("unlock").await?;
    for reader in &mut readers {
        reader.wakes().await?;
    }
    for reader in &mut readers {
        reader.get("unlock").await?;
    }
    Ok(format!(
        "held 3 leases together, the writer woken in {took:.1?}"
    ))
}

/// The watchdog of one reader leaves the longer lease of another reader as it is.
pub async fn own_renewal(scene: &Scene<'_>) -> anyhow::Result<String> {
    // Some versions renew the holds of all readers, to their own lease.
    unless_java_fails_alone(scene, scene.holder, longer_lease).await
}

async fn longer_lease(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut renewing = scene.holder();
    let mut longer_reader = scene.actor(scene.waiter, 1);
    let lease = WATCHDOG;
    longer_reader.get(LOCK).await?;
    let pattern = format!("*{}*:rwlock_timeout:1", scene.name);
    let keys: Vec<String> = scene.redis().keys(pattern).await?;
    let [hold] = &keys[..] else {
        anyhow::bail!("the holds are {keys:?}")
    };
    renewing.get("lock").await?;
    sleep(lease * 2).await;
    let pttl: i64 = scene.redis().pttl(hold).await?;
    for reader in [&mut renewing, &mut longer_reader] {
        reader.get("unlock").await?;
    }
    let text = format!(
        "after two leases of {} ms it has {pttl} ms of {LONG}",
        lease.as_millis()
    );
    ensure!(
        pttl >= LONG as i64 - lease.as_millis() as i64 * 5 && pttl <= LONG as i64,
        "{text}"
    );
    Ok(text)
}

/// Each acquire, in either language, has a higher fencing token than all before.
pub async fn fences(scene: &Scene<'_>) -> anyhow::Result<String> {
    let key = format!("redisson_lock_token:{{{}}}", scene.name);
    let mut last = 0;
    for mut actor in scene.alternately(Language::Java, 10) {
        actor.get(LOCK).await?;
        let fence: u64 = actor.get("fence").await?.answer.parse()?;
        let language = actor.language;
        ensure!(fence > last, "{language:?}'s token is {fence} after {last}");
        let counter: u64 = scene.redis().get(&key).await?;
        ensure!(
            fence == counter,
            "{language:?}'s token is {fence}, the counter says {counter}"
        );
        last = fence;
        actor.get("unlock").await?;
    }
    Ok(format!("ten in turn, up to {last}"))
}

/// A lock over two names holds both or none: against the same multi-lock in the other language, and against
/// a reentrant lock of one of the names.
pub async fn all_or_none(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut holder = scene.holder();
    let mut counterpart = scene.counterpart();
    let mut waiter = scene.actor(scene.waiter, 1);
    let [mut first, mut second] = ["a", "b"].map(|part| {
        let name = format!("{}:{part}", scene.name);
        Scene {
            kind: "reentrant",
            ..scene.named(name)
        }
        .counterpart()
    });
    holder.get(LOCK).await?;
    first.refused("try 0").await.context("the first of two")?;
    second.refused("try 0").await.context("the second of two")?;
    counterpart.refused("try 0").await.context("both of them")?;
    waiter.begins(LOCK).await?;
    let took = hand_over(scene, &mut holder, "unlock", &mut waiter).await?;
    waiter.get("unlock").await?;
    scene.gone().await?;

    second.get(LOCK).await?;
    holder
        .refused("try 0")
        .await
        .context("the second is held")?;
    first
        .shows("locked", false)
        .await
        .context("it kept the first")?;
    second.get("unlock").await?;
    Ok(format!("woken in {took:.1?}"))
}
