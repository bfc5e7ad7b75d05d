//! Idempotent writes: a transaction that also records, under a key, that it was made. The record and the change are committed
//! together. So the record tells what became of a commit whose reply was lost, and a repeated request finds it and changes
//! nothing. This is the idempotency-key pattern of the IETF draft `Idempotency-Key HTTP Header Field`. Records are kept for a
//! day.

use serde::Serialize;
use sqlx::{Executor, MySqlConnection};
use xxhash_rust::xxh3::xxh3_128;

use crate::connection::mysql::Database;
use crate::connection::server_error::{Meaning, is_duplicate, is_read_only, meaning_of};
use crate::error::{Cause, Error};

/// Removes records that are older than a day. It removes up to 100, and a write adds one, so the table does not grow beyond
/// a day's writes.
const REMOVE_OLD: &str =
    "DELETE FROM tb_idempotency WHERE create_time < NOW() - INTERVAL 1 DAY LIMIT 100";

/// The commit did not reach the database: nothing was done.
const NOT_COMMITTED: Error = Error::Unavailable(Cause::Database);

/// One write, as it is recorded.
pub struct RecordedWrite {
    operation: &'static str,
    key: String,
    fingerprint: Vec<u8>,
}

impl RecordedWrite {
    /// A write of the kind `operation` under the client's key. Without a key it gets a random one, which only serves to find
    /// out what became of a commit whose reply was lost. `request` is what the client asked for: the same key with another
    /// request is refused.
    pub fn new(operation: &'static str, key: Option<String>, request: &impl Serialize) -> Self {
        // Our own types always have a JSON form: no map with keys that are not text.
        let text = serde_json::to_vec(request).unwrap_or_default();
        RecordedWrite {
            operation,
            key: key.unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
            fingerprint: xxh3_128(&text).to_be_bytes().to_vec(),
        }
    }
}

/// Makes a write unless it was made before, and returns its result: runs `work` in a transaction, which also records the
/// result. Waits for a request with the same key that is under way. Each step has the database's time limit, except those of
/// `work`, which sets its own. If the future is dropped, the write may have been made: repeat it with the same key.
///
/// # Errors
/// Those of `work` and of the database, and [`Error::InvalidParameter`] where the key belongs to another request: nothing was
/// done. [`Error::OutcomeUnknown`] where this write, or one with the same key, may have been committed, and the database could
/// not be asked in time.
pub async fn write_once(
    db: &Database,
    write: RecordedWrite,
    work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<i64, Error>,
) -> Result<i64, Error> {
    let RecordedWrite {
        operation,
        key,
        fingerprint,
    } = &write;
    // If the connection is dropped before COMMIT is answered, it is closed, and the server rolls back.
    let mut connection = db.pool.acquire_for_writes(db.pool.deadline()).await?;
    db.bounded(connection.execute("START TRANSACTION")).await?;
    let insert =
        "INSERT INTO tb_idempotency (operation, idempotency_key, fingerprint) VALUES (?, ?, ?)";
    let insert = sqlx::query(insert)
        .bind(operation)
        .bind(key)
        .bind(fingerprint);
    let record_id = match db.bounded(insert.execute(&mut *connection)).await {
        Ok(done) => done.last_insert_id(),
        Err(error) if is_duplicate(&error) => {
            drop(connection);
            return look_up(db, &write).await;
        }
        // A request with the key is under way, for longer than the server lets a statement wait.
        Err(error) if meaning_of(&error) == Meaning::Conflict => {
            drop(connection);
            return look_up(db, &write).await;
        }
        Err(error) => return Err(error.into()),
    };
    let result = work(&mut connection).await.map_err(as_invalid)?;
    let update = sqlx::query("UPDATE tb_idempotency SET result = ? WHERE id = ?")
        .bind(result)
        .bind(record_id);
    db.bounded(update.execute(&mut *connection)).await?;
    match db.bounded(connection.execute("COMMIT")).await {
        Ok(_) => connection.answered(),
        Err(error) if is_read_only(&error) => return Err(NOT_COMMITTED),
        Err(error) => {
            drop(connection);
            tracing::warn!(operation, %error, "the commit's reply was lost");
            return look_up(db, &write).await;
        }
    }
    drop(connection);
    if let Err(error) = db
        .write(async |c| sqlx::query(REMOVE_OLD).execute(c).await)
        .await
    {
        tracing::debug!(%error, "old records of writes are left to the next write");
    }
    Ok(result)
}

/// A value that the table refuses, such as a text that is longer than its column, or a type of shop that does not exist, is
/// an error of the request.
fn as_invalid(error: Error) -> Error {
    match error {
        Error::RowRefused(detail) => {
            Error::InvalidParameter(format!("the tables refuse a value ({detail})"))
        }
        other => other,
    }
}

/// The result that is recorded for the write. To find it, its record is inserted and rolled back: on every server an INSERT
/// waits for a transaction that has inserted the same key, and a locking read may not. A server that takes no writes is not
/// asked.
async fn look_up(db: &Database, write: &RecordedWrite) -> Result<i64, Error> {
    let probe = || async { db.ask_primary(async |c| probe(c, write).await).await };
    match db.ask_until_answered(probe).await {
        Ok(Some((Some(result), fingerprint))) => {
            let is_same_request = fingerprint == write.fingerprint;
            Error::require(
                is_same_request,
                "this Idempotency-Key was used for another request",
            )?;
            Ok(result)
        }
        // The record that the probe itself inserted: there is no other.
        Ok(Some((None, _))) => Err(NOT_COMMITTED),
        // `None`, because IGNORE hides whatever else keeps a record out of the table.
        Ok(None) | Err(_) => Err(Error::OutcomeUnknown(None)),
    }
}

/// The result and the fingerprint of the record under the write's key. Where there is none, one without a result is inserted,
/// found, and rolled back.
async fn probe(
    connection: &mut MySqlConnection,
    write: &RecordedWrite,
) -> sqlx::Result<Option<(Option<i64>, Vec<u8>)>> {
    connection.execute("START TRANSACTION").await?;
    let insert = "INSERT IGNORE INTO tb_idempotency (operation, idempotency_key, fingerprint) VALUES (?, ?, ?)";
    let inserting = sqlx::query(insert)
        .bind(write.operation)
        .bind(&write.key)
        .bind(&write.fingerprint)
        .execute(&mut *connection)
        .await;
    let select = "SELECT result, fingerprint FROM tb_idempotency \
         WHERE operation = ? AND idempotency_key = ?";
    let found = match inserting {
        Ok(_) => {
            sqlx::query_as(select)
                .bind(write.operation)
                .bind(&write.key)
                .fetch_optional(&mut *connection)
                .await
        }
        Err(error) => Err(error),
    };
    connection.execute("ROLLBACK").await?;
    found
}
