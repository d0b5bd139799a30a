//! A held lock: its extensions, lost and healed votes, and its end.

mod limits;

use std::time::Duration;

use quorlock_core::{
    Answer, Event, Extended, Failure, FailureKind, LossCause, NodeId, NodeOutcome, Outcome, Quorum,
    Reading, Request, Ticket, Verb,
};

use quorlock_sim::scripted::ScriptedWorld;
use quorlock_sim::scripted::asking::{MARGIN, NODE_TIMEOUT, TERM, automatic, request};
use quorlock_sim::time::MS;

/// The time of the first extension, in milliseconds: a third of the ttl (333 ms) after the grant at 2 ms.
const FIRST_EXTENSION: i64 = 335;

/// The number of votes that are still valid at `ms` milliseconds, as far as the guard knows.
fn votes_at(world: &ScriptedWorld, lock: quorlock_core::LockId, ms: i64) -> usize {
    let now = world.reading();
    let later = ms * MS - now.boot().as_nanos();
    let then = Reading::new(ms * MS, now.real_ns() + later);
    world.guard(lock).hold.validity().votes(then)
}

#[test]
fn a_lock_is_extended_every_third_of_its_ttl_on_every_node() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(automatic("k"));
    world.run_until(1400);
    for node in 0..3 {
        assert_eq!(world.sent(lock, Verb::Extend, node), [FIRST_EXTENSION, 668, 1001, 1335]);
    }
    assert_eq!(world.valid_for(lock), 1335 + TERM - 1400);
    assert_eq!(world.extended(lock), [], "nobody asked");
    world.finish();
}

#[test]
fn a_lock_that_is_not_extended_ends_exactly_a_margin_before_its_validity() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    let end = (TERM - MARGIN) * MS;
    world.run_for(10);
    assert_eq!(world.engine(0).deadline().unwrap().as_nanos(), end);
    let validity = world.guard(lock).hold.validity().clone();
    let wall = world.reading().real_ns() - world.now();
    for (at, left) in [(end - 1, 1), (end, 0), (end + 1, 0)] {
        let reading = Reading::new(at, at + wall);
        assert_eq!(validity.remaining(reading), Duration::from_nanos(left));
    }
    world.run_until(TERM - MARGIN - 1);
    assert!(world.is_valid(lock) && world.engine(0).locks_held() == 1);
    world.run_for(1);
    assert_eq!(world.lost(lock), Some((TERM - MARGIN, LossCause::Expired)));
    assert_eq!(world.engine(0).locks_held(), 0);
    assert_eq!(world.sent(lock, Verb::Release, 2), [TERM - MARGIN], "released at once");
    world.finish();
}

#[test]
fn a_partial_extension_keeps_what_it_gained() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.run_until(100);
    (1..3).for_each(|node| world.freeze(node, true));
    world.extend(lock);
    world.run_until(300);
    let silent = NodeOutcome::Failed(Failure::new(FailureKind::Silent));
    assert!(matches!(&world.extended(lock)[..], [(150, Extended::Unconfirmed(nodes))]
        if nodes[0].said == NodeOutcome::Granted && nodes[1].said == silent));
    assert_eq!(world.valid_for(lock), TERM - 300, "one of three is no quorum");
    world.freeze(0, true);
    world.refuse(1, Some(FailureKind::Loading));
    world.freeze(1, false);
    world.freeze(2, false);
    world.run_until(310);
    // Node 2 also answered the first extension, but late. So nodes 0 and 2 are a quorum that confirms the lock.
    assert_eq!(world.valid_for(lock), 100 + TERM - 310);
    world.refuse(1, None);
    world.finish();
}

