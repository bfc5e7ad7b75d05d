//! Rows as structs: the macro `from_row!`, and [`read_each`] for queries whose rows have nothing to do with each other.
//!
//! In place of sqlx's derive: the crate behind the derive builds sqlx, its MySQL driver and tokio a second time for the
//! compiler's own use, which cost a tenth of the first build.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use quick_cache::sync::Cache;
use sqlx::mysql::MySqlRow;
use sqlx::{FromRow, Row};

/// Reads a struct from a row, each field from the column of its name. Fields after a semicolon are TIMESTAMP columns that are
/// read as date-times in UTC, which sqlx allows only unchecked.
macro_rules! from_row {
    ($name:ident: $($field:ident),+ $(; $($time:ident),+)?) => {
        impl<'r> sqlx::FromRow<'r, sqlx::mysql::MySqlRow> for $name {
            fn from_row(row: &'r sqlx::mysql::MySqlRow) -> sqlx::Result<Self> {
                use sqlx::Row;
                Ok(Self {
                    $($field: row.try_get(stringify!($field))?,)+
                    $($($time: row.try_get_unchecked(stringify!($time))?,)+)?
                })
            }
        }
    };
}

pub(crate) use from_row;

/// How often one unreadable row is named in the log: a list may be asked for many times a second.
const NAMED_EVERY: Duration = Duration::from_secs(60);

/// Unreadable rows that were named, by table and id.
static NAMED: LazyLock<Cache<(&str, i64), Instant>> = LazyLock::new(|| Cache::new(256));

/// Reads each row of `table` by itself, so that a value that cannot be read, such as a NULL, does not fail the other rows. The
/// first column is the row's id. A row that cannot be read is `None`, and named in the log.
pub fn read_each<T>(table: &'static str, rows: &[MySqlRow]) -> Vec<(i64, Option<T>)>
where
    T: for<'r> FromRow<'r, MySqlRow>,
{
    let read = |row: &MySqlRow| {
        let id = row.try_get(0).unwrap_or_default();
        let read = T::from_row(row);
        if let Err(error) = &read {
            name_unreadable(table, id, error);
        }
        (id, read.ok())
    };
    rows.iter().map(read).collect()
}

/// As [`read_each`], without those that cannot be read.
pub fn readable<T>(table: &'static str, rows: &[MySqlRow]) -> Vec<T>
where
    T: for<'r> FromRow<'r, MySqlRow>,
{
    let each = read_each(table, rows).into_iter();
    each.filter_map(|(_, row)| row).collect()
}

fn name_unreadable(table: &'static str, id: i64, error: &sqlx::Error) {
    let was_named = NAMED
        .get(&(table, id))
        .is_some_and(|at| at.elapsed() < NAMED_EVERY);
    if !was_named {
        NAMED.insert((table, id), Instant::now());
        tracing::error!(table, id, %error, "a row cannot be read, and is left out");
    }
}
