//! Sign-in codes that are posted to a receiver: what it gets, and what a buyer is told when it fails.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, Mac};
use redis::AsyncCommands;
use serde_json::{Value, json};
use sha2::Sha256;
use testkit::wait::eventually;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::support::api::{self, Answer};
use crate::support::stack::Stack;

const LIMIT: Duration = Duration::from_secs(20);
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const PHONE: &str = "13800000001";

/// A receiver that keeps what it gets. It answers with the given statuses in turn, then with 204; 0 is an answer that
/// waits until [`Receiver::answer`] is called.
struct Receiver {
    url: String,
    got: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    statuses: Arc<Mutex<VecDeque<u16>>>,
    open: watch::Sender<bool>,
    _serving: AbortOnDropHandle<()>,
}

impl Receiver {
    async fn start() -> Self {
        let got = Arc::<Mutex<Vec<_>>>::default();
        let statuses = Arc::<Mutex<VecDeque<u16>>>::default();
        let (open, wait) = watch::channel(false);
        let (kept, next) = (got.clone(), statuses.clone());
        let receive = async move |headers: HeaderMap, body: Bytes| {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push((headers, body));
            let status = next.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            if status == Some(0) {
                wait.clone().wait_for(|open| *open).await.unwrap();
            }
            StatusCode::from_u16(status.filter(|status| *status > 0).unwrap_or(204)).unwrap()
        };
        let router = Router::new().route("/sms", post(receive));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/sms", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Receiver { url, got, statuses, open, _serving: AbortOnDropHandle::new(serving) }
    }

    fn will_answer(&self, statuses: impl IntoIterator<Item = u16>) {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner).extend(statuses);
    }

    fn answer(&self) {
        self.open.send_replace(true);
    }

    fn count(&self) -> usize {
        self.got.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// What it got since `from`.
    fn since(&self, from: usize) -> Vec<(HeaderMap, Bytes)> {
        self.got.lock().unwrap_or_else(PoisonError::into_inner)[from..].to_vec()
    }
}

/// An instance that posts codes to this address.
async fn posting_to(url: &str, timeout_ms: &str) -> Stack {
    let args = ["--code-sender", "webhook", "--code-webhook-url", url];
    let more = ["--code-webhook-secret", SECRET, "--code-webhook-timeout-ms", timeout_ms];
    Stack::start(1, &[args, more].concat()).await
}

async fn ask(stack: &Stack, phone: &str) -> Answer {
    api::post(stack.url(), &format!("/user/code?phone={phone}")).send().await
}

async fn signs_in(stack: &Stack, phone: &str, code: &str) -> bool {
    let login = json!({ "phone": phone, "code": code });
    api::post(stack.url(), "/user/login").json(login).send().await.body["success"] == true
}

