//! TLS: certificates of servers and clients, on one server, on a cluster and with Sentinel.

use std::time::{Duration, Instant};

use redis::{Client, ClientTlsConfig, RedisConnectionInfo, TlsCertificates};
use redisson_lock::{Error, LockConfig, LockUsage, Locks, Server};

use super::users::set_user;
use super::{eventually, soon, subscribers, wait_for};
use testkit::certificates::Certificates;
use testkit::process::free_port;
use testkit::redis_cluster::RedisCluster;
use testkit::redis_sentinel::{MASTER, RedisSentinel, SentinelTls};
use testkit::redis_server::{RedisServer, Role};

const NAME: &str = "lock:order:1";

/// Patient: both TLS libraries read the system's authorities for each connection, some 0.1 s on a free
/// processor.
fn config() -> LockConfig {
    let timeout = Duration::from_secs(15);
    LockConfig::default().with_connect_timeout(timeout).with_command_timeout(timeout)
}

/// What a client uses: its own certificate, and the authority.
fn of_client(certificates: &Certificates) -> TlsCertificates {
    let client_tls = ClientTlsConfig {
        client_cert: certificates.read("client.crt"),
        client_key: certificates.read("client.key"),
    };
    TlsCertificates {
        client_tls: Some(client_tls),
        root_cert: Some(certificates.read("authority.crt")),
    }
}

/// The address of a user, "app", on a TLS port.
fn url(port: u16) -> String {
    format!("rediss://app:secret@127.0.0.1:{port}/")
}

/// Allows the user everything.
async fn set_app(server: &RedisServer) {
    set_user(server, "app", &["~*", "&*", "+@all"]).await;
}

/// A server with TLS on the port that is returned.
async fn server(certificates: &Certificates) -> (RedisServer, u16) {
    let port = free_port().unwrap();
    let server = RedisServer::start_with_arguments(Role::Alone, certificates.arguments(port)).await;
    set_app(&server).await;
    (server, port)
}

/// A waiter is woken by a release, which takes a subscription, long before the lease of 30 s ends.
async fn a_release_wakes_a_waiter(
    servers: &[RedisServer],
    (here, there): (&Locks, &Locks),
    name: &str,
) {
    let held = here.lock(name).acquire().await.unwrap();
    let waiting = wait_for(&there.lock(name));
    let channel = format!("redisson_lock__channel:{{{name}}}");
    eventually("it is subscribed", async || {
        let mut subscribed = 0;
        for server in servers {
            subscribed += subscribers(&mut server.conn().await, &channel).await;
        }
        subscribed == 1
    })
    .await;
    let released = Instant::now();
    held.release().await.unwrap();
    let next = soon("it acquires the lock", waiting).await.unwrap();
    assert!(released.elapsed() < Duration::from_secs(8), "{:?}", released.elapsed());
    next.release().await.unwrap();
    let done = async || (here.usage(), there.usage()) == <(LockUsage, LockUsage)>::default();
    eventually("nothing is left", done).await;
}

#[tokio::test]
async fn locks_work_over_tls_and_after_a_restart() {
    let certificates = Certificates::new();
    let (redis, port) = server(&certificates).await;
    let mut redis = [redis];
    let connect = async || {
        let server = Server::from(Client::open(url(port)).unwrap());
        let server = server.with_certificates(&of_client(&certificates)).unwrap();
        Locks::connect(server, config()).await.unwrap()
    };
    let (here, there) = (connect().await, connect().await);
    a_release_wakes_a_waiter(&redis, (&here, &there), NAME).await;
    redis[0].restart().await;
    set_app(&redis[0]).await;
    let lock = here.lock(NAME);
    eventually("it is connected again", async || lock.is_locked().await.is_ok()).await;
    a_release_wakes_a_waiter(&redis, (&here, &there), NAME).await;
}

