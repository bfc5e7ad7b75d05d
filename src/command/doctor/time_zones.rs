//! Compares time zones: ours, those of the database's sessions, and those in which the nodes made the last order ids. A
//! Java node's own zone and JDBC address cannot be seen; what follows from them can.

use chrono::{FixedOffset, Offset, Utc};

use super::findings::Findings;
use crate::clock::Zone;
use crate::connection::mysql::Database;
use crate::connection::time_zones::{TimeZones, time_zones};
use crate::order::store::OrderStore;

/// Compares the zones of the sessions with `zone`.
pub(super) async fn check_sessions(
    findings: &mut Findings,
    database: &Database,
    zone: Zone,
) -> anyhow::Result<()> {
    let TimeZones { default_name, default_offset, session_offset } = time_zones(database).await?;
    if session_offset != 0 {
        findings.fail(
            &format!("this service's sessions are at {}, not UTC", offset(session_offset)),
            "leave the session's time zone as the driver sets it",
        );
    }
    let own = seconds_ahead(zone);
    if default_offset == Some(own) {
        findings.good(&format!(
            "a session that sets no time zone has ours: {default_name}, {}",
            offset(own)
        ));
    } else {
        let is = default_offset.map_or("unknown".to_owned(), offset);
        findings.warn(
            &format!(
                "a session that sets no time zone has {default_name}, {is}; ours is {}",
                offset(own)
            ),
            &format!(
                "beside a Java node: its JDBC address needs \
                 connectionTimeZone={}&forceConnectionTimeZoneToSession=true, or sales begin at another time there",
                offset(own).replace('+', "%2B")
            ),
        );
    }
    Ok(())
}

/// Compares the zones in which the last order ids were made with `zone`.
pub(super) async fn check_ids(
    findings: &mut Findings,
    database: &Database,
    zone: Zone,
) -> anyhow::Result<()> {
    let found = OrderStore::new(database.clone(), zone).offsets_of_ids().await?;
    let (own, all) = (seconds_ahead(zone), found.iter().map(|(_, orders)| orders).sum::<i64>());
    let mut others = found.iter().filter(|(ahead, _)| *ahead != own).peekable();
    if all > 0 && others.peek().is_none() {
        findings.good(&format!("the ids of the last {all} orders were made at {}", offset(own)));
    }
    for (ahead, orders) in others {
        findings.warn(
            &format!("{orders} of the last {all} orders have ids made at {}", offset(*ahead)),
            &format!(
                "a node runs in another time zone: its ids do not rise with those of the others, and it reads \
                 the times of sales in its own zone; start its JVM with \
                 -Duser.timezone={0}, or our node with --time-zone {0}",
                zone.0
            ),
        );
    }
    Ok(())
}

fn seconds_ahead(zone: Zone) -> i64 {
    i64::from(Utc::now().with_timezone(&zone.0).offset().fix().local_minus_utc())
}

/// Such as `+08:00`.
fn offset(seconds: i64) -> String {
    let offset = i32::try_from(seconds).ok().and_then(FixedOffset::east_opt);
    offset.map_or_else(|| format!("{seconds} s"), |offset| offset.to_string())
}
