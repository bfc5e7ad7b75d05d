//! A sale of the stream whose row is locked, or whose keys are not as we left them, delays no other, and sells again.

use futures_util::future::join_all;
use redis::AsyncCommands;
use seckill::error::Error;
use testkit::proxy::Mode;
use testkit::raw::calls_of;

use crate::decided::{SALE, Scene};
use crate::resilience::while_sale_is_locked;
use crate::support::api::metric;
use crate::support::eventually;
use crate::support::stack::Stack;

#[tokio::test]
async fn a_sale_whose_row_is_locked_is_tried_three_times_and_not_waited_for() {
    const AT_ONCE: &str = "FOR UPDATE NOWAIT";
    let scene = Scene::new().await;
    let lock = format!("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = {SALE} FOR UPDATE");
    let holder = scene.database.hold(&lock).await;
    scene.proxy.count(AT_ONCE);
    let locked = scene.store.require_unlocked(SALE).await;
    assert!(matches!(locked, Err(Error::Conflict)), "{locked:?}");
    assert_eq!(scene.proxy.counted(AT_ONCE), 3);
    holder.rollback().await.expect("a rollback");
    let unlocked = scene.store.require_unlocked(SALE).await;
    unlocked.expect("it can be locked");
    // Nothing of it stays locked.
    scene.database.set_sale(SALE, "stock = 4").await;
}

/// Six sales are locked, more than are committed at once, and one of them has more entries than are read at once. The stream,
/// which all sales share, is never empty here, and stranded stock is found all the same.
#[tokio::test]
async fn sales_whose_rows_are_locked_delay_no_other_sale() {
    // Entries that could not be committed must not wait until another consumer may claim them.
    let idle = ["--stream-min-idle-ms", "600000"];
    let stack = Stack::start(1, &[&["--stream-batch", "4"][..], &idle].concat()).await;
    let users = stack.users(60).await;
    let locked = stack.publish_each(60, ["stream"; 6]).await;
    let free = stack.publish(10, "stream").await;
    let stranded = stack.publish(2, "stream").await;
    let mut holder = stack.database.pool.begin().await.unwrap();
    for sale in &locked {
        // Each by its key: a list of ids may scan the table, and lock all of it.
        let lock = "SELECT stock FROM tb_seckill_voucher WHERE voucher_id = ? FOR UPDATE";
        sqlx::query(lock)
            .bind(sale)
            .execute(&mut *holder)
            .await
            .unwrap();
    }
    let mut pending = Vec::new();
    for (sale, buyers) in locked.iter().zip([60, 1, 1, 1, 1, 1]) {
        pending.push(stack.pending_orders(&users[..buyers], *sale).await.len() as i64);
    }
    let mut redis = stack.redis.conn().await;
    let open = stack.keys.open(locked[0]);
    eventually("a sale closes whose buyers would only wait", async || {
        let mark: Option<String> = redis.get(&open).await.unwrap();
        !mark.is_some_and(|mark| mark.contains(' '))
    })
    .await;
    // A count that somebody asks for forgets none of the sales that are closed.
    for added in 1..5 {
        eventually("the closed sales are known", async || {
            metric(stack.url(), "seckill_stream_sales_closed").await > 0
        })
        .await;
        stack.add_stock(free, 1).await;
        stack.counted(free, 10 + added).await;
        let closed = metric(stack.url(), "seckill_stream_sales_closed").await;
        assert!(closed > 0, "{closed}");
    }
    for user in &users[1..6] {
        let id = stack.buy(user, free).await.bought();
        stack.decided(user, id).await.data();
    }
    // As if an order had been cancelled and Redis had never got its stock back.
    let _: () = redis.set(stack.keys.stock(stranded), 0).await.unwrap();
    for user in &users[..2] {
        stack.buy_eventually(user, stranded).await;
    }
    for sale in &locked {
        assert_eq!(stack.orders(*sale).await, 0, "its row is locked");
    }
    holder.rollback().await.unwrap();
    stack.stream_drained().await;
    for (sale, pending) in locked.iter().zip(pending) {
        assert_eq!(stack.orders(*sale).await, pending);
    }
    assert_eq!(stack.orders(stranded).await, 2);
}

