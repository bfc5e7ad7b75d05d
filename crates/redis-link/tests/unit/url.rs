//! The forms of addresses, read into parts that are private.

use redis::ConnectionInfo;

use crate::server::{Server, Topology};

fn login(info: &redis::RedisConnectionInfo) -> (Option<&str>, Option<&str>, i64) {
    (info.username(), info.password(), info.db())
}

fn addresses(nodes: &[ConnectionInfo]) -> Vec<String> {
    nodes.iter().map(|node| node.addr().to_string()).collect()
}

#[test]
fn every_form_is_read() {
    let single = Server::from_url("redis://:p%40ss@h:7000/3").unwrap();
    assert!(matches!(single.topology, Topology::Single));
    assert_eq!(
        login(single.nodes[0].redis_settings()),
        (None, Some("p@ss"), 3)
    );

    let url = "redis-cluster://app:p%2Css@a:7000,b,[::1]:7001,[::2]";
    let Server {
        nodes,
        topology: Topology::Cluster,
    } = Server::from_url(url).unwrap()
    else {
        panic!("not a cluster")
    };
    assert_eq!(
        addresses(&nodes),
        ["a:7000", "b:6379", "::1:7001", "::2:6379"]
    );
    for node in &nodes {
        assert_eq!(login(node.redis_settings()), (Some("app"), Some("p,ss"), 0));
    }

    let url = "redis-sentinel://app:secret@a,b:7000/my-master/2?sentinel_password=p%2Fw";
    let Server {
        nodes: sentinels,
        topology: Topology::Sentinel(master, of_master),
    } = Server::from_url(url).unwrap()
    else {
        panic!("not Sentinel")
    };
    assert_eq!(master, "my-master");
    assert_eq!(addresses(&sentinels), ["a:26379", "b:7000"]);
    assert_eq!(login(sentinels[0].redis_settings()), (None, Some("p/w"), 0));
    assert_eq!(login(&of_master), (Some("app"), Some("secret"), 2));

    let url = "redis-sentinel://a,b/m?sentinel_user=watch%40er&sentinel_password=p%2Fw";
    let Server {
        nodes: sentinels,
        topology: Topology::Sentinel(_, of_master),
    } = Server::from_url(url).unwrap()
    else {
        panic!("not Sentinel")
    };
    for sentinel in &sentinels {
        let login = login(sentinel.redis_settings());
        assert_eq!(login, (Some("watch@er"), Some("p/w"), 0));
    }
    assert_eq!(login(&of_master), (None, None, 0));
}
