//! Purchases over real sockets: every attempt once, all of them at the same time.

use std::collections::HashMap;

use hyper::{Request, body::Incoming};
use tokio::sync::Barrier;

use super::*;
use crate::{Access, Environment, Target, http::tests::http_server};

#[test]
fn a_second_order_and_one_without_a_voucher_are_seen_at_once() {
    let mut orders = BTreeSet::new();
    for (user_id, order_id, expected) in [
        (1, 10, false),
        (2, 20, false),
        // Told again.
        (1, 10, false),
        (2, 21, true),
        // The fourth order of three vouchers.
        (3, 30, true),
    ] {
        let found = is_one_too_many(&mut orders, user_id, order_id, 3);
        assert_eq!(found, expected, "{user_id} {order_id}");
    }
}

#[test]
fn buyers_come_as_the_seed_says_and_within_the_span() {
    let spread = Duration::from_secs(5);
    let draw = |seed| {
        BurstOptions {
            spread,
            seed,
            ..options(Vec::new())
        }
        .arrivals(100)
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    let (mut buyers, when): (Vec<_>, Vec<_>) = draw(7).into_iter().unzip();
    assert!(
        when.is_sorted() && when.iter().all(|due| *due < spread),
        "{when:?}"
    );
    assert!(*when.last().unwrap() > spread.mul_f64(0.8), "{when:?}");
    buyers.sort_unstable();
    assert!(buyers.into_iter().eq(0..100));
    let waves = BurstOptions {
        spread,
        wave: 10,
        ..options(Vec::new())
    }
    .arrivals(100);
    assert!(
        waves
            .chunks(10)
            .all(|wave| wave.iter().all(|(_, due)| *due == wave[0].1))
    );
}

fn buyers(count: u64) -> Arc<[Buyer]> {
    let token = |user_id| HeaderValue::from_str(&format!("token-{user_id}")).unwrap();
    (1..=count)
        .map(|user_id| Buyer {
            user_id,
            token: token(user_id),
        })
        .collect()
}

fn options(targets: Vec<Target>) -> BurstOptions {
    let access = Access {
        database_url: String::new(),
        redis_url: String::new(),
        key_style: None,
        admin_token: String::new(),
        time_zone: chrono_tz::UTC,
    };
    BurstOptions::new(Environment::silent(access, targets))
}

/// How often each buyer's token was seen.
type TokenCounts = Arc<Mutex<HashMap<String, u32>>>;

/// A server that answers once `expected` requests are waiting, then sells one to each.
async fn server(expected: usize, token_counts: TokenCounts) -> Target {
    let barrier = Arc::new(Barrier::new(expected));
    let (target, _) = http_server(move |request: Request<Incoming>| {
        let barrier = barrier.clone();
        let token_counts = token_counts.clone();
        async move {
            assert_eq!(request.uri(), "/api/voucher-order/seckill/77");
            let token = request.headers()["authorization"].to_str().unwrap();
            *lock(&token_counts).entry(token.to_owned()).or_default() += 1;
            let id = token.trim_start_matches("token-").to_owned();
            barrier.wait().await;
            format!(r#"{{"success":true,"data":{id},"orderId":"{id}"}}"#)
        }
    })
    .await;
    target
}

#[tokio::test]
async fn every_attempt_is_made_once_and_all_at_the_same_time() {
    // 5 buyers, 4 tries, 2 servers: each answers only once its whole share of 10 is in flight.
    let token_counts: [TokenCounts; 2] = Default::default();
    let targets = vec![
        server(10, token_counts[0].clone()).await,
        server(10, token_counts[1].clone()).await,
    ];
    let options = BurstOptions {
        tries: 4,
        connections: 20,
        ..options(targets)
    };
    let live = &options.live;
    let records = generate(&options, 77, &buyers(5)).await.unwrap();
    assert_eq!((live.done(), live.orders()), (20, 20));
    let mut observed: Vec<ObservedReply> =
        records.into_iter().map(|record| record.observed).collect();
    observed.sort_by_key(|observed| (observed.user_id, observed.attempt));
    let expected: Vec<ObservedReply> = (1..=5)
        .flat_map(|user_id| {
            let reply = Reply::Ordered(i64::try_from(user_id).unwrap());
            (0..4).map(move |attempt| ObservedReply {
                user_id,
                attempt,
                reply: reply.clone(),
            })
        })
        .collect();
    assert_eq!(observed, expected);
    for token_counts in &token_counts {
        let token_counts = lock(token_counts);
        assert!(
            token_counts.len() == 5 && token_counts.values().all(|count| *count == 2),
            "{token_counts:?}"
        );
    }
}

#[tokio::test]
async fn the_first_attempt_of_a_buyer_can_be_for_another_voucher_and_is_not_counted_live() {
    let (target, _) = http_server(|request: Request<Incoming>| async move {
        let id = request.uri().path().rsplit('/').next().unwrap().to_owned();
        format!(r#"{{"success":true,"data":{id},"orderId":"{id}"}}"#)
    })
    .await;
    let options = BurstOptions {
        tries: 3,
        other_voucher_id: Some(5),
        ..options(vec![target])
    };
    let records = generate(&options, 77, &buyers(2)).await.unwrap();
    let mut bought: Vec<_> = records
        .into_iter()
        .map(|record| (record.observed.attempt, record.observed.reply))
        .collect();
    bought.sort_by_key(|(attempt, _)| *attempt);
    let vouchers = [(0, 5), (0, 5), (1, 77), (1, 77), (2, 77), (2, 77)];
    assert_eq!(
        bought,
        vouchers.map(|(attempt, id)| (attempt, Reply::Ordered(id)))
    );
    assert_eq!(options.live.done(), 4);
}

#[tokio::test]
async fn a_target_that_is_down_is_an_error_before_anything_is_sent() {
    let token_counts = TokenCounts::default();
    let up = server(1, token_counts.clone()).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let down: Target = format!("http://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    drop(listener);
    let options = options(vec![up, down.clone()]);
    let live = &options.live;
    let error = generate(&options, 77, &buyers(2)).await.unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable { url, .. } if *url == down.to_string()),
        "{error}"
    );
    assert_eq!((live.done(), lock(&token_counts).len()), (0, 0));
}