#[test]
fn an_answer_that_fails_changes_nothing_and_the_round_is_tried_again() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(automatic("k"));
    world.run_until(300);
    (0..3).for_each(|node| world.refuse(node, Some(FailureKind::Loading)));
    world.run_until(400);
    assert_eq!((world.votes(lock), world.valid_for(lock)), (3, TERM - 400));
    world.run_until(700);
    assert_eq!(world.sent(lock, Verb::Extend, 0), [FIRST_EXTENSION, 437, 539, 641]);
    assert_eq!(
        world.sent(lock, Verb::Release, 0),
        [0; 0],
        "a failed extension deletes nothing (S12)"
    );
    (0..3).for_each(|node| world.refuse(node, None));
    world.run_until(800);
    assert_eq!(world.valid_for(lock), 743 + TERM - 800, "and it succeeds when it can");
    world.finish();
}

#[test]
fn a_lock_whose_extensions_all_fail_is_lost_when_its_validity_ends() {
    let mut world = ScriptedWorld::new(5);
    let lock = world.hold(automatic("k"));
    (0..3).for_each(|node| world.freeze(node, true));
    world.run_until(2000);
    assert_eq!(world.lost(lock), Some((TERM - MARGIN, LossCause::Expired)));
    world.finish();
}

#[test]
fn a_node_that_proves_a_vote_gone_drops_it_at_once() {
    for taken in [false, true] {
        let mut world = ScriptedWorld::new(5);
        let lock = world.hold(request("k"));
        world.run_until(100);
        world.flush(0);
        if taken {
            world.occupy(0, "k", b"another", Some(10_000));
        }
        (1..5).for_each(|node| world.freeze(node, true));
        world.extend(lock);
        world.run_until(102);
        assert_eq!(world.votes(lock), 4);
        world.finish();
    }
}

#[test]
fn with_fewer_votes_than_a_quorum_left_the_lock_is_lost_now() {
    for taken in [false, true] {
        let mut world = ScriptedWorld::new(5);
        let lock = world.hold(automatic("k"));
        let next = world.acquire(request("k"));
        world.run_until(200);
        (0..3).for_each(|node| world.flush(node));
        if taken {
            (0..3).for_each(|node| world.occupy(node, "k", b"another", Some(500)));
        }
        world.run_until(FIRST_EXTENSION + 3);
        let cause = if taken { LossCause::KeyOverwritten } else { LossCause::KeyGone };
        assert_eq!(world.lost(lock), Some((FIRST_EXTENSION + 2, cause)));
        assert_eq!(world.sent(lock, Verb::Release, 4), [FIRST_EXTENSION + 2]);
        world.run_until(1000);
        assert!(world.is_valid(next));
        world.finish();
    }
}

/// The client reports a refusing node as soon as its refusal arrives, and a silent node after the node timeout.
#[test]
fn its_holder_is_notified_when_no_quorum_confirms_and_when_one_confirms_again() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(automatic("k"));
    world.run_until(300);
    assert_eq!(world.health(lock), [], "all is well");
    (1..3).for_each(|node| world.refuse(node, Some(FailureKind::Loading)));
    world.run_until(400);
    assert_eq!(world.health(lock)[0], (FIRST_EXTENSION + 2, false, 1));
    world.refuse(1, None);
    world.run_until(500);
    // The next round of extensions begins a tenth of the ttl after the first one has failed.
    assert_eq!(world.health(lock)[1..], [(439, true, 2); 2], "clear, and over");
    world.refuse(2, None);
    world.run_until(1500);
    assert_eq!(world.health(lock)[3..], [(772, true, 3)], "and then all do, once");
    world.finish();

    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(automatic("k"));
    (1..3).for_each(|node| world.freeze(node, true));
    world.run_until(FIRST_EXTENSION + NODE_TIMEOUT + 1);
    assert_eq!(world.health(lock), [(FIRST_EXTENSION + NODE_TIMEOUT, false, 1)]);
    (1..3).for_each(|node| world.freeze(node, false));
    world.run_until(600);
    assert_eq!(world.health(lock).last().map(|(_, is_confirmed, _)| *is_confirmed), Some(true));
    assert_eq!(world.lost(lock), None);
    world.finish();
}

