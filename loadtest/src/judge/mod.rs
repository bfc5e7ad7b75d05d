//! Judges a node that is not ours: any stage of hm-dianping, in any language, on its own database and Redis, by the API, the
//! replies and the rows alone.
//!
//! - `options` is the command line.
//! - `node` speaks the course's API: signing in, publishing.
//! - `traces` is what a run makes in the database and in Redis, and removes again.
//! - `sales` sells, with the generator and the checker of [`workload`].
//! - `lock` tries the lock of one purchase, `restart` kills the node in the middle of a sale, `reads` reads shops.
//! - `keys` finds keys in the node's Redis.
//! - `flaws` says what broke in the course's words, `page` shows it as one HTML file.

use std::{
    io::{IsTerminal, stdin},
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;
use workload::{Error, Target, buyers::Buyer, live::Progress, order_rows::OrderRows};

use crate::report::{Check, Checked, Table};

mod flaws;
mod keys;
mod lock;
mod node;
mod options;
mod page;
mod reads;
mod restart;
mod sales;
mod traces;

pub use flaws::{Finding, Flaw};
pub use options::{JudgeOptions, Language};

use flaws::ROWS;
use reads::{Reads, try_reads};
use sales::{BUYERS, PLAN, Sale, Seller};
use traces::Traces;

/// Buyers who sign in at a time.
const AT_ONCE: usize = 8;
/// No sale begins later than this after the first.
const TIME: Duration = Duration::from_secs(140);

/// What was done with the lock of a purchase in Redis.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Lock {
    Tried,
    /// A purchase takes none.
    Absent,
    /// The run was interrupted before, or is about the reads alone.
    #[default]
    NotTried,
}

/// A judgement.
#[derive(Debug)]
pub struct Judgement {
    /// What broke.
    pub findings: Vec<Finding>,
    /// What was not tried and what to do about it, a sentence each.
    pub untried: Vec<String>,
    /// The same with the figures and the exit code.
    pub report: Checked,
}

impl Judgement {
    /// The verdict as one HTML file.
    pub fn html(&self, language: Language) -> String {
        page::html(&self.findings, &self.untried, &self.report, language)
    }
}

/// Connects, and asks whoever sits at the terminal where the database has orders in it. Nothing was written yet, but a key of
/// Redis that keeps other judgements away.
///
/// # Errors
/// One sentence that says what to do.
pub async fn prepare(options: &JudgeOptions) -> Result<Traces, Error> {
    if options.targets.len() > 2 {
        let advice = "at most two nodes are judged together: name one or two in --targets";
        return Err(Error::Usage(advice.to_owned()));
    }
    let mut traces = Traces::open(&options.access).await?;
    let orders = traces.existing_orders().await?;
    let made = if options.reads_only {
        "one or two shops and a user".to_owned()
    } else {
        format!("one or two shops, their flash sales, {BUYERS} users and their orders")
    };
    options.progress.say(&format!(
        "This writes to the node's database {made}, and to its Redis what\n\
         the node keeps of them. All of it is removed at the end. For the reads it locks tb_shop, some six times for a second."
    ));
    if orders > 0 && !options.yes {
        ask_whether_to_go_on(orders)?;
    }
    traces.keep_others_away().await?;
    Ok(traces)
}

fn ask_whether_to_go_on(orders: i64) -> Result<(), Error> {
    let has_orders = format!("tb_voucher_order has {orders} orders");
    if !stdin().is_terminal() {
        return Err(Error::Usage(format!(
            "{has_orders}: nothing was written; if this is no database that somebody sells from, give --yes"
        )));
    }
    Progress::Stderr.say(&format!(
        "{has_orders}. Is this a database to experiment on? [y/N]"
    ));
    let mut answer = String::new();
    // An error is no yes.
    stdin().read_line(&mut answer).ok();
    if answer.trim().eq_ignore_ascii_case("y") {
        return Ok(());
    }
    Err(Error::Usage("nothing was written".to_owned()))
}

