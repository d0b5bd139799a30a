//! A node under test, and the functions that send commands to it.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use quorlock_core::{Event, NodeId, Reading};
use tokio::task::JoinHandle;

use super::{Outside, new_key};
use crate::clock::Clock;
use crate::node::{
    Answer, Answers, Batch, BoxFuture, Command, Evidence, Inbox, Key, MarkerSeen, Node, Stamp,
};

/// A node under test. It gets commands as from a client, while its [`Node::background`] runs.
pub struct Subject {
    pub(super) node: Arc<dyn Node>,
    pub(super) outside: Box<dyn Outside>,
    background: JoinHandle<()>,
    push_sink: Inbox,
    pub(super) marker: Key,
    /// Number of the connection on which the last answers came; zero before the first answers.
    epoch: AtomicU64,
}

impl Subject {
    /// Takes a node, and access to its keys that bypasses it. Must be called inside a tokio runtime.
    pub fn new(node: impl Node, outside: impl Outside) -> Self {
        let node: Arc<dyn Node> = Arc::new(node);
        let marker = new_key("marker");
        let inbox = Inbox::new(1);
        let push_sink = inbox.push_sink(NodeId::new(0)).with_marker(Some(marker.clone()));
        let background = tokio::spawn(node.background(push_sink));
        let (outside, push_sink) = (Box::new(outside), inbox);
        Self { node, outside, background, push_sink, marker, epoch: AtomicU64::new(0) }
    }

    /// Executes these commands as one batch.
    pub async fn execute(&self, commands: Vec<Command>) -> Vec<Answer> {
        self.execute_and_prove(commands).await.answers
    }

    /// As [`execute`](Self::execute). Also checks that a node that sends evidence (its `INFO` and its marker) adds it
    /// to every batch that needs it.
    pub(super) async fn execute_and_prove(&self, commands: Vec<Command>) -> Answers {
        let greets = commands.contains(&Command::Identify);
        let votes = commands.iter().any(Command::is_about_votes);
        let before = self.outside.value(&self.marker);
        let answers = self.give(commands).await.answers().await.0;
        if let Evidence::Seen { epoch, info, marker, .. } = &answers.evidence {
            let last = self.epoch.swap(*epoch, Ordering::Relaxed);
            assert!(*epoch >= 1 && *epoch >= last, "connections are counted from one");
            let asks_info = *epoch != last || greets;
            assert_eq!(info.is_some(), asks_info, "on a new connection, and when it is greeted");
            let expected = match before {
                _ if !asks_info && !votes => MarkerSeen::NotAsked,
                None => MarkerSeen::Missing,
                Some(text) => MarkerSeen::Text(String::from_utf8_lossy(&text).into()),
            };
            assert_eq!(*marker, expected, "the marker shows that nothing was lost");
        }
        answers
    }

    /// Gives the node a batch, and returns once the batch was sent. Only then may the next batch be given.
    pub(super) async fn give(&self, commands: Vec<Command>) -> Given {
        let stamp = Arc::new(Stamp::new(Clock::Tokio));
        let batch = Batch { commands, stamp: stamp.clone() };
        let mut answers = self.node.execute(batch);
        let early = poll_fn(|cx| match Pin::new(&mut answers).poll(cx) {
            Poll::Ready(answers) => Poll::Ready(Some(answers)),
            Poll::Pending if stamp.sent().is_some() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await;
        Given { answers, early, stamp }
    }

    /// Waits for the node's next push, and returns the changed keys.
    pub(super) async fn next_push(&self) -> Vec<Key> {
        let mut events = Vec::new();
        loop {
            poll_fn(|cx| {
                self.push_sink.take(cx, &mut events);
                if events.is_empty() { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            for event in events.drain(..) {
                match event {
                    // The node has a new connection, so all keys may have changed. The test waits for a push that names
                    // keys.
                    Event::Pushed { keys: None, .. } => {}
                    Event::Pushed { keys: Some(keys), .. } => return keys,
                    other => panic!("the node has said {other:?}"),
                }
            }
        }
    }

    /// The keys of each push since the last call; `None` stands for a push that all keys may have changed.
    pub fn pushed(&self) -> Vec<Option<Key>> {
        let mut events = Vec::new();
        self.push_sink.take(&mut Context::from_waker(Waker::noop()), &mut events);
        let keys = events.into_iter().flat_map(|event| match event {
            Event::Pushed { keys: Some(keys), .. } => keys.into_iter().map(Some).collect(),
            Event::Pushed { keys: None, .. } => vec![None],
            other => panic!("the node has said {other:?}"),
        });
        keys.collect()
    }

    pub(super) async fn ask(&self, command: Command) -> Answer {
        self.execute(vec![command]).await.into_iter().next().expect("one answer to one command")
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.background.abort();
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("node", &self.node).finish_non_exhaustive()
    }
}

/// A batch that the node has sent, and the future of its answers.
pub(super) struct Given {
    answers: BoxFuture<Answers>,
    early: Option<Answers>,
    stamp: Arc<Stamp>,
}

impl Given {
    /// The answers, and the time at which the node called [`Batch::send`]; `None` if it has not called it.
    pub(super) async fn answers(self) -> (Answers, Option<Reading>) {
        let answers = match self.early {
            Some(answers) => answers,
            None => self.answers.await,
        };
        (answers, self.stamp.sent())
    }
}