#[test]
fn its_holder_is_notified_of_a_minority_that_does_not_confirm() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(automatic("k"));
    world.freeze(2, true);
    world.run_until(FIRST_EXTENSION + NODE_TIMEOUT + 1);
    assert_eq!(world.health(lock), [(FIRST_EXTENSION + NODE_TIMEOUT, true, 2)]);
    world.freeze(2, false);
    world.run_until(2000);
    assert_eq!(world.health(lock)[1..], [(FIRST_EXTENSION + 335, true, 3)]);
    world.finish();
}

/// Three nodes have lost the key, which ends the lock before all nodes have answered. The client must report their
/// answers before it reports the loss.
#[test]
fn answers_that_end_a_lock_are_reported_before_the_loss() {
    let mut world = ScriptedWorld::new(5);
    let lock = world.hold(automatic("k"));
    world.run_until(300);
    (0..3).for_each(|node| world.flush(node));
    (3..5).for_each(|node| world.freeze(node, true));
    world.run_until(FIRST_EXTENSION + 3);
    let (at, _) = world.lost(lock).unwrap();
    assert_eq!(world.health(lock), [(at, false, 0)]);
    world.finish();
}

/// Node 2 is silent, so its vote expires. Then the answer of node 0 proves that its key was deleted. That answer ends
/// the lock, so the client reports the deleted key as the cause of the loss.
#[test]
fn a_loss_by_an_answer_is_reported_as_such_although_another_vote_has_expired() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(automatic("k"));
    world.freeze(2, true);
    world.run_until(TERM - 2);
    world.flush(0);
    world.run_until(TERM + 20);
    let (at, cause) = world.lost(lock).unwrap();
    assert!(at > TERM, "the third vote had run out: {at}");
    assert_eq!(cause, LossCause::KeyGone);
    world.finish();
}

/// A holder keeps its lost lock. Until the holder releases the lock, the client sends no release and grants the lock to
/// no other caller. Then the client sends one release to each node.
#[test]
fn a_lost_lock_that_is_kept_is_released_when_its_holder_gives_it_back() {
    for report in [true, false] {
        for by_answer in [true, false] {
            let mut world = ScriptedWorld::new(5);
            let lock = world.hold(Request { keeps_on_loss: true, ..automatic("k") });
            let next = world.acquire(request("k"));
            if by_answer {
                world.run_until(200);
                (0..3).for_each(|node| world.flush(node));
            } else {
                (0..3).for_each(|node| world.freeze(node, true));
            }
            world.run_until(1100);
            assert!(world.lost(lock).is_some());
            (0..3).for_each(|node| world.freeze(node, false));
            world.run_until(3000);
            assert_eq!(world.sent(lock, Verb::Release, 4), [0; 0]);
            assert_eq!(world.sent(next, Verb::Acquire, 4), [0; 0]);
            assert_eq!(world.engine(0).locks_held(), 0);
            world.release(lock, report);
            world.run_until(3100);
            assert_eq!(world.sent(lock, Verb::Release, 4), [3000]);
            if report {
                assert_eq!(world.released(lock).unwrap().1.outcome, Outcome::Expired);
            }
            assert!(world.is_valid(next));
            world.finish();
        }
    }
}

/// A shutdown ends a lock, and its holder keeps the lock. The engine sends no release until the holder releases it.
#[test]
fn a_kept_lock_outlives_a_shutdown_without_a_release() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(Request { keeps_on_loss: true, ..automatic("k") });
    world.run_until(100);
    world.tell(0, Event::Close);
    assert_eq!(world.lost(lock), Some((100, LossCause::Shutdown)));
    assert!(world.log().iter().any(|(.., effect)| *effect == quorlock_core::Effect::Drained));
    assert_eq!(world.sent(lock, Verb::Release, 0), [0; 0]);
    world.release(lock, false);
    world.run_until(200);
    assert_eq!(world.sent(lock, Verb::Release, 0), [100]);
}

