//! A node under test, and the functions that send commands to it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use quorlock::admin::{ClientNode, NodeUnderTest};
use quorlock_core::{
    Answer, Command, Event, Evidence, Key, LockId, MarkerSeen, Reading, Ticket, Verb,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;

use crate::suite::{Outside, new_key};

/// A node under test. A task sends it commands, as a client's driver does.
pub(crate) struct Subject {
    pub(crate) outside: Box<dyn Outside>,
    pub(crate) marker: Key,
    batches: UnboundedSender<Batch>,
    pushes: Mutex<UnboundedReceiver<Option<Vec<Key>>>>,
    task: JoinHandle<()>,
    /// Number of the connection on which the last answers came; zero before the first answers.
    epoch: AtomicU64,
}

struct Batch {
    commands: Vec<Command>,
    reply: oneshot::Sender<Answered>,
}

/// The answers to a batch, their evidence, and a clock reading from before it was sent.
pub(crate) struct Answered {
    pub(crate) answers: Vec<Answer>,
    pub(crate) evidence: Evidence,
    pub(crate) sent: Reading,
}

impl Subject {
    /// Takes a node, and access to its keys that bypasses it. Must be called inside a tokio runtime.
    pub(crate) fn new(node: &ClientNode, outside: impl Outside) -> Self {
        let (marker, outside) = (new_key("marker"), Box::new(outside));
        let ((batches, mut received), (pushed, pushes)) =
            (unbounded_channel(), unbounded_channel());
        let served = NodeUnderTest::new(node, marker.clone());
        let mut sender = Sender { node: served, pushed, awaited: BTreeMap::new(), next: 0 };
        let task = tokio::spawn(async move { poll_fn(|cx| sender.poll(&mut received, cx)).await });
        let (pushes, epoch) = (Mutex::new(pushes), AtomicU64::new(0));
        Self { outside, marker, batches, pushes, task, epoch }
    }

    /// Executes these commands as one batch.
    pub(crate) async fn execute(&self, commands: Vec<Command>) -> Vec<Answer> {
        if commands.is_empty() {
            return Vec::new();
        }
        self.execute_and_prove(commands).await.answers
    }

    /// As [`execute`](Self::execute). Also checks that a node that sends evidence (its `INFO` and its marker) adds it
    /// to every batch that needs it.
    pub(crate) async fn execute_and_prove(&self, commands: Vec<Command>) -> Answered {
        let asks_info = commands.contains(&Command::Identify);
        let votes = commands.iter().any(Command::is_about_votes);
        let before = self.outside.value(&self.marker);
        let answered = self.give(commands).await.unwrap();
        if let Evidence::Seen { epoch, info, marker, .. } = &answered.evidence {
            let last = self.epoch.swap(*epoch, Ordering::Relaxed);
            assert!(*epoch >= 1 && *epoch >= last, "connections are counted from one");
            assert_eq!(info.is_some(), asks_info, "when it is greeted");
            let expected = match before {
                _ if !asks_info && !votes => MarkerSeen::NotAsked,
                None => MarkerSeen::Missing,
                Some(text) => MarkerSeen::Text(String::from_utf8_lossy(&text).into()),
            };
            assert_eq!(*marker, expected, "the marker shows that nothing was lost");
        }
        answered
    }

    /// Gives the node a batch of at least one command. Returns the receiver of its answers.
    pub(crate) fn give(&self, commands: Vec<Command>) -> oneshot::Receiver<Answered> {
        let (reply, answered) = oneshot::channel();
        assert!(self.batches.send(Batch { commands, reply }).is_ok(), "the task has panicked");
        answered
    }

    /// Waits for the node's next push, and returns the changed keys.
    pub(crate) async fn next_push(&self) -> Vec<Key> {
        loop {
            // `None`: all keys may have changed. The test waits for a push that names keys.
            if let Some(keys) = self.pushes.lock().await.recv().await.unwrap() {
                return keys;
            }
        }
    }

    /// The keys of each push since the last call; `None` stands for a push that all keys may have changed.
    pub(crate) fn pushed(&self) -> Vec<Option<Key>> {
        let mut pushed = Vec::new();
        while let Ok(keys) = self.pushes.try_lock().unwrap().try_recv() {
            match keys {
                Some(keys) => pushed.extend(keys.into_iter().map(Some)),
                None => pushed.push(None),
            }
        }
        pushed
    }

    pub(crate) async fn ask(&self, command: Command) -> Answer {
        self.execute(vec![command]).await.into_iter().next().expect("one answer to one command")
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task of a subject: takes the place of the engine.
struct Sender {
    node: NodeUnderTest,
    pushed: UnboundedSender<Option<Vec<Key>>>,
    /// The batches whose answers are incomplete, by their numbers, with the number of their commands.
    awaited: BTreeMap<u64, (usize, Vec<Answer>, oneshot::Sender<Answered>)>,
    /// The number of the next batch. The tickets of its commands have it as their lock.
    next: u64,
}

impl Sender {
    fn poll(&mut self, batches: &mut UnboundedReceiver<Batch>, cx: &mut Context<'_>) -> Poll<()> {
        let mut events = Vec::new();
        loop {
            self.node.poll(cx, &mut events);
            if events.is_empty() {
                match batches.poll_recv(cx) {
                    Poll::Ready(Some(batch)) => self.send(batch, &mut events),
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            // A push that a server sent before its answer is there when the test gets the answer.
            events.sort_by_key(|event| !matches!(event, Event::Pushed { .. }));
            for event in std::mem::take(&mut events) {
                self.handle(event, &mut events);
            }
        }
    }

    fn send(&mut self, Batch { commands, reply }: Batch, events: &mut Vec<Event>) {
        let ticket = Ticket { lock: LockId(self.next), round: 0, verb: Verb::Inspect };
        self.awaited.insert(self.next, (commands.len(), Vec::new(), reply));
        self.next += 1;
        self.node.take(commands.into_iter().map(|command| (ticket, command)).collect(), events);
    }

    fn handle(&mut self, event: Event, events: &mut Vec<Event>) {
        match event {
            Event::Answered { answers, evidence, sent, .. } => {
                for (ticket, answer) in answers {
                    let number = ticket.lock.0;
                    let (count, answers, _) = self.awaited.get_mut(&number).expect("answered once");
                    answers.push(answer);
                    if answers.len() == *count {
                        let (_, answers, reply) = self.awaited.remove(&number).unwrap();
                        let evidence = evidence.clone();
                        // A test that has dropped the receiver needs no answers.
                        let _ = reply.send(Answered { answers, evidence, sent });
                    }
                }
            }
            Event::Greeted { connection, evidence, .. } => {
                let Evidence::Seen { epoch, info: Some(_), .. } = evidence else {
                    panic!("a greeting asks for `INFO`: {evidence:?}")
                };
                assert_eq!(epoch, connection);
                self.node.trust(connection, events);
            }
            Event::Pushed { keys, .. } => drop(self.pushed.send(keys)),
            Event::Connecting { .. } | Event::Connected { .. } => {}
            other => panic!("the node has said {other:?}"),
        }
    }
}
