//! `quorlock extend` and `quorlock release`: what happens to a lock after `quorlock acquire` has printed its lease.

use std::io;
use std::time::Duration;

use humantime::format_rfc3339_seconds;
use quorlock::admin::{group, names};
use quorlock::env::default_ttl;
use quorlock::{
    Client, Lease, LeaseError, LeaseKind, LockOptions, NodeReleased, Outcome, Released,
};
use serde_json::{Value, json};

use super::{keeper, lease_file};
use crate::args::{Extend, LeaseArgs, NodeArgs, OutputArgs, Release};
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{self, Output, millis, time, unix_millis};

/// A lock that an earlier command has taken.
enum Held {
    Lease(Box<Lease>),
    Value { key: String, value: String },
}

impl Held {
    fn read(args: &LeaseArgs, nodes: &NodeArgs) -> Result<Self, Refused> {
        let lease = match (&args.lease, &args.lease_file, &args.value) {
            (Some(key), _, Some(value)) => {
                options::check_key(key, nodes)?;
                return Ok(Self::Value { key: key.clone(), value: value.clone() });
            }
            (_, Some(path), _) => lease_file::read(path, nodes)?,
            (Some(text), ..) if text == "-" => {
                lease_file::parse(&lease_file::text_from(io::stdin())?, "standard input")?
            }
            (Some(text), ..) => lease_file::parse(text, "LEASE")?,
            (None, None, _) => return Err(Refused::usage("no lease was given")),
        };
        Ok(Self::Lease(Box::new(lease)))
    }
}

pub(crate) fn extend(args: &Extend, format: OutputArgs) -> Result<ExitCode, Refused> {
    let held = Held::read(&args.lease, &args.nodes)?;
    let mut output = Output::new(format, None)?;
    let ttl = args.ttl.unwrap_or_else(|| default_ttl(args.nodes.max_ttl));
    let (client, runtime) = (client(&args.nodes)?, super::runtime()?);
    match held {
        Held::Value { key, value } => {
            let extended = runtime.block_on(client.extend_value(&key, &value, ttl));
            let valid = match extended {
                Ok(valid) => valid,
                Err(error) => return refused(&error, &mut output),
            };
            let event = json!({ "event": "extended", "key": key, "valid_for_ms": millis(valid) });
            let line = format!("\"{}\" is extended for {}", key.escape_debug(), time(valid));
            output.event(event, Some(&line));
        }
        Held::Lease(lease) => {
            let extended = runtime.block_on(client.extend_lease(&lease));
            let lease = match extended {
                Ok(lease) => lease,
                Err(error) => return refused(&error, &mut output),
            };
            let written = args.lease.lease_file.as_ref().map(|path| {
                lease_file::write(path, &lease).map_err(|error| Refused {
                    message: format!(
                        "{}: {error}; the lock is extended, and the file has the earlier lease",
                        path.display()
                    ),
                    code: ExitCode::Internal,
                })
            });
            if format.json {
                output::print(&format!("{}\n", lease_json(&lease)))?;
            } else if !format.quiet || written.is_none() {
                output::print(&format!("{lease}\n"))?;
            }
            written.transpose()?;
            if !format.json && lease.keeper().is_none() {
                output.event(
                    Value::Null,
                    Some(&format!(
                        "{} ends {} unless it is extended",
                        title(&lease),
                        clock(&lease)
                    )),
                );
            }
        }
    }
    Ok(ExitCode::Success)
}

