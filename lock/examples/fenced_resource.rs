//! A resource that refuses late holders of a lock.
//!
//! Ana takes the lock, is paused for longer than her lease, and writes when she comes back; Ben has
//! taken the lock and written in the meantime. No lock can prevent Ana's write: it is on its way
//! when she finds out. The resource can: it remembers the highest fence it has seen and refuses
//! lower ones. Here it is a hash in Redis; in SQL it is one more condition,
//! `UPDATE account SET balance = ?, fence = ? WHERE id = ? AND fence <= ?`.
//!
//! Run: `REDIS_URL=redis://127.0.0.1:6379 cargo run --example fenced_resource`

use std::time::Duration;

use redis::Script;
use redis::aio::MultiplexedConnection;
use redisson_lock::{LockConfig, Locks};

/// The guarded resource: a balance, and the highest fence that has written it.
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

    /// Set the balance; `false` if somebody with a higher fence was here before.
    async fn set(&mut self, balance: u32, fence: u64) -> redis::RedisResult<bool> {
        let mut call = self.write.key("example:account");
        call.arg(fence).arg(balance).invoke_async(&mut self.redis).await
    }

    async fn balance(&mut self) -> redis::RedisResult<u32> {
        redis::cmd("HGET").arg("example:account").arg("balance").query_async(&mut self.redis).await
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379/".to_owned());
    let client = redis::Client::open(url)?;
    let mut account = Account::new(client.get_multiplexed_async_connection().await?);
    let locks = Locks::connect(client, LockConfig::default()).await?;
    // A short lease without renewal, as if Ana's whole process stood still.
    let lock = locks.fenced("example:lock:account")?.with_lease(Duration::from_millis(300));

    let ana = lock.acquire(&locks.owner()).await?;
    println!("Ana has the lock with fence {}, and is paused", ana.fence());

    let ben = lock.acquire(&locks.owner()).await?;
    println!("Ben has the lock with fence {}", ben.fence());
    println!("Ben writes 80: {}", verdict(account.set(80, ben.fence()).await?));

    let late = account.set(100, ana.fence()).await?;
    println!("Ana comes back and writes 100: {}", verdict(late));
    println!("Ana gives the lock back: {:?}", ana.release().await);

    let balance = account.balance().await?;
    println!("the balance is {balance}");
    if late || balance != 80 {
        return Err("a stale write landed".into());
    }
    ben.release().await?;
    locks.shutdown().await;
    Ok(())
}

fn verdict(done: bool) -> &'static str {
    if done { "done" } else { "refused" }
}
