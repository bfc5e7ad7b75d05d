//! "No such order" is said only when it is certain: not of an order whose transaction may still commit, and not by a
//! server that takes no writes.

use sqlx::{MySql, Transaction};

use crate::support::api::{Answer, call};
use crate::support::database::TestDatabase;
use crate::support::stack::{SignedIn, Stack};

/// What an owner asks of an order by its id, and each route's answer has to be true.
const ROUTES: [(&str, &str); 3] = [("GET", ""), ("POST", "/cancel"), ("POST", "/pay")];

/// An id as the strategies without a stream draw them.
const ORDER: i64 = (150_000_000 << 32) + 1;

async fn ask(stack: &Stack, user: &SignedIn, order: i64, (method, what): (&str, &str)) -> Answer {
    let method = method.parse().expect("a method");
    let path = format!("/voucher-order/{order}{what}");
    call(method, stack.url(), &path)
        .token(&user.token)
        .send()
        .await
}

/// A purchase that has inserted its order: whether it commits is open.
async fn inserted(stack: &Stack, user: &SignedIn, sale: i64) -> Transaction<'static, MySql> {
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES";
    stack
        .database
        .hold(&format!("{insert} ({ORDER}, {}, {sale})", user.id))
        .await
}

#[tokio::test]
async fn an_order_is_not_told_as_missing_while_it_may_be_committed_or_the_server_is_read_only() {
    let stack = Stack::start_on(TestDatabase::on_own_server().await, 1, &[]).await;
    let (sale, user) = (
        stack.publish(5, "row-lock").await,
        stack.users(1).await.remove(0),
    );
    stack.settled().await;
    for route in ROUTES {
        let purchase = inserted(&stack, &user, sale).await;
        ask(&stack, &user, ORDER, route)
            .await
            .refused(503, "UNAVAILABLE");
        purchase.rollback().await.expect("a rollback");
        ask(&stack, &user, ORDER, route)
            .await
            .refused(200, "ORDER_NOT_FOUND");

        let purchase = inserted(&stack, &user, sale).await;
        ask(&stack, &user, ORDER, route)
            .await
            .refused(503, "UNAVAILABLE");
        purchase.commit().await.expect("a commit");
        assert_eq!(
            ask(&stack, &user, ORDER, route).await.data()["id"],
            ORDER,
            "{route:?}"
        );
        stack.database.run("DELETE FROM tb_voucher_order").await;
    }

    // A read-only server never says that an order is missing.
    inserted(&stack, &user, sale)
        .await
        .commit()
        .await
        .expect("a commit");
    stack.database.run("SET GLOBAL read_only = 1").await;
    for route in ROUTES {
        ask(&stack, &user, ORDER + 1, route)
            .await
            .refused(503, "UNAVAILABLE");
    }
    // What it has is there.
    assert_eq!(
        ask(&stack, &user, ORDER, ROUTES[0]).await.data()["id"],
        ORDER
    );
    stack.database.run("SET GLOBAL read_only = 0").await;
    for route in ROUTES {
        ask(&stack, &user, ORDER + 1, route)
            .await
            .refused(200, "ORDER_NOT_FOUND");
    }
}

/// An order of the stream whose sale is locked is neither paid nor cancelled, and it is not missing: before its row, while
/// it is pending, and after its refusal every route says what is known of it.
#[tokio::test]
async fn a_pending_order_is_pending_and_a_refused_one_is_refused_on_every_route() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(1, "stream").await;
    let users = stack.users(2).await;
    let mut holder = stack.lock_sale(sale).await;
    let order = stack.buy(&users[0], sale).await.bought();
    for route in ROUTES {
        let pending = ask(&stack, &users[0], order, route).await;
        if route.0 == "GET" {
            assert_eq!(pending.body["code"], "PENDING", "{pending:?}");
        } else {
            pending.refused(503, "OUTCOME_UNKNOWN");
        }
        assert_eq!(
            pending.body["orderId"],
            order.to_string(),
            "{route:?} {pending:?}"
        );
        // Of another user it says nothing.
        ask(&stack, &users[1], order, route).await.shows_no_order();
    }
    let sell_out = format!("UPDATE tb_seckill_voucher SET stock = 0 WHERE voucher_id = {sale}");
    sqlx::Executor::execute(&mut *holder, sell_out.as_str())
        .await
        .expect("no stock");
    holder.commit().await.expect("a commit");
    stack.told(&users[0], order, "SOLD_OUT").await;
    for route in ROUTES {
        ask(&stack, &users[0], order, route)
            .await
            .refused(200, "SOLD_OUT");
    }
}
