//! Clients that send slowly, too much, or what nobody reads: what they cost, and that a reply reaches its client whole, also
//! one that is made before the request was read. Sent as bytes, to an instance itself and through the shipped nginx.

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::api::{get, metric};
use crate::support::nginx::Nginx;
use crate::support::receiver::serve;
use crate::support::stack::{Stack, buy};
use crate::support::{PATIENCE, eventually};

async fn connect(url: &str) -> TcpStream {
    let address = url.trim_start_matches("http://");
    TcpStream::connect(address).await.expect("a connection")
}

/// A request with a JSON body of this length, of which `sent` bytes follow.
fn unfinished(path: &str, headers: &str, length: usize, sent: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}\
         content-length: {length}\r\n\r\n{}",
        " ".repeat(sent)
    )
}

/// The whole reply of a request that is answered early, although its body goes on for long.
#[tokio::test]
async fn a_reply_before_the_body_was_read_reaches_its_client() {
    let stack = Stack::start(1, &[]).await;
    for path in ["/no/such/route", "/voucher-order/seckill/1", "/user/login"] {
        let (mut reader, mut writer) = connect(stack.url()).await.into_split();
        let length = 4 << 20;
        let head = unfinished(path, "", length, 0);
        writer.write_all(head.as_bytes()).await.expect("sent");
        let sending = tokio::spawn(async move {
            let part = vec![b' '; 1 << 16];
            for _ in 0..length / part.len() {
                writer.write_all(&part).await?;
            }
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

/// Requests with a body that are answered before it is read, with the status of the answer; to be sent by nobody who is signed
/// in. The last is a photo, which the original front-end sends.
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

/// Sends each of `early` several times at once, from an address of its own, and asserts its answer, while others read.
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
    let [one, limited, busy] = [0, 1, 2].map(|at| stack.instances[at].url.clone());
    let nginx = Nginx::before([one.as_str(); 2]).await;
    assert_nobody_is_harmed(&nginx, &EARLY).await;

    // An upload to a Java node's place is taken by it.
    let taken = async |body: axum::body::Bytes| body.len().to_string();
    let (java, _serving) = serve(axum::Router::new().fallback(taken)).await;
    let address = one.trim_start_matches("http://").to_owned();
    let values = [("NGX_SECKILL", address), ("NGX_JAVA", java.to_string())];
    let nginx = Nginx::start("nginx-mixed.conf", &values).await;
    let ours = EARLY.map(|(method, path, status)| match path {
        "/api/upload/blog" => (method, path, &[200][..]),
        // Where a purchase goes is up to nginx.
        "/api/voucher-order/seckill/1" => (method, "/api/voucher-order/seckill/1/x", &[404][..]),
        _ => (method, path, status),
    });
    assert_nobody_is_harmed(&nginx, &ours).await;

    // One that is refused for its address's rate.
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

    // And for load: the only permit is taken.
    let sale = stack.publish(5, "row-lock").await;
    let user = stack.users(1).await.remove(0);
    let row = stack.lock_sale(sale).await;
    let holder = tokio::spawn({
        let (busy, user) = (busy.clone(), user.clone());
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
