//! The driver against a real HTTP server on a real socket.

use std::sync::Mutex;

use hyper::{Request, body::Incoming};
use tokio::time::sleep;

use super::*;
use crate::http::tests::http_server;

const LIMIT: Duration = Duration::from_secs(5);

/// Answers every request with its path, after this time.
async fn server(after: Duration) -> Target {
    let (target, _) = http_server(move |request: Request<Incoming>| async move {
        sleep(after).await;
        request.uri().path().to_owned()
    })
    .await;
    target
}

type Finished = Arc<Mutex<Vec<Done<u64>>>>;

/// Makes the requests 0…`end`−1, due at `begin` and then `interval` from each other, or one after the other.
async fn drive(
    connections: &mut Connections,
    live: &Arc<Live>,
    end: u64,
    schedule: Option<(Instant, Duration)>,
    finished: &Finished,
) {
    let numbers = Mutex::new(0..end);
    let finished = finished.clone();
    let next = move |_| {
        let what = numbers.lock().unwrap().next()?;
        Some(Job {
            call: Call::get(format!("/{what}")),
            due: schedule.map(|(begin, interval)| begin + interval * what as u32),
            what,
        })
    };
    let ended = move |done| finished.lock().unwrap().push(done);
    connections.drive(live, next, ended).await.unwrap();
}

/// Makes the requests 0…`end`−1 to their end, and returns them in their order.
async fn drive_to_end(
    connections: &mut Connections,
    end: u64,
    schedule: Option<(Instant, Duration)>,
) -> Vec<Done<u64>> {
    let finished = Finished::default();
    drive(connections, &Arc::default(), end, schedule, &finished).await;
    let mut done = std::mem::take(&mut *finished.lock().unwrap());
    done.sort_by_key(|done| done.what);
    assert!(done.iter().map(|done| done.what).eq(0..end), "{done:?}");
    done
}

#[tokio::test]
async fn a_request_counts_from_when_it_was_due_and_is_not_sent_before() {
    const ANSWER_TIME: Duration = Duration::from_millis(40);
    // One connection, and all due at once: each waits for those before it.
    let target = server(ANSWER_TIME).await;
    let mut connections = Connections::new(&[target], 1, LIMIT).unwrap();
    let begin = Instant::now() + Duration::from_millis(50);
    let done = drive_to_end(&mut connections, 3, Some((begin, Duration::ZERO))).await;
    for (earlier, done) in (1..).zip(&done) {
        assert!(done.sent >= begin && done.due == begin, "{done:?}");
        assert!(done.ended - done.due >= earlier * ANSWER_TIME, "{done:?}");
    }
    let begin = Instant::now() + Duration::from_millis(50);
    let done = drive_to_end(&mut connections, 3, Some((begin, 2 * ANSWER_TIME))).await;
    for (number, done) in (0..).zip(&done) {
        assert_eq!(done.due, begin + number * 2 * ANSWER_TIME);
        assert!(done.sent >= done.due, "{done:?}");
    }
    let closed_loop = drive_to_end(&mut connections, 3, None).await;
    assert!(
        closed_loop.iter().all(|done| done.due == done.sent),
        "{closed_loop:?}"
    );
}

#[tokio::test]
async fn a_stopped_load_sends_no_more() {
    let target = server(Duration::ZERO).await;
    let mut connections = Connections::new(&[target], 2, LIMIT).unwrap();
    let hour = Duration::from_secs(3600);
    let schedule = Some((Instant::now(), hour));
    let live = Arc::new(Live::default());
    let finished = Finished::default();
    tokio::join!(
        drive(&mut connections, &live, 9, schedule, &finished),
        stop_after_first(&live, &finished)
    );
    assert_eq!(finished.lock().unwrap().len(), 1);
}

async fn stop_after_first(live: &Live, finished: &Finished) {
    while finished.lock().unwrap().is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    live.stop.cancel();
}
