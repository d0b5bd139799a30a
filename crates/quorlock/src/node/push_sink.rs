//! What nodes say unasked, on its way to the driver: each key once, however often it is said.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Context;

use futures_util::task::AtomicWaker;
use quorlock_core::{Event, NodeId};

use super::Key;

/// Of one node, no more keys are kept, nor more bytes of them: then all may have changed.
const KEYS_MAX: usize = 1024;
const BYTES_MAX: usize = 64 * 1024;

/// Takes what a node says unasked: that keys have changed which a client is waiting for.
///
/// A hint, and no more: clients ask again before they believe anything, and a lock that nobody
/// speaks of is tried when its keys must have expired. So it may be said too often, or for nothing;
/// but what is not said makes a client wait longer. What is said again before the client has heard it
/// is heard once, and beyond a thousand keys all are taken to have changed: no node can fill a client's
/// memory.
#[derive(Clone)]
pub struct PushSink {
    node: NodeId,
    shared: Weak<Shared>,
    marker: Option<Key>,
    registers: bool,
    is_durable: bool,
}

impl PushSink {
    /// The operator says that the node forgets nothing when it stops.
    pub(crate) fn durable(self, is_durable: bool) -> Self {
        Self { is_durable, ..self }
    }

    pub(super) fn is_durable(&self) -> bool {
        self.is_durable
    }

    pub(crate) fn with_marker(self, marker: Option<Key>) -> Self {
        Self { marker, ..self }
    }

    /// The client writes down which of a server's databases it uses, if nobody has.
    pub(crate) fn registering(self, registers: bool) -> Self {
        Self { registers, ..self }
    }

    pub(crate) const fn registers(&self) -> bool {
        self.registers
    }

    /// Under which key the node's marker is, if the client looks whether its nodes are to be trusted.
    /// A node that can be restarted, or lose its data, then has to prove itself with every batch
    /// ([`Evidence::Seen`](super::Evidence::Seen)). If the connection is new, or the batch has a
    /// [`Command::Identify`](super::Command::Identify), what the node says of itself comes before
    /// all else. If there is a command about votes, or the node has said what it is, its marker
    /// comes behind all else.
    pub fn marker(&self) -> Option<&Key> {
        self.marker.as_ref()
    }

    /// These keys have changed: been set, deleted, given another time to live, or have expired.
    pub fn changed(&self, keys: Vec<Key>) {
        self.tell(|said| said.changed(keys));
    }

    /// All keys may have changed, and none is watched any more: there is a new connection, or all
    /// data has been deleted.
    pub fn all_changed(&self) {
        self.tell(Unread::all_changed);
    }

    /// The client is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.shared.strong_count() == 0
    }

    fn tell(&self, tell: impl FnOnce(&mut Unread)) {
        // The client is gone, and with it who would care.
        let Some(shared) = self.shared.upgrade() else { return };
        tell(&mut shared.lock()[self.node.index()]);
        shared.has_pushes.store(true, Ordering::Release);
        shared.task.wake();
    }
}

impl fmt::Debug for PushSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushSink").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Where the driver finds what the nodes have said since it last looked.
#[derive(Debug)]
pub(crate) struct Inbox(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    nodes: Mutex<Vec<Unread>>,
    /// Something has been said since the driver last looked.
    has_pushes: AtomicBool,
    task: AtomicWaker,
}

/// What one node has said.
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

    /// By which this node speaks.
    pub(crate) fn push_sink(&self, node: NodeId) -> PushSink {
        PushSink {
            node,
            shared: Arc::downgrade(&self.0),
            marker: None,
            registers: false,
            is_durable: false,
        }
    }

    /// Takes out what has been said: one event for each node that has. Wakes the task when there is
    /// more.
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
        // Nothing is left half done by a panic that anything here would trip over.
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
    fn what_is_said_again_is_heard_once() {
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
        assert_eq!(taken(&inbox), [pushed(1, Some(vec![key(1)]))], "news again, once it was heard");
        second.changed(vec![key(1)]);
        second.all_changed();
        second.changed(vec![key(3)]);
        assert_eq!(taken(&inbox), [pushed(1, None)]);
        drop(inbox);
        assert!(first.is_closed());
        first.all_changed();
    }

    #[test]
    fn what_is_kept_of_a_node_is_bounded() {
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
    fn who_waits_is_woken() {
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
                waiting.await.expect("it was told");
            });
        });
    }
}
