//! Publishing, adding stock and changing shops under lost replies and repeated requests: the answer is true, and a
//! repeat with the same `Idempotency-Key` does nothing twice.

use futures_util::future::join_all;
use hyper::Method;
use serde_json::{Value, json};

use crate::support::api::{Answer, Call, call, get, post};
use crate::support::eventually;
use crate::support::stack::{Stack, buy};
use crate::vouchers::ordinary;
use testkit::proxy::Mode;

const KEY: &str = "idempotency-key";

/// An admin write: its request, and a query for a number in the database that the write raises by `increase`.
struct Write {
    method: Method,
    path: String,
    body: Value,
    count_sql: String,
    increase: i64,
}

impl Write {
    fn call(&self, base: &str) -> Call {
        call(self.method.clone(), base, &self.path)
            .admin()
            .json(self.body.clone())
    }

    async fn count(&self, stack: &Stack) -> i64 {
        stack.database.number(&self.count_sql).await
    }
}

fn write(method: Method, path: &str, body: Value, count_sql: &str, increase: i64) -> Write {
    Write {
        method,
        path: path.to_owned(),
        body,
        count_sql: count_sql.to_owned(),
        increase,
    }
}

/// Every admin write; the last changes shop 1, whose name has `name_length` letters.
fn writes(sale: i64, name_length: usize) -> Vec<Write> {
    let shop = json!({ "name": "新店", "typeId": 3, "address": "路", "x": 120.1, "y": 30.2 });
    vec![
        write(
            Method::POST,
            "/voucher/seckill",
            Stack::sale(7, "stream"),
            "SELECT COALESCE(SUM(stock), 0) FROM tb_seckill_voucher WHERE strategy = 'stream'",
            7,
        ),
        write(
            Method::POST,
            &format!("/voucher/seckill/{sale}/stock"),
            json!({ "add": 5 }),
            &format!("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = {sale}"),
            5,
        ),
        write(
            Method::POST,
            "/voucher",
            ordinary(),
            "SELECT COUNT(*) FROM tb_voucher",
            1,
        ),
        write(
            Method::POST,
            "/shop",
            shop,
            "SELECT COUNT(*) FROM tb_shop",
            1,
        ),
        write(
            Method::PUT,
            "/shop",
            json!({ "id": 1, "name": "x".repeat(name_length + 1) }),
            "SELECT CHAR_LENGTH(name) FROM tb_shop WHERE id = 1",
            1,
        ),
    ]
}

/// Sends each instance several requests at once, so that its pools have open connections.
async fn warm(stack: &Stack) {
    stack.ready().await;
    let user = &stack.users(1).await[0];
    for base in stack.urls() {
        // Different shops, so that no answer is shared.
        let reads = (0..8).map(|shop| get(&base, &format!("/shop/of/name?name={shop}")).send());
        join_all(reads).await;
        join_all((0..8).map(|_| buy(&base, user, 999))).await;
    }
}

/// The instance to ask. With [`Mode::LoseCommitReplyThenCut`] the outcome stays unknown, so it is the instance with the
/// usual time limits, which gives up soon. Otherwise it is the patient one, which learns the outcome on a busy machine, too.
fn url_to_ask(stack: &Stack, mode: Mode) -> &str {
    &stack.instances[usize::from(mode == Mode::LoseCommitReplyThenCut)].url
}

