//! Waiting: the queue of this process, the caller's patience, and the time between two attempts.

use std::time::Duration;

use quorlock_core::engine::Wait;
use quorlock_core::{
    Delay, Event, Extended, Holding, LockId, LossCause, NodeReleased, NodeSaid, NodeStory, Outcome,
    POLL_CEILING, Quorum, RefusalKind, Request, Retry, Timing, TimingOptions, Verb,
};

use quorlock_sim::scripted::World;
use quorlock_sim::scripted::story::{
    NODE_TIMEOUT, TERM, TTL, automatic, once, request, timing_options, waiting,
};

fn between(min: u64, max: u64) -> Retry {
    let [min, max] = [min, max].map(Duration::from_millis);
    Retry { delay: Delay::Between { min, max }, attempts_max: None }
}

#[test]
fn one_caller_of_a_process_contends_and_the_others_wait_in_order() {
    let mut world = World::new(3);
    // Locks that differ are not handed over.
    let owner = |n: usize| Request { owner: format!("{n}").into(), ..request("k") };
    let locks: Vec<LockId> = (0..4).map(|n| world.acquire(owner(n))).collect();
    for (turn, lock) in locks.iter().enumerate() {
        world.run_for(10);
        for (other, lock) in locks.iter().enumerate() {
            let asked = world.sent(*lock, Verb::Acquire, 0).len();
            assert_eq!(asked, usize::from(other <= turn), "caller {other} in turn {turn}");
        }
        assert!(world.is_valid(*lock));
        world.release(*lock, false);
    }
    world.finish();
}

#[test]
fn where_it_cannot_be_handed_over_the_next_one_asks_behind_the_release() {
    let mut world = World::new(3);
    let first = world.hold(Request { owner: "another".into(), ..request("k") });
    let second = world.acquire(request("k"));
    world.run_for(10);
    world.release(first, false);
    world.run_for(2);
    assert_eq!(world.granted_at(second), Some(14), "one round trip later, in one attempt");
    assert_eq!(world.attempts(second), 1);
    world.finish();
}

#[test]
fn callers_of_different_keys_do_not_wait_for_each_other() {
    let mut world = World::new(3);
    let (a, b) = (world.acquire(request("a")), world.acquire(request("b")));
    world.run_for(2);
    assert!(world.is_valid(a) && world.is_valid(b));
    world.finish();
}

#[test]
fn a_try_never_queues_and_asks_no_node() {
    let mut world = World::new(3);
    let holder = world.hold(request("k"));
    let tried = world.acquire(once("k"));
    let (_, refusal) = world.refused(tried).unwrap();
    assert_eq!((refusal.kind, refusal.attempts), (RefusalKind::BusyHere, 0));
    assert_eq!(world.sent(tried, Verb::Acquire, 0), [0; 0]);
    world.release(holder, false);
    let contending = world.acquire(request("k"));
    let tried = world.acquire(once("k"));
    assert_eq!(world.refused(tried).unwrap().1.kind, RefusalKind::BusyHere);
    world.run_for(10);
    assert!(world.is_valid(contending));
    world.finish();
}

#[test]
fn a_waiter_that_is_cancelled_leaves_the_queue() {
    let mut world = World::new(3);
    let holder = world.hold(request("k"));
    let gone = world.acquire(request("k"));
    let next = world.acquire(request("k"));
    world.cancel(gone);
    world.release(holder, false);
    world.run_for(10);
    assert!(world.is_valid(next) && world.granted_at(gone).is_none());
    world.finish();
}

#[test]
fn a_contender_that_is_cancelled_releases_everywhere_and_lets_the_next_one_try() {
    // In every phase: while its commands are under way, while it looks, while it pauses.
    for cancelled_at in [0, 1, 3, 5] {
        let mut world = World::new(3);
        for node in 0..2 {
            world.occupy(node, "k", b"another", Some(50));
        }
        let gone = world.acquire(request("k"));
        let next = world.acquire(request("k"));
        world.run_for(cancelled_at);
        world.cancel(gone);
        for node in 0..3 {
            assert_eq!(world.sent(gone, Verb::Release, node), [cancelled_at.min(2)]);
        }
        assert_eq!(world.sent(next, Verb::Acquire, 0), [cancelled_at]);
        world.run_for(100);
        assert!(world.is_valid(next) && world.granted_at(gone).is_none());
        world.finish();
    }
}

