//! Nodes that a client refuses because of their answers, and the operator's settings about nodes.

use super::*;

#[test]
fn a_client_with_another_list_learns_both_lists() {
    let fewer = Cluster::new(["a", "b"], 2, MAX_TTL);
    let mut world = with(Rules { cluster: fewer, ..rules(RestartGuard::Strict) });
    mark_all(&mut world);
    let lock = acquire(&mut world, Wait::For(Duration::from_secs(60)));
    assert_eq!(refusal(&world, lock).kind, RefusalKind::NodesUntrusted);
    let failure = failure(&world, lock, 0);
    assert_eq!(failure.kind(), FailureKind::OtherConfiguration);
    let text = failure.to_string();
    assert!(text.contains("is_marked: true"), "{text}");
    for settings in ["nodes=a,b,c quorum=2", "nodes=a,b quorum=2"] {
        assert!(text.contains(settings), "{text}");
    }
    assert!(!world.has(0, ADOPTION), "nothing is overwritten");
}

#[test]
fn an_adoption_for_others_is_not_taken_over() {
    let mut world = fresh();
    let others = Cluster::new(["a", "b"], 2, MAX_TTL);
    let run_id = run_id(&world, 1).into();
    let others = Marker { cluster: others, run_id, promoted_at: -1, floor: 0 };
    let text = Adoption { marker: others, wait_ms: 1 }.to_string();
    write(&mut world, 1, ADOPTION, &text);
    let written = world.stored(1, ADOPTION).cloned();
    let lock = acquire(&mut world, Wait::For(Duration::from_secs(60)));
    assert!(failures(&world, lock).contains(&FailureKind::OtherConfiguration));
    assert_eq!(refusal(&world, lock).retry_after, None, "time does not mend it");
    assert_eq!(world.stored(1, ADOPTION).cloned(), written);
}

#[test]
fn one_server_under_two_names_is_refused() {
    let mut world = settled();
    let first = world.server(0).clone();
    world.replace(1, first);
    let lock = acquire(&mut world, Wait::For(Duration::from_secs(60)));
    assert_eq!(refusal(&world, lock).kind, RefusalKind::NodesUntrusted);
    let duplicates = failures(&world, lock);
    assert_eq!(duplicates.iter().filter(|kind| **kind == FailureKind::SameServer).count(), 2);
    let lock = acquire(&mut world, Wait::Once);
    assert_eq!(refusal(&world, lock).kind, RefusalKind::NodesUntrusted);
}

#[test]
fn replicas_and_nodes_that_evict_are_refused_and_a_minority_of_them_does_no_harm() {
    let mut world = settled();
    world.say(0, "role", "slave");
    let lock = acquire(&mut world, Wait::Once);
    assert_eq!((world.outcome(lock), world.trusted(0)), (Some(Ok(())), 2));
    release(&mut world, lock);
    world.say(1, "maxmemory", "1");
    world.say(1, "maxmemory_policy", "allkeys-\u{1b}[2Jlru");
    world.run_for(20 * SECOND);
    assert_eq!(world.trusted(0), 1, "noticed although nobody asked");
    let lock = acquire(&mut world, Wait::For(Duration::from_secs(3)));
    world.run_for(4 * SECOND);
    assert_eq!(refusal(&world, lock).kind, RefusalKind::NodesUntrusted);
    let failed = failure(&world, lock, 1).to_string();
    assert!(failed.contains("Evicts(\"allkeys-"), "{failed}");
    world.say(1, "maxmemory_policy", "noeviction");
    let lock = acquire(&mut world, Wait::For(Duration::from_secs(5)));
    world.run_for(3 * SECOND);
    assert_eq!(world.outcome(lock), Some(Ok(())), "mended while it waited");
}

#[test]
fn a_promoted_replica_is_adopted_although_its_data_and_its_uptime_say_otherwise() {
    let mut world = settled();
    (0..3).for_each(|node| world.server_mut(node).run.promoted_at = Some(15));
    let lock = acquire(&mut world, Wait::Once);
    assert_eq!(failures(&world, lock), [FailureKind::Quarantined; 3]);
    world.run_for(13 * SECOND + SECOND / 2);
    let lock = acquire(&mut world, Wait::Once);
    assert_eq!(world.outcome(lock), Some(Ok(())));
    assert_eq!(marker(&world, 0).promoted_at, 15);
}

#[test]
fn a_node_that_turns_read_only_and_back_is_examined_again() {
    let mut world = settled();
    acquire(&mut world, Wait::Once);
    assert_eq!(world.trusted(0), 3);
    // Only the error of the call for lock `jobs` makes the client ask for the evidence (`INFO`, marker) here.
    world.server_mut(0).health = Health::ReadOnly(FailureKind::ReadOnly);
    let before = examinations(&world);
    world.acquire(Request { wait: Wait::Once, ..request("jobs") });
    world.run_for(0);
    assert_eq!((examinations(&world), world.trusted(0)), (before + 1, 2));
}

#[test]
fn an_observer_writes_nothing_and_takes_every_vote() {
    let mut world = with(rules(RestartGuard::Observe));
    world.server_mut(0).run.evicts = true;
    write(&mut world, 1, MARKER, "quorlock 7");
    world.server_mut(2).run.id = world.server(0).run.id;
    let lock = acquire(&mut world, Wait::Once);
    assert_eq!(world.outcome(lock), Some(Ok(())));
    let writes =
        |command: &Command| matches!(command, Command::Adopt { .. } | Command::Mark { .. });
    assert!(!world.orders(0).any(|(_, command)| writes(command)));
    assert!(is_refused_as(&world, 1, FailureKind::OtherConfiguration));
}

