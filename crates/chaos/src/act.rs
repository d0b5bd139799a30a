//! Kinds of faults, the acts that begin and end faults, and the texts that describe them.

use std::fmt;

use quorlock_servers::proxy::{Blow, Direction, Traffic};
use quorlock_sim::time::Time;

use crate::clock::seconds;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Delay,
    Hold,
    HoldOldConnections,
    Drop,
    HalfClose,
    Reset,
    Truncate,
    Split,
    KillNode,
    StopNode,
    StopClient,
    KillClient,
    Amnesia,
    LogTail,
    Flush,
    /// The node saves its data and loads it. Nothing is lost, but the node does not answer for a moment.
    Reload,
    /// The node loses its data, but its process and its connections stay.
    Forget,
    ScriptFlush,
    ReplicaOf,
    Promote,
    Evict,
    Drift,
    Jump,
    MasterStops,
    MasterCutOff,
    MasterKilled,
}

pub(crate) type Places = Vec<usize>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ways {
    pub(crate) processes: Places,
    pub(crate) nodes: Places,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Set(Ways, Vec<Direction>, Traffic),
    Strike(Ways, Blow),
    Release(Ways),
    KillNode(usize),
    StartNode(usize),
    StopNode(usize),
    ContinueNode(usize),
    StopClient(usize),
    ContinueClient(usize),
    KillClient(usize),
    StartClient(usize),
    /// These nodes are killed together and restart immediately, without data.
    Amnesia(Places),
    /// As `Amnesia`, but each node loses only this number of bytes at the end of its append-only log.
    LogTail(Places, u64),
    Flush(Places),
    Reload(usize),
    Forget(Places),
    ScriptFlush(usize),
    /// The first node becomes the second node's replica.
    ReplicaOf(usize, usize),
    MasterAgain(usize),
    /// The spare server becomes this node's replica.
    Follow(usize),
    /// The replica takes this node's place.
    Promote(usize),
    Evict(usize),
    NoEviction(usize),
    Step(usize, Time),
    Run(usize, i64),
    SetRight(usize),
    Failover(Failover),
    OldMasterContinues(Failover),
    /// The old master becomes the promoted server's replica. If a third server already is, the old master is killed.
    OldMasterLeaves(Failover),
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

/// An act and its time, relative to the start of the round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: Time,
    /// The kind of the fault that the act begins; `None` if the act ends a fault.
    pub(crate) begins: Option<Kind>,
    pub(crate) act: Act,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Hold => "hold, then release",
            Self::HoldOldConnections => "hold old connections only",
            Self::Drop => "drop",
            Self::HalfClose => "half-close",
            Self::Reset => "reset",
            Self::Truncate => "truncate",
            Self::Split => "split bytes",
            Self::KillNode => "kill -9 a node",
            Self::StopNode => "SIGSTOP a node",
            Self::StopClient => "SIGSTOP a client",
            Self::KillClient => "kill -9 a client",
            Self::Amnesia => "kill -9 nodes, back at once, empty",
            Self::LogTail => "kill -9 nodes, back without the end of their log",
            Self::Flush => "FLUSHALL",
            Self::Reload => "DEBUG RELOAD",
            Self::Forget => "DEBUG RELOAD NOSAVE (data lost)",
            Self::ScriptFlush => "SCRIPT FLUSH",
            Self::ReplicaOf => "REPLICAOF another node and back",
            Self::Promote => "a promoted replica at the same address",
            Self::Evict => "maxmemory-policy allkeys-lru and back",
            Self::Drift => "wall clock stepped and slewed as is allowed",
            Self::Jump => "wall clock set wrong by seconds or hours",
            Self::MasterStops => "SIGSTOP a master, promote its replica, SIGCONT",
            Self::MasterCutOff => "promote a replica while its master goes on",
            Self::MasterKilled => "kill -9 a master, promote its replica",
        }
    }

    /// Whether the fault may make a node lose its counters, which keep fencing tokens in order.
    pub(crate) const fn loses_data(self) -> bool {
        matches!(
            self,
            Self::KillNode
                | Self::Amnesia
                | Self::LogTail
                | Self::Flush
                | Self::Forget
                | Self::ReplicaOf
                | Self::Promote
        )
    }

    pub(crate) const fn moves_clock(self) -> bool {
        matches!(self, Self::Drift | Self::Jump)
    }
}

