//! Asks every node ten times a second which client holds the lock.
//!
//! Each node has its own client, so that a node that does not answer does not delay the others.

use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use quorlock::node::NodeState;
use quorlock::{Client, HolderKind, NodeAnswer, NodeOutcome};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Event, FiveNodes, KEY, now};
use crate::commands::runtime;

const EVERY: Duration = Duration::from_millis(100);

/// Timeout of an answer. It is shorter than the interval between two questions.
const LIMIT: Duration = Duration::from_millis(90);

/// A node's last answer, as its client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeView {
    pub(super) lock: LockView,
    /// The smoothed round trip; `None` before the first.
    pub(super) round_trip: Option<Duration>,
}

/// A node's answer about the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LockView {
    Free,
    /// The owner, and the time until the lock ends if it is not extended; `None` if the key never expires.
    Held(String, Option<Duration>),
    /// There was no answer; the text is the reason.
    Nothing(String),
}

impl NodeView {
    pub(super) fn nothing(why: &str) -> Self {
        Self { lock: LockView::Nothing(why.to_owned()), round_trip: None }
    }
}

/// Starts a thread that sends the answers as events until the receiver is dropped.
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

async fn look(client: &Client) -> NodeView {
    let told = timeout(LIMIT, client.inspect(KEY)).await.ok();
    let answer = told.and_then(|told| told.ok()?.nodes.into_iter().next());
    let stats = client.stats().nodes.into_iter().next();
    let silent = || {
        LockView::Nothing(match stats.as_ref().map(|node| &node.state) {
            Some(NodeState::Suspended(failure) | NodeState::Down(failure)) => failure.to_string(),
            Some(NodeState::Connecting) => "connecting".to_owned(),
            _ => format!("no answer within {LIMIT:?}"),
        })
    };
    let lock = answer.and_then(|answer| tell(&answer)).unwrap_or_else(silent);
    NodeView { lock, round_trip: stats.as_ref().and_then(|node| node.round_trip) }
}

fn tell(answer: &NodeAnswer) -> Option<LockView> {
    match (answer.holder(), &answer.said) {
        (Some(holder), _) => {
            let owner = match holder.kind {
                HolderKind::Owner(owner) | HolderKind::Foreign(owner) => owner,
                other => format!("{other:?}"),
            };
            Some(LockView::Held(owner, holder.remaining))
        }
        (None, NodeOutcome::Seen(_)) => Some(LockView::Free),
        (None, NodeOutcome::Failed(failure)) => Some(LockView::Nothing(failure.to_string())),
        _ => None,
    }
}
