//! Faults of the database itself: ended, stopped, read-only, full, without a free connection, a row held; and where there is
//! a replica, failovers: it becomes the primary, and the proxy leads to it.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::future::join_all;
use sqlx::{Connection, MySqlConnection};
use testkit::database_server::{DatabaseServer, run};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::chaos::{instance::pause, operator::Scene};

/// The fewest connections that a server can be told to allow.
const FEWEST_CONNECTIONS: usize = 10;
/// The number with which the server is started.
const USUAL_CONNECTIONS: usize = 1_000;
/// Rows in a statement that fills the tablespace: many at first, then single ones for the space that is left.
const FILLERS: [usize; 2] = [32, 1];
/// More such statements than this mean that the limit does not work.
const MOST_FILLERS: usize = 2_000;
/// Time limit of a stranger's attempt to connect.
const LIMIT: Duration = Duration::from_secs(20);
/// A stranger's pause before it tries again to connect.
const PAUSE: Duration = Duration::from_millis(5);

/// A table that nobody uses, which fills the tablespace. Each row fits into one page. InnoDB reserves some space for rolling
/// back; such rows cannot take it. Larger values could, and then the server would end itself.
const FILLER: &str =
    "CREATE TABLE IF NOT EXISTS chaos_filler (filler VARCHAR(7900) NOT NULL) CHARACTER SET ascii";

/// SIGKILL, then it recovers.
pub async fn kill(scene: Scene<'_>) -> Result<()> {
    // Held for as long as the fault lasts, here and below, so that faults of one server take turns.
    let mut servers = scene.cluster.database.lock().await;
    servers.primary_mut().kill();
    sleep(scene.lasts).await;
    Ok(servers.primary_mut().try_restart().await?)
}

/// SIGSTOP, then SIGCONT.
pub async fn stop(scene: Scene<'_>) -> Result<()> {
    let servers = scene.cluster.database.lock().await;
    Ok(pause(servers.primary().process()?, scene.lasts).await?)
}

/// `read_only`, as after a failover: error 1290 for every write.
pub async fn read_only(scene: Scene<'_>) -> Result<()> {
    let servers = scene.cluster.database.lock().await;
    let mut administrator = servers.primary().admin().await?;
    run(&mut administrator, "SET GLOBAL read_only = 1").await?;
    sleep(scene.lasts).await;
    Ok(run(&mut administrator, "SET GLOBAL read_only = 0").await?)
}

/// The tablespace cannot grow and has no page left for rows: error 1114 for a row that needs one.
pub async fn full(scene: Scene<'_>) -> Result<()> {
    let servers = scene.cluster.database.lock().await;
    let mut administrator = servers.primary().admin().await?;
    run(&mut administrator, FILLER).await?;
    let filled = fill(servers.primary(), &mut administrator).await;
    sleep(scene.lasts).await;
    servers.primary().limit_file_size(None)?;
    run(&mut administrator, "TRUNCATE TABLE chaos_filler").await?;
    filled
}

/// A stranger's transaction holds the row of a sale.
pub async fn row_held(scene: Scene<'_>) -> Result<()> {
    let servers = scene.cluster.database.lock().await;
    let voucher_id = scene.operator.sales[0].voucher_id;
    let mut stranger = servers.primary().admin().await?;
    run(&mut stranger, "BEGIN").await?;
    let lock = "SELECT stock FROM tb_seckill_voucher WHERE voucher_id =";
    run(&mut stranger, &format!("{lock} {voucher_id} FOR UPDATE")).await?;
    sleep(scene.lasts).await;
    Ok(run(&mut stranger, "ROLLBACK").await?)
}

/// Stops the tablespace from growing, and takes what is free in it.
async fn fill(database: &DatabaseServer, administrator: &mut MySqlConnection) -> Result<()> {
    let size = std::fs::metadata(database.tablespace())?.len();
    database.limit_file_size(Some(size))?;
    for rows in FILLERS {
        let values = vec!["(REPEAT('x', 7900))"; rows].join(", ");
        let insert = format!("INSERT INTO chaos_filler VALUES {values}");
        let mut statements = 0;
        while run(administrator, &insert).await.is_ok() {
            statements += 1;
            ensure!(
                statements < MOST_FILLERS,
                "the database's tablespace does not fill"
            );
        }
    }
    Ok(())
}

/// The service's connections are closed, and strangers hold all that the server allows: error 1040.
pub async fn exhaust_connections(scene: Scene<'_>) -> Result<()> {
    let servers = scene.cluster.database.lock().await;
    let mut administrator = servers.primary().admin().await?;
    run(
        &mut administrator,
        &format!("SET GLOBAL max_connections = {FEWEST_CONNECTIONS}"),
    )
    .await?;
    let until = Instant::now() + scene.lasts;
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
    run(
        &mut administrator,
        &format!("SET GLOBAL max_connections = {USUAL_CONNECTIONS}"),
    )
    .await?;
    Ok(closed?)
}

/// SIGKILL of the primary. Its replica is promoted, and the old primary comes back as the replica of that one. If `lagging`,
/// the replica has received nothing for a while before: a semi-synchronous one still has everything that was confirmed, an
/// asynchronous one has not.
pub async fn kill_primary(scene: Scene<'_>, lagging: bool) -> Result<()> {
    let mut pair = scene.cluster.database.lock().await;
    if lagging {
        pair.stop_receiving().await?;
        sleep(scene.lasts).await;
    }
    pair.kill_primary();
    sleep(scene.lasts).await;
    pair.promote().await?;
    Ok(pair.rejoin().await?)
}

/// A planned change of the roles; the old primary goes on for a while, read-only, with its open connections.
pub async fn switch_over(scene: Scene<'_>) -> Result<()> {
    let mut pair = scene.cluster.database.lock().await;
    pair.switch_over().await?;
    sleep(scene.lasts).await;
    Ok(pair.rejoin().await?)
}
