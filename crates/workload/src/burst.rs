//! The burst: one sale, and all buyers at once.
//!
//! [`run`] does it all. Its steps ([`publish()`], [`prepare`], [`run_on_sale`]) are public too, for callers that do something
//! between them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::Serialize;
use strategies::Strategy;

use crate::{
    Environment, Error, Target,
    buyers::Buyer,
    checker::{self, Verdict},
    descriptors,
    generator::{Record, generate},
    latency::Latency,
    order_rows::{OrderRows, Snapshot},
    pending::{self, PendingSale},
    publish,
    reply::Reply,
    sessions,
};

pub use crate::burst_options::BurstOptions;

/// How many times buyers come again, if they were told to.
const RETURNS: u32 = 5;

/// A burst that was run and judged.
#[derive(Debug, Clone, Default, Serialize)]
#[allow(missing_docs)] // the contract's fields, under the contract's names
pub struct Report {
    pub strategy: String,
    pub voucher_id: u64,
    /// The base URLs used.
    pub targets: Vec<String>,
    /// Users who tried.
    pub buyers: usize,
    pub tries: u32,
    /// How many were on sale.
    pub stock: u32,
    pub connections: usize,
    pub requests: u64,
    /// From the opening to the last answer, in seconds.
    pub elapsed_s: f64,
    /// Attempts per second, refusals included.
    pub requests_per_s: f64,
    /// Successes per second, up to the last success, or until the last pending one was decided. Refusals are
    /// no orders.
    pub orders_per_s: f64,
    pub latency: Latency,
    /// Latency of the successes alone.
    pub latency_ordered: Latency,
    /// From the opening until every pending order was decided, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_s: Option<f64>,
    /// Attempts by the reply they got.
    pub replies: BTreeMap<String, u64>,
    /// Attempts of unknown outcome, the lost ones among them.
    pub unknown: u64,
    /// Whether the tables no longer changed before the judgement.
    pub tables_unchanged: bool,
    pub verdict: Verdict,
    /// Every attempt, for judging again.
    #[serde(skip)]
    pub records: Vec<Record>,
    /// The attempts on [another voucher](BurstOptions::other_voucher_id), which count in nothing else here.
    #[serde(skip)]
    pub elsewhere: Vec<Record>,
    /// The tables that were judged.
    #[serde(skip)]
    pub snapshot: Snapshot,
}

impl Report {
    /// This burst and a later one of the same buyers on the same voucher, as one report: all attempts, as if the later one
    /// had begun at the end of this one, judged against the tables as it left them.
    #[must_use]
    pub fn followed_by(self, mut later: Self) -> Self {
        let begin = Duration::from_secs_f64(self.elapsed_s);
        let mut records = self.records;
        records.extend(
            std::mem::take(&mut later.records)
                .into_iter()
                .map(|record| Record {
                    due: begin + record.due,
                    sent: begin + record.sent,
                    answered: begin + record.answered,
                    ..record
                }),
        );
        let decided_s = later.decided_s.map(|seconds| self.elapsed_s + seconds);
        later.with(records, decided_s.or(self.decided_s))
    }

    /// With the figures and the verdict of these attempts.
    fn with(self, records: Vec<Record>, decided_s: Option<f64>) -> Self {
        let ordered = || {
            records
                .iter()
                .filter(|record| record.observed.reply.is_success())
        };
        let last = |answered: Option<Duration>| answered.unwrap_or_default().as_secs_f64();
        let elapsed_s = last(records.iter().map(|record| record.answered).max());
        let sold_s = last(ordered().map(|record| record.answered).max());
        let rate = |count: usize, seconds: f64| {
            if count == 0 {
                0.0
            } else {
                count as f64 / seconds
            }
        };
        let unknown = |record: &&Record| matches!(record.observed.reply, Reply::Unknown { .. });
        let mut replies = BTreeMap::new();
        for record in &records {
            *replies
                .entry(record.observed.reply.label().to_owned())
                .or_default() += 1;
        }
        let observed = records.iter().map(|record| &record.observed);
        let verdict = checker::judge(self.snapshot.sale, observed, &self.snapshot.rows);
        Self {
            requests: records.len() as u64,
            elapsed_s,
            requests_per_s: rate(records.len(), elapsed_s),
            orders_per_s: rate(ordered().count(), decided_s.unwrap_or(sold_s)),
            latency: Latency::from_durations(records.iter().map(Record::latency)),
            latency_ordered: Latency::from_durations(ordered().map(Record::latency)),
            decided_s,
            replies,
            unknown: records.iter().filter(unknown).count() as u64,
            verdict,
            records,
            ..self
        }
    }
}

/// Publishes, makes the buyers, generates the load, waits, judges.
///
/// # Errors
/// A [`Error`] of the set-up. Violations are no error: see [`Report::verdict`].
pub async fn run(options: &BurstOptions) -> Result<Report, Error> {
    // What fails quickly comes first, before thousands of sessions are made for nothing.
    descriptors::reserve(
        options.connections_for(options.buyers as usize * options.tries as usize),
    )?;
    let order_rows = OrderRows::open(&options.environment.access.database_url).await?;
    let voucher_id = publish(options).await?;
    let buyers = prepare(options).await?;
    run_on_sale(voucher_id, options, &order_rows, buyers).await
}

/// The buyers, with sessions.
pub async fn prepare(options: &BurstOptions) -> Result<Arc<[Buyer]>, Error> {
    let buyers = sessions::signed_in(&options.environment.access, options.buyers as usize);
    Ok(buyers.await?.into())
}

