//! Faults of the database itself: ended, stopped, read-only, full, without a free connection, a row held; and where there is
//! a replica, failovers: it becomes the primary, and the proxy leads to it.

use std::{io, time::Duration};

use futures_util::future::join_all;
use sqlx::{Connection, MySqlConnection};
use testkit::{
    database_server::{self, DatabaseServer},
    replicated_database::ReplicatedDatabase,
};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::scene::Scene;
use crate::chaos::instance::{pause, server};
use workload::Error;

/// How it is called in messages.
const WHAT: &str = "MariaDB";

/// The fewest connections that a server can be told to allow.
const FEWEST_CONNECTIONS: usize = 10;
/// As the server is started with.
const USUAL_CONNECTIONS: usize = 1_000;
/// Rows in a statement that fills the tablespace; single ones fill what is left behind the larger.
const FILLERS: [usize; 2] = [32, 1];
/// Such statements at most: more mean that the limit does not work.
const MOST_FILLERS: usize = 2_000;
/// Time limit of a stranger's attempt to connect.
const LIMIT: Duration = Duration::from_secs(20);
/// A stranger's pause before it tries again to connect.
const PAUSE: Duration = Duration::from_millis(5);

/// A table of nobody, that fills the tablespace. Its rows are within their pages: InnoDB keeps some space from those,
/// for rolling back, which larger values would take as well; and then the server ends itself.
const FILLER: &str =
    "CREATE TABLE IF NOT EXISTS chaos_filler (filler VARCHAR(7900) NOT NULL) CHARACTER SET ascii";

/// SIGKILL, then it recovers.
pub async fn kill(it: Scene<'_>) -> Result<(), Error> {
    // Held for as long as it lasts, here and below: faults of one server take turns.
    let mut servers = it.cluster.database.lock().await;
    servers.primary_mut().kill();
    sleep(it.lasts).await;
    servers.primary_mut().try_restart().await.map_err(server(WHAT))
}

/// SIGSTOP, then SIGCONT.
pub async fn stop(it: Scene<'_>) -> Result<(), Error> {
    let servers = it.cluster.database.lock().await;
    let process = servers.primary().process().map_err(server(WHAT))?;
    pause(process, it.lasts).await.map_err(server(WHAT))
}

/// `read_only`, as after a failover: error 1290 for every write.
pub async fn read_only(it: Scene<'_>) -> Result<(), Error> {
    let servers = it.cluster.database.lock().await;
    let mut administrator = connect(servers.primary()).await?;
    run(&mut administrator, "SET GLOBAL read_only = 1").await?;
    sleep(it.lasts).await;
    run(&mut administrator, "SET GLOBAL read_only = 0").await
}

/// Its file cannot grow and has no page left for rows: error 1114 for a row that needs one.
pub async fn full(it: Scene<'_>) -> Result<(), Error> {
    let servers = it.cluster.database.lock().await;
    let mut administrator = connect(servers.primary()).await?;
    run(&mut administrator, FILLER).await?;
    let filled = fill(servers.primary(), &mut administrator).await;
    sleep(it.lasts).await;
    servers.primary().limit_file_size(None).map_err(server(WHAT))?;
    run(&mut administrator, "TRUNCATE TABLE chaos_filler").await?;
    filled
}

/// A stranger's transaction holds the row of a sale.
pub async fn row_held(it: Scene<'_>) -> Result<(), Error> {
    let servers = it.cluster.database.lock().await;
    let Some(voucher_id) = it.sales.first() else { return Ok(()) };
    let mut stranger = connect(servers.primary()).await?;
    run(&mut stranger, "BEGIN").await?;
    let lock = "SELECT stock FROM tb_seckill_voucher WHERE voucher_id =";
    run(&mut stranger, &format!("{lock} {voucher_id} FOR UPDATE")).await?;
    sleep(it.lasts).await;
    run(&mut stranger, "ROLLBACK").await
}

/// Stops the tablespace from growing, and takes what is free in it.
async fn fill(database: &DatabaseServer, administrator: &mut MySqlConnection) -> Result<(), Error> {
    let failed = server(WHAT);
    let size = std::fs::metadata(database.tablespace()).map_err(&failed)?.len();
    database.limit_file_size(Some(size)).map_err(&failed)?;
    for rows in FILLERS {
        let values = vec!["(REPEAT('x', 7900))"; rows].join(", ");
        let insert = format!("INSERT INTO chaos_filler VALUES {values}");
        let mut statements = 0;
        while run(administrator, &insert).await.is_ok() {
            statements += 1;
            if statements == MOST_FILLERS {
                return Err(Error::server(WHAT, "its tablespace does not fill".to_owned()));
            }
        }
    }
    Ok(())
}

/// The service's connections are closed, and strangers hold all that the server allows: error 1040.
pub async fn exhaust_connections(it: Scene<'_>) -> Result<(), Error> {
    let servers = it.cluster.database.lock().await;
    let mut administrator = connect(servers.primary()).await?;
    run(&mut administrator, &format!("SET GLOBAL max_connections = {FEWEST_CONNECTIONS}")).await?;
    let until = Instant::now() + it.lasts;
    let url = servers.primary().url();
    let strangers = (0..FEWEST_CONNECTIONS).map(async |_| {
        while Instant::now() < until {
            if let Ok(Ok(stranger)) = timeout(LIMIT, MySqlConnection::connect(&url)).await {
                sleep_until(until).await;
                // How it ends does not matter: its server may be gone.
                stranger.close().await.ok();
            } else {
                sleep(PAUSE).await;
            }
        }
    });
    let closing = run(&mut administrator, "KILL HARD USER seckill@'127.0.0.1'");
    let (closed, _) = tokio::join!(closing, join_all(strangers));
    run(&mut administrator, &format!("SET GLOBAL max_connections = {USUAL_CONNECTIONS}")).await?;
    closed
}

/// SIGKILL of the primary; then the replica is promoted.
pub async fn kill_primary(it: Scene<'_>) -> Result<(), Error> {
    fail_over(it, async |pair| {
        pair.kill_primary();
        sleep(it.lasts).await;
        pair.promote().await
    })
    .await
}

/// As [`kill_primary`], with a replica that received nothing for a while: a semi-synchronous one has everything that was
/// confirmed all the same, an asynchronous one has not.
pub async fn kill_primary_while_lagging(it: Scene<'_>) -> Result<(), Error> {
    fail_over(it, async |pair| {
        pair.stop_receiving().await?;
        sleep(it.lasts).await;
        pair.kill_primary();
        pair.promote().await
    })
    .await
}

/// A planned change of the roles; the old primary goes on, read-only, with its open connections.
pub async fn switch_over(it: Scene<'_>) -> Result<(), Error> {
    fail_over(it, async |pair| {
        pair.switch_over().await?;
        sleep(it.lasts).await;
        Ok(())
    })
    .await
}

/// Fails over as told, and makes the old primary the replica.
async fn fail_over(
    it: Scene<'_>,
    how: impl AsyncFnOnce(&mut ReplicatedDatabase) -> io::Result<()>,
) -> Result<(), Error> {
    let mut pair = it.cluster.database.lock().await;
    let failover = async {
        how(&mut pair).await?;
        pair.rejoin().await
    };
    failover.await.map_err(server(WHAT))
}

/// Connects as the administrator.
pub async fn connect(database: &DatabaseServer) -> Result<MySqlConnection, Error> {
    database.admin().await.map_err(server(WHAT))
}

/// Runs one statement.
pub async fn run(connection: &mut MySqlConnection, sql: &str) -> Result<(), Error> {
    database_server::run(connection, sql).await.map_err(server(WHAT))
}
