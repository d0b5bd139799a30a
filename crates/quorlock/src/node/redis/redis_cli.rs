//! The `redis-cli` command line with which a person reaches a node's server, ready to be pasted into a shell.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::target::{Address, Target};
use crate::node::Tls;
use crate::node::tls::{Pem, Source};

/// The command line of `redis-cli` for one server: its address, database, TLS files and user. A password is not part
/// of it; `--askpass` lets `redis-cli` ask for it.
#[derive(Clone, Debug)]
pub struct RedisCli {
    address: String,
    tls: String,
    options: String,
    database: u32,
}

impl RedisCli {
    pub(super) fn new(target: &Target, tls: Option<&Tls>) -> Self {
        let (mut tls_options, mut options) = (String::new(), String::new());
        if matches!(target.address, Address::Port { encrypted: true, .. }) {
            tls_options.push_str(" --tls");
            if let Some(name) = &target.tls_server_name {
                let _ = write!(tls_options, " --sni {}", word(name.as_bytes()).0);
            }
            let file = |pem: &Pem, stand_in: &str| match pem.path() {
                Some(path) => word(path.to_string_lossy().as_bytes()).0.into_owned(),
                None => stand_in.to_owned(),
            };
            if let Some(Tls { source: Source::Parts(parts), .. }) = tls {
                if let Some(ca) = &parts.ca {
                    let _ = write!(tls_options, " --cacert {}", file(ca, "CA.pem"));
                }
                if let Some((cert, key)) = &parts.client {
                    let (cert, key) = (file(cert, "CERTIFICATE.pem"), file(key, "KEY.pem"));
                    let _ = write!(tls_options, " --cert {cert} --key {key}");
                }
            }
        }
        if let Some((username, _)) = target.login() {
            if let Some(username) = username {
                let _ = write!(options, " --user {}", word(username.as_bytes()).0);
            }
            options.push_str(" --askpass");
        }
        let (address, database) = (target.address(), target.database);
        Self { address, tls: tls_options, options, database }
    }

    /// The command line for another server that is reached in the same way, such as a replica. `address` is
    /// `host:port`, or the path of a socket.
    #[must_use]
    pub fn at(&self, address: &str) -> Self {
        Self { address: address.to_owned(), ..self.clone() }
    }

    /// The command line for another database of the server.
    #[must_use]
    pub fn in_database(&self, database: u32) -> Self {
        Self { database, ..self.clone() }
    }

    /// The command line without TLS.
    #[must_use]
    pub fn plain(&self) -> Self {
        Self { tls: String::new(), ..self.clone() }
    }

    /// The command line with TLS but without a check of the certificate, to show only whether the server uses TLS.
    #[must_use]
    pub fn encrypted(&self) -> Self {
        Self { tls: " --tls --insecure".to_owned(), ..self.clone() }
    }

    /// The command line that sends `command`, whose words are already quoted for the shell and `redis-cli`.
    pub fn line(&self, command: &str) -> String {
        let place = match self.address.rsplit_once(':') {
            Some((host, port)) if !self.address.starts_with('/') => {
                format!("-h {} -p {port}", host.trim_matches(['[', ']']))
            }
            _ => format!("-s {}", word(self.address.as_bytes()).0),
        };
        let database = match self.database {
            0 => String::new(),
            database => format!(" -n {database}"),
        };
        format!("redis-cli {place}{}{}{database} {command}", self.tls, self.options)
    }

    /// The command line that sends `command` about a key, which may have any bytes. The line is plain text, from which
    /// the shell and `redis-cli` restore the key.
    pub fn line_about(&self, command: &str, key: &[u8]) -> String {
        let (key, is_escaped) = word(key);
        let escaped = if is_escaped { "--quoted-input " } else { "" };
        self.line(&format!("{escaped}{command} {key}"))
    }
}

