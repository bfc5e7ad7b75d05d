//! The client against real sockets: what each way of failing means, and what is reused.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use hyper::{Response as HyperResponse, body::Incoming, service::service_fn};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::*;

/// A server of raw bytes: each accepted connection is handed to `serve` with its number.
async fn server<F, Fut>(serve: F) -> (Target, Arc<AtomicUsize>)
where
    F: Fn(TcpStream, usize) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}/api", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = accepted.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, count.fetch_add(1, Ordering::SeqCst)));
        }
    });
    (target, accepted)
}

/// A server that answers every request with this text.
pub(crate) async fn http_server<F, Fut>(answer: F) -> (Target, Arc<AtomicUsize>)
where
    F: Fn(Request<Incoming>) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = String> + Send + 'static,
{
    server(move |stream, _| {
        let answer = answer.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let answering = answer(request);
            async move { Ok::<_, Infallible>(HyperResponse::new(answering.await)) }
        });
        async move {
            let http = hyper::server::conn::http1::Builder::new();
            http.serve_connection(TokioIo::new(stream), service)
                .await
                .ok();
        }
    })
    .await
}

async fn read_request(stream: &mut TcpStream) -> String {
    let mut buffer = vec![0; 4096];
    let length = stream.read(&mut buffer).await.unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

fn connection(target: &Target) -> Connection {
    Connection::new(target.clone(), Duration::from_millis(500))
}

#[tokio::test]
async fn one_connection_carries_many_requests_with_their_headers() {
    let (target, accepted) = http_server(|request| async move {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let token = &head.headers[AUTHORIZATION];
        format!(
            "{} {} {token:?} {}",
            head.method,
            head.uri,
            String::from_utf8_lossy(&body)
        )
    })
    .await;
    let mut connection = connection(&target);
    for i in 0..50 {
        let call = Call::post(format!("/x?i={i}"))
            .token(&HeaderValue::from_static("t0"))
            .json(&serde_json::json!({}));
        let response = connection.send(&call).await.unwrap();
        assert_eq!(response.status, 200);
        assert_eq!(response.body, format!(r#"POST /api/x?i={i} "t0" {{}}"#));
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn nobody_listening_is_definitely_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target: Target = format!("http://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    drop(listener);
    let failure = connection(&target)
        .send(&Call::new(Method::GET, "/"))
        .await
        .unwrap_err();
    assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
}

#[tokio::test]
async fn a_connection_cut_after_the_request_leaves_the_outcome_open() {
    let (target, accepted) = server(|mut stream, _| async move {
        read_request(&mut stream).await;
    })
    .await;
    let failure = connection(&target)
        .send(&Call::new(Method::POST, "/"))
        .await
        .unwrap_err();
    assert!(matches!(failure, Failure::Lost(_)), "{failure:?}");
    assert_eq!(
        accepted.load(Ordering::SeqCst),
        1,
        "the request was sent again"
    );
}

#[tokio::test]
async fn silence_is_a_time_out_and_the_next_request_gets_a_new_connection() {
    let (target, accepted) = server(|mut stream, number| async move {
        read_request(&mut stream).await;
        if number == 0 {
            // Holds the connection open until the client hangs up.
            let mut byte = [0; 1];
            assert_eq!(stream.read(&mut byte).await.unwrap(), 0);
        } else {
            stream
                .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                .await
                .unwrap();
        }
    })
    .await;
    let mut connection = connection(&target);
    let failure = connection
        .send(&Call::new(Method::POST, "/"))
        .await
        .unwrap_err();
    assert!(matches!(failure, Failure::TimedOut), "{failure:?}");
    assert_eq!(
        connection
            .send(&Call::new(Method::POST, "/"))
            .await
            .unwrap()
            .status,
        204
    );
    assert_eq!(accepted.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_connection_closed_while_idle_is_replaced() {
    let (target, accepted) = server(|mut stream, _| async move {
        read_request(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
            .await
            .unwrap();
    })
    .await;
    let mut connection = connection(&target);
    for _ in 0..3 {
        assert_eq!(
            connection
                .send(&Call::new(Method::POST, "/"))
                .await
                .unwrap()
                .status,
            204
        );
        // Until the client has seen the server's end of the connection.
        while connection
            .link
            .as_ref()
            .is_some_and(|link| !link.sender.is_closed())
        {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 3);
}
