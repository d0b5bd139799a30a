//! Locks with several keys, readers and writers.

mod in_the_way;
mod intents;

use std::time::Duration;

use quorlock_core::Wait;
use quorlock_core::{
    AcquireForm, Command, Delay, Effect, Event, Extended, FailureKind, Key, Keys, LockId,
    LossCause, Mode, NodeId, Quorum, RefusalKind, Request, Verb,
};
use quorlock_sim::scripted::ScriptedWorld;
use quorlock_sim::scripted::asking::{TTL, automatic, fenced, once, request, waiting};
use quorlock_sim::time::MS;

fn several(keys: &[&str]) -> Request {
    let keys = Keys::new(keys.iter().map(|key| (*key).into())).expect("some keys, each once");
    Request { keys, ..automatic("k") }
}

fn reader(key: &str) -> Request {
    Request { mode: Mode::Shared, ..automatic(key) }
}

fn two_clients(nodes: usize) -> ScriptedWorld {
    ScriptedWorld::with(2, Quorum::majority(nodes).expect("there are nodes"))
}

/// The number of commands that the client has sent and for which `is_it` holds.
fn count(world: &ScriptedWorld, client: usize, is_it: fn(&Command) -> bool) -> usize {
    world.orders(client).filter(|(_, command)| is_it(command)).count()
}

#[test]
fn a_lock_of_two_keys_is_one_command_per_node() {
    let mut world = two_clients(3);
    let both = world.acquire(several(&["b", "a"]));
    world.run_for(10);
    assert_eq!(world.votes(both), 3);
    for node in 0..3 {
        assert!(world.has(node, "a") && world.has(node, "b"));
    }
    let tries = world.acquire_by(1, once("b"));
    world.run_for(10);
    assert!(world.refused(tries).is_some_and(|(_, why)| why.kind == RefusalKind::Contended));
    world.release(both, false);
    world.run_for(10);
    assert!((0..3).all(|node| !world.has(node, "a") && !world.has(node, "b")));
    world.finish();
}

/// A call for several keys waits for the key that another caller holds, and does not block calls for its other keys.
#[test]
fn a_set_waits_at_the_key_that_is_held_and_holds_nobody_back_at_the_others() {
    let mut world = ScriptedWorld::new(3);
    let a = world.hold(automatic("a"));
    let both = world.acquire(several(&["a", "b"]));
    world.run_for(5);
    let b = world.acquire(automatic("b"));
    world.run_for(20);
    assert!(world.granted_at(b).is_some() && world.granted_at(both).is_none());
    // Key `a` is free now. The later call for `b` must wait until the earlier call for both keys has had its lock.
    let later = world.acquire(automatic("b"));
    world.release(a, false);
    world.run_for(20);
    assert!(world.granted_at(later).is_none() && world.granted_at(both).is_none());
    world.release(b, false);
    world.run_for(50);
    assert!(world.granted_at(both).is_some() && world.granted_at(later).is_none());
    world.release(both, false);
    world.run_for(50);
    assert!(world.granted_at(later).is_some());
    world.finish();
}

/// Another process holds key `a`. While the set (a call for both keys) pauses, calls of its own process can get `b`.
#[test]
fn a_set_that_was_refused_steps_aside_and_comes_back() {
    let mut world = two_clients(3);
    let foreign = world.acquire_by(1, automatic("a"));
    world.run_for(10);
    let both = world.acquire(several(&["a", "b"]));
    world.run_for(50);
    assert!(world.granted_at(both).is_none());
    for _ in 0..5 {
        let b = world.acquire(automatic("b"));
        world.run_for(20);
        assert!(world.granted_at(b).is_some(), "it does not wait behind the set");
        world.release(b, false);
    }
    world.release(foreign, false);
    world.run_for(500);
    assert!(world.granted_at(both).is_some());
    world.finish();
}

