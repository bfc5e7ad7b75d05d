//! Firing at real sockets: every attempt once, all of them at the same time.

use hyper::{body::Incoming, header::HeaderValue, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{collections::HashMap, convert::Infallible, sync::Mutex};
use tokio::{net::TcpListener, sync::Barrier};

use super::*;
use crate::{Access, Environment, Target};

#[test]
fn each_attempt_is_queued_once_and_a_buyer_meets_every_target() {
    let options = BurstOptions { tries: 3, ..options(Vec::new()) };
    let queues = queues(&attempts(&options, 10), 2);
    let mut all = queues.concat();
    all.sort_unstable();
    let due = Some(Duration::ZERO);
    let of = |buyer| (0..3).map(move |attempt| Attempt { buyer, attempt, due, then: () });
    let expected: Vec<_> = (0..10).flat_map(of).collect();
    assert_eq!(all, expected);
    for queue in &queues {
        for buyer in 0..10 {
            assert!(queue.iter().any(|it| it.buyer == buyer), "buyer {buyer}");
        }
    }
}

#[test]
fn buyers_come_as_the_seed_says_and_within_the_span() {
    let spread = Duration::from_secs(5);
    let draw = |seed| BurstOptions { spread, seed, ..options(Vec::new()) }.arrivals(100);
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    let (mut buyers, when): (Vec<_>, Vec<_>) = draw(7).into_iter().unzip();
    assert!(when.is_sorted() && when.iter().all(|due| *due < spread), "{when:?}");
    assert!(*when.last().unwrap() > spread.mul_f64(0.8), "{when:?}");
    buyers.sort_unstable();
    assert!(buyers.into_iter().eq(0..100));
    let waves = BurstOptions { spread, wave: 10, ..options(Vec::new()) }.arrivals(100);
    assert!(waves.chunks(10).all(|wave| wave.iter().all(|(_, due)| *due == wave[0].1)));
}

fn buyers(count: u64) -> Arc<[Buyer]> {
    let token = |user_id| HeaderValue::from_str(&format!("token-{user_id}")).unwrap();
    (1..=count).map(|user_id| Buyer { user_id, token: token(user_id) }).collect()
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

/// A server that answers once `expected` requests are waiting, then sells one to each.
async fn server(expected: usize, seen: Arc<Mutex<HashMap<String, u32>>>) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let barrier = Arc::new(Barrier::new(expected));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (barrier, seen) = (barrier.clone(), seen.clone());
            tokio::spawn(async move {
                let service = service_fn(|request: hyper::Request<Incoming>| {
                    let (barrier, seen) = (barrier.clone(), seen.clone());
                    async move {
                        assert_eq!(request.uri(), "/voucher-order/seckill/77");
                        let token = request.headers()["authorization"].to_str().unwrap();
                        *seen.lock().unwrap().entry(token.to_owned()).or_default() += 1;
                        let id = token.trim_start_matches("token-").to_owned();
                        barrier.wait().await;
                        let body = format!(r#"{{"success":true,"data":{id},"orderId":"{id}"}}"#);
                        Ok::<_, Infallible>(hyper::Response::new(body))
                    }
                });
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await
                    .unwrap();
            });
        }
    });
    target
}

#[tokio::test]
async fn every_attempt_is_made_once_and_all_at_the_same_time() {
    // 5 buyers, 4 tries, 2 servers: each answers only once its whole share of 10 is in flight.
    let seen = Arc::new(Mutex::new(HashMap::new()));
    let targets = vec![server(10, seen.clone()).await, server(10, seen.clone()).await];
    let options = BurstOptions { tries: 4, connections: 20, ..options(targets) };
    let live = &options.live;
    let records = generate(&options, 77, &buyers(5)).await.unwrap();
    assert_eq!((live.done(), live.orders()), (20, 20));
    let mut asked: Vec<ObservedReply> = records.into_iter().map(|record| record.observed).collect();
    asked.sort_by_key(|asked| (asked.user_id, asked.attempt));
    let expected: Vec<ObservedReply> = (1..=5)
        .flat_map(|user_id| {
            let reply = Reply::Ordered(i64::try_from(user_id).unwrap());
            (0..4).map(move |attempt| ObservedReply { user_id, attempt, reply: reply.clone() })
        })
        .collect();
    assert_eq!(asked, expected);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 5);
    assert!(seen.values().all(|count| *count == 4), "{seen:?}");
}

#[tokio::test]
async fn a_target_that_is_down_is_a_fault_before_anything_is_fired() {
    let seen = Arc::new(Mutex::new(HashMap::new()));
    let up = server(1, seen.clone()).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let down: Target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);
    let options = options(vec![up, down.clone()]);
    let live = &options.live;
    let error = generate(&options, 77, &buyers(2)).await.unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable { url, .. } if *url == down.to_string()),
        "{error}"
    );
    assert_eq!((live.done(), seen.lock().unwrap().len()), (0, 0));
}
