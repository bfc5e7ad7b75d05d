//! The client against servers of a few lines, one of which is wrong on purpose.

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

fn volley(targets: &[SocketAddr]) -> Volley<'_> {
    Volley {
        targets,
        path: "/x",
        tokens: &TOKENS,
        connections: 2,
        lasting: Duration::from_secs(20),
        rate: None,
        again: false,
    }
}

#[test]
fn each_buyer_has_one_try_and_each_answer_is_counted_for_what_it_is() {
    let fired = fire(&volley(&[server(Duration::ZERO)])).unwrap();
    assert_eq!(fired.outcomes(), [("ORDERED".into(), 2), ("SOLD_OUT".into(), 1)].into());
    let mut buyers: Vec<_> = fired.shots.iter().map(|shot| (shot.buyer, shot.end)).collect();
    buyers.sort_by_key(|(buyer, _)| *buyer);
    assert_eq!(buyers, [(0, End::Ordered(5)), (1, End::Refused(0)), (2, End::Ordered(5))]);
    assert!(fired.lasted < Duration::from_secs(20), "the volley ends with its buyers");
}

#[test]
fn an_open_loop_counts_what_it_could_not_send_and_goes_on() {
    let lasting = Duration::from_millis(500);
    let targets = [server(Duration::from_millis(50))];
    let fired =
        fire(&Volley { rate: Some(1_000.0), again: true, lasting, ..volley(&targets) }).unwrap();
    let due = fired.shots.len() as u64 + fired.not_sent;
    assert!((450..=500).contains(&due), "{due} of 500 fell due");
    // Two connections, 50 ms each: twenty answers or so.
    assert!((2..=22).contains(&fired.shots.len()), "{}", fired.shots.len());
}

#[test]
fn an_answer_that_does_not_come_is_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let targets = [listener.local_addr().unwrap()];
    thread::spawn(move || {
        // Each connection is closed after its first request.
        for stream in listener.incoming() {
            let mut request = [0; 1024];
            drop(stream.unwrap().read(&mut request));
        }
    });
    let fired = fire(&volley(&targets)).unwrap();
    assert_eq!(fired.outcomes(), [("LOST".into(), 3)].into());
    assert_eq!(fired.answers_per_s(), 0.0);
}
