//! What the shipped proxies need for rolling restarts; [`crate::slow`] has one.

use std::path::Path;

use crate::support::instance::Instance;

/// A proxy that keeps idle connections for longer than an instance that ends does might send a purchase on one that is
/// being closed.
#[test]
fn the_shipped_proxies_close_idle_connections_before_the_service_does() {
    let help = Instance::command(&["serve", "--help"]).output().expect("its help").stdout;
    let help = String::from_utf8(help).expect("text");
    let (_, idle) = help.split_once("DRAIN_IDLE_MS").expect("the setting");
    let (_, idle) = idle.split_once("[default: ").expect("its default");
    let idle: u64 = idle.split_once(']').expect("its end").0.parse().expect("milliseconds");
    for file in ["nginx.conf", "nginx-mixed.conf"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file);
        let text = std::fs::read_to_string(path).expect("the configuration");
        let upstreams: Vec<&str> = text.split("\n    upstream ").skip(1).collect();
        assert!(!upstreams.is_empty(), "{file}");
        for upstream in upstreams {
            let (upstream, _) = upstream.split_once("\n    }").expect("its end");
            let (_, kept) = upstream.split_once(" keepalive_timeout ").expect(upstream);
            let kept: u64 = kept.split_once("s;").expect(upstream).0.parse().expect("seconds");
            assert!(kept * 1000 < idle, "{file}: {upstream}");
        }
    }
}
