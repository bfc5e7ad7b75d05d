//! The generator against tiny servers, one of which breaks its connections on purpose.

use std::net::{SocketAddr, TcpListener};
use std::thread;

use super::*;

/// Answers every request on every connection after `delay`, with an order.
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
                    let body = r#"{"success":true,"data":5,"orderId":"5"}"#;
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
        buyers: workload::sessions::buyers(1, 3).unwrap().into(),
        connections: 2,
        duration: Duration::from_secs(20),
        rate: None,
        repeat: false,
    }
}

#[test]
fn an_open_loop_counts_unsent_attempts_and_continues() {
    let duration = Duration::from_millis(500);
    let load = load(server(Duration::from_millis(50)));
    let load = Load { rate: Some(1_000.0), repeat: true, duration, ..load };
    let attempts = generate(&load).unwrap();
    let due = attempts.list.len() as u64 + attempts.not_sent;
    // Two connections, 50 ms each: twenty answers or so, fewer on a busy machine.
    assert!((1..=22).contains(&attempts.list.len()), "{}", attempts.list.len());
    assert!(due <= 500 && attempts.not_sent > 0, "{due} of 500 fell due");
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