#[test]
fn a_durable_node_is_excused_from_its_uptime_and_nothing_else() {
    let durable = (0..3).map(NodeId::new).collect();
    let (on, off) = (("aof_enabled", "1"), ("aof_enabled", "0"));
    let always = ("appendfsync", "always");
    for (log, outcome) in [
        (&[on][..], true),
        (&[on, always, ("no-appendfsync-on-rewrite", "no")], true),
        (&[off], false),
        (&[on, ("appendfsync", "everysec")], false),
        (&[on, always, ("no-appendfsync-on-rewrite", "yes")], false),
    ] {
        let mut world = with(Rules { durable, ..rules(RestartGuard::Strict) });
        for node in 0..3 {
            let old = "old".into();
            let marker = Marker { cluster: cluster(), run_id: old, promoted_at: -1, floor: 7 };
            mark(&mut world, node, &marker);
            started_ago(&mut world, node, 0);
            // `INFO` reports these settings. Some contradict the operator's setting that the node is durable.
            log.iter().for_each(|(field, value)| world.say(node, field, value));
        }
        world.run_for(SECOND);
        let lock = acquire(&mut world, Wait::For(Duration::from_secs(3)));
        world.run_for(SECOND / 2);
        assert_eq!(world.outcome(lock) == Some(Ok(())), outcome, "{log:?}");
        if !outcome {
            let Some(TrustState::Quarantined { why, .. }) =
                world.engine(0).trust_state(NodeId::new(0))
            else {
                panic!("{log:?}: not in quarantine")
            };
            assert!(why.contains("declared to forget nothing, but it has "), "{why}");
        }
        if outcome {
            assert_eq!(marker(&world, 0).floor, 7, "nothing was rolled back");
        }
    }
}

/// A late answer reports a recent uptime. If the client added the delay to this uptime, the run would seem too old.
#[test]
fn an_answer_that_comes_late_does_not_shorten_the_quarantine() {
    let mut world = settled();
    (0..3).for_each(|node| world.restart(node, true));
    (1..3).for_each(|node| world.lose(0, node, true));
    world.run_for(5 * SECOND);
    // The server receives the question, is frozen, and then reports an uptime of nine seconds. The client is busy
    // during this time, because otherwise the question would time out.
    world.freeze(0, true);
    world.sleep(0, 4 * SECOND);
    acquire(&mut world, Wait::Forever);
    world.run_for(4 * SECOND - 1);
    world.skip(1);
    world.freeze(0, false);
    world.run_for(0);
    let trust_state = world.engine(0).trust_state(NodeId::new(0));
    assert!(
        matches!(trust_state, Some(TrustState::Quarantined { .. })),
        "it was heard: {trust_state:?}"
    );
    world.run_for(3 * SECOND);
    assert_eq!(world.trusted(0), 0, "it has been there for 12 s");
    world.run_for(3 * SECOND);
    assert_eq!(world.trusted(0), 1);
}

#[test]
fn an_observer_does_not_ask_all_the_time() {
    let mut world = with(rules(RestartGuard::Observe));
    mark_all(&mut world);
    // The nodes were restarted long ago, and no client has set a new marker (which names the server's run) since then.
    for node in 0..3 {
        world.restart(node, true);
        started_ago(&mut world, node, 100 * SECOND);
    }
    let lock = acquire(&mut world, Wait::Once);
    assert_eq!(world.outcome(lock), Some(Ok(())));
    (0..3).for_each(|node| world.set_one_way(node, 1));
    world.run_for(10 * SECOND);
    let count = examinations(&world);
    assert!(count <= 3 * 6, "{count} examinations in ten seconds");
}

/// Most of the quarantine (the wait of a restarted node) is over, so a call that can wait for the rest is not refused.
#[test]
fn a_call_with_time_for_the_rest_of_an_adoption_waits_for_it() {
    let mut world = fresh();
    acquire(&mut world, Wait::Once);
    world.leave(0);
    world.run_for(10 * SECOND);
    let second = another(&mut world);
    let lock = acquire_by(&mut world, second, Wait::For(Duration::from_secs(5)));
    assert_eq!(world.outcome(lock), None);
    world.run_for(3 * SECOND);
    assert_eq!(world.outcome(lock), Some(Ok(())));
}

#[test]
fn a_floor_is_set_on_a_node_that_says_itself_that_it_keeps_no_log() {
    let durable = NodeSet::only(NodeId::new(0));
    let mut world = with(Rules { durable, ..rules(RestartGuard::Strict) });
    mark_all(&mut world);
    // The operator declared node 0 durable, but it reports that it keeps no log. So it may have lost its counters.
    world.restart(0, true);
    acquire(&mut world, Wait::For(Duration::from_secs(20)));
    world.run_for(16 * SECOND);
    assert_eq!(*marker(&world, 0).run_id, *run_id(&world, 0));
    assert!(marker(&world, 0).floor > 0, "counters may have been rolled back");
}

#[test]
fn a_proxy_that_refuses_info_is_reported() {
    let mut world = settled();
    (0..3).for_each(|node| world.refuse_info(node, "ERR unsupported command 'INFO'"));
    let lock = acquire(&mut world, Wait::Once);
    assert_eq!(refusal(&world, lock).kind, RefusalKind::NodesUntrusted);
    let text = failure(&world, lock, 0).to_string();
    assert!(text.starts_with("refused as unsafe: NoInfo(\"ERR unsupp"), "{text}");
}
