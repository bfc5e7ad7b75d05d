//! `loadtest judge` on nodes that are not ours, which lack our columns, and on every strategy ([`crate::slow`]).

mod course_node;
mod course_shops;
mod reads;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use redis::AsyncCommands;
use rustix::process::{Pid, Signal, getpgid, getpgrp, kill_process};
use seckill_loadtest::judge::{self, Flaw, JudgeOptions, Judgement, Language};
use seckill_loadtest::report::CheckResult;
use secrecy::ExposeSecret;
use sqlx::MySqlPool;
use testkit::process::{TemporaryFolder, free_port};
use testkit::redis_server::RedisServer;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use workload::live::Progress;
use workload::{Access, Error};

use self::course_node::{CourseNode, Stage, connect};
use self::course_shops::{Shops, warm_all_up};
use crate::law::at_once;
use crate::schema::java_database;
use crate::support::database::TestDatabase;
use crate::support::eventually;

/// The servers of a learner: the course's tables, without rows, and an empty Redis.
struct Learner {
    database: TestDatabase,
    redis: RedisServer,
}

impl Learner {
    async fn new() -> Self {
        Self {
            database: java_database().await,
            redis: RedisServer::start().await,
        }
    }

    async fn node(&self, stage: Stage) -> CourseNode {
        CourseNode::start(stage, &self.database, &self.redis).await
    }

    fn options(&self, nodes: &[&CourseNode]) -> JudgeOptions {
        let access = Access {
            database_url: self.database.url().expose_secret().to_owned(),
            redis_url: self.redis.url(),
            admin_token: String::new(),
            time_zone: chrono_tz::Asia::Shanghai,
            key_style: None,
        };
        let urls: Vec<_> = nodes.iter().map(|node| node.url.clone()).collect();
        options(access, &urls)
    }
}

pub fn options(access: Access, urls: &[String]) -> JudgeOptions {
    JudgeOptions {
        targets: urls.iter().map(|url| url.parse().unwrap()).collect(),
        access,
        restart: None,
        reads_only: false,
        yes: false,
        language: Some(Language::Zh),
        html: None,
        strategy: String::new(),
        progress: Progress::Silent,
    }
}

pub async fn judge(options: &JudgeOptions) -> Result<Judgement, Error> {
    let mut traces = judge::prepare(options).await?;
    let judged = judge::run(options, &mut traces, &CancellationToken::new()).await;
    traces.remove().await?;
    judged
}

