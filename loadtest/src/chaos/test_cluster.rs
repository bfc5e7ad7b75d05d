//! A test cluster: the database and the Redis of a layout, instances, and proxies between them. All of it is private, in a
//! temporary folder, and gone at the end.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    slice,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use futures_util::future::{join_all, try_join_all};
use testkit::{
    clock,
    database_server::Settings,
    process::TemporaryFolder,
    proxy::{Mode, Proxy},
    replicated_database::ReplicatedDatabase,
};
use tokio::{sync::Mutex, time::timeout};

use super::{
    instance::Instance,
    options::Layout,
    redis_servers::{RedisProxies, RedisServers},
};
use crate::report::{CheckResult, Checked};
use workload::{Access, Target, order_rows::OrderRows};

/// How long a server may take to execute what reaches it late, beside another fault. Less than the proxy waits, which panics.
const EXECUTED_LIMIT: Duration = Duration::from_secs(45);

/// A server that the instances need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    Redis,
    Database,
}

/// A running test cluster.
#[derive(Debug)]
pub struct TestCluster {
    // Fields are dropped in this order: the instances before the servers that they need.
    pub instances: Vec<Mutex<Instance>>,
    redis_proxies: Arc<RedisProxies>,
    database_proxy: Proxy,
    /// Redis; locked while it is broken.
    pub redis: Mutex<RedisServers>,
    /// The database; locked while it is broken.
    pub database: Mutex<ReplicatedDatabase>,
    /// The file that the clock of each [`ServerKind`] follows; locked while the clock is wrong.
    pub clocks: [Mutex<PathBuf>; 2],
    /// The file that the clock of each instance follows, if its servers are behind proxies; locked likewise.
    pub instance_clocks: Vec<Mutex<PathBuf>>,
    /// The instances' settings besides addresses.
    settings: Vec<(&'static str, &'static str)>,
    /// How to reach the servers themselves, past the proxies.
    pub access: Access,
    /// The service's tables.
    pub order_rows: OrderRows,
    pub targets: Vec<Target>,
    pub folder: Arc<TemporaryFolder>,
}

impl TestCluster {
    /// Starts the servers of a layout, the database with these arguments, and makes so many instances, which
    /// [`run`](Self::run) starts with these settings.
    pub async fn start(
        program: &Path,
        layout: Layout,
        database_arguments: &[&str],
        count: usize,
        settings: &[(&'static str, &'static str)],
    ) -> Result<Self> {
        let folder = Arc::new(TemporaryFolder::new()?);
        let clocks = ["redis.clock", "database.clock"].map(|name| folder.path().join(name));
        let instance_clocks: Vec<PathBuf> = (1..=count)
            .map(|number| folder.path().join(format!("instance-{number}.clock")))
            .collect();
        for file in clocks.iter().chain(&instance_clocks) {
            clock::step(file, 0)?;
        }
        let database_settings = Settings {
            arguments: database_arguments
                .iter()
                .map(|&word| word.to_owned())
                .collect(),
            environment: if layout.oceanbase {
                Vec::new()
            } else {
                clock::environment(&clocks[ServerKind::Database as usize])
            },
        };
        let database =
            ReplicatedDatabase::start_in(folder.clone(), layout.database, database_settings)
                .await?;
        let environment = clock::environment(&clocks[ServerKind::Redis as usize]);
        let redis = RedisServers::start(layout.redis, &folder, environment, count).await?;
        let database_proxy = Proxy::start(database.address()).await?;
        let access = access(database.url(), redis.url(None));
        let binary = program.to_owned();
        let servers = access.clone();
        // In a thread of its own: this one serves the proxies.
        tokio::task::spawn_blocking(move || prepare(&binary, &servers)).await??;
        let order_rows = OrderRows::open(&access.database_url).await?;
        let instances = (1..=count).map(|number| Instance::new(program, number, folder.path()));
        let instances = instances.collect::<Result<Vec<_>>>()?;
        let targets = instances
            .iter()
            .map(|instance| instance.target.clone())
            .collect();
        Ok(Self {
            instances: instances.into_iter().map(Mutex::new).collect(),
            redis_proxies: redis.proxies.clone(),
            database_proxy,
            redis: Mutex::new(redis),
            database: Mutex::new(database),
            clocks: clocks.map(Mutex::new),
            instance_clocks: instance_clocks.into_iter().map(Mutex::new).collect(),
            settings: settings.to_vec(),
            access,
            order_rows,
            targets,
            folder,
        })
    }

