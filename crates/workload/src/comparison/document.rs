//! A comparison as a document: what the lab's page and the HTML report draw, and what is downloaded. Shapes only.
//! Times are seconds from the first request, in a story milliseconds from its first request.

#![allow(missing_docs)] // the contract's fields, under the contract's names

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use strategies::{Strategy, Text};

use crate::{burst::Report, conformance::Conformance, trace::Step};

/// Two sales at the same time, by different strategies, each with buyers of its own.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    /// Names the comparison in links.
    pub id: String,
    pub state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Date-time in UTC, as RFC 3339: a report may be opened in another zone.
    pub started_at: String,
    pub setting: Setting,
    /// What was done to the servers, and what came of it.
    pub events: Vec<Event>,
    pub lanes: Vec<Lane>,
}

/// How far a comparison is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Buyers sign in, sales are published.
    #[default]
    Preparing,
    /// Buyers come.
    Running,
    /// All have been answered; the tables are waited for and read.
    Judging,
    /// Judged.
    Done,
    /// Stopped before all had come, and judged.
    Stopped,
    /// Not judged.
    Failed,
}

impl State {
    /// Whether it goes on.
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Preparing | Self::Running | Self::Judging)
    }
}

/// What is asked for, as command lines and the lab's API take it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(rename_all = "camelCase")]
pub struct Setting {
    /// The two strategies
    #[arg(long, num_args = 2, value_names = ["LEFT", "RIGHT"],
          default_values = ["process-lock", "reentrant-lock"])]
    pub lanes: Vec<Strategy>,
    /// Users, in each lane
    #[arg(long, default_value_t = 300)]
    pub buyers: u32,
    /// Simultaneous attempts of each user
    #[arg(long, default_value_t = 4)]
    pub tries: u32,
    /// Vouchers on sale, in each lane
    #[arg(long, default_value_t = 200)]
    pub stock: u32,
    /// 1: all requests go to the first of --nodes; 2: they go to --targets
    #[arg(long, default_value_t = 2)]
    pub instances: u32,
    /// Over how long the buyers come, in seconds; 0 for all at once
    #[arg(long = "spread", default_value_t = 6, value_name = "SECONDS")]
    pub spread_seconds: u32,
    /// Whether the second sale begins when the first is over, so that neither takes the machine's time from the other.
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_turn: bool,
    /// Whether each buyer's first attempt is for another voucher, of which there is one: nearly all of these are rolled back.
    /// They are not judged. Meanwhile slow transactions lock the rows of both, so that the work outlasts short leases.
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub two_vouchers: bool,
    /// Whether a slow transaction locks the rows of both sales until all buyers are answered, and the last instance is killed
    /// before they are free: then it certainly has orders in its memory, if it keeps any there.
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kill_node: bool,
    /// What their order and moments are drawn from [default: a random one, which is printed]
    #[arg(long, default_value_t = drawn(), hide_default_value = true)]
    #[serde(default = "drawn")]
    pub seed: u32,
}

fn drawn() -> u32 {
    rand::random_range(1..1_000_000)
}

/// A fault that can be injected into the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InjectedFault {
    /// Redis serves no client for two seconds (CLIENT PAUSE), then goes on.
    PauseRedis,
    /// FLUSHALL: locks, stock counters, ids and sessions are gone. The buyers' sessions are put back.
    EmptyRedis,
    /// SIGKILL of the last instance, again and again for two seconds; after that, its supervisor can start it.
    KillInstance,
    /// For two seconds, every purchase lock's lease ends as soon as it is seen.
    CutLease,
}

impl InjectedFault {
    /// Every fault, in the order of the buttons.
    pub const ALL: [Self; 4] = [
        Self::PauseRedis,
        Self::EmptyRedis,
        Self::KillInstance,
        Self::CutLease,
    ];
}

/// A fault that was injected.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    pub at: f64,
    pub what: InjectedFault,
    /// How long it lasts, if it does. For a killed instance, this is known once it is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// How many leases were cut short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<u64>,
}

impl Event {
    /// When the effect of a fault ended. An instance that did not come back was away to the end.
    pub fn end(&self) -> f64 {
        match (self.seconds, self.what) {
            (Some(seconds), _) => self.at + seconds,
            (None, InjectedFault::KillInstance) => f64::INFINITY,
            // What was lost with Redis' data shows at once.
            (None, _) => self.at + 1.0,
        }
    }
}

/// One of the two sales.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lane {
    pub strategy: Strategy,
    /// How the strategy sells, in English and Chinese.
    pub idea: Text,
    /// Whether nothing can go wrong in it, on so many instances and with so many attempts of each buyer.
    pub safe: bool,
    /// How it went: as many samples as the other lane has.
    pub samples: Vec<Sample>,
    /// Attempts by the reply they got, up to the last sample.
    pub replies: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<LaneResult>,
    /// Attempts that show why they ended as they did.
    pub stories: Vec<Story>,
}

/// A look at a sale while it goes on.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    pub at: f64,
    /// Attempts answered so far.
    pub requests: u64,
    /// Stock by the database.
    pub stock: i64,
    /// Orders by the database, cancelled ones aside.
    pub rows: i64,
    /// Users who have an order.
    pub people: i64,
    /// Users who have more than one.
    pub repeated: i64,
    /// Orders beyond each user's first.
    pub duplicates: i64,
    /// Orders beyond what was issued, or stock below zero.
    pub oversold: i64,
    /// Since the last sample.
    pub requests_per_s: f64,
    pub orders_per_s: f64,
    /// Of the attempts answered since the last sample; `None` where there were none.
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
}

/// How a sale ended.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LaneResult {
    /// The verdict, compared to the guarantees of the strategy.
    pub conformance: Conformance,
    pub report: Report,
    /// Latency in ms by share of the attempts.
    pub curve: Vec<(f64, f64)>,
    /// Commits by the number of orders in them, up to each bound; on `group-commit` only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub batches: Vec<(u64, u64)>,
    /// Second orders that no lock kept away and the database's unique index refused.
    pub index_refused: u64,
    /// Locks of other requests that were deleted (误删).
    pub foreign_deletes: u64,
}

/// Requests that met, and how.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Story {
    pub kind: StoryKind,
    /// The fault that its requests met, where one was injected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<InjectedFault>,
    /// Why it ended so, in English and Chinese, where that follows from the strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Text>,
    /// By the time they were sent, or had the lock.
    pub requests: Vec<Request>,
}

/// What a story shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoryKind {
    /// Requests of one user that all ended in an order.
    TwoOrders,
    /// Requests of different users who read the same stock, and all took from it.
    Oversold,
    /// A request that was told an order, which was lost with the instance that was killed; and one whose order was written.
    Lost,
    /// Requests of one user at the same time, of which one ended in an order.
    Held,
}

/// One request of a story.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Which of its user's attempts.
    pub attempt: u32,
    pub user_id: String,
    /// Who answered.
    pub node: String,
    pub sent: f64,
    pub answered: f64,
    pub reply: String,
    /// Whether it was for another voucher.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// The order in the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_id: Option<String>,
    pub steps: Vec<Step>,
}
