//! Leader election: of several instances one does the work, and another takes over when it stops.
//!
//! The leader is the instance that holds the lock. It works only while it holds the lock: `Guard::run`
//! ends the work when the lease can no longer be relied upon. Three candidates run here as tasks, each
//! with a client of its own, as three processes would; each leads for a while and stands down.
//!
//! Between the end of a lease and the moment at which the old leader's task runs again, two instances may
//! believe that they lead. Work that two must never do at once needs a fencing token: see
//! `fenced_resource`.
//!
//! Run: `REDIS_URL=redis://127.0.0.1:6379 cargo run --example leader_election`

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redisson_lock::{LockConfig, Locks};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How many lead at this moment, to show that it is never more than one.
static LEADERS: AtomicUsize = AtomicUsize::new(0);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    run(&std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379/".to_owned())).await
}

/// Three candidates, until each has led once.
pub async fn run(url: &str) -> Result<(), Failure> {
    tokio::try_join!(
        candidate(url, "A"),
        candidate(url, "B"),
        candidate(url, "C")
    )?;
    Ok(())
}

async fn candidate(url: &str, name: &str) -> Result<(), Failure> {
    // When a leader dies, the next is elected at the end of this lease at the latest.
    let config = LockConfig::default().with_lease(Duration::from_secs(5));
    let locks = Locks::connect(redis::Client::open(url)?, config).await?;
    let lock = locks.lock("example:lock:leader");
    loop {
        // Waits through outages too, and is woken when the previous leader releases the lock.
        let leadership = lock.acquire().await?;
        println!("{name} leads");
        match leadership.run(work(name)).await {
            // The work's future was dropped, which ends it at its `await`.
            Err(lost) => println!("{name} no longer leads: {lost}"),
            Ok(done) => {
                done?;
                leadership.release().await?;
                println!("{name} stood down");
                break;
            }
        }
    }
    locks.shutdown().await;
    Ok(())
}

/// The leader's work.
async fn work(name: &str) -> Result<(), Failure> {
    let other_leaders = LEADERS.fetch_add(1, Ordering::SeqCst);
    for step in 1..=3 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        println!("{name}: step {step}");
    }
    LEADERS.fetch_sub(1, Ordering::SeqCst);
    if other_leaders == 0 {
        Ok(())
    } else {
        Err("two leaders".into())
    }
}
