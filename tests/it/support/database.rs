//! A database of a test's own. It is on the server that all tests of the binary share, or on a server of the test's own, for
//! faults that concern a whole server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{PATIENCE, eventually};
use secrecy::SecretString;
use sqlx::mysql::{MySqlPoolOptions, MySqlRow};
use sqlx::{Connection, Executor, MySql, MySqlConnection, MySqlPool, Row, Transaction};
use testkit::database_server::{COLLATION, DatabaseServer, Product, Settings};
use testkit::process::TemporaryFolder;
use tokio::sync::OnceCell;

/// An empty database; [`TestDatabase::migrated`] has the tables.
pub struct TestDatabase {
    server: String,
    name: String,
    /// For reading and changing rows without the service.
    pub pool: MySqlPool,
    /// The server, if this database has one of its own.
    _own_server: Option<DatabaseServer>,
}

impl TestDatabase {
    pub async fn empty() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = shared_server().await.url();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("seckill_test_{number}");
        let mut connection = MySqlConnection::connect(&server)
            .await
            .expect("connect to the test database server");
        let statement = format!("CREATE DATABASE {name} DEFAULT CHARACTER SET utf8mb4");
        connection
            .execute(statement.as_str())
            .await
            .expect("create a test database");
        let pool = Self::pool(&with_database(&server, &name)).await;
        connection.close().await.expect("close");
        TestDatabase {
            pool,
            server,
            name,
            _own_server: None,
        }
    }

    /// A new database with the tables and one shop, id 1.
    pub async fn migrated() -> Self {
        let database = Self::empty().await;
        database.migrate().await;
        database
    }

    /// As [`TestDatabase::migrated`], on a server of its own. [`TestDatabase::pool`] is the administrator's, who may write even
    /// while the server is read-only.
    pub async fn on_own_server() -> Self {
        let own_server = server(&[]).await.expect("start a database server");
        let server = own_server.url();
        let name = "seckill".to_owned();
        let pool = Self::pool(&own_server.admin_url()).await;
        let database = TestDatabase {
            server,
            name,
            pool,
            _own_server: Some(own_server),
        };
        database.migrate().await;
        database
    }

    async fn migrate(&self) {
        seckill::connection::migrate::run(&self.url())
            .await
            .expect("migrate");
        let shop = "INSERT INTO tb_shop (id, name, type_id, images, address, x, y) \
                    VALUES (1, '测试小店', 1, '', '', 120.1, 30.3)";
        self.run(shop).await;
    }

    pub fn url(&self) -> SecretString {
        with_database(&self.server, &self.name).into()
    }

    /// Its name on its server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `host:port` of its server.
    pub fn server(&self) -> &str {
        let (_, host_and_path) = self.server.split_once('@').expect("a user");
        host_and_path.split('/').next().unwrap_or(host_and_path)
    }

    /// Its address through a proxy that listens on `address`. TLS, which newer servers offer unasked, is off, so that the proxy
    /// sees the statements.
    pub fn url_through(&self, address: std::net::SocketAddr) -> String {
        let url =
            with_database(&self.server, &self.name).replace(self.server(), &address.to_string());
        format!("{url}&ssl-mode=DISABLED")
    }

    pub async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(&format!("SELECT CAST(({sql}) AS SIGNED)"))
            .fetch_one(&self.pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// A number of a sale's row, such as `issued`.
    pub async fn of_sale(&self, sale: i64, number: &str) -> i64 {
        let row = format!("SELECT {number} FROM tb_seckill_voucher WHERE voucher_id = {sale}");
        self.number(&row).await
    }

    /// Changes a sale's row.
    pub async fn set_sale(&self, sale: i64, assignment: &str) {
        self.run(&format!(
            "UPDATE tb_seckill_voucher SET {assignment} WHERE voucher_id = {sale}"
        ))
        .await;
    }

    /// Whether a user has this order. A refusal, whose voucher is its own id (formerly 0), is no order.
    pub async fn has_order(&self, id: i64, user: i64) -> bool {
        let row = format!("id = {id} AND user_id = {user} AND voucher_id NOT IN (0, id)");
        self.number(&format!(
            "SELECT COUNT(*) FROM tb_voucher_order WHERE {row}"
        ))
        .await
            == 1
    }

    /// Runs a statement in a transaction that stays open, and so keeps its locks.
    pub async fn hold(&self, sql: &str) -> Transaction<'static, MySql> {
        let mut holder = self.pool.begin().await.expect("a transaction");
        holder
            .execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        holder
    }

    /// As [`TestDatabase::number`], but also sees rows that are not committed yet, on [a server that shows
    /// them](shows_uncommitted_rows).
    pub async fn uncommitted(&self, sql: &str) -> i64 {
        let mut connection = self.pool.acquire().await.expect("a connection");
        let level = "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED";
        connection.execute(level).await.expect("an isolation level");
        sqlx::query_scalar(&format!("SELECT CAST(({sql}) AS SIGNED)"))
            .fetch_one(&mut *connection)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// How many statements wait for a table that somebody has locked.
    pub async fn waiting(&self) -> usize {
        let states = self.processes("State").await;
        states
            .iter()
            .filter(|state| state.contains("metadata lock"))
            .count()
    }

    /// Whether the foreign key on the voucher, which the test has created, rejects the refusal of an order. On MySQL 9.7.4 it does
    /// not: no foreign key is checked if its index has a further column that is NULL, as `buyer` is in a refusal.
    pub async fn keeps_refusals_out(&self) -> bool {
        let refusing = sqlx::query(
            "INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id, status) \
             VALUES (4000000, 1, 4000000, 4)",
        )
        .execute(&self.pool)
        .await;
        self.run("DELETE FROM tb_voucher_order WHERE id = 4000000")
            .await;
        // OceanBase fails the statement in spite of IGNORE.
        refusing.map_or(true, |done| done.rows_affected() == 0)
    }

    /// A column of the process list, for what runs in this database now.
    async fn processes(&self, column: &str) -> Vec<String> {
        let rows = self.process_list().await;
        rows.iter().map(|row| process_text(row, column)).collect()
    }

    /// What runs in this database now. Not from information_schema.processlist: MariaDB keeps that in a temporary table, and
    /// crashed once when it dropped one.
    async fn process_list(&self) -> Vec<MySqlRow> {
        let all = sqlx::raw_sql("SHOW FULL PROCESSLIST")
            .fetch_all(&self.pool)
            .await;
        let mut rows = all.expect("the statements that run");
        rows.retain(|row| process_text(row, "db") == self.name);
        rows
    }

    /// The ids of the connections that run a statement which contains this text.
    pub async fn connections_that_run(&self, text: &str) -> Vec<String> {
        let mut rows = self.process_list().await;
        rows.retain(|row| process_text(row, "Info").contains(text));
        rows.iter().map(|row| process_text(row, "Id")).collect()
    }

    /// Waits until a statement runs in it that contains this text, such as one that waits for a lock.
    pub async fn wait_for_statement(&self, text: &str) {
        eventually(&format!("a statement runs: {text}"), async || {
            self.runs(text).await
        })
        .await;
    }

    /// Whether a statement runs in it now that contains this text.
    pub async fn runs(&self, text: &str) -> bool {
        let statements = self.processes("Info").await;
        statements.iter().any(|statement| statement.contains(text))
    }

    pub async fn run(&self, sql: &str) {
        self.pool
            .execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn pool(url: &str) -> MySqlPool {
        let options = MySqlPoolOptions::new().max_connections(4);
        let options = options.acquire_timeout(Duration::from_secs(20));
        // A statement that waits for a locked table fails after this time; by the server's default it would wait for a day.
        let options = options.after_connect(|connection, _| {
            Box::pin(async move {
                let limit = format!("SET SESSION lock_wait_timeout = {}", PATIENCE.as_secs());
                connection.execute(limit.as_str()).await.map(drop)
            })
        });
        options
            .connect(url)
            .await
            .expect("connect to the test database")
    }
}

/// A column of the process list. MySQL shows the values of a prepared statement, which need not be text.
fn process_text(row: &MySqlRow, column: &str) -> String {
    let bytes: Option<Vec<u8>> = row.try_get_unchecked(column).expect("a column");
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

pub fn is_oceanbase() -> bool {
    Product::chosen().expect("a product") == Product::OceanBase
}

/// Whether READ UNCOMMITTED shows rows that are not committed. OceanBase takes it for READ COMMITTED, so a test cannot see there
/// how far a transaction is.
pub fn shows_uncommitted_rows() -> bool {
    !is_oceanbase()
}

/// A server of a test's own; it ends with the handle.
pub async fn server(arguments: &[&str]) -> std::io::Result<DatabaseServer> {
    let arguments = arguments
        .iter()
        .map(|argument| (*argument).to_owned())
        .collect();
    let settings = Settings {
        arguments,
        ..Settings::default()
    };
    DatabaseServer::start_in(Arc::new(TemporaryFolder::new()?), settings).await
}

/// The server that all tests of this binary share. The first test that needs it starts it, and it ends with the process.
async fn shared_server() -> &'static DatabaseServer {
    // An error is kept, too, so that each test shows it at once.
    static SERVER: OnceCell<std::io::Result<DatabaseServer>> = OnceCell::const_new();
    // Many tests run at once, each with instances of its own.
    let arguments = &["--max-connections=3000", "--innodb-buffer-pool-size=256M"];
    SERVER
        .get_or_init(|| server(arguments))
        .await
        .as_ref()
        .expect("start a database server")
}

/// `server`'s address with `name` as its database.
fn with_database(server: &str, name: &str) -> String {
    let (scheme, host_and_path) = server.split_once("://").expect("a scheme");
    let host = host_and_path.split('/').next().unwrap_or(host_and_path);
    format!("{scheme}://{host}/{name}?{COLLATION}")
}