/// Judges until the end or until `stop`. Afterwards `Traces::remove` is to be called, whatever happened, also where this was
/// dropped.
///
/// # Errors
/// One sentence that says what to do: the node could not be judged.
pub async fn run(
    options: &JudgeOptions,
    traces: &mut Traces,
    stop: &CancellationToken,
) -> Result<Judgement, Error> {
    let shop = traces.make_shop().await?;
    let count = if options.reads_only { 1 } else { BUYERS };
    let buyers = sign_in(options, traces, count).await?;
    // Before a restart, after which a node may have warmed the shop up.
    let reads = try_reads(options, traces, shop, &buyers[0], stop).await?;
    let sold = if options.reads_only || stop.is_cancelled() {
        Sold::default()
    } else {
        sell(options, traces, shop, &buyers, stop).await?
    };
    let mut untried = sold.untried(options);
    untried.extend_from_slice(&reads.untried);
    let others = sold.of_lock.iter().chain(&reads.findings).cloned();
    let findings = flaws::find(&sold.sales, &buyers, others);
    let mut report = report(options, &sold, &reads, &findings);
    report.notes = flaws::verdict(
        &sold.sales,
        !reads.tried.is_empty(),
        &findings,
        &untried,
        options.language(),
    );
    if stop.is_cancelled() {
        report = report.cut_short();
    }
    Ok(Judgement {
        findings,
        untried,
        report,
    })
}

/// What was sold, and what the lock of a purchase showed.
#[derive(Default)]
struct Sold {
    sales: Vec<Sale>,
    lock: Lock,
    of_lock: Vec<Finding>,
}

impl Sold {
    /// What was not tried, a sentence each.
    fn untried(&self, options: &JudgeOptions) -> Vec<String> {
        let mut texts = Vec::new();
        if self.lock == Lock::Absent {
            texts.push([
                "Not tried: a lock in Redis. There was none while a purchase waited for the sale's row.",
                "没有测 Redis 里的锁：下单等着秒杀那一行时，没有看到锁。",
            ]);
        }
        if options.targets.len() == 1 {
            texts.push([
                "Not tried: two nodes. Start a second one on another port, and name both in --targets.",
                "没有测两个节点：换个端口再启动一个，把两个地址都写进 --targets。",
            ]);
        }
        let language = options.language();
        texts
            .into_iter()
            .map(|text| language.pick(text).to_owned())
            .collect()
    }
}

/// Makes all sales, and tries the lock of a purchase.
async fn sell(
    options: &JudgeOptions,
    traces: &mut Traces,
    shop: u64,
    buyers: &Arc<[Buyer]>,
    stop: &CancellationToken,
) -> Result<Sold, Error> {
    let order_rows = OrderRows::open(&options.access.database_url).await?;
    let mut seller = Seller {
        options,
        traces,
        shop,
        order_rows,
        buyers: buyers.clone(),
        stop,
    };
    let begin = Instant::now();
    let mut sold = Sold::default();
    sold.sales.push(seller.try_one_purchase().await?);
    let one = slice::from_ref(&options.targets[0]);
    let two = (options.targets.len() > 1).then_some(&options.targets[..]);
    for nodes in [Some(one), two].into_iter().flatten() {
        for planned in &PLAN {
            if !stop.is_cancelled() && begin.elapsed() < TIME {
                sold.sales.push(seller.sell(nodes, planned).await?);
            }
        }
    }
    if !stop.is_cancelled() {
        sold.lock = Lock::Absent;
        if let Some(findings) = seller.try_lock().await? {
            sold.lock = Lock::Tried;
            sold.of_lock = findings;
        }
    }
    if let Some(command) = &options.restart
        && !stop.is_cancelled()
    {
        sold.sales.push(seller.sell_through_restart(command).await?);
    }
    Ok(sold)
}

