//! Intents (notes of a waiting writer on the nodes): how long and for which keys they keep readers out.

use super::*;

fn three_clients() -> ScriptedWorld {
    ScriptedWorld::with(3, Quorum::majority(3).expect("three nodes"))
}

/// Whether all nodes have the intents of these keys.
fn announced(world: &ScriptedWorld, keys: &[&str]) -> bool {
    let has = |node: usize, key: &&str| world.has(node, &format!("quorlock:intent:{key}"));
    (0..3).all(|node| keys.iter().all(|key| has(node, key)))
}

#[test]
fn a_key_that_is_free_keeps_the_intent_while_readers_leave_another() {
    let mut world = three_clients();
    let [a, b] = ["a", "b"].map(|key| world.acquire_by(1, reader(key)));
    world.run_for(20);
    let writer = world.acquire(several(&["a", "b"]));
    world.run_for(100);
    assert!(announced(&world, &["a", "b"]));
    world.release(a, false);
    let late = world.acquire_by(2, reader("a"));
    for _ in 0..2000 {
        world.run_for(1);
        assert!(announced(&world, &["a", "b"]));
    }
    assert!(world.granted_at(late).is_none() && world.granted_at(writer).is_none());
    world.release(b, false);
    world.run_for(50);
    assert!(world.is_valid(writer) && world.granted_at(late).is_none());
    world.release(writer, false);
    world.run_for(300);
    assert!(world.is_valid(late));
    world.finish();
}

/// The intent stays although one node has another program's key. The test tries each node, each ttl, each type of key.
#[test]
fn a_foreign_key_on_a_minority_of_nodes_ends_no_intent() {
    let text = Some(&b"foreign"[..]);
    for node in 0..3 {
        for (value, ttl_ms) in [(text, None), (text, Some(20_000)), (None, None)] {
            let mut world = three_clients();
            world.occupy_with(node, "k", value, ttl_ms);
            let held = world.acquire_by(1, reader("k"));
            world.run_for(20);
            let writer = world.acquire(automatic("k"));
            world.run_for(100);
            for _ in 0..100 {
                world.run_for(10);
                assert!(announced(&world, &["k"]), "{ttl_ms:?} on node {node}");
            }
            world.release(held, false);
            let late = world.acquire_by(2, reader("k"));
            world.run_for(100);
            assert!(world.is_valid(writer), "{ttl_ms:?} on node {node}");
            assert!(world.granted_at(late).is_none());
        }
    }
}

/// Another program's keys on two of three nodes block the writer, so it must withdraw its intents and let readers in.
#[test]
fn an_intent_ends_where_a_quorum_of_one_key_is_out_of_reach() {
    let mut world = three_clients();
    let _held = world.acquire_by(1, reader("a"));
    world.run_for(20);
    let writer = world.acquire(several(&["a", "b"]));
    world.run_for(100);
    assert!(announced(&world, &["a", "b"]));
    world.occupy(0, "b", b"foreign", None);
    world.run_for(2000);
    assert!(announced(&world, &["a", "b"]), "one is a minority");
    world.occupy(2, "b", b"foreign", None);
    world.run_for(2000);
    for node in 0..3 {
        assert!(!world.has(node, "quorlock:intent:a") && !world.has(node, "quorlock:intent:b"));
    }
    assert!(world.granted_at(writer).is_none());
    world.finish();
}

/// Writers of two processes wait. When one of them gives up and deletes its intent, the other must set its own intent
/// before a reader gets the lock.
#[test]
fn when_another_process_takes_its_intent_back_the_next_one_is_there_at_once() {
    let mut world = three_clients();
    let held = world.acquire_by(1, reader("k"));
    world.run_for(20);
    let gives_up = world.acquire_by(2, waiting("k", 700));
    world.run_for(50);
    let writer = world.acquire(automatic("k"));
    let late = world.acquire_by(1, reader("k"));
    world.run_for(1500);
    assert!(world.refused(gives_up).is_some());
    assert!(announced(&world, &["k"]) && world.granted_at(late).is_none());
    // The intent is also set again after a node has lost its keys.
    world.promise_nothing();
    world.flush(0);
    world.tell(0, Event::Pushed { node: NodeId::new(0), keys: None });
    world.run_for(10);
    assert!(world.has(0, "quorlock:intent:k"));
    world.release(held, false);
    world.run_for(100);
    assert!(world.is_valid(writer));
}

/// While the writer pauses, another call of its process tries and gives up. The intent must stay.
#[test]
fn a_writer_of_one_key_that_stepped_aside_has_its_intent_back() {
    let mut world = three_clients();
    let _held = world.acquire_by(1, reader("k"));
    world.run_for(20);
    let mut patient = automatic("k");
    let long = Duration::from_secs(5);
    patient.retry.delay = Delay::Between { min: long, max: long };
    let patient = world.acquire(patient);
    world.run_for(500);
    assert!(announced(&world, &["k"]));
    let between = world.acquire(waiting("k", 300));
    for _ in 0..2000 {
        world.run_for(1);
        assert!(announced(&world, &["k"]));
    }
    assert!(world.refused(between).is_some() && world.granted_at(patient).is_none());
    // The paused writer does not block other calls of its process.
    let next = world.acquire(waiting("k", 300));
    world.run_for(200);
    assert!(!world.sent(next, Verb::Acquire, 0).is_empty());
    world.finish();
}

/// One node has another program's key for an hour. The call must try when the other nodes' keys expire, without a push.
#[test]
fn a_foreign_key_that_lives_long_puts_off_nobody() {
    for node in 0..3 {
        let mut world = three_clients();
        world.occupy(node, "k", b"foreign", Some(3_600_000));
        let crashed = world.acquire_by(1, request("k"));
        world.run_for(20);
        (0..3).for_each(|node| world.set_push_way(node, 3_600_000));
        let waits = world.acquire(automatic("k"));
        world.run_for(TTL + 600);
        assert!(world.granted_at(crashed).is_some() && world.is_valid(waits), "node {node}");
    }
}
