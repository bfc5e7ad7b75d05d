//! Readers against a real HTTP server on a real socket.

use std::{
    convert::Infallible,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use http_body_util::Full;
use hyper::{Request, Response, body::Bytes, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;
use crate::reads::read_strategy::{ReadStrategy, read};

/// Answers every read of a shop with its id and, as its name, the policy asked for.
async fn server() -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(|request: Request<hyper::body::Incoming>| async move {
                let id = request.uri().path().rsplit('/').next().unwrap_or_default();
                let strategy = request.headers().get("x-lab-cache");
                let strategy = strategy.map_or("none", |strategy| strategy.to_str().unwrap());
                let body =
                    format!(r#"{{"success":true,"data":{{"id":{id},"name":"{strategy}"}}}}"#);
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(body))))
            });
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    target
}

const LIMIT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_burst_sends_one_read_on_each_connection_and_not_before_its_time() {
    let targets = [server().await, server().await];
    let mut readers = Readers::open(&targets, 200, LIMIT).await.unwrap();
    for round in 0..2 {
        readers.reopen().await.unwrap();
        let begin = Instant::now() + Duration::from_millis(20);
        let reads = readers.burst(7, &ReadStrategy::Mutex.read(7), begin).await.unwrap();
        assert_eq!((reads.len(), readers.len()), (400, 400), "round {round}");
        for target in 0..2 {
            assert_eq!(reads.iter().filter(|read| read.target == target).count(), 200);
        }
        for read in &reads {
            assert_eq!(read.answer, Answer::Found { id: 7, name: "mutex".into() });
            assert!(read.sent >= begin && read.latency() >= read.ended - read.sent);
        }
    }
}

/// Ids 0…n−1, one per millisecond where paced.
struct Ids {
    next: AtomicU64,
    end: u64,
    paced: Option<Instant>,
    reads: Mutex<Vec<Read>>,
}

impl Source for Ids {
    fn next(&self, _target: usize) -> Option<Job> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let due = self.paced.map(|begin| begin + Duration::from_millis(id));
        (id < self.end).then(|| Job { id, call: read(None, id), due })
    }

    fn ended(&self, read: Read) {
        self.reads.lock().unwrap().push(read);
    }
}

async fn drained(readers: &mut Readers, end: u64, paced: Option<Instant>) -> Vec<Read> {
    let ids = Ids { next: AtomicU64::new(0), end, paced, reads: Mutex::default() };
    let source = Arc::new(ids);
    readers.drain(&source).await.unwrap();
    let mut reads = std::mem::take(&mut *source.reads.lock().unwrap());
    reads.sort_by_key(|read| read.id);
    reads
}

#[tokio::test]
async fn a_source_is_drained_once_and_to_the_end() {
    let mut readers = Readers::open(&[server().await], 8, LIMIT).await.unwrap();
    let reads = drained(&mut readers, 500, None).await;
    let ids: Vec<_> = reads.iter().map(|read| read.id).collect();
    assert_eq!(ids, (0..500).collect::<Vec<_>>());
    assert!(reads.iter().all(|read| read.due == read.sent));
    assert_eq!(readers.len(), 8);
}

#[tokio::test]
async fn an_open_loop_counts_what_a_late_start_adds() {
    // One connection, all reads due in the past: each waits for those before it.
    let mut readers = Readers::open(&[server().await], 1, LIMIT).await.unwrap();
    let begin = Instant::now() - Duration::from_secs(2);
    let reads = drained(&mut readers, 100, Some(begin)).await;
    let latest = reads.iter().map(Read::latency).min().unwrap();
    assert!(latest >= Duration::from_millis(1800), "{latest:?}");

    let begin = Instant::now() + Duration::from_millis(50);
    let reads = drained(&mut readers, 20, Some(begin)).await;
    assert!(reads.iter().all(|read| read.sent >= read.due), "nothing is sent early");
}

#[tokio::test]
async fn a_dead_target_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target: Target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);
    let Err(error) = Readers::open(std::slice::from_ref(&target), 2, LIMIT).await else {
        panic!("opened")
    };
    assert!(error.to_string().contains(&target.to_string()), "{error}");
}
