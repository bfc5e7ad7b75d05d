//! The servers of a chaos run: a database, a Redis, two instances, and a proxy in front of each of the
//! first two. All of it is private, in a temporary folder, and gone at the end.

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep, sleep_until},
};

use super::{
    database::Database,
    instance::Instance,
    mischief::{INSTANCES, Mischief, Planned},
    process::{Process, free_port},
    redis_server::RedisServer,
};
use testkit::proxy::{Mode, Proxy};

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

/// A temporary folder, removed at the end unless it is to be looked at.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Removes it should the tool be killed: it waits for the end of its input, which is the tool's.
    watcher: Child,
    keep: std::sync::atomic::AtomicBool,
}

/// The servers.
#[derive(Debug)]
pub struct Stand {
    // Dropped first, and what they stand on last.
    instances: [Mutex<Instance>; INSTANCES],
    redis_wire: Proxy,
    database_wire: Proxy,
    redis: Mutex<RedisServer>,
    database: Mutex<Database>,
    /// The servers themselves, past the proxies.
    pub access: Access,
    /// The instances.
    pub targets: Vec<Target>,
    folder: Folder,
}

impl Stand {
    /// Starts everything. `program` is the service's binary.
    ///
    /// # Errors
    /// [`Error::Server`]: what did not start, and what it said.
    pub async fn start(program: &Path) -> Result<Self, Error> {
        let folder = Folder::new()?;
        let database = Database::start(&folder.sub("database")?).await?;
        let redis = RedisServer::start(&folder.sub("redis")?).await?;
        let wire = |error: std::io::Error| Error::server("proxy", error.to_string());
        let at = |port: u16| format!("127.0.0.1:{port}");
        let database_wire = Proxy::start(at(database.port())).await.map_err(wire)?;
        let redis_wire = Proxy::start(at(redis.port())).await.map_err(wire)?;
        let access = Access {
            database_url: database.url(),
            redis_url: redis.url(),
            admin_token: format!("{:032x}", rand::random::<u128>()),
            time_zone: chrono_tz::Asia::Shanghai,
        };
        prepare(program, &access, &folder.path)?;
        let instance = |number: usize, port: u16| -> Result<Instance, Error> {
            Ok(Instance {
                program: program.to_owned(),
                log: folder.path.join(format!("instance-{}.log", number + 1)),
                target: format!("http://127.0.0.1:{port}").parse()?,
                environment: Vec::new(),
                process: None,
            })
        };
        let instances = [instance(0, free_port()?)?, instance(1, free_port()?)?];
        let targets = instances.iter().map(|instance| instance.target.clone()).collect();
        let stand = Self {
            instances: instances.map(Mutex::new),
            redis_wire,
            database_wire,
            redis: Mutex::new(redis),
            database: Mutex::new(database),
            access,
            targets,
            folder,
        };
        stand.start_instances(true).await?;
        Ok(stand)
    }

