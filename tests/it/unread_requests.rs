//! Clients that send slowly, too much, or a body that nobody reads: what they cost, and that each reply reaches its client
//! whole, even if it was made before the request was read. Requests are sent as bytes, to an instance itself and through the
//! shipped nginx.

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::api::{get, metric, post};
use crate::support::nginx::Nginx;
use crate::support::receiver::serve;
use crate::support::stack::{Stack, buy};
use crate::support::{PATIENCE, eventually};

async fn connect(url: &str) -> TcpStream {
    let address = url.trim_start_matches("http://");
    TcpStream::connect(address).await.expect("a connection")
}

/// All that is sent back, up to the connection's end, which must not be a reset.
async fn read_until_end(stream: &mut TcpStream) -> String {
    let mut reply = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut reply)).await;
    let text = String::from_utf8_lossy(&reply).into_owned();
    read.expect("an end in time")
        .unwrap_or_else(|error| panic!("{error} after: {text}"));
    text
}

/// A request with a JSON body of this length, of which `sent` bytes follow.
fn unfinished(path: &str, headers: &str, length: usize, sent: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}\
         content-length: {length}\r\n\r\n{}",
        " ".repeat(sent)
    )
}

/// By how much the process grows per connection, at the peak of some looks, while these bytes are sent on `connections`
/// connections and nothing after them.
async fn memory_per_connection(url: &str, connections: usize, bytes: &str) -> u64 {
    let memory = async || metric(url, "process_resident_memory_bytes").await;
    let before = memory().await;
    let clients = join_all((0..connections).map(|_| connect(url))).await;
    let mut sending = tokio::task::JoinSet::new();
    for mut client in clients {
        let bytes = bytes.to_owned();
        sending.spawn(async move {
            // If it is too much, it is refused in the middle, and the write fails.
            client.write_all(bytes.as_bytes()).await.ok();
            client
        });
    }
    let clients = sending.join_all().await;
    let mut peak = before;
    for _ in 0..30 {
        peak = peak.max(memory().await);
    }
    drop(clients);
    (peak - before) / connections as u64
}

/// With this, an instance that has 512 MiB bears 10,000 connections. Half of it is what the process needs anyway when it is
/// first at work.
const MOST_PER_CONNECTION: u64 = 40 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_requests_without_a_session_take_little_memory() {
    // Memory that was freed is used again, so each kind has an instance.
    let stack = Stack::start(5, &[]).await;
    let mut urls = stack.urls().into_iter();
    let head = format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {}", "a".repeat(8_000));
    let long_head = format!(
        "GET / HTTP/1.1\r\nhost: x\r\nx-long: {}",
        "a".repeat(300_000)
    );
    let mut peak = 0;
    for (what, bytes) in [
        ("a head", head),
        ("a long head", long_head),
        ("a short body", unfinished("/user/login", "", 2_000, 1_990)),
        ("a body", unfinished("/user/login", "", 65_000, 64_000)),
        (
            "a body of unknown length",
            format!(
                "POST /user/code HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\n\
                 transfer-encoding: chunked\r\n\r\nffff\r\n{}",
                "a".repeat(60_000)
            ),
        ),
    ] {
        let bytes = memory_per_connection(&urls.next().expect("one of five"), 1_200, &bytes).await;
        println!("{what} that is not finished: {bytes} bytes");
        peak = peak.max(bytes);
    }
    assert!(peak < MOST_PER_CONNECTION, "{peak} bytes a connection");
}