/// Quotes one word for the shell. The flag is true if the word contains `redis-cli`'s escapes, because the text has
/// bytes that are not plain text.
fn word(text: &[u8]) -> (Cow<'_, str>, bool) {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    let printed = |c: char| matches!(c, '"' | '\\') || (c != '\'' && c.escape_debug().len() == 1);
    match std::str::from_utf8(text) {
        Ok(text) if !text.is_empty() && text.chars().all(plain) => (text.into(), false),
        Ok(text) if text.chars().all(printed) => (format!("'{text}'").into(), false),
        _ => {
            let mut escaped = "'\"".to_owned();
            for byte in text {
                match byte {
                    b' '..=b'~' if !b"'\"\\".contains(byte) => escaped.push(char::from(*byte)),
                    _ => {
                        let _ = write!(escaped, "\\x{byte:02x}");
                    }
                }
            }
            ((escaped + "\"'").into(), true)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> RedisCli {
        RedisCli::new(&Target::parse(url).unwrap(), None)
    }

    #[test]
    fn the_line_reaches_that_server_and_has_no_password() {
        for (url, line) in [
            ("redis://a:6380", "redis-cli -h a -p 6380 PING"),
            ("redis://[::1]:6380", "redis-cli -h ::1 -p 6380 PING"),
            ("redis://h/3", "redis-cli -h h -p 6379 -n 3 PING"),
            ("unix:///run/r.sock?db=1", "redis-cli -s /run/r.sock -n 1 PING"),
            ("unix:///run/a%20b", "redis-cli -s '/run/a b' PING"),
            ("redis://:hunter2@h", "redis-cli -h h -p 6379 --askpass PING"),
            ("redis://app:hunter2@h/3", "redis-cli -h h -p 6379 --user app --askpass -n 3 PING"),
        ] {
            assert_eq!(of(url).line("PING"), line);
        }
        let replica = of("redis://:hunter2@h/3").at("r:1").in_database(0);
        assert_eq!(replica.line("PING"), "redis-cli -h r -p 1 --askpass PING");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn the_line_has_what_tls_needs() {
        let target = Target::parse("rediss://h").unwrap();
        let line = |tls: Option<&Tls>| RedisCli::new(&target, tls).line("PING");
        let tls = Tls::new().ca_pem("x");
        assert_eq!(line(None), "redis-cli -h h -p 6379 --tls PING");
        assert_eq!(line(Some(&tls)), "redis-cli -h h -p 6379 --tls --cacert CA.pem PING");
        let tls = tls.ca_file("/etc/my ca.pem").client_files("/c.pem", "/k.pem");
        assert_eq!(
            line(Some(&tls)),
            "redis-cli -h h -p 6379 --tls --cacert '/etc/my ca.pem' --cert /c.pem --key /k.pem PING"
        );
        let plain = Target::parse("redis://h").unwrap();
        assert_eq!(RedisCli::new(&plain, Some(&tls)).line("PING"), "redis-cli -h h -p 6379 PING");
    }

    #[test]
    fn any_key_is_one_word() {
        let line = |key: &[u8]| of("redis://h").line_about("DEL", key);
        let end = |line: &str| line.strip_prefix("redis-cli -h h -p 6379 ").unwrap().to_owned();
        for (key, words) in [
            (&b"app:job-1"[..], "DEL app:job-1"),
            (b"", "DEL ''"),
            (b"a b; $(reboot) \"x\" \\n", "DEL 'a b; $(reboot) \"x\" \\n'"),
            ("ключ".as_bytes(), "DEL 'ключ'"),
            (b"it's", "--quoted-input DEL '\"it\\x27s\"'"),
            (b"a\nb\x1b\"\\", "--quoted-input DEL '\"a\\x0ab\\x1b\\x22\\x5c\"'"),
            (b"\xff", "--quoted-input DEL '\"\\xff\"'"),
            ("\u{202e}".as_bytes(), "--quoted-input DEL '\"\\xe2\\x80\\xae\"'"),
        ] {
            assert_eq!(end(&line(key)), words);
        }
    }
}
