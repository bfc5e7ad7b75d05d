//! Idempotent writes: a transaction that records, under a key, that it was made. The record and the change are committed
//! together, so the record tells what became of a commit whose reply was lost, and a repeated request finds it and does
//! nothing twice. This is the idempotency-key pattern of the IETF draft `Idempotency-Key HTTP Header Field`.
//!
//! The key is the client's, or a random one where it gave none: then only the lost reply is resolved. Records are kept
//! for a day.

use std::time::Duration;

use backon::Retryable;
use serde::Serialize;
use sqlx::{Executor, MySqlConnection};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128;

use crate::connection::mysql::Database;
use crate::connection::server_error::is_read_only;
use crate::error::Error;

/// Pause between two reads of a record whose commit is in doubt.
const RESOLVE_PAUSE: Duration = Duration::from_millis(100);

/// Records removed with one write: more than it adds, so that the table stays as small as a day's writes.
const REMOVED_AT_ONCE: u32 = 100;

/// The commit did not reach the database: nothing was done.
const NOT_COMMITTED: Error = Error::Unavailable("the database");

/// A client's key: 1 to 128 printable ASCII characters without spaces.
#[derive(Clone, Debug)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// The key in a header's value; `None` where it is none.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let fits = (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| IdempotencyKey(text.to_owned()))
    }
}

/// One write, as it is recorded.
#[derive(Clone, Debug)]
pub struct RecordedWrite {
    operation: &'static str,
    key: String,
    fingerprint: [u8; 16],
}

impl RecordedWrite {
    /// A write of this kind, under the client's key or a random one. `request` is what the client asked for: a key that
    /// comes again with another request is refused.
    pub fn new(
        operation: &'static str,
        key: Option<IdempotencyKey>,
        request: &impl Serialize,
    ) -> Self {
        let key = key.map_or_else(|| uuid::Uuid::new_v4().to_string(), |IdempotencyKey(key)| key);
        // Our own types always have a JSON form: no map with keys that are not text.
        let text = serde_json::to_vec(request).unwrap_or_default();
        RecordedWrite { operation, key, fingerprint: xxh3_128(&text).to_be_bytes() }
    }
}

/// A write that was made.
pub struct Made {
    /// Its result.
    pub result: i64,
    /// Whether an earlier request with the same key had made it.
    pub repeated: bool,
}

/// Makes a write unless it was made before: runs `work` in a transaction, which records its result. Waits for a request with
/// the same key that is under way. Each step has the database's time limit, those of `work` apart.
///
/// # Errors
/// Those of `work` and of the database, and [`Error::InvalidParameter`] where the key belongs to another request: nothing was
/// done. [`Error::OutcomeUnknown`] only where the commit's reply was lost, and the database could not be asked for as long as
/// one step may take.
///
/// # Cancellation
/// Dropped, the write may have been made; to be repeated with the same key.
pub async fn write_once(
    db: &Database,
    write: RecordedWrite,
    work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<i64, Error>,
) -> Result<Made, Error> {
    // Dropped before it is answered to the end, it is closed, and the server rolls back.
    let mut connection = db.bounded(db.pool.acquire_for_writes()).await?;
    db.bounded(connection.execute("START TRANSACTION")).await?;
    let insert = sqlx::query(
        "INSERT INTO tb_idempotency (operation, idempotency_key, fingerprint) VALUES (?, ?, ?)",
    )
    .bind(write.operation)
    .bind(&write.key)
    .bind(&write.fingerprint[..]);
    let row = match db.bounded(insert.execute(&mut *connection)).await {
        Ok(done) => done.last_insert_id(),
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
            drop(connection);
            return Ok(Made { result: look_up(db, &write).await?, repeated: true });
        }
        Err(error) => return Err(error.into()),
    };
    let result = work(&mut connection).await?;
    let update =
        sqlx::query("UPDATE tb_idempotency SET result = ? WHERE id = ?").bind(result).bind(row);
    db.bounded(update.execute(&mut *connection)).await?;
    let committed = db.bounded(connection.execute("COMMIT")).await;
    if committed.is_ok() {
        connection.answered();
    }
    drop(connection);
    match committed {
        Ok(_) => {
            remove_old(db).await;
            Ok(Made { result, repeated: false })
        }
        Err(error) if is_read_only(&error) => Err(NOT_COMMITTED),
        Err(error) => {
            tracing::warn!(operation = write.operation, %error, "the commit's reply was lost");
            Ok(Made { result: look_up(db, &write).await?, repeated: false })
        }
    }
}

/// The result that is recorded for the write.
async fn look_up(db: &Database, write: &RecordedWrite) -> Result<i64, Error> {
    let deadline = Instant::now() + db.timeout;
    let pauses = std::iter::repeat(RESOLVE_PAUSE).take_while(|_| Instant::now() < deadline);
    match (|| db.bounded(recorded(db, write))).retry(pauses).await {
        Ok(Some((Some(result), of))) if of == write.fingerprint => Ok(result),
        Ok(Some((Some(_), _))) => Err(Error::InvalidParameter(
            "this Idempotency-Key was used for another request".to_owned(),
        )),
        Ok(_) => Err(NOT_COMMITTED),
        Err(_) => Err(Error::OutcomeUnknown(None)),
    }
}

/// Result and fingerprint, waiting for a transaction that may still decide them: a locking read on a row that is being
/// inserted does not return until that transaction has ended. A server that takes no writes is not asked.
async fn recorded(
    db: &Database,
    write: &RecordedWrite,
) -> sqlx::Result<Option<(Option<i64>, Vec<u8>)>> {
    let query = sqlx::query_as(
        "SELECT result, fingerprint FROM tb_idempotency WHERE operation = ? AND idempotency_key = ? \
         LOCK IN SHARE MODE",
    )
    .bind(write.operation)
    .bind(&write.key);
    let mut connection = db.pool.acquire_writable().await?;
    let found = query.fetch_optional(&mut *connection).await?;
    connection.answered();
    Ok(found)
}

/// Removes records whose day is over. A failure leaves them to the next write.
async fn remove_old(db: &Database) {
    let delete = sqlx::query(
        "DELETE FROM tb_idempotency WHERE create_time < NOW() - INTERVAL 1 DAY LIMIT ?",
    )
    .bind(REMOVED_AT_ONCE);
    if let Err(error) = db.write(async |c| delete.execute(c).await).await {
        tracing::debug!(%error, "old records of writes are not removed yet");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_short_and_printable() {
        for good in ["a", "0b5d3c1e-7a55-4c0c-9d1f-2d1c3b4a5e6f", &"~".repeat(128)] {
            assert!(IdempotencyKey::parse(good.as_bytes()).is_some(), "{good}");
        }
        for bad in ["", " ", "a b", "é", "a\n", &"a".repeat(129)] {
            assert!(IdempotencyKey::parse(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
