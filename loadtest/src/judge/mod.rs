//! Judges a node that is not ours: any stage of hm-dianping, in any language, on its own database and Redis, by the API, the
//! replies and the rows alone.
//!
//! - `options` is the command line.
//! - `node` speaks the course's API: signing in, publishing.
//! - `traces` is what a run makes in the database and in Redis, and removes again.
//! - `sales` sells, with the generator and the checker of [`workload`].
//! - `lock` tries the lock of one purchase, `restart` kills the node in the middle of a sale.
//! - `flaws` says what broke in the course's words, `page` shows it as one HTML file.

use std::{
    io::{IsTerminal, stdin},
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio_util::sync::CancellationToken;
use workload::{Error, Target, buyers::Buyer, live::Progress, order_rows::OrderRows};

use crate::report::{Check, Checked, Table};

mod flaws;
mod lock;
mod node;
mod options;
mod page;
mod restart;
mod sales;
mod traces;

pub use flaws::{Finding, Flaw};
pub use options::{JudgeOptions, Language};

use flaws::ROWS;
use sales::{BUYERS, PLAN, Sale, Seller};
use traces::Traces;

/// Buyers who sign in at a time.
const AT_ONCE: usize = 8;
/// No sale begins later than this after the first.
const TIME: Duration = Duration::from_secs(140);

/// What was done with the lock of a purchase in Redis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lock {
    Tried,
    /// A purchase takes none.
    Absent,
    /// The run was interrupted before.
    NotTried,
}

/// A judgement.
#[derive(Debug)]
pub struct Judgement {
    /// What broke.
    pub findings: Vec<Finding>,
    /// The same with the figures and the exit code.
    pub report: Checked,
}

impl Judgement {
    /// The verdict as one HTML file.
    pub fn html(&self, language: Language) -> String {
        page::html(&self.findings, &self.report, language)
    }
}

/// Connects, and asks whoever sits at the terminal where the database has orders in it. Nothing was written yet.
///
/// # Errors
/// One sentence that says what to do.
pub async fn prepare(options: &JudgeOptions) -> Result<Traces, Error> {
    if options.targets.len() > 2 {
        let advice = "at most two nodes are judged together: name one or two in --targets";
        return Err(Error::Usage(advice.to_owned()));
    }
    let traces = Traces::open(&options.access).await?;
    let orders = traces.existing_orders().await?;
    options.progress.say(&format!(
        "This writes to the node's database one shop, its flash sales, {BUYERS} users and their orders, and to its Redis what\n\
         the node keeps of them. All of it is removed at the end."
    ));
    if orders > 0 && !options.yes {
        ask_whether_to_go_on(orders)?;
    }
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

/// Judges until the end or until `stop`; whatever happens, what was made is removed.
///
/// # Errors
/// One sentence that says what to do: the node could not be judged.
pub async fn run(
    options: &JudgeOptions,
    mut traces: Traces,
    stop: &CancellationToken,
) -> Result<Judgement, Error> {
    let judged = judge(options, &mut traces, stop).await;
    if let Err(error) = traces.remove().await {
        options.progress.say(&error.to_string());
    }
    judged
}

async fn judge(
    options: &JudgeOptions,
    traces: &mut Traces,
    stop: &CancellationToken,
) -> Result<Judgement, Error> {
    let shop = traces.make_shop().await?;
    let buyers = sign_in(options, traces).await?;
    let order_rows = OrderRows::open(&options.access.database_url).await?;
    let seller = Seller {
        options,
        traces,
        shop,
        order_rows,
        buyers: buyers.clone(),
        stop,
    };
    let begin = Instant::now();
    let mut sales = vec![seller.try_one_purchase().await?];
    let one = slice::from_ref(&options.targets[0]);
    let two = (options.targets.len() > 1).then_some(&options.targets[..]);
    for nodes in [Some(one), two].into_iter().flatten() {
        for planned in &PLAN {
            if !stop.is_cancelled() && begin.elapsed() < TIME {
                sales.push(seller.sell(nodes, planned).await?);
            }
        }
    }
    let mut lock = Lock::NotTried;
    let mut of_lock = Vec::new();
    if !stop.is_cancelled() {
        lock = Lock::Absent;
        if let Some(findings) = seller.try_lock().await? {
            lock = Lock::Tried;
            of_lock = findings;
        }
    }
    if let Some(command) = &options.restart
        && !stop.is_cancelled()
    {
        sales.push(seller.sell_through_restart(command).await?);
    }
    let findings = flaws::find(&sales, &buyers, of_lock);
    let mut report = report(options, &sales, lock, &findings);
    if stop.is_cancelled() {
        report = report.cut_short();
    }
    Ok(Judgement { findings, report })
}

/// Signs all buyers in at the first node. The first buyer shows that the database, Redis and the last node belong to it.
async fn sign_in(options: &JudgeOptions, traces: &mut Traces) -> Result<Arc<[Buyer]>, Error> {
    options.progress.say("signing buyers in");
    let phones = traces.choose_phones(BUYERS).await?;
    let first = &options.targets[0];
    let redis = traces.redis();
    let mut buyers = vec![node::sign_in(first, redis.clone(), &phones[0]).await?];
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
    let signing_in = phones[1..]
        .iter()
        .map(|phone| node::sign_in(first, redis.clone(), phone));
    let others: Vec<Buyer> = stream::iter(signing_in)
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    traces.signed_in(&others);
    buyers.extend(others);
    Ok(buyers.into())
}

/// The report: a row for each sale, the verdict in words, and a check for each flaw that was looked for.
fn report(options: &JudgeOptions, sales: &[Sale], lock: Lock, findings: &[Finding]) -> Checked {
    let language = options.language();
    let urls: Vec<String> = options.targets.iter().map(Target::to_string).collect();
    let count_of = |flaw: Flaw| {
        let found = findings.iter().filter(|finding| finding.flaw == flaw);
        found.map(|finding| finding.count).sum::<u64>()
    };
    let mut checks: Vec<Check> = ROWS
        .iter()
        .filter(|row| match row.flaw {
            Flaw::SecondOrderAcrossNodes => options.targets.len() > 1,
            Flaw::LostInCrash => options.restart.is_some(),
            Flaw::LeaseEnded | Flaw::ForeignDelete | Flaw::OnlyTheLock => lock == Lock::Tried,
            _ => true,
        })
        .map(|row| Check::none(language.pick(row.term), count_of(row.flaw)))
        .collect();
    let with_orders = sales
        .iter()
        .filter(|sale| sale.report.verdict.orders > 0)
        .count();
    let unchanged = sales
        .iter()
        .filter(|sale| sale.report.tables_unchanged)
        .count();
    let planned = 1 + PLAN.len() * options.targets.len() + usize::from(options.restart.is_some());
    for (what, count) in [
        ("sales made in the time there is", sales.len()),
        ("sales with an order", with_orders),
        ("sales whose tables stood still", unchanged),
    ] {
        checks.push(Check::new(what, count, planned, count == planned).needed());
    }
    Checked {
        scenario: "judge",
        heading: format!("Judged: {}", urls.join(" and ")),
        figures: vec![Table::new(
            &sales::COLUMNS,
            sales.iter().map(|sale| sale.row(language)).collect(),
        )],
        notes: flaws::verdict(sales, lock == Lock::Absent, findings, language),
        checks,
    }
}
