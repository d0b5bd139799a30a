//! The environment variables `QUORLOCK_…`, for [`Client::from_env`](crate::Client::from_env) and for the command line.

mod from_env;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use quorlock_core::shown::exactly;
use quorlock_core::{RestartGuard, TTL_MIN, TimingOptions};

pub(crate) use self::from_env::blamed;
use crate::builder::ClientBuilder;
use crate::error::{Reason, Source};
use crate::node::{NodeConfig, Tls};
use crate::options::LockOptions;
use crate::text::printable;

/// The purpose of an environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Describes the nodes, for all programs that use them.
    Deployment,
    /// Describes one run of the program `quorlock`. The commands that the program runs do not inherit the variable.
    Call,
    /// Describes a held lock to the command that runs under it.
    Lock,
    /// Read by tests and tools.
    Tool,
}

/// All environment variables that quorlock knows, with their purposes.
pub const VARIABLES: &[(&str, Class)] = &[
    ("QUORLOCK_NODES", Class::Deployment),
    ("QUORLOCK_CONFIG", Class::Deployment),
    ("QUORLOCK_QUORUM", Class::Deployment),
    ("QUORLOCK_KEY_PREFIX", Class::Deployment),
    ("QUORLOCK_MAX_TTL", Class::Deployment),
    ("QUORLOCK_RESTART_GUARD", Class::Deployment),
    ("QUORLOCK_DURABLE", Class::Deployment),
    ("QUORLOCK_NODE_TIMEOUT", Class::Deployment),
    ("QUORLOCK_CONNECT_TIMEOUT", Class::Deployment),
    ("QUORLOCK_YIELD_TO_POLLERS", Class::Deployment),
    ("QUORLOCK_USERNAME", Class::Deployment),
    ("QUORLOCK_PASSWORD", Class::Deployment),
    ("QUORLOCK_PASSWORD_FILE", Class::Deployment),
    ("QUORLOCK_TLS_CA", Class::Deployment),
    ("QUORLOCK_TLS_CERT", Class::Deployment),
    ("QUORLOCK_TLS_KEY", Class::Deployment),
    ("QUORLOCK_TLS_SERVER_NAME", Class::Deployment),
    ("QUORLOCK_SHARED", Class::Call),
    ("QUORLOCK_FENCED", Class::Call),
    ("QUORLOCK_IF_HELD", Class::Call),
    ("QUORLOCK_HELD_EXIT_CODE", Class::Call),
    ("QUORLOCK_MIN_HOLD", Class::Call),
    ("QUORLOCK_MAX_HOLD", Class::Call),
    ("QUORLOCK_KILL_AFTER", Class::Call),
    ("QUORLOCK_TTL", Class::Call),
    ("QUORLOCK_WAIT", Class::Call),
    ("QUORLOCK_LABEL", Class::Call),
    ("QUORLOCK_STATUS_FD", Class::Call),
    ("QUORLOCK_JSON", Class::Call),
    ("QUORLOCK_QUIET", Class::Call),
    ("QUORLOCK_PASS_NODES", Class::Call),
    ("QUORLOCK_KEY", Class::Lock),
    ("QUORLOCK_TOKEN", Class::Lock),
    ("QUORLOCK_FENCE", Class::Lock),
    ("QUORLOCK_VALID_UNTIL_MS", Class::Lock),
    ("QUORLOCK_SERVER", Class::Tool),
    ("QUORLOCK_REQUIRE_SERVERS", Class::Tool),
    ("QUORLOCK_SKIP_LOG", Class::Tool),
    ("QUORLOCK_MUTANT", Class::Tool),
    ("QUORLOCK_CLOCK_OFFSET_FILE", Class::Tool),
    ("QUORLOCK_BENCH_COMMAND", Class::Tool),
    ("QUORLOCK_FUZZ_SEED", Class::Tool),
    ("QUORLOCK_OLD", Class::Tool),
    ("QUORLOCK_STEPPED", Class::Tool),
];

/// The purpose of a variable; `None` if quorlock does not know the variable.
pub fn class_of(variable: &str) -> Option<Class> {
    if variable.starts_with("QUORLOCK_TEST_") {
        return Some(Class::Tool);
    }
    VARIABLES.iter().find(|(name, _)| *name == variable).map(|(_, class)| *class)
}