    /// Starts both instances (again), with their servers behind the proxies or without.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub async fn start_instances(&self, proxied: bool) -> Result<(), Error> {
        let (mut database, mut redis) =
            (self.access.database_url.clone(), self.access.redis_url.clone());
        if proxied {
            database = self.database.lock().await.url_at(self.database_wire.address.port());
            redis = format!("redis://{}/", self.redis_wire.address);
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

    /// Does one fault at its time, and undoes it. Faults of one server take turns.
    ///
    /// # Errors
    /// A server that cannot be broken as planned, or does not come back.
    pub async fn suffer(&self, begin: Instant, planned: Planned) -> Result<(), Error> {
        sleep_until(begin + planned.at).await;
        let lasts = planned.lasts;
        match planned.what {
            Mischief::KillInstance(which) => {
                let mut instance = self.instances[which].lock().await;
                instance.kill().await?;
                sleep(lasts).await;
                instance.restart().await
            }
            Mischief::StopInstance(which) => {
                let mut instance = self.instances[which].lock().await;
                stopped(instance.process.as_mut(), lasts).await
            }
            Mischief::KillRedis(back) => {
                let mut redis = self.redis.lock().await;
                redis.kill().await?;
                sleep(lasts).await;
                redis.restart(back).await
            }
            Mischief::StopRedis => stopped(self.redis.lock().await.process(), lasts).await,
            Mischief::EmptyRedis => self.redis.lock().await.command(&["FLUSHALL"]).await.map(drop),
            Mischief::KillDatabase => {
                let mut database = self.database.lock().await;
                database.kill().await?;
                sleep(lasts).await;
                database.restart().await
            }
            Mischief::StopDatabase => stopped(self.database.lock().await.process(), lasts).await,
            Mischief::CutRedis => wire(&self.redis_wire, Mode::Cut, lasts).await,
            Mischief::LoseRedisReplies => wire(&self.redis_wire, Mode::LoseReplies, lasts).await,
            Mischief::CutDatabase => wire(&self.database_wire, Mode::Cut, lasts).await,
            Mischief::LoseDatabaseReplies => {
                wire(&self.database_wire, Mode::LoseReplies, lasts).await
            }
            Mischief::LoseCommits => wire(&self.database_wire, Mode::LoseCommit, lasts).await,
            Mischief::LoseCommitReplies => {
                wire(&self.database_wire, Mode::LoseCommitReply, lasts).await
            }
        }
    }

    /// Writes the snapshot that an old Redis comes back with.
    ///
    /// # Errors
    /// [`Error::Redis`].
    pub async fn take_snapshot(&self) -> Result<(), Error> {
        self.redis.lock().await.take_snapshot().await
    }

    /// Opens the buyers' sessions again, once Redis can be asked.
    ///
    /// # Errors
    /// [`Error::Redis`].
    pub async fn sign_in_again(&self, buyers: &[Buyer]) -> Result<(), Error> {
        // Held, so that nobody kills it meanwhile.
        let _redis = self.redis.lock().await;
        sessions::open(&self.access, buyers).await
    }

    /// Keeps the logs when all ends, and says where.
    pub fn keep_logs(&self) -> &Path {
        self.folder.keep.store(true, std::sync::atomic::Ordering::Relaxed);
        &self.folder.path
    }
}

/// Tables, and a shop to which sales can belong.
fn prepare(program: &Path, access: &Access, folder: &Path) -> Result<(), Error> {
    for command in ["migrate", "seed"] {
        let fault = |reason: String| Error::server("seckill", format!("{command}: {reason}"));
        let mut prepare = Command::new(program);
        prepare.arg(command).current_dir(folder).env_clear();
        prepare.env("DATABASE_URL", &access.database_url).env("REDIS_URL", &access.redis_url);
        let output = prepare.output().map_err(|error| {
            fault(format!("{} does not run: {error} (--seckill)", program.display()))
        })?;
        if !output.status.success() {
            return Err(fault(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
    }
    Ok(())
}

async fn stopped(process: Option<&mut Process>, lasts: std::time::Duration) -> Result<(), Error> {
    let Some(process) = process else { return Ok(()) };
    process.stop()?;
    sleep(lasts).await;
    process.go_on()
}

async fn wire(wire: &Proxy, mode: Mode, lasts: std::time::Duration) -> Result<(), Error> {
    wire.set(mode);
    sleep(lasts).await;
    wire.set(Mode::Forward);
    Ok(())
}

impl Folder {
    fn new() -> Result<Self, Error> {
        let name = format!("seckill-chaos-{}-{:08x}", std::process::id(), rand::random::<u32>());
        let path = std::env::temp_dir().join(name);
        make(&path)?;
        let mut watcher = Command::new("sh");
        // A moment later: the servers in it are being killed in the same way.
        watcher.args(["-c", r#"trap "" INT TERM HUP; read _; sleep 1; rm -rf "$0""#]).arg(&path);
        watcher.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let watcher =
            watcher.spawn().map_err(|source| Error::File { path: path.clone(), source })?;
        Ok(Self { path, watcher, keep: false.into() })
    }

    fn sub(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        make(&path)?;
        Ok(path)
    }
}

fn make(path: &Path) -> Result<(), Error> {
    std::fs::create_dir(path).map_err(|source| Error::File { path: path.to_owned(), source })
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Fails only when somebody else has ended it.
        self.watcher.kill().ok();
        self.watcher.wait().ok();
        let keep = self.keep.load(std::sync::atomic::Ordering::Relaxed);
        let data = ["database/data", "redis/appendonlydir", "redis/dump.rdb"];
        let rubbish: Vec<PathBuf> = if keep {
            data.iter().map(|name| self.path.join(name)).collect()
        } else {
            vec![self.path.clone()]
        };
        for path in rubbish {
            let removed = if path.is_dir() {
                std::fs::remove_dir_all(&path)
            } else if path.exists() {
                std::fs::remove_file(&path)
            } else {
                continue;
            };
            if let Err(error) = removed {
                eprintln!("{}: {error}", path.display());
            }
        }
    }
}
