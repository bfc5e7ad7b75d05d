//! The resource that the lock protects: a counter on a Redis of its own that rejects reads and writes
//! with an older fencing token than one it has seen. Such a resource is safe under a fenced lock
//! whatever happens to the holder.

use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

const KEY: &str = "register";

/// KEYS\[1] the register. ARGV\[1] token. ARGV\[2] the new value, or empty to read. Returns the value,
/// or nil if the token is stale. Counts accepted writes and rejected calls.
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
        // Its clients may be stopped during a call for longer than the default timeout.
        let timeout = Some(Duration::from_secs(20));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(timeout)
            .set_response_timeout(timeout);
        let conn = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("connect to the register");
        Self { conn, access: redis::Script::new(ACCESS) }
    }

    /// The value; `None`: rejected as stale.
    pub async fn read(&self, fence: u64) -> Option<u64> {
        self.access(fence, None).await
    }

    /// Writes, unless it is rejected as stale.
    pub async fn write(&self, fence: u64, value: u64) {
        self.access(fence, Some(value)).await;
    }

    async fn access(&self, fence: u64, value: Option<u64>) -> Option<u64> {
        let mut call = self.access.key(KEY);
        call.arg(fence).arg(value.map(|value| value.to_string()).unwrap_or_default());
        call.invoke_async(&mut self.conn.clone()).await.expect("access the register")
    }

    pub async fn counts(&self) -> RegisterCounts {
        let mut command = redis::cmd("HMGET");
        command.arg(KEY).arg("value").arg("writes").arg("refused");
        let (value, writes, refused): (Option<u64>, Option<u64>, Option<u64>) =
            command.query_async(&mut self.conn.clone()).await.expect("HMGET");
        let or_zero = |number: Option<u64>| number.unwrap_or(0);
        RegisterCounts { value: or_zero(value), writes: or_zero(writes), refused: or_zero(refused) }
    }
}

/// The register's counts.
#[derive(Debug, Clone, Copy)]
pub struct RegisterCounts {
    pub value: u64,
    /// Accepted writes: equal to `value` unless one of them was stale.
    pub writes: u64,
    pub refused: u64,
}
