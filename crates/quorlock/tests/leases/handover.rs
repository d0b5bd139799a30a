//! A lease passes from client to client.

use std::time::Duration;

use quorlock::{
    Acquire, AcquireError, Client, DetachError, Lease, LeaseError, LeaseKind, LockOptions,
    LossCause, blocking,
};
use quorlock_servers::proxy::{Blow, Direction, Effect, Traffic};
use tokio::time::{Instant, sleep, timeout};

use crate::common::{
    ONCE, PATIENCE, PATIENT, UNEXTENDED, all_up, eventually, five, get, key_count, no_key_is_left,
    pttl,
};
use crate::{
    LONG, builder, client, lease_on_all, long, patient_client, proxied_client, proxies, reread,
    sent,
};

type Call = fn(&Client) -> Acquire;

/// Calls that return a plain `Guard`: exclusive and shared, each for one key and for several keys.
const CALLS: [(LeaseKind, Call); 4] = [
    (LeaseKind::Exclusive, |client| client.acquire("k")),
    (LeaseKind::Exclusive, |client| client.acquire(["k", "b, =%\u{e4}", "c"])),
    (LeaseKind::Shared, |client| client.acquire_shared("k")),
    (LeaseKind::Shared, |client| client.acquire_shared(["k", "b"])),
];

#[tokio::test]
async fn another_client_attaches_extends_and_releases_a_detached_lock() {
    let Some(nodes) = five() else { return };
    for (kind, call) in CALLS {
        let (first, second, third) =
            (client(&nodes).await, client(&nodes).await, client(&nodes).await);
        let guard = call(&first).options(long().owner("first")).await.unwrap();
        let (title, token) = (guard.resource().to_owned(), guard.token());
        let lease = lease_on_all(&nodes, guard).await;
        assert_eq!((lease.kind(), lease.resource(), lease.ttl()), (kind, &*title, LONG));
        assert_eq!((lease.fencing_token(), lease.value()), (None, None));
        assert!(lease.remaining() > Duration::ZERO && lease.remaining() <= LONG);
        eventually("nothing is held", || first.stats().locks_held == 0).await;
        first.shutdown(PATIENCE).await.unwrap();
        let keys = key_count(&nodes[0]);
        assert_eq!(
            usize::try_from(keys).unwrap(),
            lease.resources().count(),
            "nothing is released"
        );

        let guard =
            second.attach(&lease).options(LockOptions::new().owner("second")).await.unwrap();
        assert_eq!((guard.resource(), guard.is_valid()), (&*title, true));
        assert_ne!(guard.token(), token, "S24: each guard has a value of its own");
        eventually("all nodes have given their votes", || guard.votes() == 5).await;
        assert!(guard.extend().await.unwrap() <= LONG);
        let error = third.try_acquire("k").await.unwrap_err();
        assert!(error.is_contended(), "{error}");
        if kind == LeaseKind::Exclusive {
            assert!(error.to_string().contains("second"), "{error}");
        }
        let used = third.attach(&lease).await.unwrap_err();
        assert!(used.is_contended() || matches!(used, AcquireError::LeaseOver(_)), "{used}");
        let lost = third.extend_lease(&lease).await.unwrap_err();
        assert!(matches!(lost, LeaseError::Lost { .. }), "{lost}");
        let _ = third.release_lease(&lease).await.unwrap();
        guard.extend().await.unwrap();
        assert_eq!(guard.votes(), 5, "the earlier text has no effect");
        assert!(guard.release().await.is_released());
        no_key_is_left(&nodes).await;
    }
}

#[tokio::test]
async fn each_attach_of_a_fenced_lock_has_a_larger_token() {
    let Some(nodes) = five() else { return };
    let (first, second) = (client(&nodes).await, client(&nodes).await);
    let guard = first.acquire_fenced(["k", "l"]).options(long()).await.unwrap();
    let mut token = guard.fencing_token();
    let mut lease = lease_on_all(&nodes, guard.into()).await;
    for attacher in [&second, &first, &second] {
        assert_eq!(lease.kind(), LeaseKind::Fenced);
        assert_eq!(lease.fencing_token().unwrap().get(), token);
        let extended = attacher.extend_lease(&lease).await.unwrap();
        assert_eq!(extended.fencing_token(), lease.fencing_token(), "the holder is the same");
        let guard = attacher.attach_fenced(&extended).await.unwrap();
        assert!(guard.fencing_token() > token, "{} after {token}", guard.fencing_token());
        token = guard.fencing_token();
        lease = reread(&guard.detach().await.unwrap());
    }
    assert!(first.release_lease(&lease).await.unwrap().is_released());
    let guard = first.acquire_fenced(["k", "l"]).options(PATIENT).await.unwrap();
    assert!(guard.fencing_token() > token);
}

