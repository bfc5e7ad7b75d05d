//! Scenarios for readers of several clients, of two versions of Redisson among them. As in `scenarios`,
//! each function is one row of the table.

use anyhow::{Context, ensure};
use tokio::time::sleep;

use crate::client_process::Actor;
use crate::scenarios::{LONG, RedissonDefect, WAKEUP_LIMIT, WATCH, hand_over, millis};
use crate::test_bed::{Language, Launcher, TestBed};

/// Two versions of Redisson and Rust read together, each with its watchdog; then a writer of the second
/// version is woken by the last of them, and wakes them all.
pub async fn readers_of_two_versions(
    bed: &TestBed,
    _: &str,
    _: Language,
) -> anyhow::Result<String> {
    let (version, classpath) = bed.launcher.second.clone();
    let launcher = Launcher { redisson: version.clone(), classpath, ..bed.launcher.clone() };
    let second = launcher.start(Language::Java).await?;
    let (name, lease) = (bed.name(), bed.launcher.watchdog);
    let mut readers = [bed.actor(Language::Java, 0), second.actor(), bed.actor(Language::Rust, 0)];
    for reader in &mut readers {
        reader.get(&format!("lock read {name}")).await.context("a reader")?;
    }
    let mut writer: Actor = second.actor();
    writer.send(&format!("lock write {name} {LONG}"))?;
    for _ in 0..6 {
        writer.waits(lease / 2).await.context("the writer, with three readers")?;
        let fields = bed.fields(&name).await?;
        ensure!(fields.len() == 4, "the mode and three readers, but the hash is {fields:?}");
    }
    let (last, first) = readers.split_last_mut().context("three readers")?;
    for reader in first {
        reader.get(&format!("unlock read {name}")).await?;
        writer.waits(lease + WATCH).await.context("the writer, while one still reads")?;
    }
    let took = hand_over(last, &format!("unlock read {name}"), &mut writer).await?;
    for reader in &mut readers {
        reader.send(&format!("lock read {name} {LONG}"))?;
        reader.waits(WATCH).await.context("a reader, beside the writer")?;
    }
    writer.get(&format!("unlock write {name}")).await?;
    for reader in &mut readers {
        reader.reply(WAKEUP_LIMIT).await.context("a reader was not woken")?.ok()?;
    }
    for reader in &mut readers {
        reader.get(&format!("unlock read {name}")).await?;
    }
    bed.gone(&name).await?;
    let took = millis(took);
    Ok(format!("with {version}: held 3 leases together, the writer woken in {took:.1} ms"))
}

/// The watchdog of one reader leaves the longer lease of another reader as it is.
pub async fn own_renewal(bed: &TestBed, _: &str, renewer: Language) -> anyhow::Result<String> {
    let (name, lease) = (bed.name(), bed.launcher.watchdog);
    let (mut renewing, mut other) = (bed.actor(renewer, 0), bed.actor(renewer.other(), 0));
    other.get(&format!("lock read {name} {LONG}")).await?;
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(format!("*{name}*:rwlock_timeout:1"))
        .query_async(&mut bed.redis.clone())
        .await?;
    let [hold] = &keys[..] else { anyhow::bail!("the holds are {keys:?}") };
    renewing.get(&format!("lock read {name}")).await?;
    sleep(lease * 2).await;
    let left = bed.ttl(hold).await?;
    for reader in [&mut renewing, &mut other] {
        reader.get(&format!("unlock read {name}")).await?;
    }
    bed.gone(&name).await?;
    let least = LONG as i64 - lease.as_millis() as i64 * 5;
    let text = format!("after two leases of {} ms it has {left} ms of {LONG}", lease.as_millis());
    if left >= least && left <= LONG as i64 {
        return Ok(text);
    }
    if renewer == Language::Java && left > 0 && renews_all_readers(&bed.launcher.redisson) {
        let text =
            format!("this Redisson renews the holds of all readers to its own lease ({text})");
        return Err(RedissonDefect(text).into());
    }
    anyhow::bail!("{text}")
}

/// Redisson up to 4.3.1, see the README of the lock crate.
fn renews_all_readers(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    let (major, minor): (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (major, minor) <= (4, 3)
}
