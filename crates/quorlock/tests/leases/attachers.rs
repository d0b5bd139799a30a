//! Several clients attach one lease, and callers wait for its lock.

use std::time::Duration;

use quorlock::{AcquireError, Client, Delay, Guard, LockOptions, Retry};
use quorlock_servers::proxy::{Direction, Proxy, Traffic};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{ONCE, PATIENCE, PATIENT, all_up, eventually, five, get, no_key_is_left};
use crate::{
    LONG, block, client, key_is, lease_on_all, long, named, patient_client, proxied_client,
    proxies, unblock,
};

type Attached = Result<Guard, AcquireError>;

/// Asserts that one of two attaches fails and that its error names the winner. Returns the winner's guard.
fn one_wins(attached: [(&str, Attached); 2], round: usize) -> Guard {
    let [(name, attached), (other, beside)] = attached;
    let (winner, guard, error) = match (attached, beside) {
        (Ok(guard), Err(error)) => (name, guard, error),
        (Err(error), Ok(guard)) => (other, guard, error),
        (Ok(_), Ok(_)) => panic!("round {round}: two attached one lease"),
        (Err(error), Err(beside)) => panic!("round {round}: nobody attached: {error}; {beside}"),
    };
    assert!(guard.is_valid(), "round {round}");
    assert!(error.is_contended() && error.to_string().contains(winner), "round {round}: {error}");
    assert_eq!(error.holder().unwrap().kind.to_string(), winner, "round {round}");
    guard
}

/// The delays of the nodes' commands differ in each round, so the nodes get the attaches in different orders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_attachers_at_the_same_moment_exactly_one_wins() {
    let Some(nodes) = five() else { return };
    let (ways, beside) = (proxies(&nodes).await, proxies(&nodes).await);
    let holder = proxied_client(nodes.urls());
    let one = proxied_client(ways.iter().map(Proxy::url));
    let other = proxied_client(beside.iter().map(Proxy::url));
    all_up(&one).await;
    all_up(&other).await;
    for round in 0..100 {
        for proxy in ways.iter().chain(&beside) {
            let delay = Duration::from_millis(fastrand::u64(0..4));
            proxy.set(Direction::ToServer, Traffic::Delay(delay));
        }
        let guard = holder.acquire("k").options(long().wait(PATIENCE)).await.unwrap();
        let lease = lease_on_all(&nodes, guard).await;
        // The calls have their default wait, which is 2 s.
        let attach = |client: &Client, name: &str| {
            let call = client.attach(&lease).options(LockOptions::new().owner(name));
            tokio::spawn(call.into_future())
        };
        let (attached, also) = (attach(&one, "one"), attach(&other, "other"));
        let attached = [("one", attached.await.unwrap()), ("other", also.await.unwrap())];
        assert!(one_wins(attached, round).release().await.is_released(), "round {round}");
        no_key_is_left(&nodes).await;
    }
}

/// Two clients whose attempts get the votes of two nodes each. The fifth node is frozen.
struct Split {
    nodes: quorlock_servers::Nodes,
    ways: [Vec<Proxy>; 2],
    clients: [Client; 2],
    lease: quorlock::Lease,
    /// The value under the lock's key on the nodes before a client attaches the lease.
    value: String,
}

impl Split {
    async fn start() -> Option<Self> {
        let nodes = five()?;
        let ways = [proxies(&nodes).await, proxies(&nodes).await];
        let clients = [&ways[0], &ways[1]].map(|way| proxied_client(way.iter().map(Proxy::url)));
        for client in &clients {
            all_up(client).await;
        }
        let holder = proxied_client(nodes.urls());
        let lease = lease_on_all(&nodes, holder.acquire("k").options(long()).await.unwrap()).await;
        let value = get(&nodes[0], "k").unwrap();
        nodes[4].pause().unwrap();
        Some(Self { nodes, ways, clients, lease, value })
    }

    /// Both clients attach the lease. The first gets the votes of nodes 0 and 1, and the second those of nodes 2 and 3.
    async fn attach(&self, options: &LockOptions) -> [JoinHandle<Attached>; 2] {
        let [first, second] = &self.ways;
        let far = [&first[2], &first[3], &second[0], &second[1]];
        far.iter().for_each(|proxy| proxy.set(Direction::ToServer, Traffic::Hold));
        let attaching = [("one", &self.clients[0]), ("other", &self.clients[1])];
        let attaching = attaching.map(|(name, client)| {
            let call = client.attach(&self.lease).options(options.clone().owner(name));
            tokio::spawn(call.into_future())
        });
        let replaced =
            || self.nodes[..4].iter().all(|node| get(node, "k") != Some(self.value.clone()));
        eventually("each attempt has two votes", replaced).await;
        assert_eq!(get(&self.nodes[0], "k"), get(&self.nodes[1], "k"));
        assert_ne!(get(&self.nodes[1], "k"), get(&self.nodes[2], "k"));
        far.iter().for_each(|proxy| proxy.set(Direction::ToServer, Traffic::Open));
        attaching
    }
}

