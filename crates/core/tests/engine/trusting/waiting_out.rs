//! The quarantine (time without a vote) of a node that was restarted or emptied, and the clocks that measure it.

use super::*;

#[test]
fn short_lived_clients_wait_together() {
    let mut world = ScriptedWorld::guarded(&[rules(RestartGuard::Strict)]);
    for second in 0..=13 {
        world.run_until(second * SECOND);
        let client = another(&mut world);
        let lock = acquire_by(&mut world, client, Wait::Once);
        world.run_for(1);
        // The first client after the quarantine writes the new marker, which ends the wait, and gets its lock.
        let has_it = world.outcome(lock).is_some_and(|outcome| outcome.is_ok());
        assert_eq!(has_it, second > 12, "second {second}");
        assert_eq!(world.trusted(client) == 3, second > 12, "second {second}");
        world.leave(client);
    }
}

/// Even if one node is down, the first client that comes after the quarantine gets its lock.
#[test]
fn short_lived_clients_wait_together_although_a_node_is_dead() {
    for dead in 0..3 {
        let mut world = fresh();
        for second in 0..=13 {
            world.run_until(second * SECOND);
            let client = another(&mut world);
            // The dead node refuses the connection before the other nodes answer.
            (0..3).for_each(|node| world.set_one_way_of(client, node, 1));
            world.down(dead);
            let lock = acquire_by(&mut world, client, Wait::Once);
            world.run_for(20);
            let has_it = world.outcome(lock).is_some_and(|outcome| outcome.is_ok());
            assert_eq!(has_it, second > 12, "second {second}, node {dead} is dead");
            if !has_it {
                // The refusal reports the rest of the quarantine.
                let refusal = refusal(&world, lock);
                assert_eq!(refusal.kind, RefusalKind::NodesUntrusted, "second {second}");
                assert!(refusal.retry_after.is_some_and(|time| !time.is_zero()));
            }
            world.leave(client);
        }
    }
}

/// A shutdown waits a moment until the client has read how long a node has waited, and has written the new marker.
#[test]
fn a_shutdown_lets_an_adoption_finish() {
    use quorlock_core::Event;

    for answers in [true, false] {
        let mut world = settled();
        world.restart(2, false);
        let lock = acquire(&mut world, Wait::Once);
        assert_eq!(world.outcome(lock), Some(Ok(())));
        // The next client comes after node 2 has waited for 13 s. The client reads this only after it has its lock.
        assert!(world.has(2, ADOPTION));
        world.leave(0);
        world.run_for(13 * SECOND);
        let next = another(&mut world);
        world.hold_back(next, 2, |command| matches!(command, Command::Adopt { .. }));
        let lock = acquire_by(&mut world, next, Wait::Once);
        release(&mut world, lock);
        world.tell(next, Event::Close);
        let is_drained = |world: &ScriptedWorld| {
            world.log().iter().any(|(_, _, effect)| *effect == Effect::Drained)
        };
        assert!(!is_drained(&world), "the adoption has been asked for");
        if answers {
            world.let_go(next, 2);
            world.run_for(0);
            assert!(world.has(2, MARKER), "and the node is marked");
        } else {
            world.run_for(SECOND / 4);
        }
        assert!(is_drained(&world));
    }
}

#[test]
fn a_majority_that_comes_back_without_data_does_not_vote_for_a_rival() {
    let guards = [RestartGuard::Strict, RestartGuard::Strict, RestartGuard::Off];
    let mut world = ScriptedWorld::guarded(&guards.map(rules));
    (0..3).for_each(|node| world.set_one_way(node, 0));
    mark_all(&mut world);
    let lock = acquire(&mut world, Wait::Once);
    world.run_for(SECOND / 10);
    world.restart(0, false);
    world.restart(1, false);

    let rivals = acquire_by(&mut world, 1, Wait::Once);
    assert_eq!(refusal(&world, rivals).kind, RefusalKind::NodesUntrusted);
    world.leave(1);

    // A client without the restart guard counts the votes of both restarted nodes, and gets the lock.
    world.promise_nothing();
    let rivals = acquire_by(&mut world, 2, Wait::Once);
    assert_eq!(world.outcome(rivals), Some(Ok(())));
    assert_eq!(world.overlaps(), 1);
    release(&mut world, rivals);

    // The holder keeps its votes: answers of a node that has lost its data do not change them.
    extend(&mut world, lock);
    assert_eq!(world.lost(lock), None);
    world.run_for(9 * SECOND);
    assert!(world.lost(lock).is_some());
}