#[test]
fn a_set_is_handed_over_to_the_same_set_alone() {
    let mut world = ScriptedWorld::new(3);
    let first = world.hold(several(&["a", "b"]));
    let same = world.acquire(several(&["b", "a"]));
    let other = world.acquire(several(&["a", "c"]));
    world.release(first, false);
    world.run_for(5);
    assert_eq!(world.guard(same).handover_count, 1);
    world.release(same, false);
    world.run_for(50);
    assert_eq!(world.guard(other).handover_count, 0);
    world.finish();
}

#[test]
fn one_key_that_is_gone_takes_the_vote_and_healing_brings_it_back() {
    let mut world = ScriptedWorld::new(5);
    world.promise_nothing();
    let both = world.hold(several(&["a", "b"]));
    world.run_for(10);
    world.forget_key(0, "a");
    world.extend(both);
    world.run_for(20);
    assert!(world.has(0, "a") && world.votes(both) == 5, "healed");
    for node in 0..3 {
        world.forget_key(node, "b");
    }
    world.extend(both);
    world.run_for(20);
    assert!(world.lost(both).is_some_and(|(_, cause)| cause == LossCause::KeyGone));
    world.run_for(50);
    assert!((0..5).all(|node| !world.has(node, "a") && !world.has(node, "b")), "all released");
    world.finish();
}

#[test]
fn fences_of_overlapping_sets_rise_for_each_key() {
    let mut world = two_clients(3);
    let mut last = 0;
    for keys in [&["a"][..], &["a", "b"], &["b"], &["b", "c"], &["a", "b", "c"], &["c"]] {
        let lock = world.hold(fenced(several(keys)));
        assert!(world.fence(lock) > last, "{keys:?}");
        last = world.fence(lock);
        world.release(lock, false);
        world.run_for(300);
    }
    world.finish();
}

#[test]
fn readers_hold_together_and_a_writer_waits_for_all_of_them() {
    let mut world = two_clients(3);
    let readers = [0, 1, 0].map(|client| world.acquire_by(client, reader("k")));
    world.run_for(20);
    assert!(readers.iter().all(|it| world.votes(*it) == 3));
    let writer = world.acquire_by(1, automatic("k"));
    for it in readers {
        world.run_for(50);
        assert!(world.granted_at(writer).is_none());
        world.release(it, false);
    }
    world.run_for(50);
    assert!(world.granted_at(writer).is_some());
    let late = world.acquire(reader("k"));
    world.run_for(50);
    assert!(world.granted_at(late).is_none());
    world.release(writer, false);
    world.run_for(200);
    assert!(world.granted_at(late).is_some());
    world.finish();
}

/// Readers of other processes acquire the lock in turn, so it is never free. The waiting writer must still get it soon.
#[test]
fn a_writer_that_waits_is_next_although_readers_keep_coming() {
    let mut world = ScriptedWorld::with(3, Quorum::majority(5).expect("five nodes"));
    let mut held: Vec<LockId> = vec![world.acquire_by(1, reader("k"))];
    world.run_for(20);
    let writer = world.acquire(automatic("k"));
    let mut rounds = 0;
    while world.granted_at(writer).is_none() {
        rounds += 1;
        assert!(rounds < 20, "it starves");
        held.push(world.acquire_by(1 + rounds % 2, reader("k")));
        world.run_for(30);
        let oldest = held.iter().position(|it| world.granted_at(*it).is_some());
        if let Some(place) = oldest {
            let oldest = held.remove(place);
            world.release(oldest, false);
        }
    }
    assert!(rounds <= 4, "{rounds}");
    assert!(count(&world, 0, |it| matches!(it, Command::Announce { .. })) > 0);
    assert!(count(&world, 0, |it| matches!(it, Command::Withdraw { .. })) > 0);
    world.release(writer, false);
    world.run_for(1500);
    assert!(held.iter().all(|it| world.granted_at(*it).is_some()));
    world.finish();
}

