//! The runs: one at a time, each in a thread of its own, so that this instance's own work is disturbed by the load
//! no more than the other's; the last ones are kept in memory.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use chrono::{NaiveDateTime, Utc};
use rustix::process::{Signal, getpid, kill_process};
use seckill_loadtest::buyers::Buyer;
use seckill_loadtest::duel::document::{Setting, State};
use seckill_loadtest::duel::mischief::Mischief;
use seckill_loadtest::duel::{self, Board, Ground};
use seckill_loadtest::live::Progress;
use seckill_loadtest::scenario::rungs::Standing;
use seckill_loadtest::{Access, Fault, Target};
use secrecy::ExposeSecret;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use utoipa::ToSchema;

use crate::clock::Zone;
use crate::config::ServeConfig;
use crate::error::Error;

/// Runs that are kept.
const KEPT: usize = 20;

/// How long a fault is given to say that it cannot be done.
const PATIENCE: Duration = Duration::from_millis(300);

/// The lab. Cheap to clone.
#[derive(Clone)]
pub struct Lab(Arc<Inner>);

struct Inner {
    ground: Ground,
    node: String,
    zone: Zone,
    runs: Mutex<Runs>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Runs {
    /// Newest first.
    boards: VecDeque<Arc<Board>>,
    /// Buyers of earlier runs, who need not sign in again.
    crowd: Vec<Buyer>,
}

/// A run that was begun.
#[derive(Serialize, ToSchema)]
pub struct Started {
    /// Names it in links.
    id: String,
    /// What its buyers' moments are drawn from.
    seed: u64,
}

/// A run, in a list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    id: String,
    seed: u64,
    started_at: String,
    state: State,
    setting: Setting,
    /// The verdict on each lane, once there is one.
    standings: Vec<Standing>,
}

impl Lab {
    /// The lab of the instance that listens on `address` and is called `node`.
    pub fn new(config: &ServeConfig, node: String, address: SocketAddr) -> anyhow::Result<Self> {
        // An instance that listens everywhere is asked by the shortest way.
        let host = if address.ip().is_unspecified() {
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        } else {
            address.ip()
        };
        let own = format!("http://{}", SocketAddr::new(host, address.port()));
        let target = |url: &String| url.parse::<Target>().context("--lab-entry or --lab-peers");
        let own = target(&own)?;
        let peers: Vec<_> =
            config.lab.lab_peers.iter().map(target).collect::<anyhow::Result<_>>()?;
        // The first conducts: it is the one that is never killed.
        let mut nodes = vec![own.clone()];
        nodes.extend(peers.into_iter().filter(|peer| *peer != own));
        let secret = |secret: &secrecy::SecretString| secret.expose_secret().to_owned();
        let ground = Ground {
            access: Access {
                database_url: secret(&config.database.database_url),
                redis_url: secret(&config.redis.redis_url),
                admin_token: config.http.admin_token.as_ref().map(secret).unwrap_or_default(),
                time_zone: config.sale.time_zone.0,
            },
            entry: match &config.lab.lab_entry {
                Some(entry) => vec![target(entry)?],
                None => nodes.clone(),
            },
            nodes,
            progress: Progress::Silent,
        };
        let (runs, tasks) = (Mutex::default(), TaskTracker::new());
        Ok(Lab(Arc::new(Inner { ground, node, zone: config.sale.time_zone, runs, tasks })))
    }

    /// The name of this instance.
    pub fn node(&self) -> &str {
        &self.0.node
    }

    /// How many instances there are.
    pub fn nodes(&self) -> usize {
        self.0.ground.nodes.len()
    }

    /// The run that is under way.
    pub fn running(&self) -> Option<String> {
        let runs = self.runs();
        let newest = runs.boards.front().filter(|board| board.state().is_under_way());
        newest.map(|board| board.id().to_owned())
    }

