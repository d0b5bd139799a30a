//! What a restarted node costs. The paper leaves two ways. Every command is written to the disk
//! before it is answered, or a node that was restarted is kept out for as long as the longest ttl.
//! The third way is neither, which is unsafe. Measured are the price of each while all is well, and
//! how long no lock is granted after nodes were killed.

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

/// The name of all three together.
pub(crate) const NAME: &str = "recovery";

const NODES: usize = 5;

/// All of it.
pub(crate) fn run(bench: &mut Bench) {
    fsync::run(bench);
    guard::run(bench);
    restarts::run(bench);
}

/// As long as fresh servers may need until they vote, and far longer than any here does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes a lock and gives it back; says when it was had.
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

/// Returns when all nodes can be reached and vote.
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

/// The pairs per second of each of the subjects, as multiples of the first one's in the same round.
fn ratios(figures: &mut Figures, workload: &str, subjects: &[&str], lockers: usize) {
    let concurrency = lockers as u64;
    let cell = |subject| Cell { workload, subject, nodes: NODES, concurrency };
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
