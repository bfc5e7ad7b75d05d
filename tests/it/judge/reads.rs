//! The reads of shops on every stage of the course, and on every read strategy of the service.

use futures_util::future::join_all;
use redis::AsyncCommands;
use seckill_loadtest::judge::{Flaw, JudgeOptions, Judgement, Language};
use seckill_loadtest::report::CheckResult;
use secrecy::ExposeSecret;
use sqlx::Executor;
use sqlx::mysql::MySqlPoolOptions;

use super::course_node::{CourseNode, Stage, connect};
use super::course_shops::Shops;
use super::{Learner, THEIR_SHOP, flaws, judge, options};
use crate::support::database::TestDatabase;
use crate::support::stack::Stack;
use testkit::redis_server::RedisServer;

use Flaw::{Breakdown, Penetration, Stale, Uncached};

fn of_reads(mut options: JudgeOptions) -> JudgeOptions {
    options.reads_only = true;
    options
}

impl Learner {
    async fn shops(&self, shops: Shops) -> CourseNode {
        let redis = self.redis.url();
        let url = self.database.url();
        let url = url.expose_secret();
        // As many as a Java node's pool has by default.
        let options = MySqlPoolOptions::new().max_connections(10);
        let pool = options.connect(url).await.unwrap();
        let routes = shops.routes(pool, connect(&redis).await);
        CourseNode::start_with("127.0.0.1:0", Stage::LockInMemory, routes, url, &redis).await
    }

    async fn judge_reads(&self, node: &CourseNode) -> Judgement {
        judge(&of_reads(self.options(&[node]))).await.unwrap()
    }

    async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.redis.conn().await.keys("*").await.unwrap();
        keys.retain(|key| key != "stream.orders");
        keys
    }
}

