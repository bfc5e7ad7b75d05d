//! `doctor` on time zones: the default of the database's sessions, and the zones in which order ids were made.

use std::process::Output;

use crate::support::instance::Instance;
use crate::support::stack::Stack;

fn doctor(stack: &Stack, zone: &str) -> String {
    let mut command = Instance::command(&["doctor", "--time-zone", zone]);
    let Output { stdout, status, .. } = command.envs(stack.env()).output().expect("run doctor");
    let text = String::from_utf8(stdout).expect("text");
    assert!(status.success(), "{text}");
    text
}

/// Three orders made just now by a node whose clock is this far ahead of UTC.
async fn orders(stack: &Stack, first_user: i64, hours_ahead: i64, status: u8) {
    for user in first_user..first_user + 3 {
        let insert = format!(
            "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES \
             (((UNIX_TIMESTAMP() + {hours_ahead} * 3600 - 1640995200) << 32) + {user}, {user}, 1, {status})"
        );
        stack.database.run(&insert).await;
    }
}

#[tokio::test]
async fn doctor_compares_the_time_zones_of_sessions_nodes_and_ids() {
    let stack = Stack::start(0, &[]).await;
    let offset = "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), \
                  CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', @@global.time_zone))";
    let hours = stack.database.number(offset).await / 3600;
    // The server's own zone, then one that is another for certain.
    let (same, other) = (-hours, -(hours + 3));
    let text = doctor(&stack, &format!("Etc/GMT{same:+}"));
    assert!(!text.contains("a session that sets no time zone"), "{text}");
    let text = doctor(&stack, &format!("Etc/GMT{other:+}"));
    assert!(text.contains("forceConnectionTimeZoneToSession=true"), "{text}");

    orders(&stack, 10, 8, 1).await;
    let text = doctor(&stack, "Asia/Shanghai");
    assert!(!text.contains("have ids made"), "they were made in our zone: {text}");
    // A JVM in UTC: its ids are eight hours behind.
    orders(&stack, 20, 0, 2).await;
    let text = doctor(&stack, "Asia/Shanghai");
    assert!(text.contains("3 of the last 6 orders have ids made at +00:00"), "{text}");
    assert!(text.contains("-Duser.timezone=Asia/Shanghai"), "{text}");
}
