//! Kinds of faults, the acts that begin and end faults, and the texts that describe them.

use std::fmt;

use quorlock_servers::proxy::{Blow, Direction, Traffic};
use quorlock_sim::time::Time;

use crate::clock::seconds;
use crate::commands::writer::CommandKind;

/// A kind of fault, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(&'static str);

impl Kind {
    pub(crate) const DELAY: Self = Self("delay");
    pub(crate) const HOLD: Self = Self("hold, then release");
    pub(crate) const HOLD_OLD_CONNECTIONS: Self = Self("hold old connections only");
    pub(crate) const DROP: Self = Self("drop");
    pub(crate) const HALF_CLOSE: Self = Self("half-close");
    pub(crate) const RESET: Self = Self("reset");
    pub(crate) const TRUNCATE: Self = Self("truncate");
    pub(crate) const SPLIT: Self = Self("split bytes");
    pub(crate) const KILL_NODE: Self = Self("kill -9 a node");
    pub(crate) const STOP_NODE: Self = Self("SIGSTOP a node");
    pub(crate) const STOP_CLIENT: Self = Self("SIGSTOP a client");
    pub(crate) const KILL_CLIENT: Self = Self("kill -9 a client");
    pub(crate) const AMNESIA: Self = Self("kill -9 nodes, back at once, empty");
    pub(crate) const LOG_TAIL: Self = Self("kill -9 nodes, back without the end of their log");
    pub(crate) const FLUSH: Self = Self("FLUSHALL");
    /// The node saves its data and loads it. Nothing is lost, but the node does not answer for a moment.
    pub(crate) const RELOAD: Self = Self("DEBUG RELOAD");
    /// The node loses its data, but its process and its connections stay.
    pub(crate) const FORGET: Self = Self("DEBUG RELOAD NOSAVE (data lost)");
    pub(crate) const SCRIPT_FLUSH: Self = Self("SCRIPT FLUSH");
    pub(crate) const REPLICA_OF: Self = Self("REPLICAOF another node and back");
    pub(crate) const PROMOTE: Self = Self("a promoted replica at the same address");
    pub(crate) const EVICT: Self = Self("maxmemory-policy allkeys-lru and back");
    pub(crate) const DRIFT: Self = Self("wall clock stepped and slewed as is allowed");
    pub(crate) const JUMP: Self = Self("wall clock set wrong by seconds or hours");
    pub(crate) const MASTER_STOPS: Self = Self("SIGSTOP a master, promote its replica, SIGCONT");
    pub(crate) const MASTER_CUT_OFF: Self = Self("promote a replica while its master goes on");
    pub(crate) const MASTER_KILLED: Self = Self("kill -9 a master, promote its replica");
    pub(crate) const SENTINEL_FAILOVER: Self = Self("SENTINEL FAILOVER");
    pub(crate) const STOP_KEEPER: Self = Self("SIGSTOP the keeper");
    pub(crate) const KILL_KEEPER: Self = Self("kill -9 the keeper");
    pub(crate) const TERM_KEEPER: Self = Self("SIGTERM the keeper");
    pub(crate) const STOP_GUARDIAN: Self = Self("SIGSTOP the guardian");
    pub(crate) const KILL_GUARDIAN: Self = Self("kill -9 the guardian");
    pub(crate) const TERM_GUARDIAN: Self = Self("SIGTERM the guardian");
    /// The guardian is stopped and the wall clock jumps, so the keeper has to end the command.
    pub(crate) const STOP_GUARDIAN_AND_STEP: Self =
        Self("SIGSTOP the guardian, and the clock stepped");
    /// Keeper and guardian are stopped for longer than the lock lives, so neither can end the command.
    pub(crate) const STOP_BOTH: Self = Self("SIGSTOP keeper and guardian");
    /// A script and its keeper are killed. Nobody releases the lock.
    pub(crate) const KILL_BOTH: Self = Self("kill -9 a script and its keeper");
    pub(crate) const STALL_READER: Self = Self("the status descriptor is not read");
    pub(crate) const DELETE_MINORITY: Self = Self("DEL of a key on a minority");
    /// The key is deleted on a majority, so that another client may get the lock.
    pub(crate) const DELETE_MAJORITY: Self = Self("DEL of a key on a majority");
    pub(crate) const OVERWRITE: Self = Self("SET over a key");
    pub(crate) const STEP_CLOCK: Self = Self("a machine's wall clock stepped");

