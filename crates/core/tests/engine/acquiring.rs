//! One attempt: its decision, the answers that count, and its releases.

use std::time::Duration;

use quorlock_core::{
    Answer, Effect, Engine, Event, Evidence, Extended, Failure, FailureKind, Holding, LockId,
    NodeId, NodeOutcome, NodeResult, Outcome, Quorum, Reading, RefusalKind, Request, Ticket,
    Timing, TimingOptions, Token, Verb,
};

use quorlock_sim::scripted::ScriptedWorld;
use quorlock_sim::scripted::asking::{
    CONNECT_TIMEOUT, NODE_TIMEOUT, TERM, automatic, once, request, timing_options, waiting,
};

#[test]
fn all_nodes_are_asked_at_once_with_one_value_and_a_quorum_decides() {
    let mut world = ScriptedWorld::new(5);
    for (node, one_way) in [5, 1, 4, 2, 3].into_iter().enumerate() {
        world.set_one_way(node, one_way);
    }
    let lock = world.hold(request("k"));
    for node in 0..5 {
        assert_eq!(world.sent(lock, Verb::Acquire, node), [0]);
    }
    assert_eq!(world.granted_at(lock), Some(6), "at the third answer, not at the last");
    assert_eq!(world.votes(lock), 3);
    world.run_for(10);
    assert_eq!(world.votes(lock), 5, "votes after the decision count (V2)");
    assert_eq!(world.valid_for(lock), TERM - 16);
    world.finish();
}

#[test]
fn every_attempt_of_a_call_has_a_token_of_its_own() {
    let mut world = ScriptedWorld::new(3);
    // The nodes send no pushes, so the call polls and makes several attempts.
    world.no_pushes();
    for node in 0..2 {
        world.occupy(node, "k", b"another", Some(100));
    }
    let lock = world.hold(request("k"));
    let attempts = world.attempts(lock);
    assert!(attempts > 2);
    // The test world itself asserts that the tokens of all attempts differ.
    assert_eq!(world.sent(lock, Verb::Acquire, 0).len(), attempts as usize);
    world.finish();
}

#[test]
fn a_no_is_decided_as_soon_as_a_quorum_is_out_of_reach_also_with_an_even_number_of_nodes() {
    for (nodes, quorum, refusing) in [(3, 2, 2), (4, 3, 2), (5, 3, 3), (5, 4, 2), (2, 2, 1)] {
        let mut world = ScriptedWorld::with(1, Quorum::new(nodes, quorum).unwrap());
        for node in 0..nodes {
            world.set_one_way(node, 1 + node as i64);
        }
        for node in 0..refusing {
            world.occupy(node, "k", b"another", Some(10_000));
        }
        let lock = world.acquire(once("k"));
        world.run_for(100);
        let decisive = 2 * refusing as i64;
        assert_eq!(world.sent(lock, Verb::Release, 0), [decisive], "{nodes} nodes");
        assert_eq!(world.refused(lock).unwrap().1.kind, RefusalKind::Contended);
        world.finish();
    }
}

#[test]
fn a_late_grant_after_a_yes_raises_the_validity_even_after_its_node_timeout() {
    let mut world = ScriptedWorld::new(3);
    world.set_one_way(2, NODE_TIMEOUT);
    let lock = world.hold(request("k"));
    world.run_until(2 * NODE_TIMEOUT - 1);
    assert_eq!(world.votes(lock), 2);
    world.run_for(1);
    assert_eq!(world.votes(lock), 3);
    world.finish();
}

#[test]
fn a_late_grant_before_the_decision_counts_after_its_node_timeout() {
    let mut world = ScriptedWorld::new(3);
    world.down(1);
    world.connecting(2);
    world.set_one_way(0, NODE_TIMEOUT);
    let lock = world.acquire(once("k"));
    world.run_until(90);
    world.up(2);
    world.run_until(99);
    assert_eq!(world.granted_at(lock), None, "one vote, one timed out, one failed");
    world.finish();

    let mut world = ScriptedWorld::new(3);
    world.connecting(1);
    world.connecting(2);
    world.set_one_way(0, NODE_TIMEOUT);
    let lock = world.acquire(once("k"));
    world.run_until(2 * NODE_TIMEOUT + 10);
    world.up(1);
    world.run_for(2);
    assert_eq!(world.granted_at(lock), Some(2 * NODE_TIMEOUT + 12), "the late one is counted");
    assert_eq!(world.valid_for(lock), TERM - 112, "from its own time of sending");
    world.finish();
}

