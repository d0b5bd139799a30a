//! Records the commands that the nodes receive, and violations of the invariants S13 to S15 of docs/algorithm.md.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use quorlock::node::MemoryNode;
use quorlock_core::{Command, Value};
use tokio::task::yield_now;

use crate::watch::Watches;

/// The first node yields this many times before it answers, the second node twice as many times, and so on. So the
/// future can be dropped between any two answers.
const TURNS: usize = 2;

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

/// Nodes in memory that yield before they answer, and record their commands. They never report that they are down, because
/// the driver would then fail commands before they arrive here.
pub(crate) fn recorded(count: usize, journal: &Arc<Journal>) -> Vec<MemoryNode> {
    let node = |place: usize| {
        let (node, journal) = (MemoryNode::new(&format!("n{place}")), journal.clone());
        node.intercept(move |commands, answers| {
            commands.iter().for_each(|command| journal.note(place, command));
            async move {
                for _ in 0..(place + 1) * TURNS {
                    yield_now().await;
                }
                answers.await
            }
        });
        node
    };
    (0..count).map(node).collect()
}

impl Journal {
    fn lines(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.lines.lock().unwrap()
    }

    fn note(&self, node: usize, command: &Command) {
        let Some((_, value)) = command.subject() else { return };
        if command.taken().is_some_and(|from| from.by_value) {
            return;
        }
        // A give-back replaces the attempt's value by the lease's value, so it ends the attempt like a release.
        if let Command::GiveBack { .. } = command {
            self.given_back.store(true, Ordering::Relaxed);
        }
        let verb = if command.is_release() {
            Verb::Release
        } else if let Command::Acquire { .. } | Command::Attach { .. } = command {
            Verb::Acquire
        } else if let Command::Raise { .. } = command {
            return;
        } else {
            Verb::Extend
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