#[tokio::test]
async fn what_cannot_be_verified_is_not_connected_to() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let (_redis, port) = server(&certificates).await;
    let good = of_client(&certificates);
    let another_authority =
        TlsCertificates { root_cert: Some(others.read("authority.crt")), ..good.clone() };
    let another_client =
        TlsCertificates { client_tls: of_client(&others).client_tls, ..good.clone() };
    let no_client = TlsCertificates { client_tls: None, ..good.clone() };
    let connect = async |certificates: Option<TlsCertificates>, url: String| {
        let server = Server::from(Client::open(url).unwrap());
        let server = match certificates {
            Some(certificates) => server.with_certificates(&certificates).unwrap(),
            None => server,
        };
        let error = soon("it fails", Locks::connect(server, config())).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    };
    connect(Some(another_authority), url(port)).await;
    connect(Some(another_client), url(port)).await;
    connect(Some(no_client), url(port)).await;
    // A name that its certificate does not have, and no TLS at all.
    connect(Some(good), url(port).replace("127.0.0.1", "localhost")).await;
    connect(None, url(port).replace("rediss", "redis")).await;
}

#[tokio::test]
async fn certificates_are_checked_when_they_are_given() {
    let certificates = of_client(&Certificates::new());
    let plain = Server::from(Client::open("redis://127.0.0.1/").unwrap());
    let error = plain.with_certificates(&certificates).unwrap_err();
    assert!(matches!(error, Error::Rejected { .. }), "{error:?}");
    let client_tls = ClientTlsConfig { client_cert: b"no".into(), client_key: b"no".into() };
    let broken = TlsCertificates { client_tls: Some(client_tls), ..certificates };
    let error = Server::cluster([url(1)]).unwrap().with_certificates(&broken).unwrap_err();
    assert!(matches!(error, Error::Rejected { .. }), "{error:?}");
}

#[tokio::test]
async fn every_node_of_a_cluster_is_reached_over_tls() {
    let certificates = Certificates::new();
    let ports: Vec<u16> = (0..3).map(|_| free_port().unwrap()).collect();
    let cluster = RedisCluster::start_with(|node| certificates.arguments(ports[node])).await;
    for node in &cluster.nodes {
        set_app(node).await;
    }
    let connect = async || {
        // The others are discovered.
        let server = Server::cluster([url(ports[0])]).unwrap();
        let server = server.with_certificates(&of_client(&certificates)).unwrap();
        Locks::connect(server, config()).await.unwrap()
    };
    let (here, there) = (connect().await, connect().await);
    // On the three nodes: slots 15,495, 3,300 and 7,365.
    for name in ["a", "b", "c"] {
        a_release_wakes_a_waiter(&cluster.nodes, (&here, &there), name).await;
    }
}

#[tokio::test]
async fn a_failover_is_followed_over_tls() {
    let certificates = Certificates::new();
    let ports = [(); 5].map(|()| free_port().unwrap());
    let arguments = |port| certificates.arguments(port);
    let mut sentinel =
        RedisSentinel::start_with_tls(SentinelTls { ports, arguments: &arguments }).await;
    for server in sentinel.servers.iter().chain(&sentinel.sentinels) {
        set_app(server).await;
    }
    let connect = async || {
        let login = RedisConnectionInfo::default().set_username("app").set_password("secret");
        let server = Server::sentinel(ports[2..].iter().map(|port| url(*port)), MASTER, login);
        let server = server.unwrap().with_certificates(&of_client(&certificates)).unwrap();
        Locks::connect(server, config()).await.unwrap()
    };
    let (here, there) = (connect().await, connect().await);
    a_release_wakes_a_waiter(&sentinel.servers[..1], (&here, &there), NAME).await;
    sentinel.servers[0].kill();
    let lock = here.lock(NAME);
    let failover = tokio::time::timeout(Duration::from_secs(60), async {
        while lock.is_locked().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    failover.await.expect("the new master is found");
    a_release_wakes_a_waiter(&sentinel.servers[1..], (&here, &there), NAME).await;
}
