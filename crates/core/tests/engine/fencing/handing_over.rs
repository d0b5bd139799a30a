//! A lock with a fencing token is handed over when a quorum has recorded a larger token.

use super::*;

#[test]
fn a_lock_is_handed_over_when_a_larger_fence_is_recorded() {
    let mut world = ScriptedWorld::new(3);
    let (first, second) = held_and_wanted(&mut world);
    let before = world.fence(first);
    world.release(first, true);
    // Until the hand-over is recorded no caller holds the lock, and the engine ignores requests of the old guard.
    world.extend(first);
    world.run_until(11);
    assert_eq!((world.released(first), world.granted_at(second)), (None, None));
    world.run_until(20);
    let (at, report) = world.released(first).unwrap();
    assert_eq!((at, report.handed_over, report.outcome), (12, true, Outcome::Released));
    assert_eq!(report.nodes, [const { NodeReleased::HandedOver }; 3]);
    assert_eq!((world.granted_at(second), world.guard(second).handover_count), (Some(12), 1));
    assert_eq!(world.fence(second), before + 1);
    for node in 0..3 {
        assert_eq!(world.counter(node, "k"), Some(before + 1));
        assert_eq!(world.sent(second, Verb::Acquire, node), [0; 0]);
        assert_eq!(world.sent(first, Verb::Release, node), [0; 0]);
    }
    // The lock is handed over a second time in the same way.
    let third = world.acquire(fenced(automatic("k")));
    world.release(second, false);
    world.run_until(2 * TTL);
    assert_eq!((world.fence(third), world.is_valid(third)), (before + 2, true));
    world.finish();
}

#[test]
fn the_next_fence_is_above_all_that_votes_have_come_with() {
    let mut world = with_counters(&[10, 10, 30]);
    world.set_one_way(2, 3);
    let (first, second) = held_and_wanted(&mut world);
    assert_eq!(world.fence(first), AHEAD + 11);
    world.release(first, false);
    world.run_until(30);
    assert_eq!((world.fence(second), world.guard(second).handover_count), (AHEAD + 32, 1));
    world.finish();
}

/// Releases the first guard, whose lock `second` waits for, while a quorum cannot record the next token.
fn failing_hand_over(fail: impl Fn(&mut ScriptedWorld)) -> (ScriptedWorld, LockId, LockId) {
    let mut world = ScriptedWorld::new(3);
    let (first, second) = held_and_wanted(&mut world);
    fail(&mut world);
    world.release(first, true);
    (world, first, second)
}

#[test]
fn a_hand_over_that_too_few_nodes_record_is_a_release() {
    let fails: [fn(&mut ScriptedWorld); 2] = [
        |world| world.set_counters("k", &[2 * AHEAD, 3 * AHEAD]),
        |world| (0..2).for_each(|node| world.cut(node, None)),
    ];
    for (case, fail) in fails.into_iter().enumerate() {
        let (mut world, first, second) = failing_hand_over(fail);
        world.run_until(16);
        let report = |world: &ScriptedWorld| {
            world.released(first).map(|(_, report)| (report.handed_over, report.outcome))
        };
        let released = Some((false, Outcome::Released));
        // Where the nodes cannot be reached, the caller waits for the releases that are sent again.
        assert_eq!(report(&world), [released, None][case], "case {case}");
        (0..2).for_each(|node| world.up(node));
        world.run_until(3 * TTL);
        assert_eq!(report(&world), released, "case {case}");
        assert_eq!((world.guard(second).handover_count, world.is_valid(second)), (0, false));
        assert!(world.fence(second) > world.fence(first), "case {case}");
        world.finish();
    }
}

#[test]
fn a_hand_over_ends_with_the_node_timeout() {
    let (mut world, first, second) =
        failing_hand_over(|world| (0..2).for_each(|node| world.freeze(node, true)));
    world.run_until(100);
    assert_eq!(world.sent(first, Verb::Release, 2), [10 + NODE_TIMEOUT]);
    world.run_until(200);
    assert!(world.released(first).is_none(), "the release may still be confirmed");
    world.run_until(2 * TTL);
    let (at, report) = world.released(first).unwrap();
    assert!((200..TTL).contains(&at) && !report.handed_over, "until the lock is over: {at}");
    assert_eq!(report.outcome, Outcome::Unknown);
    (0..2).for_each(|node| world.freeze(node, false));
    world.run_until(3 * TTL);
    assert_eq!(world.guard(second).handover_count, 0);
    world.finish();
}

