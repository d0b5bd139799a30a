//! How a server is to be run.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// What may differ from one server to the next. Everything else is fixed: no snapshot, no
/// append-only file, nothing outside a temporary directory, nothing beyond the loopback interface.
#[derive(Clone, Default)]
pub struct ServerOptions {
    /// Where clients connect; a Unix socket unless said otherwise.
    pub listen: Listen,
    /// The default user's password.
    pub password: Option<String>,
    /// Further configuration as on the server's command line, such as `["--maxmemory", "8mb"]` or
    /// `["--user", "alice", "on", ">secret", "~*", "+@all"]`. They come last, so they win, and
    /// other users of the machine can see them.
    pub args: Vec<String>,
    /// Variables of its environment, beside those of this process.
    pub env: Vec<(OsString, OsString)>,
    /// Serve TLS, and nothing but TLS, on a TCP port; `listen` then does not matter.
    pub tls: Option<TlsFiles>,
}

/// Where a server takes connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    /// A socket in the server's temporary directory: no port to collide with anybody.
    #[default]
    UnixSocket,
    /// A port of 127.0.0.1 that was free.
    Tcp,
}

/// The files of a server with TLS, all in PEM, by absolute paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that clients' certificates are checked against.
    pub ca: PathBuf,
    /// Whether clients must show a certificate.
    pub client_auth: bool,
}

/// Passwords stay out, and so do the arguments' values, which may hold an ACL user's password.
impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.args.iter().filter(|arg| arg.starts_with("--")).collect();
        f.debug_struct("ServerOptions")
            .field("listen", &self.listen)
            .field("password", &self.password.as_ref().map(|_| "[hidden]"))
            .field("args", &names)
            .field("env", &self.env)
            .field("tls", &self.tls)
            .finish()
    }
}

impl ServerOptions {
    /// The configuration file of a server that lives in `home` and, given a port, serves it.
    ///
    /// The Unix socket is there in every case: over it this crate talks to its servers, also to
    /// those that speak TLS, and an answer there proves that it is our process that has the port.
    pub(crate) fn config(&self, home: &Path, socket: &Path, port: Option<u16>) -> String {
        let port = port.unwrap_or(0).to_string();
        let mut config = String::new();
        let mut set = |name: &str, value: &[u8]| {
            config.push_str(&format!("{name} {}\n", quoted(value)));
        };
        set("bind", b"127.0.0.1");
        set("port", if self.tls.is_some() { b"0" } else { port.as_bytes() });
        set("unixsocket", socket.as_os_str().as_encoded_bytes());
        set("dir", home.as_os_str().as_encoded_bytes());
        set("daemonize", b"no");
        set("save", b"");
        set("appendonly", b"no");
        if let Some(password) = &self.password {
            set("requirepass", password.as_bytes());
        }
        if let Some(files) = &self.tls {
            set("tls-port", port.as_bytes());
            set("tls-cert-file", files.cert.as_os_str().as_encoded_bytes());
            set("tls-key-file", files.key.as_os_str().as_encoded_bytes());
            set("tls-ca-cert-file", files.ca.as_os_str().as_encoded_bytes());
            set("tls-auth-clients", if files.client_auth { b"yes" } else { b"no" });
        }
        config
    }
}

/// One argument as the configuration file spells it: in quotes, the unusual bytes as `\xHH`.
fn quoted(value: &[u8]) -> String {
    let mut quoted = String::from("\"");
    for &byte in value {
        if byte.is_ascii_alphanumeric() || b" /._-".contains(&byte) {
            quoted.push(char::from(byte));
        } else {
            quoted.push_str(&format!("\\x{byte:02x}"));
        }
    }
    quoted.push('"');
    quoted
}

/// A part of a URL: every byte but the unreserved ones and those in `keep` as `%HH`.
pub(crate) fn percent_encoded(value: &[u8], keep: &[u8]) -> String {
    let mut encoded = String::new();
    for &byte in value {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_secret() {
        let options = ServerOptions {
            password: Some("s3cret".to_owned()),
            args: ["--user", "alice", "on", ">s3cret"].map(String::from).to_vec(),
            ..ServerOptions::default()
        };
        let shown = format!("{options:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(shown.contains("[hidden]") && shown.contains("--user"), "{shown}");
    }

    #[test]
    fn odd_bytes_cannot_end_a_value_early() {
        assert_eq!(quoted(b"a b\"c\\\n"), r#""a b\x22c\x5c\x0a""#);
        assert_eq!(percent_encoded(b"/tmp/a b/p@ss", b"/"), "/tmp/a%20b/p%40ss");
    }
}