    /// Begins a run. [`Error::RunUnderWay`] while there is one, [`Error::InvalidParameter`] where the setting
    /// cannot be run here.
    pub fn start(&self, setting: Setting) -> Result<Started, Error> {
        setting.check(self.nodes()).map_err(|fault| Error::InvalidParameter(fault.to_string()))?;
        let id = format!("{:08x}", rand::random::<u32>());
        let now = self.0.zone.to_local(Utc::now());
        let board = Arc::new(Board::new(id.clone(), setting, text(now)));
        let started = Started { id: id.clone(), seed: board.seed() };
        let known = {
            let mut runs = self.runs();
            if runs.boards.front().is_some_and(|board| board.state().is_under_way()) {
                return Err(Error::RunUnderWay);
            }
            runs.boards.push_front(board.clone());
            runs.boards.truncate(KEPT);
            runs.crowd.clone()
        };
        let ground = self.0.ground.clone();
        let (end, ended) = oneshot::channel();
        let running = board.clone();
        let thread = std::thread::Builder::new().name("lab".to_owned()).spawn(move || {
            // Nobody waits for it once the process is ending.
            end.send(conduct(&ground, &running, &known)).ok();
        });
        let lab = self.clone();
        self.0.tasks.spawn(async move {
            let outcome = match thread {
                Ok(_) => ended.await.map_err(|_| "the run's thread panicked".to_owned()),
                Err(fault) => Err(format!("no thread for the run: {fault}")),
            };
            if let Err(fault) =
                outcome.and_then(|outcome| outcome.map_err(|fault| fault.to_string()))
            {
                tracing::warn!(run = id, %fault, "a run of the lab failed");
                board.fail(&fault);
            }
            if let Some(buyers) = board.buyers() {
                lab.runs().crowd = buyers.to_vec();
            }
        });
        Ok(started)
    }

    /// The runs that are kept, newest first.
    pub fn kept(&self) -> Vec<Kept> {
        let kept = |board: &Arc<Board>| {
            let run = board.document(usize::MAX);
            let results = run.lanes.into_iter().filter_map(|lane| lane.result);
            Kept {
                id: run.id,
                seed: run.seed,
                started_at: run.started_at,
                state: run.state,
                setting: run.setting,
                standings: results.map(|result| result.standing).collect(),
            }
        };
        self.runs().boards.iter().map(kept).collect()
    }

    /// A run by its id.
    pub fn find(&self, id: &str) -> Result<Arc<Board>, Error> {
        let runs = self.runs();
        let found = runs.boards.iter().find(|board| board.id() == id);
        found.cloned().ok_or(Error::RunNotFound)
    }

    /// Does something to the servers while a run is selling. Returns as soon as it is under way, or has failed.
    pub async fn play(&self, mischief: Mischief) -> Result<(), Error> {
        let board = self.runs().boards.front().cloned();
        let board = board.filter(|board| board.state() == State::Running).ok_or(Error::NoRun)?;
        tracing::warn!(mischief = mischief.name(), "the lab hurts the servers");
        let ground = self.0.ground.clone();
        let mut playing = self.0.tasks.spawn(async move {
            let outcome = mischief.play(&ground, &board).await;
            if let Err(fault) = &outcome {
                tracing::warn!(%fault, "a fault of the lab could not be played to its end");
            }
            outcome
        });
        match tokio::time::timeout(PATIENCE, &mut playing).await {
            // It lasts; the tracker sees it to its end.
            Err(_) => Ok(()),
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(fault))) => Err(Error::LabFault(fault.to_string())),
            Ok(Err(fault)) => Err(Error::Internal(format!("a fault's task: {fault}"))),
        }
    }

    /// Stops what runs, and waits for its end.
    pub async fn shutdown(&self) {
        if let Some(board) = self.runs().boards.front() {
            board.stop();
        }
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As date-times are on the wire.
fn text(local: NaiveDateTime) -> String {
    local.format("%Y-%m-%dT%H:%M:%S").to_string()
}

/// Runs it on a runtime of its own, as the load tool does.
fn conduct(ground: &Ground, board: &Board, known: &[Buyer]) -> Result<(), Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|fault| Fault::Usage(format!("no runtime: {fault}")))?;
    runtime.block_on(duel::run(ground, board, known))
}

/// `kill -9` of this process.
pub fn kill_this_process() -> ! {
    if let Err(fault) = kill_process(getpid(), Signal::KILL) {
        tracing::warn!(%fault, "the system refuses to kill this process");
    }
    // Reached by the first process of a container, to which a signal from within does nothing.
    std::process::abort()
}
