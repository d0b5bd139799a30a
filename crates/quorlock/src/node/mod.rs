//! Nodes: independent masters that hold one vote each.
//!
//! [`Node`] is the one trait between the client and a transport. Two implementations come with the
//! crate: [`RedisNode`] for real servers and [`MemoryNode`] for tests. Both pass the same
//! conformance suite, `node::conformance` (feature `conformance`).

mod config;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod memory;
mod push_sink;
pub(crate) mod ready;
pub(crate) mod redis;
pub(crate) mod transport;

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use quorlock_core::Reading;

pub use self::config::{NodeConfig, NodeConfigError, Tls};
pub use self::memory::MemoryNode;
pub(crate) use self::push_sink::Inbox;
pub use self::push_sink::PushSink;
pub use self::redis::RedisNode;
pub use quorlock_core::{
    Adopted, Answer, Command, Counter, Evidence, Failure, FailureKind, Holding, Key, Keys,
    MarkerSeen, NodeState, Value,
};

use crate::clock::Clock;

/// A boxed future, as [`Node::execute`] returns it.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// One independent master.
///
/// Implement it for another transport, or around another node for tests:
///
/// ```
/// use quorlock::node::{Answers, Batch, BoxFuture, MemoryNode, PushSink, Node};
///
/// /// Answers late.
/// #[derive(Debug)]
/// struct Distant(MemoryNode);
///
/// impl Node for Distant {
///     fn name(&self) -> &str {
///         self.0.name()
///     }
///
///     fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
///         let answers = self.0.execute(batch);
///         Box::pin(async move {
///             tokio::time::sleep(std::time::Duration::from_millis(20)).await;
///             answers.await
///         })
///     }
///
///     fn background(&self, news: PushSink) -> BoxFuture<()> {
///         self.0.background(news)
///     }
/// }
/// ```
///
/// # Contract
/// - A batch is given when the one before it is being sent, or has failed; a few may be awaiting
///   their answers at a time. The commands take effect in the order in which the batches were given,
///   also when nobody waits for an earlier one any more: a release is queued behind its acquire.
/// - Nothing is ever sent twice. What happened to a command that was sent and not answered is
///   unknown, and the answer says so: [`Failure::new`]. What certainly never left the process is
///   [`Failure::unsent`]. After [`Batch::send`] that is not believed of a connection that failed.
/// - [`Batch::send`] is called right before the first byte can leave, and not before the connection
///   is one on which votes may count: the validity is reckoned from there.
/// - Every command gets its own answer; an error touches its own command only.
/// - After a reply that does not fit, the connection is closed: the next replies would be taken for
///   answers to the wrong commands.
/// - Futures of batches do not depend on each other's being polled, only on that of
///   [`Node::background`]; a node that wraps another one must pass that on. They do not panic: a
///   node that does is not used any more, and its votes are gone.
/// - They may be polled within a caller's call, on its thread and within the client's runtime: what a caller keeps
///   locked while it calls must not be locked here.
pub trait Node: fmt::Debug + Send + Sync + 'static {
    /// The node's name in messages; distinct among the nodes of a client. Never a secret.
    fn name(&self) -> &str;

    /// Whether the node can be used right now. Asked before each batch, so it must be quick.
    fn state(&self) -> NodeState {
        NodeState::Up
    }

    /// Executes the commands of the batch in order and answers each of them, in that order.
    ///
    /// May wait for a connection before it calls [`Batch::send`], for a bounded time; a node that is
    /// known to be down answers at once, with [`Batch::fail`].
    fn execute(&self, batch: Batch) -> BoxFuture<Answers>;

    /// The node's background task. Runs as long as the client, on the client's runtime.
    ///
    /// `push_sink` takes the node's pushes. A node that answers [`Command::Watch`] with [`Answer::Watched`] must push, once,
    /// when the key changes. A node that cannot push answers with [`Answer::Seen`].
    fn background(&self, push_sink: PushSink) -> BoxFuture<()> {
        let _ = push_sink;
        Box::pin(std::future::pending())
    }
}

/// A node of a client.
#[derive(Clone, Debug)]
pub(crate) enum ClientNode {
    /// A server. The driver owns the connection to it.
    Server(RedisNode),
    /// A node that the driver knows by its trait alone.
    Custom(Arc<dyn Node>),
}

impl Deref for ClientNode {
    type Target = dyn Node;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Server(server) => server,
            Self::Custom(node) => &**node,
        }
    }
}

/// Commands for one node. [`Batch::send`] hands them out and takes the time of sending, so no vote can be counted from a
/// later time (invariant S4).
#[derive(Debug)]
pub struct Batch {
    commands: Vec<Command>,
    stamp: Arc<Stamp>,
}

impl Batch {
    /// Looks at the commands without sending them.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// Reads the clock and hands out the commands: from this moment on their votes count.
    #[must_use]
    pub fn send(self) -> Vec<Command> {
        self.stamp.stamp();
        self.commands
    }

    /// Answers every command with the same failure, without sending any.
    #[must_use]
    pub fn fail(self, failure: &Failure) -> Answers {
        let failed = |_: &Command| Answer::Failed(failure.clone());
        self.commands.iter().map(failed).collect::<Vec<_>>().into()
    }
}

/// The answers to a batch, and what shows that they may count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// One for each command, in order.
    pub answers: Vec<Answer>,
    /// The evidence that the answers count, if the client has a restart guard: see [`PushSink::marker`].
    pub evidence: Evidence,
}

impl From<Vec<Answer>> for Answers {
    /// Answers that count as they are: of a node that forgets nothing, or in a test.
    fn from(answers: Vec<Answer>) -> Self {
        Self { answers, evidence: Evidence::NotRequired }
    }
}

/// When a batch was sent, and the task to wake then.
#[derive(Debug)]
pub(crate) struct Stamp {
    clock: Clock,
    sent: OnceLock<Reading>,
    waker: Mutex<Option<Waker>>,
}

impl Stamp {
    fn new(clock: Clock) -> Self {
        Self { clock, sent: OnceLock::new(), waker: Mutex::new(None) }
    }

    fn stamp(&self) {
        self.sent.get_or_init(|| self.clock.now());
        // The lock is released first: the woken task may look at once.
        let waker = self.waker().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// When the batch was sent, if it was.
    fn sent(&self) -> Option<Reading> {
        self.sent.get().copied()
    }

    /// Wakes this task when the batch is sent; one that was sent before this call does not.
    fn wake_when_sent(&self, waker: &Waker) {
        self.waker().get_or_insert_with(|| waker.clone()).clone_from(waker);
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
