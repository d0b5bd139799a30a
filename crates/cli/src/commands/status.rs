//! `quorlock status`: shows the holder of a lock, node by node.

use std::io::{self, IsTerminal};
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::admin::{self, AdminConnection, Reply, Topology, group, names};
use quorlock::node::{Failure, Holding};
use quorlock::{
    Client, ClientBuilder, Holder, HolderKind, Inspection, NodeAnswer, NodeOutcome, NodeStats,
    NodeTrustState, RestartGuard, Verdict,
};
use serde_json::{Value, json};

use super::events::too_few;
use super::slow::looking;
use crate::args::{NodeArgs, OutputArgs, Status};
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{self, columns, json_line, millis, since, time, unix_millis};

const WATCH_EVERY: Duration = Duration::from_secs(1);

const LOOKS_AT_ONCE: usize = 64;

const READERS_NAMED: usize = 10;

pub(crate) fn main(args: &Status, format: OutputArgs) -> Result<ExitCode, Refused> {
    args.keys.iter().try_for_each(|key| options::check_key(key, &args.nodes))?;
    let builder = reader(&args.nodes)?;
    let topology = Topology::of(&builder).map_err(|error| options::blamed(error, &args.nodes))?;
    let client = options::build(builder.clone(), &args.nodes)?;
    super::runtime()?.block_on(show(&client, (&builder, &topology), args, format))
}

/// The settings of a client that only reads. Its restart guard is not strict, because a strict client writes markers.
pub(super) fn reader(nodes: &NodeArgs) -> Result<ClientBuilder, Refused> {
    let is_unguarded = nodes.restart_guard() == RestartGuard::Off;
    Ok(admin::reader(options::builder(nodes)?, is_unguarded))
}