#[tokio::test]
async fn a_lost_commit_or_reply_is_answered_truly_and_a_repeat_with_its_key_does_nothing_twice() {
    // With the usual pool: it has more connections than the one that a fault closes.
    let mut stack = Stack::patient_behind_proxies(&[]).await;
    stack.add_proxied(&[], false).await;
    stack.publish(1, "stream").await;
    stack
        .database
        .run("UPDATE tb_shop SET name = 'x' WHERE id = 1")
        .await;
    warm(&stack).await;
    let sale = stack.publish(3, "reentrant-lock").await;
    for index in 0..5 {
        for mode in [
            Mode::LoseCommit,
            Mode::LoseCommitReply,
            Mode::LoseCommitReplyThenCut,
        ] {
            let name_length = stack
                .database
                .number("SELECT CHAR_LENGTH(name) FROM tb_shop WHERE id = 1");
            let name_length = usize::try_from(name_length.await).unwrap();
            let write = writes(sale, name_length).remove(index);
            let path = &write.path;
            let before = write.count(&stack).await;
            // The instance caches the shop as it is before the change.
            get(stack.url(), "/shop/1").send().await.data();
            // Changing a shop takes no key, because repeating the change has no effect.
            let takes_a_key = write.method == Method::POST;
            let key = format!("{index}-{mode:?}");
            let request = |base: &str| {
                let call = write.call(base);
                if takes_a_key {
                    call.header(KEY, &key)
                } else {
                    call
                }
            };
            stack.proxies.database.set(mode);
            let answer = request(url_to_ask(&stack, mode)).send().await;
            stack.proxies.database.set(Mode::Forward);
            let done = write.count(&stack).await - before;
            match mode {
                Mode::LoseCommitReply => {
                    answer.data();
                    assert_eq!(done, write.increase, "{mode:?} {path}");
                }
                Mode::LoseCommit => {
                    answer.refused(503, "UNAVAILABLE");
                    assert_eq!(
                        done, 0,
                        "{mode:?} {path}: it was said that nothing was done"
                    );
                }
                _ => {
                    answer.refused(503, "OUTCOME_UNKNOWN");
                    assert_eq!(done, write.increase, "{mode:?} {path}");
                }
            }
            if !takes_a_key {
                let name = write.count(&stack).await;
                eventually("no cache keeps the old name", || async {
                    let shop = get(stack.url(), "/shop/1").send().await;
                    shop.body["data"]["name"].as_str().map(str::len) == usize::try_from(name).ok()
                })
                .await;
            }
            warm(&stack).await;
            if takes_a_key {
                let again = request(stack.url()).send().await;
                let data = again.data();
                assert_eq!(
                    write.count(&stack).await - before,
                    write.increase,
                    "{mode:?} {path}"
                );
                assert!(
                    mode != Mode::LoseCommitReply || answer.data() == data,
                    "{path}"
                );
            }
        }
    }
}

/// The first request's transaction is open for longer than the server lets a statement wait for a row.
#[tokio::test]
async fn a_repeat_waits_for_the_request_with_its_key_that_is_under_way() {
    let stack = Stack::lab(1).await;
    let publish = |key| {
        let call = post(stack.url(), "/voucher").admin().json(ordinary());
        call.header(KEY, key)
    };
    publish("first").send().await.data();
    let vouchers = stack
        .database
        .number("SELECT COUNT(*) FROM tb_voucher")
        .await;
    // Stands for another instance, which has inserted its record and not committed yet.
    let copy = "INSERT INTO tb_idempotency (operation, idempotency_key, fingerprint, result) \
                SELECT operation, 'second', fingerprint, 77 FROM tb_idempotency WHERE idempotency_key = 'first'";
    let first = stack.database.hold(copy).await;
    let commit = async {
        stack
            .database
            .wait_for_statement("INSERT IGNORE INTO tb_idempotency")
            .await;
        first.commit().await.expect("a commit");
    };
    let (answer, ()) = tokio::join!(publish("second").send(), commit);
    assert_eq!(answer.data(), &json!(77));
    let now = stack
        .database
        .number("SELECT COUNT(*) FROM tb_voucher")
        .await;
    assert_eq!(now, vouchers);
}

/// The instance stops waiting for the reply to its COMMIT, which arrives afterwards. As long as the write may still be made,
/// the answer does not say that it was not.
#[tokio::test]
async fn a_write_whose_commit_is_under_way_is_not_denied() {
    // The instance gives up before the server ends the idle transaction, after 5 s.
    let stack = Stack::behind_proxies(&["--database-timeout-ms", "1500"]).await;
    stack.ready().await;
    let vouchers = "SELECT COUNT(*) FROM tb_voucher LOCK IN SHARE MODE";
    stack.proxies.database.set(Mode::HoldCommits);
    let publish = post(stack.url(), "/voucher").admin().json(ordinary());
    let mut publishing = std::pin::pin!(publish.send());
    let early = tokio::select! {
        () = stack.database.wait_for_statement("INSERT IGNORE INTO tb_idempotency") => None,
        // This machine is so busy that the look-up did not get a connection in time.
        answer = &mut publishing => Some(answer),
    };
    stack.proxies.database.set(Mode::Forward);
    let answer = match early {
        Some(answer) => answer,
        None => publishing.await,
    };
    // The locking read waits for the transaction, which the held COMMIT ends.
    let published: i64 = sqlx::query_scalar(vouchers)
        .fetch_one(&stack.database.pool)
        .await
        .expect("a number");
    match answer.body["code"].as_str() {
        None => {
            answer.data();
            assert_eq!(published, 1);
        }
        // A busy machine's look-up ran out of time.
        Some("OUTCOME_UNKNOWN") => {}
        _ => {
            answer.refused(503, "UNAVAILABLE");
            assert_eq!(published, 0, "it was said that nothing was done");
        }
    }
}

