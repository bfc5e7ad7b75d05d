//! Side-by-side comparison of two strategies: two sales at the same time (or in turn) on the same instances, each with buyers of
//! its own, who arrive at times drawn from the same seed. The sales are sampled while they run, and judged by the same
//! checker as every other run. `loadtest lab` and `loadtest compare` run this.
//!
//! - [`run`] runs it; [`run_state`] is its state, which others may read; [`document`] has the shape of that.
//! - [`story`] picks attempts that show why a sale ended as it did.
//! - `faults` injects faults into the servers meanwhile; `sampler` reads figures.
//! - [`report`] writes its results as files.

use std::{
    cell::RefCell,
    sync::Arc,
    time::{Duration, Instant},
};

use strategies::{Strategy, Text};

use crate::{
    Environment, Error,
    burst::{self, BurstOptions, Report},
    buyers::Buyer,
    conformance::Conformance,
    descriptors,
    generator::Record,
    kill,
    latency::Recorder,
    order_rows::OrderRows,
    publish, sessions,
};

pub mod document;
mod faults;
pub mod report;
pub mod run_state;
mod sampler;
pub mod story;

use document::{Document, InjectedFault, LaneResult, Setting, State, StoryKind};
pub use run_state::RunState;
use sampler::{Commits, Sampler};

/// Connections of each lane.
const CONNECTIONS: usize = 256;
/// For how long slow transactions lock the rows of the sales: longer than a buyer clicks.
const SALES_LOCKED: Duration = Duration::from_millis(200);
/// For how long slow transactions lock the rows of the other vouchers: as long as a buyer clicks.
const OTHERS_LOCKED: Duration = Duration::from_millis(20);
/// The shares of attempts whose latency is in the result.
const CURVE: [f64; 12] = [
    0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 1.0,
];

/// The largest figures that may be asked for.
pub const MOST: Setting = Setting {
    lanes: Vec::new(),
    buyers: 2_000,
    tries: 8,
    stock: 1_000,
    instances: 2,
    spread_seconds: 30,
    in_turn: false,
    two_vouchers: false,
    kill_node: false,
    seed: 0,
};

impl Setting {
    /// Whether nothing can go wrong, even if an instance is killed: buyers with one attempt each get no second order.
    fn is_safe(&self, strategy: Strategy) -> bool {
        let judged_tries = self.tries - u32::from(self.two_vouchers);
        let second = judged_tries > 1 && strategy.second_order_on(self.instances).can_break();
        !strategy.row().oversell.can_break() && !second && !strategy.can_lose()
    }

    /// Refuses what cannot be run there, with a text that says what can.
    pub fn check(&self, environment: &Environment) -> Result<(), Error> {
        let nodes = environment.nodes.len();
        let usage = |text: String| Err(Error::Usage(text));
        if self.lanes.len() != 2 {
            return usage("lanes must be two strategies".to_owned());
        }
        for (name, value, least, most) in [
            ("buyers", self.buyers, 1, MOST.buyers),
            ("tries", self.tries, 1, MOST.tries),
            ("stock", self.stock, 1, MOST.stock),
            ("spreadSeconds", self.spread_seconds, 0, MOST.spread_seconds),
            (
                "instances",
                self.instances,
                1,
                MOST.instances.min(nodes.max(1) as u32),
            ),
        ] {
            if !(least..=most).contains(&value) {
                return usage(format!("{name} must be {least} to {most}"));
            }
        }
        if self.two_vouchers && self.tries == 1 {
            return usage("twoVouchers needs tries of 2 or more".to_owned());
        }
        if self.kill_node && !environment.can_kill() {
            return usage("killNode needs two instances, and --kill-command".to_owned());
        }
        if self.kill_node && self.in_turn {
            return usage("killNode needs both sales at the same time".to_owned());
        }
        Ok(())
    }
}

/// Runs the comparison of `run_state`, and leaves it judged.
///
/// # Errors
/// A [`Error`] of the set-up. Violations are in the run's document, not an error.
pub async fn run(environment: &Environment, run_state: &RunState) -> Result<(), Error> {
    let setting = run_state.document(0).setting;
    setting.check(environment)?;
    descriptors::reserve(2 * CONNECTIONS)?;
    let order_rows = OrderRows::open(&environment.access.database_url).await?;
    let per_lane = setting.buyers as usize;
    let buyers = sessions::signed_in(&environment.access, 2 * per_lane).await?;
    let buyers = run_state.buyers.get_or_init(|| buyers);
    let buyers: [Arc<[Buyer]>; 2] = [buyers[..per_lane].into(), buyers[per_lane..].into()];
    let mut lanes = lane_options(environment, &setting, run_state);
    if setting.two_vouchers {
        for lane in &mut lanes {
            lane.other_voucher_id = Some(publish_another(lane).await?);
        }
    }
    let vouchers = [
        burst::publish(&lanes[0]).await?,
        burst::publish(&lanes[1]).await?,
    ];
    let sampler = Sampler {
        run: run_state,
        order_rows: &order_rows,
        vouchers,
        commits: Default::default(),
    };
    let sales = [0, 1].map(|lane| LaneSale {
        voucher_id: vouchers[lane],
        options: &lanes[lane],
        order_rows: &order_rows,
        buyers: &buyers[lane],
    });
    let selling = async {
        if setting.kill_node {
            sell_and_kill(environment, run_state, &sales).await
        } else {
            sell_both(setting.in_turn, &sales).await
        }
    };
    let others = lanes.each_ref().map(|lane| lane.other_voucher_id);
    let reports = tokio::select! {
        error = keep_rows_locked(environment, vouchers, others) => return Err(error),
        reports = selling => reports?,
        () = sample_from_opening(run_state, &sampler, setting.in_turn) => {
            return Err(Error::Usage("the sampler ended by itself".to_owned()));
        }
    };
    sampler.take().await;
    finish(
        run_state,
        &setting,
        reports,
        sampler.commits.map(RefCell::into_inner),
    );
    Ok(())
}

