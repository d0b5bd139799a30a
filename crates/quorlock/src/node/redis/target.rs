//! The address of a server and its log-in, parsed from a URL.

use std::borrow::Cow;
use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::{Host, Url};

use crate::error::Reason;
use crate::node::config::is_name;
use crate::settings::nearest;

const DEFAULT_PORT: u16 = 6379;

const SENTINEL_PORT: u16 = 26379;

/// The schemes of URLs. Those that do not end in `unix` may end in `+sentinel`, too.
const SCHEMES: [&str; 7] =
    ["redis", "rediss", "valkey", "valkeys", "redis+unix", "valkey+unix", "unix"];

/// The most Sentinels of a node, because each gets a part of the connect timeout.
const SENTINELS_MAX: usize = 9;

/// The parameters that the URL of a node behind Sentinels can have.
const OF_SENTINEL: [&str; 6] =
    ["sentinel", "replicas", "db", "sentinel-user", "sentinel-password", "tls-server-name"];

/// The error about a comma in the URL of Sentinels.
const SENTINELS: &str = "the text behind the comma is no node; further Sentinels are parameters: \
    redis+sentinel://HOST1:26379/NAME?sentinel=HOST2:26379&sentinel=HOST3:26379&replicas=1";

#[derive(Clone)]
pub(in crate::node) struct Target {
    pub(super) address: Address,
    pub(in crate::node) username: Option<String>,
    pub(in crate::node) password: Option<String>,
    pub(super) database: u32,
    /// The name that the server's certificate must have; `None` means the host.
    pub(in crate::node) tls_server_name: Option<String>,
    /// The number of replicas that must acknowledge each vote.
    pub(in crate::node) replicas: u32,
    /// The Sentinels' name for the master, and the Sentinels; `None` for a server. `address` is the first Sentinel's.
    pub(super) sentinels: Option<(String, Vec<Target>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Port { host: String, port: u16, encrypted: bool },
    Socket(PathBuf),
}

impl Target {
    pub(in crate::node) fn parse(text: &str) -> Result<Self, Reason> {
        let text = match text {
            "" => return Err("it is empty".into()),
            // Printed commands have it where the address of a node is not known.
            "URL" => {
                return Err(
                    "this is a placeholder: put the address of that node in its place, such as \
                            redis://10.0.0.1:6379"
                        .into(),
                );
            }
            text if lacks_colon(text) => {
                return Err(
                    "malformed: a colon is missing behind the scheme, as in redis://".into()
                );
            }
            text if is_bare(text) => Cow::Owned(format!("redis://{text}")),
            text => Cow::Borrowed(text),
        };
        let text = &*text;
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err("malformed: a URL starts with a scheme, such as redis://".into());
        };
        let of_master = scheme.strip_suffix("+sentinel").filter(|it| SCHEMES[..4].contains(it));
        if !SCHEMES.contains(&scheme) && of_master.is_none() {
            return Err(Reason::from(format!(
                "unknown scheme {:?}; use redis://, rediss://, valkey://, valkeys://, redis+unix:// or \
                 redis+sentinel://",
                scheme.chars().take(20).collect::<String>()
            )));
        }
        if of_master.is_some() && has_comma(text) {
            return Err(SENTINELS.into());
        }
        if cfg!(not(feature = "tls")) && is_encrypted(scheme) {
            return Err("this build has no TLS (feature \"tls\")".into());
        }
        // The error does not repeat the unreadable part, which may belong to a password.
        let tail = rest.find(['/', '?', '#']).map_or("", |place| &rest[place..]);
        if tail.contains('@') && !scheme.ends_with("unix") {
            return Err(
                "malformed: a /, ?, # or @ in a password is written %2F, %3F, %23 or %40".into()
            );
        }
        let url =
            Url::parse(text).map_err(|error| Reason::new(format!("malformed: {error}"), error))?;
        match url.fragment() {
            None => {}
            Some("insecure") => {
                return Err("certificates are always checked; #insecure is not supported".into());
            }
            Some(_) => {
                return Err("a URL must not contain # (what follows it is not shown here); if the # belongs to the \
                            password, write it as %23"
                    .into());
            }
        }
        let is_socket = scheme.ends_with("unix");
        Ok(if is_socket { Self::of_socket(&url) } else { Self::of_port(&url) }?)
    }

