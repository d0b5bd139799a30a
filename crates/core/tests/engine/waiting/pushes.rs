//! Pushes wake waiting calls, and a process hands a lock over from one of its callers to another.

use super::*;

/// Two clients and `nodes` nodes. The first client holds the lock.
fn held_by_another(nodes: usize) -> (ScriptedWorld, LockId) {
    let mut world = ScriptedWorld::with(2, Quorum::majority(nodes).expect("there are nodes"));
    let holder = world.acquire(request("k"));
    world.run_for(10);
    (world, holder)
}

#[test]
fn a_waiter_has_the_lock_two_round_trips_after_its_release() {
    let (mut world, holder) = held_by_another(3);
    let waiter = world.acquire_by(1, request("k"));
    world.run_for(300);
    assert_eq!(world.sent(waiter, Verb::Acquire, 0).len(), 1, "it does not poll");
    let released = world.now() / 1_000_000;
    world.release(holder, false);
    world.run_for(20);
    assert_eq!(world.granted_at(waiter), Some(released + 4), "release, push, and a round trip");
    world.finish();
}

/// Whatever the time of the release, and in whatever order pushes and replies arrive, the waiting call gets the lock.
#[test]
fn no_release_goes_unnoticed_whatever_overtakes_what() {
    for nodes in [1, 3, 5] {
        for released_after in 0..12 {
            for push_way in [0, 1, 3, 8, 30] {
                let (mut world, holder) = held_by_another(nodes);
                (0..nodes).for_each(|node| world.set_push_way(node, push_way));
                // The round trips differ, and the last node receives the release late.
                (0..nodes).for_each(|node| world.set_one_way(node, 1 + node as i64));
                world.set_one_way_of(0, nodes - 1, 7);
                let waiter = world.acquire_by(1, request("k"));
                world.run_for(released_after);
                let released = world.now() / 1_000_000;
                world.release(holder, false);
                world.run_for(100);
                let case = (nodes, released_after, push_way);
                let granted = world.granted_at(waiter).unwrap_or_else(|| panic!("lost: {case:?}"));
                assert!(granted <= released + push_way + 40, "{case:?}: {granted} {released}");
                world.finish();
            }
        }
    }
}

#[test]
fn a_minority_that_never_speaks_up_costs_a_round_trip() {
    let (mut world, holder) = held_by_another(5);
    let waiter = world.acquire_by(1, request("k"));
    world.run_for(20);
    // Node 0 was asked for a push but sends none.
    world.mute(0, true);
    let released = world.now() / 1_000_000;
    world.release(holder, false);
    world.run_for(100);
    let granted = world.granted_at(waiter).unwrap();
    assert!(granted <= released + 2 + 2 + NODE_TIMEOUT, "{granted} {released}");
    world.finish();
}

#[test]
fn where_nodes_cannot_push_the_lock_is_looked_at_every_poll_ceiling() {
    let (mut world, holder) = held_by_another(3);
    world.no_pushes();
    let waiter = world.acquire_by(1, request("k"));
    world.run_for(700);
    assert!(world.sent(waiter, Verb::Acquire, 0).len() > 3);
    let released = world.now() / 1_000_000;
    world.release(holder, false);
    world.run_for(300);
    let granted = world.granted_at(waiter).unwrap();
    assert!(granted <= released + POLL_CEILING.as_millis() as i64 + 10);
    world.finish();
}

#[test]
fn a_new_connection_is_news() {
    let (mut world, holder) = held_by_another(1);
    let waiter = world.acquire_by(1, request("k"));
    world.run_for(20);
    // The key is deleted while the connection is down, so the node cannot push.
    world.cut(0, None);
    world.clear(0);
    world.promise_nothing();
    world.run_for(10);
    assert_eq!(world.granted_at(waiter), None);
    let up = world.now() / 1_000_000;
    world.up(0);
    world.run_for(20);
    assert!(world.granted_at(waiter).is_some_and(|at| at <= up + 10));
    let _ = holder;
    world.finish();
}

#[test]
fn an_extension_by_the_holder_wakes_in_vain_and_the_wait_goes_on() {
    let (mut world, holder) = held_by_another(3);
    let waiter = world.acquire_by(1, request("k"));
    world.run_for(20);
    world.extend(holder);
    world.run_for(100);
    assert_eq!(world.granted_at(waiter), None);
    let released = world.now() / 1_000_000;
    world.release(holder, false);
    world.run_for(100);
    assert!(world.granted_at(waiter).is_some_and(|at| at <= released + 30));
    world.finish();
}

