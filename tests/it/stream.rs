//! The strategy `stream`, step by step: pending, committed and refused orders, and entries that are written by a Java
//! node, repeated or invalid. Faults during a sale are in `stream_faults` and `stream_outages`.

use futures_util::future::join_all;
use redis::AsyncCommands;
use serde_json::json;
use testkit::raw::query;

use crate::resilience::while_sale_is_locked;
use crate::support::api::get;
use crate::support::eventually;
use crate::support::hold::Hold;
use crate::support::stack::Stack;

async fn counter_and_claims(stack: &Stack, sale: i64) -> (Option<i64>, Vec<i64>) {
    (stack.counter(sale).await, stack.claims(sale).await)
}

fn entry(user: i64, sale: i64, id: i64) -> [(&'static str, i64); 3] {
    [("userId", user), ("voucherId", sale), ("id", id)]
}

#[tokio::test]
async fn an_order_is_pending_until_it_is_committed_and_of_entries_with_the_same_id_one_counts() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(2, "stream").await;
    let users = stack.users(2).await;
    let id = while_sale_is_locked(&stack, sale, async {
        let bought = stack.buy(&users[0], sale).await;
        let id = bought.bought();
        assert_eq!(bought.status, 202);
        let pending = stack.look_up(&users[0], id).await;
        let answers = (pending.status, &pending.body);
        assert_eq!(answers, (202, &bought.body), "the answer of the purchase");
        stack.look_up(&users[1], id).await.shows_no_order();
        let again = stack.buy(&users[0], sale).await;
        again.refused(200, "ALREADY_ORDERED");
        assert_eq!(again.body["orderId"], bought.body["orderId"]);
        id
    })
    .await;
    stack.stream_drained().await;
    stack.settled().await;
    let order = stack.look_up(&users[0], id).await;
    assert_eq!(
        (&order.data()["id"], &order.data()["status"]),
        (&json!(id), &json!(1))
    );
    stack
        .look_up(&users[1], id)
        .await
        .refused(200, "ORDER_NOT_FOUND");
    stack
        .buy(&users[0], sale)
        .await
        .refused(200, "ALREADY_ORDERED");
    assert_eq!(stack.tables(sale).await, (1, 1));
    assert_eq!(
        counter_and_claims(&stack, sale).await,
        (Some(1), vec![users[0].id])
    );

    // An entry is delivered again if its acknowledgement was lost. And two nodes may give out the same id: one of both entries
    // becomes the order, and neither buyer is told before that there is no order.
    let mut redis = stack.redis.conn().await;
    let sale = stack.publish(5, "stream").await;
    let mut add = async |user: i64, sale: i64, id: i64| {
        let _: String = redis
            .xadd("stream.orders", "*", &entry(user, sale, id))
            .await
            .unwrap();
    };
    const ID: i64 = 660_000_000_000_000_001;
    add(7, sale, ID).await;
    stack.stream_drained().await;
    assert!(stack.database.has_order(ID, 7).await);
    // Delivered again, alone and among new ones.
    add(7, sale, ID).await;
    stack.stream_drained().await;
    while_sale_is_locked(&stack, sale, async {
        // The consumer is busy with this entry, so that those that follow are one batch.
        add(8, sale, ID + 1).await;
        add(7, sale, ID).await;
        add(9, sale, ID + 2).await;
        // The same order again.
        add(9, sale, ID + 2).await;
    })
    .await;
    stack.stream_drained().await;
    assert_eq!(
        (stack.tables(sale).await, stack.dead_letters().await),
        ((3, 2), 0)
    );

    let sale = stack.publish(2, "stream").await;
    let id = ID + 3;
    while_sale_is_locked(&stack, sale, async {
        for user in &users {
            add(user.id, sale, id).await;
        }
        for user in &users {
            stack.wait_for_code(user, id, "PENDING").await;
        }
    })
    .await;
    stack.stream_drained().await;
    let first = stack.look_up(&users[0], id).await;
    let second = stack.look_up(&users[1], id).await;
    let (ordered, refused) = if first.body["success"] == true {
        (first, second)
    } else {
        (second, first)
    };
    assert_eq!(ordered.data()["id"], id);
    refused.refused(200, "ORDER_FAILED");
    assert_eq!(stack.tables(sale).await, (1, 1));
}

