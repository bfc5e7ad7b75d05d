//! Updates: how long an old value is still served after `PUT /shop` has returned.
//!
//! One writer changes a shop's name to ever higher versions, one after the other, on the instances
//! in turn, while readers hammer all of them. A read that *began* after a change had been confirmed
//! must not return an older version; by how much it began too late is how stale it is. Meanwhile
//! the connections on which the nodes hear of invalidations are cut now and then.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hyper::{Method, header::HeaderValue};
use serde::Serialize;
use tokio::time::sleep;

use self::judge::{Board, Findings, judge};
use super::standing::{Outcome, Standing};
use crate::reads::{
    Answer, Read, Readers, RedisKeys, ShopTable, Source, Way, answer::Tally, readers::Job, way,
};
use workload::{
    Access, Error, Target,
    buyers::Envelope,
    http::{Call, Connection},
    latency::{Latency, Recorder},
    live::{Live, Progress},
};

pub mod judge;
mod show;

/// Time limit of one read or write.
const LIMIT: Duration = Duration::from_secs(10);
/// Beyond the bound, readers go on for so long after the last change.
const TAIL: Duration = Duration::from_millis(500);
/// Attempts to give the shop its name back.
const RESTORE_ATTEMPTS: u32 = 10;

/// Changes to make.
#[derive(Debug, Clone)]
pub struct UpdatesOptions {
    /// Servers and secrets.
    pub access: Access,
    /// The instances.
    pub targets: Vec<Target>,
    /// How many changes.
    pub updates: u64,
    /// Pause after each.
    pub pause: Duration,
    /// Readers per instance.
    pub readers: usize,
    /// The shop.
    pub shop_id: u64,
    /// How the readers read; `None`: the configured way.
    pub way: Option<Way>,
    /// How long an old value may be served after the change was confirmed.
    pub bound: Duration,
    /// Cut the invalidation connections during each so-manieth change; 0: never.
    pub cut_every: u64,
    /// Where progress goes.
    pub progress: Progress,
}

impl UpdatesOptions {
    /// Silent; 1,000 changes of shop 1, 16 readers per instance, a bound of 1 s, cut every 100.
    pub fn new(access: Access, targets: Vec<Target>) -> Self {
        Self {
            access,
            targets,
            updates: 1000,
            pause: Duration::from_millis(10),
            readers: 16,
            shop_id: 1,
            way: None,
            bound: Duration::from_secs(1),
            cut_every: 100,
            progress: Progress::Silent,
        }
    }
}

/// Changes that were made, and what the readers saw.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `updates`.
    pub scenario: &'static str,
    /// The instances.
    pub targets: Vec<String>,
    /// The readers' policy, or `the configured one`.
    pub policy: String,
    /// The shop.
    pub shop_id: u64,
    /// Changes confirmed.
    pub confirmed: u64,
    /// Changes that were not: refused, or without an answer.
    pub unconfirmed: u64,
    /// Latency of the changes.
    pub put: Latency,
    /// Times the invalidation connections were cut.
    pub cuts: u64,
    /// Connections that were cut, all together.
    pub connections_cut: u64,
    /// Whether cutting was asked for.
    pub cut_every: u64,
    /// How long an old value may be served, in milliseconds.
    pub bound_ms: u64,
    /// Reads, by answer.
    pub reads: Tally,
    /// Latency of the reads.
    pub latency: Latency,
    /// Reads that began after a change was confirmed and returned an older version.
    pub stale: u64,
    /// How long after that confirmation they began.
    pub staleness: Latency,
    /// The worst of them on each instance, in milliseconds.
    pub worst_ms: Vec<f64>,
    /// Reads of each instance that began after the last change was confirmed.
    pub tail_reads: Vec<u64>,
    /// Reads beyond the bound.
    pub beyond: u64,
    /// Reads that returned a name nobody had written yet.
    pub foreign: u64,
    /// The judgement.
    pub standing: Standing,
    /// What it amounts to.
    pub outcome: Outcome,
}

/// Makes the changes, judges the reads, and gives the shop its name back.
///
/// # Errors
/// A [`Error`] of the set-up.
pub async fn run(options: &UpdatesOptions) -> Result<Report, Error> {
    let admin_token = options.access.admin_header("changing a shop")?;
    let table = ShopTable::open(&options.access.database_url).await?;
    let keys = RedisKeys::open(&options.access).await?;
    let name = table.name(options.shop_id).await?;
    let mut readers = Readers::open(&options.targets, options.readers, LIMIT).await?;
    let prefix = format!("load test {:08x} version ", rand::random::<u32>());
    let watch = Arc::new(Watch {
        shop_id: options.shop_id,
        way: options.way,
        original: name.clone(),
        prefix,
        state: Mutex::new(State::new(options)),
        over: AtomicBool::new(false),
        live: Live::default(),
    });
    let mut writer = Writer::new(options, admin_token);
    let writing = async {
        let written = writer.write(options, &watch, &keys).await;
        // The readers must see for themselves that the last version is there everywhere.
        sleep(options.bound + TAIL).await;
        watch.over.store(true, Ordering::Relaxed);
        written
    };
    let both = async { tokio::join!(readers.drain(&watch), writing) };
    let (read, written) =
        options.progress.watch("changes", options.updates, &watch.live, both).await;
    writer.restore(options.shop_id, &name).await?;
    read?;
    written?;
    Ok(report(options, &watch, &writer))
}

/// Makes the changes.
struct Writer {
    connections: Vec<(String, Connection)>,
    token: HeaderValue,
    put: Recorder,
    unconfirmed: u64,
    cuts: u64,
    connections_cut: u64,
}