/// A request that is larger than its route takes is refused, by the length that it declares, or once too much has arrived. Admin
/// writes may be larger.
#[tokio::test]
async fn heads_and_bodies_have_bounds_by_route() {
    let stack = Stack::start(1, &[]).await;
    for (length, status) in [(7_900, "HTTP/1.1 200 "), (8_300, "HTTP/1.1 431 ")] {
        let head = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-long: ";
        let long = "a".repeat(length - head.len() - 4);
        let mut client = connect(stack.url()).await;
        let head = format!("{head}{long}\r\n\r\n");
        client.write_all(head.as_bytes()).await.expect("sent");
        let reply = read_until_end(&mut client).await;
        assert!(reply.starts_with(status), "{length} bytes: {reply}");
    }

    let user = &stack.users(1).await[0];
    let padded = |length: usize| format!("{{\"voucherId\":1}}{}", " ".repeat(length - 15));
    let kind = "application/json";
    for path in ["/voucher-order/seckill", "/user/login"] {
        let sent = async |length| {
            let call = post(stack.url(), path).token(&user.token);
            call.body(kind, padded(length)).send().await
        };
        assert_eq!(sent(2_048).await.status, 200, "{path}");
        sent(2_049).await.refused(413, "PAYLOAD_TOO_LARGE");
    }
    for length in [2_100, 3_000, 70_000] {
        let form = format!("phone={}", "1".repeat(length - 6));
        let form = post(stack.url(), "/user/code").body("application/x-www-form-urlencoded", form);
        form.send().await.refused(413, "PAYLOAD_TOO_LARGE");
    }
    let sent = async |length| {
        let call = post(stack.url(), "/voucher").admin();
        call.body(kind, padded(length)).send().await
    };
    sent(65_536).await.refused(400, "INVALID_PARAMETER");
    sent(65_537).await.refused(413, "PAYLOAD_TOO_LARGE");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_does_not_arrive_holds_no_permit_and_not_for_long() {
    let stack = Stack::start(1, &["--max-purchases", "1"]).await;
    let sale = stack.publish(100, "row-lock").await;
    let users = stack.users(9).await;
    let token = format!("authorization: {}\r\n", users[0].token);
    let mut slow = Vec::new();
    for path in ["/voucher-order/seckill", "/user/login", "/user/code"] {
        let mut head = unfinished(path, &token, 20, 0);
        if path == "/user/code" {
            head = head.replace("application/json", "application/x-www-form-urlencoded");
        }
        let mut client = connect(stack.url()).await;
        client.write_all(head.as_bytes()).await.expect("sent");
        client.write_all(b"{\"vou").await.expect("sent");
        slow.push((path, client));
    }
    for user in &users[1..] {
        buy(stack.url(), user, sale).await.bought();
    }
    for (path, mut client) in slow {
        let reply = read_until_end(&mut client).await;
        assert!(
            reply.starts_with("HTTP/1.1 408 ") && reply.contains("REQUEST_TIMEOUT"),
            "{path}: {reply}"
        );
    }
}

/// The reply is read whole, although the client goes on to send a long body.
#[tokio::test]
async fn a_reply_before_the_body_was_read_reaches_its_client() {
    let stack = Stack::start(1, &[]).await;
    let length = 4 << 20;
    let part = vec![b' '; 1 << 16];
    let chunk = [&b"10000\r\n"[..], &part, b"\r\n"].concat();
    let chunked = "POST /no/such/route HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    for (path, head, part, end) in [
        ("/no/such/route", None, &part, ""),
        ("/voucher-order/seckill/1", None, &part, ""),
        ("/user/login", None, &part, ""),
        ("of unknown length", Some(chunked), &chunk, "0\r\n\r\n"),
    ] {
        let (mut reader, mut writer) = connect(stack.url()).await.into_split();
        let head = head.map_or_else(|| unfinished(path, "", length, 0), str::to_owned);
        writer.write_all(head.as_bytes()).await.expect("sent");
        let part = part.clone();
        let sending = tokio::spawn(async move {
            for _ in 0..length >> 16 {
                writer.write_all(&part).await?;
            }
            writer.write_all(end.as_bytes()).await?;
            Ok::<_, std::io::Error>(())
        });
        let sent = timeout(PATIENCE, sending).await.expect("in time");
        sent.unwrap()
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut reply = Vec::new();
        let end = timeout(PATIENCE, reader.read_to_end(&mut reply)).await;
        let text = String::from_utf8_lossy(&reply).into_owned();
        end.expect("in time")
            .unwrap_or_else(|error| panic!("{path}: {error} after: {text}"));
        assert!(
            text.contains("connection: close") && text.ends_with('}'),
            "{path}: {text}"
        );
    }
}

/// A short body that nobody reads costs no connection: many clients send one with every request.
#[tokio::test]
async fn a_connection_is_used_again_after_a_short_body_that_nobody_read() {
    let stack = Stack::start(1, &[]).await;
    let mut client = connect(stack.url()).await;
    for (path, length) in [
        ("/voucher-order/seckill/1", 2),
        ("/voucher", 2_000),
        ("/no/such/route", 60_000),
        ("/shop/1", 2),
    ] {
        let request = unfinished(path, "", length, length);
        client.write_all(request.as_bytes()).await.expect("sent");
        let mut reply = String::new();
        // Up to the end of the envelope.
        while !reply.ends_with('}') {
            let mut bytes = [0; 1024];
            let read = timeout(PATIENCE, client.read(&mut bytes)).await;
            let read = read.expect("in time").expect("no reset");
            assert!(read > 0, "{path}: closed after: {reply}");
            reply += &String::from_utf8_lossy(&bytes[..read]);
        }
        assert!(!reply.contains("connection: close"), "{path}: {reply}");
    }
}

