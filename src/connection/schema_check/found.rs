//! The tables as they are, read from `information_schema`.

use std::collections::{BTreeMap, HashMap};

use sqlx::MySqlConnection;

use super::needs::{ORDERS, SALES, TABLES};

/// A schema as it is.
pub(super) struct Schema {
    pub(super) tables: HashMap<String, FoundTable>,
    /// The foreign keys of the orders.
    pub(super) foreign_keys: Vec<ForeignKey>,
    /// Whether there is an order whose status is NULL.
    pub(super) has_orders_without_status: bool,
    /// The first sale without a stock, a begin or an end, which may also be zero dates. Not looked for where the table lacks
    /// one of these columns.
    pub(super) incomplete_sale: Option<i64>,
    /// Whether a row needs a value for a column that has no default; else the server chooses one.
    pub(super) is_strict: bool,
}

impl Schema {
    /// Reads the schema of the connection's database.
    pub(super) async fn read(connection: &mut MySqlConnection) -> sqlx::Result<Self> {
        let mut tables = tables(connection).await?;
        add_columns(connection, &mut tables).await?;
        add_unique_keys(connection, &mut tables).await?;
        let orders = tables.get(ORDERS);
        let status = orders.and_then(|orders| orders.columns.get("status"));
        let has_orders_without_status = status.is_some_and(|status| status.takes_null)
            && has_orders_without_status(connection).await?;
        let sales = tables.get(SALES);
        let has_all = sales.is_some_and(|sales| {
            ["voucher_id", "stock", "begin_time", "end_time"]
                .iter()
                .all(|column| sales.columns.contains_key(*column))
        });
        let incomplete_sale = if has_all {
            incomplete_sale(connection).await?
        } else {
            None
        };
        let foreign_keys = foreign_keys(connection).await?;
        let mode: String = sqlx::query_scalar("SELECT CAST(@@SESSION.sql_mode AS CHAR)")
            .fetch_one(connection)
            .await?;
        Ok(Schema {
            tables,
            foreign_keys,
            has_orders_without_status,
            incomplete_sale,
            is_strict: mode.contains("STRICT_"),
        })
    }
}

/// The names of the tables that are needed, as an SQL list.
fn names() -> String {
    let names = TABLES.map(|table| format!("'{}'", table.name));
    names.join(",")
}

/// A table as it is.
pub(super) struct FoundTable {
    pub(super) is_view: bool,
    pub(super) engine: String,
    pub(super) can_roll_back: bool,
    pub(super) is_partitioned: bool,
    pub(super) columns: BTreeMap<String, FoundColumn>,
    /// Unique keys by name, with their columns between commas.
    pub(super) unique: BTreeMap<String, String>,
}

/// A column as it is.
pub(super) struct FoundColumn {
    /// Such as `bigint`.
    pub(super) kind: String,
    /// Such as `bigint(20) unsigned`.
    pub(super) definition: String,
    pub(super) takes_null: bool,
    /// In lower case, without quotes; `None` also for NULL.
    pub(super) default: Option<String>,
    /// Such as `auto_increment`, in lower case.
    pub(super) extra: String,
}

/// A column of a foreign key.
pub(super) struct ForeignKey {
    pub(super) name: String,
    pub(super) column: String,
    pub(super) changes_rows: bool,
}

impl FoundColumn {
    pub(super) fn must_be_given(&self) -> bool {
        let fills_itself =
            self.extra.contains("auto_increment") || self.extra.contains(" generated");
        !self.takes_null && self.default.is_none() && !fills_itself
    }
}

async fn tables(connection: &mut MySqlConnection) -> sqlx::Result<HashMap<String, FoundTable>> {
    // As CHAR: MySQL's own columns are of types that are read as bytes. The partitions are selected by the name of the
    // database: by a column of the outer query, the server would open the tables of all databases.
    let query = format!(
        "SELECT CAST(t.TABLE_NAME AS CHAR), CAST(t.TABLE_TYPE AS CHAR), COALESCE(CAST(t.ENGINE AS CHAR), ''), \
         CAST(COALESCE(e.TRANSACTIONS, '') = 'YES' AS SIGNED), \
         CAST(t.TABLE_NAME IN (SELECT p.TABLE_NAME FROM information_schema.PARTITIONS p \
         WHERE p.TABLE_SCHEMA = DATABASE() AND p.PARTITION_NAME IS NOT NULL) AS SIGNED) \
         FROM information_schema.TABLES t LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE \
         WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME IN ({})",
        names()
    );
    let rows: Vec<(String, String, String, i64, i64)> =
        sqlx::query_as(&query).fetch_all(connection).await?;
    let table = |(name, kind, engine, can_roll_back, is_partitioned): (_, String, _, _, _)| {
        let found = FoundTable {
            is_view: kind.contains("VIEW"),
            engine,
            can_roll_back: can_roll_back == 1,
            is_partitioned: is_partitioned == 1,
            columns: BTreeMap::new(),
            unique: BTreeMap::new(),
        };
        (name, found)
    };
    Ok(rows.into_iter().map(table).collect())
}

