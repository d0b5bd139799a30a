//! Waiting calls: the queue of the process, the end of a wait, and the time between attempts.

mod backoff;
mod gaps;
mod pushes;

use std::time::Duration;

use quorlock_core::Wait;
use quorlock_core::{
    Delay, Event, Extended, FailureKind, Holding, LockId, LossCause, NodeOutcome, NodeReleased,
    NodeResult, Outcome, POLL_CEILING, Quorum, RefusalKind, Request, Retry, Timing, TimingOptions,
    Verb,
};

use quorlock_sim::scripted::ScriptedWorld;
use quorlock_sim::scripted::asking::{
    NODE_TIMEOUT, TERM, TTL, automatic, once, request, timing_options, waiting,
};

fn between(min: u64, max: u64) -> Retry {
    let [min, max] = [min, max].map(Duration::from_millis);
    Retry { delay: Delay::Between { min, max }, attempts_max: None }
}

#[test]
fn one_caller_of_a_process_contends_and_the_others_wait_in_order() {
    let mut world = ScriptedWorld::new(3);
    // The requests have different owners, so the lock is not handed over.
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
    let mut world = ScriptedWorld::new(3);
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
    let mut world = ScriptedWorld::new(3);
    let (a, b) = (world.acquire(request("a")), world.acquire(request("b")));
    world.run_for(2);
    assert!(world.is_valid(a) && world.is_valid(b));
    world.finish();
}