    fn of_port(url: &Url) -> Result<Self, String> {
        let encrypted = is_encrypted(url.scheme());
        let is_sentinel = url.scheme().ends_with("+sentinel");
        let port = if is_sentinel { SENTINEL_PORT } else { DEFAULT_PORT };
        let address = address(url, port, encrypted)?;
        let path = url.path().trim_matches('/');
        let username = Some(url.username()).filter(|name| !name.is_empty());
        let mut target = Self {
            database: if is_sentinel { 0 } else { database(path)? },
            username: decoded("user name", username)?,
            password: decoded("password", url.password())?,
            ..Self::at(address)
        };
        let mut sentinels = vec![Self::at(target.address.clone())];
        let (mut sentinel_user, mut sentinel_password) = (None, None);
        for (name, value) in url.query_pairs() {
            match &*name {
                "replicas" => target.replicas = replica_count(&value)?,
                "tls-server-name" if encrypted => target.tls_server_name = Some(value.into_owned()),
                "tls-server-name" => {
                    return Err("tls-server-name is for rediss:// and valkeys://".to_owned());
                }
                "db" if is_sentinel => target.database = database(&value)?,
                "sentinel-user" if is_sentinel => sentinel_user = Some(value.into_owned()),
                "sentinel-password" if is_sentinel => sentinel_password = Some(value.into_owned()),
                "sentinel" if is_sentinel => sentinels.push(Self::at(sentinel(&value, encrypted)?)),
                _ if is_sentinel => return Err(no_parameter(&name, &OF_SENTINEL)),
                _ => {
                    let reason = no_parameter(&name, &["replicas", "tls-server-name"]);
                    return Err(reason + "; the database is the path, as in /3");
                }
            }
        }
        if is_sentinel {
            if !is_name(path) {
                return Err(
                    "the path is the Sentinels' name for the master: redis+sentinel://HOST:26379/NAME?replicas=1"
                        .to_owned(),
                );
            }
            if sentinels.len() > SENTINELS_MAX {
                return Err(format!(
                    "{} Sentinels are given; at most {SENTINELS_MAX} are possible",
                    sentinels.len()
                ));
            }
            for sentinel in &mut sentinels {
                sentinel.username.clone_from(&sentinel_user);
                sentinel.password.clone_from(&sentinel_password);
            }
            target.sentinels = Some((path.to_owned(), sentinels));
        }
        Ok(target)
    }

    /// A target with this address, and with none of the options that a URL can have.
    const fn at(address: Address) -> Self {
        Self {
            address,
            username: None,
            password: None,
            database: 0,
            tls_server_name: None,
            replicas: 0,
            sentinels: None,
        }
    }

    fn of_socket(url: &Url) -> Result<Self, String> {
        let is_rootless = url.has_host() || url.path().trim_matches('/').is_empty();
        let path = url.to_file_path().ok().filter(|_| !is_rootless);
        let path =
            path.ok_or_else(|| format!("a socket has an absolute path: {}:///path", url.scheme()))?;
        let mut target = Self::at(Address::Socket(path));
        for (name, value) in url.query_pairs() {
            match &*name {
                "user" => target.username = Some(value.into_owned()),
                "pass" => target.password = Some(value.into_owned()),
                "db" => target.database = database(&value)?,
                "replicas" => target.replicas = replica_count(&value)?,
                _ => return Err(no_parameter(&name, &["user", "pass", "db", "replicas"])),
            }
        }
        Ok(target)
    }

    /// The name of a node to which the user gave no name.
    pub(in crate::node) fn name(&self) -> String {
        self.sentinels.as_ref().map_or_else(|| self.address(), |(master, _)| master.clone())
    }