#[test]
fn a_late_grant_after_a_no_is_void_and_its_key_is_deleted() {
    let mut world = ScriptedWorld::new(3);
    world.occupy(0, "k", b"another", Some(10_000));
    world.occupy(1, "k", b"another", Some(10_000));
    world.set_one_way(2, 20);
    let lock = world.acquire(once("k"));
    world.run_until(21);
    assert!(world.has(2, "k"), "granted, and the answer is in flight");
    world.run_until(100);
    assert!(world.refused(lock).is_some() && world.granted_at(lock).is_none());
    assert!(!world.has(2, "k"));
    world.finish();
}

#[test]
fn a_late_grant_for_an_earlier_attempt_is_not_taken_for_the_present_one() {
    let mut world = ScriptedWorld::new(3);
    world.no_pushes();
    world.occupy(0, "k", b"another", Some(8));
    world.occupy(1, "k", b"another", Some(10_000));
    world.set_one_way(2, 30);
    let lock = world.acquire(request("k"));
    world.run_until(59);
    assert!(world.retried(lock).len() > 1);
    assert_eq!(world.granted_at(lock), None);
    // The grant for the first attempt arrives while a later attempt has one vote. It must not count as the second vote.
    world.run_until(61);
    assert_eq!(world.granted_at(lock), None);
    world.finish();

    let mut world = ScriptedWorld::new(3);
    world.occupy(0, "k", b"another", Some(8));
    world.occupy(1, "k", b"another", Some(8));
    world.set_one_way(2, 30);
    let lock = world.hold(request("k"));
    assert!(world.attempts(lock) > 1);
    // The grant for the first attempt arrives while the lock of a later attempt is held. It must not count as a vote.
    world.run_until(61);
    assert_eq!(world.votes(lock), 2);
    world.run_until(100);
    assert_eq!(world.votes(lock), 3);
    world.finish();
}

#[test]
fn a_deadline_that_was_put_off_passes_without_effect_and_is_followed_by_the_true_one() {
    let mut engine = Engine::new(Quorum::majority(3).unwrap());
    let at = |ms: i64| Reading::new(ms * 1_000_000, ms * 1_000_000);
    let (lock, token, mut out) = (LockId(1), Token::new([1; Token::BYTES]), Vec::new());
    for node in [1, 2].map(NodeId::new) {
        engine.handle(Event::Connecting { node }, at(0), &mut |_| (token, 0), &mut out);
    }
    let mut entropy = |_| (token, 0);
    engine.handle(Event::Acquire { lock, request: request("k") }, at(0), &mut entropy, &mut out);
    assert_eq!(engine.deadline(), Some(at(NODE_TIMEOUT).boot()));
    let ticket = Ticket { lock, round: 1, verb: Verb::Acquire };
    let (node, answers) = (NodeId::new(0), vec![(ticket, Answer::Granted)]);
    engine.handle(
        Event::Answered { node, sent: at(0), evidence: Evidence::NotRequired, answers },
        at(1),
        &mut entropy,
        &mut out,
    );
    out.clear();
    // The deadline of node 0 passes and changes nothing, because the attempt waits only for the connecting nodes.
    engine.handle(Event::Wake, at(NODE_TIMEOUT), &mut entropy, &mut out);
    assert_eq!(out, []);
    assert_eq!(engine.deadline(), Some(at(CONNECT_TIMEOUT + NODE_TIMEOUT).boot()));
}

/// A busy machine keeps the driver from running for longer than a timeout.
#[test]
fn news_of_a_connection_counts_before_a_timeout_that_is_due() {
    let mut engine = Engine::new(Quorum::majority(3).unwrap());
    let at = |ms: i64| Reading::new(ms * 1_000_000, ms * 1_000_000);
    let (lock, mut out) = (LockId(1), Vec::new());
    let mut entropy = |_| (Token::new([1; Token::BYTES]), 0);
    engine.handle(Event::Acquire { lock, request: once("k") }, at(0), &mut entropy, &mut out);
    out.clear();
    let connecting = |node| Event::Connecting { node };
    let connected = |node| Event::Connected { node };
    let (first, second) = (NODE_TIMEOUT + 1, CONNECT_TIMEOUT + 3 * NODE_TIMEOUT);
    let news: [(_, &dyn Fn(NodeId) -> Event); 2] = [(first, &connecting), (second, &connected)];
    for (late, event) in news {
        for node in (0..3).map(NodeId::new) {
            engine.handle(event(node), at(late), &mut entropy, &mut out);
        }
        engine.handle(Event::Wake, at(late), &mut entropy, &mut out);
        assert_eq!(out, [], "the attempt goes on");
    }
    assert_eq!(engine.deadline(), Some(at(second + NODE_TIMEOUT).boot()));
}

