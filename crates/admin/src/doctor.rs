//! Examines nodes with the checks that a client makes, and with further ones. A finding states the fact, why it matters
//! for locks, and how to fix it.
//!
//! Nothing is changed. To find out which rights a user has, [`examine`] uses them on one key of the library's own,
//! which is deleted afterwards.

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
use quorlock_core::display::seconds;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// For information only: the fact is no disadvantage for locks.
    Note,
    /// Locks work, or will work after a wait, but with a disadvantage.
    Warning,
    /// The node's votes do not count or must not be relied on, or too few nodes vote.
    Error,
}

impl Severity {
    fn finding(
        self,
        check: &'static str,
        what: impl Into<String>,
        why: &'static str,
        fix: impl Into<String>,
    ) -> Finding {
        Finding { severity: self, check, what: what.into(), why, fix: fix.into() }
    }
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

/// One result of the examination.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Severity of the finding.
    pub severity: Severity,
    /// Stable name of the check: `reach`, `role`, `eviction`, ….
    pub check: &'static str,
    /// Fault or fact that was found.
    pub what: String,
    /// Consequence for locks.
    pub why: &'static str,
    /// Remedy: in most cases a command. If only time helps, the text says so.
    pub fix: String,
}

/// A server's wall clock compared with this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockOffset {
    /// Microseconds by which the server's clock is ahead; negative if it is behind.
    pub ahead_us: i64,
    /// Largest error of `ahead_us`: half the round trip, because the server read its clock at an unknown moment in it.
    pub error: Duration,
}

/// Whether a node's votes count. After a restart or a loss of data, a node first waits until old locks have expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Votes {
    /// The votes count.
    Count,
    /// The node's wait has begun and lasts this long. The node votes for every client that uses it after the wait.
    CountIn(Duration),
    /// The node's wait begins when a client next uses the node. The wait lasts this long, and then the votes count.
    CountAfterUse(Duration),
    /// The votes do not count.
    #[default]
    DoNotCount,
}

/// Result of the examination of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node's name.
    pub node: Arc<str>,
    /// `host:port`, or the path of the socket.
    pub address: String,
    /// Whether a Sentinel gave the address, so that a failover changes it.
    pub is_located: bool,
    /// Name and version of the server, such as `Redis 7.0.15`; `None` if the node did not report them.
    pub server: Option<String>,
    /// Uptime by the server's own clock, in seconds; `None` if the node did not report it.
    pub uptime_s: Option<i64>,
    /// Median of several measured round trips to the node; `None` if the node could not be examined.
    pub latency: Option<Duration>,
    /// The server's clock compared with this machine's.
    pub clock: Option<ClockOffset>,
    /// Whether the node's votes count.
    pub votes: Votes,
    /// Findings, the worst first.
    pub findings: Vec<Finding>,
}

impl NodeReport {
    /// Severity of the worst finding; `None` if there is none.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// Result of [`examine`]: the findings about all nodes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Examination {
    /// One report per node, in the order of the nodes in the settings.
    pub nodes: Vec<NodeReport>,
    /// A fault of all nodes together: fewer than a quorum vote at present. `None` if a quorum votes.
    pub together: Option<Finding>,
    /// Time for which a new or restarted node does not vote: a bit more than the longest ttl.
    pub quarantine: Duration,
    /// Number of nodes that must grant a lock.
    pub quorum: usize,
    acl: BTreeMap<String, Vec<Arc<str>>>,
}

/// Systemd's default limit for the start of a service, in seconds. [`Examination::systemd`] adds the quarantine to it.
const STARTS_WITHIN_S: u64 = 90;

impl Examination {
    /// Severity of the worst finding; `None` if there is none.
    pub fn worst(&self) -> Option<Severity> {
        let together = self.together.as_ref().map(|finding| finding.severity);
        self.nodes.iter().filter_map(NodeReport::worst).chain(together).max()
    }

    /// Commands that create a user with only the rights to lock, each with the nodes that it is for. Nodes whose
    /// servers know the same commands share one entry. The command has the word PASSWORD in place of the password.
    pub fn acl(&self, user: &str) -> Vec<(String, Vec<Arc<str>>)> {
        let named =
            |(rules, nodes): (&String, &Vec<Arc<str>>)| (acl::line(user, rules), nodes.clone());
        self.acl.iter().map(named).collect()
    }

    /// A drop-in for the servers' systemd unit: systemd then starts a server only after the quarantine. This also
    /// protects clients of other libraries, which do not check for restarts.
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

/// Examines all nodes at once, without building a client from the settings. Connecting to a node takes at most its
/// connect timeout, and so does each answer. Nodes that are not Redis or Valkey servers are left out.
///
/// # Errors
/// [`BuildError`], as from [`ClientBuilder::build`]; nothing was sent. A fault of a node is not an error but a finding.
///
/// # Cancel safety
/// One key of the library's own may remain for ten seconds.
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

/// The nodes that must not vote even if they have a valid marker, each with the reason.
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
