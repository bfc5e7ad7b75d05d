//! The burst: one sale, and all buyers at once.
//!
//! [`run`] does it all. Its steps ([`crate::publish::flash_sale`], [`prepare`], [`on`], [`judge`])
//! are public too, for a test that needs to break something between them or to judge later.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use serde::Serialize;

use crate::{
    Access, Error, Target,
    buyers::{self, Buyer},
    checker::{self, Verdict},
    descriptors,
    generator::{Arrivals, Plan, Record, generate},
    latency::Latency,
    live::{Live, Progress},
    order_rows::{OrderRows, Snapshot},
    pending::{self, PendingSale},
    publish,
    reply::{CONNECTION_LOST, NOT_SENT, Reply, TIME_OUT},
};

mod show;

/// Most connections used when none are asked for.
pub const DEFAULT_CONNECTIONS: usize = 1024;

/// The source of the buyers.
#[derive(Debug, Clone)]
pub enum BuyerSource {
    /// This many new users, signed in through the API.
    SignIn(usize),
    /// The first so many tokens of a file, one per line.
    File(PathBuf, usize),
    /// These, signed in before.
    Given(Arc<[Buyer]>),
}

impl BuyerSource {
    /// How many buyers that is.
    pub fn size(&self) -> usize {
        match self {
            Self::SignIn(count) | Self::File(_, count) => *count,
            Self::Given(buyers) => buyers.len(),
        }
    }
}

/// A burst to run.
#[derive(Debug, Clone)]
pub struct BurstOptions {
    /// Servers and secrets.
    pub access: Access,
    /// Base URLs; attempts go to them in turn. Publishing uses the first.
    pub targets: Vec<Target>,
    /// The buyers.
    pub buyers: BuyerSource,
    /// Simultaneous attempts of each buyer.
    pub tries: u32,
    /// How many are on sale.
    pub stock: u32,
    /// The sale's strategy, by the service's name for it.
    pub strategy: String,
    /// Keep-alive connections; `None` means one per attempt, at most [`DEFAULT_CONNECTIONS`].
    pub connections: Option<usize>,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// Longest wait for purchases in flight before judging.
    pub wait_limit: Duration,
    /// When the buyers arrive.
    pub arrivals: Arrivals,
    /// Whether the service is asked for the steps of each attempt.
    pub traced: bool,
    /// Where progress goes.
    pub progress: Progress,
    /// Counters to watch the run by; a test injects its fault when [`Live::reached`] says so.
    pub live: Arc<Live>,
}

impl BurstOptions {
    /// A silent burst of 200 new buyers, 3 tries each, for 50 vouchers on `reentrant-lock`.
    pub fn new(access: Access, targets: Vec<Target>) -> Self {
        Self {
            access,
            targets,
            buyers: BuyerSource::SignIn(200),
            tries: 3,
            stock: 50,
            strategy: "reentrant-lock".to_owned(),
            connections: None,
            timeout: Duration::from_secs(10),
            wait_limit: Duration::from_secs(30),
            arrivals: Arrivals::AtOnce,
            traced: false,
            progress: Progress::Silent,
            live: Arc::default(),
        }
    }
}

/// A burst that was run and judged.
#[derive(Clone, Serialize)]
pub struct Report {
    /// Always `burst`.
    pub scenario: &'static str,
    /// The sale's strategy.
    pub strategy: String,
    /// The sale's voucher.
    pub voucher_id: u64,
    /// The base URLs used.
    pub targets: Vec<String>,
    /// Users who tried.
    pub buyers: usize,
    /// Attempts of each.
    pub tries: u32,
    /// How many were on sale.
    pub stock: u32,
    /// Connections used.
    pub connections: usize,
    /// Attempts made.
    pub requests: u64,
    /// From the opening to the last answer, in seconds.
    pub elapsed_s: f64,
    /// Attempts per second, refusals included.
    pub requests_per_s: f64,
    /// Successes per second, up to the last success, or until the last pending one was decided. Refusals are
    /// no orders.
    pub orders_per_s: f64,
    /// Latency of all attempts.
    pub latency: Latency,
    /// Latency of the successes alone.
    pub latency_ordered: Latency,
    /// From the opening until every pending order was decided, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_s: Option<f64>,
    /// Attempts by the reply they got.
    pub replies: BTreeMap<String, u64>,
    /// Attempts without an answer in time.
    pub timeouts: u64,
    /// Attempts whose connection broke after sending.
    pub connections_lost: u64,
    /// Attempts without a connection.
    pub not_sent: u64,
    /// Attempts of unknown outcome, the lost ones among them.
    pub unknown: u64,
    /// Whether the tables no longer changed before the judgement.
    pub tables_unchanged: bool,
    /// Whether the judgement found no violation.
    pub clean: bool,
    /// The judgement.
    pub verdict: Verdict,
    /// Every attempt, for judging again.
    #[serde(skip)]
    pub records: Vec<Record>,
    /// The tables that were judged.
    #[serde(skip)]
    pub snapshot: Snapshot,
}

