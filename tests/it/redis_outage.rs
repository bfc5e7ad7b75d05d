//! Many shop reads over HTTP, from two instances, while Redis is killed and comes back.

use std::time::{Duration, Instant};

use cache::CacheConfig;
use seckill_loadtest::options::{Instances, defaults};
use seckill_loadtest::scenario::read::{self, ReadOptions};

use sqlx::mysql::MySqlRow;
use sqlx::{Executor, Row};

use crate::support::database::TestDatabase;
use crate::support::stack::Stack;

/// Reads that are due per second: far below what two instances can answer, on any machine.
const RATE: f64 = 500.0;

/// The most statements that ran at the same time in `database`, sampled every few
/// milliseconds until `reading` ends.
async fn most_statements<T>(
    database: &TestDatabase,
    reading: impl Future<Output = T>,
) -> (T, usize) {
    let mut most = 0;
    let name: String = sqlx::query_scalar("SELECT DATABASE()")
        .fetch_one(&database.pool)
        .await
        .expect("the database's name");
    let text = |row: &MySqlRow, column| row.get::<Option<String>, _>(column).unwrap_or_default();
    let reads =
        |row: &MySqlRow| text(row, "db") == name && text(row, "Info").contains("FROM tb_shop");
    let watching = async {
        loop {
            // Not information_schema.processlist: MariaDB keeps that in a temporary table, and crashed
            // once when it dropped one.
            let all = sqlx::raw_sql("SHOW FULL PROCESSLIST").fetch_all(&database.pool).await;
            let running =
                all.expect("the statements that run").iter().filter(|row| reads(row)).count();
            most = most.max(running);
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    };
    let result = tokio::select! {
        result = reading => result,
        () = watching => unreachable!("sampling does not end"),
    };
    (result, most)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_killed_during_reads_fails_no_read_and_is_used_again_after_its_return() {
    let mut stack = Stack::lab(2).await;
    let options = ReadOptions {
        rate: Some(RATE),
        seconds: 14,
        ids: 300,
        // One second, in which the connections break, may fail: the others may not.
        tolerate_seconds: 1,
        instances: Instances::silent(stack.access(), stack.targets()),
        ..defaults()
    };
    let Stack { redis, database, .. } = &mut stack;
    let begin = Instant::now();
    let fault = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        redis.kill();
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Slow loads in addition, so that as many as are allowed run at once.
        let mut holder = database.pool.acquire().await.expect("a connection");
        holder.execute("LOCK TABLES tb_shop WRITE").await.expect("lock the table");
        tokio::time::sleep(Duration::from_millis(400)).await;
        holder.execute("UNLOCK TABLES").await.expect("unlock the table");
        tokio::time::sleep(Duration::from_secs(2)).await;
        redis.restart().await;
        begin.elapsed()
    };
    let work = async { tokio::join!(read::run(&options), fault) };
    let ((report, back), most) = most_statements(database, work).await;
    let report = report.expect("the reads run");
    println!("{report}\nRedis was back {back:?} after the begin; {most} statements at once");
    assert!(!report.check.is_violation(), "{report}");

    let limit = 2 * CacheConfig::default().max_concurrent_loads;
    assert!((limit / 4..=limit).contains(&most), "{most} statements at once, {limit} allowed");

    let open = |second: &read::report::Second| second.breakers_open.unwrap_or(2) > 0;
    assert!(
        report.timeline.iter().any(open),
        "the breaker was open while Redis was away: {report}"
    );
    // Reads begin a moment after `begin`, so this second is at least three after the return.
    let full = usize::try_from(back.as_secs()).expect("seconds") + 3;
    let after = report.timeline.iter().skip(full).take_while(|second| second.answers.total() > 100);
    let mut judged = 0;
    for second in after {
        // An instance that is busy may report a second too late.
        let Some(layers) = second.layers else { continue };
        assert!(!open(second), "Redis is in use again: {report}");
        assert!(layers.local_hits > 3 * layers.loads, "memory answers again: {report}");
        judged += 1;
    }
    assert!(judged >= 2, "too few seconds to judge: {report}");
}
