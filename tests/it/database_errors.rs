//! Errors of the database are sorted by what they mean: only an error about an order's own row may end that order. While the
//! server cannot do its work, buyers are answered 503, and the consumers of the stream try again.

use std::time::Duration;

use seckill::clock::Zone;
use seckill::connection::mysql::{self, Database};
use seckill::error::Error;
use seckill::order::model::{Buyer, NewOrder};
use seckill::order::store::{OrderStore, Text};
use secrecy::ExposeSecret;
use testkit::proxy::{Mode, Proxy};

use crate::database_failover::doctor;
use crate::resilience::while_sale_is_locked;
use crate::support::api::get;
use crate::support::database::{TestDatabase, is_oceanbase};
use crate::support::eventually;
use crate::support::stack::{SignedIn, Stack};

/// Each way of writing an order: one in a transaction of its own, one inserted by a prepared statement, a batch.
const STRATEGIES: [&str; 3] = ["reentrant-lock", "row-lock", "group-commit"];

/// Errors that say something about the server, and one that is in no list.
const STATES: [u16; 13] = [
    1290, 1792, 1836, 1114, 1021, 1045, 1203, 1040, 1969, 1047, 1146, 1054, 9998,
];

/// On OceanBase a statement goes on waiting when its connection is closed, and then holds the row for seconds. There the limit of
/// a wait follows that of a step, which is a second in chaos.
#[tokio::test]
async fn a_wait_for_a_row_is_limited_to_half_the_time_of_its_step() {
    let database = TestDatabase::migrated().await;
    let (seconds, setting) = if is_oceanbase() {
        (1, "ob_trx_lock_timeout")
    } else {
        (3, "innodb_lock_wait_timeout * 1000000")
    };
    let limit = Duration::from_secs(seconds);
    let ours = mysql::connect(&database.url(), 1, limit).await.unwrap();
    let query = format!("SELECT CAST(@@SESSION.{setting} AS UNSIGNED)");
    let micros: u64 = ours
        .read(async |connection| sqlx::query_scalar(&query).fetch_one(connection).await)
        .await
        .unwrap();
    assert!(Duration::from_micros(micros) <= limit / 2, "{micros} µs");
}

/// Buys one for each user; returns the users with the ids of their orders.
async fn buy_all(stack: &Stack, users: &[SignedIn], sale: i64) -> Vec<(SignedIn, i64)> {
    let mut bought = Vec::new();
    for user in users {
        bought.push((user.clone(), stack.buy(user, sale).await.bought()));
    }
    bought
}

/// Creates triggers that fail changes with the error number which the table `planted` has for their sale. The table `attempts`
/// counts the failures: as a MyISAM table, it keeps its rows although the statement fails.
async fn plant_errors(stack: &Stack) {
    let planted =
        "CREATE TABLE planted (voucher_id BIGINT PRIMARY KEY, changing VARCHAR(8), number INT)";
    stack
        .database
        .run(&format!("{planted} ENGINE = MyISAM"))
        .await;
    stack
        .database
        .run("CREATE TABLE attempts (voucher_id BIGINT) ENGINE = MyISAM")
        .await;
    for (change, table) in [
        ("INSERT", "tb_voucher_order"),
        ("UPDATE", "tb_seckill_voucher"),
    ] {
        let trigger = format!(
            "CREATE TRIGGER fails_{change} BEFORE {change} ON {table} FOR EACH ROW \
             BEGIN \
               DECLARE error INT DEFAULT (SELECT number FROM planted \
                 WHERE voucher_id = NEW.voucher_id AND changing = '{change}'); \
               IF error IS NOT NULL THEN \
                 INSERT INTO attempts VALUES (NEW.voucher_id); \
                 SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = error, MESSAGE_TEXT = 'a planted error'; \
               END IF; \
             END"
        );
        stack.database.run(&trigger).await;
    }
}

/// From now on each INSERT of an order of this sale, or each UPDATE of its row, fails with this number.
async fn fail(stack: &Stack, sale: i64, change: &str, number: u16) {
    let planted = format!("REPLACE INTO planted VALUES ({sale}, '{change}', {number})");
    stack.database.run(&planted).await;
}

async fn wait_for_failures(stack: &Stack, sale: i64, times: i64) {
    if is_oceanbase() {
        // It rolls every table back, so failures are not counted.
        return;
    }
    let attempts = format!("SELECT COUNT(*) FROM attempts WHERE voucher_id = {sale}");
    eventually("it is tried again and again", async || {
        stack.database.number(&attempts).await >= times
    })
    .await;
}