/// The burst of each lane.
fn lane_options(
    environment: &Environment,
    setting: &Setting,
    run_state: &RunState,
) -> [BurstOptions; 2] {
    let mut environment = environment.clone();
    if setting.instances == 1
        && let Some(first_node) = environment.nodes.first()
    {
        environment.targets = vec![first_node.clone()];
    }
    [0, 1].map(|lane| BurstOptions {
        strategy: setting.lanes[lane].to_string(),
        tries: setting.tries,
        stock: setting.stock,
        connections: CONNECTIONS,
        live: run_state.live[lane].clone(),
        spread: Duration::from_secs(setting.spread_seconds.into()),
        seed: setting.seed.into(),
        traced: true,
        // For pending orders, and once more for the tables. What a killed instance had read goes to another only after 10 s.
        wait_limit: Duration::from_secs(if setting.kill_node { 60 } else { 20 }),
        ..BurstOptions::new(environment.clone())
    })
}

/// Slow transactions, where there are other vouchers. Ends only where the database fails.
async fn keep_rows_locked(
    environment: &Environment,
    vouchers: [u64; 2],
    others: [Option<u64>; 2],
) -> Error {
    let [Some(first), Some(second)] = others else {
        return std::future::pending().await;
    };
    let rows = match OrderRows::open(&environment.access.database_url).await {
        Ok(rows) => rows,
        Err(error) => return error,
    };
    tokio::select! {
        error = rows.keep_locking(vouchers, SALES_LOCKED) => error,
        error = rows.keep_locking([first, second], OTHERS_LOCKED) => error,
    }
}

/// Publishes another sale on the lane's strategy, of one voucher.
async fn publish_another(lane: &BurstOptions) -> Result<u64, Error> {
    let options = BurstOptions {
        stock: 1,
        ..lane.clone()
    };
    burst::publish(&options).await
}

/// The sale of a lane.
struct LaneSale<'a> {
    voucher_id: u64,
    options: &'a BurstOptions,
    order_rows: &'a OrderRows,
    buyers: &'a Arc<[Buyer]>,
}

impl LaneSale<'_> {
    /// Waits until all its buyers can be admitted.
    async fn open(&self) -> Result<(), Error> {
        let strategy = self.options.strategy.parse::<Strategy>();
        if strategy.is_ok_and(Strategy::is_deferred) {
            let access = &self.options.environment.access;
            return publish::wait_until_open(access, self.voucher_id).await;
        }
        Ok(())
    }

    async fn sell(&self) -> Result<Vec<Record>, Error> {
        burst::sell(self.voucher_id, self.options, self.buyers).await
    }

    async fn judge(&self, records: Vec<Record>) -> Result<Report, Error> {
        let Self {
            voucher_id,
            options,
            order_rows,
            buyers,
        } = self;
        burst::judge(*voucher_id, options, order_rows, buyers, records).await
    }

    async fn run(&self) -> Result<Report, Error> {
        self.judge(self.sell().await?).await
    }
}

