//! [`row!`](crate::connection::row!): a struct that is read from the columns of its fields' names.
//!
//! In place of sqlx's derive: the crate behind that builds sqlx, its MySQL driver and tokio a second time for the
//! compiler's own use, which cost a tenth of the first build.

/// Declares a struct and reads it from a row, each field from the column of its name.
macro_rules! row {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident {
        $($(#[$note:meta])* $access:vis $field:ident: $type:ty,)+
    }) => {
        $(#[$attribute])*
        $visibility struct $name { $($(#[$note])* $access $field: $type,)+ }

        impl<'r> sqlx::FromRow<'r, sqlx::mysql::MySqlRow> for $name {
            fn from_row(row: &'r sqlx::mysql::MySqlRow) -> sqlx::Result<Self> {
                use sqlx::Row;
                Ok(Self { $($field: row.try_get(stringify!($field))?,)+ })
            }
        }
    };
}

pub(crate) use row;