fn code_in(body: &Bytes) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_code_is_posted_signed_and_one_that_is_not_sent_costs_nothing() {
    let receiver = Receiver::start().await;
    let stack = posting_to(&receiver.url, "1500").await;

    ask(&stack, PHONE).await.data();
    let (headers, body) = receiver.since(0).remove(0);
    let text = |name: &str| headers[name].to_str().unwrap();
    assert_eq!(text("content-type"), "application/json");
    let key = BASE64.decode(SECRET.trim_start_matches("whsec_")).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{}.{}.", text("webhook-id"), text("webhook-timestamp")).as_bytes());
    mac.update(&body);
    let signature = BASE64.encode(mac.finalize().into_bytes());
    assert_eq!(text("webhook-signature"), format!("v1,{signature}"));
    let seconds: i64 = text("webhook-timestamp").parse().unwrap();
    assert!((chrono::Utc::now().timestamp() - seconds).abs() < 60, "{seconds}");
    let first = code_in(&body);
    let wanted = json!({ "phone": PHONE, "code": first, "validSeconds": 120 });
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), wanted);

    // Refused: the earlier code stays valid, and no attempt counts for the phone, which may have five.
    for _ in 0..6 {
        receiver.will_answer([400]);
        ask(&stack, PHONE).await.refused(503, "UNAVAILABLE");
    }
    assert_eq!(receiver.count(), 7, "what is refused is not posted again");
    assert!(signs_in(&stack, PHONE, &first).await);

    // Not sent: posted again, as the same message.
    receiver.will_answer([503, 429]);
    ask(&stack, PHONE).await.data();
    let attempts = receiver.since(7);
    assert_eq!(attempts.len(), 3);
    for (headers, body) in &attempts {
        let first = &attempts[0];
        assert_eq!((&headers["webhook-id"], body), (&first.0["webhook-id"], &first.1));
    }
    assert_ne!(attempts[0].0["webhook-id"], headers["webhook-id"]);
    assert!(signs_in(&stack, PHONE, &code_in(&attempts[0].1)).await);

    // No answer: it may have been sent, so it is not posted again, and its code works.
    receiver.will_answer([0]);
    let refused = ask(&stack, PHONE).await;
    refused.refused(503, "UNAVAILABLE");
    assert!(refused.headers.contains_key("retry-after"));
    let [(_, body)] = &receiver.since(10)[..] else { panic!("posted again") };
    assert!(signs_in(&stack, PHONE, &code_in(body)).await);

    let metrics = api::get(stack.url(), "/metrics").text().await;
    for (outcome, count) in [("sent", 2), ("not_sent", 0), ("refused", 6), ("unknown", 1)] {
        let line = format!("seckill_sign_in_codes_total{{outcome=\"{outcome}\"}} {count}");
        assert!(metrics.contains(&line), "{line}");
    }
    let log = stack.instances[0].log().join("\n");
    assert!(log.contains("a sign-in code could not be sent"), "{log}");
    assert!(!log.contains(&first) && !log.contains(PHONE), "{log}");
}

#[tokio::test]
async fn codes_are_posted_64_at_a_time_and_although_the_client_hangs_up() {
    let receiver = Receiver::start().await;
    let stack = posting_to(&receiver.url, "25000").await;
    receiver.will_answer([0; 64]);
    let url = stack.url().to_owned();
    let path = |n: usize| format!("/user/code?phone={}", 13_900_000_000 + n);
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..64 {
        let call = api::post(&url, &path(n));
        asking.spawn(async move { call.try_send().await });
    }
    eventually("64 are being posted", LIMIT, async || receiver.count() == 64).await;
    ask(&stack, PHONE).await.refused(503, "UNAVAILABLE");
    assert_eq!(receiver.count(), 64);

    // All clients hang up; then the receiver answers.
    asking.shutdown().await;
    receiver.answer();
    let redis = stack.redis.conn().await;
    eventually("the codes are valid", LIMIT, async || {
        let keys: Vec<String> = redis.clone().keys("login:code:139*").await.unwrap();
        keys.len() == 64
    })
    .await;
    ask(&stack, PHONE).await.data();
}

#[tokio::test]
async fn a_receiver_that_cannot_be_reached_is_told_as_503_and_the_documented_one_works() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let stack = posting_to(&format!("http://127.0.0.1:{port}"), "5000").await;
    ask(&stack, PHONE).await.refused(503, "UNAVAILABLE");

    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/SIGN_IN.md"));
    let page = page.unwrap();
    let program = page.split("```python\n").nth(1).and_then(|rest| rest.split("```").next());
    let mut python = tokio::process::Command::new("python3");
    python.args(["-c", program.expect("the program")]).kill_on_drop(true).stdout(Stdio::piped());
    python.env("CODE_WEBHOOK_SECRET", SECRET).env("PORT", port.to_string());
    let mut python = python.stderr(Stdio::null()).spawn().expect("start python3");
    let mut lines = BufReader::new(python.stdout.take().unwrap()).lines();
    eventually("it listens", LIMIT, async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
    })
    .await;
    ask(&stack, PHONE).await.data();
    let line = tokio::time::timeout(LIMIT, lines.next_line()).await.expect("a line in time");
    let line = line.unwrap().expect("a line");
    let code = line.strip_prefix("To 13800000001: your code is ").expect("the message");
    assert!(signs_in(&stack, PHONE, code).await);
    // Another secret: the request is not believed.
    let forged = api::post(&format!("http://127.0.0.1:{port}"), "/").json(json!({}));
    assert_eq!(forged.raw().await.0, 401);
}