pub(crate) fn release(args: &Release, format: OutputArgs) -> Result<ExitCode, Refused> {
    let held = Held::read(&args.lease, &args.nodes)?;
    let mut output = Output::new(format, None)?;
    let (client, runtime) = (client(&args.nodes)?, super::runtime()?);
    let (title, ttl, released) = match held {
        Held::Value { key, value } => {
            let released = runtime.block_on(client.release_value(&key, &value));
            let released = released.map_err(|error| Refused::usage(error.to_string()))?;
            (format!("\"{}\"", key.escape_debug()), None, released)
        }
        Held::Lease(lease) => {
            if let Err(error) = client.accepts(&lease) {
                return refused(&error, &mut output);
            }
            // A keeper that lives on would extend the lock during the release, or report its loss to the script.
            keeper::end(&lease, args.nodes.node_timeout(lease.ttl()));
            match runtime.block_on(client.release_lease(&lease)) {
                Ok(released) => (title(&lease), Some(lease.ttl()), released),
                Err(error) => return refused(&error, &mut output),
            }
        }
    };
    let (name, message) = described(&released, &title, ttl);
    // Without a lease, only the value is known, and not whether its lock was ever held.
    let message = match (&args.lease.value, released.outcome) {
        (Some(_), Outcome::Expired | Outcome::TakenByOther) => {
            Some(format!("no quorum of nodes had this value at {title}"))
        }
        _ => message,
    };
    let event = json!({ "event": "released", "lock": title.trim_matches('"'), "outcome": name });
    if released.outcome == Outcome::Unknown {
        output.error(event, &message.unwrap_or_default());
        return Ok(ExitCode::NoQuorum);
    }
    output.event(event, message.as_deref());
    if let Some(path) = &args.lease.lease_file {
        lease_file::remove(path).map_err(|error| Refused {
            message: format!("{}: {error}; the lock is released", path.display()),
            code: ExitCode::Internal,
        })?;
    }
    // The release goes on at nodes that have not answered yet, for at most one node timeout.
    let _ = runtime.block_on(client.shutdown(args.nodes.node_timeout(ttl.unwrap_or_default())));
    Ok(ExitCode::Success)
}

fn client(nodes: &NodeArgs) -> Result<Client, Refused> {
    options::build(options::builder(nodes)?.options(LockOptions::new()), nodes)
}

/// The name of an outcome, and the message about it.
fn described(
    released: &Released,
    title: &str,
    ttl: Option<Duration>,
) -> (&'static str, Option<String>) {
    match released.outcome {
        Outcome::Released => ("released", None),
        Outcome::Expired => ("expired", Some(format!("{title} was over already"))),
        Outcome::TakenByOther => {
            let message =
                format!("{title} was over already; another client holds it, or did since");
            ("taken_by_other", Some(message))
        }
        _ => {
            let failed = released.nodes().filter_map(|(node, said)| match said {
                NodeReleased::Failed(failure) => Some((node, failure.to_string())),
                _ => None,
            });
            let failed = group(failed, |one, other| one == other);
            let reasons = failed.iter().map(|(nodes, why)| format!("; {}: {why}", names(nodes)));
            let end = ttl.map_or_else(|| "its ttl".to_owned(), time);
            let message = format!(
                "too few nodes confirmed that {title} is free; it is within {end}{}",
                reasons.collect::<String>()
            );
            ("unknown", Some(message))
        }
    }
}

/// Reports that the lock was not extended or released.
fn refused(error: &LeaseError, output: &mut Output) -> Result<ExitCode, Refused> {
    let message = error.to_string();
    let code = match error {
        LeaseError::Text(_) | LeaseError::OtherCluster { .. } => ExitCode::Data,
        LeaseError::Over { .. } | LeaseError::HoldLimit { .. } | LeaseError::Lost { .. } => {
            ExitCode::Lost
        }
        LeaseError::Invalid(_) | LeaseError::Kind { .. } => ExitCode::Usage,
        LeaseError::Unconfirmed { .. } => ExitCode::NoQuorum,
        _ => ExitCode::Internal,
    };
    output.error(json!({ "event": "refused", "message": message }), &message);
    Ok(code)
}

/// The names of a lease between quotation marks.
fn title(lease: &Lease) -> String {
    let names: Vec<String> = lease.resources().map(|it| it.escape_debug().to_string()).collect();
    format!("\"{}\"", names.join("\", \""))
}

/// The end of a lease and the time until then, such as `at 2026-11-26T12:03:11Z (in 59.9s)`.
pub(super) fn clock(lease: &Lease) -> String {
    let until = format_rfc3339_seconds(lease.valid_until());
    format!("at {until} (in {})", time(lease.remaining()))
}

pub(super) fn lease_json(lease: &Lease) -> Value {
    let kind = match lease.kind() {
        LeaseKind::Exclusive => "exclusive",
        LeaseKind::Fenced => "fenced",
        LeaseKind::Shared => "shared",
        LeaseKind::Taken => "taken",
        _ => "unknown",
    };
    json!({
        "lease": lease.to_string(),
        "keys": lease.resources().collect::<Vec<_>>(),
        "kind": kind,
        "fencing_token": lease.fencing_token(),
        "valid_for_ms": millis(lease.remaining()),
        "valid_until_unix_ms": unix_millis(lease.valid_until()),
        "keeper_pid": lease.keeper().map(|keeper| keeper.pid),
    })
}