impl Writer {
    fn new(options: &UpdatesOptions, token: HeaderValue) -> Self {
        let connection =
            |target: &Target| (target.to_string(), Connection::new(target.clone(), LIMIT));
        Self {
            connections: options.targets.iter().map(connection).collect(),
            token,
            put: Recorder::new(3),
            unconfirmed: 0,
            cuts: 0,
            connections_cut: 0,
        }
    }

    async fn write(
        &mut self,
        options: &UpdatesOptions,
        watch: &Watch,
        keys: &RedisKeys,
    ) -> Result<(), Error> {
        for version in 1..=options.updates {
            watch.state().board.issue(version);
            let begin = Instant::now();
            let name = format!("{}{version}", watch.prefix);
            let put = self.put(version as usize, options.shop_id, &name);
            let confirmed = if options.cut_every > 0 && version % options.cut_every == 0 {
                // At the same time, so that the invalidation itself may be lost.
                let (confirmed, cut) = tokio::join!(put, keys.cut_subscribers());
                self.connections_cut += cut?;
                self.cuts += 1;
                confirmed?
            } else {
                put.await?
            };
            if confirmed {
                watch.state().board.confirm(version, Instant::now());
            } else {
                self.unconfirmed += 1;
            }
            self.put.record(begin.elapsed());
            watch.live.count(false);
            sleep(options.pause).await;
        }
        Ok(())
    }

    /// `PUT /shop`; `false`: not confirmed. A refusal that would meet every change ends the run.
    async fn put(&mut self, turn: usize, id: u64, name: &str) -> Result<bool, Error> {
        let at = turn % self.connections.len();
        let (url, connection) = &mut self.connections[at];
        let call = Call::new(Method::PUT, "/shop").admin(&self.token);
        let call = call.json(&serde_json::json!({"id": id, "name": name}));
        let Ok(response) = connection.send(&call).await else { return Ok(false) };
        let envelope = serde_json::from_slice::<Envelope<serde_json::Value>>(&response.body);
        match (response.status, envelope) {
            (200, Ok(Envelope { success: true, .. })) => Ok(true),
            (500.., _) => Ok(false),
            (status, Ok(Envelope { code, error_msg, .. })) => Err(Error::Refused {
                what: "a change of a shop",
                status,
                code: code.unwrap_or_else(|| "no code".to_owned()),
                message: error_msg.unwrap_or_default(),
                way_out: "ADMIN_TOKEN must be the service's own (`./dev env` prints it).",
            }),
            (status, Err(_)) => Err(Error::Unreachable {
                url: url.clone(),
                what: "PUT /shop",
                reason: format!("HTTP {status} without the reply envelope"),
            }),
        }
    }

    async fn restore(&mut self, id: u64, name: &str) -> Result<(), Error> {
        for attempt in 0..RESTORE_ATTEMPTS {
            if self.put(attempt as usize, id, name).await? {
                return Ok(());
            }
            sleep(Duration::from_millis(500)).await;
        }
        Err(Error::Usage(format!("shop {id} could not be given its name back; it was '{name}'")))
    }
}

/// What the readers know and find.
struct Watch {
    shop_id: u64,
    way: Option<Way>,
    original: String,
    prefix: String,
    state: Mutex<State>,
    over: AtomicBool,
    live: Live,
}

struct State {
    board: Board,
    findings: Findings,
    reads: Tally,
    latency: Recorder,
    staleness: Recorder,
}

impl State {
    fn new(options: &UpdatesOptions) -> Self {
        Self {
            board: Board::default(),
            findings: Findings::new(options.targets.len()),
            reads: Tally::default(),
            latency: Recorder::new(3),
            staleness: Recorder::new(3),
        }
    }
}

impl Watch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The version in a name; 0 is what was there before.
    fn version(&self, name: &str) -> Option<u64> {
        if name == self.original {
            return Some(0);
        }
        name.strip_prefix(&self.prefix)?.parse().ok()
    }
}

impl Source for Watch {
    fn next(&self, _target: usize) -> Option<Job> {
        let id = self.shop_id;
        let job = || Job { id, call: way::read(self.way, id), due: None };
        (!self.over.load(Ordering::Relaxed)).then(job)
    }

    fn ended(&self, read: Read) {
        let mut guard = self.state();
        let state = &mut *guard;
        state.reads.count(&read.answer);
        state.latency.record(read.latency());
        let Answer::Found { name, .. } = &read.answer else { return };
        let version = self.version(name);
        if let Some(stale) = state.findings.take(&state.board, read.target, read.sent, version) {
            state.staleness.record(stale);
        }
    }
}

fn report(options: &UpdatesOptions, watch: &Watch, writer: &Writer) -> Report {
    let mut state = watch.state();
    let bound = options.bound;
    state.findings.close(bound);
    let mut report = Report {
        scenario: "updates",
        targets: options.targets.iter().map(Target::to_string).collect(),
        policy: options.way.map_or("the configured one", Way::name).to_owned(),
        shop_id: options.shop_id,
        confirmed: state.board.confirmed(),
        unconfirmed: writer.unconfirmed,
        put: writer.put.summary(),
        cuts: writer.cuts,
        connections_cut: writer.connections_cut,
        cut_every: options.cut_every,
        bound_ms: bound.as_millis() as u64,
        reads: state.reads,
        latency: state.latency.summary(),
        stale: state.findings.stale,
        staleness: state.staleness.summary(),
        worst_ms: state.findings.worst.iter().map(|worst| worst.as_secs_f64() * 1e3).collect(),
        tail_reads: state.findings.tail.clone(),
        beyond: state.findings.beyond,
        foreign: state.findings.foreign,
        standing: Standing::Holds,
        outcome: Outcome::Clean,
    };
    report.standing = judge(&report);
    report.outcome = Outcome::of([&report.standing]);
    report
}
