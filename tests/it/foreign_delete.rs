//! 误删, a foreign DEL, on real servers: a request that gets no order itself deletes the lock of another one of its user, and
//! so lets a second order in. A's lease ends while it works, B acquires the lock, A is rolled back and its release deletes
//! B's lock, C acquires it beside B. The clock of Redis stands still and is stepped once: no other lease ends.
//!
//! With `RECORD=FOLDER` the run is written there for `scripts/record_learn.py`: the recording of the page `/learn`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use hyper::header::HeaderValue;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use serde_json::json;
use sqlx::Executor;
use testkit::clock;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use workload::checker::ObservedReply;
use workload::comparison::document::{Request, Story};
use workload::comparison::story::Attempts;
use workload::generator::Record;
use workload::http::{Call, Connection, TRACE};
use workload::reply::Reply;

use crate::resilience::TAKES_STOCK;
use crate::support::database::shows_uncommitted_rows;
use crate::support::stack::{SignedIn, Stack};
use crate::support::{PATIENCE, eventually};

/// A user, a sale of three on `setnx-unowned`, and two instances, of which the first has its servers behind proxies.
struct Scene {
    stack: Stack,
    redis: MultiplexedConnection,
    clock: PathBuf,
    began: DateTime<Utc>,
    first_sent: Instant,
    user: SignedIn,
    /// The key of the user's lock.
    lock: String,
    sale: i64,
}

impl Scene {
    async fn new(args: &[&str]) -> Self {
        let advice = "libfaketime is missing: install the package faketime, as `./dev test` does";
        assert!(clock::library().is_some(), "{advice}");
        let mut stack = Stack::start(0, &[]).await;
        let file = stack.redis.data().join("clock");
        let began = Utc::now();
        stop(&file, began);
        stack.redis.environment = clock::environment(&file);
        stack.redis.restart().await;
        stack.add_proxied(args, true).await;
        stack.add_instance(args).await;
        let user = stack.users(1).await.remove(0);
        Scene {
            redis: stack.redis.conn().await,
            clock: file,
            began,
            first_sent: Instant::now(),
            lock: format!("lock:setnx-unowned:order:{}", user.id),
            user,
            sale: stack.publish(3, "setnx-unowned").await,
            stack,
        }
    }

    /// The user's purchase at this instance, in a task of its own.
    fn start_buying(&self, instance: usize, attempt: u32) -> JoinHandle<Record> {
        let target = self.stack.instances[instance].url.parse().unwrap();
        let token = HeaderValue::from_str(&self.user.token).unwrap();
        let call = Call::post(format!("/voucher-order/seckill/{}", self.sale));
        let call = call
            .token(&token)
            .header(TRACE, HeaderValue::from_static("1"));
        let user_id = self.user.id.cast_unsigned();
        let first_sent = self.first_sent;
        tokio::spawn(async move {
            let sent = first_sent.elapsed();
            let answer = Connection::new(target, PATIENCE).send(&call).await;
            Record {
                observed: ObservedReply {
                    user_id,
                    attempt,
                    reply: Reply::from_answer(&answer),
                },
                due: sent,
                sent,
                answered: first_sent.elapsed(),
                trace: answer.unwrap().trace().map(Box::from),
            }
        })
    }

    async fn is_locked(&mut self) -> bool {
        self.redis.exists(&self.lock).await.unwrap()
    }

    /// Waits until so many orders are inserted, none of which is committed.
    async fn wait_for_inserts(&self, count: i64) {
        let database = &self.stack.database;
        let orders = format!(
            "SELECT COUNT(*) FROM tb_voucher_order WHERE voucher_id = {}",
            self.sale
        );
        eventually("the order is inserted", async || {
            database.uncommitted(&orders).await == count
        })
        .await;
        assert_eq!(database.number(&orders).await, 0, "nothing is committed");
    }

    /// Ends the leases that have begun. Those that begin later last for good.
    async fn end_leases(&mut self) {
        stop(&self.clock, self.began + TimeDelta::seconds(1));
        eventually("the lease has ended", async || !self.is_locked().await).await;
    }
}

fn stop(clock: &Path, time: DateTime<Utc>) {
    clock::stop(clock, &time.format("%Y-%m-%d %H:%M:%S").to_string()).unwrap();
}

async fn run() -> Story {
    let mut scene = Scene::new(&["--lab"]).await;
    // Not the sale's row: the wait for a row ends after a second.
    let mut table = scene.stack.database.pool.acquire().await.unwrap();
    let lock_table = "LOCK TABLES tb_seckill_voucher READ";
    table.execute(lock_table).await.unwrap();
    let first = scene.start_buying(0, 0);
    scene.stack.database.wait_for_statement(TAKES_STOCK).await;
    let connections = scene.stack.database.connections_that_run(TAKES_STOCK).await;
    let kill = format!("KILL {}", connections.join(""));
    scene.end_leases().await;
    let second = scene.start_buying(1, 1);
    // A's order is there until A is rolled back.
    scene.wait_for_inserts(2).await;
    assert!(scene.is_locked().await, "by B");
    scene.stack.database.run(&kill).await;
    let first = first.await.unwrap();
    assert_eq!(first.observed.reply, Reply::Refused("UNAVAILABLE".into()));
    assert!(!scene.is_locked().await, "B's lock is deleted");
    let third = scene.start_buying(1, 2);
    scene.wait_for_inserts(2).await;
    table.execute("UNLOCK TABLES").await.unwrap();
    let records = [first, second.await.unwrap(), third.await.unwrap()];
    assert_eq!(scene.stack.tables(scene.sale).await, (2, 1));
    let attempts = Attempts::from_records(&records, &[], &HashMap::new());
    // The lease of B's lock does not end.
    attempts.foreign_delete(Duration::MAX).expect("a story")
}

/// The steps of a request from its commit on, with what came of each.
fn ending(request: &Request) -> Vec<(&str, &str)> {
    let steps = request.steps.iter().map(|step| {
        let outcome = step.saw.get("outcome").and_then(|outcome| outcome.as_str());
        (step.step.as_str(), outcome.unwrap_or_default())
    });
    steps.skip_while(|(name, _)| *name != "committed").collect()
}

/// A lost its lock, deleted that of B, and has no order; B and C have one each.
fn assert_shows_foreign_delete(story: &Story) {
    let [a, b, c] = &story.requests[..] else {
        panic!("{story:?}")
    };
    let deleted = a.steps.last().and_then(|step| step.saw.get("owner"));
    let owner = deleted.and_then(|owner| owner.as_str());
    assert_eq!(owner, b.order_id.as_deref(), "{story:?}");
    assert_eq!(a.order_id, None);
    assert!(b.order_id.is_some() && c.order_id.is_some(), "{story:?}");
}

/// Writes the story as the raw data of a run has it, if `RECORD` names a folder.
fn record(story: &Story) {
    let Some(folder) = std::env::var_os("RECORD") else {
        return;
    };
    let run = json!({ "lanes": [{ "strategy": "setnx-unowned", "stories": [story] }] });
    std::fs::write(
        Path::new(&folder).join("foreign-delete.json"),
        run.to_string(),
    )
    .expect("a recording");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolled_back_request_deletes_the_lock_of_another_and_lets_a_second_order_in() {
    if !shows_uncommitted_rows() {
        return;
    }
    let story = run().await;
    assert_shows_foreign_delete(&story);
    let failed = [("committed", "failed"), ("unlocked", "foreign")];
    assert_eq!(ending(&story.requests[0]), failed);
    record(&story);
}
