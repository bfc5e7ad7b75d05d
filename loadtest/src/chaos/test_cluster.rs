//! The test cluster of a chaos run: a database, a Redis, two instances, and a proxy in front of each of the
//! first two. All of it is private, in a temporary folder, and gone at the end.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use testkit::{
    mariadb_server::MariaDbServer,
    process::{Process, TemporaryFolder, free_port},
    proxy::{Mode, Proxy},
    redis_server::{RedisServer, Role},
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, sleep_until},
};

use super::{
    faults::{Fault, INSTANCES, Planned},
    instance::Instance,
    redis_data,
};
use workload::{Access, Error, Target, buyers::Buyer, sessions};

/// What an instance is told besides addresses: limits short enough that a fault of a second goes beyond
/// them, and a lease short enough to run out within a round.
const SETTINGS: [(&str, &str); 5] = [
    ("DATABASE_TIMEOUT_MS", "1000"),
    ("REDIS_TIMEOUT_MS", "400"),
    ("REQUEST_TIMEOUT_MS", "12000"),
    ("LOCK_LEASE_MS", "1500"),
    ("RUST_LOG", "info"),
];

/// The servers.
#[derive(Debug)]
pub struct TestCluster {
    // Dropped first, and what they need last.
    instances: [Mutex<Instance>; INSTANCES],
    redis_proxy: Proxy,
    database_proxy: Proxy,
    redis: Mutex<RedisServer>,
    database: Mutex<MariaDbServer>,
    /// The servers themselves, past the proxies.
    pub access: Access,
    /// The instances.
    pub targets: Vec<Target>,
    folder: Arc<TemporaryFolder>,
}

impl TestCluster {
    /// Starts everything. `program` is the service's binary.
    ///
    /// # Errors
    /// [`Error::Server`]: what did not start, and what it said.
    pub async fn start(program: &Path) -> Result<Self, Error> {
        let program = std::path::absolute(program)
            .map_err(|source| Error::File { path: program.to_owned(), source })?;
        let folder = Arc::new(TemporaryFolder::new().map_err(server("temporary folder"))?);
        let database = MariaDbServer::start_in(folder.clone()).await.map_err(server("MariaDB"))?;
        let redis = RedisServer::start_in(folder.clone(), Role::Durable).await;
        let redis = redis.map_err(server("Redis"))?;
        let database_proxy = Proxy::start(database.address()).await.map_err(server("proxy"))?;
        let redis_proxy = Proxy::start(redis.address()).await.map_err(server("proxy"))?;
        let access = Access {
            database_url: database.url(),
            redis_url: redis.url(),
            admin_token: format!("{:032x}", rand::random::<u128>()),
            time_zone: chrono_tz::Asia::Shanghai,
        };
        prepare(&program, &access, folder.path())?;
        let instance = |number: usize| -> Result<Instance, Error> {
            let port = free_port().map_err(server("instance"))?;
            Ok(Instance {
                program: program.clone(),
                log: folder.path().join(format!("instance-{}.log", number + 1)),
                target: format!("http://127.0.0.1:{port}").parse()?,
                environment: Vec::new(),
                process: None,
            })
        };
        let instances = [instance(0)?, instance(1)?];
        let targets = instances.iter().map(|instance| instance.target.clone()).collect();
        let cluster = Self {
            instances: instances.map(Mutex::new),
            redis_proxy,
            database_proxy,
            redis: Mutex::new(redis),
            database: Mutex::new(database),
            access,
            targets,
            folder,
        };
        cluster.start_instances(true).await?;
        Ok(cluster)
    }

