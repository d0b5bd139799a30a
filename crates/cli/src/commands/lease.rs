//! `quorlock extend` and `quorlock release`: what happens to a lock after `quorlock acquire` has printed its lease.

use std::time::Duration;
use std::{fs, io};

use humantime::format_rfc3339_seconds;
use quorlock::admin::{confirmations, exactly, names};
use quorlock::node::{Holding, NodeState};
use quorlock::settings::{Origin, default_ttl};
use quorlock::{
    BuildError, Client, InvalidRequest, Lease, LeaseError, LeaseKind, LockOptions, NodeAnswer,
    NodeOutcome, NodeReleased, Outcome, TimingError,
};
use serde_json::{Value, json};

use super::events::{
    add_validity, lock_event, outcome_name, release_unconfirmed, remedies, too_few,
};
use super::status::node_json;
use super::{keeper, lease_file};
use crate::args::{Extend, LeaseArgs, NodeArgs, OutputArgs, Release};
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{self, Output, json_line, millis, time, unix_millis};

/// A lock that an earlier command has taken.
enum Held {
    Lease(Box<Lease>),
    Value { key: String, value: String },
}

/// The cause of the loss in events.
pub(super) fn cause(error: &LeaseError) -> &'static str {
    let is_other = |node: &NodeAnswer| matches!(node.said, NodeOutcome::Refused(_));
    match error {
        LeaseError::Lost { nodes, .. } if nodes.iter().any(is_other) => "key_overwritten",
        LeaseError::Lost { .. } => "key_gone",
        LeaseError::HoldLimit { .. } => "hold_limit",
        _ => "expired",
    }
}

/// The keys of a lease between quotation marks.
pub(super) fn quoted(lease: &Lease) -> String {
    titled(lease.resources())
}

fn titled<'a>(keys: impl Iterator<Item = &'a str>) -> String {
    let names = keys.map(|it| it.escape_debug().to_string());
    format!("\"{}\"", names.collect::<Vec<_>>().join("\", \""))
}

/// The variable with the lease if no argument names one. Other users of the machine cannot read it.
const VARIABLE: &str = "QUORLOCK_LEASE";

fn variable() -> Result<String, Refused> {
    let text = std::env::var_os(VARIABLE).unwrap_or_default().to_string_lossy().into_owned();
    if !text.trim().is_empty() {
        return Ok(text);
    }
    Err(Refused::usage(format!(
        "no lease: {VARIABLE} is not set or empty; set it to the line that acquire printed, or give LEASE, - for \
         standard input, or --lease-file PATH"
    )))
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
            (Some(text), ..) => lease_file::parse(text, "LEASE").map_err(|mut refused| {
                if !text.starts_with("quorlock") {
                    refused.message +=
                        "; or give KEY and --value V if the lock was acquired with a value";
                }
                refused
            })?,
            (None, None, _) => lease_file::parse(&variable()?, VARIABLE)?,
        };
        Ok(Self::Lease(Box::new(lease)))
    }

    fn keys(&self) -> Vec<&str> {
        match self {
            Self::Lease(lease) => lease.resources().collect(),
            Self::Value { key, .. } => vec![key],
        }
    }

    fn event(&self, name: &str) -> Value {
        lock_event(name, self.keys().into_iter())
    }

    /// The keys between quotation marks.
    fn title(&self) -> String {
        titled(self.keys().into_iter())
    }

    fn refused(&self, error: &LeaseError, output: &mut Output) -> ExitCode {
        let may_be_free = |node: &NodeAnswer| {
            matches!(node.said, NodeOutcome::Seen(Holding::Free) | NodeOutcome::Nothing)
        };
        let refused = |code| (code, "refused", None);
        let (code, name, cause) = match error {
            LeaseError::Over { .. } | LeaseError::Lost { .. } => {
                (ExitCode::Lost, "lost", Some(cause(error)))
            }
            LeaseError::Unconfirmed { nodes, needed, .. } => {
                let failures = nodes.iter().filter_map(NodeAnswer::failure);
                (too_few(failures, nodes.len(), *needed), "unconfirmed", None)
            }
            LeaseError::Text(_) | LeaseError::OtherCluster { .. } => refused(ExitCode::Data),
            LeaseError::HoldLimit { .. } => refused(ExitCode::Lost),
            LeaseError::Invalid(_) | LeaseError::Kind { .. } => refused(ExitCode::Usage),
            _ => refused(ExitCode::Internal),
        };
        let mut event = self.event(name);
        if cause.is_some() {
            event["cause"] = json!(cause);
        } else if let LeaseError::Unconfirmed { nodes, .. } = error {
            let confirmed = nodes.iter().filter(|node| node.said == NodeOutcome::Granted);
            event["confirmed"] = json!(confirmed.count());
            event["of"] = json!(nodes.len());
        }
        let title = self.title();
        let message = match (self, error) {
            (Self::Value { .. }, LeaseError::Lost { nodes, .. })
                if nodes.iter().all(may_be_free) =>
            {
                format!("{title} is free: not extended")
            }
            (Self::Value { .. }, LeaseError::Lost { nodes, needed, .. }) => {
                let nodes = confirmations(nodes, *needed);
                format!("no quorum of nodes has this value at {title}: {nodes}")
            }
            (_, LeaseError::Unconfirmed { nodes, .. }) => {
                let remedy = match code {
                    ExitCode::NotAllowed => "quorlock doctor says what is missing".to_owned(),
                    _ => remedies(nodes.iter().filter_map(NodeAnswer::failure)),
                };
                format!("{error}; {remedy}")
            }
            (Self::Lease(lease), LeaseError::HoldLimit { .. }) => format!(
                "{title} is not extended, because that would reach past --max-hold of its acquire; it ends {}; then acquire \
                 it again",
                clock(lease)
            ),
            _ => error.to_string(),
        };
        if !error.nodes().is_empty() {
            event["nodes"] = error.nodes().iter().map(node_json).collect();
        }
        event["message"] = json!(message);
        output.error(event, &message);
        code
    }
}