#[test]
fn a_late_yes_from_before_the_proof_does_not_bring_a_vote_back() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.run_until(100);
    world.extend(lock);
    world.run_until(200);
    let acquired = (Reading::new(0, 1_000_000 * MS), Verb::Acquire, Answer::Granted);
    let extended = (Reading::new(100 * MS, 1_000_100 * MS), Verb::Extend, Answer::Extended);
    world.flush(0);
    (1..3).for_each(|node| world.freeze(node, true));
    world.extend(lock);
    world.run_until(210);
    assert_eq!(world.votes(lock), 2);
    for (round, (sent, verb, answer)) in [(1, acquired), (2, extended)] {
        world.answer(0, 0, sent, Ticket { lock, round, verb }, answer);
        assert_eq!(world.votes(lock), 2);
    }
    world.finish();
}

#[test]
fn an_absent_key_is_set_again_only_after_a_quorum_has_confirmed_in_the_round() {
    let mut world = ScriptedWorld::new(5);
    let lock = world.hold(request("k"));
    world.run_until(100);
    world.flush(4);
    (1..4).for_each(|node| world.set_one_way(node, 10));
    world.extend(lock);
    world.run_until(119);
    assert_eq!(world.votes(lock), 4);
    assert_eq!(world.sent(lock, Verb::Heal, 4), [0; 0]);
    world.run_until(200);
    assert_eq!(world.sent(lock, Verb::Heal, 4), [120]);
    assert_eq!(world.extended(lock), [(120, Extended::Confirmed)]);
    assert_eq!(world.votes(lock), 5);
    // The healed vote counts from the time when its command was sent, 20 ms after those of the other votes.
    assert_eq!(votes_at(&world, lock, 100 + TERM + 1), 1);
    assert_eq!(votes_at(&world, lock, 120 + TERM), 0);
    world.finish();
}

#[test]
fn without_a_quorum_nothing_is_healed() {
    let mut world = ScriptedWorld::new(5);
    let lock = world.hold(automatic("k"));
    world.run_until(300);
    world.flush(4);
    (0..3).for_each(|node| world.freeze(node, true));
    world.run_until(900);
    assert!(!world.sent(lock, Verb::Extend, 4).is_empty());
    assert_eq!(world.sent(lock, Verb::Heal, 4), [0; 0]);
    assert!(world.is_valid(lock));
    world.finish();
}

#[test]
fn a_node_that_had_never_granted_is_healed_as_well() {
    let mut world = ScriptedWorld::new(3);
    world.occupy(0, "k", b"a crashed client", Some(100));
    let lock = world.hold(automatic("k"));
    assert_eq!(world.votes(lock), 2);
    world.run_until(400);
    assert_eq!(world.votes(lock), 3);
    world.finish();
}

#[test]
fn a_key_that_another_took_in_the_meantime_is_not_healed() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.run_until(100);
    world.flush(2);
    world.extend(lock);
    world.run_until(102);
    world.occupy(2, "k", b"another", Some(10_000));
    world.run_until(200);
    assert_eq!((world.sent(lock, Verb::Heal, 2).len(), world.votes(lock)), (1, 2));
    world.finish();
}

#[test]
fn a_heal_under_way_at_the_release_is_released_behind_it() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.run_until(100);
    world.flush(2);
    world.extend(lock);
    world.run_until(102);
    assert_eq!(world.sent(lock, Verb::Heal, 2), [102]);
    world.release(lock, true);
    world.run_until(103);
    assert!(!world.has(2, "k"), "set, and deleted by what came behind");
    world.finish();
}

#[test]
fn an_unknown_answer_to_the_acquire_becomes_a_vote_when_an_extension_finds_the_key() {
    let mut world = ScriptedWorld::new(3);
    world.mute(0, true);
    let lock = world.hold(automatic("k"));
    world.cut(0, None);
    world.run_until(10);
    assert!(world.has(0, "k") && world.votes(lock) == 2);
    world.up(0);
    world.run_until(400);
    assert_eq!(world.votes(lock), 3);
    world.finish();
}

#[test]
fn an_extension_counts_from_its_sending_on_each_node() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.run_until(100);
    world.connecting(0);
    world.connecting(1);
    world.extend(lock);
    world.run_until(300);
    assert_eq!(world.valid_for(lock), TERM - 300);
    world.up(0);
    world.up(1);
    world.run_until(310);
    assert_eq!(world.valid_for(lock), 300 + TERM - 310, "counted although the round was over");
    assert_eq!(votes_at(&world, lock, 100 + TERM), 2);
    world.finish();
}