    pub(in crate::node) fn address(&self) -> String {
        let address = match &self.address {
            Address::Port { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Address::Port { host, port, .. } => format!("{host}:{port}"),
            Address::Socket(path) => path.display().to_string(),
        };
        self.sentinels.as_ref().map_or(address.clone(), |(master, _)| format!("{address}/{master}"))
    }

    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self.address, Address::Port { encrypted: true, .. })
    }

    /// Whether the URL has the password of the server or of its Sentinels.
    pub(in crate::node) fn has_any_password(&self) -> bool {
        let sentinels = self.sentinels.iter().flat_map(|(_, sentinels)| sentinels);
        self.password.is_some() || sentinels.into_iter().any(|it| it.password.is_some())
    }

    /// The same server with the database of another one, and with TLS if the other one has it.
    pub(in crate::node) fn like(&self, other: &Self) -> Self {
        let mut target = Self { database: other.database, ..self.clone() };
        if let Address::Port { encrypted, .. } = &mut target.address {
            *encrypted = other.is_encrypted();
        }
        target
    }

    /// The URL without passwords.
    pub(in crate::node) fn url(&self) -> String {
        let mut query = Vec::new();
        let pair = |name: &str, value: &str| format!("{name}={}", encoded(value));
        let mut url = match &self.address {
            Address::Socket(path) => {
                query.extend(self.username.as_deref().map(|user| pair("user", user)));
                let path = path.to_string_lossy();
                let path: Vec<_> = path.split('/').map(encoded).collect();
                format!("redis+unix://{}", path.join("/"))
            }
            Address::Port { host, port, encrypted } => {
                let scheme = if *encrypted { "rediss" } else { "redis" };
                let kind = if self.sentinels.is_some() { "+sentinel" } else { "" };
                let user = self.username.as_deref().map(|user| encoded(user) + "@");
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                format!("{scheme}{kind}://{}{host}:{port}", user.unwrap_or_default())
            }
        };
        if let Some((master, sentinels)) = &self.sentinels {
            url += &format!("/{master}");
            let user = sentinels.first().and_then(|it| it.username.as_deref());
            query.extend(user.map(|user| pair("sentinel-user", user)));
            query.extend(sentinels.iter().skip(1).map(|it| format!("sentinel={}", it.address())));
        }
        let has_path = self.sentinels.is_some() || matches!(self.address, Address::Socket(_));
        match self.database {
            0 => {}
            database if has_path => query.push(format!("db={database}")),
            database => url += &format!("/{database}"),
        }
        if self.replicas > 0 {
            query.push(format!("replicas={}", self.replicas));
        }
        query.extend(self.tls_server_name.as_deref().map(|name| pair("tls-server-name", name)));
        if query.is_empty() { url } else { format!("{url}?{}", query.join("&")) }
    }

    /// User and password; `None` if the URL has neither. Without a user, the client logs in as the default user.
    /// Without a password, it sends an empty one, because the user may accept any password.
    pub(in crate::node) fn login(&self) -> Option<(Option<&str>, &str)> {
        match (&self.username, &self.password) {
            (None, None) => None,
            (username, password) => {
                Some((username.as_deref(), password.as_deref().unwrap_or_default()))
            }
        }
    }
}

/// Host and port of a URL.
fn address(url: &Url, default_port: u16, encrypted: bool) -> Result<Address, String> {
    let host = match url.host() {
        Some(Host::Domain(name)) if name.contains(',') => {
            return Err("one URL names one node; a comma in a password is written %2C".to_owned());
        }
        Some(Host::Domain(name)) if !name.is_empty() => name.to_lowercase(),
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(address)) => address.to_string(),
        Some(Host::Domain(_)) | None => return Err("a host is missing".to_owned()),
    };
    if matches!(&*host, "0.0.0.0" | "::") {
        return Err(format!("{host} stands for all addresses; name one of them"));
    }
    Ok(Address::Port { host, port: url.port().unwrap_or(default_port), encrypted })
}

