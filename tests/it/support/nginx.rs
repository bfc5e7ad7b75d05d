//! A throw-away nginx with one of the configurations in `deploy/`, and requests to it as bytes.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use hyper::header::{HeaderMap, HeaderName};
use serde_json::Value;
use testkit::process::{Process, TemporaryFolder, free_port};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::api::Answer;
use super::{PATIENCE, eventually, read};

/// A running nginx; killed when dropped.
pub struct Nginx {
    process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    // Dropped last: the process writes to it.
    _folder: TemporaryFolder,
}

impl Nginx {
    /// Starts it with `deploy/nginx.conf` in front of two instances at these addresses, without a lab.
    pub async fn before(instances: [&str; 2]) -> Self {
        Self::with_lab(instances, "127.0.0.1:1").await
    }

    /// Starts it with `deploy/nginx.conf` in front of two instances and the lab at these addresses.
    pub async fn with_lab(instances: [&str; 2], lab: &str) -> Self {
        let [first, second, lab] = [instances[0], instances[1], lab]
            .map(|url| url.trim_start_matches("http://").to_owned());
        let values = [("NGX_ONE", first), ("NGX_TWO", second), ("NGX_LAB", lab)];
        Self::start("nginx.conf", &values).await
    }

    /// Starts it with `deploy/<file>` on a free port; replaces the placeholders `${NAME}` by these values.
    pub async fn start(file: &str, values: &[(&str, String)]) -> Self {
        let port = free_port().expect("a free port");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let folder = TemporaryFolder::new().expect("a folder");
        let mut text = read(&format!("deploy/{file}"));
        let test_values = [
            ("NGX_LISTEN", address.to_string()),
            ("NGX_FILES", "1024".to_owned()),
            ("NGX_CONNECTIONS", "256".to_owned()),
        ];
        for (name, value) in test_values.iter().chain(values) {
            text = text.replace(&format!("${{{name}}}"), value);
        }
        let unreplaced = text
            .lines()
            .find(|line| line.contains("${NGX_") && !line.contains('#'));
        assert_eq!(unreplaced, None, "a placeholder without a value");
        std::fs::write(folder.path().join("nginx.conf"), text).expect("write the configuration");
        let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/web");
        std::os::unix::fs::symlink(pages, folder.path().join("web")).expect("a link to the pages");
        let mut command = Command::new("nginx");
        command
            .arg("-p")
            .arg(folder.path().join(""))
            .args(["-c", "nginx.conf", "-e", "stderr"]);
        // Without a master, so that killing it leaves no worker behind.
        command.args(["-g", "daemon off; master_process off;"]);
        let process = Process::start(command, &folder.path().join("nginx.log")).expect("nginx");
        let nginx = Nginx {
            process,
            address,
            _folder: folder,
        };
        eventually("nginx listens", async || {
            assert!(nginx.process.is_running(), "{}", nginx.process.log_end());
            TcpStream::connect(address).await.is_ok()
        })
        .await;
        nginx
    }

    /// The end of its log.
    pub fn log_end(&self) -> String {
        self.process.log_end()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends `request` from the address `from`, which must be on this machine, and reads the reply up to the end of the
    /// connection. A body that is not JSON becomes a JSON string.
    pub async fn send_from(&self, from: &str, request: &str) -> Answer {
        let from: IpAddr = from.parse().expect("an address");
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .bind(SocketAddr::new(from, 0))
            .expect("an address of this machine");
        let mut stream = socket.connect(self.address).await.expect("a connection");
        let mut reply = Vec::new();
        // A reset after the reply is as good as an end: nginx does not read all of a request that it refuses.
        let end = timeout(PATIENCE, async {
            stream.write_all(request.as_bytes()).await?;
            stream.read_to_end(&mut reply).await
        })
        .await
        .expect("a reply in time");
        assert!(!reply.is_empty(), "no reply: {end:?}");
        let text = String::from_utf8_lossy(&reply);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let mut lines = head.lines();
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {text}"));
        let mut headers = HeaderMap::new();
        for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a header's name");
            headers.append(name, value.parse().expect("a header's value"));
        }
        let body = serde_json::from_str(body).unwrap_or_else(|_| Value::from(body));
        Answer {
            request: request.lines().next().unwrap_or_default().to_owned(),
            status,
            headers,
            body,
        }
    }

    /// A request with these further header lines, from `127.0.0.1`.
    pub async fn request(&self, method: &str, path: &str, headers: &str) -> Answer {
        self.request_from("127.0.0.1", method, path, headers).await
    }

    /// A request without a body, with these further header lines.
    pub async fn request_from(
        &self,
        from: &str,
        method: &str,
        path: &str,
        headers: &str,
    ) -> Answer {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 0\r\n{headers}\r\n"
        );
        self.send_from(from, &request).await
    }
}