/// Publishes the sale that the options ask for; returns its voucher's id.
pub async fn publish(options: &BurstOptions) -> Result<u64, Error> {
    let Environment { access, .. } = &options.environment;
    let first = options.environment.first_target()?;
    publish::flash_sale(access, first, &options.strategy, options.stock).await
}

/// Runs `buyers` on a sale that exists. Where it should sell out and did not, because many were answered "try again", all come
/// again, up to five times: a busy machine sheds load, which breaks no promise.
pub async fn run_until_sold_out(
    voucher_id: u64,
    options: &BurstOptions,
    order_rows: &OrderRows,
    buyers: Arc<[Buyer]>,
) -> Result<Report, Error> {
    let mut report = run_on_sale(voucher_id, options, order_rows, buyers.clone()).await?;
    for _ in 0..RETURNS {
        let stock_left = report.verdict.stock_left;
        let had_trouble = report
            .records
            .iter()
            .any(|record| record.observed.reply.is_trouble());
        if !report.verdict.is_clean() || stock_left <= 0 || !had_trouble {
            break;
        }
        let message = format!("  {stock_left} left, and buyers were told to try again: they do");
        options.environment.progress.say(&message);
        let options = BurstOptions {
            live: Arc::default(),
            ..options.clone()
        };
        let again = run_on_sale(voucher_id, &options, order_rows, buyers.clone()).await?;
        report = report.followed_by(again);
    }
    Ok(report)
}

/// Runs `buyers` on a sale that exists, and judges it as if it were new.
/// After a second burst on one voucher, judge both together: [`Report::followed_by`].
pub async fn run_on_sale(
    voucher_id: u64,
    options: &BurstOptions,
    order_rows: &OrderRows,
    buyers: Arc<[Buyer]>,
) -> Result<Report, Error> {
    let records = sell(voucher_id, options, &buyers).await?;
    judge(voucher_id, options, order_rows, &buyers, records).await
}

/// Runs `buyers` on a sale that exists, until all are answered: the first half of [`run_on_sale`].
pub async fn sell(
    voucher_id: u64,
    options: &BurstOptions,
    buyers: &Arc<[Buyer]>,
) -> Result<Vec<Record>, Error> {
    let total = buyers.len() * options.tries as usize;
    let generating = generate(options, voucher_id, buyers);
    let progress = options.environment.progress;
    progress
        .watch(&options.strategy, total as u64, &options.live, generating)
        .await
}

/// Waits until the tables no longer change, and judges these attempts: the second half of [`run_on_sale`].
pub async fn judge(
    voucher_id: u64,
    options: &BurstOptions,
    order_rows: &OrderRows,
    buyers: &Arc<[Buyer]>,
    mut records: Vec<Record>,
) -> Result<Report, Error> {
    let Environment {
        access,
        targets,
        progress,
        ..
    } = &options.environment;
    let total = buyers.len() * options.tries as usize;
    let elsewhere = records
        .extract_if(.., |record| options.is_elsewhere(record.observed.attempt))
        .collect();
    let limit = options.wait_limit;
    let sale = PendingSale {
        access,
        targets,
        buyers,
        voucher_id,
        limit,
    };
    let waited = pending::wait(sale, order_rows, &mut records).await?;
    // Waits for purchases in flight: briefly if every reply was a definite answer, longer if some purchases had begun and
    // met errors, or no reply came. A refusal that is followed by an order must be caught, too.
    let errors = records
        .iter()
        .filter(|record| record.observed.reply.may_have_begun())
        .count();
    let is_calm = errors == 0 && !is_writing_later(voucher_id, options, order_rows, &records).await;
    let quiet = Duration::from_millis(if is_calm { 200 } else { 3_000 });
    if errors > 0 {
        let limit = limit.as_secs_f32();
        progress.say(&format!(
            "{errors} replies are errors or missing: waiting until the tables no longer change ({limit} s at \
             most)"
        ));
    }
    let waiting = order_rows.wait_until_unchanged(voucher_id..=voucher_id, 0, quiet, limit);
    let (mut snapshots, tables_unchanged) = waiting.await?;
    let elapsed = records
        .iter()
        .map(|record| record.answered)
        .max()
        .unwrap_or_default();
    let decided_s = waited.map(|waited| (elapsed + waited).as_secs_f64());
    let report = Report {
        strategy: options.strategy.clone(),
        voucher_id,
        targets: targets.iter().map(Target::to_string).collect(),
        buyers: buyers.len(),
        tries: options.tries,
        stock: options.stock,
        connections: options.connections_for(total),
        tables_unchanged,
        elsewhere,
        snapshot: snapshots.swap_remove(0),
        ..Report::default()
    };
    Ok(report.with(records, decided_s))
}

/// Whether an order that was told has no row yet: a Java node that commits later, and the strategy `memory-queue`, answer as if
/// they had committed.
async fn is_writing_later(
    voucher_id: u64,
    options: &BurstOptions,
    order_rows: &OrderRows,
    records: &[Record],
) -> bool {
    let strategy = options.strategy.parse::<Strategy>();
    if !order_rows.is_of_another_service() && !strategy.is_ok_and(Strategy::can_lose) {
        return false;
    }
    let Ok(snapshot) = order_rows.read(voucher_id).await else {
        return false;
    };
    records.iter().any(|record| match record.observed.reply {
        Reply::Ordered(id) => {
            let row = snapshot.rows.binary_search_by_key(&id, |row| row.id);
            row.is_err()
        }
        _ => false,
    })
}
