//! An instance that listens on a Unix socket, too: for a proxy on the same machine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use testkit::process::TemporaryFolder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::support::api::get;
use crate::support::instance::Instance;
use crate::support::nginx::Nginx;
use crate::support::stack::Stack;
use crate::support::{PATIENCE, eventually};

/// Codes that an address may be sent.
const LIMIT: [&str; 2] = ["--code-sends-per-address", "3"];

/// A folder for sockets, and the path of one in it.
fn socket() -> (TemporaryFolder, PathBuf) {
    let folder = TemporaryFolder::new().expect("a folder");
    let path = folder.path().join("seckill.sock");
    (folder, path)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path as text")
}

/// Sends a request without a body; returns the head of the reply, whose body is read as well.
async fn ask(stream: &mut UnixStream, first: &str, headers: &str) -> String {
    let request = format!("{first} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n{headers}\r\n");
    let exchange = async {
        stream.write_all(request.as_bytes()).await?;
        let mut reply = String::new();
        loop {
            if let Some((head, body)) = reply.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if length.is_none_or(|length| length.parse() == Ok(body.len())) {
                    return Ok(head.to_owned());
                }
            }
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).await?;
            assert!(count > 0, "the end of the connection after {reply}");
            reply += &String::from_utf8_lossy(&bytes[..count]);
        }
    };
    let head: std::io::Result<_> = timeout(PATIENCE, exchange).await.expect("a reply in time");
    head.expect("a reply")
}

async fn connect(path: &Path) -> UnixStream {
    UnixStream::connect(path).await.expect("connect to the socket")
}

/// Asks for codes for 8 phones; returns how many were sent.
async fn codes_sent(path: &Path, area: u32, headers: &str) -> usize {
    let (mut stream, mut sent) = (connect(path).await, 0);
    for n in 0..8 {
        let first = format!("POST /user/code?phone=138{area:04}{n:04}");
        let head = ask(&mut stream, &first, headers).await;
        match head.split(' ').nth(1) {
            Some("200") => sent += 1,
            status => assert_eq!(status, Some("429"), "{head}"),
        }
    }
    sent
}

#[tokio::test]
async fn who_is_on_the_socket_counts_as_on_this_machine_and_is_served_until_the_end() {
    let (folder, path) = socket();
    let own = ["--bind-unix", text(&path), "--drain-idle-ms", "15000"];
    let args = [&LIMIT[..], &own].concat();
    let mut stack = Stack::start(1, &args).await;
    assert_eq!(codes_sent(&path, 1, "").await, 8, "an operator");
    assert_eq!(codes_sent(&path, 2, "x-forwarded-for: 203.0.113.7\r\n").await, 3, "a visitor");
    assert_eq!(codes_sent(&path, 3, "x-forwarded-for: 203.0.113.8\r\n").await, 3, "another");
    assert_eq!(codes_sent(&path, 4, "x-forwarded-for: 127.0.0.1\r\n").await, 3, "no operator");
    get(stack.url(), "/health/live").send().await.data();
    let mode = std::fs::metadata(&path).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o666, "nginx's workers may be another user");

    // A drain closes the socket with the listener, and keeps its connections.
    let mut idle = connect(&path).await;
    let live = "GET /health/live";
    assert!(!ask(&mut idle, live, "").await.contains("connection: close"));
    stack.instances[0].signal("TERM");
    eventually("the listener is closed", async || {
        get(stack.url(), "/health/live").try_send().await.is_err()
    })
    .await;
    assert!(!path.exists(), "no file is left that refuses connections");
    let head = ask(&mut idle, live, "").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("connection: close"), "{head}");
    stack.instances[0].ended().await;

    // The socket of a killed process is replaced, and nothing else is.
    stack.instances.clear();
    stack.add_instance(&["--bind-unix", text(&path)]).await;
    let env = stack.env();
    let refused = async |path: &Path| {
        let mut command = Instance::command(&["serve", "--bind", "127.0.0.1:0", "--bind-unix"]);
        command.arg(path).envs(env.clone());
        let mut command = tokio::process::Command::from(command);
        let output = timeout(PATIENCE, command.kill_on_drop(true).output()).await;
        let Output { status, stderr, .. } = output.expect("it must end").expect("run seckill");
        let says = String::from_utf8_lossy(&stderr).into_owned();
        assert_eq!(status.code(), Some(1), "{says}");
        assert!(says.contains(text(path)) && says.contains("--bind-unix"), "{says}");
        says
    };
    let says = refused(&path).await;
    assert!(says.contains("another process listens there"), "{says}");
    let file = folder.path().join("file");
    std::fs::write(&file, "kept").expect("write");
    let says = refused(&file).await;
    assert!(says.contains("not a socket"), "{says}");
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "kept");
    assert!(ask(&mut connect(&path).await, live, "").await.starts_with("HTTP/1.1 200"));

    stack.instances[0].kill();
    assert!(path.exists(), "a killed process leaves its socket");
    stack.add_instance(&["--bind-unix", text(&path)]).await;
    assert!(ask(&mut connect(&path).await, live, "").await.starts_with("HTTP/1.1 200"));
}

/// The shipped nginx, with the sockets of two instances.
#[tokio::test]
async fn nginx_tries_the_other_instance_where_one_was_killed_or_has_ended() {
    let folder = TemporaryFolder::new().expect("a folder");
    let mut stack = Stack::start(0, &[]).await;
    let paths = ["one", "two"].map(|name| folder.path().join(name));
    for path in &paths {
        stack.add_instance(&["--lab", "--bind-unix", text(path)]).await;
    }
    let [one, two] = paths.each_ref().map(|path| format!("unix:{}", path.display()));
    let nginx = Nginx::start("nginx.conf", &[("NGX_ONE", one), ("NGX_TWO", two)]).await;
    let all_answered = async || {
        for _ in 0..8 {
            for (method, path, status) in
                [("GET", "/api/health/live", 200), ("POST", "/voucher-order/seckill/1", 401)]
            {
                let reply = nginx.request(method, path, "").await;
                assert_eq!(reply.status, status, "{reply:?}");
            }
        }
    };
    all_answered().await;
    for path in ["/lab/about", "/api/lab/about"] {
        let reply = nginx.request("GET", path, "").await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    stack.instances[1].kill();
    assert!(paths[1].exists());
    all_answered().await;
    stack.add_instance(&["--bind-unix", text(&paths[1])]).await;
    stack.instances[0].signal("TERM");
    stack.instances[0].ended().await;
    assert!(!paths[0].exists());
    all_answered().await;
}
