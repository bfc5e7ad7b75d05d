//! The audit of a run: every reply beside every row of the benchmark's own tables.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sqlx::MySqlPool;
use workload::buyers::Buyer;
use workload::checker::{self, ObservedReply, OrderRow, Sale};
use workload::reply::{CONNECTION_LOST, Reply};

use crate::bench::environment::Environment;
use crate::bench::generator::{Attempt, Attempts, Outcome};

/// A sale with its orders.
type SaleRows = (Sale, Vec<OrderRow>);

/// How long the tables must not have changed.
const QUIET: Duration = Duration::from_millis(150);
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
    let rows = wait_until_unchanged(&environment.pool, sales, confirmed).await?;
    let mut found = BTreeMap::new();
    for ((id, replies), (sale, rows)) in (first..).zip(&replies).zip(&rows) {
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

/// Sales and their orders, by voucher, once they have not changed for a moment and there are as many as were `confirmed`,
/// some of which may still wait in the stream.
async fn wait_until_unchanged(
    pool: &MySqlPool,
    sales: RangeInclusive<u64>,
    confirmed: usize,
) -> anyhow::Result<Vec<SaleRows>> {
    let begun = Instant::now();
    let mut last = read(pool, &sales).await?;
    loop {
        tokio::time::sleep(QUIET).await;
        let now = read(pool, &sales).await?;
        let (is_unchanged, is_late) = (now == last, begun.elapsed() > LIMIT);
        let orders = now.iter().map(|(_, rows)| rows.len()).sum::<usize>();
        if is_unchanged && (orders >= confirmed || is_late) {
            return Ok(now);
        }
        ensure!(!is_late, "the tables still change after {LIMIT:?}");
        last = now;
    }
}

async fn read(pool: &MySqlPool, sales: &RangeInclusive<u64>) -> anyhow::Result<Vec<SaleRows>> {
    let (first, last) = (*sales.start(), *sales.end());
    let mut snapshot =
        pool.begin_with("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").await?;
    let query = "SELECT CAST(issued AS SIGNED), CAST(stock + (SELECT COUNT(*) FROM tb_stock_unit u \
                 WHERE u.voucher_id = s.voucher_id) AS SIGNED) FROM tb_seckill_voucher s \
                 WHERE voucher_id BETWEEN ? AND ? ORDER BY voucher_id";
    let stocks: Vec<(i64, i64)> =
        sqlx::query_as(query).bind(first).bind(last).fetch_all(&mut *snapshot).await?;
    ensure!(stocks.len() == sales.clone().count(), "a sale is missing");
    let sale = |(issued, stock_left)| (Sale { issued, stock_left, added: 0 }, Vec::new());
    let mut rows: Vec<SaleRows> = stocks.into_iter().map(sale).collect();
    let query = "SELECT voucher_id, id, user_id, status FROM tb_voucher_order \
                 WHERE voucher_id BETWEEN ? AND ? ORDER BY voucher_id, id";
    let orders: Vec<(u64, i64, u64, u8)> =
        sqlx::query_as(query).bind(first).bind(last).fetch_all(&mut *snapshot).await?;
    snapshot.commit().await?;
    for (voucher, id, user_id, status) in orders {
        let at = usize::try_from(voucher - first)?;
        rows[at].1.push(OrderRow { id, user_id, status });
    }
    Ok(rows)
}