#[test]
fn a_released_lock_goes_to_the_next_caller_without_a_word_to_the_nodes() {
    let mut world = ScriptedWorld::new(3);
    let locks: Vec<LockId> = (0..3).map(|_| world.acquire(automatic("k"))).collect();
    world.run_for(10);
    let first = world.guard(locks[0]).clone();
    world.release(locks[0], true);
    let (_, report) = world.released(locks[0]).expect("reported at once");
    assert!(report.handed_over && report.outcome == Outcome::Released);
    assert_eq!(report.nodes, vec![NodeReleased::HandedOver; 3]);
    let second = world.guard(locks[1]).clone();
    assert_eq!(
        (second.token, second.handover_count, world.attempts(locks[1])),
        (first.token, 1, 0)
    );
    assert_eq!(world.votes(locks[1]), 3);
    for node in 0..3 {
        assert_eq!(world.sent(locks[1], Verb::Acquire, node), [0; 0]);
        assert_eq!(world.sent(locks[0], Verb::Release, node), [0; 0]);
    }
    // Requests of the old guard must not affect the hold of the new guard (S24).
    world.tell(0, Event::RunOut { lock: locks[0] });
    world.extend(locks[0]);
    assert_eq!(world.extended(locks[0])[0].1, Extended::Lost(LossCause::Expired));
    assert!(world.is_valid(locks[1]) && world.lost(locks[1]).is_none());
    // The engine extends the lock for the new guard, and reports to it when the keys are gone.
    world.run_for(TTL);
    assert!(world.is_valid(locks[1]));
    (0..3).for_each(|node| world.flush(node));
    world.run_for(TTL);
    assert_eq!(world.lost(locks[1]).unwrap().1, LossCause::KeyGone);
    world.finish();
}

#[test]
fn a_lock_is_handed_over_only_while_enough_of_it_is_left_and_for_a_tenth_of_its_ttl() {
    let handed = |held_for: i64, next: Request| {
        let mut world = ScriptedWorld::new(3);
        let first = world.hold(request("k"));
        let second = world.acquire(next);
        world.run_for(held_for);
        world.release(first, false);
        world.run_for(30);
        let turn = world.guard(second).handover_count;
        world.finish();
        turn == 1
    };
    assert!(handed(90, request("k")));
    assert!(!handed(110, request("k")), "others want it, too");
    assert!(!handed(10, Request { owner: "somebody".into(), ..request("k") }));
    let longer = Timing::new(TimingOptions { ttl: Duration::from_secs(2), ..timing_options() });
    assert!(!handed(10, Request { timing: longer.unwrap(), ..request("k") }));
}

#[test]
fn after_so_many_turns_other_processes_have_theirs() {
    let mut world = ScriptedWorld::with(2, Quorum::majority(3).unwrap());
    let own: Vec<LockId> = (0..200).map(|_| world.acquire(request("k"))).collect();
    world.run_for(10);
    let other = world.acquire_by(1, request("k"));
    world.run_for(10);
    let mut turns = 0;
    while world.granted_at(other).is_none() {
        let holder = own.iter().find(|lock| world.is_valid(**lock)).copied();
        if let Some(holder) = holder {
            world.release(holder, false);
            turns += 1;
        }
        if holder.is_none() {
            world.run_for(1);
        }
        assert!(turns < 100, "the other process never has its turn");
    }
    assert_eq!(turns, 65, "the first one and 64 hand-overs");
    world.release(other, false);
    world.run_for(100);
    assert!(own.iter().any(|lock| world.is_valid(*lock)), "and then it is ours again");
    world.finish();
}

#[test]
fn a_lost_lock_is_not_handed_over() {
    let mut world = ScriptedWorld::new(3);
    let first = world.hold(request("k"));
    let second = world.acquire(request("k"));
    // The wall clock jumps, so the lock has expired although no timer has fired.
    world.step_wall(TTL);
    world.release(first, true);
    world.run_for(10);
    assert_eq!(world.guard(second).handover_count, 0);
    assert!(!world.released(first).unwrap().1.handed_over);
    world.finish();
}

/// Two clients and five nodes, two of which are down. The first client holds the lock, and the second waits.
fn held_with_two_of_five_frozen() -> (ScriptedWorld, LockId, LockId) {
    let (mut world, holder) = held_by_another(5);
    (0..2).for_each(|node| world.down(node));
    // Node 2 refuses first, and that refusal decides the attempt.
    (3..5).for_each(|node| world.set_one_way_of(1, node, 3));
    let waiter = world.acquire_by(1, request("k"));
    world.run_for(100);
    (world, holder, waiter)
}

/// With two failed nodes, one refusal decides the attempt. The client must ask the remaining nodes for a push too.
/// Otherwise it would have to poll.
#[test]
fn when_nodes_fail_all_others_are_asked_for_a_push() {
    let (mut world, holder, waiter) = held_with_two_of_five_frozen();
    let attempts = world.sent(waiter, Verb::Acquire, 4).len();
    world.run_for(700);
    assert_eq!(world.sent(waiter, Verb::Acquire, 4).len(), attempts, "it does not poll");
    let released = world.now() / 1_000_000;
    world.release(holder, false);
    world.run_for(50);
    let granted = world.granted_at(waiter).expect("the release went unnoticed");
    assert!(granted <= released + 12, "{granted} {released}");
    world.finish();
}
