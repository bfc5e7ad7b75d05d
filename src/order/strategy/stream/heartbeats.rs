//! Heartbeats of other consumers, as this process has seen them. Which consumer is dead is judged by whether its heartbeat
//! changes while this node's monotonic clock goes on: the clock of Redis, by which heartbeats are written, may be stepped
//! either way. No I/O may come in here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Where this process has not looked for this long (it stood still, or Redis was away), it begins anew: then the others
/// may have been unable to report.
const GAP: Duration = Duration::from_secs(3);

/// The heartbeats.
#[derive(Default)]
pub(super) struct Heartbeats {
    seen: HashMap<String, (String, Instant)>,
    looked: Option<Instant>,
}

impl Heartbeats {
    /// Takes note of all other consumers, as name and heartbeat; returns those whose heartbeat has been the same for
    /// `limit`.
    pub fn dead(
        &mut self,
        consumers: impl IntoIterator<Item = (String, String)>,
        limit: Duration,
        now: Instant,
    ) -> Vec<(String, String)> {
        let mut before = std::mem::take(&mut self.seen);
        if self.looked.is_none_or(|looked| now.saturating_duration_since(looked) > GAP) {
            before.clear();
        }
        self.looked = Some(now);
        let mut dead = Vec::new();
        for (name, heartbeat) in consumers {
            let known = before.remove(&name).filter(|(known, _)| *known == heartbeat);
            let since = known.map_or(now, |(_, since)| since);
            if now.saturating_duration_since(since) >= limit {
                dead.push((name.clone(), heartbeat.clone()));
            }
            self.seen.insert(name, (heartbeat, since));
        }
        dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// What is dead after looking once a second, with this heartbeat each time.
    fn look(heartbeats: &[&str], seconds: impl Fn(u64) -> u64) -> usize {
        let (start, mut seen, mut dead) = (Instant::now(), Heartbeats::default(), 0);
        for (at, heartbeat) in (0..).zip(heartbeats) {
            let consumers = [("c".to_owned(), (*heartbeat).to_owned())];
            let now = start + Duration::from_secs(seconds(at));
            dead += seen.dead(consumers, LIMIT, now).len();
        }
        dead
    }

    #[test]
    fn a_consumer_is_dead_when_its_heartbeat_stays_the_same_however_old_it_claims_to_be() {
        assert_eq!(look(&["9000"; 5], |at| at), 0, "only 4 s");
        assert_eq!(look(&["9000"; 6], |at| at), 1);
        assert_eq!(look(&[""; 6], |at| at), 1, "none at all");
        // The clock of Redis was stepped, forward or back: it lives.
        assert_eq!(look(&["1", "2", "9000", "9001", "1", "2", "3"], |at| at), 0);
    }

    #[test]
    fn where_nobody_could_look_nobody_is_dead() {
        assert_eq!(look(&["1"; 6], |at| if at < 3 { at } else { at + 60 }), 0);
    }

    #[test]
    fn a_consumer_that_is_gone_is_forgotten() {
        let (now, mut seen) = (Instant::now(), Heartbeats::default());
        seen.dead([("c".to_owned(), String::new())], LIMIT, now);
        seen.dead([], LIMIT, now);
        assert!(seen.seen.is_empty());
    }
}
