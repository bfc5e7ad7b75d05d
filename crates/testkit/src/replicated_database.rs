//! A throw-away MariaDB primary with one replica, and a proxy before both as their one address; or one server alone.
//!
//! The operator's part, which MaxScale, Orchestrator or a cloud does elsewhere, is a method each: [`ReplicatedDatabase::promote`],
//! [`ReplicatedDatabase::switch_over`], [`ReplicatedDatabase::rejoin`]. Nothing happens by itself.

use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{Executor, MySqlConnection, Row};

use super::database_server::{DatabaseServer, PASSWORD, Product, Settings, run};
use super::process::TemporaryFolder;
use super::proxy::Proxy;
use super::wait::poll;

/// How long the replica may take to connect, and to apply what it received, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// From one look at a server's state to the next.
const PAUSE: Duration = Duration::from_millis(20);

/// What a commit waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Replication {
    /// For nothing, as there is no replica.
    #[default]
    None,
    /// For the replica to have received it, before anybody can read it (`AFTER_SYNC`); for ten minutes at most. A test ends
    /// sooner, so replication never becomes asynchronous by itself.
    SemiSynchronous,
    /// For nothing: the replica may lack what the primary has confirmed.
    Asynchronous,
}

/// The two servers and the proxy. Each server has an empty database `seckill` at first, and the same users.
#[derive(Debug)]
pub struct ReplicatedDatabase {
    replication: Replication,
    /// Arguments of both servers.
    common: Vec<String>,
    /// Leads to the primary.
    proxy: Proxy,
    primary: DatabaseServer,
    /// Never started where there is none.
    replica: DatabaseServer,
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Primary,
    Replica,
}

impl ReplicatedDatabase {
    /// Starts them in folders below `folder`, both with these settings; returns when the replica follows.
    ///
    /// # Errors
    /// A server is not installed or did not start, with the end of its log; or a replica is asked for and the product is not
    /// MariaDB, as others have other statements for all this.
    pub async fn start_in(
        folder: Arc<TemporaryFolder>,
        replication: Replication,
        settings: Settings,
    ) -> io::Result<Self> {
        if replication != Replication::None && Product::chosen()? != Product::MariaDb {
            return Err(io::Error::other(
                "a replicated database is made of MariaDB servers only",
            ));
        }
        let common = settings.arguments.clone();
        let start = async |role| {
            let arguments = arguments(&common, role, replication);
            let settings = Settings {
                arguments,
                ..settings.clone()
            };
            match (role, replication) {
                (Role::Replica, Replication::None) => DatabaseServer::new(folder.clone(), settings),
                _ => DatabaseServer::start_in(folder.clone(), settings).await,
            }
        };
        let (primary, replica) = tokio::try_join!(start(Role::Primary), start(Role::Replica))?;
        let proxy = Proxy::start(primary.address()).await?;
        let pair = Self {
            replication,
            common,
            proxy,
            primary,
            replica,
        };
        if replication != Replication::None {
            pair.follow().await?;
        }
        Ok(pair)
    }

    /// The address of the database `seckill`, through the proxy where there is a replica.
    pub fn url(&self) -> String {
        self.primary.url_at(self.port())
    }

    /// `127.0.0.1:<port>`, as in [`url`](Self::url).
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    fn port(&self) -> u16 {
        match self.replication {
            Replication::None => self.primary.port,
            _ => self.proxy.address.port(),
        }
    }

    /// The primary, also after it was killed.
    pub fn primary(&self) -> &DatabaseServer {
        &self.primary
    }

    /// The replica: it is read-only, but not for [`DatabaseServer::admin_url`].
    pub fn replica(&self) -> &DatabaseServer {
        &self.replica
    }

    /// Ends the primary at once, as the loss of its machine would (SIGKILL). Until [`promote`](Self::promote) the proxy ends
    /// every connection.
    pub fn kill_primary(&mut self) {
        self.primary.kill();
    }