/// Requests whose body is not read before the answer, with the statuses that it may have. They are sent without a session. The
/// last is the upload of a photo by the original front-end.
const EARLY: [(&str, &str, &[u16]); 8] = [
    ("POST", "/api/voucher-order/seckill/1", &[401]),
    ("POST", "/api/voucher-order/1/pay", &[401]),
    ("POST", "/api/user/logout", &[401]),
    ("POST", "/api/voucher", &[403]),
    ("POST", "/api/no/such/route", &[404]),
    ("PUT", "/api/shop-type/list", &[405]),
    ("POST", "/api/user/login", &[413, 400]),
    ("POST", "/api/upload/blog", &[404]),
];

/// Sends each request of `early` several times at once, all from one address, and asserts its answer, while others read from
/// another address.
async fn assert_nobody_is_harmed(nginx: &Nginx, early: &[(&str, &str, &[u16])]) {
    let request = |method: &str, path: &str| {
        let length = if path.ends_with("/upload/blog") {
            1_500_000
        } else {
            20_000
        };
        format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{}",
            " ".repeat(length)
        )
    };
    let strangers = (0..40 / early.len())
        .flat_map(|_| early)
        .map(|(method, path, status)| {
            let request = request(method, path);
            async move {
                let reply = nginx.send_from("127.0.0.9", &request).await;
                assert!(status.contains(&reply.status), "{method} {path}: {reply:?}");
            }
        });
    let visitors = (0..40).map(|_| async {
        let reply = nginx.request("GET", "/api/shop-type/list", "").await;
        assert_eq!(reply.status, 200, "a visitor: {reply:?}");
    });
    tokio::join!(join_all(strangers), join_all(visitors));
    let log = nginx.log_end();
    assert!(!log.contains("upstream"), "nginx counts failures: {log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_before_the_body_was_read_are_no_failures_to_nginx() {
    let mut stack = Stack::start(1, &[]).await;
    let limits = ["--unlimited-clients", "", "--per-address-per-second", "1"];
    stack.add_instance(&limits).await;
    stack.add_instance(&["--max-purchases", "1"]).await;
    let [plain, limited, busy] = [0, 1, 2].map(|index| stack.instances[index].url.clone());
    let nginx = Nginx::before([plain.as_str(); 2]).await;
    assert_nobody_is_harmed(&nginx, &EARLY).await;

    // Beside a Java node an upload goes there, and is taken.
    let taken = async |body: axum::body::Bytes| body.len().to_string();
    let (java, _serving) = serve(axum::Router::new().fallback(taken)).await;
    let address = plain.trim_start_matches("http://").to_owned();
    let values = [("NGX_SECKILL", address), ("NGX_JAVA", java.to_string())];
    let nginx = Nginx::start("nginx-mixed.conf", &values).await;
    let ours = EARLY.map(|(method, path, status)| match path {
        "/api/upload/blog" => (method, path, &[200][..]),
        // nginx may send a purchase to either node, so a path is asked for that goes to ours.
        "/api/voucher-order/seckill/1" => (method, "/api/voucher-order/seckill/1/x", &[404][..]),
        _ => (method, path, status),
    });
    assert_nobody_is_harmed(&nginx, &ours).await;

    // A purchase that is refused because of its address's rate.
    let nginx = Nginx::before([limited.as_str(); 2]).await;
    let path = "/api/voucher-order/seckill/1";
    eventually("the address is over its rate", async || {
        nginx
            .request_from("127.0.0.9", "POST", path, "")
            .await
            .status
            == 429
    })
    .await;
    assert_nobody_is_harmed(&nginx, &[("POST", path, &[429, 401])]).await;

    // A purchase that is refused because of load: the only permit is taken.
    let sale = stack.publish(5, "row-lock").await;
    let user = stack.users(1).await.remove(0);
    let row = stack.lock_sale(sale).await;
    let holder = tokio::spawn({
        let busy = busy.clone();
        let user = user.clone();
        async move { buy(&busy, &user, sale).await }
    });
    eventually("the permit is taken", async || {
        metric(&busy, "seckill_purchases_in_flight").await == 1
    })
    .await;
    let nginx = Nginx::before([busy.as_str(); 2]).await;
    assert_nobody_is_harmed(&nginx, &[("POST", path, &[503])]).await;
    row.rollback().await.expect("unlocked");
    holder.await.expect("an answer").bought();
    get(&busy, "/health/ready").send().await;
}
