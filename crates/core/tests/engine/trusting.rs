//! Nodes that a client does not trust: they have just started, have no marker (the key that shows that a node lost no
//! data), or their marker names other settings.

mod beginnings;
mod refused;
mod rivals;
mod waiting_out;

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Wait;
use quorlock_core::marker::{Adoption, Cluster, Marker};
use quorlock_core::{
    Answer, Command, Effect, Failure, FailureKind, LockId, NodeId, NodeOutcome, NodeSet, Refusal,
    RefusalKind, Request, RestartGuard, Rules, Ticket, TrustState, Words,
};
use quorlock_sim::node::{ConnectionId, Health, ModelNode, Run};
use quorlock_sim::scripted::ScriptedWorld;
use quorlock_sim::scripted::asking::request;
use quorlock_sim::time::MS;

/// One second in milliseconds.
const SECOND: i64 = 1_000;
const MAX_TTL: u64 = 10_000;
/// The quarantine (the wait of a restarted node) is a little longer than the largest ttl. In milliseconds.
const QUARANTINE: i64 = 12_100;
const MARKER: &str = "quorlock:node";
const ADOPTION: &str = "quorlock:adopt";
const LOCKED: &str = "orders";

fn names() -> Vec<Arc<str>> {
    ["a", "b", "c"].map(Arc::from).into()
}

fn cluster() -> Cluster {
    Cluster::new(names(), 2, MAX_TTL)
}

fn rules(guard: RestartGuard) -> Rules {
    let (marker, adoption) = (MARKER.into(), ADOPTION.into());
    let durable = NodeSet::default();
    let words = Words::default();
    Rules {
        guard,
        cluster: cluster(),
        names: names(),
        marker,
        adoption,
        replicas: Vec::new(),
        durable,
        words,
    }
}

/// A client with a strict restart guard, and three nodes without a marker (the key that shows that no data was lost).
fn fresh() -> ScriptedWorld {
    with(rules(RestartGuard::Strict))
}

/// A client with these rules, and three nodes without a marker.
fn with(rules: Rules) -> ScriptedWorld {
    let mut world = ScriptedWorld::guarded(&[rules]);
    (0..3).for_each(|node| world.set_one_way(node, 0));
    world
}

/// A client with a strict restart guard, and three nodes with the marker that this client expects.
fn settled() -> ScriptedWorld {
    let mut world = fresh();
    mark_all(&mut world);
    world
}

fn mark_all(world: &mut ScriptedWorld) {
    for node in 0..3 {
        let run_id = run_id(world, node).into();
        mark(world, node, &Marker { cluster: cluster(), run_id, promoted_at: -1, floor: 0 });
    }
}

fn mark(world: &mut ScriptedWorld, node: usize, marker: &Marker) {
    write(world, node, MARKER, &marker.to_string());
}

fn write(world: &mut ScriptedWorld, node: usize, key: &str, text: &str) {
    let (now, ttl_ms) = (world.now(), (key == ADOPTION).then_some(Adoption::TTL_MS as i64));
    world.server_mut(node).set(&key.into(), Some(text.into()), ttl_ms, now);
}

fn run_id(world: &ScriptedWorld, node: usize) -> String {
    format!("{:040x}", world.server(node).run.id)
}

fn marker(world: &ScriptedWorld, node: usize) -> Marker {
    Marker::parse(&world.text(node, MARKER).expect("it is marked")).expect("by one of us")
}

/// Sets the uptime of the server process, in milliseconds.
fn started_ago(world: &mut ScriptedWorld, node: usize, ms: i64) {
    let wall = world.reading().real_ns() - ms * MS;
    let run = &mut world.server_mut(node).run;
    run.started_s = Run::new(run.id, wall).started_s;
}

/// Adds another client with a strict restart guard, which knows nothing about the nodes.
fn another(world: &mut ScriptedWorld) -> usize {
    let client = world.join(rules(RestartGuard::Strict));
    (0..3).for_each(|node| world.set_one_way_of(client, node, 0));
    client
}

fn acquire(world: &mut ScriptedWorld, wait: Wait) -> LockId {
    acquire_by(world, 0, wait)
}

fn acquire_by(world: &mut ScriptedWorld, client: usize, wait: Wait) -> LockId {
    let lock = world.acquire_by(client, Request { wait, ..request(LOCKED) });
    world.run_for(0);
    lock
}

fn release(world: &mut ScriptedWorld, lock: LockId) {
    world.release(lock, false);
    world.run_for(0);
}

fn extend(world: &mut ScriptedWorld, lock: LockId) {
    world.extend(lock);
    world.run_for(0);
}

fn refusal(world: &ScriptedWorld, lock: LockId) -> &Refusal {
    world.outcome(lock).expect("the call has ended").expect_err("without the lock")
}

