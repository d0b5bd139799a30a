//! A client that released a contended lock inspects it before it tries again. A refusal says what the inspection saw.

use super::*;

/// A world in which the first of two processes has released a lock for which both contended.
fn left_to_a_rival() -> (ScriptedWorld, LockId) {
    let mut world = ScriptedWorld::with(2, Quorum::majority(4).expect("there are nodes"));
    for (client, near) in [(0, [0, 1]), (1, [2, 3])] {
        near.iter().for_each(|node| world.set_one_way_of(client, *node, 0));
    }
    world.set_jitter(None);
    let [ours, theirs] = [world.acquire(request("k")), world.acquire_by(1, request("k"))];
    while !world.is_valid(ours) {
        world.run_for(1);
        if world.is_valid(theirs) {
            world.release(theirs, false);
        }
    }
    assert!(world.attempts(ours) > 1, "votes were split");
    let rival = world.acquire_by(1, request("k"));
    world.run_for(20);
    world.release(ours, false);
    (world, rival)
}

#[test]
fn a_client_that_leaves_a_crowd_inspects_before_it_tries_again() {
    let (mut world, rival) = left_to_a_rival();
    let again = world.acquire(waiting("k", 60_000));
    world.run_for(500);
    assert!(world.is_valid(rival));
    assert!(world.sent(again, Verb::Acquire, 0).is_empty());
    assert_eq!(world.sent(again, Verb::Inspect, 0).len(), 1, "the call knows when to try");
    let released = world.now() / 1_000_000;
    world.release(rival, false);
    world.run_for(200);
    assert!(world.granted_at(again).is_some_and(|at| at < released + 100));
    world.finish();
}

#[test]
fn an_inspection_before_the_first_attempt_is_reported() {
    let (mut world, rival) = left_to_a_rival();
    let again = world.acquire(waiting("k", 500));
    world.run_for(600);
    let (_, refusal) = world.refused(again).unwrap();
    assert_eq!((refusal.kind, refusal.attempts), (RefusalKind::Contended, 0));
    let held =
        |said: &NodeOutcome| matches!(said, NodeOutcome::Refused(Some(Holding::Held { .. })));
    assert!(refusal.nodes.iter().filter(|node| held(&node.said)).count() >= 2);
    let _ = rival;
    world.finish();
}

/// A call backs off in favour of other clients for at most half of its wait.
#[test]
fn manners_take_no_more_than_half_of_the_wait() {
    let (mut world, rival) = left_to_a_rival();
    world.cancel(rival);
    world.run_for(1);
    let again = world.acquire(waiting("k", 40));
    world.run_for(40);
    assert!(world.is_valid(again));
    world.finish();
}

/// The wait ends during the first attempt, before an answer. The earlier inspection must still name the holder.
#[test]
fn an_inspection_before_an_interrupted_attempt_is_reported() {
    let mut cut_short = 0;
    for wait in (800..1_200).step_by(10) {
        let (mut world, rival) = left_to_a_rival();
        let again = world.acquire(waiting("k", wait));
        while world.sent(again, Verb::Inspect, 0).is_empty() || !world.is_valid(rival) {
            world.run_for(1);
        }
        world.run_for(20);
        // From here on no answer arrives. The attempt begins when the keys of the other client have expired.
        (0..4).for_each(|node| world.mute(node, true));
        world.run_for(1_300);
        let (_, refusal) = world.refused(again).expect("its wait is over");
        // An attempt that was not interrupted reports failed nodes, and is not the subject of this test.
        let failed = |node: &NodeResult| matches!(node.said, NodeOutcome::Failed(_));
        if refusal.attempts != 1 || refusal.nodes.iter().any(failed) {
            continue;
        }
        cut_short += 1;
        assert_eq!(refusal.kind, RefusalKind::Contended, "{wait}: {:?}", refusal.nodes);
    }
    assert!(cut_short > 0);
}

/// At the first inspection the lock is free, and at the second it is held. The call must report the second result.
#[test]
fn the_last_inspection_before_the_first_attempt_is_reported() {
    let mut looked_twice = 0;
    for jitter in 0..8 {
        let (mut world, rival) = left_to_a_rival();
        world.cancel(rival);
        world.run_for(1);
        world.set_jitter(Some(jitter << 61));
        let again = world.acquire(waiting("k", 500));
        while world.sent(again, Verb::Inspect, 0).is_empty() {
            world.run_for(1);
        }
        // The first inspection, which is in flight, finds the lock free. The second one finds this key.
        world.run_for(2);
        (0..4).for_each(|node| world.occupy(node, "k", b"another's", Some(10_000)));
        world.run_for(500);
        let (_, refusal) = world.refused(again).unwrap();
        if refusal.attempts > 0 {
            continue;
        }
        looked_twice += 1;
        assert!(world.sent(again, Verb::Inspect, 0).len() > 1);
        assert_eq!(refusal.kind, RefusalKind::Contended);
        let held =
            |said: &NodeOutcome| matches!(said, NodeOutcome::Refused(Some(Holding::Held { .. })));
        let seen = refusal.nodes.iter().filter(|node| held(&node.said)).count();
        assert!(seen >= 2, "{:?}", refusal.nodes);
    }
    assert!(looked_twice > 0, "no pause was drawn");
}

/// A fixed delay needs no answers of the nodes, and a single attempt does not wait. So neither call inspects first.
#[test]
fn fixed_delays_and_single_attempts_need_no_inspection() {
    let one = Retry { attempts_max: Some(1), ..Retry::default() };
    for retry in [between(5, 10), one] {
        let (mut world, rival) = left_to_a_rival();
        let again = world.acquire(Request { retry, ..waiting("k", 60_000) });
        world.run_for(500);
        assert!(world.is_valid(rival));
        assert!(!world.sent(again, Verb::Acquire, 0).is_empty(), "{retry:?}");
        if retry == one {
            let (_, refusal) = world.refused(again).expect("it ends after one attempt");
            assert_eq!((refusal.kind, refusal.attempts), (RefusalKind::Contended, 1));
        } else {
            world.cancel(again);
        }
        world.finish();
    }
}

/// A call with too little time for an inspection tries at once.
#[test]
fn a_call_without_time_for_an_inspection_tries() {
    let (mut world, rival) = left_to_a_rival();
    world.cancel(rival);
    world.run_for(1);
    let again = world.acquire(waiting("k", 8));
    world.run_for(8);
    assert_eq!(world.sent(again, Verb::Acquire, 0).len(), 1);
    assert!(world.is_valid(again));
    world.finish();
}

#[test]
fn a_call_that_could_not_see_the_free_lock_has_not_been_outrun() {
    let mut world = ScriptedWorld::new(4);
    let occupy = |world: &mut ScriptedWorld, nodes: std::ops::Range<usize>| {
        nodes.for_each(|node| world.occupy(node, "k", b"another", None));
    };
    // Two of four nodes have another client's key, so the votes are split. The call draws a random pause for a retry.
    occupy(&mut world, 2..4);
    let lock = world.acquire(request("k"));
    world.run_until(20);
    (2..4).for_each(|node| world.forget_key(node, "k"));
    // After its pause, the call cannot see that the lock is held, so it tries and is refused.
    occupy(&mut world, 0..4);
    world.blind(true);
    world.run_until(40);
    world.blind(false);
    world.run_until(1000);
    // The lock is free. The call still draws a short pause, because no other client was faster.
    (0..4).for_each(|node| world.forget_key(node, "k"));
    world.run_for(200);
    assert_eq!(world.granted_at(lock), Some(1011), "1013: one of longer pauses");
    world.finish();
}