#[tokio::test]
async fn an_order_that_the_database_refuses_is_undone_or_dead_lettered_and_can_be_looked_up() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(2, "stream").await;
    let users = stack.users(3).await;
    let mut redis = stack.redis.conn().await;
    let first = stack.buy_committed(&users[0], sale).await;
    // Redis loses the claim; the database still has the order.
    let _: () = redis
        .srem(stack.keys.claims(sale), users[0].id)
        .await
        .unwrap();
    let second = stack.buy_committed(&users[0], sale).await;
    let refused = stack.look_up(&users[0], second).await;
    refused.refused(200, "ALREADY_ORDERED");
    assert_eq!(
        refused.body["orderId"],
        first.to_string(),
        "the existing order"
    );
    stack.look_up(&users[1], second).await.shows_no_order();
    let kept: i64 = redis.ttl(stack.keys.refused(second)).await.unwrap();
    assert!((80_000..=86_400).contains(&kept), "for a day: {kept} s");
    assert_eq!(
        counter_and_claims(&stack, sale).await,
        (Some(1), vec![users[0].id])
    );
    // The stock counter is higher than the stock.
    let _: () = redis.set(stack.keys.stock(sale), 5).await.unwrap();
    stack.buy_committed(&users[1], sale).await;
    let late = stack.buy(&users[2], sale).await;
    if late.status == 202 {
        let late_order = late.bought();
        stack.stream_drained().await;
        stack
            .look_up(&users[2], late_order)
            .await
            .refused(200, "SOLD_OUT");
        // That showed the counter to be wrong: it is rebuilt.
        eventually("the purchase itself is refused", async || {
            stack.buy(&users[2], sale).await.body["code"] == "SOLD_OUT"
        })
        .await;
    } else {
        late.refused(200, "SOLD_OUT");
    }
    assert_eq!(stack.tables(sale).await, (2, 0));

    // Entries that cannot be committed delay no other.
    let sale = stack.publish(10, "stream").await;
    let dead = stack.dead_letters().await;
    let poison = format!(
        "CREATE TRIGGER poison BEFORE INSERT ON tb_voucher_order FOR EACH ROW \
         IF NEW.user_id = {} THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'poison'; END IF",
        users[1].id
    );
    stack.database.run(&poison).await;
    let mut ids = Vec::new();
    while_sale_is_locked(&stack, sale, async {
        for user in &users {
            ids.push(stack.buy(user, sale).await.bought());
        }
        let mut add = redis::pipe();
        add.xadd("stream.orders", "*", &[("userId", "x"), ("nonsense", "y")]);
        add.xadd("stream.orders", "*", &entry(0, sale, 5));
        add.exec_async(&mut redis).await.unwrap();
    })
    .await;
    stack.stream_drained().await;
    assert_eq!(stack.tables(sale).await, (2, 8));
    stack
        .look_up(&users[1], ids[1])
        .await
        .refused(200, "ORDER_FAILED");
    let claims = vec![users[0].id, users[2].id];
    assert_eq!(counter_and_claims(&stack, sale).await, (Some(8), claims));
    assert_eq!(stack.dead_letters().await - dead, 3);
    // A dead letter has all fields of its entry, which are nowhere else any more.
    let letters =
        query::<Vec<redis::Value>>(&mut redis, "XRANGE", &["stream.orders.dead", "-", "+"]);
    let letters = format!("{:?}", letters.await);
    for field in ["nonsense", "poison", "it names no order"] {
        assert!(letters.contains(field), "{letters}");
    }
    // Once the fault is removed the buyer may try again.
    stack.database.run("DROP TRIGGER poison").await;
    stack.buy_committed(&users[1], sale).await;
    assert_eq!(stack.tables(sale).await, (3, 7));

    // The counter of the ids was lost, and a node that does not begin it at random began it anew: the buyer is told the id of an
    // order that another user has. The purchase ends as a refusal, and the buyer may buy again. So does one whose refusal is a
    // row already: it was decided, and not resolved.
    let other_sale = stack.publish(1, "row-lock").await;
    let sale = stack.publish(2, "stream").await;
    let id = stack.buy(&users[0], other_sale).await.bought();
    // Not the next id.
    let refused_id = id + (1 << 20);
    let refusal = format!("({refused_id}, {}, {refused_id}, 4)", users[1].id);
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES";
    stack.database.run(&format!("{insert} {refusal}")).await;
    for id in [id, refused_id] {
        let mut admit = redis::pipe();
        admit
            .atomic()
            .decr(stack.keys.stock(sale), 1)
            .sadd(stack.keys.claims(sale), users[1].id);
        admit.xadd("stream.orders", "*", &entry(users[1].id, sale, id));
        admit.exec_async(&mut redis).await.unwrap();
        stack.stream_drained().await;
        stack
            .look_up(&users[1], id)
            .await
            .refused(200, "ORDER_FAILED");
        assert_eq!(counter_and_claims(&stack, sale).await, (Some(2), vec![]));
    }
    assert_eq!(
        stack.look_up(&users[0], id).await.data()["voucherId"],
        other_sale
    );
    let again = stack.buy_committed(&users[1], sale).await;
    assert_eq!(
        stack.look_up(&users[1], again).await.data()["voucherId"],
        sale
    );
    assert_eq!(
        counter_and_claims(&stack, sale).await,
        (Some(1), vec![users[1].id])
    );
}