#[test]
fn votes_that_are_found_gone_at_a_hand_over_end_it() {
    let (mut world, first, second) =
        failing_hand_over(|world| (0..2).for_each(|node| world.flush(node)));
    world.run_until(16);
    let (_, report) = world.released(first).unwrap();
    assert_eq!((report.handed_over, report.outcome), (false, Outcome::Expired));
    assert_eq!(world.lost(first), None, "it had been released");
    world.run_until(100);
    assert!(world.fence(second) > world.fence(first));
    world.finish();
}

#[test]
fn a_lock_that_runs_out_while_it_is_handed_over_is_nobodys() {
    for slept in [false, true] {
        let (mut world, first, second) = failing_hand_over(|_| {});
        if slept {
            world.sleep(0, TTL);
        } else {
            world.step_wall(TTL);
        }
        world.run_until(2 * TTL);
        let (_, report) = world.released(first).unwrap();
        assert!(!report.handed_over && world.lost(first).is_none());
        // After a sleep the keys have expired. After a wall-clock jump they still exist, and the release deletes them.
        let expected = if slept { Outcome::Expired } else { Outcome::Released };
        assert_eq!(report.outcome, expected);
        assert_eq!(world.guard(second).handover_count, 0);
        assert!(world.fence(second) > world.fence(first));
        world.finish();
    }
}

#[test]
fn a_hand_over_respects_the_minimal_validity_of_the_next_call() {
    let min_validity = Duration::from_millis(950);
    let timing = Timing::new(TimingOptions { min_validity, ..timing_options() }).unwrap();
    for (way, handover_count) in [(5, 1), (20, 0)] {
        let mut world = ScriptedWorld::new(3);
        let wanted = || Request { timing, ..fenced(request("k")) };
        let first = world.hold(wanted());
        let second = world.acquire(wanted());
        world.run_until(10);
        (0..3).for_each(|node| world.set_one_way(node, way));
        world.release(first, false);
        world.run_until(55);
        (0..3).for_each(|node| world.set_one_way(node, ONE_WAY));
        world.run_until(200);
        assert_eq!(world.guard(second).handover_count, handover_count);
        world.finish();
    }
}

#[test]
fn a_lock_that_nobody_wants_any_more_is_released() {
    for other in [false, true] {
        let mut world = ScriptedWorld::new(3);
        let (first, second) = held_and_wanted(&mut world);
        // A call without a fencing token must not take over the lock.
        let third = other.then(|| world.acquire(request("k")));
        world.release(first, true);
        world.run_until(11);
        world.cancel(second);
        world.run_until(20);
        let (_, report) = world.released(first).unwrap();
        assert_eq!((report.handed_over, report.outcome), (false, Outcome::Released));
        assert!(third.is_none_or(|third| world.guard(third).handover_count == 0));
        world.finish();
    }
}

#[test]
fn a_client_that_is_shut_down_releases_what_it_was_handing_over() {
    let mut world = ScriptedWorld::new(3);
    let (first, second) = held_and_wanted(&mut world);
    world.release(first, true);
    world.tell(0, Event::Close);
    world.run_until(20);
    let (_, report) = world.released(first).unwrap();
    assert_eq!((report.handed_over, report.outcome), (false, Outcome::Released));
    assert_eq!(world.refused(second).unwrap().1.kind, RefusalKind::Closed);
    assert_eq!(world.log().iter().filter(|(.., effect)| *effect == Effect::Drained).count(), 1);
    world.settle();
    assert!(world.engine(0).is_idle());
}

#[test]
fn locks_with_and_without_a_fence_are_not_handed_to_each_other() {
    for (first, second) in
        [(fenced(request("k")), request("k")), (request("k"), fenced(request("k")))]
    {
        let mut world = ScriptedWorld::new(3);
        let first = world.hold(first);
        let second = world.acquire(second);
        world.run_until(10);
        world.release(first, false);
        world.run_until(100);
        assert_eq!((world.guard(second).handover_count, world.attempts(second)), (0, 1));
        world.finish();
    }
}
