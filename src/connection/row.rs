//! The macro `from_row!`: structs that are read from the columns of their fields' names.
//!
//! In place of sqlx's derive: the crate behind that builds sqlx, its MySQL driver and tokio a second time for the
//! compiler's own use, which cost a tenth of the first build.

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
