//! The trait [`Node`], through which a client uses its nodes, and the types in its methods.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

pub use quorlock_core::{
    Adopted, Answer, Command, Counter, Evidence, Key, Keys, MarkerSeen, Mode, Taken, Value,
};
use quorlock_core::{Failure, NodeState, Reading};

pub use super::push_sink::PushSink;
pub use super::redis::RedisNode;
use crate::clock::Clock;

/// The future that a method of [`Node`] returns.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// One independent master.
///
/// Implement this trait for another transport, or around another node for tests:
///
/// ```
/// use quorlock::node::{Answers, Batch, BoxFuture, MemoryNode, PushSink, Node};
///
/// /// A node that answers late.
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
/// - A client gives a batch after the node called [`Batch::send`] for the batch before it, or failed that batch. A few
///   batches may await answers at a time. Commands take effect in the order in which the client gave them, even if the
///   client no longer waits for an earlier one, because a release follows its acquire.
/// - Nothing is sent twice. A command that was sent and not answered has an unknown effect, and its answer says so:
///   [`Failure::new`]. A command that certainly never left the process is [`Failure::unsent`]. After [`Batch::send`]
///   the client does not believe `unsent` of a connection that failed.
/// - The node calls [`Batch::send`] right before the first byte can leave, on a connection on which votes may count,
///   because the validity of a lock counts from that moment.
/// - Each command has its own answer. An error is the answer to its own command only.
/// - After a reply that does not fit its command, the node closes the connection. Otherwise it would take the next
///   replies for answers to the wrong commands.
/// - The future of a batch does not need another batch's future to be polled. It may need the future of
///   [`Node::background`], so a node that wraps another node passes that future on. Futures do not panic: the client
///   stops using a node that does, and its votes are lost.
/// - The futures may be polled within a caller's call, on the caller's thread and within the client's runtime. They
///   must not wait for a mutex that the caller holds during the call.
pub trait Node: fmt::Debug + Send + Sync + 'static {
    /// Returns the name that messages show for the node: distinct among the nodes of a client, and never a secret.
    fn name(&self) -> &str;

    /// Whether the node can be used now. The client calls this method before each batch, so it must be quick.
    fn state(&self) -> NodeState {
        NodeState::Up
    }

    /// Executes the commands of the batch in order and answers each of them, in that order.
    ///
    /// May wait a bounded time for a connection before it calls [`Batch::send`]. A node that is known to be down
    /// answers at once with [`Batch::fail`].
    fn execute(&self, batch: Batch) -> BoxFuture<Answers>;

    /// The node's background task. Runs as long as the client, on the client's runtime.
    ///
    /// `push_sink` takes the node's pushes. A node that answers [`Command::Watch`] with [`Answer::Watched`] must push,
    /// once, when the key changes. A node that cannot push answers with [`Answer::Seen`].
    fn background(&self, push_sink: PushSink) -> BoxFuture<()> {
        let _ = push_sink;
        Box::pin(std::future::pending())
    }
}

/// Commands for one node. [`Batch::send`] returns them and reads the clock, so the validity of a vote never counts from
/// a time after the sending (invariant S4).
#[derive(Debug)]
pub struct Batch {
    pub(super) commands: Vec<Command>,
    pub(super) stamp: Arc<Stamp>,
}

impl Batch {
    /// Returns the commands without sending them.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// Reads the clock and returns the commands. The validity of their votes counts from this moment.
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

/// The answers to a batch, with the evidence (the node's `INFO` and marker) that they may count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// One answer for each command, in order.
    pub answers: Vec<Answer>,
    /// The evidence that the answers count, if the client has a restart guard: see [`PushSink::marker`].
    pub evidence: Evidence,
}

impl From<Vec<Answer>> for Answers {
    /// Makes answers that need no evidence: of a node that never loses data, or in a test.
    fn from(answers: Vec<Answer>) -> Self {
        Self { answers, evidence: Evidence::NotRequired }
    }
}

/// The time at which a batch was sent, and the task to wake at that time.
#[derive(Debug)]
pub(crate) struct Stamp {
    clock: Clock,
    sent: OnceLock<Reading>,
    waker: Mutex<Option<Waker>>,
}

impl Stamp {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, sent: OnceLock::new(), waker: Mutex::new(None) }
    }

    fn stamp(&self) {
        self.sent.get_or_init(|| self.clock.now());
        // Releases the mutex first, because the woken task may read the stamp at once.
        let waker = self.waker().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns the time at which the batch was sent; `None` before that.
    pub(super) fn sent(&self) -> Option<Reading> {
        self.sent.get().copied()
    }

    /// Wakes this task when the batch is sent. Has no effect if the batch was sent before this call.
    pub(super) fn wake_when_sent(&self, waker: &Waker) {
        self.waker().get_or_insert_with(|| waker.clone()).clone_from(waker);
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