    /// The primary, to be killed or started again. The replica follows it again within a second or two; semi-synchronous
    /// commits wait for that.
    pub fn primary_mut(&mut self) -> &mut DatabaseServer {
        &mut self.primary
    }

    /// Makes the replica the primary, with all that it has received, and leads the proxy to it. The former primary, which
    /// must have been killed, is [`replica`](Self::replica) from now on; commits wait for nobody until it
    /// [rejoins](Self::rejoin).
    ///
    /// # Errors
    /// A database's: the replica did not apply what it received in time, or does not answer.
    pub async fn promote(&mut self) -> io::Result<()> {
        if self
            .primary
            .process()
            .is_ok_and(|process| process.is_running())
        {
            return Err(io::Error::other("kill the primary first, or there are two"));
        }
        self.apply_received().await?;
        self.take_over().await
    }

    /// A planned change of the roles: the primary refuses writes, the replica catches up and becomes the primary, and the
    /// proxy leads new connections to it. Those that are open stay at the old one, which is read-only and follows nobody
    /// until it [rejoins](Self::rejoin).
    pub async fn switch_over(&mut self) -> io::Result<()> {
        let mut old = self.primary.admin().await?;
        run(&mut old, "SET GLOBAL read_only = 1").await?;
        let position = value(&mut old, "SELECT @@GLOBAL.gtid_binlog_pos").await?;
        let mut new = self.replica.admin().await?;
        wait_until_applied(&mut new, &position).await?;
        self.take_over().await
    }

    /// Replaces the data of the other server, running or not, by a copy of the primary's, and makes it follow the primary;
    /// returns when it has caught up. The primary stands still for some tenths of a second.
    pub async fn rejoin(&mut self) -> io::Result<()> {
        self.replica.settings.arguments = arguments(&self.common, Role::Replica, self.replication);
        // A copy, since to replay all transactions takes long: each waits for the disk, and 800 took a minute.
        self.replica.start_as_copy(&self.primary).await?;
        let mut replica = self.replica.admin().await?;
        let position = value(&mut replica, "SELECT @@GLOBAL.gtid_binlog_pos").await?;
        run(
            &mut replica,
            &format!("SET GLOBAL gtid_slave_pos = '{position}'"),
        )
        .await?;
        self.follow().await
    }