#[test]
fn a_connecting_node_is_outstanding_within_a_bound_of_its_own() {
    let mut world = ScriptedWorld::new(3);
    world.down(0);
    world.connecting(2);
    let lock = world.acquire(once("k"));
    world.run_until(CONNECT_TIMEOUT + NODE_TIMEOUT - 1);
    assert_eq!(world.refused(lock), None);
    world.run_for(1);
    assert_eq!(world.refused(lock).unwrap().1.kind, RefusalKind::NoQuorum);
    world.finish();
}

#[test]
fn the_time_to_answer_runs_from_the_connection_and_the_vote_from_the_sending() {
    let mut world = ScriptedWorld::new(3);
    world.down(0);
    world.connecting(2);
    let lock = world.acquire(once("k"));
    world.run_until(190);
    world.set_one_way(2, NODE_TIMEOUT / 2 - 1);
    world.up(2);
    world.run_until(190 + NODE_TIMEOUT - 2);
    assert!(world.is_valid(lock));
    assert_eq!(world.valid_for(lock), TERM - 190 - (NODE_TIMEOUT - 2), "the older vote ends first");
    assert_eq!(world.votes(lock), 2);
    world.finish();

    let mut world = ScriptedWorld::new(1);
    world.connecting(0);
    let lock = world.acquire(once("k"));
    world.run_until(190);
    world.freeze(0, true);
    world.up(0);
    world.run_until(190 + NODE_TIMEOUT - 1);
    assert_eq!(world.refused(lock), None);
    world.run_for(1);
    assert!(world.refused(lock).is_some());
    world.finish();
}

#[test]
fn a_connection_that_is_tried_again_and_again_does_not_prolong_an_attempt() {
    let mut world = ScriptedWorld::new(1);
    world.connecting(0);
    let lock = world.acquire(once("k"));
    for _ in 0..10 {
        world.run_for(100);
        world.tell(0, Event::Connecting { node: NodeId::new(0) });
    }
    assert_eq!(world.refused(lock).unwrap().0, CONNECT_TIMEOUT + NODE_TIMEOUT);
    world.finish();
}

#[test]
fn a_connection_that_was_not_made_is_not_waited_for_again() {
    let mut world = ScriptedWorld::new(1);
    world.connecting(0);
    let first = world.acquire(once("k"));
    world.run_until(10);
    world.connecting_failed(0);
    world.run_for(1);
    assert!(world.refused(first).is_some());
    // The node is connected again, but the engine gets no event about that, and the node does not answer.
    world.up_unnoticed(0);
    world.freeze(0, true);
    let start = 11;
    let second = world.acquire(once("k"));
    world.run_for(2 * NODE_TIMEOUT);
    assert_eq!(world.refused(second).unwrap().0, start + NODE_TIMEOUT);
    world.finish();
}

#[test]
fn a_node_that_is_known_to_be_down_fails_at_once() {
    let mut world = ScriptedWorld::new(3);
    world.down(0);
    world.down(2);
    let lock = world.acquire(once("k"));
    world.run_for(1);
    let (at, refusal) = world.refused(lock).unwrap();
    assert_eq!((at, refusal.kind), (0, RefusalKind::NoQuorum));
    assert!(matches!(&refusal.nodes[0].said, NodeOutcome::Failed(failure)
        if failure.kind() == FailureKind::Unreachable && !failure.may_have_been_executed()));
    assert_eq!(refusal.nodes[1].said, NodeOutcome::Nothing);
    world.finish();
}

#[test]
fn a_silent_node_is_reported_once_and_costs_one_node_timeout() {
    let mut world = ScriptedWorld::new(3);
    world.freeze(0, true);
    world.freeze(1, true);
    let lock = world.acquire(once("k"));
    world.run_for(200);
    let (at, refusal) = world.refused(lock).unwrap();
    assert_eq!((at, refusal.kind), (NODE_TIMEOUT, RefusalKind::NoQuorum));
    let timed_out = |effect: &_| matches!(effect, Effect::TimedOut { .. });
    assert_eq!(world.log().iter().filter(|(_, _, effect)| timed_out(effect)).count(), 2);
    world.finish();
}

/// S5: the answers arrive while the process sleeps. The engine reads the clock afterwards, and grants no expired lock.
#[test]
fn a_process_that_slept_with_all_its_answers_in_the_buffer_holds_nothing() {
    for (slept, holds) in [(TERM - 11, true), (TERM - 10, false), (TERM, false), (5000, false)] {
        let mut world = ScriptedWorld::new(3);
        let lock = world.acquire(once("k"));
        world.sleep(0, slept);
        world.run_until(slept + 100);
        assert_eq!(world.granted_at(lock).is_some(), holds, "slept for {slept} ms");
        if !holds {
            assert_eq!(world.refused(lock).unwrap().1.kind, RefusalKind::TooSlow);
        }
        world.finish();
    }
}

