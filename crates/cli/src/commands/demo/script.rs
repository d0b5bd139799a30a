//! The script: one fault after the other, in about twenty seconds.

use std::time::Duration;

use quorlock::LockOptions;
use tokio::time::sleep;

use super::nodes::{Fate, NAMES};
use super::stage::Stage;
use super::{TTL, failed, since};
use crate::guardian::clock::boot_ns;
use crate::options::Refused;
use crate::output::time;

const B: usize = 1;
const C: usize = 2;
const D: usize = 3;
const E: usize = 4;

/// Time for which nodes stay down before they start again without their data: longer than any lock for which they
/// voted. The Redlock paper calls this a delayed restart.
const DOWN: Duration = Duration::from_millis(3500);

const _: () = assert!(TTL.as_millis() * 2 < DOWN.as_millis());

const LONG: Duration = Duration::from_secs(3);
const SHORT: Duration = Duration::from_millis(1500);

const OWN_WAIT: Duration = Duration::from_secs(1);

/// A lock that no worker wants, so that the result of the demo's own call depends only on the nodes.
const FREE_KEY: &str = "another";

pub(super) async fn play(stage: &mut Stage) -> Result<(), Refused> {
    stage.change("all five up", &[], Fate::Up);
    stage.narrate("All five nodes are up, and the workers contend.");
    stage.play(sleep(LONG)).await?;

    stage.change("b frozen", &[B], Fate::Frozen);
    stage
        .narrate("Node b is frozen (as if by SIGSTOP): it takes what it is sent and says nothing.");
    stage.play(sleep(LONG)).await?;
    stage.change("b resumed", &[B], Fate::Up);
    stage.narrate("Node b goes on where it was (as if by SIGCONT).");
    stage.play(sleep(SHORT)).await?;

    stage.change("c and d dead", &[C, D], Fate::Killed);
    let killed = boot_ns();
    stage.narrate(
        "Nodes c and d are killed (as if by kill -9). Three of five are a majority: work goes on.",
    );
    stage.play(sleep(DOWN)).await?;
    stage.change("c and d back", &[C, D], Fate::Restarted);
    stage.narrate(&format!(
        "Nodes c and d are started again, empty. They were down for {}, longer than any lock lives here \
         ({}), so they forgot none that counts (the paper's delayed restart).",
        time(since(killed)),
        time(TTL),
    ));
    stage.play(sleep(SHORT)).await?;

    stage.change("c, d and e dead", &[C, D, E], Fate::Killed);
    let killed = boot_ns();
    stage
        .narrate("Nodes c, d and e are killed. Two of five are no majority: nobody gets the lock.");
    stage.play(sleep(Duration::from_millis(500))).await?;
    let options = LockOptions::new().owner("the demo itself").wait(OWN_WAIT);
    let client = stage.nodes.client(0..NAMES.len()).build().map_err(failed)?;
    match stage.play(client.acquire(FREE_KEY).options(options)).await? {
        Err(refusal) => stage.quote(
            "A caller that wants another lock, and waits no longer than a second, gets this answer:",
            &refusal.to_string(),
        ),
        Ok(_) => stage.record.faults.push("two of five nodes were enough to get the lock".into()),
    }
    stage.play(sleep(DOWN.saturating_sub(since(killed)))).await?;
    stage.change("all five back", &[C, D, E], Fate::Restarted);
    stage.narrate(&format!(
        "All five are up again, three of them empty, after {}: again longer than any lock lives.",
        time(since(killed)),
    ));
    stage.play(sleep(LONG)).await
}
