//! The setup in which a future is dropped: three nodes, a client, and the checks after the drop.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quorlock::node::MemoryNode;
use quorlock::{Acquire, Client, Clock, Guard, Lease, LockOptions, Taken};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep};

use crate::journal::{Journal, recorded};
use crate::node_fault::{FOREIGN, NodeFault};

pub(crate) const RESOURCE: &str = "orders";
/// The value that the tests give to `Client::take`, and the key under which nodes store the nonce of such a lock.
pub(crate) const VALUE: &str = "worker-7";
pub(crate) const NONCE: &str = "quorlock:take:orders";
pub(crate) const TTL: Duration = Duration::from_secs(1);
pub(crate) const WAIT: Duration = Duration::from_millis(500);

const NODES: usize = 3;
const MS: Duration = Duration::from_millis(1);

/// The number of times that the driver can run before virtual time advances. A request and its answer need fewer turns.
const TURNS: usize = 60;

/// How often a dropped attach left the lease's value on all nodes again. `main.rs` checks that this happens.
pub(crate) static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);

pub(crate) struct Scene {
    pub(crate) nodes: Vec<MemoryNode>,
    node_fault: NodeFault,
    journal: Arc<Journal>,
    client: RefCell<Option<Client>>,
    /// Whether the client was shut down, which ends its locks early.
    shut_down: RefCell<bool>,
    guards: RefCell<Vec<Arc<Guard>>>,
    leases: RefCell<Vec<Lease>>,
    takens: RefCell<Vec<Rc<Taken>>>,
    /// A lock that another client has taken with the same value, in the one case that has such a client.
    rival: RefCell<Option<Taken>>,
    /// Other callers of the same client, which may still run when the future is dropped.
    others: RefCell<Vec<JoinHandle<()>>>,
}

fn client(nodes: &[MemoryNode]) -> Client {
    Client::builder()
        .memory_nodes(nodes.to_vec())
        .clock(Clock::Tokio)
        .options(LockOptions::new().ttl(TTL).wait(WAIT).node_timeout(TTL / 10))
        .max_ttl(TTL)
        .build()
        .unwrap()
}

impl Scene {
    pub(crate) fn new(node_fault: NodeFault) -> Rc<Self> {
        let journal = Arc::default();
        let nodes = recorded(NODES, &journal);
        Rc::new(Self {
            client: RefCell::new(Some(client(&nodes))),
            nodes,
            node_fault,
            journal,
            shut_down: RefCell::default(),
            guards: RefCell::default(),
            leases: RefCell::default(),
            takens: RefCell::default(),
            rival: RefCell::default(),
            others: RefCell::default(),
        })
    }

    pub(crate) fn client(&self) -> Client {
        self.client.borrow().clone().unwrap()
    }

    pub(crate) fn acquire(&self) -> Acquire {
        self.client().acquire(RESOURCE)
    }

    /// Drops the client's handle. From then on, only existing futures keep the client alive.
    pub(crate) fn forget_client(&self) {
        self.client.take();
    }

    pub(crate) fn will_be_shut_down(&self) {
        self.shut_down.replace(true);
    }

    /// Keeps a guard until `finish` drops it. After every poll, the test checks the guard.
    pub(crate) fn keep(&self, guard: Guard) {
        let guard = Arc::new(guard);
        self.journal.watches.add(&guard);
        self.guards.borrow_mut().push(guard);
    }

    pub(crate) fn guard(&self) -> Arc<Guard> {
        self.guards.borrow().last().unwrap().clone()
    }

    /// Removes and returns the guard that was kept last. The caller passes it to a call that consumes a guard.
    pub(crate) fn take_guard(&self) -> Guard {
        Arc::into_inner(self.guards.borrow_mut().pop().unwrap()).unwrap()
    }

    pub(crate) fn another_client(&self) -> Client {
        client(&self.nodes)
    }

    /// Keeps a lease until `finish` releases it.
    pub(crate) fn keep_lease(&self, lease: Lease) {
        self.leases.borrow_mut().push(lease);
    }

    pub(crate) fn lease(&self) -> Lease {
        self.leases.borrow().last().unwrap().clone()
    }

    /// Keeps a taken lock until `finish` releases it. A mere drop of the `Taken` would leave its keys on the nodes.
    pub(crate) fn keep_taken(&self, taken: Taken) {
        self.takens.borrow_mut().push(Rc::new(taken));
    }

    pub(crate) fn keep_rival(&self, taken: Taken) {
        self.rival.replace(Some(taken));
    }

    pub(crate) fn taken(&self) -> Rc<Taken> {
        self.takens.borrow().last().unwrap().clone()
    }

    pub(crate) fn take_taken(&self) -> Taken {
        Rc::into_inner(self.takens.borrow_mut().pop().unwrap()).unwrap()
    }

    /// Runs another caller of the same client.
    pub(crate) fn other(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.others.borrow_mut().push(tokio::spawn(work));
    }

    /// Another caller of the same client holds the lock for a while.
    pub(crate) async fn held_by_other(&self, span: Duration) {
        self.hold_in_background(self.acquire(), span);
        sleep(MS).await;
    }

