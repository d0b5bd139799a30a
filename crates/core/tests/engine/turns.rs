//! The order of calls of one process: a call that pauses does not block other calls. Also the report of a call about
//! nodes that have not answered.

use std::time::Duration;

use quorlock_core::{
    Delay, Effect, Event, FailureKind, LockId, NodeId, NodeOutcome, RefusalKind, Request, Retry,
    Timing, TimingOptions, Verb,
};

use quorlock_sim::scripted::ScriptedWorld;
use quorlock_sim::scripted::asking::{once, request, timing_options, waiting};

/// A retry policy with a fixed delay after each attempt.
fn every(ms: u64) -> Retry {
    let delay = Duration::from_millis(ms);
    Retry { delay: Delay::Between { min: delay, max: delay }, attempts_max: None }
}

/// A request by this owner. The engine never hands a lock over between calls of different owners.
fn owner(name: &str, request: Request) -> Request {
    Request { owner: name.into(), ..request }
}

/// The beginning and the end of each attempt of these calls of one process, in milliseconds.
fn attempts(world: &ScriptedWorld, locks: &[LockId]) -> Vec<(i64, i64)> {
    let mut attempts = Vec::new();
    for lock in locks {
        let began = world.sent(*lock, Verb::Acquire, 0);
        let mut ended = world.sent(*lock, Verb::Release, 0);
        ended.extend(world.granted_at(*lock));
        ended.sort_unstable();
        for (place, began) in began.iter().enumerate() {
            attempts.push((*began, ended.get(place).copied().unwrap_or(i64::MAX)));
        }
    }
    attempts.sort_unstable();
    attempts
}

/// Asserts that these calls of one process make at most one attempt at a time. Returns the number of attempts.
fn never_two_at_once(world: &ScriptedWorld, locks: &[LockId]) -> usize {
    let attempts = attempts(world, locks);
    for pair in attempts.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two attempts at once: {pair:?}");
    }
    attempts.len()
}

#[test]
fn a_long_delay_of_one_caller_is_not_the_others() {
    let mut world = ScriptedWorld::new(3);
    (0..3).for_each(|node| world.occupy(node, "k", b"another", Some(100)));
    let slow = world.acquire(Request { retry: every(3_600_000), ..request("k") });
    let next = world.acquire(request("k"));
    world.run_until(200);
    assert!(world.granted_at(next).is_some_and(|at| at < 110), "{:?}", world.granted_at(next));
    assert_eq!(world.sent(slow, Verb::Acquire, 0), [0]);
    never_two_at_once(&world, &[slow, next]);
    world.cancel(slow);
    world.finish();
}

#[test]
fn a_long_ceiling_of_one_caller_is_not_the_others() {
    let mut world = ScriptedWorld::new(3);
    // The nodes cannot push, so a waiting call polls.
    world.no_pushes();
    (0..3).for_each(|node| world.occupy(node, "k", b"another", None));
    let ceiling = Duration::from_secs(3600);
    let retry = Retry { delay: Delay::Adaptive { ceiling }, attempts_max: None };
    let slow = world.acquire(Request { retry, ..request("k") });
    world.run_until(20_000);
    let next = world.acquire(request("k"));
    (0..3).for_each(|node| world.flush(node));
    world.run_for(600);
    assert!(world.granted_at(next).is_some());
    world.cancel(slow);
    world.finish();
}

#[test]
fn wishes_that_are_never_met_are_not_the_others() {
    let mut world = ScriptedWorld::new(3);
    (0..3).for_each(|node| world.set_one_way(node, 5));
    let options = TimingOptions { min_validity: Duration::from_millis(985), ..timing_options() };
    let timing = Timing::new(options).expect("there is a nanosecond in which it would do");
    let vain = world.acquire(Request { timing, ..waiting("k", 2_000) });
    let next = world.acquire(request("k"));
    world.run_until(100);
    assert!(world.granted_at(next).is_some_and(|at| at <= 40), "{:?}", world.granted_at(next));
    never_two_at_once(&world, &[vain, next]);
    world.release(next, false);
    world.run_until(2_100);
    let (_, refusal) = world.refused(vain).expect("its wait is over");
    assert_eq!(refusal.kind, RefusalKind::TooSlow, "{} attempts", refusal.attempts);
    world.finish();
}

#[test]
fn a_paused_call_does_not_block_later_calls_or_single_attempts() {
    for late in [request("k"), once("k")] {
        let mut world = ScriptedWorld::new(3);
        (0..3).for_each(|node| world.occupy(node, "k", b"another", Some(50)));
        let slow = world.acquire(Request { retry: every(3_600_000), ..request("k") });
        world.run_until(1000);
        let late = world.acquire(late);
        world.run_for(10);
        assert!(world.is_valid(late));
        never_two_at_once(&world, &[slow, late]);
        world.cancel(slow);
        world.finish();
    }
}

