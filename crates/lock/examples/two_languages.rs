//! One lock, two languages: a Java process with Redisson and this Rust process exclude and wake each other.
//!
//! The Java process, with `org.redisson:redisson` on its class path:
//!
//! ```java
//! Config config = new Config();
//! config.useSingleServer().setAddress("redis://127.0.0.1:6379");
//! RedissonClient redisson = Redisson.create(config);
//! RLock lock = redisson.getLock("example:lock:two-languages");
//! lock.lock();
//! try {
//!     Thread.sleep(1_000);    // Rust waits
//! } finally {
//!     lock.unlock();          // Rust is woken by this
//! }
//! redisson.shutdown();
//! ```
//!
//! Started with `--java`, this example waits for such a process, so start both in any order. Without,
//! it plays the Java process's part itself, with the commands that Redisson's scripts come down to.
//!
//! Run: `REDIS_URL=redis://127.0.0.1:6379 cargo run --example two_languages [-- --java]`

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redisson_lock::{LockConfig, Locks};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const NAME: &str = "example:lock:two-languages";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379/".to_owned());
    if std::env::args().any(|argument| argument == "--java") {
        rust(&url).await
    } else {
        run(&url).await
    }
}

/// Both parts, side by side.
pub async fn run(url: &str) -> Result<(), Failure> {
    let mut redis = redis::Client::open(url)?
        .get_multiplexed_async_connection()
        .await?;
    java_locks(&mut redis).await?;
    tokio::try_join!(rust(url), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        java_unlocks(&mut redis).await
    })?;
    Ok(())
}

/// This process's part: all that a Rust program needs.
async fn rust(url: &str) -> Result<(), Failure> {
    let locks = Locks::connect(redis::Client::open(url)?, LockConfig::default()).await?;
    let lock = locks.lock(NAME);
    println!("Rust: another holds it: {}", lock.is_locked().await?);
    let started = Instant::now();
    let guard = lock.acquire().await?;
    println!(
        "Rust: acquired after {:.2?}, as {}",
        started.elapsed(),
        guard.owner()
    );
    guard.release().await?;
    locks.shutdown().await;
    Ok(())
}

/// `lock.lock()`: a hash whose key is the lock's name. Its one field is `<client's UUID>:<thread id>`, whose
/// value is the hold count. Redisson's watchdog renews the 30 s.
async fn java_locks(redis: &mut MultiplexedConnection) -> Result<(), Failure> {
    let mut script = redis::pipe();
    script.atomic();
    script
        .cmd("HSET")
        .arg(NAME)
        .arg("6f0829ed-bfd3-44a4-9a1f-5ee9d8fdb4f1:1")
        .arg(1)
        .ignore();
    script.cmd("PEXPIRE").arg(NAME).arg(30_000).ignore();
    script.exec_async(redis).await?;
    println!("Java: locked");
    Ok(())
}

/// `lock.unlock()`: the key goes, and a message tells the waiters.
async fn java_unlocks(redis: &mut MultiplexedConnection) -> Result<(), Failure> {
    let mut script = redis::pipe();
    script.atomic();
    script.cmd("DEL").arg(NAME).ignore();
    script
        .cmd("PUBLISH")
        .arg(format!("redisson_lock__channel:{{{NAME}}}"))
        .arg(0)
        .ignore();
    script.exec_async(redis).await?;
    println!("Java: unlocked");
    Ok(())
}
