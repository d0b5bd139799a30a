//! The cost of restarted nodes. The Redlock paper describes two safe configurations. Either the node writes every
//! command to disk before it answers, or a restarted node does not vote until the longest ttl has passed. These
//! workloads measure the cost of each configuration without failures, and the time without locks after nodes were
//! killed. The baseline, which is unsafe, uses neither.

mod fsync;
pub(crate) mod guard;
mod restarts;

use std::time::Duration;

use quorlock::node::NodeState;
use quorlock::{Client, LockOptions, NodeStats, NodeTrustState};

use super::Bench;
use crate::clock;
use crate::report::{Cell, Figures};
use crate::subjects::quorlock::went_well;

/// The name by which `--only` selects all three workloads.
pub(crate) const NAME: &str = "recovery";

const NODES: usize = 5;

pub(crate) fn run(bench: &mut Bench) {
    fsync::run(bench);
    guard::run(bench);
    restarts::run(bench);
}

/// The longest wait for the first lock, and then for the votes of all nodes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Acquires and releases a lock. Returns the time of the grant.
async fn once(client: Client, key: String) -> Result<Duration, String> {
    let guard = client
        .acquire(&*key)
        .options(LockOptions::new().wait(PATIENCE))
        .await
        .map_err(|error| error.to_string())?;
    let had = clock::now();
    went_well(&key, guard.release().await.outcome)?;
    Ok(had)
}

/// Waits until all nodes are reachable and vote.
async fn all_vote(client: Client) -> Result<(), String> {
    once(client.clone(), "bench:recovery:first".to_owned()).await?;
    let until = clock::now() + PATIENCE;
    loop {
        let nodes = client.stats().nodes;
        let votes = |trust_state: &_| {
            matches!(trust_state, NodeTrustState::Trusted | NodeTrustState::Unguarded)
        };
        let is_up = |node: &NodeStats| node.state == NodeState::Up && votes(&node.trust_state);
        if nodes.iter().all(is_up) {
            return Ok(());
        }
        if clock::now() > until {
            return Err(format!("not all nodes vote: {nodes:?}"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Divides each other subject's rate by the first subject's rate in the same round, and adds the ratios to the figures.
fn ratios(figures: &mut Figures, workload: &str, subjects: &[&str], lockers: usize) {
    let cell = |subject| Cell::new(workload, subject, NODES, lockers);
    let rates = |figures: &Figures, subject| {
        let row = figures.row(cell(subject), "pairs_per_s");
        row.map_or_else(Vec::new, |row| row.values.clone())
    };
    let base = rates(figures, subjects[0]);
    for subject in &subjects[1..] {
        for (rate, base) in rates(figures, subject).iter().zip(&base) {
            figures.add(cell(subject), "rate_ratio", rate / base);
        }
    }
}