pub(crate) fn extend(args: &Extend, format: OutputArgs) -> Result<ExitCode, Refused> {
    let held = Held::read(&args.lease, &args.nodes)?;
    if let (Held::Lease(lease), Some(Origin::Typed)) = (&held, args.nodes.values.origin("ttl")) {
        let message =
            format!("a lease keeps the ttl of its acquire, here {}", exactly(lease.ttl()));
        return Err(Refused::about(&["ttl"], message, &args.nodes));
    }
    let mut output = Output::new(format, None)?;
    let (client, runtime) = (client(&held, &args.nodes)?, super::runtime()?);
    match &held {
        Held::Value { key, value } => {
            let ttl = args.ttl.unwrap_or_else(|| default_ttl(args.nodes.max_ttl()));
            let valid = match runtime.block_on(client.extend_value(key, value, ttl)) {
                Ok(valid) => valid,
                Err(error) => return Ok(held.refused(&error, &mut output)),
            };
            let mut event = held.event("extended");
            add_validity(&mut event, valid, None, false);
            output.event(event, Some(&format!("{} is extended for {}", held.title(), time(valid))));
        }
        Held::Lease(lease) => {
            let lease = match runtime.block_on(client.extend_lease(lease)) {
                Ok(lease) => lease,
                Err(error) => return Ok(held.refused(&error, &mut output)),
            };
            let file = args.lease.lease_file.as_ref();
            let mut fault = file.and_then(|path| {
                let (path, error) = (path.display(), lease_file::write(path, &lease).err()?);
                Some(format!(
                    "{path}: {error}; the lock is extended, and the file has the earlier lease"
                ))
            });
            if format.json || !format.quiet || file.is_none() {
                let printed = match format.json {
                    _ if file.is_none() && output::is_stdout_closed() => {
                        Err(io::Error::other("standard output is closed"))
                    }
                    true => output::write(json_line(lease_json(&lease))),
                    false => output::write(format!("{lease}\n")),
                };
                if let Err(error) = printed {
                    fault.get_or_insert(format!(
                        "cannot print the new lease: {error}; the lock is extended, and the earlier lease can \
                         still release it"
                    ));
                }
            }
            let mut event = held.event("extended");
            add_lease(&mut event, &lease);
            if let Some(message) = fault {
                event["message"] = json!(message);
                output.error(event, &message);
                return Ok(ExitCode::Internal);
            }
            let end = format!("{} ends {} unless it is extended", held.title(), clock(&lease));
            output.event(event, Some(&*end).filter(|_| lease.keeper().is_none()));
        }
    }
    Ok(ExitCode::Success)
}