impl Report {
    /// Whether a buyer got no definite answer, or was told to try again.
    pub fn met_trouble(&self) -> bool {
        self.records.iter().any(|record| record.observed.reply.is_trouble())
    }

    /// This burst and a later one of the same buyers on the same voucher, as one report: all attempts, judged against the
    /// tables as the later one left them; rates are those of the time that both took.
    #[must_use]
    pub fn followed_by(self, later: Self) -> Self {
        let selling_s = self.selling_s() + later.selling_s();
        let mut records = self.records;
        records.extend(later.records);
        let ordered = records.iter().filter(|record| record.observed.reply.is_success());
        let latency_ordered = Latency::of(ordered.map(|record| record.latency()));
        let mut replies = self.replies;
        for (label, count) in later.replies {
            *replies.entry(label).or_default() += count;
        }
        let elapsed_s = self.elapsed_s + later.elapsed_s;
        let requests = self.requests + later.requests;
        let verdict = judge(&records, &later.snapshot);
        Self {
            requests,
            elapsed_s,
            requests_per_s: requests as f64 / elapsed_s.max(f64::MIN_POSITIVE),
            orders_per_s: latency_ordered.count as f64 / selling_s.max(f64::MIN_POSITIVE),
            latency: Latency::of(records.iter().map(|record| record.latency())),
            latency_ordered,
            timeouts: self.timeouts + later.timeouts,
            connections_lost: self.connections_lost + later.connections_lost,
            not_sent: self.not_sent + later.not_sent,
            unknown: unknown(&records),
            replies,
            clean: verdict.is_clean(),
            verdict,
            records,
            ..later
        }
    }

    /// The time that [`orders_per_s`](Self::orders_per_s) is measured over, in seconds.
    fn selling_s(&self) -> f64 {
        let orders = self.latency_ordered.count as f64;
        if orders > 0.0 { orders / self.orders_per_s } else { self.elapsed_s }
    }
}

/// Signs in, publishes, generates the load, waits, judges.
///
/// # Errors
/// A [`Error`] of the set-up. Violations are no error: see [`Report::verdict`].
pub async fn run(options: &BurstOptions) -> Result<Report, Error> {
    // What fails quickly comes first, before thousands are signed in for nothing.
    let order_rows = OrderRows::open(&options.access.database_url).await?;
    descriptors::reserve(options.connections.unwrap_or(DEFAULT_CONNECTIONS))?;
    let voucher_id = publish(options).await?;
    let buyers = prepare(options).await?;
    on(voucher_id, options, &order_rows, buyers).await
}

/// The buyers, signed in.
///
/// # Errors
/// See [`buyers::sign_in`] and [`buyers::from_file`].
pub async fn prepare(options: &BurstOptions) -> Result<Arc<[Buyer]>, Error> {
    let (targets, progress) = (&options.targets, options.progress);
    Ok(match &options.buyers {
        BuyerSource::SignIn(count) => {
            buyers::sign_in(&options.access, targets, *count, progress).await?.into()
        }
        BuyerSource::File(file, count) => {
            buyers::from_file(targets, file, *count, progress).await?.into()
        }
        BuyerSource::Given(buyers) => buyers.clone(),
    })
}

/// Publishes the sale that the options ask for; returns its voucher's id.
///
/// # Errors
/// See [`publish::flash_sale`].
pub async fn publish(options: &BurstOptions) -> Result<u64, Error> {
    let Some(first) = options.targets.first() else {
        return Err(Error::Usage("at least one target is needed".to_owned()));
    };
    publish::flash_sale(&options.access, first, &options.strategy, options.stock).await
}

/// Publishes a sale, runs `buyers` on it, and judges it.
///
/// # Errors
/// As [`run`].
pub async fn sale(
    options: &BurstOptions,
    order_rows: &OrderRows,
    buyers: Arc<[Buyer]>,
) -> Result<Report, Error> {
    let voucher_id = publish(options).await?;
    on(voucher_id, options, order_rows, buyers).await
}

