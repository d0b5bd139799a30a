//! Asks every node ten times a second which client holds the lock.
//!
//! Each node has its own client, so that a node that does not answer does not delay the others.

use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::node::NodeState;
use quorlock::{Client, HolderKind, NodeAnswer, NodeOutcome};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::nodes::NAMES;
use super::{DemoEnd, Event, FiveNodes, KEY, now};
use crate::commands::runtime;

const EVERY: Duration = Duration::from_millis(100);

/// Timeout of an answer. It is shorter than the interval between two questions.
const LIMIT: Duration = Duration::from_millis(90);

/// A node's last answer, as its client sees it.
pub(super) struct NodeView {
    pub(super) lock: LockView,
    /// The smoothed round trip; `None` before the first.
    pub(super) round_trip: Option<Duration>,
}

/// A node's answer about the lock.
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
pub(super) fn start(nodes: &FiveNodes, events: Sender<Event>) -> Result<(), DemoEnd> {
    let runtime = runtime()?;
    let clients = {
        let _inside = runtime.enter();
        let clients = (0..NAMES.len()).map(|place| nodes.client(place..place + 1).build());
        clients.collect::<Result<Vec<Client>, _>>().map_err(DemoEnd::failed)?
    };
    let observe = move || runtime.block_on(observe(&clients, &events));
    thread::Builder::new().name("observer".into()).spawn(observe)?;
    Ok(())
}

async fn observe(clients: &[Client], events: &Sender<Event>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let asked = now();
        let answers = join_all(clients.iter().map(inspect)).await;
        if events.send(Event::Answers { asked, answers }).is_err() {
            return;
        }
    }
}

async fn inspect(client: &Client) -> NodeView {
    let inspected = timeout(LIMIT, client.inspect(KEY)).await.ok();
    let answer = inspected.and_then(|inspected| inspected.ok()?.nodes.into_iter().next());
    let stats = client.stats().nodes.into_iter().next();
    let silent = || {
        LockView::Nothing(match stats.as_ref().map(|node| &node.state) {
            Some(NodeState::Suspended(failure) | NodeState::Down(failure)) => failure.to_string(),
            Some(NodeState::Connecting) => "connecting".to_owned(),
            _ => format!("no answer within {LIMIT:?}"),
        })
    };
    let lock = answer.and_then(|answer| lock_view(&answer)).unwrap_or_else(silent);
    NodeView { lock, round_trip: stats.as_ref().and_then(|node| node.round_trip) }
}

fn lock_view(answer: &NodeAnswer) -> Option<LockView> {
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
