//! Faults of the database itself: ended, stopped, read-only, full, without a free connection, a row held.

use std::time::Duration;

use futures_util::future::join_all;
use sqlx::{Connection, Executor, MySqlConnection};
use testkit::database_server::DatabaseServer;
use tokio::time::{Instant, sleep, timeout};

use crate::chaos::test_cluster::{TestCluster, pause, server};
use workload::Error;

/// What is done to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseFault {
    /// SIGKILL, then it recovers.
    Kill,
    /// SIGSTOP, then SIGCONT.
    Stop,
    /// `read_only`, as after a failover: error 1290 for every write.
    ReadOnly,
    /// Its file cannot grow and has no page left for rows: error 1114 for a row that needs one.
    Full,
    /// The service's connections are closed, and strangers hold all that the server allows: error 1040.
    ConnectionsExhausted,
    /// A stranger's transaction holds the row of a sale.
    RowHeld,
}

use DatabaseFault::{ConnectionsExhausted, Full, Kill, ReadOnly, RowHeld, Stop};

/// The fewest connections that a server can be told to allow.
const FEWEST_CONNECTIONS: usize = 10;
/// As the server is started with.
const USUAL_CONNECTIONS: usize = 300;
/// Rows in a statement that fills the tablespace; single ones fill what is left behind the larger.
const FILLERS: [usize; 2] = [32, 1];
/// Such statements at most: more mean that the limit does not work.
const MOST_FILLERS: usize = 2_000;
/// Time limit of one administrator's statement.
const LIMIT: Duration = Duration::from_secs(20);
/// A stranger's pause before it tries again to connect.
const PAUSE: Duration = Duration::from_millis(5);

/// A table of nobody, that fills the tablespace. Its rows are within their pages: InnoDB keeps some space from those,
/// for rolling back, which larger values would take as well; and then the server ends itself.
const FILLER: &str =
    "CREATE TABLE IF NOT EXISTS chaos_filler (filler VARCHAR(7900) NOT NULL) CHARACTER SET ascii";

impl DatabaseFault {
    /// Injects it, and undoes it. `sales` are the vouchers on sale.
    ///
    /// # Errors
    /// [`Error::Server`], [`Error::Database`].
    pub async fn inject(
        self,
        cluster: &TestCluster,
        sales: &[u64],
        lasts: Duration,
    ) -> Result<(), Error> {
        // Held for as long as it lasts: faults of one server take turns.
        let mut servers = cluster.database.lock().await;
        if self == Kill {
            servers.kill();
            sleep(lasts).await;
            return servers.restart().await.map_err(server("MariaDB"));
        }
        let database = servers.primary();
        match self {
            Kill => Ok(()),
            Stop => {
                let process = database.process().map_err(server("MariaDB"))?;
                pause(process, lasts).await.map_err(server("MariaDB"))
            }
            ReadOnly => {
                let mut administrator = connect(database).await?;
                run(&mut administrator, "SET GLOBAL read_only = 1").await?;
                sleep(lasts).await;
                run(&mut administrator, "SET GLOBAL read_only = 0").await
            }
            Full => {
                let mut administrator = connect(database).await?;
                run(&mut administrator, FILLER).await?;
                let filled = fill(database, &mut administrator).await;
                sleep(lasts).await;
                database.limit_file_size(None).map_err(server("MariaDB"))?;
                run(&mut administrator, "TRUNCATE TABLE chaos_filler").await?;
                filled
            }
            ConnectionsExhausted => exhaust(database, lasts).await,
            RowHeld => {
                let Some(voucher_id) = sales.first() else { return Ok(()) };
                let mut stranger = connect(database).await?;
                run(&mut stranger, "BEGIN").await?;
                let lock = format!(
                    "SELECT stock FROM tb_seckill_voucher WHERE voucher_id = {voucher_id} FOR UPDATE"
                );
                run(&mut stranger, &lock).await?;
                sleep(lasts).await;
                run(&mut stranger, "ROLLBACK").await
            }
        }
    }
}

/// Stops the tablespace from growing, and takes what is free in it.
async fn fill(database: &DatabaseServer, administrator: &mut MySqlConnection) -> Result<(), Error> {
    let failed = server("MariaDB");
    let size = std::fs::metadata(database.tablespace()).map_err(&failed)?.len();
    database.limit_file_size(Some(size)).map_err(&failed)?;
    for rows in FILLERS {
        let values = vec!["(REPEAT('x', 7900))"; rows].join(", ");
        let insert = format!("INSERT INTO chaos_filler VALUES {values}");
        let mut statements = 0;
        while run(administrator, &insert).await.is_ok() {
            statements += 1;
            if statements == MOST_FILLERS {
                return Err(Error::server("MariaDB", "its tablespace does not fill".to_owned()));
            }
        }
    }
    Ok(())
}

/// Closes the connections of all others and holds every one that the server allows.
async fn exhaust(database: &DatabaseServer, lasts: Duration) -> Result<(), Error> {
    let mut administrator = connect(database).await?;
    run(&mut administrator, &format!("SET GLOBAL max_connections = {FEWEST_CONNECTIONS}")).await?;
    let until = Instant::now() + lasts;
    let url = database.url();
    let strangers = (0..FEWEST_CONNECTIONS).map(async |_| {
        while Instant::now() < until {
            if let Ok(Ok(stranger)) = timeout(LIMIT, MySqlConnection::connect(&url)).await {
                tokio::time::sleep_until(until).await;
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

/// Connects as the administrator.
///
/// # Errors
/// [`Error::Database`].
pub async fn connect(database: &DatabaseServer) -> Result<MySqlConnection, Error> {
    let connecting = timeout(LIMIT, MySqlConnection::connect(&database.admin_url()));
    let late = |_| Error::server("MariaDB", format!("it does not answer within {LIMIT:?}"));
    connecting
        .await
        .map_err(late)?
        .map_err(|source| Error::Database { what: "while a fault was injected", source })
}

/// Runs one statement.
///
/// # Errors
/// [`Error::Database`].
pub async fn run(connection: &mut MySqlConnection, sql: &str) -> Result<(), Error> {
    let late = |_| Error::server("MariaDB", format!("`{sql}` takes longer than {LIMIT:?}"));
    timeout(LIMIT, connection.execute(sql))
        .await
        .map_err(late)?
        .map(drop)
        .map_err(|source| Error::Database { what: "while a fault was injected", source })
}