    /// Starts both instances (again), with their servers behind the proxies or without.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub async fn start_instances(&self, proxied: bool) -> Result<(), Error> {
        let (mut database, mut redis) =
            (self.access.database_url.clone(), self.access.redis_url.clone());
        if proxied {
            database = self.database.lock().await.url_at(self.database_proxy.address.port());
            redis = format!("redis://{}/", self.redis_proxy.address);
        }
        for instance in &self.instances {
            let mut instance = instance.lock().await;
            let settings = SETTINGS.map(|(name, value)| (name, value.to_owned()));
            instance.environment = settings.to_vec();
            instance.environment.extend([
                ("DATABASE_URL", database.clone()),
                ("REDIS_URL", redis.clone()),
                ("ADMIN_TOKEN", self.access.admin_token.clone()),
            ]);
            instance.restart().await?;
        }
        self.ready().await
    }

    /// Waits until both instances say that they can sell.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub async fn ready(&self) -> Result<(), Error> {
        for instance in &self.instances {
            instance.lock().await.ready().await?;
        }
        Ok(())
    }

    /// Injects one fault at its time, and undoes it. Faults of one server take turns.
    ///
    /// # Errors
    /// A server that cannot be broken as planned, or does not come back.
    pub async fn inject(&self, begin: Instant, planned: Planned) -> Result<(), Error> {
        sleep_until(begin + planned.at).await;
        let lasts = planned.lasts;
        match planned.what {
            Fault::KillInstance(which) => {
                let mut instance = self.instances[which].lock().await;
                instance.kill();
                sleep(lasts).await;
                instance.restart().await
            }
            Fault::StopInstance(which) => match &self.instances[which].lock().await.process {
                Some(process) => pause(process, lasts).await.map_err(server("instance")),
                None => Ok(()),
            },
            Fault::KillRedis(data) => {
                let mut redis = self.redis.lock().await;
                redis.kill();
                sleep(lasts).await;
                redis_data::restart(&mut redis, data).await
            }
            Fault::StopRedis => {
                let redis = self.redis.lock().await;
                pause(redis.process().map_err(server("Redis"))?, lasts)
                    .await
                    .map_err(server("Redis"))
            }
            Fault::EmptyRedis => {
                redis_data::command(&*self.redis.lock().await, &["FLUSHALL"]).await.map(drop)
            }
            Fault::KillDatabase => {
                let mut database = self.database.lock().await;
                database.kill();
                sleep(lasts).await;
                database.try_restart().await.map_err(server("MariaDB"))
            }
            Fault::StopDatabase => {
                let database = self.database.lock().await;
                let process = database.process().map_err(server("MariaDB"))?;
                pause(process, lasts).await.map_err(server("MariaDB"))
            }
            Fault::CutRedis => disturb(&self.redis_proxy, Mode::Cut, lasts).await,
            Fault::LoseRedisReplies => disturb(&self.redis_proxy, Mode::LoseReplies, lasts).await,
            Fault::CutDatabase => disturb(&self.database_proxy, Mode::Cut, lasts).await,
            Fault::LoseDatabaseReplies => {
                disturb(&self.database_proxy, Mode::LoseReplies, lasts).await
            }
            Fault::LoseCommits => disturb(&self.database_proxy, Mode::LoseCommit, lasts).await,
            Fault::LoseCommitReplies => {
                disturb(&self.database_proxy, Mode::LoseCommitReply, lasts).await
            }
        }
    }

    /// Writes the snapshot that an old Redis comes back with.
    ///
    /// # Errors
    /// [`Error::Redis`].
    pub async fn take_snapshot(&self) -> Result<(), Error> {
        redis_data::take_snapshot(&*self.redis.lock().await).await
    }

    /// Opens the buyers' sessions again, once Redis can be asked.
    ///
    /// # Errors
    /// [`Error::Redis`].
    pub async fn sign_in_again(&self, buyers: &[Buyer]) -> Result<(), Error> {
        // Held, so that no fault kills it meanwhile.
        let _redis = self.redis.lock().await;
        sessions::open(&self.access, buyers).await
    }

    /// Copies the servers' logs out of the temporary folder; returns their new folder.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn save_logs(&self) -> Result<PathBuf, Error> {
        let saved = self.folder.path().with_extension("logs");
        copy_logs(self.folder.path(), &saved)
            .map_err(|source| Error::File { path: saved.clone(), source })?;
        Ok(saved)
    }
}

/// An error of a server that the run itself started.
fn server(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::server(what, error.to_string())
}

/// Makes the tables, and a shop to which sales can belong.
fn prepare(program: &Path, access: &Access, folder: &Path) -> Result<(), Error> {
    for command in ["migrate", "seed"] {
        let failed = |reason: String| Error::server("seckill", format!("{command}: {reason}"));
        let mut prepare = Command::new(program);
        prepare.arg(command).current_dir(folder).env_clear();
        prepare.env("DATABASE_URL", &access.database_url).env("REDIS_URL", &access.redis_url);
        let output = prepare.output().map_err(|error| {
            failed(format!("{} does not run: {error} (--seckill)", program.display()))
        })?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
    }
    Ok(())
}

async fn pause(process: &Process, lasts: Duration) -> io::Result<()> {
    process.pause()?;
    sleep(lasts).await;
    process.resume()
}

async fn disturb(proxy: &Proxy, mode: Mode, lasts: Duration) -> Result<(), Error> {
    proxy.set(mode);
    sleep(lasts).await;
    proxy.set(Mode::Forward);
    Ok(())
}

/// Copies every `*.log` in `from` and its sub-folders to `to`.
fn copy_logs(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() {
            copy_logs(&path, to)?;
        } else if path.extension().is_some_and(|extension| extension == "log") {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}