    pub(crate) const fn name(self) -> &'static str {
        self.0
    }

    /// Whether the fault may make a node lose its counters, which keep fencing tokens in order.
    pub(crate) fn loses_data(self) -> bool {
        matches!(
            self,
            Self::KILL_NODE
                | Self::AMNESIA
                | Self::LOG_TAIL
                | Self::FLUSH
                | Self::FORGET
                | Self::REPLICA_OF
                | Self::PROMOTE
        )
    }

    pub(crate) fn moves_clock(self) -> bool {
        matches!(self, Self::DRIFT | Self::JUMP)
    }

    /// Whether a round injects the fault more often: it has uncovered bugs in quorlock, or rarely finds a target.
    pub(crate) fn is_telling(self) -> bool {
        matches!(
            self,
            Self::STOP_GUARDIAN
                | Self::KILL_GUARDIAN
                | Self::KILL_BOTH
                | Self::STOP_GUARDIAN_AND_STEP
                | Self::DELETE_MAJORITY
                | Self::STEP_CLOCK
        )
    }

    /// Whether a run whose command is of this kind can show that quorlock handles the fault wrongly.
    pub(crate) fn suits(self, kind: CommandKind) -> bool {
        self != Self::STOP_GUARDIAN_AND_STEP || kind == CommandKind::SPAWNING
    }

    /// Whether the fault may be injected into a command of this kind. If the command is a script, faults of the keeper
    /// strike the script, and faults of the guardian strike the script's keeper.
    pub(crate) fn fits(self, kind: CommandKind) -> bool {
        match self {
            Self::KILL_BOTH => kind == CommandKind::SCRIPT,
            Self::STOP_GUARDIAN_AND_STEP => kind != CommandKind::SCRIPT,
            _ => true,
        }
    }

    /// Whether the fault needs a build of `quorlock` whose wall clock can be set.
    pub(crate) fn is_step(self) -> bool {
        matches!(self, Self::STEP_CLOCK | Self::STOP_GUARDIAN_AND_STEP)
    }
}

/// The faults of the processes of one `quorlock run` or of one script. Each run has at most one of them.
pub(crate) const OF_RUN: [Kind; 9] = [
    Kind::STOP_KEEPER,
    Kind::KILL_KEEPER,
    Kind::TERM_KEEPER,
    Kind::STOP_GUARDIAN,
    Kind::KILL_GUARDIAN,
    Kind::TERM_GUARDIAN,
    Kind::STOP_GUARDIAN_AND_STEP,
    Kind::STOP_BOTH,
    Kind::KILL_BOTH,
];

/// The faults of the key and of the machine of a run that holds a lock.
pub(crate) const AROUND_RUN: [Kind; 4] =
    [Kind::DELETE_MINORITY, Kind::DELETE_MAJORITY, Kind::OVERWRITE, Kind::STEP_CLOCK];

pub(crate) type Places = Vec<usize>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ways {
    pub(crate) processes: Places,
    pub(crate) nodes: Places,
}

/// Commands to a server, in words.
pub(crate) type Commands = &'static [&'static [&'static str]];

pub(crate) const FLUSH: Commands = &[&["FLUSHALL"]];
pub(crate) const RELOAD: Commands = &[&["DEBUG", "RELOAD"]];
pub(crate) const SCRIPT_FLUSH: Commands = &[&["SCRIPT", "FLUSH"]];
pub(crate) const MASTER_AGAIN: Commands = &[&["REPLICAOF", "NO", "ONE"]];
pub(crate) const EVICT: Commands = &[
    &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"],
    &["CONFIG", "SET", "maxmemory", "100mb"],
];
pub(crate) const NO_EVICTION: Commands =
    &[&["CONFIG", "SET", "maxmemory", "0"], &["CONFIG", "SET", "maxmemory-policy", "noeviction"]];

/// A change of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Stop,
    Continue,
    Kill,
    /// A killed process starts again; a server starts without data.
    Start,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Set(Ways, Vec<Direction>, Traffic),
    Strike(Ways, Blow),
    Release(Ways),
    Node(usize, Change),
    Client(usize, Change),
    /// Each of these nodes carries out the commands.
    Commands(Places, Commands),
    /// These nodes are killed together and restart immediately, without data.
    Amnesia(Places),
    /// As `Amnesia`, but each node loses only this number of bytes at the end of its append-only log.
    LogTail(Places, u64),
    Forget(Places),
    /// The first node becomes the second node's replica.
    ReplicaOf(usize, usize),
    /// The spare server becomes this node's replica.
    Follow(usize),
    /// The replica takes this node's place.
    Promote(usize),
    Step(usize, Time),
    Run(usize, i64),
    SetRight(usize),
    Failover(Failover),
    OldMasterContinues(Failover),
    /// The old master becomes the promoted server's replica. If a third server already is, the old master is killed.
    OldMasterLeaves(Failover),
    /// The Sentinels fail over after this fault of the master.
    BySentinel(Kind),
    /// A fault of a run that holds a lock.
    ToHolder(Strike),
}

