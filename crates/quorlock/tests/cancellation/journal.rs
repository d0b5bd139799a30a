//! Records the commands that the nodes receive, and violations of the invariants S13 to S15 of docs/protocol.md.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use quorlock::node::{Answers, Batch, BoxFuture, Command, MemoryNode, Node, PushSink, Value};

use tokio::task::yield_now;

use crate::watch::Watches;

/// The first node yields this many times before it answers, the second node twice as many times, and so on. So the
/// future can be dropped between any two answers.
const TURNS: usize = 2;

/// A node in memory that yields before it answers, and records its commands. It never reports that it is down, because
/// the driver would then fail commands before they arrive here.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) node: MemoryNode,
    place: usize,
    journal: Arc<Journal>,
}

/// The commands that the nodes have received, in order, and the violations that they showed.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    lines: Mutex<Vec<Entry>>,
    /// Violations, kept until the end of the test, because a panic inside the driver would not fail it.
    violations: Mutex<Vec<String>>,
    pub(crate) watches: Watches,
    /// Whether a node received a give-back, the command that restores a lease's value after a failed attach.
    pub(crate) given_back: AtomicBool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry {
    node: usize,
    verb: Verb,
    value: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Verb {
    Acquire,
    Extend,
    Release,
}

impl Recorded {
    pub(crate) fn some(count: usize, journal: &Arc<Journal>) -> Vec<Self> {
        let node = |place| MemoryNode::new(&format!("n{place}"));
        (0..count)
            .map(|place| Self { node: node(place), place, journal: journal.clone() })
            .collect()
    }
}

impl Node for Recorded {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
        batch.commands().iter().for_each(|command| self.journal.note(self.place, command));
        let (answers, turns) = (self.node.execute(batch), (self.place + 1) * TURNS);
        Box::pin(async move {
            for _ in 0..turns {
                yield_now().await;
            }
            answers.await
        })
    }

    fn background(&self, push_sink: PushSink) -> BoxFuture<()> {
        self.node.background(push_sink)
    }
}

impl Journal {
    fn lines(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.lines.lock().unwrap()
    }

    fn note(&self, node: usize, command: &Command) {
        let (verb, value) = match command {
            Command::Acquire { value, .. }
            | Command::AcquireShared { value, .. }
            | Command::Attach { value, .. }
            | Command::AttachFenced { value, .. } => (Verb::Acquire, value),
            Command::Take { taken, .. } => (Verb::Acquire, &taken.nonce),
            Command::ExtendTaken { taken, by_value: false, .. } => (Verb::Extend, &taken.nonce),
            Command::ReleaseTaken { taken, by_value: false, .. } => (Verb::Release, &taken.nonce),
            // A give-back replaces the attempt's value by the lease's value, so it ends the attempt like a release.
            Command::GiveBack { value, .. } => {
                self.given_back.store(true, Ordering::Relaxed);
                (Verb::Release, value)
            }
            Command::Extend { value, .. }
            | Command::ExtendShared { value, .. }
            | Command::Downgrade { value, .. }
            | Command::Heal { value, .. }
            | Command::HealShared { value, .. } => (Verb::Extend, value),
            Command::Release { value, .. } | Command::ReleaseShared { value, .. } => {
                (Verb::Release, value)
            }
            _ => return,
        };
        if verb == Verb::Release && self.watches.is_held(&text(value)) {
            let what = format!("S14: released at node {node}, and its guard is valid");
            self.violations.lock().unwrap().push(what);
        }
        self.lines().push(Entry { node, verb, value: text(value) });
    }

    /// At the end of a test, checks that every attempt and every lock was released on every node.
    pub(crate) fn check(&self, nodes: usize) {
        assert_eq!(*self.violations.lock().unwrap(), [""; 0]);
        let mut by_value: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        for line in self.lines().iter() {
            by_value.entry(line.value.clone()).or_default().push(line.clone());
        }
        for lines in by_value.values() {
            for node in 0..nodes {
                let here = || lines.iter().filter(|line| line.node == node).map(|line| line.verb);
                // S13: however a lock ended, no command uses its token after the release.
                let rest: BTreeSet<Verb> =
                    here().skip_while(|verb| *verb != Verb::Release).collect();
                assert!(
                    rest.len() <= 1,
                    "S13: node {node} was sent more behind the release: {lines:?}"
                );
                assert!(!rest.is_empty(), "S15: not released at node {node}: {lines:?}");
            }
        }
    }
}

/// The value at the lock's key on the nodes.
pub(crate) fn value_of(guard: &quorlock::Guard) -> String {
    text(&Value::new(&guard.token().stored(), ""))
}

fn text(value: &Value) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}