    /// Another client holds the lock for a while.
    pub(crate) async fn held_by_another_client(&self, span: Duration) {
        self.hold_in_background(client(&self.nodes).acquire(RESOURCE), span);
        sleep(MS).await;
    }

    pub(crate) async fn read_by_another_client(&self, span: Duration) {
        self.hold_in_background(client(&self.nodes).acquire_shared(RESOURCE), span);
        sleep(MS).await;
    }

    pub(crate) fn hold_in_background(&self, call: Acquire, span: Duration) {
        let journal = self.journal.clone();
        self.other(async move {
            if let Ok(guard) = call.await {
                let guard = Arc::new(guard);
                journal.watches.add(&guard);
                sleep(span).await;
            }
        });
    }

    pub(crate) fn look(&self) {
        self.journal.watches.look(self.node_fault.loses_votes() || *self.shut_down.borrow());
    }

    /// Runs the checks after the future was dropped or has completed.
    pub(crate) async fn finish(&self) {
        self.turns().await;
        self.nobody_waits();
        self.wait(TTL / 10).await;
        let others = self.others.take();
        others.iter().for_each(JoinHandle::abort);
        self.guards.take();
        self.turns().await;
        if self.node_fault == NodeFault::Healthy
            && others.is_empty()
            && self.journal.given_back.load(Ordering::Relaxed)
        {
            assert_eq!(self.our_keys(), NODES, "the lease is back on every node");
            GIVEN_BACK.fetch_add(1, Ordering::Relaxed);
        }
        let had_taken = self.leave_no_lock().await;
        self.nothing_is_held();
        self.wait(self.node_fault.lasts()).await;
        if self.node_fault == NodeFault::SilentForLong {
            assert_eq!(self.our_keys(), 0, "expired, without a word from the nodes");
        }
        self.node_fault.end(&self.nodes);
        let ended = Instant::now();
        if had_taken {
            // `Client::extend_value` may have replaced the nonce. Then the release by the nonce has deleted nothing.
            drop(self.another_client().release_value(RESOURCE, VALUE).await.unwrap());
        }
        self.turns().await;
        while self.our_keys() > 0 {
            assert!(ended.elapsed() <= self.node_fault.keys_are_gone_after(), "a key stays");
            self.wait(MS).await;
        }
        // The client may still try to send a failed release for a key that the node has lost already. The test waits
        // until the client gives up.
        self.wait(TTL + TTL / 10).await;
        assert_eq!(self.our_keys(), 0, "no key comes back");
        self.nothing_is_owed();
        self.node_fault.take_foreign_keys(&self.nodes);
        self.client.take();
        self.journal.check(NODES);
        let rival = client(&self.nodes);
        assert!(rival.try_acquire(RESOURCE).await.unwrap().is_valid(), "the lock is free");
    }

    /// Lets the driver do all work for which virtual time need not advance.
    async fn turns(&self) {
        for _ in 0..TURNS {
            yield_now().await;
            self.look();
        }
    }

    async fn wait(&self, span: Duration) {
        let until = Instant::now() + span;
        while Instant::now() < until {
            sleep((until - Instant::now()).min(TTL / 50)).await;
            self.look();
        }
    }

    /// Releases the leases and the taken locks. Returns whether there was a taken lock.
    async fn leave_no_lock(&self) -> bool {
        if let Some(rival) = self.rival.take() {
            if self.node_fault == NodeFault::Healthy {
                rival
                    .extend()
                    .await
                    .expect("a take that is refused leaves the holder's keys alone");
            }
            self.keep_taken(rival);
        }
        let takens = self.takens.take();
        let had_taken = !takens.is_empty();
        // `release` queues the command at once, so its future can be dropped.
        takens.into_iter().for_each(|taken| drop(Rc::into_inner(taken).unwrap().release()));
        let client = self.another_client();
        for lease in self.leases.take() {
            let client = client.clone();
            tokio::spawn(async move { client.release_lease(&lease).await });
        }
        self.turns().await;
        had_taken
    }

    fn our_keys(&self) -> usize {
        let ours = |node: &&MemoryNode| {
            let is_foreign =
                node.value_of(RESOURCE).is_some_and(|value| value == FOREIGN.as_bytes());
            node.contains(NONCE) || node.contains(RESOURCE) && !is_foreign
        };
        self.nodes.iter().filter(ours).count()
    }

    /// A dropped call must leave the queue at once, and not at its deadline.
    fn nobody_waits(&self) {
        if let Some(client) = &*self.client.borrow() {
            let waiting = client.stats().calls_waiting;
            assert!(waiting <= self.others.borrow().len(), "{waiting} calls wait");
        }
    }

    fn nothing_is_held(&self) {
        if let Some(client) = &*self.client.borrow() {
            assert_eq!(client.stats().locks_held, 0);
            assert_eq!(client.stats().calls_waiting, 0);
        }
    }

    fn nothing_is_owed(&self) {
        if let Some(client) = &*self.client.borrow() {
            assert_eq!(client.stats().releases_owed, 0);
        }
    }
}
