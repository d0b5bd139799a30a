//! From what was typed, set in the environment and written in a file to a client.
//!
//! Arguments win over the environment, the environment over the file. What is wrong is blamed on
//! where it came from: exit code 64 for arguments, 78 for the environment and files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorlock::admin::explained;
use quorlock::node::{NodeConfig, Tls};
use quorlock::{BuildError, Client, ClientBuilder, InvalidRequest, RESOURCES_MAX};
use serde::Deserialize;

use crate::args::{GuardMode, NodeArgs, WaitArg, duration};
use crate::exit_code::ExitCode;

/// Why quorlock cannot begin; nothing was sent.
#[derive(Debug)]
pub(crate) struct Refused {
    /// For people.
    pub(crate) message: String,
    /// 64, 78, or 70 for a fault of the machine.
    pub(crate) code: ExitCode,
}

impl Refused {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: ExitCode::Usage }
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: ExitCode::Config }
    }

    /// Settings that do not go together: blamed on the arguments, unless none of `options` was
    /// typed and one of them is set in the environment or stands in the file.
    pub(crate) fn settings(message: impl Into<String>, options: &[&str], in_file: bool) -> Self {
        let typed = |name: &&str| {
            let option = format!("--{name}");
            let before_command = std::env::args().skip(1).take_while(|arg| arg != "--");
            before_command.into_iter().any(|arg| arg.split('=').next() == Some(option.as_str()))
        };
        let set = |name: &&str| {
            let variable = format!("QUORLOCK_{}", name.to_uppercase().replace('-', "_"));
            std::env::var_os(variable).is_some()
        };
        let elsewhere = in_file || options.iter().any(set);
        if elsewhere && !options.iter().any(typed) {
            Self::config(message)
        } else {
            Self::usage(message)
        }
    }
}

/// The machine lacks what quorlock needs to begin.
impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        let message = format!("cannot run on this machine: {}", explained(&error));
        Self { message, code: ExitCode::Internal }
    }
}

/// The shortest ttl that a lock can have.
const TTL_MIN: Duration = Duration::from_millis(100);

/// The options whose values [`quorlock`] checks against each other.
pub(crate) const TIMES: &[&str] =
    &["ttl", "max-ttl", "node-timeout", "connect-timeout", "max-hold", "min-hold", "kill-after"];

/// What may stand in the file. Every name is that of the option, and there is one field per option: serde
/// denies unknown names only in a record without parts.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct File {
    nodes: Vec<String>,
    quorum: Option<usize>,
    key_prefix: Option<String>,
    max_ttl: Option<Time>,
    restart_guard: Option<GuardMode>,
    durable: Vec<String>,
    node_timeout: Option<Time>,
    connect_timeout: Option<Time>,
    username: Option<String>,
    password_file: Option<PathBuf>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    /// The default for `run --ttl`.
    pub(crate) ttl: Option<Time>,
    /// The default for `run --wait`.
    pub(crate) wait: Option<WaitText>,
    /// The default for `run --max-hold`.
    pub(crate) max_hold: Option<Time>,
}

/// A time in the file: `"10s"`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Time(pub(crate) Duration);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        duration(&text).map(Self)
    }
}

/// A time in the file, or `"forever"`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct WaitText(pub(crate) WaitArg);

impl TryFrom<String> for WaitText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl File {
    /// Reads the file that was named, if one was.
    pub(crate) fn read(args: &NodeArgs) -> Result<Self, Refused> {
        let Some(path) = &args.config else { return Ok(Self::default()) };
        let text = read_text(path, "the configuration")?;
        toml::from_str(&text).map_err(|error: toml::de::Error| {
            // The message alone: the crate's full text quotes the line, which may hold a password.
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            Refused::config(format!("{}, line {line}: {}", path.display(), error.message()))
        })
    }
}