/// Runs `buyers` on a sale that exists, and judges it as if it were new.
/// After a second burst on one voucher, judge both together: [`Report::followed_by`].
///
/// # Errors
/// As [`run`].
pub async fn on(
    voucher_id: u64,
    options: &BurstOptions,
    order_rows: &OrderRows,
    buyers: Arc<[Buyer]>,
) -> Result<Report, Error> {
    let total = buyers.len() * options.tries as usize;
    let connections = options.connections.unwrap_or(DEFAULT_CONNECTIONS).min(total.max(1));
    let plan = Plan {
        targets: options.targets.clone(),
        voucher_id,
        buyers,
        tries: options.tries,
        connections,
        timeout: options.timeout,
        arrivals: options.arrivals,
        traced: options.traced,
    };
    let what = format!("{} on voucher {voucher_id}", options.strategy);
    let generating = generate(&plan, &options.live);
    let mut records =
        options.progress.watch(&what, total as u64, &options.live, generating).await?;
    let sale = PendingSale {
        access: &options.access,
        targets: &options.targets,
        buyers: &plan.buyers,
        voucher_id,
        limit: options.wait_limit,
    };
    let waited = pending::wait(sale, order_rows, &mut records).await?;
    let (snapshot, tables_unchanged) =
        final_snapshot(options, order_rows, voucher_id, &records).await?;
    Ok(report(options, &plan, records, waited, (snapshot, tables_unchanged)))
}

/// Waits for in-flight purchases: briefly if every reply was a definite answer, longer if some purchases had begun and met
/// errors, or no reply came: a refusal that is followed by an order must be caught, too.
async fn final_snapshot(
    options: &BurstOptions,
    order_rows: &OrderRows,
    voucher_id: u64,
    records: &[Record],
) -> Result<(Snapshot, bool), Error> {
    let errors = records.iter().filter(|record| record.observed.reply.may_have_begun()).count();
    if errors == 0 {
        return order_rows
            .wait_until_unchanged(voucher_id, Duration::from_millis(200), options.wait_limit)
            .await;
    }
    let limit = options.wait_limit.as_secs_f32();
    options.progress.say(&format!(
        "{errors} replies are errors or missing: waiting until the tables no longer change ({limit} s at \
         most)"
    ));
    order_rows.wait_until_unchanged(voucher_id, Duration::from_secs(3), options.wait_limit).await
}

/// Judges recorded attempts against a snapshot. For several bursts on one voucher, chain records.
pub fn judge<'a>(records: impl IntoIterator<Item = &'a Record>, snapshot: &Snapshot) -> Verdict {
    let asked = records.into_iter().map(|record| &record.observed);
    checker::judge(snapshot.sale, asked, &snapshot.rows)
}

fn unknown(records: &[Record]) -> u64 {
    let open = |record: &&Record| matches!(record.observed.reply, Reply::Unknown { .. });
    records.iter().filter(open).count() as u64
}

fn report(
    options: &BurstOptions,
    plan: &Plan,
    records: Vec<Record>,
    waited: Option<Duration>,
    (snapshot, tables_unchanged): (Snapshot, bool),
) -> Report {
    let ordered = || records.iter().filter(|record| record.observed.reply.is_success());
    let elapsed =
        records.iter().map(|record| record.answered).max().unwrap_or_default().as_secs_f64();
    let decided = waited.map(|waited| elapsed + waited.as_secs_f64());
    let sold = ordered().map(|record| record.answered).max().unwrap_or_default().as_secs_f64();
    let selling = decided.unwrap_or(sold);
    let rate = |count: usize, seconds: f64| if count == 0 { 0.0 } else { count as f64 / seconds };
    let mut replies = BTreeMap::new();
    for record in &records {
        *replies.entry(record.observed.reply.label().to_owned()).or_default() += 1;
    }
    let verdict = judge(&records, &snapshot);
    let by_label = |label: &str| replies.get(label).copied().unwrap_or(0);
    Report {
        scenario: "burst",
        strategy: options.strategy.clone(),
        voucher_id: plan.voucher_id,
        targets: plan.targets.iter().map(Target::to_string).collect(),
        buyers: plan.buyers.len(),
        tries: plan.tries,
        stock: options.stock,
        connections: plan.connections,
        requests: records.len() as u64,
        elapsed_s: elapsed,
        requests_per_s: rate(records.len(), elapsed),
        orders_per_s: rate(ordered().count(), selling),
        latency: Latency::of(records.iter().map(|record| record.latency())),
        latency_ordered: Latency::of(ordered().map(|record| record.latency())),
        decided_s: decided,
        timeouts: by_label(TIME_OUT),
        connections_lost: by_label(CONNECTION_LOST),
        not_sent: by_label(NOT_SENT),
        unknown: unknown(&records),
        tables_unchanged,
        clean: verdict.is_clean(),
        verdict,
        replies,
        records,
        snapshot,
    }
}
