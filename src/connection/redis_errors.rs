//! Why a Redis cannot be used, in one sentence for who set its address.

use redis::RedisError;

/// What the texts of an error say, of Redis, of the TLS library, and of the connection; the first that fits counts.
const CAUSES: &[(&[&str], &str)] = &[
    (
        &["cluster support disabled"],
        "the server is no cluster: an address that begins with redis-cluster:// has to name the nodes of one",
    ),
    (
        &["No such master"],
        "the sentinels do not know a master of this name; `SENTINEL MASTERS` lists those that they know",
    ),
    (
        &["unknown command 'SENTINEL'", "unknown command `SENTINEL`"],
        "the server is no sentinel: an address that begins with redis-sentinel:// has to name sentinels, and \
         redis://host:port/ names a server",
    ),
    (
        &[
            "UnknownIssuer",
            "BadSignature",
            "unable to get local issuer",
            "self-signed",
            "self signed",
        ],
        "the server's certificate is not signed by the authority that REDIS_CA (--redis-ca) names, or, without it, by \
         one that this system trusts",
    ),
    (
        &["NotValidForName", "not valid for name"],
        "the server's certificate is for another host than the address names",
    ),
    (&["certificate expired", "Expired"], "the server's certificate has expired"),
    (
        &["CertificateRequired", "certificate required"],
        "the server asks for a certificate: set REDIS_CERT and REDIS_KEY (--redis-cert, --redis-key)",
    ),
    (
        &["InvalidContentType", "corrupt message"],
        "the server does not speak TLS (rediss…) on this port: without TLS the address begins with redis",
    ),
    (
        &["WRONGPASS", "AuthenticationFailed", "Password authentication failed"],
        "Redis refuses the user or the password",
    ),
    (
        &["NOAUTH", "Authentication required"],
        "Redis asks for a password: redis://user:password@host:port/",
    ),
    (
        &["NOPERM", "can't run this command", "no permissions", "NoPerm"],
        "the Redis user lacks a right; docs/OPERATIONS.md lists those that are needed",
    ),
    (
        &["READONLY", "read only replica"],
        "the server is a replica, which takes no writes: name its master, or the sentinels that know it",
    ),
    (&["not a master yet"], "the node that the sentinels name is no master (yet)"),
    (&["refused"], "cannot connect to Redis; is it running, and is the address right?"),
];

/// One sentence, which names the setting; with the cause as it was told.
pub fn sentence(error: &RedisError) -> anyhow::Error {
    let told = error.to_string();
    let known = CAUSES.iter().find(|(words, _)| words.iter().any(|word| told.contains(word)));
    let says = match known {
        Some((_, says)) => says,
        // What a TLS port does to a client without.
        None if error.is_connection_dropped() || error.kind() == redis::ErrorKind::Parse => {
            "the server closed the connection without an answer of Redis; if it expects TLS on this port, the address \
             begins with rediss"
        }
        None if error.is_timeout() => {
            "cannot connect to Redis, which does not answer in time; is the address right, and does the port expect TLS \
             (rediss…) or not, as the address says?"
        }
        None => "cannot connect to Redis; is it running, and is the address right?",
    };
    anyhow::anyhow!("REDIS_URL (--redis-url): {says} ({told})")
}
