//! Classification of the database's errors. What a server's error numbers mean is one table, so that
//! every caller tells a row's own fault from the state of the server.
//!
//! A number that is not in the table is taken for the server's state: to try again is then at worst useless, while to
//! give an order up because of an outage would break a promise. The numbers are those of the [MySQL error
//! reference](https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html) and the [MariaDB error code
//! reference](https://mariadb.com/kb/en/mariadb-error-code-reference/), which agree up to 1880; OceanBase has the
//! first, and beside them [numbers of its own](https://github.com/oceanbase/oceanbase/blob/develop/src/share/ob_errno.def).

use sqlx::mysql::MySqlDatabaseError;

/// What `error` says: by the server's own number, where it is the server that answered.
pub fn meaning_of(error: &sqlx::Error) -> Meaning {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => Meaning::NoAnswer,
        sqlx::Error::Database(error) => error
            .try_downcast_ref::<MySqlDatabaseError>()
            .map_or(Meaning::Unknown, |error| {
                meaning(error.number(), error.code())
            }),
        _ => Meaning::Bug,
    }
}

/// The error of a server that did not answer in time.
pub(super) fn no_answer_in_time() -> sqlx::Error {
    std::io::Error::new(
        std::io::ErrorKind::TimedOut,
        "the database did not answer in time",
    )
    .into()
}

/// Whether the connection that had this error can be used again, and there is no reason to try a new one.
pub fn leaves_usable(error: &sqlx::Error) -> bool {
    use Meaning::{Elsewhere, ReadOnly, Unknown};
    match error {
        sqlx::Error::Database(_) => !matches!(meaning_of(error), ReadOnly | Elsewhere | Unknown),
        // Found when the reply was complete.
        sqlx::Error::RowNotFound | sqlx::Error::ColumnDecode { .. } => true,
        _ => false,
    }
}

/// Whether the server refused a write because it takes none. It has rolled the transaction back, if the write was its
/// COMMIT.
pub fn is_read_only(error: &sqlx::Error) -> bool {
    meaning_of(error) == Meaning::ReadOnly
}

/// Whether a unique key refused the row.
pub fn is_duplicate(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| error.is_unique_violation())
}

/// Whether a check of ours in a text failed: it then adds one to the largest integer.
pub fn is_out_of_range(error: &sqlx::Error) -> bool {
    number(error) == Some(1690)
}

/// Whether the error is about a statement that the server ran, so that the statements after it were not run. An error that
/// breaks or interrupts a connection is not: it may come from a proxy that has lost its server, in place of the replies to
/// statements that were run.
pub fn is_of_its_statement(error: &sqlx::Error) -> bool {
    match meaning_of(error) {
        Meaning::Conflict
        | Meaning::ReadOnly
        | Meaning::Schema
        | Meaning::Bug
        | Meaning::Row
        | Meaning::Characters => true,
        Meaning::Exhausted => !matches!(number(error), Some(1317 | 1969 | 3024 | 4012)),
        Meaning::NoAnswer | Meaning::Elsewhere | Meaning::Unknown => false,
    }
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    let error = error.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

/// What an error means, and so what to do about it. Whatever it means, nothing was committed, unless it is the error of a
/// COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A deadlock or a lock wait time-out: the transaction was rolled back, and may be run again.
    Conflict,
    /// The server did not answer, or not in time.
    NoAnswer,
    /// This server takes no writes: it is a replica, was the primary until now, or an administrator made it so.
    ReadOnly,
    /// This server, or this connection to it, cannot be used now; a new connection may lead to one that can.
    Elsewhere,
    /// The server lacks something that every client needs: space, memory, time.
    Exhausted,
    /// A table, column or database is not there: a migration is under way, or was forgotten.
    Schema,
    /// A bug: the statement is wrong, or a reply was not understood.
    Bug,
    /// The values of the row are refused: a constraint, or a trigger's own error.
    Row,
    /// A text of the request has characters that the column's character set does not have.
    Characters,
    /// Not in the table.
    Unknown,
}

