//! Are these nodes fit to hold locks? Looks at each as a client would, and at what a client does
//! not look at. Says what is found, why it matters for locks, and what fixes it.
//!
//! Nothing is changed. To find out which rights a user has, they are used, on one key of the
//! library's own that is gone afterwards.

pub(crate) mod acl;
mod evaluate;
pub(crate) mod look;
mod rights;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock::admin::Topology;
use quorlock::{BuildError, ClientBuilder};
use quorlock_core::shown::seconds;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know.
    Note,
    /// Locks work, or will when the node has been waited for; something may surprise.
    Warning,
    /// The node's votes do not count, or must not be relied on; or too few nodes vote.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// Something that was found on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at, in a word that stays the same: `reach`, `role`, `eviction`, ….
    pub check: &'static str,
    /// What was found.
    pub what: String,
    /// Why that matters for locks.
    pub why: &'static str,
    /// What fixes it: mostly a command. If only time fixes it, this says so.
    pub fix: String,
}

/// The clock of a server beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockOffset {
    /// Microseconds by which it is ahead; behind, if negative.
    pub ahead_us: i64,
    /// The offset may be wrong by this: half the round trip.
    pub error: Duration,
}

/// Whether a node's votes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Votes {
    /// The votes count.
    Count,
    /// They will after this time, at the next use.
    CountIn(Duration),
    /// They will this time after the next use, which begins the wait.
    CountAfterUse(Duration),
    /// They do not.
    DoNotCount,
}

/// What was found on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node's name.
    pub node: Arc<str>,
    /// `host:port`, or the path of the socket.
    pub address: String,
    /// What runs there, such as `Redis 7.0.15`.
    pub server: Option<String>,
    /// For how long, by its own clock, in seconds.
    pub uptime_s: Option<i64>,
    /// The median of some round trips.
    pub latency: Option<Duration>,
    /// Its clock beside ours.
    pub clock: Option<ClockOffset>,
    /// Whether its votes count.
    pub votes: Votes,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
}

impl NodeReport {
    /// How bad the worst finding is; `None`: there is none.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// What was found on all nodes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Examination {
    /// Per node, in the order of the list.
    pub nodes: Vec<NodeReport>,
    /// What is wrong with them together: fewer than a quorum vote at present.
    pub together: Option<Finding>,
    /// For how long a node that was restarted, or is new, does not vote: a bit more than the longest
    /// ttl.
    pub quarantine: Duration,
    /// How many nodes must grant a lock.
    pub quorum: usize,
    acl: BTreeMap<String, Vec<Arc<str>>>,
}

/// What systemd allows a service to start within by itself, in seconds.
const STARTS_WITHIN_S: u64 = 90;

impl Examination {
    /// How bad the worst finding is; `None`: there is none.
    pub fn worst(&self) -> Option<Severity> {
        let together = self.together.as_ref().map(|finding| finding.severity);
        self.nodes.iter().filter_map(NodeReport::worst).chain(together).max()
    }

    /// The command that makes a user who may lock on these nodes, and nothing else: the nodes that
    /// know the same commands have the same. A password is to be put into it. For each, on which
    /// nodes it is to be given.
    pub fn acl(&self, user: &str) -> Vec<(String, Vec<Arc<str>>)> {
        let named =
            |(rules, nodes): (&String, &Vec<Arc<str>>)| (acl::line(user, rules), nodes.clone());
        self.acl.iter().map(named).collect()
    }

    /// A drop-in for the servers' unit: systemd then starts a server only after the quarantine, which
    /// protects also those who lock by other libraries and do not look for restarts.
    pub fn systemd(&self) -> String {
        let seconds = seconds(self.quarantine);
        let limit = seconds + STARTS_WITHIN_S;
        format!(
            "# systemctl edit redis-server.service    (or valkey-server.service)\n\
             # A server that comes back without its data has forgotten its locks: it stays away for longer\n\
             # than any of them can still be held. This is for clients that do not look for restarts:\n\
             # quorlock's own wait as long once more, counted from the start, about twice as long in all.\n\
             [Service]\n\
             ExecStartPre=/bin/sleep {seconds}\n\
             TimeoutStartSec={limit}\n"
        )
    }
}

/// Examines the nodes of a client that need not be built, all at once; each within its connect
/// timeout, and as much again for every answer. Nodes that are not servers are left out.
///
/// # Errors
/// [`BuildError`], as from [`ClientBuilder::build`]; nothing was sent. What is wrong with a node is no
/// error but a finding.
///
/// # Cancel safety
/// One key of the library's own may be left, for ten seconds.
pub async fn examine(settings: &ClientBuilder) -> Result<Examination, BuildError> {
    let topology = Topology::of(settings)?;
    let looked = look::look_at_all(&topology, &topology.servers, true).await;
    Ok(judged(&topology, &looked))
}

fn judged(topology: &Topology, looked: &[look::Looked]) -> Examination {
    let mut acl: BTreeMap<String, Vec<Arc<str>>> = BTreeMap::new();
    for node in looked {
        if let Ok(facts) = &node.facts {
            acl.entry(facts.rights.acl(&topology.prefix)).or_default().push(node.name.clone());
        }
    }
    let nodes = evaluate::evaluate(topology, looked);
    Examination {
        together: evaluate::together(topology, &nodes),
        nodes,
        quarantine: topology.rules.quarantine(),
        quorum: topology.quorum.needed(),
        acl,
    }
}

/// The nodes that must not vote whatever their markers say, and why.
pub(crate) fn unfit(topology: &Topology, looked: &[look::Looked]) -> Vec<(Arc<str>, String)> {
    const WHAT_THEY_ARE: [&str; 6] =
        ["role", "cluster", "loading", "eviction", "same_server", "clock_stands"];
    let reports = evaluate::evaluate(topology, looked);
    let faults = reports.iter().filter_map(|report| {
        let is_fault = |finding: &&Finding| WHAT_THEY_ARE.contains(&finding.check);
        let fault = report.findings.iter().find(is_fault)?;
        Some((report.node.clone(), format!("{} ({})", fault.what, fault.fix)))
    });
    faults.collect()
}
