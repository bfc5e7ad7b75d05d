//! The schema check: whether the tables are what the code needs. Existing databases deviate from the Java project's tables
//! in many ways, most of which the statements bear. Deviations that they cannot bear, by the data in `needs`, are reported by
//! `migrate`, `doctor` and at start: a sentence with the column, and the SQL that mends it. Found later, such a deviation
//! would be a failed purchase, or an oversold sale.

use std::fmt;

use anyhow::ensure;
use sqlx::MySqlConnection;

use self::found::{ForeignKey, FoundColumn, FoundTable, Schema};
use self::needs::{BASE_OF_BUYER, Column, GUARD, GUARD_NAME, Need, ORDERS, SALES, TABLES, Table};

mod found;
mod needs;

/// What is wrong with a schema, and how to mend it.
#[derive(Debug)]
pub struct Deviation {
    /// What is wrong, with the table and the column.
    pub what: String,
    /// The SQL that mends it.
    pub remedy: String,
}

impl fmt::Display for Deviation {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(text, "{}. Remedy: {}", self.what, self.remedy)
    }
}

/// The deviations of a schema.
#[derive(Debug, Default)]
pub struct Deviations {
    /// Those that the code cannot bear.
    pub refused: Vec<Deviation>,
    /// Those that the code bears, although users notice them.
    pub borne: Vec<Deviation>,
}

impl Deviations {
    /// Logs what is borne.
    ///
    /// # Errors
    /// What is not, as sentences for the administrator.
    pub fn require_bearable(&self) -> anyhow::Result<()> {
        for Deviation { what, remedy } in &self.borne {
            tracing::warn!(what, remedy, "the database deviates from what is needed");
        }
        let sentences: Vec<String> = self.refused.iter().map(Deviation::to_string).collect();
        ensure!(
            sentences.is_empty(),
            "the tables in the database of DATABASE_URL are not what the service needs:{}{}",
            if sentences.len() == 1 { " " } else { "\n" },
            sentences.join("\n")
        );
        Ok(())
    }
}

/// When the schema is looked at.
#[derive(Clone, Copy, PartialEq)]
pub enum Stage {
    /// Tables, columns and keys that migrations add may be absent.
    BeforeMigration,
    /// All of them must be there.
    Migrated,
}

/// Compares the schema of the connection's database with what the code needs.
///
/// # Errors
/// The database's.
pub async fn deviations(
    connection: &mut MySqlConnection,
    stage: Stage,
) -> sqlx::Result<Deviations> {
    let schema = Schema::read(connection).await?;
    let mut deviations = Deviations::default();
    let refused = &mut deviations.refused;
    for table in &TABLES {
        match schema.tables.get(table.name) {
            Some(found) => table.compare(found, stage, schema.is_strict, refused),
            None if stage == Stage::Migrated => refused.push(Deviation {
                what: format!("there is no table {}", table.name),
                remedy: "DELETE FROM _sqlx_migrations, then run `seckill migrate` again".to_owned(),
            }),
            None => {}
        }
    }
    refused.extend(schema.foreign_keys.iter().filter_map(forbidden));
    if schema.has_orders_without_status {
        refused.push(Deviation {
            what: format!("{ORDERS} has rows whose status is NULL, which no status is"),
            remedy: format!("UPDATE {ORDERS} SET status = 1 WHERE status IS NULL"),
        });
    }
    if let Some(sale) = schema.incomplete_sale {
        deviations.borne.push(Deviation {
            what: format!(
                "{SALES} has rows without stock, begin_time or end_time, of which the first is that of voucher {sale}; these \
                 sell nothing"
            ),
            remedy: format!("UPDATE {SALES} SET stock = …, begin_time = …, end_time = … WHERE voucher_id = {sale}"),
        });
    }
    if let Some(orders) = schema.tables.get(ORDERS) {
        deviations.borne.extend(further_unique_keys(orders));
    }
    Ok(deviations)
}

/// What a table lacks.
struct Refusals<'a> {
    list: &'a mut Vec<Deviation>,
    /// What every remedy begins with: in a strict mode, a table with a zero date as a default cannot be changed.
    mode: &'static str,
}

impl Refusals<'_> {
    fn add(&mut self, what: String, remedy: String) {
        let remedy = format!("{}{remedy}", self.mode);
        self.list.push(Deviation { what, remedy });
    }
}