/// A busy runtime handles answers late. Answers that have arrived must count, even after the node timeout.
#[test]
fn answers_that_have_come_are_counted_before_their_time_outs() {
    let mut world = ScriptedWorld::new(5);
    let lock = world.acquire(once("k"));
    world.sleep(0, 4 * NODE_TIMEOUT);
    world.run_for(4 * NODE_TIMEOUT);
    assert_eq!(world.granted_at(lock), Some(4 * NODE_TIMEOUT));
    assert_eq!(world.votes(lock), 5);
    world.finish();
}

/// A busy client reads answers to inspections, extensions and releases late. It must not report the nodes as silent.
#[test]
fn a_client_that_was_slow_itself_does_not_take_it_for_silence() {
    let sleep = |world: &mut ScriptedWorld| {
        world.sleep(0, 4 * NODE_TIMEOUT);
        world.run_for(4 * NODE_TIMEOUT);
    };
    let mut world = ScriptedWorld::new(3);
    (0..3).for_each(|node| world.occupy(node, "held", b"holder", Some(5000)));
    let lock = world.acquire(once("held"));
    world.run_until(2);
    sleep(&mut world);
    let (_, refusal) = world.refused(lock).unwrap();
    let named = |node: &NodeResult| matches!(node.said, NodeOutcome::Refused(Some(_)));
    assert!(refusal.nodes[..2].iter().all(named), "the two whose answers decided");

    let lock = world.hold(request("k"));
    world.extend(lock);
    sleep(&mut world);
    assert!(matches!(world.extended(lock)[..], [(_, Extended::Confirmed)]));

    world.release(lock, true);
    sleep(&mut world);
    assert_eq!(world.released(lock).unwrap().1.outcome, Outcome::Released);

    let (lock, keys) = (LockId(1000), "k".into());
    let timeout = Duration::from_millis(NODE_TIMEOUT as u64);
    world.tell(0, Event::Inspect { lock, keys, timeout, connect_timeout: timeout });
    sleep(&mut world);
    let inspected = world.log().iter().find_map(|(_, _, effect)| match effect {
        Effect::Inspected { nodes, .. } => Some(nodes),
        _ => None,
    });
    let seen = NodeOutcome::Seen(Holding::Free);
    assert!(inspected.unwrap().iter().all(|node| node.said == seen));
    world.finish();
}

#[test]
fn a_lock_with_less_than_the_smallest_validity_is_not_handed_out() {
    for (sleep, holds) in [(488, true), (489, false)] {
        let min_validity = Duration::from_millis(500);
        let timing = TimingOptions { min_validity, ..timing_options() };
        let mut world = ScriptedWorld::new(3);
        let lock = world.acquire(Request { timing: Timing::new(timing).unwrap(), ..once("k") });
        world.sleep(0, sleep);
        world.run_until(600);
        assert_eq!(world.granted_at(lock).is_some(), holds);
        world.finish();
    }
}

#[test]
fn a_foreign_value_without_a_ttl_or_of_another_type_is_a_refusal_and_is_never_deleted() {
    let seen =
        [Holding::OtherType { ttl: None }, Holding::Held { value: b"config".to_vec(), ttl: None }];
    for (value, seen) in [None, Some(&b"config"[..])].into_iter().zip(seen) {
        let mut world = ScriptedWorld::new(3);
        (0..2).for_each(|node| world.occupy_with(node, "k", value, None));
        let stored =
            |world: &ScriptedWorld| world.stored(0, "k").cloned().expect("nobody deletes it");
        let before = stored(&world);
        assert_eq!((before.value().map(Vec::as_slice), before.expires_ms), (value, None));
        let lock = world.acquire(waiting("k", 300));
        world.run_for(400);
        let (_, refusal) = world.refused(lock).unwrap();
        assert_eq!(refusal.kind, RefusalKind::Contended);
        assert_eq!(refusal.nodes[0].said, NodeOutcome::Refused(Some(seen)));
        assert_eq!(refusal.retry_after, None, "it never expires");
        assert_eq!(stored(&world), before);
        world.finish();
        assert_eq!(stored(&world), before);
    }
}

