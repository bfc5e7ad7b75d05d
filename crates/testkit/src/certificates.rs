//! Certificates for servers and clients on 127.0.0.1, made by `openssl`.

use std::path::PathBuf;
use std::process::Command;

use super::process::TemporaryFolder;

/// What `openssl req` asks of a configuration file.
const CONFIGURATION: &str = "[req]\ndistinguished_name = name\n[name]\n";

/// A certificate authority, and a certificate of a server and of a client that it has signed. Files in
/// PEM format, removed when dropped.
#[derive(Debug)]
pub struct Certificates {
    folder: TemporaryFolder,
}

impl Certificates {
    #[allow(clippy::new_without_default)] // it runs a program
    /// Makes them; they are valid for two days.
    ///
    /// # Panics
    /// `openssl` is not installed, or does not know these options (before 3.0).
    pub fn new() -> Self {
        let new = Self {
            folder: TemporaryFolder::new().expect("a temporary folder"),
        };
        std::fs::write(new.path("openssl.cnf"), CONFIGURATION).expect("a file");
        let authority = [
            "basicConstraints=critical,CA:TRUE",
            "keyUsage=critical,keyCertSign",
        ];
        new.sign("authority", false, &authority);
        new.sign("server", true, &["subjectAltName=IP:127.0.0.1"]);
        new.sign("client", true, &["extendedKeyUsage=clientAuth"]);
        new
    }

    /// The file of this name: `authority.crt`, `server.crt`, `server.key`, `client.crt` or `client.key`.
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// The content of a file.
    pub fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.path(file)).expect(file)
    }

    /// The command line of a server that listens for TLS on `port`, asks clients for a certificate,
    /// and uses TLS with its replicas and the other nodes of a cluster.
    pub fn arguments(&self, port: u16) -> Vec<String> {
        let file = |name: &str| self.path(name).display().to_string();
        let words = [
            ("--tls-port", port.to_string()),
            ("--tls-ca-cert-file", file("authority.crt")),
            ("--tls-cert-file", file("server.crt")),
            ("--tls-key-file", file("server.key")),
            ("--tls-auth-clients", "yes".to_owned()),
            ("--tls-replication", "yes".to_owned()),
            ("--tls-cluster", "yes".to_owned()),
        ];
        words
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect()
    }

    /// Makes a key and a certificate, signed by the authority or by itself.
    fn sign(&self, name: &str, by_authority: bool, extensions: &[&str]) {
        let file = |suffix: &str| self.path(&format!("{name}.{suffix}"));
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"]);
        openssl.args([
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-subj",
            &format!("/CN={name}"),
        ]);
        openssl.arg("-config").arg(self.path("openssl.cnf"));
        openssl
            .arg("-keyout")
            .arg(file("key"))
            .arg("-out")
            .arg(file("crt"));
        if by_authority {
            openssl.arg("-CA").arg(self.path("authority.crt"));
            openssl.arg("-CAkey").arg(self.path("authority.key"));
            openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        }
        for extension in extensions {
            openssl.args(["-addext", extension]);
        }
        let output = openssl.output().expect("openssl");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