/// Refuses what cannot be locked together.
pub(crate) fn check_keys<'a>(
    keys: impl Iterator<Item = &'a str>,
    args: &NodeArgs,
    file: &File,
) -> Result<(), Refused> {
    let keys: Vec<&str> = keys.collect();
    keys.iter().try_for_each(|key| check_key(key, args, file))?;
    let places = || keys.iter().enumerate();
    if let Some((_, key)) = places().find(|(place, key)| keys[..*place].contains(key)) {
        return Err(Refused::usage(format!("--also: \"{}\" is named twice", key.escape_debug())));
    }
    if keys.len() > RESOURCES_MAX {
        let count = keys.len();
        return Err(Refused::usage(format!(
            "--also: a lock has at most {RESOURCES_MAX} keys, not {count}"
        )));
    }
    Ok(())
}

/// Refuses what cannot be locked, before a client exists that would connect.
pub(crate) fn check_key(key: &str, args: &NodeArgs, file: &File) -> Result<(), Refused> {
    let prefix = args.key_prefix.as_ref().or(file.key_prefix.as_ref());
    let whole = format!("{}{key}", prefix.map_or("", String::as_str));
    // Only what the two make together is of interest: how long a key may be is up to its name.
    let together = quorlock::check_resource(&whole);
    let together = together.or_else(|error| match error {
        InvalidRequest::ResourceReserved => Err(error),
        _ => Ok(()),
    });
    quorlock::check_resource(key).and(together).map_err(|error| Refused::usage(error.to_string()))
}

/// Makes the builder that the arguments, the environment and the file describe.
pub(crate) fn builder(args: &NodeArgs, file: &File) -> Result<ClientBuilder, Refused> {
    let mut builder = Client::builder();
    for node in nodes(args, file)? {
        builder = builder.node(node);
    }
    if let Some(quorum) = args.quorum.or(file.quorum) {
        builder = builder.quorum(quorum);
    }
    if let Some(prefix) = args.key_prefix.as_ref().or(file.key_prefix.as_ref()) {
        builder = builder.key_prefix(prefix);
    }
    let time = |own: Option<Duration>, file: Option<Time>| own.or(file.map(|time| time.0));
    if let Some(max_ttl) = time(args.max_ttl, file.max_ttl) {
        if max_ttl < TTL_MIN {
            // The ttl that would be blamed was not given.
            let message = format!("max-ttl ({max_ttl:?}) must be at least {TTL_MIN:?}");
            return Err(Refused::settings(message, &["max-ttl"], args.config.is_some()));
        }
        builder = builder.max_ttl(max_ttl).ttl(default_ttl(args, file));
    }
    if let Some(mode) = guard(args, file) {
        builder = builder.restart_guard(mode.into());
    }
    let durable = if args.durable.is_empty() { &file.durable } else { &args.durable };
    builder = builder.durable_nodes(durable);
    if let Some(timeout) = time(args.node_timeout, file.node_timeout) {
        builder = builder.node_timeout(timeout);
    }
    if let Some(timeout) = time(args.connect_timeout, file.connect_timeout) {
        builder = builder.connect_timeout(timeout);
    }
    if let Some(username) = args.username.as_ref().or(file.username.as_ref()) {
        builder = builder.username(username);
    }
    if let Some(password) = password(args, file)? {
        builder = builder.password(password);
    }
    if let Some(tls) = tls(args, file)? {
        builder = builder.tls(tls);
    }
    Ok(builder)
}

/// Nobody is to look whether nodes are to be trusted.
pub(crate) fn guard_is_off(args: &NodeArgs, file: &File) -> bool {
    guard(args, file) == Some(GuardMode::Off)
}

/// How much is to be made of what nodes say of themselves, if that was said.
pub(crate) fn guard(args: &NodeArgs, file: &File) -> Option<GuardMode> {
    args.restart_guard.or(file.restart_guard)
}

/// The ttl of locks for which none is given: what is usual, unless no client's is that long.
pub(crate) fn default_ttl(args: &NodeArgs, file: &File) -> Duration {
    const USUAL: Duration = Duration::from_secs(10);
    let max_ttl = args.max_ttl.or(file.max_ttl.map(|time| time.0));
    max_ttl.map_or(USUAL, |max_ttl| max_ttl.min(USUAL))
}

