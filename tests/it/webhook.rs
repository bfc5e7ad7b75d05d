//! Sign-in codes that are posted to a receiver: what it gets, and what a buyer is told when it fails.

use redis::AsyncCommands;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use testkit::certificates::Certificates;
use testkit::process::free_port;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::task::AbortOnDropHandle;

use crate::sign_in::login;
use crate::support::api::{self, Answer};
use crate::support::instance::Instance;
use crate::support::receiver::Receiver;
use crate::support::stack::Stack;
use crate::support::{PATIENCE, eventually};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const PHONE: &str = "13800000001";
/// Part of the log line for a code that could not be sent.
const NOT_SENT: &str = "a sign-in code could not be sent";

/// The arguments with which an instance posts codes to this receiver.
pub fn arguments<'a>(url: &'a str, timeout_ms: &'a str) -> Vec<&'a str> {
    let timeout = ["--code-webhook-timeout-ms", timeout_ms];
    [
        &["--code-webhook-url", url, "--code-webhook-secret", SECRET],
        &timeout[..],
    ]
    .concat()
}

async fn request_code(url: &str) -> Answer {
    api::post(url, &format!("/user/code?phone={PHONE}"))
        .send()
        .await
}

/// A TLS proxy in front of a receiver, until the handle is dropped. After that the listener is still there, and answers nothing.
async fn tls_before(
    receiver: SocketAddr,
    certificates: &Certificates,
) -> (Arc<TcpListener>, AbortOnDropHandle<()>) {
    let certificate = CertificateDer::from_pem_file(certificates.path("server.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(certificates.path("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
    let accepting = listener.clone();
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = accepting.accept().await.unwrap();
            // Clients that do not trust the certificate end the handshake.
            let Ok(mut secure) = acceptor.accept(stream).await else {
                continue;
            };
            let mut plain = TcpStream::connect(receiver).await.unwrap();
            tokio::io::copy_bidirectional(&mut secure, &mut plain)
                .await
                .ok();
        }
    });
    (listener, AbortOnDropHandle::new(serving))
}

fn code_in(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_code_is_posted_and_one_that_is_not_sent_costs_nothing() {
    let receiver = Receiver::start().await;
    let mut stack = Stack::start(1, &arguments(&receiver.url(), "20000")).await;

    request_code(stack.url()).await.data();
    let (headers, body) = receiver.since(0).remove(0);
    assert_eq!(headers["content-type"], "application/json");
    let first = code_in(&body);
    let wanted = json!({ "phone": PHONE, "code": first, "validSeconds": 120 });
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), wanted);

    // Refused: the earlier code stays valid, and no attempt counts for the phone, which may be sent three codes.
    for _ in 0..6 {
        receiver.will_answer([400]);
        request_code(stack.url()).await.refused(503, "UNAVAILABLE");
    }
    assert_eq!(receiver.count(), 7, "what is refused is not posted again");
    login(&stack, PHONE, &first).await.data();

    // Not sent: posted again, as the same message.
    receiver.will_answer([503, 429]);
    request_code(stack.url()).await.data();
    let attempts = receiver.since(7);
    assert_eq!(attempts.len(), 3);
    for (headers, body) in &attempts {
        let first = &attempts[0];
        assert_eq!(
            (&headers["webhook-id"], body),
            (&first.0["webhook-id"], &first.1)
        );
    }
    assert_ne!(attempts[0].0["webhook-id"], headers["webhook-id"]);
    login(&stack, PHONE, &code_in(&attempts[0].1)).await.data();

    // No answer: it may have been sent, so it is not posted again, and its code works.
    stack
        .add_instance(&arguments(&receiver.url(), "2000"))
        .await;
    receiver.will_answer([0]);
    let hasty = &stack.instances[1].url;
    let refused = request_code(hasty).await;
    refused.refused(503, "UNAVAILABLE");
    let [(_, body)] = &receiver.since(10)[..] else {
        panic!("posted again")
    };
    login(&stack, PHONE, &code_in(body)).await.data();

    let outcomes = [
        ("sent", [2, 0]),
        ("not_sent", [0, 0]),
        ("refused", [6, 0]),
        ("unknown", [0, 1]),
    ];
    for (outcome, counts) in outcomes {
        let name = format!("seckill_sign_in_codes_total{{outcome=\"{outcome}\"}}");
        for (url, count) in stack.urls().iter().zip(counts) {
            assert_eq!(api::metric(url, &name).await, count, "{outcome}");
        }
    }
    let log = stack.instances[0].log().join("\n");
    assert!(log.contains(NOT_SENT), "{log}");
    assert!(!log.contains(&first) && !log.contains(PHONE), "{log}");
}