async fn show(
    client: &Client,
    (builder, topology): (&ClientBuilder, &Topology),
    args: &Status,
    format: OutputArgs,
) -> Result<ExitCode, Refused> {
    let mut is_first = true;
    loop {
        let look = async {
            // The first inspection makes the client ask whether each node is trusted. The second inspection has the answers.
            if std::mem::take(&mut is_first) {
                inspect(client, &args.keys[..1]).await?;
            }
            let inspections = inspect(client, &args.keys).await?;
            let beside = look_beside(topology, &args.keys, &inspections[0]).await;
            Ok::<_, Refused>((inspections, beside))
        };
        let (inspections, beside) = looking(builder, format, look).await?;
        let nodes = client.stats().nodes;
        if args.watch && !format.json && io::stdout().is_terminal() {
            // This text moves the cursor home and clears the screen, so that nothing scrolls away.
            output::print_as_is(b"\x1b[H\x1b[2J")?;
        }
        for (place, (key, inspection)) in args.keys.iter().zip(&inspections).enumerate() {
            let beside = beside.iter().map(|node| node.get(place).copied().unwrap_or_default());
            let look = Look { key, inspection, nodes: &nodes, topology, beside: beside.collect() };
            output::print(&if format.json {
                json_line(look.as_json())
            } else if !format.quiet {
                look.as_table()
            } else if args.keys.len() == 1 {
                format!("{}\n", inspection.verdict())
            } else {
                format!("{}: {}\n", key.escape_debug(), inspection.verdict())
            })?;
        }
        if !args.watch {
            return Ok(exit_code(&inspections, args.exit_code));
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// Inspects all keys, [`LOOKS_AT_ONCE`] at a time.
async fn inspect(client: &Client, keys: &[String]) -> Result<Vec<Inspection>, Refused> {
    let mut inspections = Vec::with_capacity(keys.len());
    for keys in keys.chunks(LOOKS_AT_ONCE) {
        let look = |key: &String| {
            let (client, key) = (client.clone(), key.clone());
            tokio::spawn(async move { client.inspect(&key).await })
        };
        let looks: Vec<_> = keys.iter().map(look).collect();
        for look in looks {
            let inspected = look.await.map_err(io::Error::other)?;
            inspections.push(inspected.map_err(|error| Refused::usage(error.to_string()))?);
        }
    }
    Ok(inspections)
}

/// The auxiliary keys that a node has for a lock, in addition to the key that holds the lock's value.
#[derive(Clone, Copy, Default)]
struct Beside {
    /// A writer's intent without expiry. Every intent in use expires, so this one is a leftover.
    has_endless_intent: bool,
    /// A nonce. Only a lock with a value that its caller chose has this key.
    has_nonce: bool,
    /// The last fencing token that the node has given out; `None` without a fencing counter.
    fencing_token: Option<u64>,
}

/// For each node, the auxiliary keys of each lock in `keys`. Empty for a node that does not answer, or whose inspection found
/// that it cannot be reached.
async fn look_beside(topology: &Topology, keys: &[String], seen: &Inspection) -> Vec<Vec<Beside>> {
    let calls = keys.iter().flat_map(|key| {
        [
            ["PTTL".to_owned(), topology.intent(key).to_string()].to_vec(),
            ["PTTL".to_owned(), topology.nonce(key).to_string()].to_vec(),
            // A token has at most 16 digits.
            ["GETRANGE", &topology.counter(key), "0", "15"].map(str::to_owned).to_vec(),
        ]
    });
    let calls: Vec<Vec<String>> = calls.collect();
    let looks = topology.servers.iter().zip(&seen.nodes).map(|(server, seen)| async {
        match seen.failure() {
            Some(failure) if failure.kind().is_about_reach() => Err(failure.clone()),
            _ => AdminConnection::open(server).await?.ask(&calls).await,
        }
    });
    let of_keys = |replies: Result<Vec<Reply>, Failure>| {
        let replies = replies.unwrap_or_default();
        let of_key = |told: &[Reply]| Beside {
            has_endless_intent: told[0] == Reply::Int(-1),
            has_nonce: matches!(told[1], Reply::Int(0..)),
            fencing_token: match &told[2] {
                Reply::Bytes(digits) => {
                    std::str::from_utf8(digits).ok().and_then(|it| it.parse().ok())
                }
                _ => None,
            },
        };
        replies.chunks_exact(3).map(of_key).collect()
    };
    join_all(looks).await.into_iter().map(of_keys).collect()
}

/// The exit code for an unknown lock if there is one. Otherwise, if `tells_held`, the code for a lock that is not free.
fn exit_code(inspections: &[Inspection], tells_held: bool) -> ExitCode {
    let of_verdict =
        |verdict: Verdict| inspections.iter().filter(move |it| it.verdict() == verdict);
    let mut unknown = of_verdict(Verdict::Unknown).map(why_unknown);
    if let Some(first) = unknown.next() {
        return if unknown.all(|other| other == first) { first } else { ExitCode::NoQuorum };
    }
    let are_free = of_verdict(Verdict::Free).count() == inspections.len();
    if tells_held && !are_free { ExitCode::Held } else { ExitCode::Success }
}

pub(super) fn why_unknown(inspection: &Inspection) -> ExitCode {
    let failures = inspection.nodes.iter().filter_map(NodeAnswer::failure);
    too_few(failures, inspection.nodes.len(), inspection.quorum())
}

struct Look<'a> {
    key: &'a str,
    inspection: &'a Inspection,
    nodes: &'a [NodeStats],
    topology: &'a Topology,
    /// For each node, the auxiliary keys of the lock.
    beside: Vec<Beside>,
}

impl Look<'_> {
    fn as_table(&self) -> String {
        let Self { key, inspection, nodes, .. } = self;
        let with_nonce = self.beside.iter().filter(|node| node.has_nonce).count();
        let headline = headline(inspection, with_nonce >= inspection.quorum());
        let mut table = format!("{}: {headline}\n", key.escape_debug());
        let head = ["NODE", "STATE", "TTL LEFT", "HOLDER"];
        let rows =
            group(inspection.nodes.iter().map(|node| (&*node.node, row(node))), |one, other| {
                one[0] == "failed" && one == other
            });
        let rows = rows
            .into_iter()
            .map(|(nodes, [state, left, holder])| [nodes.join(", "), state, left, holder]);
        for line in columns(head, rows, &[2]) {
            table.push_str(&format!("  {line}\n"));
        }
        table.push_str(&trust_states(inspection, nodes));
        if let Some(token) = self.fencing_token() {
            table += &format!(
                "  the last fencing token of this key is {token}: all writers of it must use --fenced\n"
            );
        }
        for (place, answer) in inspection.nodes.iter().enumerate() {
            let leftovers = [
                (self.removal(place, answer), "its key never expires; if no program uses it"),
                (
                    self.intent_removal(place),
                    "a writer's intent never expires and keeps readers out; it is a leftover",
                ),
            ];
            for (line, what) in leftovers {
                let line = line.map(|line| format!("  node {}: {what}: {line}\n", answer.node));
                table.push_str(&line.unwrap_or_default());
            }
        }
        table
    }

    /// The largest fencing token of the key that a node has given out.
    fn fencing_token(&self) -> Option<u64> {
        self.beside.iter().filter_map(|node| node.fencing_token).max()
    }

    /// The command line that deletes a key without expiry. Every lock expires, so such a key is a leftover, or no lock.
    fn removal(&self, place: usize, answer: &NodeAnswer) -> Option<String> {
        answer.holder().filter(|holder| holder.remaining.is_none())?;
        self.deletion(place, &format!("{}{}", self.topology.prefix, self.key))
    }

    /// The command line that deletes a writer's intent if the intent never expires. Such an intent is a leftover.
    fn intent_removal(&self, place: usize) -> Option<String> {
        self.beside.get(place).filter(|beside| beside.has_endless_intent)?;
        self.deletion(place, &self.topology.intent(self.key))
    }

    fn deletion(&self, place: usize, key: &str) -> Option<String> {
        let server = self.topology.servers.get(place)?;
        Some(server.redis_cli().line_about("DEL", key.as_bytes()))
    }

    fn as_json(&self) -> Value {
        let Self { key, inspection, nodes, .. } = self;
        let with_trust_state = |(place, (answer, stats)): (usize, (&NodeAnswer, &NodeStats))| {
            let mut node = node_json(answer);
            let doubt = inspection.doubt(place);
            let (trust_state, remaining) = match &stats.trust_state {
                NodeTrustState::Trusted if doubt.is_none() => ("trusted", None),
                NodeTrustState::Quarantined { remaining, .. } => ("quarantined", Some(*remaining)),
                NodeTrustState::Refused(_) => ("refused", None),
                NodeTrustState::Unguarded => ("unguarded", None),
                _ => ("unverified", None),
            };
            node["trust_state"] = json!(trust_state);
            node["trust_state_text"] = json!(trust_state_text(doubt, &stats.trust_state));
            node["votes_count_in_ms"] = json!(remaining.map(millis));
            node["removed_by"] = json!(self.removal(place, answer));
            node["intent_removed_by"] = json!(self.intent_removal(place));
            node
        };
        let nodes: Vec<Value> =
            inspection.nodes.iter().zip(*nodes).enumerate().map(with_trust_state).collect();
        let holder = inspection.holder();
        json!({
            "key": key,
            "verdict": inspection.verdict().to_string().to_lowercase(),
            "quorum": inspection.quorum(),
            "holder": holder.as_ref().map(who),
            "holder_nodes": inspection.holder_nodes(),
            "since_unix_ms": holder.and_then(|holder| holder.since).map(unix_millis),
            "readers": inspection.reader_count(),
            "fencing_token": self.fencing_token(),
            "nodes": nodes,
        })
    }
}

/// A line for nodes whose votes do not count. A node that did not answer, and of which nothing is known, is left out: the
/// table says why.
pub(super) fn trust_states(inspection: &Inspection, nodes: &[NodeStats]) -> String {
    let answers = inspection.nodes.iter().zip(nodes).enumerate();
    let states = answers.filter_map(|(place, (answer, node))| {
        let doubt = inspection.doubt(place).filter(|_| matches!(answer.said, NodeOutcome::Seen(_)));
        let text = trust_state_text(doubt, &node.trust_state);
        let hint = match (&node.trust_state, doubt) {
            (NodeTrustState::Quarantined { .. } | NodeTrustState::Refused(_), _) => "",
            (_, Some(doubt)) if doubt.detail().is_some() => "",
            (_, Some(_)) => ": whether it votes is not known; quorlock doctor says why",
            (_, None) => return None,
        };
        Some((&*node.name, format!("{text}{hint}")))
    });
    let groups = group(states, |one, other| one == other);
    groups.iter().map(|(nodes, state)| format!("  {}: {state}\n", names(nodes))).collect()
}

/// Whether a node's votes count. The doubt about its answer is newer, but the time of a quarantine is that of now.
fn trust_state_text(doubt: Option<&Failure>, trust_state: &NodeTrustState) -> String {
    match (doubt, trust_state) {
        (Some(doubt), NodeTrustState::Trusted | NodeTrustState::Unverified) => doubt.to_string(),
        (_, trust_state) => trust_state.to_string(),
    }
}

/// The verdict and the holder. `has_nonce`: a quorum has the lock's nonce, so the lock's caller chose the value.
pub(super) fn headline(inspection: &Inspection, has_nonce: bool) -> String {
    let named = |holder: &Holder| match &holder.kind {
        HolderKind::Foreign(value) if has_nonce => {
            format!("the value \"{value}\" that its caller chose")
        }
        kind => kind.to_string(),
    };
    let verdict = inspection.verdict();
    let held = inspection.holder_nodes();
    let nodes = inspection.nodes.len();
    match (verdict, inspection.holder()) {
        (Verdict::Held, Some(holder)) => {
            let (holder, since) = (named(&holder), held_since(&holder));
            format!("{verdict} by {holder}, {since} (on {held} of {nodes} nodes)")
        }
        (Verdict::Shared, _) => format!("HELD shared by {}", readers(inspection)),
        (Verdict::Free, _) => format!("{verdict}"),
        (Verdict::Split, _) => {
            format!("{verdict}: nobody has {} of {nodes} nodes", inspection.quorum())
        }
        (_, holder) if inspection.untrusted() > 0 => {
            let untrusted = inspection.untrusted();
            let holder = match holder {
                Some(holder) => format!("held by {} on {held} of {nodes} nodes; ", named(&holder)),
                None => String::new(),
            };
            let nodes = if untrusted == 1 { "node that says" } else { "nodes that say" };
            format!("{verdict}: {holder}{untrusted} {nodes} it is free may have forgotten it")
        }
        _ => format!("{verdict}: too few of {nodes} nodes answered"),
    }
}

/// The number of readers, and at most [`READERS_NAMED`] of them, each with the beginning of its lock if it is known.
pub(super) fn readers(inspection: &Inspection) -> String {
    let readers = inspection.readers();
    let name = |reader: &Holder| match reader.since {
        Some(then) => format!("{} since {}", who(reader), since(then)),
        None => who(reader),
    };
    let names: Vec<String> = readers.iter().take(READERS_NAMED).map(name).collect();
    let (count, shown) = (inspection.reader_count(), names.len());
    let plural = if count == 1 { "" } else { "s" };
    let shown = if shown < count { format!(" ({shown} of {count} shown)") } else { String::new() };
    format!("{count} reader{plural}{shown}: {}", names.join(", "))
}

/// Says since when the holder has the lock, if this is known, or that the key never expires.
pub(super) fn held_since(holder: &Holder) -> String {
    match (holder.since, holder.remaining) {
        (Some(then), _) => format!("since {}", since(then)),
        (None, Some(_)) => "since unknown".to_owned(),
        (None, None) => "without expiry".to_owned(),
    }
}

/// The state of a lock on a node, the time until its end, and its holder or the node's failure.
pub(super) fn row(node: &NodeAnswer) -> [String; 3] {
    match (&node.said, node.holder()) {
        (NodeOutcome::Failed(failure), _) => ["failed".into(), String::new(), failure.to_string()],
        (_, Some(holder)) => {
            let left = holder.remaining.map_or_else(|| "never".to_owned(), time);
            ["held".to_owned(), left, who(&holder)]
        }
        (NodeOutcome::Seen(Holding::Free), None) => {
            ["free".to_owned(), String::new(), String::new()]
        }
        _ => ["silent".to_owned(), String::new(), format!("no answer within {}", time(node.took))],
    }
}

/// The holder without times, which have their own columns.
pub(crate) fn who(holder: &Holder) -> String {
    match &holder.kind {
        HolderKind::Foreign(value) => format!("value \"{value}\""),
        kind => kind.to_string(),
    }
}

/// A node's answer, for `status --json` and the events of `run`.
pub(crate) fn node_json(node: &NodeAnswer) -> Value {
    let holder = node.holder();
    let state = match (&node.said, &holder) {
        (NodeOutcome::Failed(_), _) => "failed",
        (NodeOutcome::Granted, _) => "granted",
        (_, Some(Holder { kind: HolderKind::WaitingWriter(_), .. })) => "writer_waits",
        (_, Some(_)) => "held",
        (NodeOutcome::Refused(_), None) => "refused",
        (NodeOutcome::Seen(_), None) => "free",
        (NodeOutcome::NotAsked, _) => "not_asked",
        _ => "silent",
    };
    json!({
        "node": &*node.node,
        "state": state,
        "holder": holder.as_ref().map(who),
        "left_ms": holder.as_ref().and_then(|holder| holder.remaining).map(millis),
        "since_unix_ms": holder.as_ref().and_then(|holder| holder.since).map(unix_millis),
        "failure": node.failure().map(ToString::to_string),
    })
}
