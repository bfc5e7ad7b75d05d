//! The audit of a run: every reply beside every row of the benchmark's own tables.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, ensure};
use workload::buyers::Buyer;
use workload::checker::{self, ObservedReply};
use workload::order_rows::Snapshot;
use workload::reply::{CONNECTION_LOST, Reply};

use crate::bench::environment::Environment;
use crate::bench::generator::{Attempt, Attempts, Outcome};

/// How long the tables must not have changed.
const QUIET: Duration = Duration::from_millis(100);
/// Longest wait for that.
const LIMIT: Duration = Duration::from_secs(30);

/// Checks the replies to `buyers` in these sales, once the tables no longer change.
pub async fn check(
    environment: &Environment,
    buyers: &[Buyer],
    sales: RangeInclusive<u64>,
    attempts: &Attempts,
) -> anyhow::Result<()> {
    let first = *sales.start();
    let mut replies: Vec<Vec<ObservedReply>> = vec![Vec::new(); sales.clone().count()];
    for (at, attempt) in attempts.list.iter().enumerate() {
        let buyer = buyers.get(attempt.buyer as usize);
        let user_id = buyer.context("an attempt of an unknown buyer")?.user_id;
        let reply = reply(attempts, attempt.outcome);
        let observed = ObservedReply { user_id, attempt: u32::try_from(at)?, reply };
        replies.get_mut(attempt.path as usize).context("an unknown sale")?.push(observed);
    }
    let is_order = |attempt: &&Attempt| matches!(attempt.outcome, Outcome::Ordered(_));
    let confirmed = attempts.list.iter().filter(is_order).count();
    // Some of those that were confirmed may still wait in the stream.
    let tables = &environment.order_rows;
    let (sales, unchanged) =
        tables.wait_until_all_unchanged(sales, confirmed, QUIET, LIMIT).await?;
    ensure!(unchanged, "the tables still change after {LIMIT:?}");
    let mut found = BTreeMap::new();
    for ((id, replies), Snapshot { sale, rows }) in (first..).zip(&replies).zip(&sales) {
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

/// What a buyer was told, for the checker.
fn reply(attempts: &Attempts, outcome: Outcome) -> Reply {
    match outcome {
        Outcome::Ordered(id) => Reply::Ordered(id),
        Outcome::Lost => Reply::lost(CONNECTION_LOST),
        Outcome::Refused(code) => match attempts.code(code) {
            "ALREADY_ORDERED" => Reply::AlreadyOrdered(None),
            code if code == "OUTCOME_UNKNOWN" || code.starts_with("HTTP_5") => {
                Reply::lost(CONNECTION_LOST)
            }
            code => Reply::Refused(code.to_owned().into()),
        },
    }
}
