//! Whether a node's answer to a look counts. A client decides that, by the same rule as for
//! [`Client::inspect`](quorlock::Client::inspect).

use quorlock::admin::{Topology, reader};
use quorlock::node::{Failure, FailureKind};
use quorlock::{BuildError, Client, ClientBuilder, NodeOutcome, RestartGuard};

/// The resource that is inspected. Its state does not matter.
const ANY: &str = "-";

/// A client that examines the nodes during a look, and writes nothing.
pub(crate) struct Examiner {
    /// `None` with the restart guard off, because then the answer of each node counts.
    client: Option<Client>,
    servers: usize,
}

impl Examiner {
    pub(crate) fn new(settings: &ClientBuilder, topology: &Topology) -> Result<Self, BuildError> {
        let is_guarded = topology.rules.guard != RestartGuard::Off;
        let client = is_guarded.then(|| reader(settings.clone(), false).build()).transpose()?;
        Ok(Self { client, servers: topology.servers.len() })
    }

    /// For each server, the reason why its answers do not count if they show no lock; `None` if they count. Call it once
    /// before the look, which makes the connections, and once after it: a node that has lost its data during the look must
    /// not count.
    pub(crate) async fn doubts(&self) -> Vec<Option<Failure>> {
        let Some(client) = &self.client else { return vec![None; self.servers] };
        // The name is a valid one, so the inspection does not fail. If it did, no answer would count.
        let Ok(seen) = client.inspect(ANY).await else {
            return vec![Some(Failure::new(FailureKind::Unverified)); self.servers];
        };
        let doubt = |place: usize| match &seen.nodes.get(place)?.said {
            NodeOutcome::Seen(_) => seen.doubt(place).cloned(),
            NodeOutcome::Failed(failure) => Some(failure.clone()),
            _ => Some(Failure::new(FailureKind::Silent)),
        };
        (0..self.servers).map(doubt).collect()
    }
}