pub(crate) fn release(args: &Release, format: OutputArgs) -> Result<ExitCode, Refused> {
    let held = Held::read(&args.lease, &args.nodes)?;
    let mut output = Output::new(format, None)?;
    let (client, runtime) = (client(&held, &args.nodes)?, super::runtime()?);
    let (ttl, released) = match &held {
        Held::Value { key, value } => {
            let released = runtime.block_on(client.release_value(key, value));
            (None, released.map_err(LeaseError::from))
        }
        Held::Lease(lease) => {
            if let Err(error) = client.accepts(lease) {
                return Ok(held.refused(&error, &mut output));
            }
            // A keeper that lives on would extend the lock during the release, or report its loss to the script.
            keeper::end(lease);
            (Some(lease.ttl()), runtime.block_on(client.release_lease(lease)))
        }
    };
    let released = match released {
        Ok(released) => released,
        Err(error) => return Ok(held.refused(&error, &mut output)),
    };
    let mut event = held.event("released");
    event["outcome"] = json!(outcome_name(released.outcome));
    let title = held.title();
    let message = match (&held, released.outcome) {
        (_, Outcome::Released) => None,
        (Held::Value { .. }, Outcome::Expired) => {
            Some(format!("no quorum of nodes had this value at {title}"))
        }
        (Held::Lease(_), Outcome::Expired) => Some(format!("{title} was over already")),
        (Held::Value { .. }, Outcome::TakenByOther) => {
            let others = released.nodes().filter(|(_, said)| **said == NodeReleased::Other);
            let others: Vec<&str> = others.map(|(node, _)| node).collect();
            let message = format!("{title} has another value ({}): not released", names(&others));
            output.error(event, &message);
            return Ok(ExitCode::Lost);
        }
        (Held::Lease(_), Outcome::TakenByOther) => {
            Some(format!("{title} was over already; another client holds it, or did since"))
        }
        _ => {
            let end = ttl.map_or_else(|| "its ttl".to_owned(), time);
            output.error(event, &release_unconfirmed(&released, &title, &end));
            let failures = released.nodes().filter_map(|(_, said)| match said {
                NodeReleased::Failed(failure) => Some(failure),
                _ => None,
            });
            let count = released.nodes().count();
            return Ok(too_few(failures, count, args.nodes.quorum().unwrap_or(count / 2 + 1)));
        }
    };
    output.event(event, message.as_deref());
    if let Some(path) = &args.lease.lease_file {
        fs::remove_file(path).map_err(|error| {
            Refused::internal(format!("{}: {error}; the lock is released", path.display()))
        })?;
    }
    // The release goes on at nodes that have not answered yet.
    let ttl = ttl.unwrap_or_else(|| default_ttl(args.nodes.max_ttl()));
    runtime.block_on(shutdown_everywhere(&client, ttl));
    Ok(ExitCode::Success)
}

/// Shuts the client down after the release of a lock that another process acquired. Such a lock may be on nodes to which
/// this client is still connecting, so this waits for them too: for at most [`CONNECTED_WITHIN`]. Nodes that are down are
/// left to the keys' ttl.
async fn shutdown_everywhere(client: &Client, ttl: Duration) {
    let draining = async {
        loop {
            let nodes = client.stats().nodes;
            let is_connecting =
                nodes.iter().any(|node| matches!(node.state, NodeState::Connecting));
            let wait = if is_connecting { STEP } else { client.longest_node_timeout(ttl) };
            if client.shutdown(wait).await.is_ok() || !is_connecting {
                return;
            }
        }
    };
    // A key that is left on a node expires.
    let _ = tokio::time::timeout(CONNECTED_WITHIN, draining).await;
}

/// After a release that a quorum has confirmed, the command waits this long for connections to the other nodes.
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);

/// The interval at which the command looks whether nodes are still being connected to.
const STEP: Duration = Duration::from_millis(20);

/// A client whose locks have the ttl of the lease.
fn client(held: &Held, nodes: &NodeArgs) -> Result<Client, Refused> {
    let builder = options::builder(nodes)?;
    let Held::Lease(lease) = held else { return options::build(builder, nodes) };
    let builder = builder.options(LockOptions::new().ttl(lease.ttl())).own_thread(true);
    builder.build().map_err(|error| {
        let BuildError::Defaults(InvalidRequest::Timing(why)) = &error else {
            return options::blamed(error, nodes);
        };
        let remedy = match why {
            TimingError::TtlTooLong { ttl, .. } => {
                format!("; use --max-ttl {} or more", exactly(*ttl))
            }
            TimingError::NodeTimeout { ttl, .. } => {
                format!(
                    "; use --node-timeout {} or less",
                    exactly(Duration::from_millis(
                        u64::try_from(ttl.as_millis() / 4).unwrap_or(u64::MAX)
                    ))
                )
            }
            _ => String::new(),
        };
        let (title, ttl) = (held.title(), exactly(lease.ttl()));
        let why = why.to_string().replace('_', "-");
        Refused::usage(format!("the lease of {title} has a ttl of {ttl}: {why}{remedy}"))
    })
}

/// The end of a lease and the time until then, such as `at 2026-11-26T12:03:11Z (in 59.9s)`.
pub(super) fn clock(lease: &Lease) -> String {
    let until = format_rfc3339_seconds(lease.valid_until());
    format!("at {until} (in {})", time(lease.remaining()))
}

pub(super) fn add_lease(event: &mut Value, lease: &Lease) {
    let is_shared = lease.kind() == LeaseKind::Shared;
    add_validity(event, lease.remaining(), lease.fencing_token().map(u64::from), is_shared);
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
        "fence": lease.fencing_token(),
        "valid_for_ms": millis(lease.remaining()),
        "valid_until_unix_ms": unix_millis(lease.valid_until()),
        "keeper_pid": lease.keeper().map(|keeper| keeper.pid),
    })
}