/// Extends and releases leases of each kind, without attaching them.
#[tokio::test]
async fn a_lease_is_extended_and_released_by_its_text() {
    let Some(nodes) = five() else { return };
    let (first, second) = (client(&nodes).await, client(&nodes).await);
    let mut leases = Vec::new();
    for (_, call) in CALLS {
        let guard = call(&first).options(long()).await.unwrap();
        leases.push(lease_on_all(&nodes, guard).await);
        by_its_text(&second, leases.pop().unwrap(), &nodes).await;
    }
    let guard = first.acquire_fenced("k").options(long()).await.unwrap();
    by_its_text(&second, lease_on_all(&nodes, guard.into()).await, &nodes[..0]).await;
    let taken = first.take("k", b"v", LONG).await.unwrap();
    let lease = reread(&taken.detach().await.unwrap());
    assert_eq!((lease.kind(), lease.value()), (LeaseKind::Taken, Some(&b"v"[..])));
    by_its_text(&second, lease, &nodes[..0]).await;
}

async fn by_its_text(client: &Client, lease: Lease, emptied: &[quorlock_servers::Server]) {
    let extended = reread(&client.extend_lease(&lease).await.unwrap());
    assert!(extended.valid_until() > lease.valid_until(), "{extended:?}");
    assert!(extended.remaining() <= LONG);
    assert!(!client.try_acquire("k").await.is_ok_and(|guard| guard.is_valid()));
    // The text from before the extension can still release the lock.
    assert!(client.release_lease(&lease).await.unwrap().is_released());
    let lost = client.extend_lease(&extended).await.unwrap_err();
    assert!(matches!(lost, LeaseError::Lost { .. }), "{lost}");
    no_key_is_left(emptied).await;
    let _ = client.acquire("k").options(PATIENT).await.unwrap().release().await;
}

#[test]
fn a_blocking_client_detaches_attaches_and_takes() {
    let Some(nodes) = five() else { return };
    let client = || builder(&nodes).blocking().build().unwrap();
    let (first, second): (blocking::Client, blocking::Client) = (client(), client());
    let lease = reread(&first.acquire("k").options(long()).call().unwrap().detach().unwrap());
    let lease = reread(&second.extend_lease(&lease).unwrap());
    let lease = second.attach(&lease).call().unwrap().detach().unwrap();
    assert!(first.release_lease(&lease).unwrap().is_released());
    let guard = first.acquire_fenced("k").options(long().wait(PATIENCE)).call().unwrap();
    let token = guard.fencing_token();
    let guard = second.attach_fenced(&reread(&guard.detach().unwrap())).call().unwrap();
    assert!(guard.fencing_token() > token);
    assert!(guard.release().is_released());
    assert!(second.shutdown(PATIENCE).is_ok());
}

/// The guard that an attach returns is lost at the end of the first holder's `max_hold`.
#[tokio::test]
async fn max_hold_continues_across_an_attach() {
    let Some(nodes) = five() else { return };
    let (ttl, max_hold) = (Duration::from_secs(2), Duration::from_secs(5));
    let node_timeout = LockOptions::new().node_timeout(ttl / 4);
    let client = builder(&nodes).options(node_timeout).build().unwrap();
    let options = LockOptions::new().ttl(ttl).max_hold(max_hold);
    let guard = client.acquire("k").options(options.clone()).await.unwrap();
    let granted = Instant::now();
    let lease = guard.detach().await.unwrap();
    sleep(ttl / 2).await;
    let guard = client.attach(&lease).await.unwrap();
    loop {
        let held = granted.elapsed();
        if !guard.is_valid() {
            break;
        }
        assert!(held < max_hold, "held for {held:?}");
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(guard.loss_cause(), Some(LossCause::HoldLimit));
    drop(guard);

    // This `max_hold` equals the ttl, so after the acquire less than a ttl is left of it.
    let short = options.max_hold(ttl).wait(PATIENCE);
    let lease = client.acquire("k").options(short).await.unwrap().detach().await.unwrap();
    let before = sent(&client);
    let error = client.extend_lease(&lease).await.unwrap_err();
    assert!(matches!(error, LeaseError::HoldLimit { .. }), "{error}");
    let error = client.attach(&lease).await.unwrap_err();
    assert!(error.to_string().contains("max_hold"), "{error}");
    assert_eq!(sent(&client), before);
}

#[tokio::test]
async fn a_lost_lock_is_not_detached_and_a_dropped_detach_releases() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes).await;
    let guard = client.acquire("k").options(UNEXTENDED).await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 5).await;
    nodes[..3].iter().for_each(|node| drop(crate::run(node, &["DEL", "k"])));
    assert!(guard.extend().await.is_err());
    let error = guard.detach().await.unwrap_err();
    let lost = |cause| matches!(cause, DetachError::Lost { cause: LossCause::KeyGone, .. });
    assert!(lost(error.clone()), "{error}");
    no_key_is_left(&nodes).await;

    nodes[4].pause().unwrap();
    let guard = client.acquire("k").options(long()).await.unwrap();
    assert!(timeout(Duration::ZERO, guard.detach()).await.is_err(), "a node has not answered");
    nodes[4].resume().unwrap();
    no_key_is_left(&nodes).await;
}

