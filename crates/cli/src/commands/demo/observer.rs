//! Asks every node, ten times a second, who holds the lock.
//!
//! Each node is asked by a client of its own, so that one that says nothing does not keep the
//! answers of the others from being shown.

use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use quorlock::node::NodeState;
use quorlock::{Client, HolderKind, NodeAnswer, NodeOutcome};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Event, FiveNodes, KEY, now};
use crate::commands::runtime;

/// How often the nodes are asked.
const EVERY: Duration = Duration::from_millis(100);

/// How long an answer may take: it is of no use to anybody after the next question.
const LIMIT: Duration = Duration::from_millis(90);

/// What a node says, as its client hears it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// About the lock.
    pub(super) lock: Told,
    /// The smoothed round trip, once there was one.
    pub(super) round_trip: Option<Duration>,
}

/// What a node says about the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Nobody holds it here.
    Free,
    /// This owner does, for so long if it is not extended, or without an end.
    Held(String, Option<Duration>),
    /// It says nothing, and the client knows so much about why.
    Nothing(String),
}

impl Seen {
    /// It says nothing, and this is why.
    pub(super) fn nothing(why: &str) -> Self {
        Self { lock: Told::Nothing(why.to_owned()), round_trip: None }
    }
}

/// Starts to ask, until nobody listens any more. The answers become events.
pub(super) fn start(nodes: &FiveNodes, events: Sender<Event>) -> Result<(), String> {
    let runtime = runtime().map_err(|error| error.to_string())?;
    let clients = {
        let _inside = runtime.enter();
        nodes.clients_of_each()?
    };
    let watch = move || {
        runtime.block_on(watch(&clients, &events));
    };
    let thread = thread::Builder::new().name("observer".into()).spawn(watch);
    thread.map(drop).map_err(|error| format!("cannot start the observer: {error}"))
}

async fn watch(clients: &[Client; 5], events: &Sender<Event>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let asked = now();
        let [a, b, c, d, e] = clients;
        let seen = tokio::join!(look(a), look(b), look(c), look(d), look(e));
        let seen = Box::new(seen.into());
        if events.send(Event::Seen { asked, seen }).is_err() {
            return;
        }
    }
}

async fn look(client: &Client) -> Seen {
    let told = timeout(LIMIT, client.inspect(KEY)).await.ok();
    let answer = told.and_then(|told| told.ok()?.nodes.into_iter().next());
    let stats = client.stats().nodes.into_iter().next();
    let silent = || {
        Told::Nothing(match stats.as_ref().map(|node| &node.state) {
            Some(NodeState::Suspended(failure) | NodeState::Down(failure)) => failure.to_string(),
            Some(NodeState::Connecting) => "connecting".to_owned(),
            _ => format!("no answer within {LIMIT:?}"),
        })
    };
    let lock = answer.and_then(|answer| tell(&answer)).unwrap_or_else(silent);
    Seen { lock, round_trip: stats.as_ref().and_then(|node| node.round_trip) }
}

fn tell(answer: &NodeAnswer) -> Option<Told> {
    match (answer.holder(), &answer.said) {
        (Some(holder), _) => {
            let owner = match holder.kind {
                HolderKind::Owner(owner) | HolderKind::Foreign(owner) => owner,
                other => format!("{other:?}"),
            };
            Some(Told::Held(owner, holder.remaining))
        }
        (None, NodeOutcome::Seen(_)) => Some(Told::Free),
        (None, NodeOutcome::Failed(failure)) => Some(Told::Nothing(failure.to_string())),
        _ => None,
    }
}