#[test]
fn nothing_raises_a_lock_after_its_loss() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    (0..3).for_each(|node| world.set_one_way(node, 10));
    world.run_until(970);
    world.extend(lock);
    world.run_until(985);
    assert_eq!(world.lost(lock), Some((TERM - MARGIN, LossCause::Expired)));
    assert_eq!(world.extended(lock), [(978, Extended::Lost(LossCause::Expired))]);
    // The answers arrive at 990 ms, after the end of the lock. The test world asserts that they do not change the lock.
    world.run_until(1100);
    assert!(!world.is_valid(lock));
    world.extend(lock);
    assert_eq!(world.extended(lock)[1].1, Extended::Lost(LossCause::Expired));
    world.finish();
}

#[test]
fn a_client_that_slept_past_the_end_does_not_take_an_old_yes_for_a_lock() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(automatic("k"));
    world.run_until(FIRST_EXTENSION + 1);
    world.sleep(0, 3000);
    world.run_until(5000);
    assert_eq!(world.lost(lock), Some((FIRST_EXTENSION + 3001, LossCause::Expired)));
    world.finish();
}

/// S13. The guard has reported the end of the lock, so answers that the client reads later must not make it valid.
#[test]
fn an_answer_that_waited_past_the_end_is_too_late_although_it_came_before() {
    // First case: after the end of the lock, the client reads the answer to an extension.
    let mut world = ScriptedWorld::new(1);
    let lock = world.hold(request("k"));
    world.run_until(970);
    world.extend(lock);
    world.run_until(971);
    world.sleep(0, 15);
    world.run_until(1000);
    assert_eq!(world.lost(lock), Some((986, LossCause::Expired)));
    world.finish();

    // Second case: after the end of the lock, the client reads a third vote. The second and third would be a quorum.
    let mut world = ScriptedWorld::new(3);
    world.connecting(1);
    world.connecting(2);
    let lock = world.acquire(request("k"));
    world.run_until(150);
    world.up(1);
    world.run_until(960);
    assert_eq!((world.votes(lock), world.valid_for(lock)), (2, TERM - 960));
    world.up(2);
    world.sleep(0, 26);
    world.run_until(1000);
    assert_eq!(world.lost(lock), Some((986, LossCause::Expired)));
    world.finish();
}

#[test]
fn a_wall_clock_that_jumps_ahead_ends_a_lock_before_its_timer() {
    // The first event after the jump is a report of the guard, an answer, a due extension, or a requested extension.
    for reports in [true, false] {
        let mut world = ScriptedWorld::new(3);
        let lock = world.hold(automatic("k"));
        world.run_until(FIRST_EXTENSION + 1);
        world.step_wall(700);
        assert!(!world.is_valid(lock));
        if reports {
            world.tell(0, Event::RunOut { lock });
        }
        world.run_for(2);
        let (at, cause) = world.lost(lock).unwrap();
        assert_eq!(at, if reports { 336 } else { 337 });
        assert_eq!(cause, LossCause::ClockJumped);
        world.finish();
    }
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(automatic("k"));
    world.run_until(100);
    world.step_wall(1000);
    world.run_until(400);
    assert_eq!(world.lost(lock), Some((FIRST_EXTENSION, LossCause::ClockJumped)));
    world.finish();

    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.run_until(100);
    world.step_wall(1000);
    world.extend(lock);
    assert_eq!(world.extended(lock), [(100, Extended::Lost(LossCause::ClockJumped))]);
    assert_eq!(world.sent(lock, Verb::Extend, 0), [0; 0]);
    world.finish();
}

#[test]
fn a_wall_clock_that_is_set_back_gives_nothing() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.step_wall(-5000);
    world.run_until(2000);
    assert_eq!(world.lost(lock), Some((TERM - MARGIN, LossCause::Expired)));
    world.finish();
}
