//! Calls of one process, by readers or for several keys: a call that waits must not block other calls.

use super::*;

fn attempts_in(world: &mut ScriptedWorld, ms: i64) -> usize {
    let is_attempt = |it: &Command| matches!(it, Command::Acquire { form: AcquireForm::Plain, .. });
    let before = count(world, 0, is_attempt);
    world.run_for(ms);
    count(world, 0, is_attempt) - before
}

/// Another process reads key `a`. The call for both keys waits and retries rarely. A call for `b` does not wait.
#[test]
fn a_set_that_waits_for_readers_keeps_nobody_waiting_and_does_not_hurry() {
    let mut world = two_clients(3);
    let _held = world.acquire_by(1, reader("a"));
    world.run_for(20);
    let both = world.acquire(several(&["a", "b"]));
    world.run_for(100);
    let b = world.acquire(automatic("b"));
    world.run_for(30);
    assert!(world.granted_at(b).is_some());
    // An attempt sends three commands, one to each node.
    let attempts = attempts_in(&mut world, 1000) / 3;
    assert!(attempts <= 25, "{attempts}");
    assert!(world.granted_at(both).is_none());
    world.finish();
}

#[test]
fn sets_that_overlap_take_turns_and_do_not_wake_each_other() {
    let mut world = two_clients(3);
    let held = world.acquire_by(1, reader("a"));
    world.run_for(20);
    let sets = ["b", "c", "d"].map(|other| world.acquire(several(&["a", other])));
    world.run_for(200);
    let attempts = attempts_in(&mut world, 1000) / 3;
    assert!(attempts <= 60, "{attempts}");
    world.release(held, false);
    for _ in 0..20 {
        world.run_for(200);
        let held = sets.iter().find(|it| world.find(**it).is_some_and(|guard| !guard.is_released));
        if let Some(lock) = held.copied() {
            world.release(lock, false);
        }
    }
    assert!(sets.iter().all(|it| world.granted_at(*it).is_some()));
    world.finish();
}

/// Two calls pause, because another process holds `a` and `d`. A third call wants `b` and `c`, and must not wait.
#[test]
fn two_sets_that_pause_make_way_for_a_third_between_them() {
    let mut world = two_clients(3);
    let _others = ["a", "d"].map(|key| world.acquire_by(1, automatic(key)));
    world.run_for(20);
    let _pausing = [["a", "b"], ["c", "d"]].map(|keys| world.acquire(several(&keys)));
    world.run_for(100);
    let third = world.acquire(several(&["b", "c"]));
    world.run_for(100);
    assert!(world.granted_at(third).is_some());
    world.finish();
}

#[test]
fn a_key_that_comes_free_is_had_although_a_set_pauses_at_the_other() {
    let mut world = two_clients(3);
    let _held = world.acquire_by(1, automatic("a"));
    let c = world.acquire(automatic("c"));
    world.run_for(20);
    let _pausing = world.acquire(several(&["a", "b"]));
    world.run_for(60);
    let waits = world.acquire(several(&["b", "c"]));
    world.run_for(20);
    world.release(c, false);
    world.run_for(60);
    assert!(world.granted_at(waits).is_some());
    world.finish();
}

/// Commands to nodes 1 and 2 fail, because both names lead to one server. Without the restart guard, the client treats
/// this like any other failure of two of three nodes: it refuses the call.
#[test]
fn one_server_twice_ends_a_readers_call_without_the_restart_guard() {
    for (wait, at_most) in [(Wait::Once, 100), (Wait::For(Duration::from_secs(2)), 2100)] {
        let mut world = two_clients(3);
        [1, 2].into_iter().for_each(|node| world.refuse(node, Some(FailureKind::SameServer)));
        let call = world.acquire(Request { wait, ..reader("k") });
        world.run_for(at_most);
        assert!(world.refused(call).is_some(), "{wait:?}");
        [1, 2].into_iter().for_each(|node| world.refuse(node, None));
        let next = world.acquire(automatic("k"));
        world.run_for(100);
        assert!(world.granted_at(next).is_some(), "nothing is in the way any more");
        world.finish();
    }
}

#[test]
fn a_set_that_yielded_tries_when_all_but_a_silent_node_have_pushed() {
    let mut world = ScriptedWorld::with(2, Quorum::majority(5).expect("five nodes"));
    let held = world.acquire_by(1, automatic("a"));
    world.run_for(20);
    let both = world.acquire(several(&["a", "b"]));
    world.run_for(60);
    let b = world.acquire(automatic("b"));
    world.run_for(20);
    world.release(b, false);
    world.freeze(0, true);
    world.run_for(40);
    world.release(held, false);
    world.run_for(500);
    assert!(world.granted_at(both).is_some());
    world.freeze(0, false);
    world.finish();
}