#[test]
fn an_intent_is_removed_when_its_writer_gives_up() {
    let mut world = two_clients(3);
    let held = world.acquire_by(1, reader("k"));
    world.run_for(20);
    let writer = world.acquire(waiting("k", 200));
    world.run_for(100);
    assert!((0..3).all(|node| world.has(node, "quorlock:intent:k")));
    let late = world.acquire_by(1, Request { wait: Wait::Once, ..reader("k") });
    world.run_for(10);
    assert!(world.refused(late).is_some(), "let in behind a writer that waits");
    world.run_for(150);
    assert!(world.refused(writer).is_some());
    assert!((0..3).all(|node| !world.has(node, "quorlock:intent:k")));
    let again = world.acquire_by(1, Request { wait: Wait::Once, ..reader("k") });
    world.run_for(10);
    assert!(world.granted_at(again).is_some());
    let _ = held;
    world.finish();
}

/// Two writers alternately try to lock key `k`, and share one intent (a note on nodes that keeps readers out). If each
/// writer removed an intent of its own after its attempt, readers would get the lock between the attempts.
#[test]
fn writers_of_one_process_share_the_intent_for_a_key_that_both_want() {
    let mut world = ScriptedWorld::with(3, Quorum::majority(3).expect("three nodes"));
    let held = [("k", 1), ("j", 2)].map(|(key, client)| world.acquire_by(client, reader(key)));
    world.run_for(20);
    let writers = [several(&["j", "k"]), automatic("k")].map(|request| world.acquire(request));
    world.run_for(3000);
    let ours: Key = "quorlock:intent:k".into();
    let mut attempts = [0, 0];
    for (_, command) in world.orders(0) {
        match command {
            Command::Acquire { keys, form: AcquireForm::Plain, .. } => {
                attempts[keys.len() - 1] += 1
            }
            Command::Withdraw { intents, .. } => assert!(!intents.contains(&ours)),
            _ => {}
        }
    }
    assert!(attempts.iter().all(|count| *count > 0), "it was the turn of both");
    assert!((0..3).all(|node| world.has(node, "quorlock:intent:k")));
    held.into_iter().for_each(|it| world.release(it, false));
    for _ in writers {
        world.run_for(500);
        let holds =
            writers.iter().find(|it| world.granted_at(**it).is_some() && world.is_valid(**it));
        world.release(*holds.expect("one of them"), false);
    }
    world.run_for(50);
    assert!((0..3).all(|node| !world.has(node, "quorlock:intent:k")));
    world.finish();
}

/// The calls `first` and `last` also need key `b`, which `between`, a call of the same process, holds. They could not
/// use key `a` yet, so they must not keep readers out of it.
#[test]
fn a_writer_that_waits_in_its_own_process_keeps_no_reader_waiting() {
    let mut world = two_clients(3);
    let _held = world.acquire_by(1, reader("a"));
    world.run_for(20);
    let first = world.acquire(several(&["a", "b"]));
    let between = world.acquire(automatic("b"));
    let last = world.acquire(several(&["a", "b"]));
    world.run_for(3000);
    assert!(world.is_valid(between), "nobody else holds it");
    assert!(world.granted_at(first).is_none() && world.granted_at(last).is_none());
    assert!((0..3).all(|node| !world.has(node, "quorlock:intent:a")));
    // Nested locks work: the holder of key `b` can acquire key `a` as a reader.
    let nested = world.acquire(reader("a"));
    world.run_for(300);
    assert!(world.granted_at(nested).is_some());
}

/// Two writers pause while a third writer tries. The third takes over their intents, and the two renew the intents when
/// it gives up.
#[test]
fn intents_go_with_the_turns_of_several_writers() {
    let mut world = two_clients(3);
    let held = ["b", "c"].map(|key| world.acquire_by(1, reader(key)));
    world.run_for(20);
    let both = [["a", "b"], ["c", "d"]].map(|keys| world.acquire(several(&keys)));
    world.run_for(100);
    let between = world.acquire(Request { wait: waiting("b", 500).wait, ..several(&["b", "c"]) });
    let announced = |world: &ScriptedWorld| {
        let keys = ["quorlock:intent:b", "quorlock:intent:c"];
        (0..3).all(|node| keys.iter().all(|key| world.has(node, key)))
    };
    for _ in 0..2000 {
        world.run_for(1);
        assert!(announced(&world));
    }
    assert!(world.refused(between).is_some());
    held.into_iter().for_each(|it| world.release(it, false));
    world.run_for(200);
    assert!(both.iter().all(|it| world.is_valid(*it)));
}