/// Signs so many buyers in at the first node. The first buyer shows that the database, Redis and the last node belong to it.
async fn sign_in(
    options: &JudgeOptions,
    traces: &mut Traces,
    count: usize,
) -> Result<Arc<[Buyer]>, Error> {
    options.progress.say("signing buyers in");
    let phones = traces.choose_phones(count).await?;
    let first = &options.targets[0];
    let redis = traces.redis();
    let redis_url = &options.access.redis_url;
    let sign_in =
        async |phone: &String| node::sign_in(first, redis_url, redis.clone(), phone).await;
    let mut buyers = vec![sign_in(&phones[0]).await?];
    traces.signed_in(&buyers);
    if !traces.has_user(&phones[0]).await? {
        return Err(Error::Usage(format!(
            "{first} registered {}, who is not in tb_user of this database: name your node's own database in --database-url, \
             and remove that user there",
            phones[0]
        )));
    }
    let last = &options.targets[options.targets.len() - 1];
    let user_id = node::user_id(last, &buyers[0].token).await?;
    if user_id != buyers[0].user_id {
        return Err(Error::Usage(format!(
            "{last} takes the token of user {} for user {user_id}: both nodes must be on the same Redis and database",
            buyers[0].user_id
        )));
    }
    for phones in phones[1..].chunks(AT_ONCE) {
        let signed_in = join_all(phones.iter().map(&sign_in)).await;
        // Where one fails, the others have sessions all the same.
        traces.signed_in(signed_in.iter().flatten());
        for buyer in signed_in {
            buyers.push(buyer?);
        }
    }
    Ok(buyers.into())
}

/// The report: a row for each sale and for each time that many read, and a check for each flaw that was looked for. The
/// verdict in words is still missing.
fn report(options: &JudgeOptions, sold: &Sold, reads: &Reads, findings: &[Finding]) -> Checked {
    let language = options.language();
    let urls: Vec<String> = options.targets.iter().map(Target::to_string).collect();
    let count_of = |flaw: Flaw| {
        let found = findings.iter().filter(|finding| finding.flaw == flaw);
        found.map(|finding| finding.count).sum::<u64>()
    };
    let was_looked_for = |flaw: Flaw| match flaw {
        Flaw::Uncached | Flaw::Breakdown | Flaw::Penetration | Flaw::Stale => {
            reads.tried.contains(&flaw)
        }
        _ if options.reads_only => false,
        Flaw::SecondOrderAcrossNodes => options.targets.len() > 1,
        Flaw::LostInCrash => options.restart.is_some(),
        Flaw::LeaseEnded | Flaw::ForeignDelete | Flaw::OnlyTheLock => sold.lock == Lock::Tried,
        _ => true,
    };
    let mut checks: Vec<Check> = ROWS
        .iter()
        .filter(|row| was_looked_for(row.flaw))
        .map(|row| Check::none(language.pick(row.term), count_of(row.flaw)))
        .collect();
    if !options.reads_only {
        checks.extend(check_completeness(options, &sold.sales));
    }
    let sales = sold.sales.iter().map(|sale| sale.row(language)).collect();
    let figures = [
        Table::new(&sales::COLUMNS, sales),
        Table::new(&reads::COLUMNS, reads.rows.clone()),
    ];
    Checked {
        scenario: "judge",
        heading: format!("Judged: {}", urls.join(" and ")),
        figures: figures
            .into_iter()
            .filter(|table| !table.rows.is_empty())
            .collect(),
        notes: String::new(),
        checks,
    }
}

/// Without these the sales prove nothing.
fn check_completeness(options: &JudgeOptions, sales: &[Sale]) -> Vec<Check> {
    let with_orders = sales
        .iter()
        .filter(|sale| sale.report.verdict.orders > 0)
        .count();
    let unchanged = sales
        .iter()
        .filter(|sale| sale.report.tables_unchanged)
        .count();
    let planned = 1 + PLAN.len() * options.targets.len() + usize::from(options.restart.is_some());
    [
        ("sales made in the time there is", sales.len()),
        ("sales with an order", with_orders),
        ("sales whose tables stood still", unchanged),
    ]
    .map(|(what, count)| Check::new(what, count, planned, count == planned).needed())
    .into()
}