/// Of an entry with very many fields the first ones are kept, and of very many dead letters the last ones.
#[tokio::test]
async fn dead_letters_are_bounded_in_size_and_number() {
    let stack = Stack::start(1, &[]).await;
    let mut redis = stack.redis.conn().await;
    let fill = "for n = 1, 11000 do redis.call('XADD', KEYS[1], '*', 'n', n) end";
    let _: () = query(&mut redis, "EVAL", &[fill, "1", "stream.orders.dead"]).await;
    let mut large = redis::cmd("XADD");
    large.arg("stream.orders").arg("*");
    for field in 0..10_000 {
        large.arg(field).arg("nonsense");
    }
    large.exec_async(&mut redis).await.unwrap();
    stack.stream_drained().await;
    // Redis removes them by the hundred.
    let letters = stack.dead_letters().await;
    assert!((10_000..10_500).contains(&letters), "{letters}");
}

/// The row under an entry's id decides nothing if it is another buyer's.
#[tokio::test]
async fn an_entry_with_the_id_of_another_buyers_order_is_counted_as_pending() {
    // The entry stays with the consumer that has it.
    let stack = Stack::start(1, &["--stream-min-idle-ms", "600000"]).await;
    let users = stack.users(2).await;
    let other_sale = stack.publish(1, "row-lock").await;
    let id = stack.buy(&users[0], other_sale).await.bought();
    let sale = stack.publish(5, "stream").await;
    eventually("the sale is counted", async || {
        stack.counter(sale).await == Some(5)
    })
    .await;
    // A Java node's consumer has the entry, so that nobody here decides it; and the counter is lost.
    let mut deliver = redis::pipe();
    deliver
        .atomic()
        .xadd("stream.orders", "*", &entry(users[1].id, sale, id));
    let read = [
        "GROUP",
        "g1",
        "c1",
        "COUNT",
        "1",
        "STREAMS",
        "stream.orders",
        ">",
    ];
    deliver.cmd("XREADGROUP").arg(&read);
    deliver.del(stack.keys.stock(sale));
    let mut redis = stack.redis.conn().await;
    deliver.exec_async(&mut redis).await.unwrap();
    eventually("the entry is counted as pending", async || {
        stack.counter(sale).await == Some(4)
    })
    .await;
}

