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

use clap::{Args, value_parser};
use hyper::{Method, header::HeaderValue};
use testkit::wait::poll;
use tokio::time::sleep;

use self::{
    check::{Findings, Versions, check},
    report::Report,
};
use super::check_result::CheckResult;
use crate::{
    options::Instances,
    reads::{
        Answer, Read, ReadStrategy, Readers, RedisKeys, ShopTable, Source, answer::Tally,
        read_strategy, readers::Job,
    },
};
use workload::{
    Error, Target,
    buyers::Envelope,
    http::{Call, Connection},
    latency::Recorder,
    live::Live,
};

pub mod check;
pub mod report;

/// Time limit of one read or write.
const LIMIT: Duration = Duration::from_secs(10);
/// Beyond the bound, readers go on for so long after the last change.
const TAIL: Duration = Duration::from_millis(500);
/// Longest attempt to give the shop its name back.
const RESTORE_LIMIT: Duration = Duration::from_secs(5);

/// Options of a run of updates.
#[derive(Debug, Clone, Args)]
pub struct UpdatesOptions {
    /// Changes of the shop's name, one after the other
    #[arg(long, default_value_t = 1000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub updates: u64,
    /// Pause after each change, in milliseconds
    #[arg(long, default_value_t = 10, value_name = "MS")]
    pub pause_ms: u64,
    /// Readers per instance
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(1..=10_000))]
    pub readers: u32,
    /// How long an old value may still be served after its change was confirmed, in milliseconds
    #[arg(long, default_value_t = 1000, value_name = "MS")]
    pub bound_ms: u64,
    /// Cut the invalidation connections (CLIENT KILL TYPE pubsub) during every n-th change; 0:
    /// never
    #[arg(long, default_value_t = 100, value_name = "UPDATES")]
    pub cut_every: u64,
    /// The readers' read strategy [default: the configured one]
    #[arg(long, alias = "policy", value_name = "NAME")]
    pub read_strategy: Option<ReadStrategy>,
    /// The shop; it gets its name back at the end
    #[arg(long, default_value_t = 1, value_name = "ID")]
    pub shop_id: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub instances: Instances,
}

/// Makes the changes, judges the reads, and gives the shop its name back.
///
/// # Errors
/// An [`Error`] of the set-up.
pub async fn run(options: &UpdatesOptions) -> Result<Report, Error> {
    let admin_token = options.instances.access.admin_header("changing a shop")?;
    let table = ShopTable::open(&options.instances.access.database_url).await?;
    let keys = RedisKeys::open(&options.instances.access).await?;
    let name = table.name(options.shop_id).await?;
    let mut readers = Readers::open(&options.instances.targets, options.readers, LIMIT).await?;
    let prefix = format!("load test {:08x} version ", rand::random::<u32>());
    let watch = Arc::new(Watch {
        shop_id: options.shop_id,
        strategy: options.read_strategy,
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
        sleep(Duration::from_millis(options.bound_ms) + TAIL).await;
        watch.over.store(true, Ordering::Relaxed);
        written
    };
    let both = async { tokio::join!(readers.drain(&watch), writing) };
    let (read, written) =
        options.instances.progress.watch("changes", options.updates, &watch.live, both).await;
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
            connections: options.instances.targets.iter().map(connection).collect(),
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
            watch.state().versions.issue(version);
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
                watch.state().versions.confirm(version, Instant::now());
            } else {
                self.unconfirmed += 1;
            }
            self.put.record(begin.elapsed());
            watch.live.count(false);
            sleep(Duration::from_millis(options.pause_ms)).await;
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
        let mut turn = 0;
        let restored = poll(RESTORE_LIMIT, Duration::from_millis(500), async || {
            turn += 1;
            Ok::<_, Error>(self.put(turn, id, name).await?.then_some(()))
        });
        restored.await?.ok_or_else(|| {
            Error::Usage(format!("shop {id} could not be given its name back; it was '{name}'"))
        })
    }
}

/// What the readers know and find.
struct Watch {
    shop_id: u64,
    strategy: Option<ReadStrategy>,
    original: String,
    prefix: String,
    state: Mutex<State>,
    over: AtomicBool,
    live: Live,
}

struct State {
    versions: Versions,
    findings: Findings,
    reads: Tally,
    latency: Recorder,
    staleness: Recorder,
}

impl State {
    fn new(options: &UpdatesOptions) -> Self {
        Self {
            versions: Versions::default(),
            findings: Findings::new(options.instances.targets.len()),
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
        let job = || Job { id, call: read_strategy::read(self.strategy, id), due: None };
        (!self.over.load(Ordering::Relaxed)).then(job)
    }

    fn ended(&self, read: Read) {
        let mut guard = self.state();
        let state = &mut *guard;
        state.reads.count(&read.answer);
        state.latency.record(read.latency());
        let Answer::Found { name, .. } = &read.answer else { return };
        let version = self.version(name);
        if let Some(stale) = state.findings.take(&state.versions, read.target, read.sent, version) {
            state.staleness.record(stale);
        }
    }
}

fn report(options: &UpdatesOptions, watch: &Watch, writer: &Writer) -> Report {
    let mut state = watch.state();
    let bound = Duration::from_millis(options.bound_ms);
    state.findings.close(bound);
    let mut report = Report {
        scenario: "updates",
        targets: options.instances.urls(),
        read_strategy: read_strategy::name(options.read_strategy),
        shop_id: options.shop_id,
        confirmed: state.versions.confirmed(),
        unconfirmed: writer.unconfirmed,
        put: writer.put.summary(),
        cuts: writer.cuts,
        connections_cut: writer.connections_cut,
        cut_every: options.cut_every,
        bound_ms: options.bound_ms,
        reads: state.reads,
        latency: state.latency.summary(),
        stale: state.findings.stale,
        staleness: state.staleness.summary(),
        worst_ms: state.findings.worst.iter().map(|worst| worst.as_secs_f64() * 1e3).collect(),
        tail_reads: state.findings.tail.clone(),
        beyond: state.findings.beyond,
        foreign: state.findings.foreign,
        check: CheckResult::Holds,
    };
    report.check = check(&report);
    report
}
