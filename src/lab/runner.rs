//! The lab's runs: one at a time, each in a thread of its own, so that the load disturbs this instance no more than the
//! others; the last ones are kept in memory.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Signal, getpid, kill_process};
use secrecy::ExposeSecret;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use utoipa::ToSchema;
use workload::Environment;
use workload::comparison::document::{Document, InjectedFault, Setting, State};
use workload::comparison::{self, RunState};
use workload::live::Progress;
use workload::{Access, Target};

use super::session_story;
use crate::clock::Zone;
use crate::config::ServeConfig;
use crate::error::Error;

const KEPT: usize = 20;

/// How long a fault is waited for, in case it fails at once.
const FAILS_WITHIN: Duration = Duration::from_millis(300);

/// The lab. Cheap to clone.
#[derive(Clone)]
pub struct Lab(Arc<Inner>);

struct Inner {
    environment: Environment,
    node: String,
    zone: Zone,
    /// Newest first.
    runs: Mutex<VecDeque<Arc<RunState>>>,
    tasks: TaskTracker,
}

/// A run that was begun.
#[derive(Serialize, ToSchema)]
pub struct Started {
    /// Its id, which links contain.
    id: String,
    /// The seed of the buyers' arrival times.
    seed: u64,
}

impl Lab {
    /// The lab of the instance that listens on `address` and is called `node`.
    pub fn new(config: &ServeConfig, node: String, address: SocketAddr) -> anyhow::Result<Self> {
        // An instance that listens on all addresses is reached over the loopback.
        let host = if address.ip().is_unspecified() {
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        } else {
            address.ip()
        };
        let own: Target = format!("http://{}", SocketAddr::new(host, address.port())).parse()?;
        let is_other = |peer: &&Target| peer.to_string() != own.to_string();
        let peers = config.lab_peers.iter().filter(is_other).cloned();
        // The first runs the load, so it is never killed.
        let nodes: Vec<Target> = std::iter::once(own.clone()).chain(peers).collect();
        let secret = |secret: &secrecy::SecretString| secret.expose_secret().to_owned();
        let environment = Environment {
            access: Access {
                database_url: secret(&config.database.database_url),
                redis_url: secret(&config.redis.redis_url),
                admin_token: config
                    .http
                    .admin_token
                    .as_ref()
                    .map(secret)
                    .unwrap_or_default(),
                time_zone: config.sale.time_zone.0,
                key_style: config.redis.key_style,
            },
            targets: config
                .lab_entry
                .clone()
                .map_or_else(|| nodes.clone(), |entry| vec![entry]),
            nodes,
            progress: Progress::Silent,
        };
        let (runs, tasks) = (Mutex::default(), TaskTracker::new());
        Ok(Lab(Arc::new(Inner {
            environment,
            node,
            zone: config.sale.time_zone,
            runs,
            tasks,
        })))
    }

    /// The name of this instance.
    pub fn node(&self) -> &str {
        &self.0.node
    }

    /// How many instances there are.
    pub fn nodes(&self) -> usize {
        self.0.environment.nodes.len()
    }

    /// The run that is under way.
    pub fn running(&self) -> Option<String> {
        let runs = self.0.runs.lock();
        let newest = runs.front().filter(|run| run.state().is_under_way());
        newest.map(|run| run.id())
    }

