//! Who may call which route: each is listed here in the group of its guard, and a route that is not listed fails the test. The
//! guards are tried on a running instance: without a session or token, over a rate, and when too many requests are in flight.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use hyper::Method;
use serde_json::json;
use tokio::task::JoinSet;

use crate::docs::documented;
use crate::reads::{lock, unlock};
use crate::resilience::while_sale_is_locked;
use crate::support::api::{Answer, Call, call, metric_is};
use crate::support::eventually;
use crate::support::read;
use crate::support::stack::{SignedIn, Stack, buy};

/// For everyone; the routes of the lab exist with `--lab` only.
const PUBLIC: [&str; 9] = [
    "POST /user/code",
    "POST /user/login",
    "GET /shop/{id}",
    "GET /shop/of/type",
    "GET /shop/of/name",
    "GET /shop-type/list",
    "GET /voucher/list/{shopId}",
    "GET /lab/code/{phone}",
    "POST /lab/login",
];

/// For signed-in users, with a limit in flight and the rates of the user and the address.
const SIGNED_IN: [&str; 7] = [
    "POST /user/logout",
    "GET /user/me",
    "GET /user/{id}",
    "GET /voucher-order/of/me",
    "GET /voucher-order/{orderId}",
    "POST /voucher-order/{orderId}/pay",
    "POST /voucher-order/{orderId}/cancel",
];

/// The same, with a limit in flight of their own.
const PURCHASES: [&str; 2] = [
    "POST /voucher-order/seckill/{id}",
    "POST /voucher-order/seckill",
];

/// For the administrator.
const ADMIN: [&str; 5] = [
    "POST /voucher",
    "POST /voucher/seckill",
    "POST /voucher/seckill/{id}/stock",
    "POST /shop",
    "PUT /shop",
];

/// For operators: not reachable through the shipped nginx, or without anything that a stranger could use.
const SERVICE: [&str; 4] = [
    "GET /health/live",
    "GET /health/ready",
    "GET /metrics",
    "GET /docs/openapi.json",
];

/// A request to this route, for an order, a shop or a voucher that does not exist.
fn request(url: &str, route: &str) -> Call {
    let (method, path) = route.split_once(' ').expect("a method and a path");
    let method: Method = method.parse().expect("a method");
    let mut path = path.to_owned();
    while let Some((before, parameter)) = path.split_once('{') {
        let (_, after) = parameter.split_once('}').expect("a parameter");
        path = format!("{before}999{after}");
    }
    let call = call(method.clone(), url, &path);
    if route == PURCHASES[1] {
        call.json(json!({ "voucherId": 999 }))
    } else {
        call
    }
}

#[tokio::test]
async fn every_route_is_listed_with_its_guard_and_the_guard_works() {
    let groups = [&PUBLIC[..], &SIGNED_IN, &PURCHASES, &ADMIN, &SERVICE];
    let listed: BTreeSet<String> = groups
        .concat()
        .iter()
        .map(|route| (*route).to_owned())
        .collect();
    let served: BTreeSet<String> = documented()
        .into_keys()
        .map(|(method, path)| format!("{method} {path}"))
        .collect();
    let differ: Vec<_> = listed.symmetric_difference(&served).collect();
    assert!(
        differ.is_empty(),
        "who may call them? List each above, in PUBLIC, SIGNED_IN, PURCHASES, ADMIN or SERVICE: {differ:?}"
    );
    // Routes of signed-in users take no body: the permit is taken before a body would be read, and that may never arrive.
    for ((method, path), operation) in documented() {
        let is_signed_in = SIGNED_IN.contains(&format!("{method} {path}").as_str());
        let takes_body = operation["requestBody"].is_object();
        assert!(!is_signed_in || !takes_body, "{method} {path}");
    }
    // These files add no route that is not in the document; only pages, which are files, are served beside them.
    for source in ["router", "user/mod", "shop/mod", "voucher/mod", "order/mod"] {
        let text = read(&format!("src/{source}.rs"));
        for word in [".route(", "nest", "axum::routing"] {
            assert!(!text.contains(word), "src/{source}.rs: {word}");
        }
    }

    let stack = Stack::lab(1).await;
    let user = &stack.users(1).await[0];
    for route in groups.concat() {
        let status_of_nobody = request(stack.url(), route).status().await;
        let call_of_user = request(stack.url(), route).token(&user.token);
        let expected = if SIGNED_IN.contains(&route) || PURCHASES.contains(&route) {
            Some(401)
        } else if ADMIN.contains(&route) {
            // A session is not the administrator's token.
            assert_eq!(call_of_user.status().await, 403, "{route}");
            Some(403)
        } else {
            None
        };
        match expected {
            Some(status) => assert_eq!(status_of_nobody, status, "{route}"),
            None => assert!(
                status_of_nobody != 401 && status_of_nobody != 403,
                "{route}: {status_of_nobody}"
            ),
        }
    }
}