#[tokio::test]
async fn a_key_is_one_request_on_every_node_and_under_concurrency_for_a_day() {
    let stack = Stack::lab(2).await;
    let urls = stack.urls();
    let sale = stack.publish(3, "reentrant-lock").await;
    for write in writes(sale, 1).into_iter().take(4) {
        let before = write.count(&stack).await;
        let all =
            join_all((0..12).map(|n| write.call(&urls[n % 2]).header(KEY, "once").send())).await;
        let data: Vec<&Value> = all.iter().map(Answer::data).collect();
        assert!(
            data.iter().all(|id| *id == data[0] && id.is_i64()),
            "{}: {data:?}",
            write.path
        );
        assert_eq!(
            write.count(&stack).await - before,
            write.increase,
            "{}",
            write.path
        );
        // With another key, or without a key, it is another request.
        let with_another_key = write.call(&urls[0]).header(KEY, "twice").send().await;
        write.call(&urls[1]).send().await.data();
        assert_ne!(with_another_key.data(), data[0], "{}", write.path);
        assert_eq!(
            write.count(&stack).await - before,
            3 * write.increase,
            "{}",
            write.path
        );
        // The same key for something else is a mistake, and nothing is done.
        let mut changed = write.body.clone();
        let fields = changed.as_object_mut().unwrap();
        let field = if fields.contains_key("payValue") {
            "payValue"
        } else if fields.contains_key("add") {
            "add"
        } else {
            "x"
        };
        fields.insert(field.to_owned(), json!(77));
        let call = call(write.method.clone(), &urls[0], &write.path)
            .admin()
            .json(changed);
        call.header(KEY, "once")
            .send()
            .await
            .refused(400, "INVALID_PARAMETER");
        assert_eq!(
            write.count(&stack).await - before,
            3 * write.increase,
            "{}",
            write.path
        );
    }
    // So is the same key for the stock of another sale.
    let other_sale = stack.publish(3, "reentrant-lock").await;
    let path = format!("/voucher/seckill/{other_sale}/stock");
    let addition = post(&urls[0], &path).admin().json(json!({ "add": 5 }));
    let answer = addition.header(KEY, "once").send().await;
    answer.refused(400, "INVALID_PARAMETER");
    assert_eq!(stack.stock(other_sale).await, 3);

    let longest = "~".repeat(128);
    post(&urls[0], "/voucher")
        .admin()
        .json(ordinary())
        .header(KEY, &longest)
        .send()
        .await
        .data();
    for bad in ["", " ", &"k".repeat(129), "with space", "é"] {
        let call = post(&urls[0], "/voucher")
            .admin()
            .json(ordinary())
            .header(KEY, bad);
        call.send().await.refused(400, "INVALID_PARAMETER");
    }
    // A refused request does not use up its key.
    let mut body = Stack::sale(1, "reentrant-lock");
    body["shopId"] = json!(999);
    let publish = |body: &Value| {
        post(&urls[0], "/voucher/seckill")
            .admin()
            .json(body.clone())
    };
    publish(&body)
        .header(KEY, "refused")
        .send()
        .await
        .refused(200, "SHOP_NOT_FOUND");
    body["shopId"] = json!(1);
    publish(&body).header(KEY, "refused").send().await.data();

    // A key is known for a day. Then the next write removes it: each write removes the old ones.
    let publish = || post(&urls[0], "/voucher").admin().json(ordinary());
    let first = publish().header(KEY, "daily").send().await;
    for (hours, is_known) in [(23, true), (25, false)] {
        let age = format!("UPDATE tb_idempotency SET create_time = NOW() - INTERVAL {hours} HOUR");
        stack.database.run(&age).await;
        publish().send().await.data();
        let again = publish().header(KEY, "daily").send().await;
        assert_eq!(
            again.data() == first.data(),
            is_known,
            "after {hours} hours"
        );
    }
    let records = "SELECT COUNT(*) FROM tb_idempotency";
    assert_eq!(
        stack.database.number(records).await,
        2,
        "the last two writes"
    );
}
