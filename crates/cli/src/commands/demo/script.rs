//! The script: one fault after the other, in about twenty seconds.

use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use super::nodes::{Fate, NAMES};
use super::stage::Stage;
use super::{DemoEnd, Event, TTL, now};
use crate::output::time;
use quorlock::LockOptions;

const B: usize = 1;
const C: usize = 2;
const D: usize = 3;
const E: usize = 4;

/// Time for which nodes stay down before they start again without their data: longer than any lock for which they
/// voted. The Redlock paper calls this a delayed restart.
const DOWN: Duration = Duration::from_millis(3500);

const _: () = assert!(TTL.as_millis() * 2 < DOWN.as_millis());

const OWN_WAIT: Duration = Duration::from_secs(1);

pub(super) fn play(stage: &mut Stage, events: &Sender<Event>) -> Result<(), DemoEnd> {
    stage.phase("all five up", true);
    stage.narrate("all five nodes are up", "All five nodes are up, and the workers contend.");
    stage.play(Duration::from_secs(3))?;
    freeze_one(stage)?;
    kill_two(stage)?;
    kill_three(stage, events)
}

fn freeze_one(stage: &mut Stage) -> Result<(), DemoEnd> {
    stage.phase("b frozen", true);
    stage.change(&[B], Fate::Frozen)?;
    let by = stage.nodes.by("SIGSTOP");
    stage.narrate(
        &format!("b is frozen {by}: its silence costs nobody anything"),
        &format!("Node b is frozen {by}: it takes what it is sent and says nothing."),
    );
    stage.play(Duration::from_secs(3))?;
    stage.phase("b resumed", true);
    stage.change(&[B], Fate::Up)?;
    let by = stage.nodes.by("SIGCONT");
    stage.narrate(&format!("b goes on {by}"), &format!("Node b goes on where it was {by}."));
    stage.play(Duration::from_millis(1500))
}

fn kill_two(stage: &mut Stage) -> Result<(), DemoEnd> {
    stage.phase("c and d dead", true);
    stage.change(&[C, D], Fate::Killed)?;
    let killed = now();
    let by = stage.nodes.by("kill -9");
    stage.narrate(
        &format!("c and d are dead {by}: three of five are a majority"),
        &format!("Nodes c and d are killed {by}. Three of five are a majority: work goes on."),
    );
    stage.play(DOWN)?;
    stage.phase("c and d back", true);
    stage.change(&[C, D], Fate::Restarted)?;
    stage.narrate(
        "c and d are back, empty",
        &format!(
            "Nodes c and d are started again, empty. They were down for {}, longer than any lock \
             lives here ({}), so they forgot none that counts (the paper's delayed restart).",
            time(now().saturating_sub(killed)),
            time(TTL),
        ),
    );
    stage.play(Duration::from_millis(1500))
}

fn kill_three(stage: &mut Stage, events: &Sender<Event>) -> Result<(), DemoEnd> {
    stage.change(&[C, D, E], Fate::Killed)?;
    let killed = now();
    stage.phase("c, d and e dead", false);
    stage.narrate(
        "c, d and e are dead: two of five are no majority, nobody gets the lock",
        "Nodes c, d and e are killed. Two of five are no majority: nobody gets the lock.",
    );
    stage.play(Duration::from_millis(500))?;
    call(stage, events.clone())?;
    match stage.answer(OWN_WAIT * 10)? {
        Err(refusal) => stage.quote(
            "A caller who wants another lock, and waits no longer than a second, is told:",
            &refusal,
        ),
        Ok(()) => stage.record.fault("two of five nodes were enough to get the lock"),
    }
    stage.play(DOWN.saturating_sub(now().saturating_sub(killed)))?;
    stage.phase("all five back", true);
    stage.change(&[C, D, E], Fate::Restarted)?;
    stage.narrate(
        "all five are back, and so is the lock",
        &format!(
            "All five are up again, three of them empty, after {}: again longer than any lock lives.",
            time(now().saturating_sub(killed)),
        ),
    );
    stage.play(Duration::from_millis(2500))
}

/// A lock that no worker wants, so that the result of the call depends only on the nodes.
const FREE_KEY: &str = "another";

/// The demo's own call for a lock, on its own thread because it blocks.
fn call(stage: &Stage, events: Sender<Event>) -> Result<(), DemoEnd> {
    let builder =
        stage.nodes.client(0..NAMES.len()).options(LockOptions::new().owner("the demo itself"));
    let client = builder.blocking().build().map_err(DemoEnd::failed)?;
    let call = move || {
        let answer = client.acquire(FREE_KEY).options(LockOptions::new().wait(OWN_WAIT)).call();
        let answer = answer.map(drop).map_err(|error| error.to_string());
        // The receiver is already dropped if the demo ends early.
        let _ = events.send(Event::Answer(answer));
    };
    thread::Builder::new().name("call".into()).spawn(call)?;
    Ok(())
}