/// Builds the client, on a thread of its own; blames what does not fit on where it came from.
pub(crate) fn build(builder: ClientBuilder, args: &NodeArgs) -> Result<Client, Refused> {
    build_here(builder.own_thread(), args)
}

/// Builds the client as a task on the runtime that this is called on.
pub(crate) fn build_here(builder: ClientBuilder, args: &NodeArgs) -> Result<Client, Refused> {
    builder.build().map_err(|error| blamed(error, args))
}

/// Blames what does not fit on where it came from.
pub(crate) fn blamed(error: BuildError, args: &NodeArgs) -> Refused {
    match error {
        BuildError::Node(_) | BuildError::Duplicate { .. } if args.node.is_empty() => {
            Refused::config(error.to_string())
        }
        BuildError::Thread { .. } => {
            Refused { message: error.to_string(), code: ExitCode::Internal }
        }
        BuildError::UnknownNode { .. } => {
            let message = format!("--durable: {error}");
            Refused::settings(message, &["durable"], args.config.is_some())
        }
        BuildError::Quorum(_) => {
            Refused::settings(error.to_string(), &["quorum", "node"], args.config.is_some())
        }
        _ => Refused::settings(error.to_string(), TIMES, args.config.is_some()),
    }
}

fn nodes(args: &NodeArgs, file: &File) -> Result<Vec<NodeConfig>, Refused> {
    if !args.node.is_empty() {
        let parse = |url: &String| NodeConfig::parse(url);
        let nodes: Result<_, _> = args.node.iter().map(parse).collect();
        return nodes.map_err(|error| Refused::usage(format!("--node: {error}")));
    }
    if let Ok(list) = std::env::var("QUORLOCK_NODES")
        && !list.trim().is_empty()
    {
        let nodes: Result<_, _> = list.split(',').map(NodeConfig::parse).collect();
        return nodes.map_err(|error| Refused::config(format!("QUORLOCK_NODES: {error}")));
    }
    if !file.nodes.is_empty() {
        let nodes: Result<_, _> = file.nodes.iter().map(|url| NodeConfig::parse(url)).collect();
        return nodes.map_err(|error| Refused::config(format!("configuration file: {error}")));
    }
    Err(Refused::usage(
        "no nodes were given: use --node URL (repeatable), QUORLOCK_NODES=URL,URL,… or --config FILE",
    ))
}

fn password(args: &NodeArgs, file: &File) -> Result<Option<String>, Refused> {
    if let Some(path) = args.password_file.as_ref().or(file.password_file.as_ref()) {
        let text = read_text(path, "the password")?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() {
            return Err(Refused::config(format!(
                "the password in {}: it is empty",
                path.display()
            )));
        }
        return Ok(Some(password.to_owned()));
    }
    Ok(std::env::var("QUORLOCK_PASSWORD").ok().filter(|password| !password.is_empty()))
}

fn tls(args: &NodeArgs, file: &File) -> Result<Option<Tls>, Refused> {
    let ca = args.tls_ca.as_ref().or(file.tls_ca.as_ref());
    let cert = args.tls_cert.as_ref().or(file.tls_cert.as_ref());
    let key = args.tls_key.as_ref().or(file.tls_key.as_ref());
    if ca.is_none() && cert.is_none() && key.is_none() {
        return Ok(None);
    }
    let mut tls = Tls::new();
    if let Some(ca) = ca {
        tls = tls.ca_pem(read_text(ca, "the certificate authority")?);
    }
    match (cert, key) {
        (Some(cert), Some(key)) => {
            let cert = read_text(cert, "the certificate")?;
            tls = tls.client_pem(cert, read_text(key, "the certificate's key")?);
        }
        (None, None) => {}
        _ => return Err(Refused::config("tls-cert and tls-key go together")),
    }
    Ok(Some(tls.read_from(ca.cloned(), cert.cloned().zip(key.cloned()))))
}

fn read_text(path: &Path, what: &str) -> Result<String, Refused> {
    fs::read_to_string(path)
        .map_err(|error| Refused::config(format!("{what} in {}: {error}", path.display())))
}