/// Each flaw that was found, with the number of nodes that sold.
pub fn flaws(judgement: &Judgement) -> Vec<(Flaw, usize)> {
    let findings = judgement.findings.iter();
    findings
        .map(|finding| (finding.flaw, finding.nodes))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_the_last_stage_holds_on_two_nodes_and_nothing_of_the_run_stays() {
    let learner = Learner::new().await;
    let one = learner.node(Stage::Stream).await;
    let two = learner.node(Stage::Stream).await;
    let judgement = judge(&learner.options(&[&one, &two])).await.unwrap();
    let report = &judgement.report;
    assert_eq!(report.result(), CheckResult::Holds, "{report}");
    let page = judgement.html(Language::Zh);
    // It has no reads of shops.
    for sentence in ["没有发现问题", "还没有这个接口"] {
        assert!(page.contains(sentence), "{report}");
    }

    learner.assert_nothing_stays().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_does_wrongly_is_found_as_just_that_with_an_example() {
    use Flaw::{Lost, Phantom, RepeatedId, SecondOrder};
    let stages = [
        (Stage::LockInMemory, [].as_slice()),
        (Stage::NoLock, &[(SecondOrder, 1)]),
        // The next request of the buyer makes an order, so two were told.
        (Stage::YesWithoutRow, &[(SecondOrder, 1), (Lost, 1)]),
        (Stage::NoWithRow, &[(Phantom, 1)]),
        // Who is told another's id has no order of that id.
        (
            Stage::RepeatedId,
            &[(Lost, 1), (Phantom, 1), (RepeatedId, 1)],
        ),
    ];
    let judgements = stages.map(async |(stage, expected)| {
        let learner = Learner::new().await;
        let node = learner.node(stage).await;
        let judgement = judge(&learner.options(&[&node])).await.unwrap();
        let report = &judgement.report;
        assert_eq!(flaws(&judgement), expected, "{report}");
        let result = if expected.is_empty() {
            CheckResult::Holds
        } else {
            CheckResult::Violation
        };
        assert_eq!(report.result(), result, "{report}");
        for finding in &judgement.findings {
            let example = finding.example.join("\n");
            assert!(example.contains("user "), "{report}");
            let page = judgement.html(Language::En);
            assert!(page.contains(finding.row().chapter), "{page}");
        }
    });
    at_once(judgements).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_in_the_memory_of_two_nodes_let_a_second_order_through() {
    let learner = Learner::new().await;
    let one = learner.node(Stage::LockInMemory).await;
    let two = learner.node(Stage::LockInMemory).await;
    let judgement = judge(&learner.options(&[&one, &two])).await.unwrap();
    let report = &judgement.report;
    let expected = [(Flaw::SecondOrderAcrossNodes, 2)];
    assert_eq!(flaws(&judgement), expected, "{report}");
    assert!(report.notes.contains("分布式锁 · Redisson"), "{report}");
    // Its attempts, with the node that each was sent to.
    let example = judgement.findings[0].example.join("\n");
    assert!(
        example.contains(&one.url) && example.contains(&two.url),
        "{example}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ends_a_foreign_delete_and_a_lock_without_an_index_are_found() {
    use Flaw::{ForeignDelete, LeaseEnded, Malformed, OnlyTheLock};
    let stages = [
        (
            Stage::UnownedLock,
            [(LeaseEnded, 1), (ForeignDelete, 1), (OnlyTheLock, 1)].as_slice(),
            "lock:order:",
        ),
        (Stage::OwnedLock, &[(OnlyTheLock, 1)], "lock:order:"),
        (Stage::OwnWay, &[(OnlyTheLock, 1), (Malformed, 1)], "order:"),
    ];
    let judgements = stages.map(async |(stage, expected, key)| {
        let learner = Learner::new().await;
        let node = learner.node(stage).await;
        let judgement = judge(&learner.options(&[&node])).await.unwrap();
        assert_eq!(flaws(&judgement), expected, "{}", judgement.report);
        let example = judgement.findings[0].example.join("\n");
        assert!(example.starts_with(key), "{example}");
    });
    at_once(judgements).await;
}

impl Learner {
    /// Nothing of a run is there; the stream and the counter of ids are the node's own.
    async fn assert_nothing_stays(&self) {
        for table in [
            "user",
            "shop",
            "voucher",
            "seckill_voucher",
            "voucher_order",
        ] {
            let rows = format!("SELECT COUNT(*) FROM tb_{table}");
            assert_eq!(self.database.number(&rows).await, 0, "{table}");
        }
        let keys: Vec<String> = self.redis.conn().await.keys("*").await.unwrap();
        let is_own = |key: &String| key == "stream.orders" || key.starts_with("icr:order:");
        assert!(keys.iter().all(is_own), "{keys:?}");
    }
}

/// As after the second Ctrl-C.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_run_that_is_dropped_in_the_middle_of_a_sale_stays() {
    let learner = Learner::new().await;
    let node = learner.node(Stage::OwnedLock).await;
    let options = learner.options(&[&node]);
    let mut traces = judge::prepare(&options).await.unwrap();
    let stop = CancellationToken::new();
    let orders = "SELECT COUNT(*) FROM tb_voucher_order";
    tokio::select! {
        judged = judge::run(&options, &mut traces, &stop) => panic!("{:?}", judged.map(|_| ())),
        () = eventually("orders", async || learner.database.number(orders).await > 1) => {}
    }
    traces.remove().await.unwrap();
    learner.assert_nothing_stays().await;
}

#[tokio::test]
async fn an_order_that_commits_while_its_sale_is_removed_is_removed_too() {
    let learner = Learner::new().await;
    let options = learner.options(&[]);
    let mut traces = judge::prepare(&options).await.unwrap();
    let shop = traces.make_shop().await.unwrap();
    let database = &learner.database;
    let voucher = format!(
        "INSERT INTO tb_voucher (id, shop_id, title, pay_value, actual_value) VALUES (7, {shop}, '', 1, 1)"
    );
    database.run(&voucher).await;
    database
        .run("INSERT INTO tb_seckill_voucher (voucher_id, stock, begin_time, end_time) VALUES (7, 9, NOW(), NOW())")
        .await;
    let mut purchase = database.pool.begin().await.unwrap();
    sqlx::query("UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = 7")
        .execute(&mut *purchase)
        .await
        .unwrap();
    let purchasing = async {
        let waiting = "SELECT COUNT(*) FROM information_schema.processlist \
                       WHERE db = DATABASE() AND info LIKE 'DELETE FROM tb_seckill_voucher%'";
        eventually("the removal waits for the purchase", async || {
            database.number(waiting).await == 1
        })
        .await;
        sqlx::query("INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES (1, 1, 7)")
            .execute(&mut *purchase)
            .await
            .unwrap();
        purchase.commit().await.unwrap();
    };
    let (removed, ()) = tokio::join!(traces.remove(), purchasing);
    removed.unwrap();
    learner.assert_nothing_stays().await;
}

#[tokio::test]
async fn nothing_stays_of_buyers_who_signed_in_before_the_node_failed() {
    let learner = Learner::new().await;
    let node = learner.node(Stage::LockInMemory).await;
    // There is room for 16 users.
    let ids = "ALTER TABLE tb_user MODIFY id TINYINT UNSIGNED NOT NULL AUTO_INCREMENT, AUTO_INCREMENT = 240";
    learner.database.run(ids).await;
    let error = judge(&learner.options(&[&node])).await.unwrap_err();
    assert!(error.to_string().contains("/user/login"), "{error}");
    learner.assert_nothing_stays().await;
}

/// The lock of the shops' table, for which the second waits, would count as a read of the node that the first one judges.
#[tokio::test]
async fn a_second_judgement_of_one_database_is_refused_until_the_first_has_ended() {
    let learner = Learner::new().await;
    let node = learner.node(Stage::LockInMemory).await;
    let options = learner.options(&[&node]);
    let first = judge::prepare(&options).await.unwrap();
    let Err(refused) = judge::prepare(&options).await else {
        panic!("two judgements at a time");
    };
    assert!(
        refused.to_string().contains("wait until it ends"),
        "{refused}"
    );
    first.remove().await.unwrap();
    let second = judge::prepare(&options).await.expect("the first has ended");
    second.remove().await.unwrap();
    learner.assert_nothing_stays().await;
}

#[tokio::test]
async fn a_node_that_cannot_be_judged_is_one_sentence_that_says_what_to_do() {
    let learner = Learner::new().await;
    let node = learner.node(Stage::LockInMemory).await;
    let page = CourseNode::html().await;
    let other = Learner::new().await;
    let refused = async |change: &dyn Fn(&mut JudgeOptions), way_out: &str| {
        let mut options = learner.options(&[&node]);
        change(&mut options);
        let error = judge(&options).await.unwrap_err().to_string();
        assert!(error.contains(way_out), "no {way_out:?} in: {error}");
    };
    let closed = "http://127.0.0.1:1";
    refused(
        &|options| options.targets = vec![closed.parse().unwrap()],
        "Start your node",
    )
    .await;
    refused(
        &|options| options.targets = vec![page.url.parse().unwrap()],
        "gives no Result of the course",
    )
    .await;
    refused(
        &|options| options.access.redis_url = other.redis.url(),
        "your node's own Redis in --redis-url",
    )
    .await;
    let others = other.database.url().expose_secret().to_owned();
    refused(
        &|options| options.access.database_url = others.clone(),
        "name your node's own database in --database-url",
    )
    .await;
    refused(
        &|options| options.access.database_url = "mysql://root@127.0.0.1:1/hmdp".to_owned(),
        "start the database",
    )
    .await;
    refused(
        &|options| options.access.database_url.clear(),
        "name your node's own server in --database-url",
    )
    .await;
    let order = "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES (1, 1, 1)";
    learner.database.run(order).await;
    refused(&|_| {}, "1 orders: nothing was written").await;

    // Without a shop of its own it removes nothing.
    let database = &learner.database;
    let voucher = "INSERT INTO tb_voucher (id, shop_id, title, pay_value, actual_value) VALUES (1, 0, 'theirs', 1, 1)";
    database.run(voucher).await;
    database
        .run("ALTER TABLE tb_shop DROP COLUMN open_hours")
        .await;
    refused(&|options| options.yes = true, "open_hours").await;
    let rows = "SELECT (SELECT COUNT(*) FROM tb_voucher) + (SELECT COUNT(*) FROM tb_voucher_order)";
    assert_eq!(database.number(rows).await, 2);
}

#[tokio::test]
async fn a_database_user_without_rights_is_told_which_are_missing() {
    let learner = Learner {
        database: TestDatabase::on_own_server().await,
        redis: RedisServer::start().await,
    };
    let database = &learner.database;
    database
        .run("CREATE USER 'reader'@'127.0.0.1' IDENTIFIED BY 'secret'")
        .await;
    let name = database.name();
    let grant = format!("GRANT SELECT ON {name}.* TO 'reader'@'127.0.0.1'");
    database.run(&grant).await;
    let mut options = options(
        learner.options(&[]).access,
        &["http://127.0.0.1:1".to_owned()],
    );
    options.access.database_url = format!("mysql://reader:secret@{}/{name}", database.server());
    let error = judge(&options).await.unwrap_err().to_string();
    assert!(
        error.contains("GRANT SELECT, INSERT, UPDATE, DELETE"),
        "{error}"
    );
    assert!(!error.contains("secret"), "{error}");
}

/// A shop that was there before the judgement.
const THEIR_SHOP: &str = "INSERT INTO tb_shop (id, name, type_id, images, address, x, y, sold, comments, score) \
     VALUES (1, 'theirs', 1, '', '', 1, 1, 0, 0, 0)";

/// A node that is a process of its own: this binary, with one test to run.
struct NodeProcess {
    folder: TemporaryFolder,
    port: u16,
    settings: String,
    /// Until it is killed and started again by its command.
    first: Option<Child>,
}

impl NodeProcess {
    async fn start(learner: &Learner, stage: Stage) -> Self {
        let database_url = learner.database.url();
        let database_url = database_url.expose_secret();
        let mut process = Self {
            folder: TemporaryFolder::new().unwrap(),
            port: free_port().unwrap(),
            settings: format!("{stage:?} {database_url} {}", learner.redis.url()),
            first: None,
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", &process.command()]).stdin(Stdio::null());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        process.first = Some(shell.spawn().unwrap());
        eventually("the node serves", async || {
            let address = ("127.0.0.1", process.port);
            TcpStream::connect(address).await.is_ok()
        })
        .await;
        process
    }

    fn pid_file(&self) -> PathBuf {
        self.folder.path().join("pid")
    }

    /// The command that kills it, if it runs, and starts it.
    fn command(&self) -> String {
        let program = std::env::current_exe().unwrap();
        let Self { port, settings, .. } = self;
        let pid = self.pid_file();
        format!(
            "kill -9 $(cat {}); COURSE_NODE='{port} {} {settings}' exec {} judge::a_course_node_as_a_process --exact --ignored",
            pid.display(),
            pid.display(),
            program.display()
        )
    }

    /// The one that runs now.
    fn pid(&self) -> Option<Pid> {
        let pid = std::fs::read_to_string(self.pid_file()).unwrap_or_default();
        pid.parse().ok().and_then(Pid::from_raw)
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            kill_process(pid, Signal::KILL).ok();
        }
        if let Some(mut first) = self.first.take() {
            first.kill().ok();
            first.wait().ok();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process that another test starts"]
async fn a_course_node_as_a_process() {
    let Ok(settings) = std::env::var("COURSE_NODE") else {
        return;
    };
    let words: Vec<&str> = settings.split(' ').collect();
    let [port, pid_file, stage, database_url, redis_url] = words[..] else {
        panic!("{settings}");
    };
    let stage = if stage == "Queue" {
        Stage::Queue
    } else {
        Stage::Stream
    };
    let pool = MySqlPool::connect(database_url).await.unwrap();
    let connection = connect(redis_url).await;
    warm_all_up(pool.clone(), connection.clone()).await;
    let shops = Shops::Warm.routes(pool, connection);
    let address = format!("127.0.0.1:{port}");
    let _node = CourseNode::start_with(&address, stage, shops, database_url, redis_url).await;
    std::fs::write(pid_file, std::process::id().to_string()).unwrap();
    // It ends with its servers at the latest.
    let mut redis = redis::Client::open(redis_url)
        .unwrap()
        .get_connection_manager()
        .await
        .unwrap();
    while redis.ping::<String>().await.is_ok() {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_in_memory_loses_orders_in_a_crash_and_a_stream_does_not() {
    // The reads are judged before the restart, which would warm the judge's shop up.
    let stages = [
        (
            Stage::Queue,
            [(Flaw::LostInCrash, 1), (Flaw::Stale, 1)].as_slice(),
        ),
        (Stage::Stream, &[(Flaw::Stale, 1)]),
    ];
    let judgements = stages.map(async |(stage, expected)| {
        let learner = Learner::new().await;
        learner.database.run(THEIR_SHOP).await;
        let process = NodeProcess::start(&learner, stage).await;
        let url = format!("http://127.0.0.1:{}", process.port);
        let mut options = options(learner.options(&[]).access, &[url]);
        options.restart = Some(process.command());
        let judgement = judge(&options).await.unwrap();
        assert_eq!(
            flaws(&judgement),
            expected,
            "{stage:?}: {}",
            judgement.report
        );
        // Or Ctrl-C would end the learner's node together with the judgement.
        let group_of_node = getpgid(process.pid()).unwrap();
        assert_ne!(group_of_node, getpgrp(), "{stage:?}");
    });
    at_once(judgements).await;
}