    /// Begins a run. [`Error::RunUnderWay`] while there is one, [`Error::InvalidParameter`] where the setting
    /// cannot be run here.
    pub fn start(&self, setting: Setting) -> Result<Started, Error> {
        setting
            .check(self.nodes())
            .map_err(|error| Error::InvalidParameter(error.to_string()))?;
        let id = format!("{:08x}", rand::random::<u32>());
        // As date-times are on the wire.
        let now = self.0.zone.now().format("%Y-%m-%dT%H:%M:%S").to_string();
        let started = Started {
            id: id.clone(),
            seed: setting.seed.into(),
        };
        let run = Arc::new(RunState::new(id.clone(), setting, now));
        {
            let mut runs = self.0.runs.lock();
            if runs.front().is_some_and(|run| run.state().is_under_way()) {
                return Err(Error::RunUnderWay);
            }
            runs.push_front(run.clone());
            runs.truncate(KEPT);
        }
        let environment = self.0.environment.clone();
        let (end, ended) = oneshot::channel();
        let running = run.clone();
        let thread = std::thread::Builder::new()
            .name("lab".to_owned())
            .spawn(move || {
                // The receiver is gone once the process is ending.
                end.send(conduct(&environment, &running)).ok();
            });
        self.0.tasks.spawn(async move {
            let outcome = match thread {
                Ok(_) => ended
                    .await
                    .map_err(|_| "the run's thread panicked".to_owned()),
                Err(error) => Err(format!("no thread for the run: {error}")),
            };
            if let Err(error) =
                outcome.and_then(|outcome| outcome.map_err(|error| error.to_string()))
            {
                tracing::warn!(run = id, %error, "a run of the lab failed");
                run.fail(&error);
            }
        });
        Ok(started)
    }

    /// The runs that are kept, newest first; with how each lane compares to its guarantees, once it is judged.
    pub fn kept(&self) -> Vec<Value> {
        let summary = |state: &Arc<RunState>| {
            let Document {
                id,
                started_at,
                state,
                setting,
                lanes,
                ..
            } = state.document(usize::MAX);
            let results = lanes.into_iter().filter_map(|lane| lane.result);
            let conformances: Vec<_> = results.map(|result| result.conformance).collect();
            json!({
                "id": id, "startedAt": started_at, "state": state, "setting": setting,
                "conformances": conformances,
            })
        };
        self.0.runs.lock().iter().map(summary).collect()
    }

    /// A run by its id.
    pub fn find(&self, id: &str) -> Result<Arc<RunState>, Error> {
        let runs = self.0.runs.lock();
        let found = runs.iter().find(|run| run.id() == id);
        found.cloned().ok_or(Error::RunNotFound)
    }

    /// Injects a fault while a run is selling. Returns as soon as the fault is under way, or has failed.
    pub async fn inject(&self, fault: InjectedFault) -> Result<(), Error> {
        let run = self.0.runs.lock().front().cloned();
        let run = run
            .filter(|run| run.state() == State::Running)
            .ok_or(Error::NoRun)?;
        tracing::warn!(?fault, "the lab injects a fault");
        let environment = self.0.environment.clone();
        let mut injecting = self.0.tasks.spawn(async move {
            let outcome = fault.inject(&environment, &run).await;
            if let Err(error) = &outcome {
                tracing::warn!(%error, ?fault, "a fault of the lab could not be injected to its end");
            }
            outcome
        });
        match tokio::time::timeout(FAILS_WITHIN, &mut injecting).await {
            // It goes on; the tracker waits for its end.
            Err(_) => Ok(()),
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(Error::LabFault(error.to_string())),
            Ok(Err(error)) => Err(Error::Internal(format!("a fault's task: {error}"))),
        }
    }

    /// Plays the story of a session in one node's memory, at this instance and the next.
    ///
    /// # Errors
    /// [`Error::LabFault`] where there is one instance, or the sign-in fails.
    pub async fn session_story(&self) -> Result<Value, Error> {
        let [own, other, ..] = &self.0.environment.nodes[..] else {
            return Err(Error::LabFault(
                "this needs two instances, and there is one".to_owned(),
            ));
        };
        session_story::play(own, other).await
    }

    /// Stops what runs, and waits for its end.
    pub async fn shutdown(&self) {
        if let Some(run) = self.0.runs.lock().front() {
            run.stop();
        }
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

/// Runs it on a runtime of its own, as the load tool does.
fn conduct(environment: &Environment, run: &RunState) -> Result<(), workload::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| workload::Error::Usage(format!("no runtime: {error}")))?;
    runtime.block_on(comparison::run(environment, run))
}

/// `kill -9` of this process.
pub fn kill_this_process() -> ! {
    if let Err(error) = kill_process(getpid(), Signal::KILL) {
        tracing::warn!(%error, "the system refuses to kill this process");
    }
    // Reached by the first process of a container, to which a signal from within does nothing.
    std::process::abort()
}
