//! Scenarios for the queue of fair locks, across the two languages. As in `scenarios`, each function is
//! one row of the table.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::AsyncCommands;

use crate::client_process::Actor;
use crate::scenarios::{LONG, RedissonDefect, WAKEUP_LIMIT, WATCH, hand_over, millis};
use crate::test_bed::{Language, Launcher, TestBed};

/// What Java's names are mapped with.
const PREFIX: &str = "mapped:";

/// The lease of holders that die, in ms, and within how long eight of them follow each other.
const SHORT: (u64, Duration) = (1000, Duration::from_secs(11));

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
    let took = in_order(&mut waiters, released.begun).await?;
    bed.gone(&name).await?;
    Ok(format!("six in order within {took} ms"))
}

/// A Rust waiter that is killed in the queue is removed within a lease.
pub async fn dead_waiter(bed: &TestBed, kind: &str, _: Language) -> anyhow::Result<String> {
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

/// A waiter that gives up at its time limit leaves no place in the queue: the lock is free for a try
/// of either language as soon as the holder releases it, and the waiter behind it is first.
pub async fn gives_up(bed: &TestBed, kind: &str, waiter: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let (mut holding, mut impatient) = (bed.actor(waiter.other(), 0), bed.actor(waiter, 0));
    let mut behind = bed.actor(waiter.other(), 1);
    let hold = format!("lock {kind} {name} {LONG}");
    let release = format!("unlock {kind} {name}");
    let mut took = 0;
    for queue_up in [false, true] {
        holding.get(&hold).await?;
        impatient.send(&format!("try {kind} {name} 500"))?;
        queued(bed, &name, 1).await?;
        if queue_up {
            behind.send(&hold)?;
            queued(bed, &name, 2).await?;
        }
        impatient.reply(WAKEUP_LIMIT).await?.no().context("the one that gives up")?;
        if queue_up {
            took = hand_over(&mut holding, &release, &mut behind).await?;
        } else {
            holding.get(&release).await?;
            behind.get(&format!("try {kind} {name} 0")).await?;
        }
        behind.get(&release).await?;
        bed.gone(&name).await?;
    }
    Ok(format!("the one behind it in {:.1} ms", millis(took)))
}

/// Eight waiters, alternately of both languages, each of which acquires for a second and dies, follow
/// each other in order.
pub async fn dying_holders(bed: &TestBed, kind: &str, first: Language) -> anyhow::Result<String> {
    let name = bed.name();
    let (lease, limit) = SHORT;
    let mut holding = bed.actor(first.other(), 0);
    holding.get(&format!("lock {kind} {name} {LONG}")).await?;
    let mut waiters = Vec::new();
    for number in 0..8 {
        let language = if number % 2 == 0 { first } else { first.other() };
        let waiter = bed.actor(language, number / 2);
        // It never releases.
        waiter.send(&format!("lock {kind} {name} {lease}"))?;
        queued(bed, &name, number + 1).await?;
        waiters.push((language, waiter));
    }
    let released = holding.ask(&format!("unlock {kind} {name}")).await?;
    released.ok()?;
    let begun = Instant::now();
    let mut last = released.begun;
    for (number, (language, waiter)) in waiters.iter_mut().enumerate() {
        let left = limit.saturating_sub(begun.elapsed());
        let won = waiter.reply(left).await;
        let won = won.with_context(|| format!("waiter {number} ({language:?})"))?;
        won.ok()?;
        // The lease began a moment before its holder's answer.
        let after = won.ended.saturating_sub(last) / 1000;
        ensure!(
            number == 0 || after + 200 >= lease,
            "waiter {number} ({language:?}) acquired {after} ms after the one in front of it"
        );
        last = won.ended;
    }
    let took = (last - released.begun) / 1000;
    // The last of them has a lease as well.
    tokio::time::sleep(Duration::from_millis(lease + 100)).await;
    bed.gone(&name).await?;
    Ok(format!("eight in order within {took} ms, seven leases of {lease}"))
}

/// Java maps its names: its keys, those of the queue among them, are those of the mapped name, which is
/// the name that the Rust client is given.
pub async fn mapped_names(bed: &TestBed, kind: &str, holder: Language) -> anyhow::Result<String> {
    let unmapped = bed.name();
    let mapped = format!("{PREFIX}{unmapped}");
    let launcher = Launcher { prefix: Some(PREFIX.to_owned()), ..bed.launcher.clone() };
    let java = launcher.start(Language::Java).await?;
    let actor = |language| -> (Actor, &str) {
        match language {
            Language::Java => (java.actor(), &unmapped),
            Language::Rust => (bed.actor(Language::Rust, 0), &mapped),
        }
    };
    let (mut holding, name) = actor(holder);
    holding.get(&format!("lock {kind} {name} {LONG}")).await?;
    let mut waiters = Vec::new();
    for number in 0..4 {
        let (waiter, name) = actor(if number % 2 == 0 { holder.other() } else { holder });
        waiter.send(&format!("lock {kind} {name} {LONG}"))?;
        waiter.send(&format!("unlock {kind} {name}"))?;
        if let Err(error) = queued(bed, &mapped, number + 1).await {
            let elsewhere: usize = bed.redis.clone().llen(queue(&unmapped)).await?;
            if elsewhere > 0 {
                let text =
                    "this Redisson's queue has the unmapped name, so that it has another queue";
                return Err(RedissonDefect(text.to_owned()).into());
            }
            return Err(error);
        }
        waiters.push(waiter);
    }
    let released = holding.ask(&format!("unlock {kind} {name}")).await?;
    released.ok()?;
    let took = in_order(&mut waiters, released.begun).await?;
    bed.gone(&unmapped).await?;
    Ok(format!("four in order within {took} ms"))
}

/// Waiters that release at once acquire in their order; returns within how many ms after `released`, in µs.
async fn in_order(waiters: &mut [Actor], released: u64) -> anyhow::Result<u64> {
    let mut last = released;
    for (number, waiter) in waiters.iter_mut().enumerate() {
        let won = waiter.reply(WAKEUP_LIMIT).await.with_context(|| format!("waiter {number}"))?;
        won.ok()?;
        ensure!(won.ended >= last, "waiter {number} acquired before the one in front of it");
        let left = waiter.reply(WAKEUP_LIMIT).await?;
        left.ok()?;
        // It held the lock until after its release began, so the next acquires later than that.
        last = left.begun;
    }
    Ok((last - released) / 1000)
}

/// Waits until a fair lock's queue has so many waiters.
async fn queued(bed: &TestBed, name: &str, waiters: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let length: usize = bed.redis.clone().llen(queue(name)).await?;
        if length == waiters {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{length} of {waiters} are queued");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn queue(name: &str) -> String {
    format!("redisson_lock_queue:{{{name}}}")
}
