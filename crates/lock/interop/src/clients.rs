//! Scenarios about the client itself: the rights that its Redis user needs, a loss that it hears of,
//! and locks over several names. As in `scenarios`, each function is one row of the table.

use std::time::Duration;

use anyhow::{Context, ensure};

use crate::scenarios::{LONG, WAKEUP_LIMIT, WATCH, hand_over, millis, rival};
use crate::test_bed::{Language, Launcher, TestBed};

/// The README of the lock crate, which states the rights.
const README: &str = include_str!("../../README.md");

/// A Rust client whose Redis user has the rights that the lock's README lists, and no others, takes
/// turns with Java.
pub async fn few_rights(bed: &TestBed, kind: &str, _: Language) -> anyhow::Result<String> {
    let rights = README.lines().find_map(|line| line.strip_prefix("ACL SETUSER app on >secret "));
    let rights = rights.context("the README states no rights")?;
    let mut redis = bed.redis.clone();
    let mut acl = redis::cmd("ACL");
    acl.arg(&["SETUSER", "app", "reset", "on", ">secret"]);
    acl.arg(rights.split_whitespace().collect::<Vec<_>>());
    acl.exec_async(&mut redis).await?;
    let url = bed.launcher.url.replacen("redis://", "redis://app:secret@", 1);
    let limited = Launcher { url, ..bed.launcher.clone() }.start(Language::Rust).await?;

    let (name, rival) = (bed.name(), rival(kind));
    let (mut rust, mut java) = (limited.actor(), bed.actor(Language::Java, 0));
    let is_semaphore = matches!(kind, "semaphore" | "leased");
    if is_semaphore {
        rust.get(&format!("permits {kind} {name} 1")).await?;
    }
    let mut slowest = 0;
    for _ in 0..2 {
        rust.get(&format!("lock {kind} {name} {LONG}")).await?;
        java.send(&format!("lock {rival} {name} {LONG}"))?;
        java.waits(WATCH).await.context("Java")?;
        let took = hand_over(&mut rust, &format!("unlock {kind} {name}"), &mut java).await;
        slowest = slowest.max(took.context("Java")?);

        rust.send(&format!("lock {kind} {name} {LONG}"))?;
        rust.waits(WATCH).await.context("Rust")?;
        let took = hand_over(&mut java, &format!("unlock {rival} {name}"), &mut rust).await;
        slowest = slowest.max(took.context("Rust")?);
        rust.get(&format!("unlock {kind} {name}")).await?;
    }
    if !is_semaphore {
        rust.get(&format!("lock {kind} {name}")).await.context("with a watchdog")?;
        tokio::time::sleep(bed.launcher.watchdog + WATCH).await;
        java.ask(&format!("try {rival} {name} 0")).await?.no().context("the renewal")?;
        ensure!(rust.get(&format!("force {kind} {name}")).await? == "true", "by force");
        bed.gone(&name).await?;
    }
    Ok(format!("four turns, woken within {:.1} ms", millis(slowest)))
}

/// Java force-unlocks what Rust holds: Rust learns of the loss at once, by a message of its server's.
pub async fn loss_heard(bed: &TestBed, kind: &str, _: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let (mut rust, mut java) = (bed.actor(Language::Rust, 0), bed.actor(Language::Java, 0));
    // Java loads what it needs for that.
    java.get(&format!("force {kind} {name}")).await?;
    // Not renewed, so that nothing but the message tells of the loss before the lease's end.
    let (lease, limit) = (Duration::from_secs(6), Duration::from_secs(1));
    rust.get(&format!("lock {kind} {name} {}", lease.as_millis())).await?;
    rust.send(&format!("lost {kind} {name}"))?;
    // Holds of over a second are tracked.
    rust.waits(Duration::from_secs(2)).await.context("while it is held")?;
    let forced = java.ask(&format!("force {kind} {name}")).await?;
    ensure!(forced.ok()? == "true", "nothing to free");
    let lost = rust.reply(WAKEUP_LIMIT).await.context("the holder")?;
    let reason = lost.ok()?;
    let took = Duration::from_micros(lost.ended.saturating_sub(forced.begun));
    ensure!(took <= limit, "heard after {} ms", took.as_millis());
    rust.ask(&format!("unlock {kind} {name}")).await?.error().context("a lock that was lost")?;
    if kind == "read" {
        // Redisson leaves the keys of the holds to their leases.
        tokio::time::sleep(lease).await;
    }
    bed.gone(&name).await?;
    Ok(format!("after {} ms: {reason}", took.as_millis()))
}

/// A lock over two names is held by all or none: against its like in the other language, and against
/// a reentrant lock of one of the names.
pub async fn all_or_none(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let (mut holding, mut other) = (bed.actor(holder, 0), bed.actor(holder.other(), 0));
    let mut waiter = bed.actor(holder.other(), 1);
    holding.get(&format!("lock {kind} {name} {LONG}")).await?;
    for part in ["a", "b"] {
        let part = format!("try reentrant {name}:{part} 0");
        other.ask(&part).await?.no().with_context(|| part.clone())?;
    }
    other.ask(&format!("try {kind} {name} 0")).await?.no().context("both of them")?;
    waiter.send(&format!("lock {kind} {name} {LONG}"))?;
    waiter.waits(WATCH).await.context("the waiter")?;
    let took = hand_over(&mut holding, &format!("unlock {kind} {name}"), &mut waiter).await?;
    waiter.get(&format!("unlock {kind} {name}")).await?;
    bed.gone(&name).await?;

    other.get(&format!("lock reentrant {name}:b {LONG}")).await?;
    holding.ask(&format!("try {kind} {name} 0")).await?.no().context("the second is held")?;
    ensure!(
        other.get(&format!("locked reentrant {name}:a")).await? == "false",
        "it kept the first"
    );
    other.get(&format!("unlock reentrant {name}:b")).await?;
    bed.gone(&name).await?;
    Ok(format!("woken in {:.1} ms", millis(took)))
}
