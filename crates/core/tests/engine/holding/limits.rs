//! The longest hold, extensions on request, and failures of a minority.

use super::*;

#[test]
fn nothing_is_extended_past_the_longest_hold() {
    let mut world = ScriptedWorld::new(3);
    let max_hold = Duration::from_millis(2000);
    let lock = world.hold(Request { max_hold, ..automatic("k") });
    world.run_until(1100);
    world.extend(lock);
    assert_eq!(world.extended(lock), [(1100, Extended::HoldLimit)]);
    world.run_until(3000);
    let (at, cause) = world.lost(lock).unwrap();
    assert_eq!((at, cause), (1001 + TERM - MARGIN, LossCause::HoldLimit));
    assert_eq!(world.sent(lock, Verb::Extend, 0), [FIRST_EXTENSION, 668, 1001]);
    world.finish();
}

/// The first guard may hold the lock for little more than a ttl. This limit also applies after a hand-over to a guard
/// with a longer limit. Guard and engine must report the same cause.
#[test]
fn a_lock_that_was_handed_over_ends_with_the_longest_hold_of_its_token() {
    let mut world = ScriptedWorld::new(3);
    let first = world.hold(Request { max_hold: Duration::from_millis(1100), ..automatic("k") });
    let second = world.acquire(Request { max_hold: Duration::from_secs(3600), ..automatic("k") });
    world.run_until(20);
    world.release(first, true);
    world.run_until(30);
    assert!(world.released(first).is_some_and(|(_, report)| report.handed_over));
    let mut hold = world.guard(second).hold.clone();
    world.run_until(2000);
    assert_eq!(world.lost(second).map(|(_, cause)| cause), Some(LossCause::HoldLimit));
    let seen = hold.latch_end(world.reading());
    assert_eq!(seen, Some(LossCause::HoldLimit));
    world.finish();
}

#[test]
fn an_extension_that_began_within_the_longest_hold_is_joined_past_it() {
    let mut world = ScriptedWorld::new(3);
    let max_hold = Duration::from_millis(1500);
    let lock = world.hold(Request { max_hold, ..request("k") });
    world.run_until(502);
    world.freeze(0, true);
    world.freeze(1, true);
    world.extend(lock);
    world.run_until(504);
    world.extend(lock);
    world.freeze(0, false);
    world.run_until(600);
    assert_eq!(world.extended(lock), [(505, Extended::Confirmed)]);
    world.extend(lock);
    assert_eq!(world.extended(lock)[1], (600, Extended::HoldLimit));
    world.finish();
}

#[test]
fn a_requested_extension_joins_the_round_in_flight_or_starts_one() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(automatic("k"));
    world.run_until(FIRST_EXTENSION + 1);
    world.extend(lock);
    world.run_until(400);
    assert_eq!(world.extended(lock), [(FIRST_EXTENSION + 2, Extended::Confirmed)]);
    world.extend(lock);
    world.run_until(410);
    assert_eq!(world.extended(lock)[1], (402, Extended::Confirmed));
    assert_eq!(world.sent(lock, Verb::Extend, 0), [FIRST_EXTENSION, 400]);
    world.run_until(740);
    assert_eq!(world.sent(lock, Verb::Extend, 0)[2], 733, "a third of the ttl after that one");
    world.finish();
}

#[test]
fn an_extension_in_flight_at_the_release_is_reported_and_no_other_follows() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(automatic("k"));
    world.run_until(FIRST_EXTENSION);
    world.extend(lock);
    world.release(lock, true);
    assert!(matches!(world.extended(lock)[..], [(FIRST_EXTENSION, Extended::Lost(_))]));
    world.run_until(3000);
    assert_eq!(world.sent(lock, Verb::Extend, 0), [FIRST_EXTENSION]);
    world.finish();
}

#[test]
fn a_lock_with_all_votes_outlives_the_loss_of_a_minority_and_a_missed_round() {
    let mut world = ScriptedWorld::new(5);
    let lock = world.hold(automatic("k"));
    world.run_until(300);
    world.down(0);
    world.down(1);
    (2..5).for_each(|node| world.freeze(node, true));
    world.run_until(420);
    (2..5).for_each(|node| world.freeze(node, false));
    world.run_until(5000);
    assert!(world.is_valid(lock) && world.votes(lock) == 3);
    world.up(0);
    world.up(1);
    world.run_until(6000);
    assert_eq!(world.votes(lock), 5, "nodes that are back are healed");
    world.finish();
}

#[test]
fn a_raised_quorum_is_needed_for_extending_too() {
    let mut world = ScriptedWorld::with(1, Quorum::new(5, 4).unwrap());
    let lock = world.hold(request("k"));
    world.run_until(100);
    (0..2).for_each(|node| world.freeze(node, true));
    world.extend(lock);
    world.run_until(200);
    assert!(matches!(world.extended(lock)[..], [(150, Extended::Unconfirmed(_))]));
    assert_eq!(150, 100 + NODE_TIMEOUT);
    assert_eq!(world.valid_for(lock), TERM - 200);
    assert!(world.guard(lock).hold.validity().has_vote_of(NodeId::new(4)));
    world.finish();
}