#[test]
fn the_loss_of_a_lock_lets_the_next_one_try_although_its_guard_is_still_there() {
    let mut world = World::new(3);
    let holder = world.hold(request("k"));
    let next = world.acquire(request("k"));
    world.run_until(TERM + 100);
    assert!(world.lost(holder).is_some());
    assert!(world.granted_at(next).is_some());
    world.finish();
}

#[test]
fn a_failed_call_lets_the_next_one_try() {
    let mut world = World::new(3);
    world.down(0);
    world.down(1);
    let first = world.acquire(waiting("k", 20));
    let next = world.acquire(waiting("k", 40));
    world.run_until(20);
    assert_eq!(world.refused(first).unwrap().0, 20);
    world.run_until(40);
    assert!(!world.sent(next, Verb::Acquire, 0).is_empty());
    assert_eq!(world.refused(next).unwrap().1.kind, RefusalKind::NoQuorum);
    world.finish();
}

#[test]
fn the_wait_ends_in_the_queue() {
    let mut world = World::new(3);
    let holder = world.hold(request("k"));
    let queued = world.acquire(waiting("k", 100));
    world.run_for(99);
    assert_eq!(world.refused(queued), None);
    world.run_for(1);
    assert_eq!(world.refused(queued).unwrap().1.kind, RefusalKind::BusyHere);
    assert!(world.is_valid(holder));
    world.finish();
}

#[test]
fn the_wait_ends_while_nodes_are_asked_and_what_they_granted_is_given_back() {
    let mut world = World::new(3);
    world.freeze(1, true);
    world.connecting(2);
    let lock = world.acquire(waiting("k", 30));
    world.run_for(40);
    let (at, refusal) = world.refused(lock).unwrap();
    assert_eq!((at, refusal.kind), (30, RefusalKind::NoQuorum), "connecting counts as well");
    assert_eq!(refusal.nodes[0].said, NodeSaid::Granted);
    assert_eq!(refusal.nodes[2].said, NodeSaid::Nothing);
    assert!(!world.has(0, "k"));
    world.finish();
}

#[test]
fn the_wait_ends_while_the_holder_is_asked_for_and_what_was_seen_is_told() {
    let mut world = World::new(3);
    for node in 0..2 {
        world.occupy(node, "k", b"holder", Some(10_000));
    }
    let lock = world.acquire(waiting("k", 30));
    world.run_until(2);
    world.freeze(1, true);
    world.run_until(40);
    let (at, refusal) = world.refused(lock).unwrap();
    assert_eq!((at, refusal.kind), (30, RefusalKind::Contended));
    assert!(matches!(&refusal.nodes[0].said, NodeSaid::Refused(Some(Holding::Held { .. }))));
    assert_eq!(refusal.nodes[1].said, NodeSaid::Refused(None));
    world.finish();
}

#[test]
fn the_wait_ends_in_a_pause_and_is_never_exceeded() {
    let mut world = World::new(3);
    for node in 0..2 {
        world.occupy(node, "k", b"holder", Some(10_000));
    }
    let retry = between(1000, 1000);
    let lock = world.acquire(Request { retry, ..waiting("k", 300) });
    world.run_for(400);
    let (at, refusal) = world.refused(lock).unwrap();
    assert_eq!((at, refusal.kind, refusal.attempts), (300, RefusalKind::Contended, 1));
    let elapsed = refusal.elapsed;
    assert_eq!(elapsed, Duration::from_millis(300));
    world.finish();
}

