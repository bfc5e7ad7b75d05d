//! A resource that uses fencing tokens to refuse late holders of a lock.
//!
//! The first holder is paused for longer than its lease, and writes afterwards; meanwhile the second
//! holder has acquired the lock and written. No lock can prevent the late write: it is on its way when
//! its sender learns of the loss. The resource can: it remembers the highest token it has seen and
//! refuses lower ones. Here it is a hash in Redis; in SQL it is one more condition,
//! `UPDATE account SET balance = ?, fence = ? WHERE id = ? AND fence <= ?`.
//!
//! Run: `REDIS_URL=redis://127.0.0.1:6379 cargo run --example fenced_resource`

use std::time::Duration;

use redis::Script;
use redis::aio::MultiplexedConnection;
use redisson_lock::{LockConfig, Locks};

/// The protected resource: a balance, and the highest token that has written it.
struct Account {
    redis: MultiplexedConnection,
    write: Script,
}

impl Account {
    fn new(redis: MultiplexedConnection) -> Self {
        // Equal is allowed: one holder may write more than once.
        let write = Script::new(
            "if tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) > tonumber(ARGV[1]) then
               return 0
             end
             redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'balance', ARGV[2])
             return 1",
        );
        Self { redis, write }
    }

    /// Set the balance; `false` if a write with a higher token came before.
    async fn set(&mut self, balance: u32, fence: u64) -> redis::RedisResult<bool> {
        let mut call = self.write.key("example:account");
        call.arg(fence)
            .arg(balance)
            .invoke_async(&mut self.redis)
            .await
    }

    async fn balance(&mut self) -> redis::RedisResult<u32> {
        redis::cmd("HGET")
            .arg("example:account")
            .arg("balance")
            .query_async(&mut self.redis)
            .await
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    run(&std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379/".to_owned())).await
}

/// Two holders, the first of which is late.
pub async fn run(url: &str) -> Result<(), Failure> {
    let client = redis::Client::open(url)?;
    let mut account = Account::new(client.get_multiplexed_async_connection().await?);
    let locks = Locks::connect(client, LockConfig::default()).await?;
    let lock = locks.fenced("example:lock:account");

    // A short lease without renewal, as if the whole process of the first holder were paused.
    let short = lock.clone().without_renewal(Duration::from_millis(300));
    let first = short.acquire().await?;
    println!(
        "first holder: token {}, paused past its lease",
        first.fence()
    );

    let second = lock.acquire().await?;
    println!("second holder: token {}", second.fence());
    println!(
        "second holder writes 80: {}",
        outcome(account.set(80, second.fence()).await?)
    );

    let late = account.set(100, first.fence()).await?;
    println!("first holder writes 100: {}", outcome(late));
    println!("first holder releases: {:?}", first.release().await);

    let balance = account.balance().await?;
    println!("the balance is {balance}");
    if late || balance != 80 {
        return Err("a late write was accepted".into());
    }
    second.release().await?;
    locks.shutdown().await;
    Ok(())
}

fn outcome(done: bool) -> &'static str {
    if done { "done" } else { "refused" }
}