    /// Starts the instances, or restarts those that run. If `proxied`, they reach their servers through the proxies. Unpaid
    /// orders expire after `unpaid_seconds`, 0 for never.
    pub async fn run(&self, proxied: bool, unpaid_seconds: u32) -> Result<()> {
        let mut database = self.access.database_url.clone();
        if proxied {
            let port = self.database_proxy.address.port();
            database = self.database.lock().await.primary().url_at(port);
        }
        let redis = self.redis.lock().await;
        let restarting = self
            .instances
            .iter()
            .enumerate()
            .map(async |(number, instance)| {
                let mut instance = instance.lock().await;
                let settings = self
                    .settings
                    .iter()
                    .map(|(name, value)| (*name, (*value).to_owned()));
                instance.environment = settings.collect();
                instance.environment.extend([
                    ("DATABASE_URL", database.clone()),
                    ("REDIS_URL", redis.url(proxied.then_some(number))),
                    ("ADMIN_TOKEN", self.access.admin_token.clone()),
                    ("UNPAID_SECONDS", unpaid_seconds.to_string()),
                ]);
                if proxied {
                    let file = self.instance_clocks[number].lock().await;
                    instance.environment.extend(clock::environment(&file));
                    // Otherwise the library reads the file once a second, which is too seldom for a sale.
                    instance
                        .environment
                        .push(("FAKETIME_NO_CACHE", "1".to_owned()));
                }
                // Not killed: what it would leave behind would be a fault that was not drawn.
                instance.end().await?;
                instance.restart().await
            });
        try_join_all(restarting).await?;
        self.ready().await.map(drop)
    }

    /// Waits until all instances say that they can sell; returns how long the last one took.
    pub async fn ready(&self) -> Result<Duration> {
        let waiting = self
            .instances
            .iter()
            .map(async |instance| instance.lock().await.ready().await);
        let took = try_join_all(waiting).await?;
        Ok(took.into_iter().max().unwrap_or_default())
    }

    /// Changes what the proxies in front of a server do to the instances' connections.
    pub fn set_proxies(&self, kind: ServerKind, mode: Mode) {
        for proxy in self.proxies(kind) {
            proxy.set(mode);
        }
    }

    /// Passes on what these proxies hold; returns when the server has executed it.
    pub async fn pass_held(&self, kind: ServerKind) -> Result<()> {
        let passing = join_all(self.proxies(kind).iter().map(Proxy::pass_held));
        timeout(EXECUTED_LIMIT, passing)
            .await
            .with_context(|| {
                format!("{kind:?} did not execute what arrived late within {EXECUTED_LIMIT:?}")
            })
            .map(drop)
    }

    fn proxies(&self, kind: ServerKind) -> &[Proxy] {
        match kind {
            ServerKind::Redis => &self.redis_proxies.nodes,
            ServerKind::Database => slice::from_ref(&self.database_proxy),
        }
    }

    /// Keeps the servers' logs if a run on them failed or found a violation.
    pub fn keep_logs(&self, run: Result<Checked>) -> Result<Checked> {
        if run
            .as_ref()
            .is_ok_and(|report| report.result() != CheckResult::Violation)
        {
            return run;
        }
        match save_logs(self.folder.path()) {
            Ok(logs) => eprintln!("the servers' logs are in {}", logs.display()),
            Err(error) => eprintln!("the servers' logs were not kept: {error}"),
        }
        run
    }
}

/// How to reach the servers of a run.
pub(crate) fn access(database_url: String, redis_url: String) -> Access {
    Access {
        database_url,
        redis_url,
        admin_token: format!("{:032x}", rand::random::<u128>()),
        time_zone: chrono_tz::Asia::Shanghai,
        key_style: None,
    }
}

/// Makes the tables, and a shop to which sales can belong.
fn prepare(program: &Path, access: &Access) -> Result<()> {
    for command in ["migrate", "seed"] {
        let mut prepare = Command::new(program);
        prepare.arg(command).env_clear();
        prepare
            .env("DATABASE_URL", &access.database_url)
            .env("REDIS_URL", &access.redis_url);
        let output = prepare
            .output()
            .map_err(|error| anyhow!("{} does not run: {error} (--seckill)", program.display()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "seckill {command}: {errors}");
    }
    Ok(())
}

/// Copies every `*.log` in `folder` and its sub-folders to a folder beside it, which it returns.
fn save_logs(folder: &Path) -> Result<PathBuf> {
    let saved = folder.with_extension("logs");
    fs::create_dir_all(&saved)?;
    let mut copy = Command::new("find");
    // With their folders, because the logs of several servers have the same name.
    copy.current_dir(folder)
        .args([".", "-name", "*.log", "-exec", "cp", "--parents", "-t"]);
    let copied = copy.arg(&saved).args(["{}", "+"]).status()?;
    ensure!(copied.success(), "find: {copied}");
    Ok(saved)
}