#[track_caller]
fn assert_found(judgement: &Judgement, nodes: usize, expected: &[Flaw]) {
    let expected: Vec<_> = expected.iter().map(|flaw| (*flaw, nodes)).collect();
    let report = &judgement.report;
    assert_eq!(flaws(judgement), expected, "{report}");
    let result = if expected.is_empty() {
        CheckResult::Holds
    } else {
        CheckResult::Violation
    };
    assert_eq!(report.result(), result, "{report}");
    // All was tried but a second node, where there is none.
    assert_eq!(judgement.untried.len(), 2 - nodes, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_stage_of_the_course_is_judged_as_far_as_it_has_come_and_nothing_stays() {
    let stages = [
        (Shops::Uncached, [Uncached, Penetration].as_slice()),
        (Shops::CachedForEver, &[Breakdown, Penetration, Stale]),
        (Shops::DeletedFirst, &[Stale]),
        (Shops::DeletedLast, &[]),
    ];
    let judging = stages.map(async |(stage, expected)| {
        let learner = Learner::new().await;
        let node = learner.shops(stage).await;
        let judgement = learner.judge_reads(&node).await;
        assert_found(&judgement, 1, expected);
        for table in ["shop", "user"] {
            let rows = format!("SELECT COUNT(*) FROM tb_{table}");
            assert_eq!(learner.database.number(&rows).await, 0, "{stage:?} {table}");
        }
        assert_eq!(learner.keys().await, [""; 0], "{stage:?}");
        judgement
    });
    let judgements = join_all(judging).await;

    let [_, for_ever, deleted_first, _] = &judgements[..] else {
        panic!("{judgements:?}");
    };
    let page = for_ever.html(Language::Zh);
    for text in [
        "缓存击穿",
        "没有过期时间",
        "SELECT name FROM tb_shop",
        "永不过期",
    ] {
        assert!(page.contains(text), "no {text}: {page}");
    }
    let notes = &deleted_first.report.notes;
    assert!(notes.contains("先删了 key"), "{notes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_finds_warm_shops_only_is_judged_with_a_copy_of_one_and_says_so_where_none_is_warm()
 {
    let learner = Learner::new().await;
    let node = learner.shops(Shops::Warm).await;
    let judgement = learner.judge_reads(&node).await;
    let report = &judgement.report;
    assert_eq!(report.result(), CheckResult::Unclear, "{report}");
    assert!(report.notes.contains("saveShop2Redis"), "{report}");

    learner.database.run(THEIR_SHOP).await;
    let warm = r#"{"data":{"id":1,"name":"theirs"},"expireTime":4000000000000}"#;
    let mut redis = learner.redis.conn().await;
    let _: () = redis.set("cache:shop:1", warm).await.unwrap();
    let judgement = learner.judge_reads(&node).await;
    // A change deletes the key, and then the shop is not found any more.
    assert_found(&judgement, 1, &[Stale]);
    let report = &judgement.report;
    assert!(report.notes.contains("店铺不存在"), "{report}");
    // It expired logically: the old value was served to all while one load was under way.
    let mut rows = report.figures[0].rows.iter();
    let expired = rows.find(|row| row[0] == "热点 key 刚过期").unwrap();
    assert_eq!(expired[1..4], ["40", "40", "1"], "{report}");
    let value: String = redis.get("cache:shop:1").await.unwrap();
    assert_eq!(value, warm);
    assert_eq!(learner.keys().await, ["cache:shop:1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_read_strategy_is_judged_by_what_it_promises_on_two_instances() {
    let strategies = [
        ("cache-aside", "false", [Breakdown, Penetration].as_slice()),
        ("null-caching", "false", &[Breakdown]),
        ("mutex", "false", &[]),
        ("logical-expiry", "false", &[]),
        ("layered", "false", &[]),
        // The filter knows no shop that the service has not made.
        ("cache-aside", "true", &[Breakdown]),
    ];
    let judging = strategies.map(async |(strategy, filter, expected)| {
        let arguments = [
            format!("--shop-cache={strategy}"),
            format!("--shop-filter={filter}"),
        ];
        let arguments = [arguments[0].as_str(), &arguments[1]];
        let stack = Stack::start(2, &arguments).await;
        let options = of_reads(options(stack.access(), &stack.urls()));
        let judgement = judge(&options).await.unwrap();
        assert_found(&judgement, 2, expected);
        let shops = "SELECT COUNT(*) FROM tb_shop";
        assert_eq!(stack.database.number(shops).await, 1, "{strategy}");
        let mut redis = stack.redis.conn().await;
        let keys: Vec<String> = redis.keys("*shop:*").await.unwrap();
        let cached = keys.iter().filter(|key| !key.starts_with("bloom:"));
        assert_eq!(cached.count(), 0, "{strategy}: {keys:?}");
    });
    join_all(judging).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_cannot_be_judged_are_one_sentence_that_says_what_to_do() {
    let learner = Learner {
        database: TestDatabase::on_own_server().await,
        redis: RedisServer::start().await,
    };
    let database = &learner.database;
    let name = database.name();
    let without_shops = learner.node(Stage::LockInMemory).await;
    let judgement = learner.judge_reads(&without_shops).await;
    let report = &judgement.report;
    assert_eq!(report.result(), CheckResult::Unclear, "{report}");
    assert!(report.notes.contains("还没有这个接口"), "{report}");

    let node = learner.shops(Shops::DeletedLast).await;
    let mut options = of_reads(learner.options(&[&node]));
    options.access.database_url = format!("mysql://judge:secret@{}/{name}", database.server());
    let user = "'judge'@'127.0.0.1'";
    database
        .run(&format!("CREATE USER {user} IDENTIFIED BY 'secret'"))
        .await;
    for (rights, missing) in [
        (
            format!("SELECT, INSERT, UPDATE, DELETE ON {name}.*"),
            Some("GRANT LOCK TABLES"),
        ),
        (format!("LOCK TABLES ON {name}.*"), Some("GRANT PROCESS")),
        ("PROCESS ON *.*".to_owned(), None),
    ] {
        database.run(&format!("GRANT {rights} TO {user}")).await;
        let judgement = judge(&options).await.unwrap();
        let report = &judgement.report;
        let Some(missing) = missing else {
            assert_found(&judgement, 1, &[]);
            continue;
        };
        assert_eq!(report.result(), CheckResult::Unclear, "{report}");
        assert!(report.notes.contains(missing), "{report}");
    }
}

/// As a second judgement does before it is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_write_meanwhile_is_no_read() {
    let learner = Learner::new().await;
    let node = learner.shops(Shops::DeletedLast).await;
    let pool = learner.database.pool.clone();
    let other = tokio::spawn(async move {
        loop {
            let delete = "DELETE FROM tb_shop WHERE FALSE";
            pool.execute(delete).await.unwrap();
        }
    });
    let judgement = learner.judge_reads(&node).await;
    other.abort();
    assert_found(&judgement, 1, &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_others_read_shops_as_well_the_reads_are_not_judged() {
    let learner = Learner::new().await;
    let node = learner.shops(Shops::Uncached).await;
    let pool = learner.database.pool.clone();
    let other = tokio::spawn(async move {
        loop {
            pool.execute("SELECT MAX(id) FROM tb_shop").await.unwrap();
        }
    });
    let judgement = learner.judge_reads(&node).await;
    other.abort();
    let report = &judgement.report;
    assert_eq!(report.result(), CheckResult::Unclear, "{report}");
    assert!(
        report.notes.contains("SELECT MAX(id) FROM tb_shop"),
        "{report}"
    );
}