/// One line that lists the variables `QUORLOCK_…` that quorlock does not know, at most ten. `None` if there are none.
pub fn unknown_variables() -> Option<String> {
    let names = env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with("QUORLOCK_") && class_of(name).is_none())
        .take(10)
        .collect();
    names.sort();
    let known = VARIABLES.iter().filter(|(_, class)| *class != Class::Tool).map(|(name, _)| *name);
    let told = names.iter().map(|name| match nearest(name, known.clone()) {
        Some(near) => format!("{} (do you mean {near}?)", printable(name)),
        None => printable(name),
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| format!("unknown variables have no effect: {}", told.join(", ")))
}

/// The known name that differs least from `name`; `None` if none resembles it.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.strip_prefix("QUORLOCK_").unwrap_or(name);
    let distance = |other: &str| {
        let other: Vec<char> = other.strip_prefix("QUORLOCK_").unwrap_or(other).chars().collect();
        let mut row: Vec<usize> = (0..=other.len()).collect();
        for (above, c) in name.chars().enumerate() {
            let mut corner = std::mem::replace(&mut row[0], above + 1);
            for (place, o) in other.iter().enumerate() {
                let replaced = corner + usize::from(c != *o);
                corner = row[place + 1];
                row[place + 1] = replaced.min(corner + 1).min(row[place] + 1);
            }
        }
        row[other.len()]
    };
    let near = known.map(|other| (distance(other), other)).min_by_key(|(distance, _)| *distance);
    near.filter(|(distance, _)| *distance <= 1 + name.chars().count() / 3).map(|(_, other)| other)
}

/// Reads a time such as `250ms`, `10s`, `5m` or `1h 30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total = Some(Duration::ZERO).filter(|_| !rest.is_empty());
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, behind) = rest.split_at(digits);
        let behind = behind.trim_start();
        let letters = behind.find(|c: char| !c.is_alphabetic()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(letters);
        rest = behind.trim_start();
        let unit = match unit {
            "us" => Some(Duration::from_micros(1)),
            "ms" => Some(Duration::from_millis(1)),
            "s" | "sec" | "secs" | "second" | "seconds" => Some(Duration::from_secs(1)),
            "m" | "min" | "mins" | "minute" | "minutes" => Some(Duration::from_secs(60)),
            "h" | "hr" | "hrs" | "hour" | "hours" => Some(Duration::from_secs(3600)),
            "d" | "day" | "days" => Some(Duration::from_secs(86_400)),
            _ => None,
        };
        let number = number.parse::<u32>().ok();
        let part = unit.zip(number).and_then(|(unit, number)| unit.checked_mul(number));
        total = total.zip(part).and_then(|(total, part)| total.checked_add(part));
        if total.is_none() {
            break;
        }
    }
    total.ok_or_else(|| "a time has a unit and no fraction, as in 250ms, 10s, 5m or 24h".to_owned())
}

/// Reads a yes or no. Any other text is an error, because a typo must not switch a setting off.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("must be 1, true, yes or on; or 0, false, no or off".to_owned()),
    }
}

/// Reads a mode of the restart guard.
pub fn restart_guard(text: &str) -> Result<RestartGuard, String> {
    match text {
        "strict" => Ok(RestartGuard::Strict),
        "observe" => Ok(RestartGuard::Observe),
        "off" => Ok(RestartGuard::Off),
        _ => Err("must be strict, observe or off".to_owned()),
    }
}

/// Reads a list of nodes that commas separate.
pub fn nodes(text: &str) -> Result<Vec<NodeConfig>, Reason> {
    const COMMA: &str = "a comma separates nodes; write a comma in a password as %2C";
    let mut parts: Vec<String> = Vec::new();
    for part in text.split(',') {
        match parts.last_mut() {
            // The comma is inside a URL of Sentinels. The parts are joined, so the error names the whole URL.
            Some(url) if url.contains("+sentinel://") && !part.contains("://") => {
                *url += &format!(",{part}");
            }
            _ => parts.push(part.to_owned()),
        }
    }
    for (before, part) in parts.iter().zip(&parts[1..]) {
        // No node begins like this part, so the part is the rest of a password with a comma.
        if !part.contains("://") && (part.contains('@') || before.contains("pass=")) {
            return Err(COMMA.into());
        }
    }
    let read = |part: &String| match NodeConfig::parse(part) {
        Ok(_) if part.contains(',') => Err(COMMA.into()),
        Err(_) if part.trim().is_empty() => Err("there is no node before or behind a comma".into()),
        Err(error) if parts.len() > 1 && text.contains('@') => {
            Err(Reason::new(format!("{error} ({COMMA})"), error))
        }
        read => read.map_err(|error| Reason::new(error.to_string(), error)),
    };
    parts.iter().map(read).collect()
}

