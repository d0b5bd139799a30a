//! Configuration of a server.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// The options that differ between servers. Everything else is fixed: no persistence, all files in a temporary
/// directory, and only the loopback interface.
#[derive(Clone, Default)]
pub struct ServerOptions {
    /// The address for clients.
    pub listen: Listen,
    /// The default user's password.
    pub password: Option<String>,
    /// Further command-line arguments, such as `["--maxmemory", "8mb"]` or
    /// `["--user", "alice", "on", ">secret", "~*", "+@all"]`. They override all other configuration. Other users of the
    /// machine can see them.
    pub args: Vec<String>,
    /// Additional environment variables.
    pub env: Vec<(OsString, OsString)>,
    /// Serve only TLS on a TCP port. `listen` has no effect then.
    pub tls: Option<TlsFiles>,
}

/// The type of address for clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    /// A socket in the server's temporary directory. No other process can occupy it.
    #[default]
    UnixSocket,
    /// A free port of 127.0.0.1.
    Tcp,
}

/// The TLS files of a server: absolute paths, PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate.
    pub cert: PathBuf,
    /// The private key of `cert`.
    pub key: PathBuf,
    /// The certificate authority that signs clients' certificates.
    pub ca: PathBuf,
    /// Whether clients must present a certificate.
    pub client_auth: bool,
}

/// Hides the password, and the values of arguments, which may contain the password of an ACL user.
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
    /// Returns the text of the configuration file for a server in `home`, with a TCP port if there is one.
    ///
    /// Every server also has a Unix socket, to which this crate connects even if clients use TLS. A server that answers
    /// there has bound its port, so no other process has that port.
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

/// Quotes an argument for the configuration file. Unusual bytes become `\xHH`.
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

/// Percent-encodes a part of a URL, except unreserved bytes and the bytes in `keep`.
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