/// The address of a further Sentinel: `host` or `host:port`.
fn sentinel(text: &str, encrypted: bool) -> Result<Address, String> {
    let url = Url::parse(&format!("redis://{text}")).ok();
    let url = url.filter(|_| is_bare(text) && !text.contains('/'));
    let url = url.ok_or("sentinel is the address of a Sentinel: HOST or HOST:PORT")?;
    address(&url, SENTINEL_PORT, encrypted)
}

/// Whether the URL has a comma outside of users and passwords, as a list of hosts has.
fn has_comma(url: &str) -> bool {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let parameters = query.split('&').filter(|it| !it.starts_with("sentinel-"));
    place.rsplit('@').take(1).chain(parameters).any(|part| part.contains(','))
}

/// The error about a parameter that the URL cannot have. It does not repeat the parameter, which may belong to a
/// password.
fn no_parameter(name: &str, known: &[&str]) -> String {
    let near = nearest(name, known.iter().copied());
    let near = near.map_or_else(String::new, |near| format!(" (do you mean {near}?)"));
    format!("its parameters are {}{near}", known.join(", "))
}

/// The text as a part of a URL.
fn encoded(text: &str) -> String {
    const OTHERS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, OTHERS).to_string()
}

fn is_encrypted(scheme: &str) -> bool {
    matches!(scheme.split('+').next(), Some("rediss" | "valkeys"))
}

fn decoded(what: &str, text: Option<&str>) -> Result<Option<String>, String> {
    let decode = |text| percent_encoding::percent_decode_str(text).decode_utf8();
    let text = text.map(decode).transpose();
    text.map(|text| text.map(String::from)).map_err(|_| format!("the {what} is not UTF-8 text"))
}

/// Whether a scheme is followed by two slashes and no colon, as in `redis//host`.
fn lacks_colon(text: &str) -> bool {
    text.split_once("//")
        .is_some_and(|(scheme, _)| SCHEMES.contains(&scheme.trim_end_matches("+sentinel")))
}

/// `host` or `host:port`, without a scheme. A number alone is no host: it may be meant as a port. `unix:` and `redis:`
/// are no hosts either, but schemes without their slashes.
fn is_bare(text: &str) -> bool {
    let authority = text.split('/').next().unwrap_or_default();
    let is_number = authority.bytes().all(|byte| byte.is_ascii_digit());
    let is_cut = authority.starts_with(':') || authority.ends_with(':');
    looks_like_a_host(text) && !is_number && !is_cut
}

/// Whether the text has the form `host` or `host:port`, with or without a path, or is only a path, as for a socket.
pub(in crate::node) fn looks_like_a_host(text: &str) -> bool {
    let authority = text.split('/').next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !authority.ends_with(']') => (host, port),
        _ => (authority, ""),
    };
    let is_v6 = host.starts_with('[') && host.ends_with(']');
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let good_host = is_v6 || host.chars().all(good);
    good_host && port.chars().all(|c| c.is_ascii_digit()) && (!host.is_empty() || port.is_empty())
}

fn database(text: &str) -> Result<u32, String> {
    match text {
        "" => Ok(0),
        text => text.parse().map_err(|_| "a database has a number, such as 3".to_owned()),
    }
}

