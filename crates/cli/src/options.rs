//! Makes a client from the values of the options, and reports errors in them.
//!
//! An error names the origin of the value. The exit code is 64 for the command line, 78 for the environment and the
//! file.

use std::io;
use std::time::Duration;

use quorlock::admin::{exactly, explained};
use quorlock::settings::{Given, Origin, PLACES};
use quorlock::{BuildError, Client, ClientBuilder, InvalidRequest, Lease, Resources};

use crate::args::{LockArgs, NodeArgs, Times};
use crate::exit_code::ExitCode;

/// The error that ends quorlock: its message and its exit code.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) message: String,
    /// For example 64 or 78 for wrong options, 65 for a damaged lease, 70 for a fault of the machine.
    pub(crate) code: ExitCode,
}

impl Refused {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: ExitCode::Usage }
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: ExitCode::Config }
    }

    /// A fault of the machine.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: ExitCode::Internal }
    }

    /// Refuses the values of these options, and names their origins. The exit code is that of the environment or the
    /// file if none of the options was typed.
    pub(crate) fn about(options: &[&str], message: impl Into<String>, args: &NodeArgs) -> Self {
        let given = options.iter().filter_map(|name| Some((*name, args.values.of(name)?)));
        let given: Vec<(&str, &Given)> = given.collect();
        let message = message.into();
        if given.is_empty() {
            return Self::usage(message);
        }
        let is_typed = given.iter().any(|(_, given)| given.origin == Origin::Typed);
        let origins: Vec<&str> = given.iter().map(|(_, given)| given.source.as_str()).collect();
        // If only one option is at fault, its origin replaces the option's name at the beginning of the message.
        let rest = match given[..] {
            [(name, _)] => message.strip_prefix(name).filter(|rest| rest.starts_with(" (")),
            _ => None,
        };
        let message = match rest {
            Some(rest) => format!("{}{rest}", origins[0]),
            None => format!("{}: {message}", origins.join(", ")),
        };
        if is_typed { Self::usage(message) } else { Self::config(message) }
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::internal(format!("cannot run on this machine: {}", explained(&error)))
    }
}

/// The ttl, unless it leaves no time to stop a command or a script.
pub(crate) fn stoppable_ttl(times: &Times, args: &NodeArgs) -> Result<Duration, Refused> {
    const MIN: Duration = Duration::from_millis(500);
    let ttl = times.ttl(args);
    if ttl >= MIN {
        return Ok(ttl);
    }
    // Without --ttl, the ttl is this short only because --max-ttl is, so the message names --max-ttl.
    let name = if times.ttl.is_some() { "ttl" } else { "max-ttl" };
    let ttl = exactly(ttl);
    let message =
        format!("{name} ({ttl}) must be at least {MIN:?}, so that there is time to stop a command");
    Err(Refused::about(&[name], message, args))
}

/// Refuses keys that cannot be locked and options that do not go together, before a client connects.
pub(crate) fn check_lock(lock: &LockArgs, args: &NodeArgs) -> Result<(), Refused> {
    if lock.shared && lock.fenced {
        let message = "these do not go together: a reader has no fencing token";
        return Err(Refused::about(&["shared", "fenced"], message, args));
    }
    let keys: Vec<&str> = lock.keys().collect();
    keys.iter().try_for_each(|key| check_key(key, args))?;
    let places = || keys.iter().enumerate();
    if let Some((_, key)) = places().find(|(place, key)| keys[..*place].contains(key)) {
        return Err(Refused::usage(format!("--also: \"{}\" is named twice", key.escape_debug())));
    }
    if keys.len() > Resources::COUNT_MAX {
        let (count, max) = (keys.len(), Resources::COUNT_MAX);
        let message = format!("--also: a lock has at most {max} keys, not {count}");
        return Err(Refused::usage(message));
    }
    Ok(())
}

/// Refuses a key that cannot be locked, before a client connects.
pub(crate) fn check_key(key: &str, args: &NodeArgs) -> Result<(), Refused> {
    if key.starts_with(Lease::START) {
        return Err(Refused::usage("this is a lease, not the name of a lock"));
    }
    Resources::check_name(key).map_err(|error| {
        // The command line calls a resource KEY.
        let told =
            error.to_string().replace("the resource's name", "KEY").replace("the resource", "KEY");
        Refused::usage(told)
    })?;
    let whole = format!("{}{key}", args.key_prefix());
    // The prefix and the key together must not make a reserved name. The length was checked above.
    match Resources::check_name(&whole) {
        Err(error @ InvalidRequest::ResourceReserved) => {
            Err(Refused::about(&["key-prefix"], error.to_string(), args))
        }
        _ => Ok(()),
    }
}

pub(crate) fn builder(args: &NodeArgs) -> Result<ClientBuilder, Refused> {
    if args.values.of("node").is_none() {
        return Err(no_nodes(args));
    }
    let builder = args.values.builder();
    builder.map_err(|(name, reason)| Refused::about(&[name], reason.to_string(), args))
}

pub(crate) fn build(builder: ClientBuilder, args: &NodeArgs) -> Result<Client, Refused> {
    builder.own_thread(true).build().map_err(|error| blamed(error, args))
}

pub(crate) fn blamed(error: BuildError, args: &NodeArgs) -> Refused {
    let message = match &error {
        // The command line spells options with hyphens.
        BuildError::Defaults(InvalidRequest::Timing(error)) => error.to_string().replace('_', "-"),
        error => error.to_string(),
    };
    match error {
        BuildError::Thread { .. } => Refused::internal(message),
        _ => Refused::about(error.settings(), message, args),
    }
}

fn no_nodes(args: &NodeArgs) -> Refused {
    // With this variable, this is a command of `quorlock run`, which has removed the variables that name the nodes.
    let nested = match std::env::var_os("QUORLOCK_KEY") {
        Some(_) => " (quorlock run removes them from the environment; its --pass-nodes keeps them)",
        None => "",
    };
    let file = match &args.values.file {
        Some(file) => format!("nodes = […] in {}", file.display()),
        None => format!("nodes = […] in the file of --config, or in {PLACES}"),
    };
    Refused::usage(format!(
        "no nodes were given{nested}: use --node NAME=URL (repeatable), QUORLOCK_NODES=NAME=URL,NAME=URL,… or {file}"
    ))
}
