//! Many at once: readers that are renewed, waiters in the queue of a fair lock, names that are awaited.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinHandle;

use crate::{
    LONG_LEASE, calls_of, eventually, nothing_left, query, soon, start, stats_of, wait_for,
};

const NAME: &str = "crowded";

/// Short enough for several renewals in a test, and long enough for a machine with other work.
const LEASE: Duration = Duration::from_secs(3);

#[tokio::test]
async fn fifty_readers_are_renewed_for_several_leases() {
    let (server, mut raw, both) = start::<2>(LEASE).await;
    let mut readers = Vec::new();
    for number in 0..50 {
        let locks = &both[number % 2];
        let lock = locks.read_write(NAME);
        readers.push(lock.read().acquire().await.unwrap());
    }
    let writer = wait_for(both[0].read_write(NAME).write());
    let over = Instant::now() + LEASE * 2;
    eventually("two leases are over", async || {
        let fields: usize = raw.hlen(NAME).await.unwrap();
        assert_eq!(fields, readers.len() + 1, "with the mode");
        assert!(readers.iter().all(|reader| !reader.valid_for().is_zero()));
        Instant::now() > over
    })
    .await;
    // Each hold of a reader has a key of its own, and all are renewed.
    let keys: Vec<String> = query(&mut raw, "KEYS", &["*:rwlock_timeout:1"]).await;
    assert_eq!(keys.len(), readers.len());
    for locks in &both {
        let read = stats_of(locks, "read");
        assert_eq!(read.lost.total(), 0, "{:?}", read.lost);
        let renewed = read.renewed;
        assert!((25 * 4..25 * 12).contains(&renewed), "{renewed}");
    }
    // Those that leave do not take the others' leases with them.
    for reader in readers.drain(..49) {
        reader.release().await.unwrap();
    }
    let over = Instant::now() + LEASE * 3 / 2;
    eventually("another lease is over", async || {
        assert!(!readers[0].valid_for().is_zero());
        Instant::now() > over
    })
    .await;
    assert!(!writer.is_finished(), "a reader reads");
    readers.remove(0).release().await.unwrap();
    soon("the writer writes", writer)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    nothing_left(&server, &[&both[0], &both[1]]).await;
}

/// Five hundred waiters of two processes queue, some give up, and the others follow each other in order.
#[tokio::test]
async fn five_hundred_fair_waiters_keep_their_order() {
    const QUEUE: &str = "redisson_lock_queue:{crowded}";
    let (server, mut raw, both) = start::<2>(LONG_LEASE).await;
    let holder = both[0].fair(NAME).acquire().await.unwrap();
    let order: Arc<Mutex<Vec<usize>>> = Arc::default();
    let mut waiters: Vec<JoinHandle<()>> = Vec::new();
    for number in 0..500 {
        let locks = both[number % 2].clone();
        let order = order.clone();
        waiters.push(tokio::spawn(async move {
            let guard = locks.fair(NAME).acquire().await.unwrap();
            order.lock().unwrap().push(number);
            guard.release().await.unwrap();
        }));
        eventually("it is queued", async || {
            raw.llen::<_, usize>(QUEUE).await.unwrap() == waiters.len()
        })
        .await;
    }
    let (gone, staying): (Vec<_>, Vec<_>) = waiters
        .into_iter()
        .enumerate()
        .partition(|(number, _)| number % 10 == 3);
    for (_, waiter) in &gone {
        waiter.abort();
    }
    eventually("those that gave up have left the queue", async || {
        raw.llen::<_, usize>(QUEUE).await.unwrap() == staying.len()
    })
    .await;
    let _: () = query(&mut raw, "CONFIG", &["RESETSTAT"]).await;
    let started = Instant::now();
    holder.release().await.unwrap();
    let expected: Vec<usize> = staying.iter().map(|(number, _)| *number).collect();
    for (_, waiter) in staying {
        soon("each of them acquires it", waiter).await.unwrap();
    }
    let took = started.elapsed();
    assert_eq!(*order.lock().unwrap(), expected);
    let calls = calls_of(&mut raw, "evalsha").await;
    println!("{} waiters, {calls} scripts, {took:?}", expected.len());
    // An acquire and a release each, and while they wait one try every 10 s.
    let tries = i64::try_from(took.as_secs() / 10 + 1).unwrap();
    let most_calls = i64::try_from(expected.len()).unwrap() * (3 + tries);
    assert!(calls <= most_calls, "{calls} scripts in {took:?}");
    nothing_left(&server, &[&both[0], &both[1]]).await;
}

/// The processor time that this process has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// The processor time that it takes to wake one of `names` waiters, each of which waits for its own name.
async fn cost_of_a_wake_up(names: u32) -> Duration {
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    let warm = locks.lock("warm").acquire().await.unwrap();
    warm.release().await.unwrap();
    let mut hold = redis::pipe();
    let mut free = redis::pipe();
    for number in 0..names {
        let name = format!("lock:{number}");
        let channel = format!("redisson_lock__channel:{{{name}}}");
        hold.hset(&name, "another:1", 1).ignore();
        hold.pexpire(&name, 600_000).ignore();
        free.del(&name).ignore();
        free.publish(channel, "0").ignore();
    }
    hold.exec_async(&mut raw).await.unwrap();
    let asleep = calls_of(&mut raw, "evalsha").await + 2 * i64::from(names);
    let waiters: Vec<_> = (0..names)
        .map(|number| wait_for(&locks.lock(&format!("lock:{number}"))))
        .collect();
    let minute = Duration::from_secs(60);
    testkit::wait::eventually("all sleep", minute, async || {
        calls_of(&mut raw, "evalsha").await >= asleep
    })
    .await;
    let before = processor_time();
    free.exec_async(&mut raw).await.unwrap();
    for waiter in waiters {
        drop(
            soon("each of them acquires its lock", waiter)
                .await
                .unwrap(),
        );
    }
    (processor_time() - before) / names
}

/// If each message, and each waiter that leaves, looked at all names, a wake-up among eight times as many
/// names would cost eight times as much.
#[tokio::test]
async fn a_wake_up_costs_alike_among_500_names_and_4000() {
    let cost_among_500 = cost_of_a_wake_up(500).await;
    let cost_among_4000 = cost_of_a_wake_up(4_000).await;
    println!("a wake-up among 500 names: {cost_among_500:?}, among 4,000: {cost_among_4000:?}");
    assert!(
        cost_among_4000 < cost_among_500 * 4,
        "{cost_among_500:?}, {cost_among_4000:?}"
    );
}