/// Each route of signed-in users, with a route of the same group that has no effect.
fn admitted_routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    let signed_in = SIGNED_IN.map(|route| (route, "GET /user/me"));
    signed_in
        .into_iter()
        .chain(PURCHASES.map(|route| (route, PURCHASES[0])))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_of_signed_in_users_has_the_rates_of_user_and_address() {
    let limits = [
        "--per-address-per-second",
        "1",
        "--per-user-per-second",
        "1",
    ];
    let stack = Stack::start(1, &limits).await;
    let users = stack.users(400).await;
    let mut users = users.iter();
    let mut next_user = || -> &SignedIn { users.next().expect("enough users") };
    let ask = async |route: &str, user: &SignedIn, address: &str| -> Answer {
        let call = request(stack.url(), route).token(&user.token);
        call.header("x-forwarded-for", address).send().await
    };
    let mut addresses = (0_u32..).map(|n| format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255));
    let mut next_address = || addresses.next().expect("an address");
    // Repeated if the machine was so slow that the rate allowed one more request.
    for (route, harmless_route) in admitted_routes() {
        eventually(&format!("{route}: a user is over its rate"), async || {
            let user = next_user();
            let from: Vec<_> = (0..4).map(|_| next_address()).collect();
            join_all(
                from.iter()
                    .map(|address| ask(harmless_route, user, address)),
            )
            .await;
            ask(route, user, &next_address()).await.status == 429
        })
        .await;
        eventually(
            &format!("{route}: an address is over its rate"),
            async || {
                let address = next_address();
                let flood: Vec<_> = (0..4).map(|_| next_user()).collect();
                join_all(flood.iter().map(|user| ask(harmless_route, user, &address))).await;
                ask(route, next_user(), &address).await.status == 429
            },
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_of_signed_in_users_is_refused_when_too_many_are_in_flight() {
    let stack = Stack::start(1, &["--max-purchases", "1"]).await;
    let sale = stack.publish(5, "row-lock").await;
    let users = stack.users(3).await;
    let stranger = lock(&stack, "tb_user WRITE").await;
    let read = request(stack.url(), "GET /user/{id}").token(&users[0].token);
    let read = tokio::spawn(read.send());
    stack.database.wait_for_statement("nick_name").await;
    while_sale_is_locked(&stack, sale, async {
        let purchase = stack.start_buying(&users[1], sale);
        metric_is(stack.url(), "seckill_purchases_in_flight", 1).await;
        stack.database.wait_for_statement("FOR UPDATE").await;
        // They are refused without a look-up of the session, which Redis would not answer now.
        stack.redis.pause();
        for (route, _) in admitted_routes() {
            let call = request(stack.url(), route).token(&users[2].token);
            call.send().await.refused(503, "OVERLOADED");
        }
        stack.redis.resume();
        drop(purchase);
    })
    .await;
    unlock(stranger).await;
    read.await.expect("an answer").data();
}

/// Payment and cancellation have connections of their own, and all cancellations that wait for the row of one sale hold only one
/// of them. So purchases and payments go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancellations_that_hang_hold_no_connection_of_a_purchase() {
    let stack = Stack::start(1, &["--database-connections", "2"]).await;
    let held = stack.publish(20, "row-lock").await;
    let healthy = stack.publish(20, "row-lock").await;
    let users = stack.users(12).await;
    let mut orders = Vec::new();
    for user in &users {
        orders.push(buy(stack.url(), user, held).await.bought());
    }
    let mut cancellations = JoinSet::new();
    while_sale_is_locked(&stack, held, async {
        for (user, order) in users.iter().zip(&orders) {
            let route = format!("POST /voucher-order/{order}/cancel");
            cancellations.spawn(request(stack.url(), &route).token(&user.token).send());
        }
        stack
            .database
            .wait_for_statement("UPDATE tb_seckill_voucher")
            .await;
        for user in &users[..3] {
            let order = buy(stack.url(), user, healthy).await.bought();
            let route = format!("POST /voucher-order/{order}/pay");
            let pay = request(stack.url(), &route).token(&user.token);
            pay.send().await.data();
        }
        assert!(cancellations.try_join_next().is_none(), "they wait");
    })
    .await;
    for answer in cancellations.join_all().await {
        assert!([200, 503].contains(&answer.status), "{answer:?}");
    }
}