    /// Makes the replica follow the primary from where it is; returns when it has caught up.
    async fn follow(&self) -> io::Result<()> {
        let source = format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'admin', \
             MASTER_PASSWORD = '{}', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
            self.primary.port, *PASSWORD
        );
        let mut primary = self.primary.admin().await?;
        let mut replica = self.replica.admin().await?;
        run(&mut replica, &source).await?;
        run(&mut replica, "START SLAVE").await?;
        if self.replication == Replication::SemiSynchronous {
            run(&mut primary, "SET GLOBAL rpl_semi_sync_master_enabled = ON").await?;
            let clients = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
                           WHERE VARIABLE_NAME = 'Rpl_semi_sync_master_clients'";
            let connected = poll(LIMIT, PAUSE, async || {
                io::Result::Ok((value(&mut primary, clients).await? == "1").then_some(()))
            });
            if connected.await?.is_none() {
                return Err(io::Error::other("the replica does not connect"));
            }
        }
        let position = value(&mut primary, "SELECT @@GLOBAL.gtid_binlog_pos").await?;
        wait_until_applied(&mut replica, &position).await
    }

    /// The replica receives nothing from now on, as behind a link that is cut: an asynchronous one lags, and with a
    /// semi-synchronous one commits wait.
    pub async fn stop_receiving(&self) -> io::Result<()> {
        run(&mut self.replica.admin().await?, "STOP SLAVE IO_THREAD").await
    }

    /// The replica receives and acknowledges, but applies nothing from now on: readers of it see an old state. Not to be
    /// used together with [`stop_receiving`](Self::stop_receiving), or it would forget what it has acknowledged.
    pub async fn stop_applying(&self) -> io::Result<()> {
        run(&mut self.replica.admin().await?, "STOP SLAVE SQL_THREAD").await
    }

    /// Leads new connections of the proxy to the replica as it is, read-only, as a proxy that looks at nothing but the port
    /// does before anybody has promoted it.
    pub fn lead_to_replica(&self) {
        self.proxy.lead_to(self.replica.address());
    }

    /// Stops the replica from receiving, and waits until it has applied all that it has received.
    async fn apply_received(&self) -> io::Result<()> {
        let mut replica = self.replica.admin().await?;
        // In this order: if both threads of a MariaDB replica with GTIDs are stopped and one is started, the replica deletes
        // what it has received and not applied, to fetch it again. Here, the primary is gone.
        run(&mut replica, "START SLAVE SQL_THREAD").await?;
        run(&mut replica, "STOP SLAVE IO_THREAD").await?;
        let state = replica
            .fetch_one("SHOW SLAVE STATUS")
            .await
            .map_err(io::Error::other)?;
        let received: String = state.try_get("Gtid_IO_Pos").map_err(io::Error::other)?;
        wait_until_applied(&mut replica, &received).await
    }

    /// The replica, which has applied everything, becomes the primary.
    async fn take_over(&mut self) -> io::Result<()> {
        let mut new = self.replica.admin().await?;
        run(&mut new, "STOP SLAVE").await?;
        run(&mut new, "RESET SLAVE ALL").await?;
        run(&mut new, "SET GLOBAL rpl_semi_sync_slave_enabled = OFF").await?;
        run(&mut new, "SET GLOBAL read_only = 0").await?;
        self.replica.settings.arguments = arguments(&self.common, Role::Primary, self.replication);
        self.lead_to_replica();
        mem::swap(&mut self.primary, &mut self.replica);
        Ok(())
    }
}

/// What a server is started with.
fn arguments(common: &[String], role: Role, replication: Replication) -> Vec<String> {
    let of_both = [
        "--log-bin=binlog",
        "--sync-binlog=1",
        "--binlog-format=ROW",
        "--log-slave-updates",
        "--gtid-strict-mode=ON",
        "--relay-log=relay",
        "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
        "--rpl-semi-sync-master-timeout=600000",
        // Replication starts when it is told to, not with a server.
        "--skip-slave-start",
    ];
    let of_role = match (role, replication) {
        (_, Replication::None) => return common.to_vec(),
        (Role::Replica, Replication::Asynchronous) => &["--read-only=1"][..],
        // The second is not for a primary: one that is started again with it gives up transactions that are prepared, and may
        // have been acknowledged.
        (Role::Replica, _) => &["--read-only=1", "--rpl-semi-sync-slave-enabled=ON"],
        (Role::Primary, Replication::Asynchronous) => &[],
        (Role::Primary, _) => &["--rpl-semi-sync-master-enabled=ON"],
    };
    let for_replication = of_both
        .iter()
        .chain(of_role)
        .map(|argument| (*argument).to_owned());
    common.iter().cloned().chain(for_replication).collect()
}

/// The one value of a query.
async fn value(connection: &mut MySqlConnection, query: &str) -> io::Result<String> {
    let row = tokio::time::timeout(LIMIT, connection.fetch_one(query)).await?;
    row.and_then(|row| row.try_get_unchecked(0))
        .map_err(io::Error::other)
}

/// Waits until a replica has applied everything up to this position.
async fn wait_until_applied(replica: &mut MySqlConnection, position: &str) -> io::Result<()> {
    let wait = format!("SELECT MASTER_GTID_WAIT('{position}', {})", LIMIT.as_secs());
    match replica
        .fetch_one(wait.as_str())
        .await
        .and_then(|row| row.try_get::<i64, _>(0))
    {
        Ok(0) => Ok(()),
        Ok(_) => Err(io::Error::other(format!(
            "the replica did not apply {position} within {LIMIT:?}"
        ))),
        Err(error) => Err(io::Error::other(error)),
    }
}