/// Waits until these orders are committed; asserts that each buyer finds the order by a look-up.
async fn assert_all_ordered(stack: &Stack, sale: i64, bought: &[(SignedIn, i64)]) {
    eventually("every order is committed", async || {
        stack.orders(sale).await == bought.len() as i64
    })
    .await;
    stack.stream_drained().await;
    for (user, order) in bought {
        assert_eq!(stack.look_up(user, *order).await.data()["id"], *order);
    }
    assert_eq!(stack.dead_letters().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_wait_while_their_table_is_away() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(20, "stream").await;
    let users = stack.users(4).await;
    let mut bought = while_sale_is_locked(&stack, sale, buy_all(&stack, &users[1..], sale)).await;
    stack
        .database
        .run("RENAME TABLE tb_voucher_order TO tb_away")
        .await;
    bought.extend(buy_all(&stack, &users[..1], sale).await);
    let orders_page = get(stack.url(), "/voucher-order/of/me")
        .token(&users[0].token)
        .send()
        .await;
    orders_page.refused(503, "UNAVAILABLE");
    stack.instances[0]
        .wait_for_line("the database does not answer; nothing is read")
        .await;
    stack
        .database
        .run("RENAME TABLE tb_away TO tb_voucher_order")
        .await;
    assert_all_ordered(&stack, sale, &bought).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_the_server_is_answered_503_and_ends_no_order() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(2).await;
    plant_errors(&stack).await;
    let sales = stack.publish_each(20, STRATEGIES).await;
    let inserts = STATES.map(|number| ("INSERT", number));
    let updates = [1290, 1114, 9998].map(|number| ("UPDATE", number));
    let mut streams = Vec::new();
    for (change, number) in inserts.into_iter().chain(updates) {
        // The consumer of the stream meets the error, too.
        let stream = stack.publish(20, "stream").await;
        fail(&stack, stream, change, number).await;
        streams.push((stream, buy_all(&stack, &users, stream).await));
        for sale in &sales {
            fail(&stack, *sale, change, number).await;
            println!("{change} of sale {sale} fails with {number}");
            stack
                .buy(&users[0], *sale)
                .await
                .refused(503, "UNAVAILABLE");
        }
    }
    for (stream, _) in &streams {
        wait_for_failures(&stack, *stream, 4).await;
    }
    assert_eq!(stack.dead_letters().await, 0, "an outage ended orders");
    assert_eq!(
        stack.instances[0].lines_with("meets a bug").len(),
        0,
        "an outage is no bug"
    );
    stack.database.run("DELETE FROM planted").await;
    for (stream, bought) in &streams {
        assert_all_ordered(&stack, *stream, bought).await;
    }
    for sale in sales {
        stack.buy(&users[0], sale).await.data();
    }
}

/// The buyer is answered 500. Still, the fault is not the order's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_statement_is_reported_as_a_bug_and_ends_no_order() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(3).await;
    plant_errors(&stack).await;
    let sale = stack.publish(20, "stream").await;
    let direct = stack.publish(20, "reentrant-lock").await;
    fail(&stack, sale, "INSERT", 1064).await;
    fail(&stack, direct, "INSERT", 1064).await;
    let bought = buy_all(&stack, &users, sale).await;
    let answer = stack.buy(&users[0], direct).await;
    answer.refused(500, "INTERNAL");
    // The detail is in the log alone, under the id that the reply has.
    let id = answer.body["requestId"].as_str().expect("an id");
    assert_eq!(answer.headers["x-request-id"], id);
    let line = stack.instances[0].wait_for_line(id).await;
    let detail = "a planted error";
    assert!(line.contains("ERROR") && line.contains(detail), "{line}");
    assert!(!answer.body.to_string().contains(detail), "{answer:?}");
    wait_for_failures(&stack, sale, 12).await;
    assert_eq!(stack.dead_letters().await, 0);
    stack.database.run("DELETE FROM planted").await;
    assert_all_ordered(&stack, sale, &bought).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_read_only_for_a_while_ends_no_order_and_its_connections_are_replaced() {
    // Few connections, so that each is soon used for a write.
    let few_connections = ["--database-connections", "2"];
    let mut stack = Stack::start_on(TestDatabase::on_own_server().await, 1, &few_connections).await;
    let stream = stack.publish(20, "stream").await;
    let sales = stack.publish_each(20, STRATEGIES).await;
    let users = stack.users(5).await;
    let newest = "SELECT MAX(ID) FROM information_schema.PROCESSLIST WHERE USER = 'seckill'";
    let before = stack.database.number(newest).await;
    let old = format!(
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'seckill' AND ID <= {before}"
    );
    let open = stack.database.number(&old).await;
    stack.database.run("SET GLOBAL read_only = 1").await;
    let bought = buy_all(&stack, &users, stream).await;
    for sale in &sales {
        stack
            .buy(&users[0], *sale)
            .await
            .refused(503, "UNAVAILABLE");
    }
    // Reads have connections of their own, which are still good.
    eventually("a connection that could not write is closed", async || {
        stack.database.number(&old).await < open
    })
    .await;
    // No purchase is under way, so these attempts are the consumer's.
    let tries = || stack.instances[0].lines_with("database unavailable").len();
    let first = tries();
    eventually("it is tried again and again", async || tries() >= first + 6).await;
    stack.database.run("SET GLOBAL read_only = 0").await;
    assert_all_ordered(&stack, stream, &bought).await;
    for sale in sales {
        stack.buy(&users[0], sale).await.data();
    }

    // A connection may lead to the former primary, which reads never notice. So a connection to a read-only server is soon
    // replaced.
    let database = &stack.database;
    let pool = mysql::connect(&database.url(), 1, Duration::from_secs(10)).await;
    let pool = pool.expect("connect");
    let other_pool = pool.beside(1);
    let connection_of = async |pool: &Database| {
        let id = sqlx::query_scalar("SELECT CONNECTION_ID()");
        let id: u64 = pool
            .read(async |c| id.fetch_one(c).await)
            .await
            .expect("an id");
        id
    };
    let connection = async || connection_of(&pool).await;
    let before = connection().await;
    let of_other = connection_of(&other_pool).await;
    let write_fails = async || {
        let write = sqlx::query("UPDATE tb_shop SET name = name");
        pool.read(async |c| write.execute(c).await)
            .await
            .expect_err("it is read-only");
    };
    database.run("SET GLOBAL read_only = 1").await;
    assert_eq!(connection().await, before, "nothing has been written");
    write_fails().await;
    let meanwhile = connection().await;
    assert_ne!(meanwhile, before, "the server was found read-only");
    assert_ne!(
        connection_of(&other_pool).await,
        of_other,
        "by the other pool, too"
    );
    database.run("SET GLOBAL read_only = 0").await;
    eventually("it is replaced", async || connection().await != meanwhile).await;
    let after = connection().await;
    // For longer than a connection to a read-only server is used.
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(connection().await, after);
    database.run("SET GLOBAL read_only = 1").await;
    write_fails().await;
    assert_ne!(connection().await, after, "it was found read-only again");

    // The service sells nothing on a read-only server, even if its user has the right to write there: the primary, and so the
    // service's next connection, would not have the order. `doctor` warns of that right.
    stack.database.run("SET GLOBAL read_only = 0").await;
    let doctor = || doctor(stack.database.url().expose_secret());
    let advice = "may write to a read-only server";
    let before = doctor();
    assert!(!before.contains(advice), "{before}");
    // MariaDB's READ_ONLY ADMIN and MySQL's CONNECTION_ADMIN are among them.
    stack
        .database
        .run("GRANT ALL ON *.* TO 'seckill'@'127.0.0.1'")
        .await;
    let granted = doctor();
    assert!(granted.contains(advice), "{granted}");

    stack.instances.clear();
    stack.add_instance(&[]).await;
    let user = &users[0];
    let strategies = STRATEGIES.into_iter().chain(["unit-rows"]);
    let sales = stack.publish_each(20, strategies).await;
    let before = stack.all_orders().await;
    stack.database.run("SET GLOBAL read_only = 1").await;
    // The probe of readiness asks the server.
    eventually("the service knows that it is read-only", async || {
        get(stack.url(), "/health/ready").send().await.status == 503
    })
    .await;
    for sale in &sales {
        stack.buy(user, *sale).await.refused(503, "UNAVAILABLE");
    }
    assert_eq!(stack.all_orders().await, before);
    stack.database.run("SET GLOBAL read_only = 0").await;
    for sale in sales {
        stack.buy_eventually(user, sale).await;
    }
}

/// The transaction is lost. Before its outcome is looked up, its id goes to another buyer, because the counter was lost, too.
#[tokio::test]
async fn an_id_that_another_buyer_got_is_no_success() {
    let database = TestDatabase::migrated().await;
    let proxy = Proxy::start(database.server().to_owned())
        .await
        .expect("a proxy");
    let url = database.url_through(proxy.address).into();
    let db = mysql::connect(&url, 2, Duration::from_secs(5))
        .await
        .expect("connect");
    let store = OrderStore::new(db, Zone(chrono_tz::Asia::Shanghai));
    let order = NewOrder {
        id: store.local_seconds() << 32,
        buyer: Buyer {
            user_id: 1,
            voucher_id: 1,
        },
        unguarded: false,
    };
    let mut transaction = store.begin().await.expect("a transaction");
    transaction.insert(&order).await.expect("an insert");
    proxy.set(Mode::Cut);
    // Waits until the server has rolled the lost transaction back.
    let insert = format!(
        "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES ({}, 2, 1)",
        order.id
    );
    database.run(&insert).await;
    proxy.set(Mode::Forward);
    let committed = transaction.place(&order, Text::default()).await;
    assert!(
        matches!(committed, Err(Error::Unavailable(_))),
        "{committed:?}"
    );
}
