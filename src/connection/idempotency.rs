//! Idempotent writes: a transaction that records, under a key, that it was made. The record and the change are committed
//! together, so the record tells what became of a commit whose reply was lost, and a repeated request finds it and does
//! nothing twice. This is the idempotency-key pattern of the IETF draft `Idempotency-Key HTTP Header Field`.
//!
//! The key is the client's, or a random one where it gave none: then only the lost reply is resolved. Records are kept
//! for a day.

use std::time::Duration;

use backon::Retryable;
use serde::Serialize;
use sqlx::MySqlConnection;
use sqlx::mysql::MySqlDatabaseError;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128;

use super::mysql::Database;
use super::pool::Transaction;
use super::server_error::is_read_only;

/// Pause between two reads of a record whose commit is in doubt.
const RESOLVE_PAUSE: Duration = Duration::from_millis(100);

/// Records removed with one write: more than it adds, so that the table stays as small as a day's writes.
const REMOVED_AT_ONCE: u32 = 100;

/// MySQL's and MariaDB's error number for a duplicate key.
const DUPLICATE_ENTRY: u16 = 1062;

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

/// Why a recorded write failed.
#[derive(Debug)]
pub enum WriteError {
    /// Nothing was done.
    Database(sqlx::Error),
    /// Nothing was done: the key belongs to another request.
    OtherRequest,
    /// Nothing was done: the commit did not reach the database.
    NotCommitted,
    /// The commit's reply was lost, and the database could not be asked since.
    Unknown,
}

impl From<sqlx::Error> for WriteError {
    fn from(error: sqlx::Error) -> Self {
        WriteError::Database(error)
    }
}

/// How a recorded write begins.
pub enum Begun {
    /// To be made now.
    First(RecordedTransaction),
    /// Was made before, with this result.
    Repeat(i64),
}

/// The transaction of a recorded write. Dropped without [`RecordedTransaction::commit`] or
/// [`RecordedTransaction::rollback`], it closes its connection, and the server rolls back.
pub struct RecordedTransaction {
    db: Database,
    transaction: Transaction,
    write: RecordedWrite,
    row: u64,
}

impl RecordedTransaction {
    /// Opens the transaction and records the write, waiting for a request with the same key that is under way. Each step
    /// has the database's time limit, here and below.
    ///
    /// # Errors
    /// [`WriteError::OtherRequest`]; those of the database, among them a lock wait time-out where the other request
    /// takes long.
    pub async fn begin(db: &Database, write: RecordedWrite) -> Result<Begun, WriteError> {
        let transaction = db.bounded(db.pool.begin()).await?;
        let mut recorded = RecordedTransaction { db: db.clone(), transaction, write, row: 0 };
        let RecordedWrite { operation, key, fingerprint } = &recorded.write;
        let insert = sqlx::query(
            "INSERT INTO tb_idempotency (operation, idempotency_key, fingerprint) VALUES (?, ?, ?)",
        )
        .bind(operation)
        .bind(key)
        .bind(&fingerprint[..]);
        match db.bounded(insert.execute(&mut *recorded.transaction)).await {
            Ok(done) => {
                recorded.row = done.last_insert_id();
                Ok(Begun::First(recorded))
            }
            Err(error) if is_duplicate(&error) => recorded.repeat().await,
            Err(error) => Err(error.into()),
        }
    }

    /// To run the change on.
    pub fn connection(&mut self) -> &mut MySqlConnection {
        &mut self.transaction
    }

    /// `tb_idempotency.id` of the record.
    pub fn row(&self) -> u64 {
        self.row
    }

    /// Records the result, with which a repeated request is answered.
    ///
    /// # Errors
    /// Nothing was done.
    pub async fn set_result(&mut self, result: i64) -> Result<(), WriteError> {
        let update = sqlx::query("UPDATE tb_idempotency SET result = ? WHERE id = ?")
            .bind(result)
            .bind(self.row);
        self.db.bounded(update.execute(&mut *self.transaction)).await?;
        Ok(())
    }

