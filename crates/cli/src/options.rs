//! From the values of the options to a client, and what is wrong with them.
//!
//! An error names where the value came from. Its exit code is 64 for the command line, 78 for the environment and the
//! file.

use std::io;

use quorlock::admin::explained;
use quorlock::env::{self, Deployment, SettingError};
use quorlock::node::NodeConfig;
use quorlock::{BuildError, Client, ClientBuilder, InvalidRequest, RESOURCES_MAX, RestartGuard};

use crate::args::NodeArgs;
use crate::exit_code::ExitCode;
use crate::settings::{self, Origin};

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

    /// A fault of these options' values: names where they came from. The exit code is that of the environment or
    /// the file if none of the options was typed.
    pub(crate) fn about(options: &[&str], message: impl Into<String>, args: &NodeArgs) -> Self {
        let origins: Vec<&Origin> =
            options.iter().filter_map(|name| args.origins.of(name)).collect();
        let message = message.into();
        if origins.is_empty() {
            return Self::usage(message);
        }
        let is_typed = origins.iter().any(|origin| matches!(origin, Origin::Typed(_)));
        let origins: Vec<String> = origins.iter().map(ToString::to_string).collect();
        let message = format!("{}: {message}", origins.join(", "));
        if is_typed { Self::usage(message) } else { Self::config(message) }
    }
}

/// The machine lacks what quorlock needs to begin.
impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        let message = format!("cannot run on this machine: {}", explained(&error));
        Self { message, code: ExitCode::Internal }
    }
}

/// Refuses what cannot be locked together.
pub(crate) fn check_keys<'a>(
    keys: impl Iterator<Item = &'a str>,
    args: &NodeArgs,
) -> Result<(), Refused> {
    let keys: Vec<&str> = keys.collect();
    keys.iter().try_for_each(|key| check_key(key, args))?;
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
pub(crate) fn check_key(key: &str, args: &NodeArgs) -> Result<(), Refused> {
    quorlock::check_resource(key).map_err(|error| {
        // Here a resource is called KEY.
        let told =
            error.to_string().replace("the resource's name", "KEY").replace("the resource", "KEY");
        Refused::usage(told)
    })?;
    let whole = format!("{}{key}", args.key_prefix.as_deref().unwrap_or_default());
    // Only what the two make together is of interest: how long a key may be is up to its name.
    match quorlock::check_resource(&whole) {
        Err(error @ InvalidRequest::ResourceReserved) => {
            Err(Refused::about(&["key-prefix"], error.to_string(), args))
        }
        _ => Ok(()),
    }
}

/// Makes the builder that the options describe.
pub(crate) fn builder(args: &NodeArgs) -> Result<ClientBuilder, Refused> {
    let password = std::env::var("QUORLOCK_PASSWORD").ok().filter(|password| !password.is_empty());
    // The environment wins over the file.
    let from_file = matches!(args.origins.of("password-file"), Some(Origin::File { .. }));
    let password_file = args.password_file.clone().filter(|_| password.is_none() || !from_file);
    let deployment = Deployment {
        nodes: nodes(args)?,
        quorum: args.quorum,
        key_prefix: args.key_prefix.clone(),
        max_ttl: args.max_ttl,
        restart_guard: args.restart_guard,
        durable: args.durable.clone(),
        node_timeout: args.node_timeout,
        connect_timeout: args.connect_timeout,
        username: args.username.clone(),
        password,
        password_file,
        tls_ca: args.tls_ca.clone(),
        tls_cert: args.tls_cert.clone(),
        tls_key: args.tls_key.clone(),
        tls_server_name: args.tls_server_name.clone(),
    };
    let told = |error: SettingError| Refused::about(&[error.setting], error.reason, args);
    deployment.builder().map_err(told)
}

/// The restart guard is off.
pub(crate) fn guard_is_off(args: &NodeArgs) -> bool {
    args.restart_guard == Some(RestartGuard::Off)
}

/// Builds the client, on a thread of its own.
pub(crate) fn build(builder: ClientBuilder, args: &NodeArgs) -> Result<Client, Refused> {
    build_here(builder.own_thread(), args)
}

/// Builds the client as a task on the runtime that this is called on.
pub(crate) fn build_here(builder: ClientBuilder, args: &NodeArgs) -> Result<Client, Refused> {
    builder.build().map_err(|error| blamed(error, args))
}

/// Names the options that an error is about.
pub(crate) fn blamed(error: BuildError, args: &NodeArgs) -> Refused {
    let message = match &error {
        // Here an option is spelled so.
        BuildError::Defaults(InvalidRequest::Timing(error)) => error.to_string().replace('_', "-"),
        error => error.to_string(),
    };
    match error {
        BuildError::Thread { .. } => Refused { message, code: ExitCode::Internal },
        _ => Refused::about(error.settings(), message, args),
    }
}

fn nodes(args: &NodeArgs) -> Result<Vec<NodeConfig>, Refused> {
    if args.node.is_empty() {
        // Set for the command of a `quorlock run`, whose variables about nodes are gone.
        let nested = match std::env::var_os("QUORLOCK_KEY") {
            Some(_) => {
                " (quorlock run removes them from the environment; its --pass-nodes keeps them)"
            }
            None => "",
        };
        let file = match &args.origins.file {
            Some(file) => format!("nodes = […] in {}", file.display()),
            None => format!("nodes = […] in the file of --config, or in {}", settings::PLACES),
        };
        return Err(Refused::usage(format!(
            "no nodes were given{nested}: use --node URL (repeatable), QUORLOCK_NODES=URL,URL,… or {file}"
        )));
    }
    let nodes: Result<Vec<_>, _> = args.node.iter().map(|list| env::nodes(list)).collect();
    nodes.map(|nodes| nodes.concat()).map_err(|reason| Refused::about(&["node"], reason, args))
}