/// The failure of a master whose replica takes its place under the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failover {
    pub(crate) kind: Kind,
    pub(crate) node: usize,
    /// The proxies of these processes lead to the old master until `OldMasterLeaves`.
    pub(crate) stale: Places,
    /// Whether the old master's connections from the other processes are closed.
    pub(crate) closes: bool,
    /// Whether a third server becomes the replica of the promoted server right after the promotion.
    pub(crate) third: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strike {
    pub(crate) fault: Kind,
    pub(crate) span: Time,
    pub(crate) step: Time,
    /// The random number that selects the target of the fault, such as a run or a node.
    pub(crate) word: u64,
}

/// An act and its time, relative to the start of the faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: Time,
    /// The kind of the fault that the act begins; `None` if the act ends a fault.
    pub(crate) begins: Option<Kind>,
    pub(crate) act: Act,
}

pub(crate) fn node_name(place: usize) -> char {
    ('a'..='z').nth(place).unwrap_or('?')
}

fn nodes(places: &Places) -> String {
    places.iter().map(|&place| node_name(place)).map(String::from).collect::<Vec<_>>().join(" ")
}

fn processes(places: &Places) -> String {
    places.iter().map(|place| format!("p{place}")).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "between {} and nodes {}", processes(&self.processes), nodes(&self.nodes))
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of =
            |node: &usize, what: fmt::Arguments<'_>| format!("node {}: {what}", node_name(*node));
        f.write_str(&match self {
            Self::Set(ways, directions, traffic) => format!("{ways}, {directions:?}: {traffic:?}"),
            Self::Strike(ways, blow) => format!("{ways}: {blow:?}"),
            Self::Release(ways) => format!("{ways}: held messages arrive"),
            Self::Node(node, change) => of(node, format_args!("{change:?}")),
            Self::Client(process, change) => format!("process p{process}: {change:?}"),
            Self::Commands(places, commands) => {
                let commands: Vec<_> = commands.iter().map(|words| words.join(" ")).collect();
                format!("nodes {}: {}", nodes(places), commands.join(", "))
            }
            Self::Amnesia(places) => {
                format!("nodes {}: kill -9, and started at once, empty", nodes(places))
            }
            Self::LogTail(places, bytes) => {
                let places = nodes(places);
                format!(
                    "nodes {places}: kill -9, and started at once without the last {bytes} bytes"
                )
            }
            Self::Forget(places) => {
                format!("nodes {}: DEBUG RELOAD NOSAVE, nothing saved", nodes(places))
            }
            Self::ReplicaOf(node, master) => {
                of(node, format_args!("REPLICAOF node {}", node_name(*master)))
            }
            Self::Follow(node) => of(node, format_args!("has a replica")),
            Self::Promote(node) => of(node, format_args!("kill -9, and its replica is promoted")),
            Self::Step(node, by) => {
                of(node, format_args!("wall clock stepped by {}", seconds(*by)))
            }
            Self::Run(node, ppm) => of(node, format_args!("wall clock runs {ppm} ppm fast")),
            Self::SetRight(node) => of(node, format_args!("wall clock set right")),
            Self::Failover(Failover { kind, node, stale, third, .. }) => {
                let third = if *third { ", which has a replica" } else { "" };
                let (kind, stale) = (kind.name(), processes(stale));
                of(node, format_args!("{kind}{third}; still to the old one: {stale}"))
            }
            Self::OldMasterContinues(failover) => {
                of(&failover.node, format_args!("old master: SIGCONT"))
            }
            Self::OldMasterLeaves(failover) => {
                of(&failover.node, format_args!("the old master is none any more"))
            }
            Self::BySentinel(kind) => kind.name().to_owned(),
            Self::ToHolder(strike) => strike.fault.name().to_owned(),
        })
    }
}
