//! Facts: the events of a run, as input of invariants and traces.

use std::fmt;
use std::time::Duration;

use quorlock_core::{
    AcquireForm, Answer, Command, Detached, Entry, Evidence, ExtendForm, Extended, HealForm,
    Holding, Key, LockId, LossCause, Mode, NodeOutcome, NodeResult, Reading, Refusal, ReleaseForm,
    ReleaseReport, Request, Ticket, Token, TrustState, Validity, Value,
};

use crate::guard::GuardId;
use crate::time::{MS, Time};

/// A client's number. A client that restarts after a crash gets another number.
pub(crate) type ClientId = usize;

/// A node's index in the list.
pub(crate) type NodeIndex = usize;

#[derive(Debug)]
pub(crate) enum Fact<'a> {
    /// A caller asks for a lock.
    Wanted { client: ClientId, lock: LockId, request: &'a Request },
    /// A caller cancels its call.
    Cancelled { client: ClientId, lock: LockId },
    /// A holder asks for an extension.
    ExtendAsked { guard: GuardId },
    /// A holder downgrades to a reader.
    Downgraded { guard: GuardId },
    /// A holder detaches its lock.
    DetachAsked { guard: GuardId },
    /// The engine reports the detached lock, or (`None`) that the lock is lost.
    Detached { guard: GuardId, detached: Option<&'a Detached> },
    /// The engine reports that it has extended a lock for a caller without a guard, or (`None`) that this failed.
    EntryExtended {
        client: ClientId,
        lock: LockId,
        entry: &'a Entry,
        validity: Option<&'a Validity>,
    },
    /// A holder notices the end of its lock.
    EndSeen { guard: GuardId },
    /// A holder releases or drops its guard.
    ReleaseAsked { guard: GuardId, report: bool },
    /// A tick of the driver begins: the engine gets all pending input under one reading.
    Tick { client: ClientId },
    /// The engine begins an attempt.
    Begun { client: ClientId, lock: LockId, token: Token, round_trip: Duration },
    /// The engine gives out a command for a node. The command leaves the client later (`Sent`).
    Ordered { client: ClientId, node: NodeIndex, ticket: Ticket, command: &'a Command },
    /// A command leaves the client.
    Sent { client: ClientId, node: NodeIndex, ticket: Ticket, command: &'a Command },
    /// A node handles a command.
    Executed {
        node: NodeIndex,
        client: ClientId,
        ticket: Ticket,
        command: &'a Command,
        answer: &'a Answer,
        /// The command arrived after the client had given up its connection.
        zombie: bool,
        /// The network delivered the command a second time.
        duplicate: bool,
        /// The node is in quarantine (the wait after a restart without data), so its vote must not count.
        early: bool,
    },
    /// An answer reaches the client. The engine gets it in a later tick.
    Arrived { client: ClientId, node: NodeIndex, ticket: Ticket },
    /// A client misreads a node's marker (the key that shows that no data was lost). Only a mutant does this.
    Misread { client: ClientId, node: NodeIndex },
    /// The engine gets the evidence (`INFO` and marker) that came with answers.
    Evidence { client: ClientId, node: NodeIndex, sent: Reading, evidence: &'a Evidence },
    /// The engine gets an answer.
    Answered {
        client: ClientId,
        node: NodeIndex,
        sent: Reading,
        ticket: Ticket,
        answer: &'a Answer,
    },
    /// The engine gets a push: this key has changed, or (`None`) all keys.
    Pushed { client: ClientId, node: NodeIndex, key: Option<&'a Key> },
    /// The engine grants a lock.
    Granted { guard: GuardId, attempts: u32 },
    /// The engine reports new votes of a lock.
    Changed { guard: GuardId, validity: &'a Validity },
    /// The engine reports the loss of a lock.
    Lost { guard: GuardId, cause: LossCause },
    /// The engine reports that a call failed.
    NotAcquired { client: ClientId, lock: LockId, refusal: &'a Refusal },
    /// The engine reports that another holder has a larger fencing token.
    Superseded { guard: GuardId, fence: u64 },
    /// The engine reports whether a node is trusted.
    TrustState { client: ClientId, node: NodeIndex, trust_state: &'a TrustState },
    /// A floor (a lower bound for a node's fencing tokens) may be too low, because the engine knows few nodes' clocks.
    FloorOfFew { client: ClientId, node: NodeIndex },
    /// A present or former holder writes to the resource that the lock protects.
    Written { guard: GuardId },
    /// The engine reports the outcome of an extension.
    Extension { guard: GuardId, outcome: &'a Extended },
    /// The engine reports whether a quorum confirms a held lock, and the answer of each node.
    Health { guard: GuardId, is_confirmed: bool, nodes: &'a [NodeResult] },
    /// The engine reports the outcome of a release.
    Released { guard: GuardId, report: &'a ReleaseReport },
    /// The engine reports that an attempt failed and that the call retries.
    Waiting { client: ClientId, lock: LockId },
    /// A push ends the wait of a call before its next attempt.
    WaitEnded { client: ClientId, lock: LockId },
    /// The answers of a node did not arrive within the node timeout.
    TimedOut { client: ClientId, node: NodeIndex },
    /// The client owes no release any more: no release that failed is waiting to be sent again.
    Drained { client: ClientId },
    /// The driver has carried out all effects (outputs of the engine) of a tick.
    TickOver { client: ClientId },
    /// A client has connected to a node. If `replaces`, the connection takes the place of a silent one.
    Connected { client: ClientId, node: NodeIndex, replaces: bool },
    /// A client gives up a connection and the commands in flight on it.
    GivenUp { client: ClientId, node: NodeIndex },
    /// A client has no working connection to a node.
    Disconnected { client: ClientId, node: NodeIndex, why: &'static str },
    /// A client starts.
    Started { client: ClientId },
    /// A fault begins or ends.
    FaultEvent(FaultEvent),
}
#[derive(Clone, Copy, Debug)]
pub(crate) enum FaultEvent {
    /// A client's process is paused.
    Paused { client: ClientId, span: Time },
    /// A client's machine is suspended. Its clocks may stop too.
    Suspended { client: ClientId, span: Time, boot_stops: bool, wall_stops: bool },
    /// The client continues.
    Resumed { client: ClientId },
    /// A client's wall clock jumps.
    WallStepped { client: ClientId, by: Time },
    /// A client is killed.
    ClientCrashed { client: ClientId },
    /// A client is shut down.
    ClientShutDown { client: ClientId },
    /// A node's clock jumps.
    NodeStepped { node: NodeIndex, by: Time },
    /// A node is killed. If `silent`, its connections are not closed: messages to it are lost.
    NodeCrashed { node: NodeIndex, keeps_data: bool, silent: bool },
    /// A node starts.
    NodeStarted { node: NodeIndex },
    /// A node's process is paused.
    NodeFrozen { node: NodeIndex },
    /// The node continues.
    NodeThawed { node: NodeIndex },
    /// A node starts or stops refusing commands.
    NodeHealth { node: NodeIndex, health: crate::node::Health },
    /// A node loses all keys.
    NodeFlushed { node: NodeIndex },
    /// A node's data is replaced, by an older state without the last writes or by its master's data.
    NodeOverwritten { node: NodeIndex },
    /// A replica becomes a master.
    NodePromoted { node: NodeIndex },
    /// A node starts or stops evicting keys when its memory is full.
    NodeEvicts { node: NodeIndex, evicts: bool },
    /// Another program deletes a key.
    KeyDeleted { node: NodeIndex },
    /// Another program stores its own value under the key of a lock.
    KeyOccupied { node: NodeIndex },
    /// The other program's value is removed.
    KeyVacated { node: NodeIndex },
    /// Another program changes a counter.
    CounterMoved { node: NodeIndex },
    /// The network holds back messages: requests to the node, replies from it, or both.
    Blocked { client: ClientId, node: NodeIndex, requests: bool, replies: bool, span: Time },
    /// A connection breaks.
    Reset { client: ClientId, node: NodeIndex },
    /// A client of another configuration begins to adopt a node.
    NodeAdoptedByOthers { node: NodeIndex },
    /// A client of another configuration marks a node.
    NodeMarkedByOthers { node: NodeIndex },
    /// All faults end, and the healing phase begins.
    Healing,
}

impl fmt::Display for Fact<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wanted { client, lock, request } => write!(
                f,
                "client {client}: wants {} as {} (ttl {}, wait {:?}{}{})",
                names(&request.keys),
                Id(lock),
                span(request.timing.ttl().as_nanos() as i64),
                request.wait,
                if request.automatic { ", extended automatically" } else { "" },
                if request.mode == Mode::Shared { ", to read" } else { "" }
            ),
            Self::Cancelled { client, lock } => {
                write!(f, "client {client}: does not want {} any more", Id(lock))
            }
            Self::ExtendAsked { guard } => write!(f, "{guard}: to be extended"),
            Self::Downgraded { guard } => write!(f, "{guard}: a reader's from now on"),
            Self::DetachAsked { guard } => write!(f, "{guard}: to be detached"),
            Self::Detached { guard, detached } => match detached {
                Some(it) => write!(f, "{guard}: DETACHED, without answers of {:?}", it.unanswered),
                None => write!(f, "{guard}: not detached, because it is lost"),
            },
            Self::EntryExtended { client, entry, validity, .. } => {
                let how = if validity.is_some() { "extended" } else { "not extended" };
                write!(f, "client {client}: the lock of {} is {how}", names(&entry.keys))
            }
            Self::EndSeen { guard } => write!(f, "{guard}: its holder sees the end"),
            Self::ReleaseAsked { guard, report } => {
                write!(f, "{guard}: {}", if *report { "released" } else { "dropped" })
            }
            Self::Tick { client } => write!(f, "client {client}: turn"),
            Self::TickOver { client } => write!(f, "client {client}: turn over"),
            Self::Begun { client, lock, token, .. } => {
                write!(f, "client {client}: attempt for {} with {token:?}", Id(lock))
            }
            Self::Ordered { client, node, ticket, command } => {
                write!(
                    f,
                    "client {client} → node {node}: {} queued ({})",
                    CommandText(command),
                    T(ticket)
                )
            }
            Self::Sent { client, node, ticket, command } => {
                write!(
                    f,
                    "client {client} → node {node}: {} sent ({})",
                    CommandText(command),
                    T(ticket)
                )
            }
            Self::Executed { node, client, ticket, command, answer, zombie, duplicate, .. } => {
                write!(
                    f,
                    "node {node}: {} of client {client} ({}): {}{}{}",
                    CommandText(command),
                    T(ticket),
                    Heard(answer),
                    if *zombie { ", its connection is dead" } else { "" },
                    if *duplicate { ", a second time" } else { "" },
                )
            }
            Self::Arrived { client, node, ticket } => {
                write!(f, "client {client} ← node {node}: an answer is there ({})", T(ticket))
            }
            Self::Misread { client, node } => {
                write!(f, "client {client} ← node {node}: the marker is misread")
            }
            Self::Answered { client, node, ticket, answer, .. } => {
                write!(f, "client {client} ← node {node}: {} ({})", Heard(answer), T(ticket))
            }
            Self::Evidence { client, node, evidence, .. } => {
                write!(f, "client {client} ← node {node}: {evidence:?}")
            }
            Self::Superseded { guard, fence } => {
                write!(f, "{guard}: another holder has the fencing token {fence}")
            }
            Self::TrustState { client, node, trust_state } => {
                write!(f, "client {client}: node {node}: {trust_state:?}")
            }
            Self::FloorOfFew { client, node } => {
                write!(f, "client {client}: the floor of node {node} rests on few clocks")
            }
            Self::Written { guard } => write!(f, "{guard}: writes"),
            Self::Pushed { client, node, key } => {
                let what = key.map_or("everything", |key| key);
                write!(f, "client {client} ← node {node}: {what} has changed")
            }
            Self::Granted { guard, attempts } => write!(f, "{guard}: GRANTED, attempt {attempts}"),
            Self::Changed { guard, .. } => write!(f, "{guard}: its votes have changed"),
            Self::Lost { guard, cause } => write!(f, "{guard}: LOST, {cause:?}"),
            Self::NotAcquired { client, lock, refusal } => {
                write!(f, "client {client}: no {}: {:?}", Id(lock), refusal.kind)
            }
            Self::Extension { guard, outcome } => match outcome {
                Extended::Unconfirmed(_) => write!(f, "{guard}: extension not confirmed"),
                outcome => write!(f, "{guard}: extension {outcome:?}"),
            },
            Self::Health { guard, is_confirmed, nodes } => {
                let confirmed = nodes.iter().filter(|node| node.said == NodeOutcome::Granted);
                let (confirmed, of) = (confirmed.count(), nodes.len());
                let how = if *is_confirmed { "confirmed" } else { "NOT CONFIRMED" };
                write!(f, "{guard}: {how}, by {confirmed} of {of} nodes")
            }
            Self::Released { guard, report } => {
                let how = if report.handed_over { " (handed over)" } else { "" };
                write!(f, "{guard}: release reported {:?}{how}", report.outcome)
            }
            Self::Waiting { client, lock } => {
                write!(f, "client {client}: {} has to wait", Id(lock))
            }
            Self::WaitEnded { client, lock } => {
                write!(f, "client {client}: {} is woken by a push", Id(lock))
            }
            Self::TimedOut { client, node } => {
                write!(f, "client {client}: node {node} has not answered in time")
            }
            Self::Drained { client } => write!(f, "client {client}: owes nothing"),
            Self::Connected { client, node, replaces } => write!(
                f,
                "client {client}: connected to node {node}{}",
                if *replaces { ", in place of a silent connection" } else { "" }
            ),
            Self::GivenUp { client, node } => {
                write!(f, "client {client}: a connection to node {node} is given up")
            }
            Self::Disconnected { client, node, why } => {
                write!(f, "client {client}: node {node}: {why}")
            }
            Self::Started { client } => write!(f, "client {client}: starts"),
            Self::FaultEvent(fault) => write!(f, "*** {fault}"),
        }
    }
}

impl fmt::Display for FaultEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused { client, span: time } => {
                write!(f, "client {client} stands still for {}", span(*time))
            }
            Self::Suspended { client, span: time, boot_stops, wall_stops } => write!(
                f,
                "the machine of client {client} stands still for {}{}{}",
                span(*time),
                if *boot_stops { ", its boot clock too" } else { "" },
                if *wall_stops { ", its wall clock too" } else { "" },
            ),
            Self::Resumed { client } => write!(f, "client {client} goes on"),
            Self::WallStepped { client, by } => {
                write!(f, "the wall clock of client {client} is set by {}", span(*by))
            }
            Self::ClientCrashed { client } => write!(f, "client {client} is killed"),
            Self::ClientShutDown { client } => write!(f, "client {client} is shut down"),
            Self::NodeStepped { node, by } => {
                write!(f, "the clock of node {node} is set by {}", span(*by))
            }
            Self::NodeCrashed { node, keeps_data, silent } => write!(
                f,
                "node {node} is killed, {}{}",
                if *keeps_data { "and has kept its data" } else { "its data is gone" },
                if *silent { "; its connections stay silent" } else { "" }
            ),
            Self::NodeStarted { node } => write!(f, "node {node} starts"),
            Self::NodeFrozen { node } => write!(f, "node {node} stands still"),
            Self::NodeThawed { node } => write!(f, "node {node} goes on"),
            Self::NodeHealth { node, health } => write!(f, "node {node}: {health:?}"),
            Self::NodeAdoptedByOthers { node } => write!(f, "node {node} is adopted by others"),
            Self::NodeMarkedByOthers { node } => write!(f, "node {node} is marked by others"),
            Self::NodeOverwritten { node } => write!(f, "node {node} has other data"),
            Self::NodePromoted { node } => write!(f, "node {node} is a master again"),
            Self::NodeEvicts { node, evicts } => {
                write!(f, "node {node} {} keys", if *evicts { "evicts" } else { "keeps its" })
            }
            Self::NodeFlushed { node } => write!(f, "node {node} loses all keys"),
            Self::KeyDeleted { node } => write!(f, "somebody deletes a key on node {node}"),
            Self::KeyOccupied { node } => write!(f, "somebody occupies a key on node {node}"),
            Self::KeyVacated { node } => write!(f, "the key on node {node} is vacated"),
            Self::CounterMoved { node } => write!(f, "somebody moves a counter of node {node}"),
            Self::Blocked { client, node, requests, replies, span: time } => write!(
                f,
                "between client {client} and node {node} nothing gets through for {}{}{}",
                span(*time),
                if *requests { ", there" } else { "" },
                if *replies { ", back" } else { "" }
            ),
            Self::Reset { client, node } => {
                write!(f, "the connection between client {client} and node {node} breaks")
            }
            Self::Healing => write!(f, "the time of faults is over"),
        }
    }
}

pub(crate) fn span(time: Time) -> String {
    let sign = if time < 0 { "-" } else { "" };
    format!("{sign}{:?}", Duration::from_nanos(time.unsigned_abs() / 1000 * 1000))
}

/// Formats a point in time as milliseconds since the start.
pub(crate) fn point(time: Time) -> String {
    format!("{:>6}.{:03}", time / MS, time % MS / 1000)
}

pub(crate) fn names(keys: &[Key]) -> String {
    let names: Vec<&str> = keys.iter().map(|key| &**key).collect();
    names.join(" + ")
}

struct Id<'a>(&'a LockId);

impl fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {}", self.0.0)
    }
}

struct T<'a>(&'a Ticket);

impl fmt::Display for T<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {}, round {}", self.0.lock.0, self.0.round)
    }
}