#[test]
fn a_node_that_comes_back_with_its_data_waits_by_its_uptime_alone() {
    let mut world = settled();
    (0..3).for_each(|node| world.restart(node, true));
    world.run_for(4 * SECOND);
    let lock = acquire(&mut world, Wait::For(Duration::from_secs(10)));
    let waiting = world.log().iter().find_map(|(_, _, effect)| match effect {
        Effect::Waiting { report, .. } => Some(report.clone()),
        _ => None,
    });
    let NodeOutcome::Failed(failure) = &waiting.unwrap().nodes[0].said else { panic!() };
    assert_eq!(failure.to_string(), "quarantined: started 4 s ago; its votes count in 9 s");
    world.run_for(8 * SECOND);
    assert_eq!(world.outcome(lock), None);
    world.run_for(SECOND + SECOND / 2);
    assert_eq!(world.outcome(lock), Some(Ok(())));
    assert_eq!(*marker(&world, 0).run_id, *run_id(&world, 0));
    assert!(marker(&world, 0).floor > 0, "counters may have been rolled back");
}

#[test]
fn an_uptime_by_a_clock_that_jumped_is_bounded_by_what_was_seen() {
    let mut world = settled();
    let first = acquire(&mut world, Wait::Once);
    // The client sees no event for one second, so to the client the restarts below may be one second old.
    world.skip(SECOND);
    for node in 0..3 {
        world.restart(node, true);
        started_ago(&mut world, node, 1001 * SECOND);
        world.forget_key(node, LOCKED);
    }
    acquire(&mut world, Wait::Once);
    release(&mut world, first);
    let third = acquire(&mut world, Wait::Once);
    assert_eq!(refusal(&world, third).kind, RefusalKind::NodesUntrusted);
    assert_eq!(world.trusted(0), 0, "it cannot have started before it was seen as another");
    world.run_for(12 * SECOND);
    assert_eq!(world.trusted(0), 3);
}

#[test]
fn an_uptime_below_zero_is_no_long_time() {
    // The servers' clocks were set back after a restart. So the servers report negative uptimes, and must not vote.
    let mut world = settled();
    for node in 0..3 {
        world.restart(node, true);
        started_ago(&mut world, node, -1000 * SECOND);
    }
    let lock = acquire(&mut world, Wait::Once);
    assert_eq!(refusal(&world, lock).kind, RefusalKind::NodesUntrusted);
    assert_eq!(world.trusted(0), 0);
    let info = world.server(0).info(world.now()).unwrap();
    assert!(info.contains("uptime_in_seconds:-1000\r\n"));
}

#[test]
fn data_that_vanishes_on_a_living_connection_is_noticed() {
    let mut world = settled();
    let lock = acquire(&mut world, Wait::Once);
    world.flush(0);
    world.flush(1);
    extend(&mut world, lock);
    assert_eq!(world.trusted(0), 1);
    assert_eq!(world.lost(lock), None, "nobody else can have them");
    world.run_for(30 * SECOND);
    assert_eq!(world.trusted(0), 3, "adopted again");
}

/// A node became a replica of its own replica for a moment, and took over that replica's older data. The marker in
/// this data is the node's own, so it does not show the loss. The server pushes that its data changed, so the client
/// verifies the node again before it counts another vote.
#[test]
fn data_that_are_replaced_on_a_living_connection_are_noticed_by_the_push() {
    let mut world = settled();
    let first = acquire(&mut world, Wait::Once);
    assert_eq!(world.outcome(first), Some(Ok(())));
    for node in 0..2 {
        world.forget_key(node, LOCKED);
        world.server_mut(node).run.promoted_at = Some(15);
        world.say_flushed(node);
    }
    let rivals = rival_tries(&mut world);
    assert!(!is_held(&world, rivals), "a new connection sees it");
    world.cancel(rivals);
    release(&mut world, first);
    let third = acquire(&mut world, Wait::Once);
    assert!(matches!(world.outcome(third), Some(Err(_))), "and so does the old one");
    assert_eq!(world.trusted(0), 1);
    // After a push without a loss of data, the client reads `INFO` and the marker once more, and votes count again.
    let mut world = settled();
    let first = acquire(&mut world, Wait::Once);
    (0..3).for_each(|node| world.say_flushed(node));
    let second = acquire(&mut world, Wait::For(Duration::from_secs(1)));
    release(&mut world, first);
    world.run_for(SECOND / 2);
    assert_eq!(world.outcome(second), Some(Ok(())));
    assert_eq!(world.trusted(0), 3);
}

/// After a flush push the client asks for the evidence at once, without waiting for its next call.
#[test]
fn a_flush_push_is_followed_by_an_examination() {
    use quorlock_core::Event;

    let mut world = settled();
    let lock = acquire(&mut world, Wait::Once);
    release(&mut world, lock);
    let before = examinations(&world);
    world.server_mut(0).run.promoted_at = Some(15);
    world.say_flushed(0);
    world.tell(0, Event::Pushed { node: NodeId::new(0), keys: None });
    world.run_for(0);
    assert_eq!(examinations(&world), before + 1);
    assert_eq!(world.trusted(0), 2);
}