/// A node that has not answered an acquire may execute the acquire later, when another client has the lock.
#[tokio::test]
async fn a_node_with_an_unanswered_command_is_listed_and_gives_no_vote() {
    let Some(nodes) = five() else { return };
    let node_timeout = Duration::from_secs(1);
    let timed = || {
        let options = LockOptions::new().node_timeout(node_timeout);
        builder(&nodes).options(options).build().unwrap()
    };
    let (first, second) = (timed(), timed());
    all_up(&first).await;
    all_up(&second).await;
    nodes[4].pause().unwrap();
    let guard = first.acquire("k").options(long()).await.unwrap();
    let started = Instant::now();
    let lease = reread(&guard.detach().await.unwrap());
    let took = started.elapsed();
    assert!(took < node_timeout + PATIENCE && took * 2 > node_timeout, "one timeout: {took:?}");
    assert!(lease.to_string().contains(",unanswered=4,"), "{lease}");

    nodes[4].resume().unwrap();
    eventually("the node executes the acquire", || get(&nodes[4], "k").is_some()).await;
    nodes[0].kill().unwrap();
    nodes[1].kill().unwrap();
    // Nodes 2, 3 and 4 have the value. The lease lists node 4 under `unanswered`, so only nodes 2 and 3 vote.
    let error = second.extend_lease(&lease).await.unwrap_err();
    assert!(matches!(error, LeaseError::Unconfirmed { .. }), "{error}");
    let error = second.attach(&lease).options(ONCE).await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert!(error.to_string().contains("had not answered"), "{error}");
    nodes[1].restart().unwrap();
    assert!(second.release_lease(&lease).await.unwrap().nodes().count() == 5);
    no_key_is_left(&nodes[1..]).await;
}

/// The detach ends when the last answer arrives, so the lease's list of nodes that have not answered is empty.
#[tokio::test]
async fn a_detach_waits_for_the_answers_to_an_acquire_or_an_attach() {
    let Some(nodes) = five() else { return };
    let (first, second) = (patient_client(nodes.urls()), patient_client(nodes.urls()));
    all_up(&first).await;
    all_up(&second).await;
    let mut lease: Option<Lease> = None;
    for client in [&first, &second, &first] {
        nodes[4].pause().unwrap();
        let guard = match &lease {
            None => client.acquire("k").options(long()).await.unwrap(),
            Some(lease) => client.attach(lease).await.unwrap(),
        };
        let token = guard.token().to_string();
        let has_token = |node| get(node, "k").is_some_and(|value| value.starts_with(&token));
        let mut detaching = tokio::spawn(guard.detach());
        eventually("four nodes have the value", || nodes[..4].iter().all(has_token)).await;
        let waited = timeout(Duration::from_millis(50), &mut detaching).await;
        assert!(waited.is_err(), "a node has not answered");
        nodes[4].resume().unwrap();
        let detached = timeout(PATIENCE, detaching).await.unwrap().unwrap().unwrap();
        assert!(has_token(&nodes[4]));
        assert!(!detached.to_string().contains("unanswered"), "{detached}");
        lease = Some(detached);
    }
}

/// The node executed the acquire, and its reply was lost with the connection.
#[tokio::test]
async fn a_node_whose_reply_was_lost_is_listed() {
    let Some(nodes) = five() else { return };
    let proxies = proxies(&nodes).await;
    let first = proxied_client(proxies.iter().map(quorlock_servers::proxy::Proxy::url));
    all_up(&first).await;
    proxies[2].set(Direction::ToClient, Traffic::Hold);
    let guard = first.acquire("k").options(long()).await.unwrap();
    eventually("the node has the key", || pttl(&nodes[2], "k") > 0).await;
    eventually("its reply is held", || proxies[2].count(Effect::Held) > 0).await;
    proxies[2].strike(Blow::Close);
    let lease = reread(&guard.detach().await.unwrap());
    assert!(lease.to_string().contains(",unanswered=2,"), "{lease}");
    let second = proxied_client(nodes.urls());
    let guard = second.attach(&lease).await.unwrap();
    eventually("the other nodes vote", || guard.votes() == 4).await;
    // The extension also asks node 2. That node has the value from before the attach, so it gives no vote.
    guard.extend().await.unwrap();
    assert_eq!(guard.votes(), 4);
}
