//! Pushes from the nodes to the driver. A key that is pushed several times is delivered once.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Context;

use futures_util::task::AtomicWaker;
use quorlock_core::{Event, NodeId};

use super::Key;

/// The most pushed keys, and bytes of keys, that the inbox keeps for one node. Beyond that, all keys count as changed.
const KEYS_MAX: usize = 1024;
const BYTES_MAX: usize = 64 * 1024;

/// Receives a node's pushes: keys that a client waits for have changed.
///
/// A push is only a hint. Clients ask the nodes before they act on it, and attempt a lock without a push when its keys
/// must have expired. So a node may push too often or without a reason, and a missing push only makes a client wait
/// longer. The client counts repeated pushes of a key as one, and more than a thousand keys as a change of all keys, so
/// no node can fill a client's memory.
#[derive(Clone)]
pub(crate) struct PushSink {
    node: NodeId,
    shared: Weak<Shared>,
    marker: Option<Key>,
    /// Whether the client registers its database on a server that has no registration (a key that names the database).
    pub(super) registers: bool,
    /// Whether the client takes locks, as the name of its connection says.
    pub(super) takes_locks: bool,
    /// Whether the operator declared the node durable, so that it loses no write when it stops.
    pub(super) is_durable: bool,
}

impl PushSink {
    pub(crate) fn durable(self, is_durable: bool) -> Self {
        Self { is_durable, ..self }
    }

    pub(crate) fn with_marker(self, marker: Option<Key>) -> Self {
        Self { marker, ..self }
    }

    pub(crate) fn taking_locks(self, takes_locks: bool) -> Self {
        Self { takes_locks, ..self }
    }

    pub(crate) fn registering(self, registers: bool) -> Self {
        Self { registers, ..self }
    }

    /// The key of the node's marker, which shows that no data was lost. `None` if the client has no restart guard.
    pub(crate) fn marker(&self) -> Option<&Key> {
        self.marker.as_ref()
    }

    /// These keys have changed: they were set, deleted or given another time to live, or have expired.
    pub(crate) fn changed(&self, keys: Vec<Key>) {
        self.push(|unread| unread.changed(keys));
    }

    /// All keys may have changed, and no key is watched any more: the connection is new, or all data was deleted.
    pub(crate) fn all_changed(&self) {
        self.push(Unread::all_changed);
    }

    /// Whether the client was dropped.
    pub(super) fn is_closed(&self) -> bool {
        self.shared.strong_count() == 0
    }

    fn push(&self, push: impl FnOnce(&mut Unread)) {
        // If the client was dropped, no driver takes the push.
        let Some(shared) = self.shared.upgrade() else { return };
        push(&mut shared.lock()[self.node.index()]);
        shared.has_pushes.store(true, Ordering::Release);
        shared.task.wake();
    }
}

impl fmt::Debug for PushSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushSink").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The pushes that the driver has not taken yet.
#[derive(Debug)]
pub(crate) struct Inbox(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    nodes: Mutex<Vec<Unread>>,
    /// Whether there are pushes that the driver has not taken.
    has_pushes: AtomicBool,
    task: AtomicWaker,
}

#[derive(Debug, Default)]
struct Unread {
    all: bool,
    keys: BTreeSet<Key>,
    bytes: usize,
}

impl Inbox {
    pub(crate) fn new(nodes: usize) -> Self {
        let nodes = (0..nodes).map(|_| Unread::default()).collect();
        let (has_pushes, task) = (AtomicBool::new(false), AtomicWaker::new());
        Self(Arc::new(Shared { nodes: Mutex::new(nodes), has_pushes, task }))
    }

    /// The sink for the pushes of this node.
    pub(crate) fn push_sink(&self, node: NodeId) -> PushSink {
        PushSink {
            node,
            shared: Arc::downgrade(&self.0),
            marker: None,
            registers: false,
            takes_locks: false,
            is_durable: false,
        }
    }