fn replica_count(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "replicas is a number, such as 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_password_and_database_are_read() {
        for (url, username, password, database) in [
            ("redis://h", None, None, 0),
            ("redis://h/3", None, None, 3),
            ("redis://:p%40%2f@h/", None, Some("p@/"), 0),
            ("valkey://u@h", Some("u"), None, 0),
            ("redis://u%3a:p@h/1", Some("u:"), Some("p"), 1),
            ("redis+unix:///a?user=u&pass=p%26&db=2", Some("u"), Some("p&"), 2),
            ("redis+sentinel://u:p@h/locks?db=2&sentinel-password=s", Some("u"), Some("p"), 2),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!(target.username.as_deref(), username, "{url}");
            assert_eq!(target.password.as_deref(), password, "{url}");
            assert_eq!(target.database, database, "{url}");
        }
    }

    #[test]
    fn the_number_of_replicas_is_read_from_each_kind_of_url() {
        for (url, replicas) in
            [("redis://h", 0), ("redis://h/3?replicas=1", 1), ("unix:///a?db=2&replicas=2", 2)]
        {
            assert_eq!(Target::parse(url).unwrap().replicas, replicas, "{url}");
        }
    }

    #[test]
    fn the_sentinels_are_read_with_their_own_login() {
        let url = "valkey+sentinel://:p@h:1/locks?sentinel=[::1]:2&sentinel=g&sentinel-user=u&sentinel-password=s%26";
        let target = Target::parse(url).unwrap();
        assert_eq!(target.name(), "locks");
        let (master, sentinels) = target.sentinels.unwrap();
        assert_eq!(master, "locks");
        let addresses: Vec<_> = sentinels.iter().map(Target::address).collect();
        assert_eq!(addresses, ["h:1", "[::1]:2", "g:26379"]);
        for sentinel in sentinels {
            assert_eq!(sentinel.login(), Some((Some("u"), "s&")));
        }
        let plain = Target::parse("redis+sentinel://:p@h/locks").unwrap();
        assert_eq!(
            plain.sentinels.unwrap().1[0].login(),
            None,
            "the master's password is not sent to a Sentinel"
        );
    }

    #[test]
    fn addresses_are_written_as_they_are_read() {
        for (url, address) in [
            ("redis://H.Example", "h.example:6379"),
            ("redis://127.0.0.1:1", "127.0.0.1:1"),
            ("redis://[::1]", "[::1]:6379"),
            ("unix:///run/a%20b", "/run/a b"),
            ("redis+sentinel://h/locks?sentinel=g", "h:26379/locks"),
        ] {
            assert_eq!(Target::parse(url).unwrap().address(), address);
        }
        let port = |encrypted| Address::Port { host: "h".into(), port: 6379, encrypted };
        assert_eq!(Target::parse("redis://h").unwrap().address, port(false));
        #[cfg(feature = "tls")]
        assert_eq!(Target::parse("rediss://h").unwrap().address, port(true));
    }

    #[test]
    fn what_would_have_no_effect_is_refused() {
        for url in [
            "redis://h?db=3",
            "redis://h?protocol=resp2",
            "redis+unix:///a?database=3",
            "redis+unix:///a?db=-1",
            "redis://h/-1",
            "redis://h/a",
            "rediss://h#insecure",
            "redis://h#here",
            "redis://0.0.0.0",
            "redis://[::]",
            "redis+unix://a/b",
            "redis://h?tls-server-name=a",
            "rediss://h?sni=a",
            "redis://h?replicas=-1",
            "redis://h?replicas=",
            "unix:///a?replicas=x",
            "redis://h,h2",
            "redis://h/0?sentinel=g",
            "redis+sentinel://h",
            "redis+sentinel://h:1,g:1/a?replicas=1",
            "redis+sentinel://h/a?replicas=1&sentinel=g,f",
            "redis+sentinel://h/a/b?replicas=1",
            "redis+sentinel://h/a?replicas=x",
            "redis+sentinel://h/a?sentinel=",
            "redis+sentinel://h/a?sentinel=redis://g",
            "redis+sentinel://h/a?sentinel=u:p%40g",
            "redis+sentinel://h/a?sentinel=0.0.0.0",
            "redis+sentinel://h/a?user=u",
            "redis+sentinel://h/a?tls-server-name=b",
            "redis+sentinel://h/a?sentinel=b&sentinel=b&sentinel=b&sentinel=b&sentinel=b&sentinel=b&sentinel=b&sentinel=b\
             &sentinel=b",
            "redis+unix+sentinel://h/a",
            "unix+sentinel://h/a",
        ] {
            assert!(Target::parse(url).is_err(), "{url}");
        }
    }
}