async fn add_columns(
    connection: &mut MySqlConnection,
    found: &mut HashMap<String, FoundTable>,
) -> sqlx::Result<()> {
    let query = format!(
        "SELECT CAST(TABLE_NAME AS CHAR), LOWER(CAST(COLUMN_NAME AS CHAR)), LOWER(CAST(DATA_TYPE AS CHAR)), \
         CAST(COLUMN_TYPE AS CHAR), CAST(IS_NULLABLE = 'YES' AS SIGNED), LOWER(CAST(COLUMN_DEFAULT AS CHAR)), \
         LOWER(CAST(EXTRA AS CHAR)) FROM information_schema.COLUMNS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ({})",
        names()
    );
    type Row = (String, String, String, String, i64, Option<String>, String);
    let rows: Vec<Row> = sqlx::query_as(&query).fetch_all(connection).await?;
    for (table, name, kind, definition, takes_null, default, extra) in rows {
        // MariaDB states a default as SQL: a text is in quotes, and NULL is a word.
        let default = default.filter(|default| default != "null");
        let column = FoundColumn {
            kind,
            definition,
            takes_null: takes_null == 1,
            default: default.map(|default| default.trim_matches('\'').to_owned()),
            extra,
        };
        if let Some(table) = found.get_mut(&table) {
            table.columns.insert(name, column);
        }
    }
    Ok(())
}

async fn add_unique_keys(
    connection: &mut MySqlConnection,
    found: &mut HashMap<String, FoundTable>,
) -> sqlx::Result<()> {
    // A part that is an expression has no name.
    let query = format!(
        "SELECT CAST(TABLE_NAME AS CHAR), CAST(INDEX_NAME AS CHAR), \
         LOWER(COALESCE(CAST(COLUMN_NAME AS CHAR), '(…)')) FROM information_schema.STATISTICS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ({}) AND NON_UNIQUE = 0 \
         ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
        names()
    );
    let rows: Vec<(String, String, String)> = sqlx::query_as(&query).fetch_all(connection).await?;
    for (table, key, column) in rows {
        if let Some(table) = found.get_mut(&table) {
            let columns = table.unique.entry(key).or_default();
            if !columns.is_empty() {
                columns.push_str(", ");
            }
            columns.push_str(&column);
        }
    }
    Ok(())
}

async fn foreign_keys(connection: &mut MySqlConnection) -> sqlx::Result<Vec<ForeignKey>> {
    let query = format!(
        "SELECT CAST(k.CONSTRAINT_NAME AS CHAR), LOWER(CAST(k.COLUMN_NAME AS CHAR)), \
         CAST(r.UPDATE_RULE NOT IN ('RESTRICT', 'NO ACTION') OR r.DELETE_RULE NOT IN ('RESTRICT', 'NO ACTION') AS SIGNED) \
         FROM information_schema.KEY_COLUMN_USAGE k JOIN information_schema.REFERENTIAL_CONSTRAINTS r \
         ON r.CONSTRAINT_SCHEMA = k.CONSTRAINT_SCHEMA AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME \
         AND r.TABLE_NAME = k.TABLE_NAME \
         WHERE k.TABLE_SCHEMA = DATABASE() AND k.TABLE_NAME = '{ORDERS}' AND k.REFERENCED_TABLE_NAME IS NOT NULL"
    );
    let rows: Vec<(String, String, i64)> = sqlx::query_as(&query).fetch_all(connection).await?;
    let keys = rows
        .into_iter()
        .map(|(name, column, changes_rows)| ForeignKey {
            name,
            column,
            changes_rows: changes_rows == 1,
        });
    Ok(keys.collect())
}

async fn has_orders_without_status(connection: &mut MySqlConnection) -> sqlx::Result<bool> {
    let query =
        format!("SELECT CAST(EXISTS (SELECT 1 FROM {ORDERS} WHERE status IS NULL) AS SIGNED)");
    let found: i64 = sqlx::query_scalar(&query).fetch_one(connection).await?;
    Ok(found == 1)
}

async fn incomplete_sale(connection: &mut MySqlConnection) -> sqlx::Result<Option<i64>> {
    // UNIX_TIMESTAMP of a zero date is 0.
    let query = format!(
        "SELECT CAST(MIN(voucher_id) AS SIGNED) FROM {SALES} WHERE stock IS NULL \
         OR COALESCE(UNIX_TIMESTAMP(begin_time), 0) = 0 OR COALESCE(UNIX_TIMESTAMP(end_time), 0) = 0"
    );
    sqlx::query_scalar(&query).fetch_one(connection).await
}
