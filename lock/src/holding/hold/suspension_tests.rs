//! Holds of a machine that is suspended: the leases on the server run on, the monotonic clock does not.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::{Hold, Release, RenewalAction};
use crate::clock::BootInstant;
use crate::clock::testing::suspend;
use crate::config::LockConfig;
use crate::error::LostReason;
use crate::holding::request::LockRequest;
use crate::kind::Kind;
use crate::name::LockName;
use crate::owner::Owner;
use crate::renewal::schedule::RenewalSchedule;

const LEASE: Duration = Duration::from_secs(30);
/// What the clocks of the tests may differ by.
const MOMENT: Duration = Duration::from_secs(5);

fn acquired(kind: Kind, renewed: bool, config: &LockConfig) -> Hold {
    let name = LockName::new("lock");
    let request = LockRequest { name, kind, owner: Owner::new(Uuid::nil(), 1) };
    let hold = Hold::new(1, request, 0, LEASE, renewed, config);
    hold.acquired(BootInstant::now(), LEASE, renewed).unwrap();
    hold
}

fn plain(renewed: bool) -> Hold {
    acquired(Kind::Reentrant, renewed, &LockConfig::default())
}

fn assert_about(time: Duration, expected: Duration) {
    assert!(
        time <= expected && time > expected.saturating_sub(MOMENT),
        "{time:?}, not {expected:?}"
    );
}

#[test]
fn a_lease_runs_on_while_the_machine_is_suspended() {
    for kind in [Kind::Reentrant, Kind::Read] {
        let hold = acquired(kind, true, &LockConfig::default());
        assert_about(hold.valid_for(), LEASE);
        suspend(LEASE / 2);
        assert_about(hold.valid_for(), LEASE / 2);
        let inner = hold.acquired(BootInstant::now(), LEASE, true).unwrap().1;
        assert_about(hold.valid_for(), LEASE);
        // Of a reader, each hold has a lease of its own.
        assert!(matches!(hold.release(inner, Instant::now()), Release::Send { depth: 1, .. }));
        assert_about(hold.valid_for(), if kind == Kind::Read { LEASE / 2 } else { LEASE });
        suspend(LEASE);
        assert_eq!(hold.valid_for(), Duration::ZERO);
    }
}

#[test]
fn a_lease_that_ended_in_a_suspension_is_lost() {
    for (renewed, expected) in [(true, LostReason::Unreachable), (false, LostReason::Expired)] {
        let hold = plain(renewed);
        suspend(LEASE);
        assert_eq!(hold.lost_reason(), Some(expected));
        let now = Instant::now();
        assert!(
            matches!(hold.renewal_action(now), RenewalAction::ReportLost(why) if why == expected)
        );
        let released = hold.release(0, now);
        assert!(matches!(released, Release::Overdue { reason, .. } if reason == expected));
    }
    let capped = LockConfig::default().with_max_hold(LEASE * 2);
    let hold = acquired(Kind::Reentrant, true, &capped);
    suspend(LEASE + LEASE / 2);
    // The reply to a renewal that was sent after the resume.
    hold.confirmed(BootInstant::now());
    assert_about(hold.valid_for(), LEASE / 2);
}

#[test]
fn a_reply_that_was_under_way_during_a_suspension_counts_from_before() {
    let hold = plain(true);
    let sent = BootInstant::now();
    suspend(LEASE / 2);
    hold.confirmed(sent);
    assert_about(hold.valid_for(), LEASE / 2);
}

#[tokio::test(start_paused = true)]
async fn a_resume_ends_the_wait_for_the_loss() {
    let hold = plain(true);
    let began = Instant::now();
    let lost = hold.lost();
    let resume = async {
        tokio::time::sleep(MOMENT).await;
        suspend(LEASE);
    };
    let (reason, ()) = tokio::join!(lost, resume);
    assert_eq!(reason, LostReason::Unreachable);
    assert!(began.elapsed() <= MOMENT + Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn after_a_resume_every_hold_is_checked() {
    let schedule = RenewalSchedule::default();
    let hold = Arc::new(plain(true));
    schedule.insert(&hold, Instant::now() + LEASE / 3);
    assert!(schedule.pop_due(Instant::now(), 10).0.is_empty());
    let began = Instant::now();
    suspend(LEASE);
    schedule.earlier().await;
    assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
    // First it is old enough to be tracked, or not; then it is due.
    assert_eq!(schedule.pop_due(Instant::now(), 10).0.len(), 1);
    assert!(schedule.pop_due(Instant::now(), 10).0.is_empty());
}