    /// Commits a write that has its `result` recorded, and looks the record up where the reply was lost. Returns the
    /// result: not this one where a request with the same key was the one that took effect.
    ///
    /// # Errors
    /// [`WriteError::NotCommitted`] is definite: nothing was done. [`WriteError::Unknown`] only where the database could
    /// not be asked for as long as one step may take.
    pub async fn commit(self, result: i64) -> Result<i64, WriteError> {
        let RecordedTransaction { db, transaction, write, .. } = self;
        // Where there is no reply, this closes the connection, and the server ends a transaction whose COMMIT never
        // arrives.
        if let Err(error) = db.bounded(transaction.commit()).await {
            if is_read_only(&error) {
                return Err(WriteError::NotCommitted);
            }
            tracing::warn!(operation = write.operation, %error, "the commit's reply was lost");
            return resolve(&db, &write).await;
        }
        remove_old(&db).await;
        Ok(result)
    }

    /// Undoes everything.
    ///
    /// # Errors
    /// The connection is closed, and the server rolls back.
    pub async fn rollback(self) -> Result<(), WriteError> {
        Ok(self.db.bounded(self.transaction.rollback()).await?)
    }

    /// What the request with the same key did.
    async fn repeat(mut self) -> Result<Begun, WriteError> {
        let query = sqlx::query_as::<_, (Option<i64>, Vec<u8>)>(
            "SELECT result, fingerprint FROM tb_idempotency WHERE operation = ? AND idempotency_key = ?",
        )
        .bind(self.write.operation)
        .bind(&self.write.key);
        let found = self.db.bounded(query.fetch_optional(&mut *self.transaction)).await?;
        let fingerprint = self.write.fingerprint;
        self.rollback().await?;
        match found {
            Some((Some(result), of)) if of == fingerprint => Ok(Begun::Repeat(result)),
            Some((Some(_), _)) => Err(WriteError::OtherRequest),
            // Removed for its age just now.
            _ => Err(WriteError::NotCommitted),
        }
    }
}

/// Removes records whose day is over. A failure leaves them to the next write.
async fn remove_old(db: &Database) {
    let delete = sqlx::query(
        "DELETE FROM tb_idempotency WHERE create_time < NOW() - INTERVAL 1 DAY LIMIT ?",
    )
    .bind(REMOVED_AT_ONCE);
    if let Err(error) = db.bounded(db.pool.change(delete)).await {
        tracing::debug!(%error, "old records of writes are not removed yet");
    }
}

/// What became of a commit without a reply.
async fn resolve(db: &Database, write: &RecordedWrite) -> Result<i64, WriteError> {
    let deadline = Instant::now() + db.timeout;
    let pauses = std::iter::repeat(RESOLVE_PAUSE).take_while(|_| Instant::now() < deadline);
    match (|| recorded(db, write)).retry(pauses).await {
        Ok(Some(result)) => Ok(result),
        Ok(None) => Err(WriteError::NotCommitted),
        Err(_) => Err(WriteError::Unknown),
    }
}

/// The result that is recorded for the write, if any, waiting for a transaction that may still decide it: a locking read
/// on a row that is being inserted does not return until that transaction has ended. A server that takes no writes is not
/// asked.
async fn recorded(db: &Database, write: &RecordedWrite) -> sqlx::Result<Option<i64>> {
    let query = sqlx::query_scalar(
        "SELECT result FROM tb_idempotency WHERE operation = ? AND idempotency_key = ? \
         AND fingerprint = ? LOCK IN SHARE MODE",
    )
    .bind(write.operation)
    .bind(&write.key)
    .bind(&write.fingerprint[..]);
    let read = async {
        let mut connection = db.pool.acquire_writable().await?;
        let found = query.fetch_optional(&mut *connection).await?;
        connection.answered();
        Ok(found)
    };
    db.bounded(read).await
}

fn is_duplicate(error: &sqlx::Error) -> bool {
    let error = error.as_database_error().and_then(|e| e.try_downcast_ref::<MySqlDatabaseError>());
    error.is_some_and(|error| error.number() == DUPLICATE_ENTRY)
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

    #[test]
    fn requests_that_differ_have_other_fingerprints() {
        let of = |request| RecordedWrite::new("test", None, &request).fingerprint;
        assert_eq!(of((1, "a")), of((1, "a")));
        assert_ne!(of((1, "a")), of((2, "a")));
    }
}