/// Sells in both lanes, at the same time or in turn.
async fn sell_both(in_turn: bool, [left, right]: &[LaneSale<'_>; 2]) -> Result<[Report; 2], Error> {
    if in_turn {
        return Ok([left.run().await?, right.run().await?]);
    }
    let (left, right) = tokio::try_join!(left.run(), right.run())?;
    Ok([left, right])
}

/// Sells in both lanes while a slow transaction keeps orders from being written, and kills the last instance before that ends.
async fn sell_and_kill(
    environment: &Environment,
    run_state: &RunState,
    [left, right]: &[LaneSale<'_>; 2],
) -> Result<[Report; 2], Error> {
    // On connections of its own: the sampler uses the others.
    let order_rows = OrderRows::open(&environment.access.database_url).await?;
    // A sale that is not counted yet could not be counted while its row is locked.
    tokio::try_join!(left.open(), right.open())?;
    let locked = order_rows.lock([left.voucher_id, right.voucher_id]).await?;
    let (left_records, right_records) = tokio::try_join!(left.sell(), right.sell())?;
    let is_stopped = run_state.live.iter().any(|live| live.stop.is_cancelled());
    if !is_stopped {
        let node = kill::kill_last_node(environment).await?;
        let index =
            run_state.record_event(InjectedFault::KillInstance, None, Some(node.authority()));
        let killed = Instant::now();
        locked.end().await?;
        kill::wait_until_back(&node, || true).await?;
        run_state.lock().events[index].seconds = Some(killed.elapsed().as_secs_f64());
    }
    let (left, right) = tokio::try_join!(left.judge(left_records), right.judge(right_records))?;
    Ok([left, right])
}

/// Samples the sales from when they open. Never returns.
async fn sample_from_opening(run_state: &RunState, sampler: &Sampler<'_>, in_turn: bool) {
    // In turn, the second sale opens its connections when the first is over.
    let opening = if in_turn {
        &run_state.live[..1]
    } else {
        &run_state.live[..]
    };
    for live in opening {
        live.opened.cancelled().await;
    }
    run_state.begun.get_or_init(Instant::now);
    run_state.lock().state = State::Running;
    sampler.run().await;
}

fn finish(run_state: &RunState, setting: &Setting, reports: [Report; 2], commits: [Commits; 2]) {
    let stopped = run_state.live.iter().any(|live| live.stop.is_cancelled());
    let state = if stopped { State::Stopped } else { State::Done };
    let mut document = run_state.lock();
    let mut kept = Vec::with_capacity(2);
    let Document { lanes, events, .. } = &mut *document;
    for ((lane, mut report), commits) in lanes.iter_mut().zip(reports).zip(&commits) {
        let records = std::mem::take(&mut report.records);
        let elsewhere = std::mem::take(&mut report.elsewhere);
        let attempts = story::Attempts::from_records(&records, &elsewhere, commits);
        lane.stories = attempts.stories(events);
        if lane.strategy.can_lose()
            && let Some(lost) = attempts.lost(&report.snapshot.rows, events)
        {
            lane.stories.insert(0, lost);
        }
        for story in &mut lane.stories {
            story.why = why(lane.strategy, story.kind, setting.instances);
        }
        let mut recorder = Recorder::new(3);
        records
            .iter()
            .for_each(|record| recorder.record(record.latency()));
        lane.result = Some(LaneResult {
            conformance: conformance(setting, lane.strategy, &report),
            report,
            index_refused: attempts.index_refused(),
            foreign_deletes: attempts.foreign_deletes(),
            curve: CURVE.map(|share| (share, recorder.at_ms(share))).to_vec(),
            batches: attempts.batches(),
        });
        kept.push(records);
    }
    // Set before the state, which says that all is there.
    run_state.records.get_or_init(|| kept);
    document.state = state;
}

/// Why a story of this kind ended so, if it ended as is to be expected of the strategy on so many instances.
fn why(strategy: Strategy, kind: StoryKind, instances: u32) -> Option<Text> {
    let is_expected = match kind {
        StoryKind::TwoOrders => !strategy.holds_on(instances),
        StoryKind::Held => strategy.holds_on(instances),
        StoryKind::Oversold => false,
        StoryKind::Lost => strategy.can_lose(),
    };
    is_expected.then_some(strategy.row().why)
}

/// The verdict compared to the guarantees. Unsold vouchers are no violation here: buyers may have been too few, or
/// turned away while a server was ill.
fn conformance(setting: &Setting, strategy: Strategy, report: &Report) -> Conformance {
    match Conformance::from_report(strategy, setting.instances, report, false) {
        Conformance::NotSeen(_) | Conformance::DidNotShow(_) if setting.is_safe(strategy) => {
            Conformance::Holds
        }
        conformance => conformance,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_one_attempt_each_only_the_stock_can_break() {
        let with = |tries| Setting { tries, ..MOST };
        assert!(with(1).is_safe(Strategy::Conditional) && with(1).is_safe(Strategy::ProcessLock));
        assert!(!with(2).is_safe(Strategy::Conditional) && !with(2).is_safe(Strategy::ProcessLock));
        assert!(!with(1).is_safe(Strategy::Naive) && !with(1).is_safe(Strategy::MemoryQueue));
    }

    #[test]
    fn a_story_is_explained_by_its_strategy_if_its_end_is_to_be_expected() {
        use StoryKind::{Held, Lost, Oversold, TwoOrders};
        use Strategy::{MemoryQueue, Naive, ProcessLock, ReentrantLock};
        // A lock in memory holds on one instance; on two it was luck.
        for (strategy, kind, instances) in [
            (ProcessLock, TwoOrders, 2),
            (ProcessLock, Held, 1),
            (ReentrantLock, Held, 2),
            (MemoryQueue, Lost, 2),
        ] {
            assert_eq!(why(strategy, kind, instances), Some(strategy.row().why));
        }
        // A second order under a safe strategy is a fault of ours.
        for (strategy, kind, instances) in [
            (ProcessLock, Held, 2),
            (ReentrantLock, TwoOrders, 2),
            (Naive, Oversold, 2),
            (ReentrantLock, Lost, 2),
        ] {
            assert_eq!(why(strategy, kind, instances), None);
        }
    }
}