struct CommandText<'a>(&'a Command);

impl fmt::Display for CommandText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |value: &Value| String::from_utf8_lossy(&value.as_bytes()[..6]).into_owned();
        match self.0 {
            Command::Acquire { keys, value, ttl_ms, form } => match form {
                AcquireForm::Plain => {
                    write!(f, "SET {} {} NX PX {ttl_ms}", names(keys), short(value))
                }
                AcquireForm::Shared { .. } => {
                    write!(f, "add reader {} {} PX {ttl_ms}", names(keys), short(value))
                }
                AcquireForm::Fenced { .. } | AcquireForm::Taken(_) => write!(f, "{:?}", self.0),
            },
            Command::Heal { keys, value, ttl_ms, form } => match form {
                HealForm::Plain => {
                    write!(f, "heal {} {} PX {ttl_ms}", names(keys), short(value))
                }
                HealForm::Shared => {
                    write!(f, "heal reader {} {} PX {ttl_ms}", names(keys), short(value))
                }
                HealForm::Fenced { .. } => write!(f, "{:?}", self.0),
            },
            Command::Extend { keys, value, ttl_ms, form } => match form {
                ExtendForm::Plain => {
                    write!(f, "extend {} {} PX {ttl_ms}", names(keys), short(value))
                }
                ExtendForm::Shared => {
                    write!(f, "extend reader {} {} PX {ttl_ms}", names(keys), short(value))
                }
                ExtendForm::Fenced { .. } | ExtendForm::Taken(_) => write!(f, "{:?}", self.0),
            },
            Command::Release { keys, value, form } => match form {
                ReleaseForm::Plain { .. } => {
                    write!(f, "release {} {}", names(keys), short(value))
                }
                ReleaseForm::Shared => write!(f, "release reader {} {}", names(keys), short(value)),
                ReleaseForm::Taken(_) => write!(f, "{:?}", self.0),
            },
            Command::Downgrade { keys, value } => {
                write!(f, "downgrade {} {}", names(keys), short(value))
            }
            Command::Announce { intents, value, .. } => {
                write!(f, "announce {} {}", names(intents), short(value))
            }
            Command::Withdraw { intents, value } => {
                write!(f, "withdraw {} {}", names(intents), short(value))
            }
            Command::Attach { keys, from, value, ttl_ms, .. } => {
                let (from, value) = (short(from), short(value));
                write!(f, "attach {} {from} as {value} PX {ttl_ms}", names(keys))
            }
            Command::GiveBack { keys, value, to, .. } => {
                write!(f, "give back {} {} as {}", names(keys), short(value), short(to))
            }
            Command::Inspect { keys, .. } => write!(f, "look at {}", names(keys)),
            Command::Watch { keys, .. } => write!(f, "watch {}", names(keys)),
            Command::Raise { .. }
            | Command::Identify
            | Command::Adopt { .. }
            | Command::Mark { .. } => write!(f, "{:?}", self.0),
        }
    }
}

struct Heard<'a>(&'a Answer);

impl fmt::Display for Heard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Answer::Seen(holding) | Answer::Watched(holding) => {
                let how = if matches!(self.0, Answer::Watched(_)) { "Watched" } else { "Seen" };
                match holding {
                    Holding::Held { value, ttl } => {
                        let start = String::from_utf8_lossy(&value[..value.len().min(6)]);
                        write!(f, "{how}: {start}, {ttl:?}")
                    }
                    other => write!(f, "{how}: {other:?}"),
                }
            }
            answer => write!(f, "{answer:?}"),
        }
    }
}