/// Looks up `number`; `sqlstate` separates numbers that MySQL and MariaDB use differently.
pub fn meaning(number: u16, sqlstate: Option<&str>) -> Meaning {
    match number {
        // Lock wait time-out; deadlock; changed since the last read; XA deadlock; NOWAIT; rolled back by the group; rolled
        // back by OceanBase, as it was idle for too long; its tables are being changed.
        1205 | 1213 | 1020 | 1614 | 3101 | 3572 | 6002 | 5627 => Meaning::Conflict,

        // By an option; in a transaction; as a mode of the server, of InnoDB.
        1290 | 1792 | 1836 | 1874 => Meaning::ReadOnly,

        // No right to the database, the server, the table, the column, the operation. Rights are read at connecting.
        1044 | 1045 | 1142 | 1143 | 1227 | 1370 | 1698
        // Shutting down; the connection or session was killed, aborted, or idle for too long.
        | 1053 | 1077 | 1078 | 1079 | 1080 | 1152 | 1184 | 1927 | 3169 | 4031
        // A Galera node that is not synchronised; a member that is not in its replication group.
        | 1047 | 3100
        // The network between a proxy and the server, and the protocol.
        | 1042 | 1043 | 1153 | 1155..=1161 | 1835
        // Host blocked or not allowed; too many connections, of this user, of its quota.
        | 1129 | 1130 | 1040 | 1203 | 1226 => Meaning::Elsewhere,

        // No space: disk, table, tablespace, temporary files, binary log.
        1021 | 1114 | 1026 | 1197 | 1534 | 3675
        // No memory, threads, locks, transactions, prepared statements.
        | 1037 | 1038 | 1041 | 1135 | 1206 | 1461 | 1637
        // Interrupted; a statement's time limit, of MariaDB, of MySQL, of OceanBase.
        | 1317 | 1969 | 3024 | 4012
        // The storage engine or its files are in trouble, or a table is.
        | 1015 | 1016 | 1023 | 1030 | 1033..=1035 | 1180 | 1181 | 1194 | 1195 | 1712 | 1812..=1815
        // The tables are locked by a backup or an administrator.
        | 1099 | 1100 | 1192 | 1207 | 1223 | 1689 => Meaning::Exhausted,

        // No such database, table, column, routine, table in the engine; changed while it was used; broken view.
        1046 | 1049 | 1051 | 1054 | 1109 | 1146 | 1305 | 1356 | 1412 | 1615 | 1932
        // A column was added that has no default; no partition was made for this value.
        | 1364 | 1526 => Meaning::Schema,

        // Syntax; wrong number of columns, parameters; ambiguous; unknown variable; not supported.
        1052 | 1058 | 1064 | 1065 | 1136 | 1149 | 1193 | 1210 | 1222 | 1235 | 1241..=1243 => {
            Meaning::Bug
        }

        // Duplicate key; null; too long, out of range, of the wrong kind; foreign key; CHECK of MySQL; SIGNAL.
        1022 | 1048 | 1062 | 1169 | 1216 | 1217 | 1264 | 1265 | 1292 | 1366 | 1367 | 1369 | 1406
        | 1451 | 1452 | 1586 | 1644 | 1690 | 3819 => Meaning::Row,
        // Collations that cannot be compared, of a text with such a character; invalid text; cannot be converted, of MySQL
        // and of MariaDB.
        1267 | 1270 | 1271 | 1300 | 3854 | 3988 | 1977 => Meaning::Characters,
        // CHECK of MariaDB; MySQL has another error under this number.
        4025 if sqlstate == Some("23000") => Meaning::Row,

        _ => Meaning::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_numbers_are_a_rows_fault() {
        let all = 1..=u16::MAX;
        let rows = all.filter(|number| meaning(*number, Some("HY000")) == Meaning::Row);
        assert_eq!(rows.count(), 19, "each new one is to be thought about");
        assert_eq!(meaning(4025, Some("23000")), Meaning::Row);
        assert_eq!(meaning(9999, None), Meaning::Unknown);
    }
}
