//! A job that may run only so many times at once, on any number of machines, also when some crash.
//!
//! Each job has one of two permits while it runs. A permit has a lease, which is renewed while the job runs; that
//! of a job that crashes is free again when its lease ends, without anybody's help. Six jobs run here,
//! one of which crashes.
//!
//! Run: `REDIS_URL=redis://127.0.0.1:6379 cargo run --example leased_permits`

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redisson_lock::{LeasedSemaphore, LockConfig, Locks};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PERMITS: u32 = 2;

/// How long a crashed job keeps others from its permit; how late a running one may extend it.
const LEASE: Duration = Duration::from_secs(2);

/// How many jobs run at this moment.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    run(&std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379/".to_owned())).await
}

/// Six jobs, until all but the one that crashes are done.
pub async fn run(url: &str) -> Result<(), Failure> {
    let locks = Locks::connect(redis::Client::open(url)?, LockConfig::default()).await?;
    let semaphore = locks.leased_semaphore("example:semaphore:reports", LEASE);
    // The first client to come creates it; for the others this changes nothing.
    semaphore.try_set_permits(PERMITS).await?;

    let crashing = semaphore.acquire(1).await?;
    println!(
        "job 0 has permit {} and crashes",
        crashing.ids().collect::<String>()
    );
    // As if its process were killed: nothing is released.
    std::mem::forget(crashing);

    let renewed = semaphore.clone().with_renewal();
    let job = |number| job(number, &renewed);
    tokio::try_join!(job(1), job(2), job(3), job(4), job(5))?;
    let free = semaphore.available().await?;
    println!("all jobs are done, {free} permits are free");
    locks.shutdown().await;
    if free == i64::from(PERMITS) {
        Ok(())
    } else {
        Err("a permit was lost".into())
    }
}

async fn job(number: u32, semaphore: &LeasedSemaphore) -> Result<(), Failure> {
    let permit = semaphore.acquire(1).await?;
    let others = RUNNING.fetch_add(1, Ordering::SeqCst);
    println!("job {number} runs beside {others} others");
    // If the lease could not be renewed, another job may run in this one's place: it would be ended.
    permit.run(tokio::time::sleep(LEASE / 2)).await?;
    RUNNING.fetch_sub(1, Ordering::SeqCst);
    permit.release().await?;
    if others < PERMITS as usize {
        Ok(())
    } else {
        Err("too many jobs at once".into())
    }
}