#[test]
fn a_try_is_one_attempt_and_names_the_holder() {
    let mut world = World::new(3);
    for node in 0..3 {
        world.occupy(node, "k", b"holder", Some(400));
    }
    let lock = world.acquire(once("k"));
    world.run_for(100);
    let (at, refusal) = world.refused(lock).unwrap();
    assert_eq!((at, refusal.attempts), (4, 1), "one round trip to ask, one to look");
    assert!(matches!(&refusal.nodes[0].said, NodeSaid::Refused(Some(Holding::Held { value, .. }))
        if value == b"holder"));
    assert_eq!(refusal.retry_after, Some(Duration::from_millis(397)));
    world.finish();
}

#[test]
fn a_look_at_the_holder_is_bounded_like_any_other_answer() {
    let mut world = World::new(3);
    for node in 0..3 {
        world.occupy(node, "k", b"holder", Some(400));
    }
    let lock = world.acquire(once("k"));
    world.run_until(2);
    (0..3).for_each(|node| world.freeze(node, true));
    world.run_for(100);
    assert_eq!(world.refused(lock).unwrap().0, 2 + NODE_TIMEOUT);
    world.finish();
}

#[test]
fn the_attempts_may_be_counted() {
    let mut world = World::new(3);
    world.down(0);
    world.down(1);
    let retry = Retry { attempts_max: Some(3), ..between(100, 200) };
    let lock = world.acquire(Request { retry, ..request("k") });
    world.run_for(1000);
    let (at, refusal) = world.refused(lock).unwrap();
    assert_eq!((at, refusal.attempts), (200, 3));
    assert_eq!(world.retried(lock), [0, 100]);
    world.finish();
}

#[test]
fn delays_grow_from_one_to_three_round_trips_up_to_the_ceiling() {
    for (jitter, first) in [(0, 2), (u64::MAX, 5)] {
        let mut world = World::new(1);
        world.jitter = Some(jitter);
        world.down(0);
        let lock = world.acquire(request("k"));
        world.run_for(3000);
        let began = world.sent(lock, Verb::Acquire, 0);
        let pauses: Vec<i64> = began.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses[0] >= first && pauses[0] <= 6);
        let ceiling = POLL_CEILING.as_millis() as i64;
        assert!(pauses[2] >= 8, "doubled each time: {pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= ceiling));
        assert!(pauses[8..].iter().all(|pause| *pause >= ceiling / 2), "{pauses:?}");
        world.cancel(lock);
        world.finish();
    }
}

#[test]
fn a_lock_is_tried_when_a_quorum_of_nodes_is_free_by_expiry() {
    let mut world = World::new(3);
    for (node, ttl) in [(0, 50), (1, 100), (2, 5000)] {
        world.occupy(node, "k", b"crashed", Some(ttl));
    }
    let lock = world.acquire(request("k"));
    world.run_for(200);
    // The Q-th smallest expiry is at 100; its time to live, 15, was heard of at 86.
    assert_eq!(world.sent(lock, Verb::Acquire, 0).last(), Some(&(86 + 15 + 1)));
    assert_eq!(world.granted_at(lock), Some(104));
    world.finish();
}

#[test]
fn a_crashed_holder_keeps_nobody_waiting_for_longer_than_its_ttl() {
    let mut world = World::with(2, Quorum::majority(5).unwrap());
    world.jitter = None;
    let crashed = world.hold(request("k"));
    world.sleep(0, 100_000);
    let next = world.acquire_by(1, request("k"));
    world.run_until(2000);
    let granted = world.granted_at(next).unwrap();
    assert!(granted <= TTL + 10, "{granted}");
    assert!(!world.is_valid(crashed));
    world.run_until(101_000);
    world.finish();
}

#[test]
fn a_key_without_a_ttl_is_looked_at_every_poll_ceiling() {
    let mut world = World::new(3);
    for node in 0..2 {
        world.occupy(node, "k", b"for ever", None);
    }
    let lock = world.acquire(request("k"));
    world.run_until(5000);
    (0..2).for_each(|node| world.clear(node));
    world.run_until(5000 + POLL_CEILING.as_millis() as i64 + 10);
    assert!(world.is_valid(lock));
    world.finish();
}