#[test]
fn a_call_that_stepped_aside_returns_to_its_place() {
    let mut world = ScriptedWorld::new(3);
    (0..3).for_each(|node| world.occupy(node, "k", b"another", Some(300)));
    let first = world.acquire(owner("a", Request { retry: every(100), ..request("k") }));
    let second = world.acquire(owner("b", request("k")));
    let unyielding = Request { yields_to_pollers: false, ..request("k") };
    let third = world.acquire(owner("c", unyielding));
    while !world.is_valid(second) {
        world.run_for(1);
        assert!(!world.is_valid(first) && !world.is_valid(third), "{}", world.now());
        assert!(world.now() < 1_000_000_000);
    }
    world.release(second, false);
    world.run_for(100);
    assert!(world.is_valid(first) && world.granted_at(third).is_none(), "it came before the third");
    never_two_at_once(&world, &[first, second, third]);
    world.release(first, false);
    world.run_for(100);
    assert!(world.is_valid(third));
    world.finish();
}

/// Without a quorum, ten calls of a process send no more commands than one call.
#[test]
fn many_callers_without_a_quorum_try_no_more_often_than_one() {
    let tries = |callers: usize| {
        let mut world = ScriptedWorld::new(3);
        (1..3).for_each(|node| world.down(node));
        let locks: Vec<LockId> = (0..callers)
            .map(|n| world.acquire(owner(&n.to_string(), waiting("k", 3_000))))
            .collect();
        world.run_until(3_100);
        let kinds: Vec<RefusalKind> =
            locks.iter().map(|lock| world.refused(*lock).expect("it is over").1.kind).collect();
        let count = never_two_at_once(&world, &locks);
        world.finish();
        (count, kinds)
    };
    let ((one, _), (ten, kinds)) = (tries(1), tries(10));
    assert!(one > 8 && ten <= one + 10, "{one} and {ten}");
    assert!(kinds.contains(&RefusalKind::NoQuorum), "calls that had a turn report the nodes");
}

/// The first node pushes every 5 ms that a key was released, as it would if other waiting calls released its vote. The
/// last two nodes fail, so there is no quorum, and these pushes must not wake the call.
#[test]
fn waiters_do_not_wake_each_other_while_there_is_no_quorum() {
    let mut world = ScriptedWorld::new(3);
    // The last two nodes refuse every command, and they answer later than the first node.
    for node in 1..3 {
        world.set_one_way(node, 2);
        world.refuse(node, Some(FailureKind::Rejected));
    }
    world.occupy(0, "k", b"another's short vote", None);
    let lock = world.acquire(request("k"));
    for _ in 0..400 {
        world.run_for(5);
        let (node, keys) = (NodeId::new(0), Some(vec!["k".into()]));
        world.tell(0, Event::Pushed { node, keys });
    }
    let count = world.sent(lock, Verb::Acquire, 0).iter().filter(|at| **at > 1_000).count();
    assert!(count <= 8, "{count} attempts in a second, at most one in 125 ms");
    // The call notices when the last two nodes, which are a quorum, accept commands again.
    (1..3).for_each(|node| world.refuse(node, None));
    world.run_for(300);
    assert!(world.granted_at(lock).is_some());
    world.finish();
}

/// Two of five nodes refuse because another client has the key, and one is down. If the last two nodes grant,
/// only the other client prevents a quorum, and the error is `Contended`. If they are dead too, it is `NoQuorum`.
#[test]
fn two_refusals_are_no_holder_where_the_other_nodes_are_dead() {
    for dead in [true, false] {
        let mut world = ScriptedWorld::new(5);
        (0..2).for_each(|node| world.occupy(node, "k", b"another", Some(10_000)));
        world.down(2);
        for node in 3..5 {
            world.mute(node, dead);
            world.set_one_way(node, 10);
        }
        let lock = world.acquire(once("k"));
        world.run_until(200);
        let (_, refusal) = world.refused(lock).expect("one attempt");
        let kind = if dead { RefusalKind::NoQuorum } else { RefusalKind::Contended };
        assert_eq!(refusal.kind, kind, "{:?}", refusal.nodes);
        let granted = |node: &usize| refusal.nodes[*node].said == NodeOutcome::Granted;
        assert_eq!((3..5).filter(granted).count() > 0, !dead, "late answers are reported");
        world.finish();
    }
}

/// A waiting call reports failures of nodes even if it learns of them after the decision of its attempt.
#[test]
fn by_the_end_of_a_wait_the_dead_have_failed() {
    let mut world = ScriptedWorld::new(5);
    (0..2).for_each(|node| world.occupy(node, "k", b"another", Some(100_000)));
    world.down(2);
    (3..5).for_each(|node| world.mute(node, true));
    let lock = world.acquire(waiting("k", 1_000));
    world.run_until(1_200);
    assert_eq!(world.refused(lock).expect("it is over").1.kind, RefusalKind::NoQuorum);
    let is_reported =
        world.log().iter().any(|(_, _, effect)| matches!(effect, Effect::Waiting { .. }));
    assert!(is_reported);
    world.finish();
}
