//! The shipped nginx configurations, run by a real nginx in front of small HTTP servers: what is public, nginx's own
//! errors, and which kind of node gets which request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::header::CONNECTION;
use axum::http::{Method, Uri};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::support::api::Answer;
use crate::support::instance::Instance;
use crate::support::lab::Lab;
use crate::support::nginx::Nginx;
use crate::support::receiver::serve;
use crate::support::stack::Stack;
use crate::support::{read, until_refused};

/// An HTTP server that answers every request with its name and what was asked for, until the handle is dropped.
async fn upstream(name: &'static str) -> (String, AbortOnDropHandle<()>) {
    // Connections are closed after each answer, so that none is left when the server ends.
    let answer = async move |method: Method, uri: Uri| {
        ([(CONNECTION, "close")], format!("{name} {method} {uri}"))
    };
    let (address, serving) = serve(Router::new().fallback(answer)).await;
    (address.to_string(), serving)
}

/// Asserts that it is a reply of nginx itself, which has one id, as every reply.
fn refused_by_nginx(answer: &Answer, status: u16, code: &str) {
    answer.refused(status, code);
    let ids = answer.headers.get_all("x-request-id").iter();
    assert_eq!(ids.count(), 1, "{answer:?}");
}

#[tokio::test]
async fn metrics_are_not_public_and_nginxs_own_errors_are_in_the_envelope() {
    let (address, serving) = upstream("node").await;
    let nginx = Nginx::before([address.as_str(); 2]).await;
    for path in [
        "/metrics",
        "/metrics/",
        "/metrics?x=1",
        "/api/metrics",
        "/api//metrics",
        "//metrics",
        "/%6detrics",
        "/shop/../metrics",
    ] {
        let answer = nginx.request("GET", path, "").await;
        refused_by_nginx(&answer, 404, "NOT_FOUND");
    }
    for (path, passed) in [
        ("/shop/1", "/shop/1"),
        ("/api/shop/1?x=%20", "/shop/1?x=%20"),
        ("/api/health/ready", "/health/ready"),
        ("/docs/", "/docs/"),
        ("/api/docs/openapi.json", "/docs/openapi.json"),
    ] {
        let reply = nginx.request("GET", path, "").await;
        assert_eq!(
            (reply.status, &reply.body),
            (200, &json!(format!("node GET {passed}")))
        );
    }

    let send = async |request: String| nginx.send_from("127.0.0.1", &request).await;
    let long = "a".repeat(40_000);
    let answer = send(format!("GET /{long} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
    refused_by_nginx(&answer, 414, "URI_TOO_LONG");
    for bad in [
        format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {long}\r\n\r\n"),
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: many\r\n\r\n".to_owned(),
        "GET /%zz HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(),
        "GET /../.. HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(),
        "G?T / HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(),
    ] {
        let answer = send(bad).await;
        refused_by_nginx(&answer, 400, "BAD_REQUEST");
    }
    let trace = send("TRACE / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_owned()).await;
    refused_by_nginx(&trace, 405, "METHOD_NOT_ALLOWED");
    let large = "POST /user/login HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n";
    let answer = send(large.to_owned()).await;
    refused_by_nginx(&answer, 413, "PAYLOAD_TOO_LARGE");
    drop(serving);
    let answer = nginx.request("GET", "/shop/1", "").await;
    refused_by_nginx(&answer, 503, "UNAVAILABLE");
    let answer = nginx.request("POST", "/voucher-order/seckill/1", "").await;
    refused_by_nginx(&answer, 503, "OUTCOME_UNKNOWN");
}

/// The names of the nodes that answer. Asserts that they are asked for `passed`.
async fn answering_nodes(nginx: &Nginx, method: &str, path: &str, passed: &str) -> String {
    let mut nodes = std::collections::BTreeSet::new();
    for _ in 0..8 {
        let reply = nginx.request(method, path, "").await;
        let text = reply.body.as_str().expect("a text");
        let (node, request) = text.split_once(' ').expect("a name and a request");
        assert_eq!(
            (reply.status, request),
            (200, &*format!("{method} {passed}")),
            "{path}"
        );
        nodes.insert(node.to_owned());
    }
    Vec::from_iter(nodes).join(" ")
}

#[tokio::test]
async fn beside_a_java_node_each_route_goes_where_it_exists() {
    let (ours, _serving) = upstream("ours").await;
    let (java, serving_java) = upstream("java").await;
    let values = [("NGX_SECKILL", ours), ("NGX_JAVA", java.clone())];
    let nginx = Nginx::start("nginx-mixed.conf", &values).await;
    for (nodes, routes) in [
        (
            "java ours",
            &[
                "GET /user/me",
                "GET /user/7",
                "GET /shop/1",
                "GET /shop/of/type?typeId=1&current=2&x=120.1&y=30.2",
                "GET /shop/of/name?name=%E9%9D%A2",
                "GET /shop-type/list",
                "GET /voucher/list/1",
                "POST /voucher-order/seckill/7",
            ][..],
        ),
        (
            "ours",
            &[
                // Here the guesses at a code are limited, and it works once.
                "POST /user/code?phone=13800138000",
                "POST /user/login",
                "POST /user/login/",
                "POST /user/logout",
                "POST /voucher-order/seckill",
                "GET /voucher-order/62496928117555201",
                "GET /voucher-order/of/me",
                "POST /voucher-order/7/pay",
                "POST /voucher-order/7/cancel",
                "POST /voucher",
                "POST /voucher/seckill",
                "POST /voucher/seckill/7/stock",
                "POST /shop",
                "PUT /shop",
                "GET /health/ready",
                "GET /",
                "GET /assets/page.js",
                "GET /lab/about",
                "GET /learn",
                // What is on no list.
                "GET /no/such/route",
                "GET /actuator/env",
                "GET /user/sign",
                "POST /user/info/7",
                "POST /user/7",
                "PUT /blogs",
                "PUT /BLOG",
                // Writes that a Java node takes from anybody, in spellings that it or nginx may understand as such.
                "PUT /shop/",
                "PUT /SHOP",
                "PUT /shop.json",
                "POST /shop/1",
                "DELETE /shop/1",
                "PATCH /shop",
                "PUT /voucher",
                "POST /voucher/list/1",
                "POST /voucher/seckill/",
                "POST /voucher-order/seckill/7/",
                "PUT /shop;x",
                "PUT /shop/;x",
                "PUT /shop%3Bx => /shop;x",
                "POST /voucher;x/seckill",
                "POST /%76oucher%3bx/seckill => /voucher;x/seckill",
                "POST /voucher-order/seckill/7;x",
                "PUT /blog/..;/shop",
                "PUT /blog/..%3B/shop => /blog/..;/shop",
                "PUT /blog/%252e%252e/shop",
                "PUT /blog/..%5Cshop",
                "PUT /blog%0A",
                "PUT /shop%0A",
                "PUT /shop%20",
                "PUT /blog/../shop => /shop",
                "PUT /blog/%2e%2e/shop => /shop",
                "PUT /blog%2F..%2fshop => /shop",
                "PUT //blog/..//./shop => /shop",
            ],
        ),
        (
            "java",
            &[
                "GET /blog/hot?current=1",
                "POST /blog",
                "PUT /blog/like/23",
                "GET /blog-comments",
                "PUT /follow/2/true",
                "GET /follow/or/not/2",
                "POST /user/sign",
                "GET /user/sign/count",
                "GET /user/info/7",
                "POST /upload/blog",
                "GET /upload/blog/delete?name=%2e%2e;x",
                "POST /blog/",
                "GET //%62log/./hot?current=1 => /blog/hot?current=1",
                "GET /shop;x/../follow/2 => /follow/2",
            ],
        ),
    ] {
        for route in routes {
            let (method, path) = route.split_once(' ').expect("a method and a path");
            let (path, passed) = path.split_once(" => ").unwrap_or((path, path));
            for path in [path, &format!("/api{path}")] {
                let answering = answering_nodes(&nginx, method, path, passed).await;
                assert_eq!(answering, nodes, "{method} {path}");
            }
        }
    }
    for path in [
        "/metrics",
        "/api/metrics",
        "/docs/",
        "/api/docs/openapi.json",
    ] {
        let answer = nginx.request("GET", path, "").await;
        refused_by_nginx(&answer, 404, "NOT_FOUND");
    }
    // Routes that both nodes have are served while one node is away; a read that only this one could answer is refused.
    drop(serving_java);
    until_refused(&java).await;
    for _ in 0..8 {
        let reply = nginx.request("GET", "/api/shop/1", "").await;
        assert_eq!(
            (reply.status, &reply.body),
            (200, &json!("ours GET /shop/1")),
            "{}",
            nginx.log_end()
        );
        let path = "/voucher-order/seckill/7";
        let reply = nginx.request("POST", path, "").await;
        assert_eq!(
            (reply.status, &reply.body),
            (200, &json!(format!("ours POST {path}"))),
            "{}",
            nginx.log_end()
        );
    }
    let answer = nginx.request("GET", "/blog/hot", "").await;
    refused_by_nginx(&answer, 503, "UNAVAILABLE");
}

/// A node that reads each request, keeps its head, and closes the connection or answers 503.
struct FailingNode {
    address: String,
    heads: Arc<Mutex<Vec<String>>>,
    _serving: AbortOnDropHandle<()>,
}

impl FailingNode {
    async fn start(reply: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heads = Arc::<Mutex<Vec<_>>>::default();
        let received_heads = heads.clone();
        let serving = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") && client.read_buf(&mut head).await.unwrap() > 0
                {
                }
                let head = String::from_utf8(head).unwrap().to_lowercase();
                received_heads.lock().unwrap().push(head);
                client.write_all(reply.as_bytes()).await.unwrap();
            }
        });
        FailingNode {
            address,
            heads,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// The heads of the requests since the last call.
    fn take_heads(&self) -> Vec<String> {
        std::mem::take(&mut self.heads.lock().unwrap())
    }
}

/// The node may have done what it was asked for before it closed the connection or answered 503.
#[tokio::test]
async fn a_request_that_a_node_has_received_is_sent_again_only_if_it_is_a_read() {
    const AWAY: &str =
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    for reply in ["", AWAY] {
        let nodes = [
            FailingNode::start(reply).await,
            FailingNode::start(reply).await,
        ];
        let [first_address, second_address] = [&nodes[0].address, &nodes[1].address];
        let mixed = [
            ("NGX_SECKILL", first_address.clone()),
            ("NGX_JAVA", second_address.clone()),
        ];
        for nginx in [
            Nginx::before([first_address, second_address]).await,
            Nginx::start("nginx-mixed.conf", &mixed).await,
        ] {
            for (method, code) in [("POST", "OUTCOME_UNKNOWN"), ("GET", "UNAVAILABLE")] {
                let path = match method {
                    "POST" => "/api/voucher-order/seckill/7",
                    _ => "/api/shop/7",
                };
                let headers = "x-forwarded-for: 198.51.100.1\r\nx-request-id: abc-123\r\n";
                let answer = nginx.request(method, path, headers).await;
                let heads = nodes.iter().flat_map(FailingNode::take_heads);
                let heads: Vec<String> = heads.collect();
                let case = format!("{method}, answered `{reply}`: {answer:?}, {heads:?}");
                let sent = heads.len();
                if reply.is_empty() {
                    refused_by_nginx(&answer, 503, code);
                    assert_eq!(answer.headers["x-request-id"], "abc-123", "{case}");
                    assert_eq!(sent, if method == "POST" { 1 } else { 2 }, "{case}");
                } else {
                    assert_eq!(
                        (answer.status, answer.body.to_string()),
                        (503, "{}".to_owned()),
                        "{case}"
                    );
                    assert_eq!(sent, 1, "{case}");
                }
                // Only nginx says which client the request comes from.
                for head in heads {
                    assert!(
                        head.contains("\r\nx-forwarded-for: 127.0.0.1\r\n"),
                        "{case}"
                    );
                    assert!(head.contains("\r\nhost: test\r\n"), "{case}");
                }
            }
        }
    }
}

/// Like a node behind a firewall that drops what is sent to it.
#[tokio::test]
async fn a_node_that_accepts_no_connection_is_unreachable() {
    let socket = TcpSocket::new_v4().expect("a socket");
    let any_port = ([127, 0, 0, 1], 0).into();
    socket.bind(any_port).expect("a free port");
    let listener = socket.listen(0).expect("a listener");
    let address = listener.local_addr().expect("its address");
    // Fills the queue of the listener with connections that nobody accepts.
    let mut queued = Vec::new();
    let limit = Duration::from_secs(1);
    while let Ok(connected) = timeout(limit, TcpStream::connect(address)).await {
        queued.push(connected.expect("a connection"));
    }
    let address = address.to_string();
    let mixed = [
        ("NGX_SECKILL", address.clone()),
        ("NGX_JAVA", address.clone()),
    ];
    for nginx in [
        Nginx::before([&address; 2]).await,
        Nginx::start("nginx-mixed.conf", &mixed).await,
    ] {
        let answer = nginx.request("GET", "/api/shop/7", "").await;
        refused_by_nginx(&answer, 503, "UNAVAILABLE");
    }
}

#[tokio::test]
async fn a_browser_that_opens_an_address_gets_a_page_in_place_of_nginxs_own_errors() {
    let nobody = "127.0.0.1:1".to_owned();
    let mixed = [
        ("NGX_SECKILL", nobody.clone()),
        ("NGX_JAVA", nobody.clone()),
    ];
    let accept = "accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";
    for nginx in [
        Nginx::before([&nobody; 2]).await,
        Nginx::start("nginx-mixed.conf", &mixed).await,
    ] {
        for (path, status, file) in [
            ("/", 503, "unavailable.html"),
            ("/lab?x=1", 503, "unavailable.html"),
            ("/metrics", 404, "not-found.html"),
        ] {
            let page = nginx.request("GET", path, accept).await;
            let text = json!(read(&format!("web/{file}")));
            assert_eq!((page.status, &page.body), (status, &text), "{path}");
            assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
            assert_eq!(page.headers.get_all("x-request-id").iter().count(), 1);
            let answer = nginx.request("GET", path, "accept: */*\r\n").await;
            assert_eq!(answer.status, status, "{path}");
            assert!(answer.body["code"].is_string(), "{answer:?}");
        }
        let answer = nginx
            .request("POST", "/voucher-order/seckill/1", accept)
            .await;
        refused_by_nginx(&answer, 503, "OUTCOME_UNKNOWN");
    }
}

#[tokio::test]
async fn a_reply_has_its_requests_id() {
    let stack = Stack::start(1, &[]).await;
    let nginx = Nginx::before([stack.url(); 2]).await;
    let ids = async |headers: &str| {
        let reply = nginx.request("GET", "/api/health/live", headers).await;
        let ids = reply.headers.get_all("x-request-id").iter();
        ids.map(|id| id.to_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids("x-request-id: abc-123\r\n").await, ["abc-123"]);
    let [generated_id] = &ids("").await[..] else {
        panic!("not one id")
    };
    assert!(generated_id.parse::<u64>().is_ok(), "{generated_id}");
}

/// Instances that end by themselves are tested by a rolling restart, in [`crate::slow`]. The lab is a server of its own, but the
/// sign-in codes are shown by the service.
#[tokio::test]
async fn the_other_instance_is_tried_where_one_was_killed_and_the_lab_is_reached() {
    let mut stack = Stack::start(2, &["--lab"]).await;
    let lab = Lab::start(&stack, None).await;
    let instances = [0, 1].map(|index| stack.instances[index].url.as_str());
    let nginx = Nginx::with_lab(instances, &lab.url).await;
    let all_answered = async || {
        for _ in 0..8 {
            for (method, path, status) in [
                ("GET", "/lab", 200),
                ("GET", "/lab/about", 200),
                ("GET", "/api/lab/about", 200),
                ("GET", "/lab/code/13800138000", 200),
                ("GET", "/api/lab/code/13800138000", 200),
                ("POST", "/voucher-order/seckill/1", 401),
            ] {
                let reply = nginx.request(method, path, "").await;
                assert_eq!(reply.status, status, "{path}: {reply:?}");
                let is_code = path.contains("/code/");
                assert_eq!(
                    reply.body["code"] == "CODE_INVALID",
                    is_code,
                    "{path}: {reply:?}"
                );
            }
        }
    };
    all_answered().await;
    stack.instances[1].kill();
    all_answered().await;
}

/// A proxy that kept idle connections for longer than an ending instance does might send a purchase on a connection that is
/// being closed.
#[test]
fn the_shipped_proxies_close_idle_connections_before_the_service_does() {
    let (_, help) = Instance::run(&["serve", "--help"], &[]);
    let (_, idle) = help.split_once("DRAIN_IDLE_MS").expect("the setting");
    let (_, idle) = idle.split_once("[default: ").expect("its default");
    let idle: u64 = idle
        .split_once(']')
        .expect("its end")
        .0
        .parse()
        .expect("milliseconds");
    for file in ["nginx.conf", "nginx-mixed.conf"] {
        let text = read(&format!("deploy/{file}"));
        let upstreams: Vec<&str> = text.split("\n    upstream ").skip(1).collect();
        assert!(!upstreams.is_empty(), "{file}");
        for upstream in upstreams {
            let (upstream, _) = upstream.split_once("\n    }").expect("its end");
            let (_, kept) = upstream.split_once(" keepalive_timeout ").expect(upstream);
            let kept: u64 = kept
                .split_once("s;")
                .expect(upstream)
                .0
                .parse()
                .expect("seconds");
            assert!(kept * 1000 < idle, "{file}: {upstream}");
        }
    }
}