#[test]
fn two_clients_that_split_the_votes_come_apart_by_jitter() {
    for seed in 1..50 {
        let mut world = World::with(2, Quorum::majority(4).unwrap());
        world.jitter = None;
        // Uses up some jitter, so that every run has its own.
        for n in 0..seed {
            world.acquire(once(&format!("{n}")));
        }
        world.settle();
        let began = world.now / 1_000_000;
        // Each is nearer to two of the nodes.
        for (client, near) in [(0, [0, 1]), (1, [2, 3])] {
            near.iter().for_each(|node| world.set_one_way_of(client, *node, 0));
        }
        let locks = [world.acquire(request("k")), world.acquire_by(1, request("k"))];
        let mut held = 0;
        while held < 2 && world.now / 1_000_000 < began + 300 {
            world.run_for(1);
            for lock in locks {
                if world.is_valid(lock) {
                    held += 1;
                    world.release(lock, false);
                }
            }
        }
        assert_eq!(held, 2, "both get their turn");
        world.finish();
    }
}

#[test]
fn a_call_without_an_end_goes_on_until_it_is_cancelled() {
    let mut world = World::new(1);
    world.down(0);
    let lock = world.acquire(Request { wait: Wait::Forever, ..request("k") });
    world.run_for(60_000);
    assert_eq!(world.refused(lock), None);
    assert_eq!(world.engines[0].calls_waiting(), 1);
    world.cancel(lock);
    assert!(world.engines[0].calls_waiting() == 0 && world.granted_at(lock).is_none());
    world.finish();
}

#[test]
fn a_waiting_caller_is_told_after_each_failed_attempt_if_it_wants_to_be() {
    for progress in [true, false] {
        let mut world = World::new(3);
        for node in 0..3 {
            world.occupy(node, "k", b"holder", Some(300));
        }
        let lock = world.hold(Request { progress, ..request("k") });
        let failed = world.attempts(lock) as usize - 1;
        assert_eq!(world.retried(lock).len(), if progress { failed } else { 0 });
        world.finish();
    }
}

/// Two clients and `nodes` nodes; the first holds the lock.
fn held_by_another(nodes: usize) -> (World, LockId) {
    let mut world = World::with(2, Quorum::majority(nodes).expect("there are nodes"));
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
    let released = world.now / 1_000_000;
    world.release(holder, false);
    world.run_for(20);
    assert_eq!(world.granted_at(waiter), Some(released + 4), "release, push, and a round trip");
    world.finish();
}