/// A call with a single attempt runs before the waiting writer, and must not remove the writer's intent.
#[test]
fn a_call_that_only_tries_leaves_the_intent_of_one_that_waits() {
    let mut world = two_clients(3);
    let held = world.acquire_by(1, reader("k"));
    world.run_for(20);
    let waits = world.acquire(several(&["j", "k"]));
    world.run_for(100);
    for _ in 0..50 {
        let tries = world.acquire(once("k"));
        world.run_for(10);
        assert!(world.refused(tries).is_some());
        assert!((0..3).all(|node| world.has(node, "quorlock:intent:k")));
    }
    world.release(held, false);
    world.run_for(100);
    assert!(world.is_valid(waits));
}

/// The call `reads` waits at `a` for the writer, and at `b` for the paused call `pauses`. After the downgrade, `pauses`
/// must let `reads` go first.
#[test]
fn after_a_downgrade_calls_that_must_step_aside_do() {
    let mut world = two_clients(3);
    let _foreign = world.acquire_by(1, automatic("c"));
    world.run_for(20);
    let writer = world.hold(automatic("a"));
    let pauses = world.acquire(several(&["b", "c"]));
    world.run_for(200);
    let reads = world.acquire(Request { mode: Mode::Shared, ..several(&["a", "b"]) });
    world.run_for(50);
    assert!(world.granted_at(pauses).is_none() && world.granted_at(reads).is_none());
    world.downgrade(writer);
    world.run_for(50);
    assert!(world.granted_at(reads).is_some());
}

/// The writer needs the votes of all three nodes, but its messages to node 2 are lost. So it must let readers in.
#[test]
fn a_writer_that_no_reader_keeps_waiting_lets_readers_in() {
    let mut world = ScriptedWorld::with(2, Quorum::new(3, 3).expect("all of three"));
    let held = world.acquire_by(1, reader("k"));
    world.run_for(20);
    let writer = world.acquire(automatic("k"));
    world.run_for(100);
    assert!((0..3).all(|node| world.has(node, "quorlock:intent:k")));
    world.lose(0, 2, true);
    world.run_for(50);
    world.release(held, false);
    world.run_for(100);
    let late = world.acquire_by(1, reader("k"));
    world.run_for(2 * TTL);
    assert!(world.granted_at(writer).is_none() && world.granted_at(late).is_some());
}

/// A shutdown waits until the intents, which keep readers out, are removed, but only briefly for a silent node.
#[test]
fn a_client_removes_its_intents_before_it_ends() {
    for is_silent in [false, true] {
        let mut world = two_clients(3);
        let _held = world.acquire_by(1, reader("k"));
        world.run_for(20);
        let writer = world.acquire(automatic("k"));
        world.run_for(200);
        assert!((0..3).all(|node| world.has(node, "quorlock:intent:k")));
        world.lose(0, 2, is_silent);
        world.tell(0, Event::Close);
        assert!(world.refused(writer).is_some());
        let drained = |world: &ScriptedWorld| {
            world.log().iter().any(|(.., effect)| *effect == Effect::Drained)
        };
        while !drained(&world) {
            world.run_for(1);
        }
        let took = world.now() / MS - world.refused(writer).expect("it was").0;
        assert!(if is_silent { (250..260).contains(&took) } else { took < 10 }, "{took}");
        assert!((0..2).all(|node| !world.has(node, "quorlock:intent:k")));
        assert!(is_silent || !world.has(2, "quorlock:intent:k"));
    }
}

#[test]
fn a_writer_that_waits_for_a_writer_leaves_no_intent() {
    let mut world = two_clients(3);
    let _held = world.acquire_by(1, automatic("k"));
    world.run_for(20);
    let _waits = world.acquire(automatic("k"));
    world.run_for(300);
    assert_eq!(count(&world, 0, |it| matches!(it, Command::Announce { .. })), 0);
    world.finish();
}