    /// Adds one event for each node that has pushed since the last call. Later pushes wake the task of `cx`.
    pub(crate) fn take(&self, cx: &mut Context<'_>, events: &mut Vec<Event>) {
        self.0.task.register(cx.waker());
        if !self.0.has_pushes.swap(false, Ordering::Acquire) {
            return;
        }
        for (node, said) in self.0.lock().iter_mut().enumerate() {
            let Unread { all, keys, .. } = std::mem::take(said);
            if all || !keys.is_empty() {
                let keys = (!all).then(|| keys.into_iter().collect());
                events.push(Event::Pushed { node: NodeId::new(node), keys });
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Unread>> {
        // The lock is used even if it is poisoned, because a panic leaves the pushes consistent.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unread {
    fn changed(&mut self, keys: Vec<Key>) {
        for key in keys {
            if self.all {
                return;
            }
            let size = key.len();
            if self.keys.insert(key) {
                self.bytes += size;
            }
            if self.keys.len() > KEYS_MAX || self.bytes > BYTES_MAX {
                self.all_changed();
            }
        }
    }

    fn all_changed(&mut self) {
        *self = Self { all: true, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(inbox: &Inbox) -> Vec<Event> {
        let mut events = Vec::new();
        inbox.take(&mut Context::from_waker(std::task::Waker::noop()), &mut events);
        events
    }

    fn key(number: usize) -> Key {
        number.to_string().into()
    }

    #[test]
    fn a_repeated_push_is_one_event() {
        let inbox = Inbox::new(2);
        let (first, second) = (inbox.push_sink(NodeId::new(0)), inbox.push_sink(NodeId::new(1)));
        for _ in 0..100_000 {
            second.changed(vec![key(1), key(2)]);
        }
        first.changed(vec![key(1)]);
        let pushed = |node, keys: Option<Vec<Key>>| Event::Pushed { node: NodeId::new(node), keys };
        let once = pushed(1, Some(vec![key(1), key(2)]));
        assert_eq!(taken(&inbox), [pushed(0, Some(vec![key(1)])), once]);
        assert_eq!(taken(&inbox), []);
        second.changed(vec![key(1)]);
        assert_eq!(
            taken(&inbox),
            [pushed(1, Some(vec![key(1)]))],
            "an event again, after it was taken"
        );
        second.changed(vec![key(1)]);
        second.all_changed();
        second.changed(vec![key(3)]);
        assert_eq!(taken(&inbox), [pushed(1, None)]);
        drop(inbox);
        assert!(first.is_closed());
        first.all_changed();
    }

    #[test]
    fn the_memory_for_the_pushes_of_a_node_is_bounded() {
        let inbox = Inbox::new(1);
        let push_sink = inbox.push_sink(NodeId::new(0));
        let kept = || {
            let nodes = inbox.0.lock();
            (nodes[0].keys.len(), nodes[0].bytes)
        };
        for number in 0..100_000 {
            push_sink.changed(vec![key(number)]);
            assert!(kept().0 <= KEYS_MAX);
        }
        assert_eq!(taken(&inbox), [Event::Pushed { node: NodeId::new(0), keys: None }]);
        for number in 0..100 {
            push_sink.changed(vec![format!("{number}{}", "x".repeat(100_000)).into()]);
            assert!(kept().1 <= BYTES_MAX);
        }
        assert_eq!(taken(&inbox), [Event::Pushed { node: NodeId::new(0), keys: None }]);
    }

    #[test]
    fn a_task_that_waits_for_pushes_is_woken() {
        let inbox = Inbox::new(1);
        let mut task = futures_util::future::poll_fn(|cx| {
            let mut events = Vec::new();
            inbox.take(cx, &mut events);
            if events.is_empty() { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let push_sink = inbox.push_sink(NodeId::new(0));
        std::thread::scope(|threads| {
            threads.spawn(|| push_sink.all_changed());
            runtime.block_on(async {
                let waiting = tokio::time::timeout(std::time::Duration::from_secs(30), &mut task);
                waiting.await.expect("it was woken");
            });
        });
    }
}
