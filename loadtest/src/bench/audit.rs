//! The audit of a run: every reply beside every row of the benchmark's own tables.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, ensure};
use workload::checker;
use workload::order_rows::{OrderRows, Snapshot};

use crate::bench::generator::Attempts;

/// How long the tables must not have changed.
const QUIET: Duration = Duration::from_millis(100);
/// Longest wait for that.
const LIMIT: Duration = Duration::from_secs(30);

/// Checks the replies in these sales, which were asked for in turn, once the tables no longer change.
pub async fn check(
    tables: &OrderRows,
    sales: RangeInclusive<u64>,
    attempts: &Attempts,
) -> anyhow::Result<()> {
    let mut replies = vec![Vec::new(); sales.clone().count()];
    for attempt in &attempts.list {
        replies.get_mut(attempt.path).context("an unknown sale")?.push(&attempt.observed);
    }
    // Some of those that were confirmed may still wait in the stream.
    let confirmed = attempts.list.iter().filter(|attempt| attempt.is_order()).count();
    let (snapshots, unchanged) =
        tables.wait_until_all_unchanged(sales.clone(), confirmed, QUIET, LIMIT).await?;
    ensure!(unchanged, "the tables still change after {LIMIT:?}");
    let mut found = BTreeMap::new();
    for ((id, replies), Snapshot { sale, rows }) in sales.zip(replies).zip(&snapshots) {
        for (name, count) in checker::judge(*sale, replies, rows).violations() {
            found.entry(name).or_insert((id, 0)).1 += count;
        }
    }
    let found: Vec<_> = found
        .into_iter()
        .map(|(name, (id, count))| format!("{name}: {count} (first in sale {id})"))
        .collect();
    ensure!(found.is_empty(), "failed the audit: {}", found.join(", "));
    Ok(())
}