#[tokio::test]
async fn codes_are_posted_64_at_a_time_and_although_the_client_hangs_up() {
    let receiver = Receiver::start().await;
    let stack = Stack::start(1, &arguments(&receiver.url(), "25000")).await;
    receiver.will_answer([0; 64]);
    let url = stack.url().to_owned();
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..64 {
        let path = format!("/user/code?phone={}", 13_900_000_000_u64 + n);
        let call = api::post(&url, &path);
        asking.spawn(call.send());
    }
    eventually("64 are being posted", async || receiver.count() == 64).await;
    request_code(stack.url()).await.refused(503, "UNAVAILABLE");
    assert_eq!(receiver.count(), 64);

    // All clients hang up; then the receiver answers.
    asking.shutdown().await;
    receiver.answer();
    let redis = stack.redis.conn().await;
    eventually("the codes are valid", async || {
        let keys: Vec<String> = redis.clone().keys("login:code:139*").await.unwrap();
        keys.len() == 64
    })
    .await;
    request_code(stack.url()).await.data();
}

#[tokio::test]
async fn the_receivers_status_says_that_a_code_is_sent_and_without_a_receiver_the_answer_is_503() {
    let port = free_port().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let url = format!("http://127.0.0.1:{port}");
    let mut stack = Stack::start(1, &arguments(&url, "20000")).await;
    // The receiver is slow with the rest of its reply. By its status it is known already that it has taken the code.
    let slow_answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        assert_ne!(stream.read(&mut request).await.unwrap(), 0);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n")
            .await
            .unwrap();
        stream
    };
    let (answer, stream) = tokio::join!(request_code(stack.url()), slow_answer);
    answer.data();
    drop((listener, stream));
    stack.add_instance(&arguments(&url, "1500")).await;
    request_code(&stack.instances[1].url)
        .await
        .refused(503, "UNAVAILABLE");

    // The receiver in `deploy/`, which checks the signature and the time.
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/code_receiver.py");
    let mut python = tokio::process::Command::new("python3");
    python
        .arg(program)
        .kill_on_drop(true)
        .stdout(Stdio::piped());
    python
        .env("CODE_WEBHOOK_SECRET", SECRET)
        .env("PORT", port.to_string());
    let mut python = python.stderr(Stdio::null()).spawn().expect("start python3");
    let mut lines = BufReader::new(python.stdout.take().unwrap()).lines();
    eventually("it listens", async || {
        TcpStream::connect(("127.0.0.1", port)).await.is_ok()
    })
    .await;
    request_code(stack.url()).await.data();
    let line = tokio::time::timeout(PATIENCE, lines.next_line())
        .await
        .expect("a line in time");
    let line = line.unwrap().expect("a line");
    let code = line
        .strip_prefix("To 13800000001: your code is ")
        .expect("the message");
    login(&stack, PHONE, code).await.data();
    // A request without a signature is not believed.
    let forged = api::post(&url, "/").json(json!({}));
    assert_eq!(forged.raw().await.0, 401);
}

#[tokio::test]
async fn by_https_a_code_goes_only_to_a_receiver_whose_certificate_is_trusted() {
    let receiver = Receiver::start().await;
    let trusted = Certificates::new();
    let untrusted = Certificates::new();
    let (listener, tls) = tls_before(receiver.address, &trusted).await;
    let url = format!("https://{}/sms", listener.local_addr().unwrap());
    let args = arguments(&url, "4000");
    let mut stack = Stack::start(0, &[]).await;
    let environment = |roots: PathBuf| {
        [
            stack.env(),
            vec![("SSL_CERT_FILE", roots.display().to_string())],
        ]
        .concat()
    };
    let trusting = environment(trusted.path("authority.crt"));
    let distrusting = environment(untrusted.path("authority.crt"));
    let without = environment(untrusted.path("nowhere.crt"));
    stack.add_instance_with(&args, &trusting).await;
    stack.add_instance_with(&args, &distrusting).await;
    let [first_url, second_url] = [
        stack.instances[0].url.clone(),
        stack.instances[1].url.clone(),
    ];
    // The reply may be here before the log's line.
    let warnings = async |instance: &Instance| -> Vec<String> {
        instance.wait_for_line(NOT_SENT).await;
        instance.lines_with(NOT_SENT)
    };

    request_code(&first_url).await.data();
    let [(_, body)] = &receiver.since(0)[..] else {
        panic!("one request")
    };
    login(&stack, PHONE, &code_in(body)).await.data();

    // Signed by another authority: one sentence that says so, and nothing is posted.
    request_code(&second_url).await.refused(503, "UNAVAILABLE");
    assert_eq!(receiver.count(), 1);
    let [warning] = &warnings(&stack.instances[1]).await[..] else {
        panic!("one line")
    };
    assert!(warning.contains("invalid peer certificate: "), "{warning}");

    // No answer to the handshake: nothing was sent.
    tls.abort();
    assert!(tls.await.unwrap_err().is_cancelled());
    request_code(&first_url).await.refused(503, "UNAVAILABLE");
    let [warning] = &warnings(&stack.instances[0]).await[..] else {
        panic!("one line")
    };
    assert!(warning.contains("connecting took too long"), "{warning}");
    for url in [&first_url, &second_url] {
        let not_sent = "seckill_sign_in_codes_total{outcome=\"not_sent\"}";
        assert_eq!(api::metric(url, not_sent).await, 1);
    }

    // No certificates to trust: no start.
    let serve = [&["serve", "--bind", "127.0.0.1:0"][..], &args].concat();
    let says = "CODE_WEBHOOK_URL (--code-webhook-url) needs root certificates: ";
    Instance::says(1, &serve, &without, says);
}