#[tokio::test]
async fn an_instance_that_stops_while_a_row_is_locked_leaves_the_entries_to_another() {
    // The instance waits for the row a few times as long as a statement may take.
    let mut stack = Stack::start(1, &["--database-timeout-ms", "1000"]).await;
    let sale = stack.publish(5, "stream").await;
    let users = stack.users(3).await;
    let holder = stack.lock_sale(sale).await;
    let pending = stack.pending_orders(&users, sale).await.len() as i64;
    // It ends within the drain's deadline, or `stop` fails.
    stack.instances.pop().unwrap().stop().await;
    stack.add_instance(&[]).await;
    holder.rollback().await.unwrap();
    stack.stream_drained().await;
    assert_eq!(stack.orders(sale).await, pending);
}

/// Nothing that an opener leaves behind keeps a sale closed: neither a name that Redis keeps for ten minutes because its clock
/// was stepped back, nor the name of an opener that closed the sale and then found that the mark had changed. Nor does another
/// sale, for which nobody asks and which has a key of another type.
#[tokio::test]
async fn a_sale_is_counted_and_opened_again_and_its_keys_expire_a_day_after_its_end() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(3).await;
    let mut redis = stack.redis.conn().await;
    // A user has a claim and no order, so the user's purchase asks for a count. The count fails, as the sale's row is locked or
    // the database refuses to list the sales. It is made later, although nobody asks for it again.
    let sale = stack.publish(5, "stream").await;
    stack.buy_committed(&users[0], sale).await;
    let claims = stack.keys.claims(sale);
    for (user, fault) in users[1..]
        .iter()
        .zip(["a sale is not counted", "sales are not counted"])
    {
        let holder = match fault {
            "a sale is not counted" => Some(stack.lock_sale(sale).await),
            _ => {
                stack
                    .database
                    .run("RENAME TABLE tb_stock_return TO hidden")
                    .await;
                None
            }
        };
        let _: () = redis.sadd(&claims, user.id).await.unwrap();
        stack.buy(user, sale).await.refused(200, "ALREADY_ORDERED");
        stack.instances[0].wait_for_line(fault).await;
        match holder {
            Some(holder) => holder.rollback().await.unwrap(),
            None => {
                stack
                    .database
                    .run("RENAME TABLE hidden TO tb_stock_return")
                    .await
            }
        }
        eventually("the claim is gone", async || {
            !stack.claims(sale).await.contains(&user.id)
        })
        .await;
    }

    for strategy in ["stream", "reentrant-lock"] {
        let sale = stack.publish(5, strategy).await;
        stack.buy_committed(&users[0], sale).await;
        let ends = stack
            .database
            .of_sale(sale, "UNIX_TIMESTAMP(end_time)")
            .await;
        let names = if strategy == "stream" {
            &["stock", "order", "open"][..]
        } else {
            &["stock"]
        };
        for name in names {
            let key = format!("seckill:{name}:{sale}");
            let expires_at: i64 = redis.expire_time(&key).await.unwrap();
            assert_eq!(expires_at, ends + 86_400, "{key}");
        }
    }

    let sale = stack.publish(2, "stream").await;
    let open = stack.keys.open(sale);
    let second_client = redis.clone();
    let is_open = async |open: &str| {
        let mark: Option<String> = second_client.clone().get(open).await.unwrap();
        mark.is_some_and(|mark| mark.contains(' '))
    };
    let _: () = redis.pset_ex(&open, "someone", 600_000).await.unwrap();
    eventually("nobody opens it for ten minutes", || is_open(&open)).await;
    stack.buy_committed(&users[0], sale).await;

    let holder = stack.lock_sale(sale).await;
    let _: () = redis.del(&open).await.unwrap();
    eventually("it is being opened", async || {
        redis.exists(&open).await.unwrap()
    })
    .await;
    eventually("its buyer is claimed", async || {
        redis
            .sismember(stack.keys.claims(sale), users[0].id)
            .await
            .unwrap()
    })
    .await;
    let _: () = redis.del("stream.orders.pending").await.unwrap();
    holder.rollback().await.unwrap();
    eventually("its opener cannot", async || {
        // The opener's name goes only if the opener takes it away.
        let _: bool = redis.pexpire(&open, 9000).await.unwrap();
        is_open(&open).await
    })
    .await;
    stack.buy(&users[1], sale).await.bought();

    // The sound sale has to open without a purchase that asks for it, since a Java node's script needs its counter.
    let broken = stack.publish(2, "stream").await;
    let sound = stack.publish(2, "stream").await;
    let claims = stack.keys.claims(broken);
    let open = stack.keys.open(sound);
    let mut replace = redis::pipe();
    replace
        .atomic()
        .del(&claims)
        .set(&claims, "no set")
        .del(&open);
    replace.exec_async(&mut redis).await.unwrap();
    eventually("the other one is open again", || is_open(&open)).await;
}