/// The failure of one node in the refusal of this call.
fn failure(world: &ScriptedWorld, lock: LockId, node: usize) -> &Failure {
    let NodeOutcome::Failed(failure) = &refusal(world, lock).nodes[node].said else { panic!() };
    failure
}

fn failures(world: &ScriptedWorld, lock: LockId) -> Vec<FailureKind> {
    let kind = |node: &quorlock_core::NodeResult| match &node.said {
        NodeOutcome::Failed(failure) => Some(failure.kind()),
        _ => None,
    };
    refusal(world, lock).nodes.iter().filter_map(kind).collect()
}

/// The number of acquire commands that the first client has sent to this node.
fn asked_for_votes(world: &ScriptedWorld, node: usize) -> usize {
    let votes = |(to, command): &(usize, &Command)| {
        *to == node && matches!(command, Command::Acquire { .. })
    };
    world.orders(0).filter(votes).count()
}

/// The number of times that the first client has asked a node for its evidence (`INFO` and the marker).
fn examinations(world: &ScriptedWorld) -> usize {
    world.orders(0).filter(|(_, command)| **command == Command::Identify).count()
}

fn is_refused_as(world: &ScriptedWorld, node: usize, kind: FailureKind) -> bool {
    matches!(
        world.engine(0).trust_state(NodeId::new(node)),
        Some(TrustState::Refused(failure)) if failure.kind() == kind
    )
}

#[test]
fn nodes_that_are_marked_vote_in_the_first_round_trip() {
    let mut world = settled();
    let lock = acquire(&mut world, Wait::Once);
    assert_eq!(world.outcome(lock), Some(Ok(())));
    assert!(world.orders(0).all(|(_, command)| matches!(command, Command::Acquire { .. })));
    assert_eq!((world.now(), world.trusted(0)), (0, 3));
}

#[test]
fn fresh_nodes_wait_once_and_waiting_calls_learn_for_how_long() {
    let mut world = fresh();
    let first = acquire(&mut world, Wait::Once);
    assert_eq!(refusal(&world, first).kind, RefusalKind::NodesUntrusted);
    let quarantine = Duration::from_millis(QUARANTINE as u64);
    assert_eq!(refusal(&world, first).retry_after, Some(quarantine));
    // Two answers decide the call, but the client has begun the wait for a new marker on all three nodes.
    assert_eq!(failures(&world, first), [FailureKind::Quarantined; 3]);
    assert!((0..3).all(|node| world.has(node, ADOPTION)));
    let text = failure(&world, first, 0).to_string();
    assert_eq!(
        text,
        "quarantined: is new under these settings, or has lost its data; its votes count in 13 s"
    );
    assert!((0..3).all(|node| !world.has(node, LOCKED)), "votes are released");

    // A call whose wait is shorter than the quarantine fails at once and sends no acquire command.
    let asked = asked_for_votes(&world, 0);
    let second = acquire(&mut world, Wait::For(Duration::from_secs(12)));
    assert_eq!(refusal(&world, second).kind, RefusalKind::NodesUntrusted);
    assert_eq!(asked_for_votes(&world, 0), asked);

    // A call with a longer wait gets the lock when the quarantine ends.
    let third = acquire(&mut world, Wait::For(Duration::from_secs(20)));
    assert!(!world.retried(third).is_empty());
    world.run_for(QUARANTINE - 1);
    assert_eq!((world.outcome(third), world.trusted(0)), (None, 0));
    assert_eq!(asked_for_votes(&world, 0), asked, "nothing is asked of a node in quarantine");
    world.run_for(1_100);
    assert_eq!((world.outcome(third), world.trusted(0)), (Some(Ok(())), 3));
    let two_hours_on = world.reading().real_ns() / 1000 + 7_200_000_000;
    let floor = marker(&world, 0).floor;
    assert!(floor.abs_diff(two_hours_on as u64) < 10_000_000, "{floor}");
    assert!(!world.has(0, ADOPTION));

    // A later client can use the nodes without a wait.
    release(&mut world, third);
    let other = another(&mut world);
    let lock = acquire_by(&mut world, other, Wait::Once);
    assert_eq!(world.outcome(lock), Some(Ok(())));
}

/// A new client calls for the lock, and the test runs for a tenth of a second.
fn rival_tries(world: &mut ScriptedWorld) -> LockId {
    let rival = another(world);
    let lock = acquire_by(world, rival, Wait::For(Duration::from_secs(20)));
    world.run_for(100);
    lock
}

fn is_held(world: &ScriptedWorld, lock: LockId) -> bool {
    world.outcome(lock) == Some(Ok(())) && world.lost(lock).is_none()
}