/// The settings that all users of some nodes share.
#[derive(Clone, Default)]
#[allow(missing_debug_implementations, reason = "it would show the password")]
#[allow(missing_docs, reason = "the fields are called as the methods of the builder")]
pub struct Deployment {
    pub nodes: Vec<NodeConfig>,
    pub quorum: Option<usize>,
    pub key_prefix: Option<String>,
    pub max_ttl: Option<Duration>,
    pub restart_guard: Option<RestartGuard>,
    pub durable: Vec<String>,
    pub node_timeout: Option<Duration>,
    pub connect_timeout: Option<Duration>,
    pub yield_to_pollers: Option<bool>,
    pub username: Option<String>,
    pub password: Option<String>,
    /// The file that contains the password. It has precedence over `password`.
    pub password_file: Option<PathBuf>,
    pub tls_ca: Option<PathBuf>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub tls_server_name: Option<String>,
}

/// A setting that cannot be used.
#[derive(Clone, Debug)]
pub struct SettingError {
    /// The long name of the option on the command line, without dashes, such as `max-ttl`.
    pub setting: &'static str,
    /// The reason in words. It never contains a password.
    pub reason: String,
    /// The underlying error, if there is one.
    pub source: Option<Source>,
}

impl SettingError {
    fn new(setting: &'static str, reason: impl Into<Reason>) -> Self {
        let Reason { text, source } = reason.into();
        Self { setting, reason: text, source }
    }
}

/// The name of the variable that sets an option.
pub fn variable_of(setting: &str) -> String {
    match setting {
        "node" => "QUORLOCK_NODES".to_owned(),
        _ => format!("QUORLOCK_{}", setting.to_ascii_uppercase().replace('-', "_")),
    }
}

/// The ttl of locks without a ttl of their own: the library's default, or `max_ttl` if that is shorter.
pub fn default_ttl(max_ttl: Option<Duration>) -> Duration {
    let usual = TimingOptions::default().ttl;
    max_ttl.map_or(usual, |max_ttl| max_ttl.min(usual))
}