/// Whenever the lock is released, and however pushes and replies pass each other.
#[test]
fn no_release_goes_unnoticed_whatever_overtakes_what() {
    for nodes in [1, 3, 5] {
        for released_after in 0..12 {
            for push_way in [0, 1, 3, 8, 30] {
                let (mut world, holder) = held_by_another(nodes);
                (0..nodes).for_each(|node| world.set_push_way(node, push_way));
                // The nodes are not equally far away, and one hears of the release late.
                (0..nodes).for_each(|node| world.set_one_way(node, 1 + node as i64));
                world.set_one_way_of(0, nodes - 1, 7);
                let waiter = world.acquire_by(1, request("k"));
                world.run_for(released_after);
                let released = world.now / 1_000_000;
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
    // Of those that were asked to tell, one does not.
    world.mute(0, true);
    let released = world.now / 1_000_000;
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
    let released = world.now / 1_000_000;
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
    // The key is deleted while nobody can be told.
    world.cut(0, None);
    world.clear(0);
    world.assume_no_loss = false;
    world.run_for(10);
    assert_eq!(world.granted_at(waiter), None);
    let up = world.now / 1_000_000;
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
    let released = world.now / 1_000_000;
    world.release(holder, false);
    world.run_for(100);
    assert!(world.granted_at(waiter).is_some_and(|at| at <= released + 30));
    world.finish();
}

#[test]
fn a_released_lock_goes_to_the_next_caller_without_a_word_to_the_nodes() {
    let mut world = World::new(3);
    let locks: Vec<LockId> = (0..3).map(|_| world.acquire(automatic("k"))).collect();
    world.run_for(10);
    let first = world.guard(locks[0]).clone();
    world.release(locks[0], true);
    let (_, report) = world.released(locks[0]).expect("told at once");
    assert!(report.handed_over && report.outcome == Outcome::Released);
    assert_eq!(report.nodes, vec![NodeReleased::HandedOver; 3]);
    let second = world.guard(locks[1]).clone();
    assert_eq!((second.token, second.turn, world.attempts(locks[1])), (first.token, 1, 0));
    assert_eq!(world.votes(locks[1]), 3);
    for node in 0..3 {
        assert_eq!(world.sent(locks[1], Verb::Acquire, node), [0; 0]);
        assert_eq!(world.sent(locks[0], Verb::Release, node), [0; 0]);
    }
    // What the old guard still says is not about the new one's hold (S24).
    world.tell(0, Event::RunOut { lock: locks[0] });
    world.extend(locks[0]);
    assert_eq!(world.extended(locks[0])[0].1, Extended::Lost(LossCause::Expired));
    assert!(world.is_valid(locks[1]) && world.lost(locks[1]).is_none());
    // The new guard's extends, and is told of the loss of what was the old one's.
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
        let mut world = World::new(3);
        let first = world.hold(request("k"));
        let second = world.acquire(next);
        world.run_for(held_for);
        world.release(first, false);
        world.run_for(30);
        let turn = world.guard(second).turn;
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
    let mut world = World::with(2, Quorum::majority(3).unwrap());
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
    let mut world = World::new(3);
    let first = world.hold(request("k"));
    let second = world.acquire(request("k"));
    // The wall clock jumps: the lock has expired, though no timer has noticed.
    world.step_wall(TTL);
    world.release(first, true);
    world.run_for(10);
    assert_eq!(world.guard(second).turn, 0);
    assert!(!world.released(first).unwrap().1.handed_over);
    world.finish();
}

/// Two clients of five nodes of which two stand still. The first has the lock, the second waits.
fn held_with_two_of_five_frozen() -> (World, LockId, LockId) {
    let (mut world, holder) = held_by_another(5);
    (0..2).for_each(|node| world.down(node));
    // The third hears of the question first, and refuses first: that decides the attempt.
    (3..5).for_each(|node| world.set_one_way_of(1, node, 3));
    let waiter = world.acquire_by(1, request("k"));
    world.run_for(100);
    (world, holder, waiter)
}

/// One refusal decides when so many nodes fail. The others are asked to tell of the release too, or
/// nobody would be: it would be left to polling.
#[test]
fn where_nodes_fail_all_others_are_to_tell_of_the_release() {
    let (mut world, holder, waiter) = held_with_two_of_five_frozen();
    let attempts = world.sent(waiter, Verb::Acquire, 4).len();
    world.run_for(700);
    assert_eq!(world.sent(waiter, Verb::Acquire, 4).len(), attempts, "it does not poll");
    let released = world.now / 1_000_000;
    world.release(holder, false);
    world.run_for(50);
    let granted = world.granted_at(waiter).expect("the release went unnoticed");
    assert!(granted <= released + 12, "{granted} {released}");
    world.finish();
}

/// The first of two processes has had a lock that both contended for, and gives it back.
fn left_to_a_rival() -> (World, LockId) {
    let mut world = World::with(2, Quorum::majority(4).expect("there are nodes"));
    for (client, near) in [(0, [0, 1]), (1, [2, 3])] {
        near.iter().for_each(|node| world.set_one_way_of(client, *node, 0));
    }
    world.jitter = None;
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
fn who_leaves_a_crowd_looks_before_it_tries_again() {
    let (mut world, rival) = left_to_a_rival();
    let again = world.acquire(waiting("k", 60_000));
    world.run_for(500);
    assert!(world.is_valid(rival));
    assert!(world.sent(again, Verb::Acquire, 0).is_empty());
    assert_eq!(world.sent(again, Verb::Inspect, 0).len(), 1, "and is told when to try");
    let released = world.now / 1_000_000;
    world.release(rival, false);
    world.run_for(200);
    assert!(world.granted_at(again).is_some_and(|at| at < released + 100));
    world.finish();
}

#[test]
fn what_was_seen_before_the_first_attempt_is_told() {
    let (mut world, rival) = left_to_a_rival();
    let again = world.acquire(waiting("k", 500));
    world.run_for(600);
    let (_, refusal) = world.refused(again).unwrap();
    assert_eq!((refusal.kind, refusal.attempts), (RefusalKind::Contended, 0));
    let held = |said: &NodeSaid| matches!(said, NodeSaid::Refused(Some(Holding::Held { .. })));
    assert!(refusal.nodes.iter().filter(|node| held(&node.said)).count() >= 2);
    let _ = rival;
    world.finish();
}

/// To let others have their turn does not cost a call all of its patience.
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

/// A first attempt that the end of the wait cuts short has heard nothing; what was seen before it still tells
/// who had the lock.
#[test]
fn what_was_seen_before_an_attempt_that_was_cut_short_is_told() {
    let mut cut_short = 0;
    for wait in (800..1_200).step_by(10) {
        let (mut world, rival) = left_to_a_rival();
        let again = world.acquire(waiting("k", wait));
        while world.sent(again, Verb::Inspect, 0).is_empty() || !world.is_valid(rival) {
            world.run_for(1);
        }
        world.run_for(20);
        // From here on no answer comes in time; the attempt is made when the rival's keys have run out.
        (0..4).for_each(|node| world.mute(node, true));
        world.run_for(1_300);
        let (_, refusal) = world.refused(again).expect("its wait is over");
        // An attempt that has come to its own end has heard that the nodes fail.
        let failed = |node: &NodeStory| matches!(node.said, NodeSaid::Failed(_));
        if refusal.attempts != 1 || refusal.nodes.iter().any(failed) {
            continue;
        }
        cut_short += 1;
        assert_eq!(refusal.kind, RefusalKind::Contended, "{wait}: {:?}", refusal.nodes);
    }
    assert!(cut_short > 0);
}

/// What a second look sees is told, not what the first one saw: the lock was free, then another had it.
#[test]
fn what_was_seen_last_before_the_first_attempt_is_told() {
    let mut looked_twice = 0;
    for jitter in 0..8 {
        let (mut world, rival) = left_to_a_rival();
        world.cancel(rival);
        world.run_for(1);
        world.jitter = Some(jitter << 61);
        let again = world.acquire(waiting("k", 500));
        while world.sent(again, Verb::Inspect, 0).is_empty() {
            world.run_for(1);
        }
        // The first look is under way: it sees a free lock, and the second one this.
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
        let held = |said: &NodeSaid| matches!(said, NodeSaid::Refused(Some(Holding::Held { .. })));
        let seen = refusal.nodes.iter().filter(|node| held(&node.said)).count();
        assert!(seen >= 2, "{:?}", refusal.nodes);
    }
    assert!(looked_twice > 0, "no slot but the first one was drawn");
}

/// Fixed delays hold whatever the nodes say, and a single attempt is made at once, not when the
/// lock comes free.
#[test]
fn who_has_fixed_delays_or_one_attempt_does_not_look_first() {
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

/// Who has hardly any time left tries, and does not spend it on looking.
#[test]
fn who_has_no_time_to_look_tries() {
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
fn who_could_not_see_that_the_lock_was_free_has_not_been_outrun() {
    let mut world = World::new(4);
    let occupy = |world: &mut World, nodes: std::ops::Range<usize>| {
        nodes.for_each(|node| world.occupy(node, "k", b"another", None));
    };
    // The votes are split: there are rivals, so that it does not try at once when the lock comes free.
    occupy(&mut world, 2..4);
    let lock = world.acquire(request("k"));
    world.run_until(20);
    (2..4).for_each(|node| world.forget_key(node, "k"));
    // When its slot has come, no node tells it who holds the lock. So it tries, and others have it.
    occupy(&mut world, 0..4);
    world.blind(true);
    world.run_until(40);
    world.blind(false);
    world.run_until(1000);
    // The lock comes free. There are as many rivals as before, and a slot that is drawn among so many.
    (0..4).for_each(|node| world.forget_key(node, "k"));
    world.run_for(200);
    assert_eq!(world.granted_at(lock), Some(1011), "1013: one of more slots");
    world.finish();
}