#[tokio::test]
async fn a_counter_that_is_missing_or_no_number_is_rebuilt_with_the_entries_in_flight() {
    let mut stack = Stack::start(2, &[]).await;
    let sale = stack.publish(4, "stream").await;
    let users = stack.users(6).await;
    let mut redis = stack.redis.conn().await;
    stack.buy_committed(&users[0], sale).await;
    while_sale_is_locked(&stack, sale, async {
        for user in &users[1..3] {
            stack.buy(user, sale).await.bought();
        }
        let keys = [stack.keys.stock(sale), stack.keys.claims(sale)];
        let _: () = redis.del(&keys).await.unwrap();
        // What is in flight may be committed or not: nothing is counted until the row is free.
        stack.buy(&users[3], sale).await.refused(503, "UNAVAILABLE");
        for user in &users[1..3] {
            stack.buy(user, sale).await.refused(200, "ALREADY_ORDERED");
        }
    })
    .await;
    stack.opened(sale).await;
    stack.buy(&users[3], sale).await.bought();
    let (stock, claims) = counter_and_claims(&stack, sale).await;
    assert_eq!(stock, Some(0), "4, less 1 sold, 2 in flight and this one");
    assert_eq!(
        claims,
        users[..4].iter().map(|user| user.id).collect::<Vec<_>>()
    );
    for user in &users[..4] {
        stack.buy(user, sale).await.refused(200, "ALREADY_ORDERED");
    }
    stack.buy(&users[4], sale).await.refused(200, "SOLD_OUT");
    stack.stream_drained().await;
    assert_eq!(stack.tables(sale).await, (4, 0));

    // A counter that Redis would not count down: the call admits nobody, and the sale is counted.
    let sale = stack.publish(4, "stream").await;
    let _: () = redis.set(stack.keys.stock(sale), "1e3").await.unwrap();
    stack.buy_committed(&users[0], sale).await;
    assert_eq!(
        (stack.tables(sale).await, stack.counter(sale).await),
        ((1, 3), Some(3))
    );

    // An instance that stops leaves the group.
    let mut consumers = redis::cmd("XINFO");
    consumers.arg("CONSUMERS").arg("stream.orders").arg("g1");
    let present: Vec<redis::Value> = consumers.query_async(&mut redis).await.unwrap();
    assert!(!present.is_empty(), "one of them has read an entry");
    for instance in &mut stack.instances {
        instance.stop().await;
    }
    let present: Vec<redis::Value> = consumers.query_async(&mut redis).await.unwrap();
    assert_eq!(present.len(), 0);
}

/// The stream is lost while an order of it is being inserted, and the sale is counted without that order.
#[tokio::test]
async fn a_sale_is_counted_again_when_an_order_is_committed_whose_entry_was_lost() {
    let stack = Stack::start(1, &[]).await;
    let user = stack.users(1).await.remove(0);
    let sale = stack.publish(2, "stream").await;
    let is_of_sale = format!("NEW.voucher_id = {sale}");
    let insert = "AFTER INSERT ON tb_voucher_order";
    let hold = Hold::first(&stack.database, insert, &is_of_sale).await;
    let id = stack.buy(&user, sale).await.bought();
    stack.wait_for_insert(&user).await;
    let mut redis = stack.redis.conn().await;
    let keys = ["stream.orders", "stream.orders.pending"];
    let _: () = redis.del(&keys).await.unwrap();
    stack.counted(sale, 2).await;
    hold.release().await;
    stack.decided(&user, id).await.data();
    stack.counted(sale, 1).await;
}

/// One call of the script admits all purchases that arrived during the call before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_one_user_for_several_sales_are_pending_when_one_call_admits_them() {
    let stack = Stack::start(1, &[]).await;
    let user = stack.users(1).await.remove(0);
    // So many that the number of one ends like that of another.
    let sales = stack.publish_each(1, ["stream"; 11]).await;
    let mut holder = stack.lock_sale(sales[0]).await;
    for sale in &sales[1..] {
        let lock = "SELECT stock FROM tb_seckill_voucher WHERE voucher_id = ? FOR UPDATE";
        let lock = sqlx::query(lock).bind(sale);
        lock.execute(&mut *holder).await.unwrap();
    }
    let longest_number = stack.buy(&user, sales[10]).await;
    let purchases = sales[..10].iter().map(|sale| stack.buy(&user, *sale));
    let others = join_all(purchases).await;
    for bought in others.iter().chain([&longest_number]) {
        let pending = stack.look_up(&user, bought.bought()).await;
        assert_eq!(pending.status, 202, "{pending:?}");
    }
    holder.rollback().await.unwrap();
    stack.stream_drained().await;
    for sale in sales {
        assert_eq!(stack.tables(sale).await, (1, 0));
    }
}

#[tokio::test]
async fn a_full_stream_admits_nobody_until_it_is_drained() {
    let stack = Stack::start(1, &["--stream-backlog", "1"]).await;
    let sale = stack.publish(2, "stream").await;
    let users = stack.users(2).await;
    while_sale_is_locked(&stack, sale, async {
        stack.buy(&users[0], sale).await.bought();
        stack.buy(&users[1], sale).await.refused(503, "OVERLOADED");
    })
    .await;
    stack.stream_drained().await;
    stack.buy_committed(&users[1], sale).await;
    let metrics = get(stack.url(), "/metrics").text().await;
    assert!(
        metrics.contains("seckill_stream_ordered_total 2\n"),
        "{metrics}"
    );
}