#[tokio::test]
async fn two_attachers_that_split_the_votes_give_them_back() {
    let Some(split) = Split::start().await else { return };
    let mut errors = Vec::new();
    for attaching in split.attach(&ONCE).await {
        errors.push(attaching.await.unwrap().expect_err("no quorum"));
    }
    let given_back = || key_is(&split.nodes[..4], "k", Some(&split.value));
    eventually("the value of the lease is back", given_back).await;
    split.nodes[4].resume().unwrap();
    assert!(split.clients[0].attach(&split.lease).options(PATIENT).await.unwrap().is_valid());
}

#[tokio::test]
async fn after_a_split_one_of_two_attachers_that_wait_wins() {
    let Some(split) = Split::start().await else { return };
    let [one, other] = split.attach(&PATIENT).await;
    let attached = [("one", one.await.unwrap()), ("other", other.await.unwrap())];
    assert!(one_wins(attached, 0).release().await.is_released());
    // The losing client restored the lease's value on its nodes. A minority with this value must not block the lock.
    assert!(split.clients[0].acquire("k").options(PATIENT).await.unwrap().is_valid());
}

/// Three nodes have another client's value, so the lease can never have a quorum again.
#[tokio::test]
async fn an_attacher_releases_its_votes_if_no_quorum_can_have_the_lease() {
    let Some(nodes) = five() else { return };
    let (first, second) = (client(&nodes).await, client(&nodes).await);
    let lease = lease_on_all(&nodes, first.acquire("k").options(long()).await.unwrap()).await;
    unblock(&nodes[2..], "k");
    block(&nodes[2..], "k");
    let error = second.attach(&lease).await.unwrap_err();
    assert!(error.is_contended(), "{error}");
    no_key_is_left(&nodes[..2]).await;
    assert!(key_is(&nodes[2..], "k", Some("blocked")));
}

/// Only a push about the release can wake the callers: the keys live longer than the calls wait, and no call polls.
#[tokio::test]
async fn callers_in_the_same_and_another_process_are_woken_by_the_release() {
    let Some(nodes) = five() else { return };
    let names = named(nodes.urls());
    let never =
        Retry { delay: Delay::Adaptive { ceiling: Duration::from_secs(60) }, attempts_max: None };
    let options = long().retry(never).wait(PATIENCE);
    for same_process in [true, false] {
        for attaches in [true, false] {
            let (holder, other) = (client(&nodes).await, client(&nodes).await);
            let guard = holder.acquire("k").options(PATIENT.ttl(LONG)).await.unwrap();
            let lease = lease_on_all(&nodes, guard).await;
            let held = if attaches { Some(holder.attach(&lease).await.unwrap()) } else { None };
            if let Some(held) = &held {
                eventually("all nodes have given their votes", || held.votes() == 5).await;
            }
            let waiter = if same_process { &holder } else { &other };
            let (progress, mut waits) = tokio::sync::mpsc::channel(1);
            let call = waiter.acquire("k").options(options.clone()).progress(progress);
            let waiting = tokio::spawn(call.into_future());
            waits.recv().await.unwrap();
            let released = match held {
                Some(held) => held.release().await,
                None => holder.release_lease(&lease).await.unwrap(),
            };
            assert!(released.is_released(), "{names:?}");
            let got = timeout(PATIENCE, waiting).await.unwrap().unwrap();
            let got = got.unwrap_or_else(|error| {
                panic!("same process: {same_process}, attached: {attaches}: {error}")
            });
            assert!(got.release().await.is_released());
        }
    }
}

/// A caller that waits for the guard in the client's local queue asks the nodes once the guard is detached.
#[tokio::test]
async fn a_caller_behind_the_guard_waits_for_the_detached_lock() {
    let Some(nodes) = five() else { return };
    let client = patient_client(nodes.urls());
    let guard = client.acquire("k").options(long()).await.unwrap();
    let waiting = tokio::spawn(client.acquire("k").options(PATIENT).into_future());
    eventually("the call waits", || client.stats().calls_waiting == 1).await;
    let lease = lease_on_all(&nodes, guard).await;
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(300) {
        assert!(!waiting.is_finished(), "the lock is detached, not released");
        sleep(Duration::from_millis(5)).await;
    }
    let attached = client.attach(&lease).await.unwrap();
    assert!(attached.release().await.is_released());
    assert!(waiting.await.unwrap().unwrap().is_valid());
}
