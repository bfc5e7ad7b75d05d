//! Addresses that cannot be used.

use redis_link::Server;

#[test]
fn a_wrong_form_is_named_without_the_password() {
    for (url, word) in [
        ("127.0.0.1:6379", "looks like"),
        ("http://secret@h/", "looks like"),
        ("redis://:secret@a:1,b:2/", "redis-cluster://"),
        ("redis://:secret@a:x/", ""),
        ("redis-cluster://:secret@a:1,,b:2", "a host is missing"),
        ("redis-cluster://:secret@a:1/3", "database 0"),
        ("redis-cluster://:secret@a:x", ""),
        ("redis-sentinel://:secret@a,b", "the name under which"),
        ("redis-sentinel://:secret@a,b/m/x", ""),
        (
            "redis-sentinel://a,b/m?password=secret",
            "sentinel_password",
        ),
        (
            "redis-sentinel://a,b/m?sentinel_password=secret@x",
            "percent-encoded",
        ),
    ] {
        let error = Server::from_url(url).expect_err(url);
        let error = error.to_string();
        assert!(error.contains(word), "{url}: {error}");
        assert!(!error.contains("secret"), "{url}: {error}");
    }
}

#[test]
fn a_comma_in_a_password_is_no_second_host() {
    Server::from_url("redis://:one,two@h/").expect("one host");
}
