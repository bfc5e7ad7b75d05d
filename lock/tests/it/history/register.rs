//! What the lock protects: a counter on a Redis of its own that refuses whoever comes with a fence
//! older than one it has seen, at reading as at writing. It is the example of a resource that is
//! safe under a fenced lock, whatever happens to its holder.

use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

const KEY: &str = "register";

/// KEYS[1] the register. ARGV[1] fence. ARGV[2] the new value, or empty to read. Returns the value,
/// or nil when the fence is stale. Counts the writes that were let in,
/// and all that was refused.
const ACCESS: &str = r"
local fence = tonumber(ARGV[1])
if fence < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then
  redis.call('HINCRBY', KEYS[1], 'refused', 1)
  return false
end
redis.call('HSET', KEYS[1], 'fence', fence)
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[1], 'value', ARGV[2])
  redis.call('HINCRBY', KEYS[1], 'writes', 1)
end
return tonumber(redis.call('HGET', KEYS[1], 'value') or '0')
";

/// A client of the register.
pub struct Register {
    conn: MultiplexedConnection,
    access: redis::Script,
}

impl Register {
    pub async fn connect(url: &str) -> Self {
        let client = redis::Client::open(url).expect("a valid address");
        // Its clients may be stopped in the middle of a call for longer than the usual limit.
        let patience = Some(Duration::from_secs(20));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(patience)
            .set_response_timeout(patience);
        let conn = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("connect to the register");
        Self { conn, access: redis::Script::new(ACCESS) }
    }

    /// Read, pause, write back. `false`: refused as stale.
    pub async fn increment(&self, fence: u64, pause: Duration) -> bool {
        let Some(seen) = self.access(fence, "").await else { return false };
        tokio::time::sleep(pause).await;
        self.access(fence, &(seen + 1).to_string()).await.is_some()
    }

    async fn access(&self, fence: u64, value: &str) -> Option<i64> {
        let mut call = self.access.key(KEY);
        call.arg(fence).arg(value);
        call.invoke_async(&mut self.conn.clone()).await.expect("access the register")
    }

    pub async fn audit(&self) -> Audit {
        let mut ask = redis::cmd("HMGET");
        ask.arg(KEY).arg("value").arg("writes").arg("refused");
        let (value, writes, refused): (Option<u64>, Option<u64>, Option<u64>) =
            ask.query_async(&mut self.conn.clone()).await.expect("HMGET");
        let or_none = |number: Option<u64>| number.unwrap_or(0);
        Audit { value: or_none(value), writes: or_none(writes), refused: or_none(refused) }
    }
}

/// What became of the register.
#[derive(Debug, Clone, Copy)]
pub struct Audit {
    pub value: u64,
    /// Writes let in: as many as the value counts, unless one of them was stale.
    pub writes: u64,
    pub refused: u64,
}
