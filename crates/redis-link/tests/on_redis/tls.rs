//! TLS: certificates of servers and clients, on one server, on a cluster and with Sentinel.

use std::time::Duration;

use redis::{
    AsyncCommands, Client, ClientTlsConfig, PushKind, RedisConnectionInfo, TlsCertificates,
};
use redis_link::{Channels, Redis, Server};
use testkit::certificates::Certificates;
use testkit::process::free_port;
use testkit::raw::query;
use testkit::redis_cluster::RedisCluster;
use testkit::redis_sentinel::{MASTER, RedisSentinel};
use testkit::redis_server::{RedisServer, Role};

use super::{count, eventually, soon};

/// Long, because both TLS libraries read the system's authorities for each connection, some 0.1 s on a free
/// processor.
const LIMIT: Duration = Duration::from_secs(15);

/// What a client uses: its own certificate, and the authority.
fn client_certificates(certificates: &Certificates) -> TlsCertificates {
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

/// Creates the user "app", who may do everything.
async fn set_app(server: &RedisServer) {
    let rule = ["SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"];
    let _: () = query(&mut server.conn().await, "ACL", &rule).await;
}

/// A server with TLS on the port that is returned.
async fn server(certificates: &Certificates) -> (RedisServer, u16) {
    let port = free_port().unwrap();
    let server = RedisServer::start_with_arguments(Role::Alone, certificates.arguments(port)).await;
    set_app(&server).await;
    (server, port)
}

fn connect(server: Server, certificates: &TlsCertificates) -> Redis {
    Redis::new(
        server.with_certificates(certificates).unwrap(),
        LIMIT,
        LIMIT,
    )
    .unwrap()
}

/// Fails unless commands work, and messages arrive from the node that serves `key`.
async fn assert_works(redis: &Redis, key: &str) {
    let mut commands = redis.commands();
    let _: () = commands.set(key, 1).await.unwrap();
    let nodes = redis
        .assign_channels(Channels::from([key.into()]))
        .await
        .unwrap();
    let (node, _) = nodes
        .iter()
        .find(|(_, keys)| !keys.is_empty())
        .expect("it is served");
    let mut messages = redis.pushes(node).await.unwrap();
    redis::cmd("SUBSCRIBE")
        .arg(key)
        .exec_async(&mut messages.commands)
        .await
        .unwrap();
    let _: i64 = commands.publish(key, 0).await.unwrap();
    while soon("a message", messages.next()).await.unwrap().kind != PushKind::Message {}
}

#[tokio::test]
async fn one_server_is_reached_over_tls_and_after_a_restart() {
    let certificates = Certificates::new();
    let (mut server, port) = server(&certificates).await;
    let single_server = Server::from(Client::open(url(port)).unwrap());
    let redis = connect(single_server, &client_certificates(&certificates));
    assert_works(&redis, "n").await;
    server.restart().await;
    set_app(&server).await;
    eventually("it is connected again", async || redis.ping().await.is_ok()).await;
    assert_works(&redis, "n").await;
}

#[tokio::test]
async fn a_connection_that_cannot_be_verified_fails() {
    let certificates = Certificates::new();
    let other_certificates = Certificates::new();
    let (_redis, port) = server(&certificates).await;
    let good = client_certificates(&certificates);
    let another_authority = TlsCertificates {
        root_cert: Some(other_certificates.read("authority.crt")),
        ..good.clone()
    };
    let another_client = TlsCertificates {
        client_tls: client_certificates(&other_certificates).client_tls,
        ..good.clone()
    };
    let no_client = TlsCertificates {
        client_tls: None,
        ..good.clone()
    };
    let connect = async |certificates: Option<TlsCertificates>, url: String| {
        let server = Server::from(Client::open(url).unwrap());
        let server = match certificates {
            Some(certificates) => server.with_certificates(&certificates).unwrap(),
            None => server,
        };
        let redis = Redis::new(server, LIMIT, LIMIT).unwrap();
        soon("it fails", redis.ping()).await.unwrap_err();
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
    let certificates = client_certificates(&Certificates::new());
    let plain = Server::from(Client::open("redis://127.0.0.1/").unwrap());
    plain.with_certificates(&certificates).unwrap_err();
    let client_tls = ClientTlsConfig {
        client_cert: b"no".into(),
        client_key: b"no".into(),
    };
    let broken = TlsCertificates {
        client_tls: Some(client_tls),
        ..certificates
    };
    Server::cluster([url(1)])
        .unwrap()
        .with_certificates(&broken)
        .unwrap_err();
}

#[tokio::test]
async fn every_node_of_a_cluster_is_reached_over_tls() {
    let certificates = Certificates::new();
    let ports: Vec<u16> = (0..3).map(|_| free_port().unwrap()).collect();
    let cluster = RedisCluster::start_with(|node| certificates.arguments(ports[node])).await;
    for node in &cluster.nodes {
        set_app(node).await;
    }
    // The others are discovered.
    let seed = Server::cluster([url(ports[0])]).unwrap();
    let redis = connect(seed, &client_certificates(&certificates));
    // On the three nodes: slots 15,495, 3,300 and 7,365.
    for key in ["a", "b", "c"] {
        assert_works(&redis, key).await;
    }
}

#[tokio::test]
async fn a_failover_is_followed_over_tls() {
    let certificates = Certificates::new();
    let ports = [(); 5].map(|()| free_port().unwrap());
    let mut sentinel =
        RedisSentinel::start_with_tls(ports, |port| certificates.arguments(port)).await;
    for server in sentinel.servers.iter().chain(&sentinel.sentinels) {
        set_app(server).await;
    }
    let login = RedisConnectionInfo::default()
        .set_username("app")
        .set_password("secret");
    let server = Server::sentinel(ports[2..].iter().map(|port| url(*port)), MASTER, login);
    let redis = connect(server.unwrap(), &client_certificates(&certificates));
    assert_works(&redis, "n").await;
    sentinel.servers[0].kill();
    eventually("the new master is found", async || {
        count(&redis, "n").await.is_ok()
    })
    .await;
    assert_works(&redis, "n").await;
}