impl Table {
    fn compare(
        &self,
        found: &FoundTable,
        stage: Stage,
        is_strict: bool,
        refused: &mut Vec<Deviation>,
    ) {
        let table = self.name;
        let mut refusals = Refusals {
            list: refused,
            mode: if found.has_zero_default() {
                "SET sql_mode = ''; "
            } else {
                ""
            },
        };
        if found.is_view {
            return refusals.add(
                format!("{table} is a view; the table itself must have this name"),
                format!("DROP VIEW {table}"),
            );
        }
        if !found.can_roll_back {
            refusals.add(
                format!(
                    "{table} is kept by the engine {}, which cannot roll back: a purchase that fails half-way would \
                     leave its first half",
                    found.engine
                ),
                format!("ALTER TABLE {table} ENGINE = InnoDB"),
            );
        }
        self.compare_columns(found, stage, &mut refusals);
        if is_strict {
            self.refuse_columns_without_default(found, &mut refusals);
        }
        self.compare_unique_keys(found, stage, &mut refusals);
    }

    /// The columns that the service reads and writes: missing ones, and those of another type.
    fn compare_columns(&self, found: &FoundTable, stage: Stage, refusals: &mut Refusals<'_>) {
        let table = self.name;
        for Column {
            name,
            need,
            definition,
        } in self.columns
        {
            let is_added = stage == Stage::BeforeMigration && self.added_columns.contains(name);
            match found.columns.get(*name) {
                Some(column) => {
                    if let Some(fault) = need.fault_of(column) {
                        let change = format!("ALTER TABLE {table} MODIFY {name} {definition}");
                        let remedy = need.remedy(column, change);
                        refusals.add(format!("{table}.{name} {fault}"), remedy);
                    }
                }
                None if is_added => {}
                None => refusals.add(
                    format!("{table} has no column {name}"),
                    format!("ALTER TABLE {table} ADD COLUMN {name} {definition}"),
                ),
            }
        }
    }

    /// Columns that the service gives no value, and that must have one.
    fn refuse_columns_without_default(&self, found: &FoundTable, refusals: &mut Refusals<'_>) {
        let table = self.name;
        for (name, column) in &found.columns {
            let is_id = self
                .columns
                .iter()
                .any(|column| column.name == name && column.need == Need::Id);
            let is_given = is_id || has_column(self.given, name);
            if column.must_be_given() && !is_given {
                refusals.add(
                    format!(
                        "{table}.{name} takes no NULL and has no default, so no row can be inserted without it"
                    ),
                    format!(
                        "ALTER TABLE {table} MODIFY {name} {} NULL",
                        column.definition
                    ),
                );
            }
        }
    }

    fn compare_unique_keys(&self, found: &FoundTable, stage: Stage, refusals: &mut Refusals<'_>) {
        let table = self.name;
        for key in self.unique {
            if found.has_unique_key(key) {
                continue;
            }
            if found.is_partitioned {
                return refusals.add(
                    format!(
                        "{table} is partitioned, so it can have no unique key on ({key}) alone, which the service needs"
                    ),
                    format!("ALTER TABLE {table} REMOVE PARTITIONING"),
                );
            }
            // The migration takes any unique key that has the column for the one that is needed.
            let is_added = self.added_keys.contains(key)
                && !found
                    .unique
                    .values()
                    .any(|columns| has_column(columns, key));
            if stage == Stage::BeforeMigration && is_added {
                continue;
            }
            let named = if *key == GUARD {
                format!("{GUARD_NAME} ({key})")
            } else {
                format!("({key})")
            };
            refusals.add(
                format!("{table} has no unique key {named} of these columns alone"),
                format!("ALTER TABLE {table} ADD UNIQUE KEY {named}"),
            );
        }
    }
}

/// Whether a list of columns between commas has this one.
fn has_column(columns: &str, name: &str) -> bool {
    columns.split(", ").any(|column| column == name)
}

impl FoundTable {
    fn has_zero_default(&self) -> bool {
        let mut defaults = self
            .columns
            .values()
            .filter_map(|column| column.default.as_ref());
        defaults.any(|default| default.starts_with("0000-00-00"))
    }

    fn has_unique_key(&self, key: &str) -> bool {
        let mut keys = self.unique.iter();
        keys.any(|(name, columns)| columns == key && (key != GUARD || name == GUARD_NAME))
    }
}