/// Two users have a claim and no order. The count that the first one asks for waits for the sale's row, and knows nothing of the
/// second, who asks meanwhile.
#[tokio::test]
async fn a_count_that_is_asked_for_while_the_sale_is_being_counted_is_made_afterwards() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(2).await;
    let sale = stack.publish(5, "stream").await;
    let claims = stack.keys.claims(sale);
    let mut redis = stack.redis.conn().await;
    while_sale_is_locked(&stack, sale, async {
        for user in &users {
            let _: () = redis.sadd(&claims, user.id).await.unwrap();
            stack.buy(user, sale).await.refused(200, "ALREADY_ORDERED");
            stack.database.wait_for_statement("FOR UPDATE").await;
        }
    })
    .await;
    eventually("both claims are gone", async || {
        stack.claims(sale).await.is_empty()
    })
    .await;
}

/// What somebody wrote into the keys of one sale concerns no other: a sound sale is sold by the same calls meanwhile. The broken
/// sale is named in the log, and counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_sale_that_hold_something_else_concern_no_other_sale_and_are_counted_anew() {
    let stack = Stack::start(1, &[]).await;
    let mut users = stack.users(41).await;
    let late = users.pop().unwrap();
    let mut redis = stack.redis.conn().await;
    for fault in [
        "a claims key that is a text",
        "a counter that is a list",
        "a counter that is too large",
        "an open mark that is a list",
        "an open mark by hand",
    ] {
        let sound = stack.publish(1000, "stream").await;
        let sale = stack.publish(1000, "stream").await;
        let open = stack.keys.open(sale);
        let counter = stack.keys.stock(sale);
        let claims = stack.keys.claims(sale);
        let mut write = redis::pipe();
        write.atomic();
        match fault {
            "a claims key that is a text" => write.del(&claims).set(&claims, "no set"),
            "a counter that is a list" => write.del(&counter).lpush(&counter, "no text"),
            "a counter that is too large" => write.set(&counter, "9".repeat(17)),
            "an open mark that is a list" => write.del(&open).lpush(&open, "no text"),
            _ => write.set(&open, "x"),
        };
        while_sale_is_locked(&stack, sale, async {
            write.exec_async(&mut redis).await.unwrap();
            let purchases = users.iter().map(async |user| {
                let (of_sound, _) = tokio::join!(stack.buy(user, sound), stack.buy(user, sale));
                of_sound
            });
            for answer in join_all(purchases).await {
                answer.bought();
            }
        })
        .await;
        stack.buy_eventually(&late, sale).await;
        eventually(&format!("{fault} is logged"), async || {
            let lines = stack.instances[0].lines_with("a key of a sale");
            lines
                .iter()
                .any(|line| line.contains(&format!("voucher_id={sale}")))
        })
        .await;
    }
}

/// The same for a refusal: the entry gives its unit back to a sale whose keys hold something else.
#[tokio::test]
async fn a_refusal_is_resolved_whatever_the_keys_of_its_sale_hold() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(2).await;
    let mut redis = stack.redis.conn().await;
    let sale = stack.publish(3, "stream").await;
    stack.buy_committed(&users[0], sale).await;
    let id = while_sale_is_locked(&stack, sale, async {
        // The claim is lost: the database refuses a second order.
        let claims = stack.keys.claims(sale);
        let _: () = redis.srem(&claims, users[0].id).await.unwrap();
        let id = stack.buy(&users[0], sale).await.bought();
        let mut write = redis::pipe();
        write.atomic().del(&claims).set(&claims, "no set");
        let counter = stack.keys.stock(sale);
        write.del(&counter).lpush(&counter, "no text");
        write.exec_async(&mut redis).await.unwrap();
        id
    })
    .await;
    stack.stream_drained().await;
    let refused = stack.look_up(&users[0], id).await;
    refused.refused(200, "ALREADY_ORDERED");
    stack.buy_eventually(&users[1], sale).await;
    stack.stream_drained().await;
    assert_eq!(stack.tables(sale).await, (2, 1));
}