/// A node was a replica for a moment. What prolongs a key without a guard waits for the examination that follows the
/// push, which bars it (S36).
#[test]
fn after_a_flush_push_a_node_is_sent_no_extension_without_a_guard() {
    use quorlock_core::Event;
    use quorlock_sim::scripted::asking::entry_of;

    let mut world = settled();
    let detached = world.detach_new(request("k"));
    let prolonged = |world: &mut ScriptedWorld| {
        let kept = |world: &ScriptedWorld| [0, 1, 2].map(|node| world.stored(node, "k").cloned());
        let before = kept(world);
        world.extend_entry(0, entry_of(&detached));
        world.run_for(10);
        let after = kept(world);
        [0, 1, 2].map(|node| before[node] != after[node])
    };
    assert_eq!(prolonged(&mut world), [true; 3], "the nodes are trusted");
    world.server_mut(0).run.promoted_at = Some(15);
    world.say_flushed(0);
    world.tell(0, Event::Pushed { node: NodeId::new(0), keys: None });
    assert_eq!(prolonged(&mut world), [false, true, true]);
}

/// An answer that does not change the trust in a node must not wake waiting calls. Otherwise two writers of a client
/// would pass their intent (the note that keeps readers out) to each other at each answer of a node in quarantine.
#[test]
fn an_answer_that_changes_no_trust_wakes_no_call() {
    use quorlock_core::Event;

    let mut world = fresh();
    let lock = acquire(&mut world, Wait::For(Duration::from_secs(60)));
    world.run_for(200);
    let reports = world.retried(lock).len();
    assert!(reports > 0, "the nodes are new");
    for look in 0..10 {
        let (lock, timeout) = (LockId(1000 + look), Duration::from_millis(50));
        world.tell(
            0,
            Event::Inspect { lock, keys: LOCKED.into(), timeout, connect_timeout: timeout },
        );
        world.run_for(1);
    }
    assert_eq!(world.retried(lock).len(), reports);
}

/// A release says of a vanished key whether it vanished with all data. Otherwise the node may have voted for another
/// client after the key was gone.
#[test]
fn a_key_is_lost_with_all_data_only_if_the_client_heard_of_that_loss() {
    use quorlock_core::{Event, NodeReleased};

    let push = |world: &mut ScriptedWorld, node| {
        world.say_flushed(node);
        world.tell(0, Event::Pushed { node: NodeId::new(node), keys: None });
    };
    let flush = move |world: &mut ScriptedWorld, node| {
        world.flush(node);
        push(world, node);
    };
    let delete = |world: &mut ScriptedWorld, node| {
        world.forget_key(node, LOCKED);
        world.forget_key(node, MARKER);
    };
    let notice = |world: &mut ScriptedWorld, node: usize| {
        world.acquire(Request { wait: Wait::Once, ..request(&format!("of {node}")) });
        world.run_for(0);
    };
    type Fault<'a> = &'a dyn Fn(&mut ScriptedWorld, usize);
    let faults: [(&str, Fault<'_>, NodeReleased); 7] = [
        ("a flush", &flush, NodeReleased::LostWithData),
        ("another run", &|world, node| world.restart(node, false), NodeReleased::LostWithData),
        ("one key after the other", &delete, NodeReleased::LostEarly),
        (
            "the same, and then a new connection to the same run",
            &|world, node| {
                delete(world, node);
                world.reconnect(node);
            },
            NodeReleased::LostEarly,
        ),
        (
            "the same, and then a flush",
            &|world, node| {
                delete(world, node);
                notice(world, node);
                flush(world, node);
            },
            NodeReleased::LostEarly,
        ),
        (
            "a flush, and then a new marker that the client has read",
            &|world, node| {
                flush(world, node);
                world.run_for(0);
                mark_all(world);
                world.run_for(3 * SECOND);
            },
            NodeReleased::LostEarly,
        ),
        (
            "the key alone, and a push of other data",
            &|world, node| {
                world.forget_key(node, LOCKED);
                push(world, node);
            },
            NodeReleased::LostEarly,
        ),
    ];
    for (name, fault, expected) in faults {
        let mut world = settled();
        let lock = acquire(&mut world, Wait::Once);
        (0..2).for_each(|node| fault(&mut world, node));
        world.run_for(0);
        world.release(lock, true);
        world.run_for(100);
        let (_, report) = world.released(lock).expect("the release has ended");
        assert_eq!(report.nodes[..2], [expected.clone(), expected], "{name}");
    }
}