pub(crate) fn node_name(place: usize) -> char {
    ('a'..='z').nth(place).unwrap_or('?')
}

fn nodes(places: &Places) -> String {
    places.iter().map(|&place| node_name(place)).map(String::from).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processes: Vec<_> = self.processes.iter().map(|place| format!("p{place}")).collect();
        write!(f, "{} and nodes {}", processes.join(" "), nodes(&self.nodes))
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(ways, directions, traffic) => {
                let there = match directions[..] {
                    [Direction::ToServer] => "commands",
                    [Direction::ToClient] => "answers",
                    _ => "commands and answers",
                };
                write!(f, "between {ways}: {there} ")?;
                match traffic {
                    Traffic::Open => write!(f, "pass again"),
                    Traffic::Delay(delay) => write!(f, "are late by {delay:.0?}"),
                    Traffic::Hold => write!(f, "are held"),
                    Traffic::Drop => write!(f, "are dropped"),
                    Traffic::Split(piece) => write!(f, "come in pieces of {piece} bytes"),
                }
            }
            Self::Strike(ways, blow) => write!(f, "connections between {ways}: {blow:?}"),
            Self::Release(ways) => write!(f, "connections between {ways}: held messages arrive"),
            Self::KillNode(node) => write!(f, "node {}: kill -9", node_name(*node)),
            Self::StartNode(node) => write!(f, "node {}: started, empty", node_name(*node)),
            Self::StopNode(node) => write!(f, "node {}: SIGSTOP", node_name(*node)),
            Self::ContinueNode(node) => write!(f, "node {}: SIGCONT", node_name(*node)),
            Self::StopClient(process) => write!(f, "process p{process}: SIGSTOP"),
            Self::ContinueClient(process) => write!(f, "process p{process}: SIGCONT"),
            Self::KillClient(process) => write!(f, "process p{process}: kill -9"),
            Self::StartClient(process) => write!(f, "process p{process}: restarted"),
            Self::Amnesia(places) => {
                write!(f, "nodes {}: kill -9, and started at once, empty", nodes(places))
            }
            Self::LogTail(places, bytes) => write!(
                f,
                "nodes {}: kill -9, and started at once without the last {bytes} bytes",
                nodes(places)
            ),
            Self::Flush(places) => write!(f, "nodes {}: FLUSHALL", nodes(places)),
            Self::Reload(node) => write!(f, "node {}: DEBUG RELOAD", node_name(*node)),
            Self::Forget(places) => {
                write!(f, "nodes {}: DEBUG RELOAD NOSAVE, nothing saved", nodes(places))
            }
            Self::ScriptFlush(node) => write!(f, "node {}: SCRIPT FLUSH", node_name(*node)),
            Self::ReplicaOf(node, of) => {
                write!(f, "node {}: REPLICAOF node {}", node_name(*node), node_name(*of))
            }
            Self::MasterAgain(node) => write!(f, "node {}: REPLICAOF NO ONE", node_name(*node)),
            Self::Follow(node) => write!(f, "node {}: has a replica", node_name(*node)),
            Self::Promote(node) => {
                write!(f, "node {}: kill -9, and its replica is promoted", node_name(*node))
            }
            Self::Evict(node) => {
                write!(f, "node {}: maxmemory-policy allkeys-lru", node_name(*node))
            }
            Self::NoEviction(node) => {
                write!(f, "node {}: maxmemory-policy noeviction", node_name(*node))
            }
            Self::Step(node, by) => {
                write!(f, "node {}: wall clock stepped by {}", node_name(*node), seconds(*by))
            }
            Self::Run(node, ppm) => {
                write!(f, "node {}: wall clock runs {ppm} ppm fast", node_name(*node))
            }
            Self::SetRight(node) => write!(f, "node {}: wall clock set right", node_name(*node)),
            Self::Failover(Failover { kind, node, stale, third, .. }) => {
                let third = if *third { ", which has a replica" } else { "" };
                let stale: Vec<_> = stale.iter().map(|place| format!("p{place}")).collect();
                let (node, stale) = (node_name(*node), stale.join(" "));
                write!(f, "node {node}: {}{third}; still to the old one: {stale}", kind.name())
            }
            Self::OldMasterContinues(failover) => {
                write!(f, "node {}: old master: SIGCONT", node_name(failover.node))
            }
            Self::OldMasterLeaves(failover) => {
                write!(f, "node {}: the old master is none any more", node_name(failover.node))
            }
        }
    }
}