#[test]
fn a_writer_becomes_a_reader_and_lets_others_in_at_once() {
    let mut world = two_clients(3);
    let writer = world.hold(fenced(automatic("k")));
    world.run_for(10);
    let local = world.acquire(reader("k"));
    let other = world.acquire_by(1, reader("k"));
    world.run_for(50);
    assert!(world.granted_at(local).is_none() && world.granted_at(other).is_none());
    world.downgrade(writer);
    world.run_for(30);
    assert!(matches!(world.extended(writer)[..], [(_, Extended::Confirmed)]));
    assert!(world.is_valid(writer) && world.votes(writer) == 3);
    assert!(world.granted_at(local).is_some(), "in the same process at once");
    world.run_for(300);
    assert!(world.granted_at(other).is_some());
    for lock in [writer, local, other] {
        world.release(lock, false);
    }
    world.run_for(50);
    assert!((0..3).all(|node| !world.has(node, "k")));
    world.finish();
}

/// A node that misses the downgrade keeps the writer's key. The next extension converts the key to a reader's vote, and
/// the release then deletes it.
#[test]
fn a_node_that_was_away_is_brought_along_by_the_next_extension() {
    let mut world = two_clients(3);
    let writer = world.hold(automatic("k"));
    world.run_for(10);
    world.freeze(2, true);
    world.downgrade(writer);
    world.run_for(30);
    assert!(matches!(world.extended(writer)[..], [(_, Extended::Confirmed)]));
    world.freeze(2, false);
    world.run_for(800);
    assert!(world.is_valid(writer) && world.votes(writer) == 3);
    world.release(writer, false);
    world.run_for(50);
    assert!((0..3).all(|node| !world.has(node, "k")));
    world.finish();
}

#[test]
fn a_reader_that_crashed_keeps_a_writer_out_for_its_own_ttl() {
    let mut world = two_clients(3);
    let mut gone = reader("k");
    gone.automatic = false;
    let gone = world.acquire_by(1, gone);
    world.run_for(20);
    let writer = world.acquire(automatic("k"));
    world.run_for(TTL + 100);
    let granted = world.granted_at(writer).expect("the key has expired");
    assert!(granted <= world.granted_at(gone).unwrap() + TTL + 50, "{granted}");
    world.finish();
}

/// A writer waits for earlier readers of its own process, and later readers wait for the writer.
#[test]
fn in_one_process_readers_do_not_pass_a_writer() {
    let mut world = ScriptedWorld::new(3);
    let readers = [reader("k"), reader("k")].map(|it| world.acquire(it));
    let writer = world.acquire(automatic("k"));
    let late = world.acquire(reader("k"));
    let tries = world.acquire(Request { wait: Wait::Once, ..reader("k") });
    world.run_for(50);
    assert!(readers.iter().all(|it| world.granted_at(*it).is_some()));
    assert!(world.refused(tries).is_some_and(|(_, why)| why.kind == RefusalKind::BusyHere));
    readers.into_iter().for_each(|it| world.release(it, false));
    world.run_for(50);
    assert!(world.granted_at(writer).is_some() && world.granted_at(late).is_none());
    world.release(writer, false);
    world.run_for(300);
    assert!(world.granted_at(late).is_some());
    world.finish();
}

/// The caller may cancel its call in any phase. The call leaves no key, and the other calls continue.
#[test]
fn a_cancelled_call_makes_room_for_the_others() {
    let mut world = two_clients(3);
    let held = world.acquire_by(1, reader("k"));
    world.run_for(20);
    let writer = world.acquire(automatic("k"));
    world.run_for(60);
    let behind = world.acquire(reader("k"));
    world.run_for(20);
    assert!(world.granted_at(behind).is_none());
    world.cancel(writer);
    world.run_for(50);
    assert!(world.granted_at(behind).is_some());
    assert!((0..3).all(|node| !world.has(node, "quorlock:intent:k")));
    let _ = held;
    world.finish();
}