#[test]
fn a_try_never_queues_and_asks_no_node() {
    let mut world = ScriptedWorld::new(3);
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
    let mut world = ScriptedWorld::new(3);
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
    // The call is cancelled while its commands are in flight, while it inspects, or while it pauses.
    for cancelled_at in [0, 1, 3, 5] {
        let mut world = ScriptedWorld::new(3);
        for node in 0..2 {
            world.occupy(node, "k", b"another", Some(50));
        }
        let gone = world.acquire(request("k"));
        let next = world.acquire(Request { yields_to_pollers: false, ..request("k") });
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
    let mut world = ScriptedWorld::new(3);
    let holder = world.hold(request("k"));
    let next = world.acquire(request("k"));
    world.run_until(TERM + 100);
    assert!(world.lost(holder).is_some());
    assert!(world.granted_at(next).is_some());
    world.finish();
}

#[test]
fn a_failed_call_lets_the_next_one_try() {
    let mut world = ScriptedWorld::new(3);
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
    let mut world = ScriptedWorld::new(3);
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
fn the_wait_ends_while_nodes_are_asked_and_what_they_granted_is_released() {
    let mut world = ScriptedWorld::new(3);
    world.freeze(1, true);
    world.connecting(2);
    let lock = world.acquire(waiting("k", 30));
    world.run_for(40);
    let (at, refusal) = world.refused(lock).unwrap();
    assert_eq!((at, refusal.kind), (30, RefusalKind::NoQuorum), "connecting counts as well");
    assert_eq!(refusal.nodes[0].said, NodeOutcome::Granted);
    assert_eq!(refusal.nodes[2].said, NodeOutcome::Nothing);
    assert!(!world.has(0, "k"));
    world.finish();
}

#[test]
fn the_wait_ends_during_an_inspection_and_its_result_is_reported() {
    let mut world = ScriptedWorld::new(3);
    for node in 0..2 {
        world.occupy(node, "k", b"holder", Some(10_000));
    }
    let lock = world.acquire(waiting("k", 30));
    world.run_until(2);
    world.freeze(1, true);
    world.run_until(40);
    let (at, refusal) = world.refused(lock).unwrap();
    assert_eq!((at, refusal.kind), (30, RefusalKind::Contended));
    assert!(matches!(&refusal.nodes[0].said, NodeOutcome::Refused(Some(Holding::Held { .. }))));
    assert_eq!(refusal.nodes[1].said, NodeOutcome::Refused(None));
    world.finish();
}

#[test]
fn the_wait_ends_in_a_pause_and_is_never_exceeded() {
    let mut world = ScriptedWorld::new(3);
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
    let mut world = ScriptedWorld::new(3);
    for node in 0..3 {
        world.occupy(node, "k", b"holder", Some(400));
    }
    let lock = world.acquire(once("k"));
    world.run_for(100);
    let (at, refusal) = world.refused(lock).unwrap();
    assert_eq!((at, refusal.attempts), (4, 1), "one round trip to ask, one to look");
    assert!(
        matches!(&refusal.nodes[0].said, NodeOutcome::Refused(Some(Holding::Held { value, .. }))
        if value == b"holder")
    );
    assert_eq!(refusal.retry_after, Some(Duration::from_millis(397)));
    world.finish();
}

#[test]
fn a_look_at_the_holder_is_bounded_like_any_other_answer() {
    let mut world = ScriptedWorld::new(3);
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
    let mut world = ScriptedWorld::new(3);
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
        let mut world = ScriptedWorld::new(1);
        world.set_jitter(Some(jitter));
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
    let mut world = ScriptedWorld::new(3);
    for (node, ttl) in [(0, 50), (1, 100), (2, 5000)] {
        world.occupy(node, "k", b"crashed", Some(ttl));
    }
    let lock = world.acquire(request("k"));
    world.run_for(200);
    // At 86 ms the call learns that node 1's key has 15 ms left. It tries 16 ms later, when a quorum is free.
    assert_eq!(world.sent(lock, Verb::Acquire, 0).last(), Some(&(86 + 15 + 1)));
    assert_eq!(world.granted_at(lock), Some(104));
    world.finish();
}

#[test]
fn a_crashed_holder_keeps_nobody_waiting_for_longer_than_its_ttl() {
    let mut world = ScriptedWorld::with(2, Quorum::majority(5).unwrap());
    world.set_jitter(None);
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
    let mut world = ScriptedWorld::new(3);
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
        let mut world = ScriptedWorld::with(2, Quorum::majority(4).unwrap());
        world.set_jitter(None);
        // Draws some random numbers, so that each run has different jitter.
        for n in 0..seed {
            world.acquire(once(&format!("{n}")));
        }
        world.settle();
        let began = world.now() / 1_000_000;
        // Each client reaches two nodes faster than the other client does, so each gets two of four votes.
        for (client, near) in [(0, [0, 1]), (1, [2, 3])] {
            near.iter().for_each(|node| world.set_one_way_of(client, *node, 0));
        }
        let locks = [world.acquire(request("k")), world.acquire_by(1, request("k"))];
        let mut held = 0;
        while held < 2 && world.now() / 1_000_000 < began + 300 {
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
    let mut world = ScriptedWorld::new(1);
    world.down(0);
    let lock = world.acquire(Request { wait: Wait::Forever, ..request("k") });
    world.run_for(60_000);
    assert_eq!(world.refused(lock), None);
    assert_eq!(world.engine(0).calls_waiting(), 1);
    world.cancel(lock);
    assert!(world.engine(0).calls_waiting() == 0 && world.granted_at(lock).is_none());
    world.finish();
}

#[test]
fn a_waiting_caller_that_asks_for_progress_gets_it_after_each_failed_attempt() {
    for progress in [true, false] {
        let mut world = ScriptedWorld::new(3);
        for node in 0..3 {
            world.occupy(node, "k", b"holder", Some(300));
        }
        let lock = world.hold(Request { progress, ..request("k") });
        let failed = world.attempts(lock) as usize - 1;
        assert_eq!(world.retried(lock).len(), if progress { failed } else { 0 });
        world.finish();
    }
}

/// A release failed, so the call's own vote blocks its next attempt. The call must not report that vote as another's.
#[test]
fn a_call_does_not_report_its_own_vote_as_that_of_another() {
    for wait in 12..48 {
        let mut world = ScriptedWorld::new(3);
        [1, 2].into_iter().for_each(|node| world.refuse(node, Some(FailureKind::Loading)));
        let lock = world.acquire(waiting("k", wait));
        world.run_for(2);
        // The node begins to refuse commands while the release is in flight.
        world.refuse(0, Some(FailureKind::Forbidden));
        world.run_for(3);
        assert!(world.has(0, "k"), "it could not be taken back");
        [0, 1].into_iter().for_each(|node| world.refuse(node, None));
        world.run_for(100);
        assert!(world.sent(lock, Verb::Acquire, 0).len() > 1);
        let (_, refusal) = world.refused(lock).expect("two nodes do not grant");
        assert_eq!(refusal.kind, RefusalKind::NoQuorum, "{wait}: {:?}", refusal.nodes);
        let NodeOutcome::Failed(failure) = &refusal.nodes[0].said else {
            panic!("{wait}: {:?}", refusal.nodes)
        };
        assert_eq!(failure.kind(), FailureKind::Forbidden);
        let said = failure.to_string();
        assert!(said.contains("the vote of an earlier attempt could not be taken back"), "{said}");
        world.finish();
    }
}

/// A vote of the call is left on one node, and another client has the lock on the other nodes. The lock is contended.
#[test]
fn a_lock_that_another_has_is_held_whatever_the_call_left_behind() {
    let mut world = ScriptedWorld::new(3);
    [1, 2].into_iter().for_each(|node| world.occupy(node, "k", b"another", Some(5000)));
    let lock = world.acquire(waiting("k", 40));
    world.run_for(2);
    world.refuse(0, Some(FailureKind::Loading));
    world.run_for(3);
    assert!(world.has(0, "k"), "it could not be taken back");
    world.refuse(0, None);
    world.run_for(100);
    let (_, refusal) = world.refused(lock).expect("it is held");
    assert_eq!(refusal.kind, RefusalKind::Contended, "{:?}", refusal.nodes);
    world.finish();
}
