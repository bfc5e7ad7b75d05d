//! The generator against tiny servers, one of which breaks its connections on purpose.

use std::net::{SocketAddr, TcpListener};
use std::thread;

use super::*;

const TOKENS: [[u8; TOKEN]; 3] = [[b'a'; TOKEN], [b'b'; TOKEN], [b'c'; TOKEN]];

/// Answers every request on every connection after `delay`, with an order or, for buyer `b`, a refusal.
fn server(delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut request = [0; 1024];
                while stream.read(&mut request).is_ok_and(|count| count > 0) {
                    thread::sleep(delay);
                    let refused = request.windows(TOKEN).any(|window| window == TOKENS[1]);
                    let body = if refused {
                        r#"{"success":false,"code":"SOLD_OUT"}"#
                    } else {
                        r#"{"success":true,"data":5,"orderId":"5"}"#
                    };
                    let length = body.len();
                    let answer =
                        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
                    if stream.write_all(answer.as_bytes()).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

fn load(target: SocketAddr) -> Load {
    Load {
        targets: vec![target],
        paths: ["POST /x".to_owned(), "POST /y".to_owned()].into(),
        tokens: TOKENS.into(),
        connections: 2,
        duration: Duration::from_secs(20),
        rate: None,
        repeat: false,
    }
}

#[test]
fn each_buyer_has_one_attempt_and_answers_are_counted_by_outcome() {
    let attempts = generate(&load(server(Duration::ZERO))).unwrap();
    assert_eq!(attempts.outcomes(), [("ORDERED".into(), 2), ("SOLD_OUT".into(), 1)].into());
    let mut buyers: Vec<_> =
        attempts.list.iter().map(|attempt| (attempt.buyer, attempt.outcome)).collect();
    buyers.sort_by_key(|(buyer, _)| *buyer);
    assert_eq!(
        buyers,
        [(0, Outcome::Ordered(5)), (1, Outcome::Refused(0)), (2, Outcome::Ordered(5))]
    );
    assert!(attempts.list.iter().all(|attempt| attempt.path == attempt.buyer % 2), "in turn");
    assert!(attempts.duration < Duration::from_secs(20), "the load ends with its buyers");
}

#[test]
fn an_open_loop_counts_unsent_attempts_and_continues() {
    let duration = Duration::from_millis(500);
    let load = load(server(Duration::from_millis(50)));
    let load = Load { rate: Some(1_000.0), repeat: true, duration, ..load };
    let attempts = generate(&load).unwrap();
    let due = attempts.list.len() as u64 + attempts.not_sent;
    assert!((450..=500).contains(&due), "{due} of 500 fell due");
    // Two connections, 50 ms each: twenty answers or so.
    assert!((2..=22).contains(&attempts.list.len()), "{}", attempts.list.len());
}

#[test]
fn a_missing_answer_is_counted_as_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    thread::spawn(move || {
        // Each connection is closed after its first request.
        for stream in listener.incoming() {
            let mut request = [0; 1024];
            drop(stream.unwrap().read(&mut request));
        }
    });
    let attempts = generate(&load(target)).unwrap();
    assert_eq!(attempts.outcomes(), [("LOST".into(), 3)].into());
    assert_eq!(attempts.answers_per_s(), 0.0);
}