impl Deployment {
    /// Reads the variables that `get` returns. An empty variable counts as not set.
    pub fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, SettingError> {
        let raw = |setting| get(&variable_of(setting)).filter(|text| !is_blank(text));
        let text = |setting: &'static str| {
            let text = raw(setting).map(OsString::into_string).transpose();
            text.map_err(|_| SettingError::new(setting, "it is not UTF-8 text"))
        };
        let time = |setting| text(setting).and_then(|text| parsed(setting, text, duration));
        let number = |text: &str| text.parse().map_err(|_| "must be a number".to_owned());
        let names = |text: &str| {
            Ok::<_, Reason>(text.split(',').map(|name| name.trim().to_owned()).collect())
        };
        let path = |setting| raw(setting).map(PathBuf::from);
        Ok(Self {
            nodes: parsed("node", text("node")?, nodes)?.unwrap_or_default(),
            quorum: parsed("quorum", text("quorum")?, number)?,
            key_prefix: text("key-prefix")?,
            max_ttl: time("max-ttl")?,
            restart_guard: parsed("restart-guard", text("restart-guard")?, restart_guard)?,
            durable: parsed("durable", text("durable")?, names)?.unwrap_or_default(),
            node_timeout: time("node-timeout")?,
            connect_timeout: time("connect-timeout")?,
            yield_to_pollers: parsed("yield-to-pollers", text("yield-to-pollers")?, boolean)?,
            username: text("username")?,
            password: text("password")?,
            password_file: path("password-file"),
            tls_ca: path("tls-ca"),
            tls_cert: path("tls-cert"),
            tls_key: path("tls-key"),
            tls_server_name: text("tls-server-name")?,
        })
    }

    /// Makes the builder that these settings describe. Reads the password file and the TLS files, if set.
    pub fn builder(self) -> Result<ClientBuilder, SettingError> {
        let password = self.password()?;
        let tls = self.tls()?;
        let mut builder = self.nodes.into_iter().fold(ClientBuilder::new(), ClientBuilder::node);
        builder = builder.durable_nodes(self.durable);
        let mut options = LockOptions::new();
        if let Some(max_ttl) = self.max_ttl {
            if max_ttl < TTL_MIN {
                // Without this check, `build` would blame the ttl, which is not a setting here.
                let reason = format!("max-ttl ({}) must be at least {TTL_MIN:?}", exactly(max_ttl));
                return Err(SettingError::new("max-ttl", reason));
            }
            options = options.ttl(default_ttl(self.max_ttl));
            builder = builder.max_ttl(max_ttl);
        }
        builder = with(builder, self.quorum, ClientBuilder::quorum);
        builder = with(builder, self.key_prefix, ClientBuilder::key_prefix);
        builder = with(builder, self.restart_guard, ClientBuilder::restart_guard);
        if let Some(node_timeout) = self.node_timeout {
            options = options.node_timeout(node_timeout);
        }
        options.yield_to_pollers = self.yield_to_pollers;
        builder = builder.options(options);
        builder = with(builder, self.connect_timeout, ClientBuilder::connect_timeout);
        builder = with(builder, self.username, ClientBuilder::username);
        builder = with(builder, password, ClientBuilder::password);
        builder = with(builder, self.tls_server_name, ClientBuilder::tls_server_name);
        Ok(with(builder, tls, ClientBuilder::tls))
    }

    fn password(&self) -> Result<Option<String>, SettingError> {
        let Some(path) = &self.password_file else { return Ok(self.password.clone()) };
        let setting = "password-file";
        let text = read_text(setting, path, "the password")?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() {
            let reason = format!("the password in {}: it is empty", path.display());
            return Err(SettingError::new(setting, reason));
        }
        Ok(Some(password.to_owned()))
    }

    fn tls(&self) -> Result<Option<Tls>, SettingError> {
        let client = self.tls_cert.clone().zip(self.tls_key.clone());
        if client.is_none() && (self.tls_cert.is_some() || self.tls_key.is_some()) {
            let setting = if self.tls_cert.is_some() { "tls-cert" } else { "tls-key" };
            return Err(SettingError::new(setting, "tls-cert and tls-key go together"));
        }
        if client.is_none() && self.tls_ca.is_none() {
            return Ok(None);
        }
        let mut tls = Tls::new();
        if let Some(ca) = &self.tls_ca {
            tls = tls.ca_pem(read_text("tls-ca", ca, "the certificate authority")?);
        }
        if let Some((cert, key)) = &client {
            let cert = read_text("tls-cert", cert, "the certificate")?;
            tls = tls.client_pem(cert, read_text("tls-key", key, "the certificate's key")?);
        }
        Ok(Some(tls.read_from(self.tls_ca.clone(), client)))
    }
}

fn is_blank(text: &OsString) -> bool {
    text.to_str().is_some_and(|text| text.trim().is_empty())
}