/// The number of requests that the database gets per read of the stream, measured over this number of reads.
async fn requests_per_read(stack: &Stack, reads: u64) -> f64 {
    let mut redis = stack.redis.conn().await;
    let mut count = async || calls_of(&mut redis, "xreadgroup").await.cast_unsigned();
    let first = count().await;
    let before = stack.proxies.database.requests();
    let mut last = first;
    eventually("the stream is read", async || {
        last = count().await;
        last >= first + reads
    })
    .await;
    let requests = stack.proxies.database.requests() - before;
    requests as f64 / (last - first) as f64
}

/// An instance could not decide its entries because a row was locked, and another one decided them.
#[tokio::test]
async fn an_instance_whose_entries_another_one_decided_asks_the_database_no_more_than_before() {
    let limits = ["--database-timeout-ms", "1500"];
    let mut stack = Stack::start(0, &[]).await;
    stack.add_proxied(&limits, false).await;
    let user = stack.users(1).await.remove(0);
    let sale = stack.publish(5, "stream").await;
    let usual = requests_per_read(&stack, 20).await;
    while_sale_is_locked(&stack, sale, async {
        let id = stack.buy(&user, sale).await.bought();
        let instance = &stack.instances[0];
        instance
            .wait_for_line("a sale's entries are not decided")
            .await;
        // As if another instance had taken the entries over: they are gone.
        let mut redis = stack.redis.conn().await;
        let mut take = redis::pipe();
        take.atomic()
            .del("stream.orders")
            .del("stream.orders.pending");
        take.exec_async(&mut redis).await.unwrap();
        id
    })
    .await;
    stack.opened(sale).await;
    stack.stream_drained().await;
    let now = requests_per_read(&stack, 40).await;
    assert!(now < usual + 0.5, "{usual} before, {now} now");
}

/// Otherwise its consumer would hold entries that it cannot commit and others could.
#[tokio::test]
async fn an_instance_reads_no_entries_while_its_database_is_away() {
    let stack = Stack::behind_proxies(&["--database-timeout-ms", "1000"]).await;
    let sale = stack.publish(5, "stream").await;
    let mut redis = stack.redis.conn().await;
    stack.proxies.database.set(Mode::Cut);
    // Admitted by a node that reaches the database.
    let entry = [("userId", 7), ("voucherId", sale), ("id", 71)];
    let _: String = redis.xadd("stream.orders", "*", &entry).await.unwrap();
    let mut raw = redis.clone();
    eventually("it does not read while it looks for others", async || {
        let reads = calls_of(&mut raw, "xreadgroup").await;
        let looks = calls_of(&mut raw, "xinfo|consumers").await;
        eventually("it looks for other consumers", async || {
            calls_of(&mut redis, "xinfo|consumers").await >= looks + 8
        })
        .await;
        calls_of(&mut raw, "xreadgroup").await == reads
    })
    .await;
    stack.proxies.database.set(Mode::Forward);
    stack.stream_drained().await;
    assert_eq!(stack.tables(sale).await, (1, 4));
}

/// Stock is added to a sale that a Java node sells as well. The Java node's script sells by the counter, which is set when
/// somebody asks for it.
#[tokio::test]
async fn a_count_that_was_asked_for_while_no_sale_could_be_looked_at_is_made_later() {
    let stack = Stack::behind_proxies(&[]).await;
    let sale = stack.publish(5, "row-lock").await;
    eventually("the counter is set", async || {
        stack.counter(sale).await == Some(5)
    })
    .await;
    let redis = &stack.proxies.redis;
    redis.count("tidy");
    redis.set(Mode::LoseRequest("tidy"));
    stack.add_stock(sale, 3).await;
    let looks = redis.counted("tidy");
    // A command whose reply is lost may be sent once more.
    eventually("two looks have failed since", async || {
        redis.counted("tidy") >= looks + 4
    })
    .await;
    redis.set(Mode::Forward);
    eventually("the counter has what was added", async || {
        stack.counter(sale).await == Some(8)
    })
    .await;
}