impl Need {
    /// Why a column does not fulfil it, as the end of a sentence.
    fn fault_of(self, column: &FoundColumn) -> Option<String> {
        let kind = column.kind.as_str();
        let fits = match self {
            Need::Integer(bytes) => integer_bytes(kind) >= bytes,
            Need::Generated => integer_bytes(kind) >= 8,
            Need::Id | Need::Status => integer_bytes(kind) >= 1,
            Need::Number => {
                integer_bytes(kind) > 0 || matches!(kind, "decimal" | "float" | "double")
            }
            Need::Text => matches!(kind, "char" | "varchar" | "enum") || kind.ends_with("text"),
            Need::Bytes => kind.ends_with("binary") || kind.ends_with("blob"),
            Need::Instant | Need::Fixed | Need::Inserted => kind == "timestamp",
        };
        if !fits {
            return Some(format!("is {kind}, and must be {}", self.expected()));
        }
        let is_set_by_update = column.extra.contains("on update");
        let default = column.default.as_deref().unwrap_or_default();
        let is_now = default.starts_with("current_timestamp");
        match self {
            Need::Id if !column.extra.contains("auto_increment") => {
                Some("does not count by itself, and must".to_owned())
            }
            Need::Generated if !column.extra.contains(" generated") => {
                Some("is not generated, so it guards nobody's orders".to_owned())
            }
            Need::Status if default != "1" => {
                Some("has not the default 1, so a new order would have no status".to_owned())
            }
            Need::Fixed | Need::Inserted if is_set_by_update => {
                Some("is set by every UPDATE of its row".to_owned())
            }
            Need::Inserted if !is_now => Some(
                "has not the default CURRENT_TIMESTAMP, so a new row would have no age".to_owned(),
            ),
            _ => None,
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Need::Integer(8) | Need::Generated => "an integer of 8 bytes (BIGINT)",
            Need::Integer(4) => "an integer of 4 bytes at least (INT)",
            Need::Integer(_) | Need::Id | Need::Status => "an integer",
            Need::Number => "a number",
            Need::Text => "a text",
            Need::Bytes => "bytes",
            Need::Instant | Need::Fixed | Need::Inserted => {
                "an instant (TIMESTAMP), as each time zone reads another one in it; the remedy takes its times as those of \
                 +08:00"
            }
        }
    }

    /// The SQL that makes the column what it must be.
    fn remedy(self, column: &FoundColumn, change: String) -> String {
        match self {
            // The zone in which Java nodes, and this service by default, mean a local time.
            Need::Instant | Need::Fixed | Need::Inserted if column.kind != "timestamp" => {
                format!("SET time_zone = '+08:00'; {change}")
            }
            _ => change,
        }
    }
}

/// The size of an integer type; 0 for any other type.
fn integer_bytes(kind: &str) -> u32 {
    match kind {
        "tinyint" => 1,
        "smallint" => 2,
        "mediumint" => 3,
        "int" => 4,
        "bigint" => 8,
        _ => 0,
    }
}

/// Why an order's foreign key cannot be borne, if it cannot.
fn forbidden(key: &ForeignKey) -> Option<Deviation> {
    let ForeignKey { name, column, .. } = key;
    let why = if column == "voucher_id" {
        "under which a refused order, a row of a voucher that does not exist, cannot be written, and two purchases of a \
         sale deadlock"
    } else if key.changes_rows && BASE_OF_BUYER.contains(&column.as_str()) {
        "which changes or deletes orders (CASCADE or SET NULL); a column that a generated one is made of may have no such key"
    } else {
        return None;
    };
    Some(Deviation {
        what: format!("{ORDERS}.{column} has the foreign key {name}, {why}"),
        remedy: format!("ALTER TABLE {ORDERS} DROP FOREIGN KEY {name}"),
    })
}

/// Unique keys of orders that refuse what ours lets pass. A purchase that meets one is told that it has an order.
fn further_unique_keys(orders: &FoundTable) -> impl Iterator<Item = Deviation> {
    // A key that contains the id refuses nothing.
    let further = orders
        .unique
        .iter()
        .filter(|(_, columns)| *columns != GUARD && !has_column(columns, "id"));
    further.map(|(name, columns)| Deviation {
        what: format!(
            "{ORDERS} has the unique key {name} ({columns}), which counts cancelled orders, too: who cancelled one cannot \
             buy again, and is answered 不能重复下单！"
        ),
        remedy: format!("ALTER TABLE {ORDERS} DROP KEY {name}"),
    })
}