#[test]
fn an_error_of_a_minority_never_fails_an_attempt_and_that_of_a_majority_is_no_contention() {
    for kind in [
        FailureKind::ReadOnly,
        FailureKind::Loading,
        FailureKind::MasterDown,
        FailureKind::OutOfMemory,
        FailureKind::CannotPersist,
        FailureKind::Busy,
        FailureKind::Redirected,
        FailureKind::Rejected,
    ] {
        let mut world = ScriptedWorld::new(5);
        world.refuse(0, Some(kind));
        world.refuse(1, Some(kind));
        let lock = world.acquire(once("k"));
        world.run_for(10);
        assert!(world.is_valid(lock), "{kind}");
        world.release(lock, true);
        world.refuse(2, Some(kind));
        let lock = world.acquire(once("other"));
        world.run_for(10);
        let (_, refusal) = world.refused(lock).unwrap();
        assert_eq!(refusal.kind, RefusalKind::NoQuorum);
        let failed = |said: &NodeOutcome| matches!(said, NodeOutcome::Failed(failure) if failure.kind() == kind);
        assert!(refusal.nodes[..3].iter().all(|node| failed(&node.said)));
        world.finish();
    }
}

#[test]
fn a_want_of_rights_on_a_majority_ends_the_call_at_once() {
    let mut world = ScriptedWorld::new(3);
    world.refuse(0, Some(FailureKind::Unauthenticated));
    world.refuse(2, Some(FailureKind::Forbidden));
    let lock = world.acquire(waiting("k", 10_000));
    world.run_for(10);
    let (at, refusal) = world.refused(lock).unwrap();
    assert_eq!((at, refusal.kind, refusal.attempts), (2, RefusalKind::NoQuorum, 1));
    world.finish();

    let mut world = ScriptedWorld::new(3);
    world.refuse(0, Some(FailureKind::Forbidden));
    let lock = world.hold(waiting("k", 10_000));
    assert!(world.is_valid(lock), "a minority without rights does no harm");
    world.finish();
}

/// S26. Two of five nodes are down, another client holds the lock on the other three, and one of these is slow. The
/// first refusal decides the attempt, because no quorum of three is possible then. The client must report contention.
#[test]
fn a_lock_held_on_the_nodes_that_are_left_is_contended_whatever_answers_first() {
    for slow in 2..5 {
        let mut world = ScriptedWorld::new(5);
        world.down(0);
        world.down(1);
        for node in 2..5 {
            world.occupy(node, "k", b"holder", Some(5000));
        }
        world.set_one_way(slow, 5);
        let lock = world.acquire(once("k"));
        world.run_for(100);
        let (_, refusal) = world.refused(lock).unwrap();
        assert_eq!(refusal.kind, RefusalKind::Contended);
        let named = refusal.nodes.iter().any(|node| {
            matches!(&node.said, NodeOutcome::Refused(Some(Holding::Held { value, .. }))
                if value == b"holder")
        });
        assert!(named, "the holder is named: {refusal:?}");
        world.finish();
    }
}

#[test]
fn one_refusal_among_silent_nodes_is_no_contention() {
    let mut world = ScriptedWorld::new(5);
    world.occupy(0, "k", b"another", Some(5000));
    (1..5).for_each(|node| world.freeze(node, true));
    let lock = world.acquire(once("k"));
    let cut_short = world.acquire(waiting("other", 20));
    world.occupy(0, "other", b"another", Some(5000));
    world.run_for(200);
    assert_eq!(world.refused(lock).unwrap().1.kind, RefusalKind::NoQuorum);
    let (at, refusal) = world.refused(cut_short).unwrap();
    assert_eq!((at, refusal.kind), (20, RefusalKind::NoQuorum), "also when it is cut short");
    world.finish();
}

#[test]
fn answers_that_do_not_fit_the_command_are_failures() {
    let mut world = ScriptedWorld::new(1);
    world.freeze(0, true);
    let lock = world.acquire(once("k"));
    let ticket = Ticket { lock, round: 1, verb: Verb::Acquire };
    let sent = world.reading();
    world.answer(0, 0, sent, ticket, Answer::Extended);
    let (_, refusal) = world.refused(lock).unwrap();
    let failed = NodeOutcome::Failed(Failure::new(FailureKind::Protocol));
    assert_eq!(refusal.nodes[0].said, failed);
    world.finish();
}

#[test]
fn a_duplicated_answer_is_counted_once() {
    let mut world = ScriptedWorld::new(3);
    (0..3).for_each(|node| world.freeze(node, true));
    let lock = world.acquire(automatic("k"));
    let ticket = Ticket { lock, round: 1, verb: Verb::Acquire };
    let sent = world.reading();
    for _ in 0..3 {
        world.answer(0, 0, sent, ticket, Answer::Granted);
    }
    assert_eq!(world.granted_at(lock), None, "one node has one vote");
    world.cancel(lock);
    world.finish();
}