fn parsed<T, E: Into<Reason>>(
    setting: &'static str,
    text: Option<String>,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, SettingError> {
    let value = text.as_deref().map(str::trim).map(parse).transpose();
    value.map_err(|reason| SettingError::new(setting, reason))
}

fn with<T>(
    builder: ClientBuilder,
    value: Option<T>,
    set: impl FnOnce(ClientBuilder, T) -> ClientBuilder,
) -> ClientBuilder {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

fn read_text(setting: &'static str, path: &Path, what: &str) -> Result<String, SettingError> {
    let reason = |error| Reason::new(format!("{what} in {}: {error}", path.display()), error);
    fs::read_to_string(path).map_err(|error| SettingError::new(setting, reason(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit() {
        let time = |text| duration(text).ok().map(|time| time.as_micros());
        assert_eq!(time("250ms"), Some(250_000));
        assert_eq!(time("0s"), Some(0));
        assert_eq!(time("0"), Some(0));
        assert_eq!(time(" 1h 30m "), Some(5_400_000_000));
        assert_eq!(time("1m30s5us"), Some(90_000_005));
        for wrong in
            ["", "10", "-1s", "1.5s", "s", "10 x", "1s 2", "forever", "5000000000s", "1 h h"]
        {
            let reason = duration(wrong).unwrap_err();
            assert_eq!(
                reason, "a time has a unit and no fraction, as in 250ms, 10s, 5m or 24h",
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn the_nearest_name_is_found() {
        let known = || VARIABLES.iter().map(|(name, _)| *name);
        for (typed, near) in [
            ("QUORLOCK_NODE", Some("QUORLOCK_NODES")),
            ("QUORLOCK_PASWORD", Some("QUORLOCK_PASSWORD")),
            ("QUORLOCK_MAXTTL", Some("QUORLOCK_MAX_TTL")),
            ("QUORLOCK_RESTARTGUARD", Some("QUORLOCK_RESTART_GUARD")),
            ("QUORLOCK_SERVICE_HOST_7", None),
            ("QUORLOCK_", None),
        ] {
            assert_eq!(nearest(typed, known()), near, "{typed}");
        }
    }

    #[test]
    fn a_comma_in_a_password_or_between_sentinels_is_named() {
        let read = |text| nodes(text).map(|nodes| nodes.len()).map_err(|reason| reason.to_string());
        assert_eq!(read("a=redis://h, b=redis://h2:1"), Ok(2));
        assert_eq!(read("redis://u:p%2Cw@h,redis://:x@h2"), Ok(2));
        assert_eq!(read("redis://h?replicas=1,h2"), Ok(2));
        for text in [
            "redis://:pa,hunter2@h",
            "redis://:hunter2,@h",
            "redis://h,u:hunter2@h2",
            "redis://h,redis://:hunter2,7@h2,redis://h3",
            "redis+unix:///r.sock?user=u&pass=a,hunter2",
            "redis://:1,hunter2://@h",
            "redis+sentinel://:pa,hunter2@h/locks?replicas=1",
            "redis+sentinel://h/locks?replicas=1&sentinel-password=pa,hunter2",
        ] {
            let reason = read(text).unwrap_err();
            assert!(reason.contains("write a comma in a password as %2C"), "{text}: {reason}");
            assert!(!reason.contains("hunter2"), "{reason}");
        }
        assert_eq!(read("redis://h,"), Err("there is no node before or behind a comma".to_owned()));
        for (text, url) in [
            ("redis+sentinel://h:1,g:1/locks?replicas=1", "h:1,g:1/locks"),
            ("a=redis+sentinel://h/locks?sentinel=g,f&replicas=1", "h/locks"),
            ("redis+sentinel://:hunter2@h,g/locks?replicas=1", "***"),
        ] {
            let reason = read(text).unwrap_err();
            let start = format!(
                "node URL \"redis+sentinel://{url}\": the text behind the comma is no node;"
            );
            assert!(reason.starts_with(&start) && !reason.contains("%2C"), "{reason}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn files_and_names_of_certificates_reach_the_node() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../servers/tests/tls");
        let file = |name: &str| Some(folder.join(name).into_os_string());
        let get = |name: &str| match name {
            "QUORLOCK_NODES" => Some("rediss://h,rediss://g?tls-server-name=g.internal".into()),
            "QUORLOCK_TLS_CA" => file("ca.pem"),
            "QUORLOCK_TLS_CERT" => file("node.pem"),
            "QUORLOCK_TLS_KEY" => file("node.key"),
            "QUORLOCK_TLS_SERVER_NAME" => Some("h.internal".into()),
            _ => None,
        };
        let builder = Deployment::read(get).unwrap().builder().unwrap();
        let servers = crate::builder::Topology::of(&builder).unwrap().servers;
        for (server, name) in servers.iter().zip(["h", "g"]) {
            let line = server.redis_cli().line("PING");
            let folder = folder.display();
            let files = format!(
                "--cacert {folder}/ca.pem --cert {folder}/node.pem --key {folder}/node.key"
            );
            assert!(line.contains(&format!("--tls --sni {name}.internal {files} PING")), "{line}");
        }
    }
}
