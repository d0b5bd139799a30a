//! Nodes that are not trusted for what they say, and what an operator may say of them.

use super::*;

#[test]
fn who_has_another_list_is_told_so_with_both() {
    let mut scene = Scene::settled();
    let fewer = Cluster::new(["a", "b"], 2, MAX_TTL);
    scene.engine = engine(Rules { cluster: fewer, ..rules(RestartGuard::Strict) });
    scene.acquire(1, Wait::For(Duration::from_secs(60)));
    assert_eq!(scene.refusal(1).kind, RefusalKind::Unsafe);
    let NodeSaid::Failed(failure) = &scene.refusal(1).nodes[0].said else { panic!() };
    assert_eq!(failure.kind(), FailureKind::OtherConfiguration);
    let text = failure.to_string();
    assert!(text.contains("is_marked: true"), "{text}");
    for settings in ["nodes=a,b,c quorum=2", "nodes=a,b quorum=2"] {
        assert!(text.contains(settings), "{text}");
    }
    assert_eq!(scene.servers[0].adoption, None, "nothing is overwritten");
}

#[test]
fn an_adoption_for_others_is_not_taken_over() {
    let mut scene = Scene::with(rules(RestartGuard::Strict));
    let others = Cluster::new(["a", "b"], 2, MAX_TTL);
    let run_id = scene.servers[1].run_id().into();
    let text =
        Adoption { promoted_at: -1, floor: 0, cluster: others, run_id, wait_ms: 1 }.to_string();
    scene.servers[1].adoption = Some((text.clone(), 0));
    scene.acquire(1, Wait::For(Duration::from_secs(60)));
    assert!(scene.failures(1).contains(&FailureKind::OtherConfiguration));
    assert_eq!(scene.refusal(1).retry_after, None, "time does not mend it");
    assert_eq!(scene.servers[1].adoption, Some((text, 0)));
}

#[test]
fn one_server_under_two_names_is_refused() {
    let mut scene = Scene::settled();
    let marker = scene.servers[0].marker.clone();
    scene.servers[1].same_as = Some(0);
    scene.servers[1].marker = marker;
    scene.acquire(1, Wait::For(Duration::from_secs(60)));
    assert_eq!(scene.refusal(1).kind, RefusalKind::Unsafe);
    let twins = scene.failures(1);
    assert_eq!(twins.iter().filter(|kind| **kind == FailureKind::SameServer).count(), 2);
    scene.acquire(2, Wait::Once);
    assert_eq!(scene.refusal(2).kind, RefusalKind::Unsafe);
}

#[test]
fn replicas_and_nodes_that_evict_are_refused_and_a_minority_of_them_does_no_harm() {
    let mut scene = Scene::settled();
    scene.servers[0].role = "slave";
    scene.acquire(1, Wait::Once);
    assert_eq!((scene.outcome(1), scene.trusted()), (Some(Ok(())), 2));
    scene.tell(Event::Release { lock: LockId(1), report: false });
    scene.servers[1].policy = "allkeys-\u{1b}[2Jlru";
    scene.pass(20 * SECOND);
    assert_eq!(scene.trusted(), 1, "noticed although nobody asked");
    scene.acquire(2, Wait::For(Duration::from_secs(3)));
    scene.pass(4 * SECOND);
    assert_eq!(scene.refusal(2).kind, RefusalKind::Unsafe);
    let NodeSaid::Failed(failure) = &scene.refusal(2).nodes[1].said else { panic!() };
    let told = failure.to_string();
    assert!(told.contains("Evicts(\"allkeys-"), "{told}");
    scene.servers[1].policy = "noeviction";
    scene.acquire(3, Wait::For(Duration::from_secs(5)));
    scene.pass(3 * SECOND);
    assert_eq!(scene.outcome(3), Some(Ok(())), "mended while it waited");
}

#[test]
fn a_promoted_replica_is_adopted_although_its_data_and_its_uptime_say_otherwise() {
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.promoted = 15;
    }
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.failures(1), [FailureKind::Quarantined; 3]);
    scene.pass(13 * SECOND + SECOND / 2);
    scene.acquire(2, Wait::Once);
    assert_eq!(scene.outcome(2), Some(Ok(())));
    let marker = Marker::parse(scene.servers[0].marker.as_ref().unwrap()).unwrap();
    assert_eq!(marker.promoted_at, 15);
}

#[test]
fn a_node_that_turns_read_only_and_back_is_looked_at_again() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    let failure = quorlock_core::Failure::unsent(FailureKind::ReadOnly);
    let ticket = Ticket { lock: LockId(9), round: 1, verb: quorlock_core::Verb::Acquire };
    let marker = MarkerSeen::Text(scene.servers[0].marker.clone().unwrap().into());
    scene.servers[0].role = "slave";
    scene.tell(Event::Answered {
        node: NodeId::new(0),
        sent: at(0),
        proof: Proof::Seen { epoch: 1, flushes: 0, info: None, marker },
        answers: vec![(ticket, Answer::Failed(failure))],
    });
    assert_eq!(scene.trusted(), 2);
}

#[test]
fn who_only_looks_writes_nothing_and_takes_every_vote() {
    let mut scene =
        Scene::with(Rules { guard: RestartGuard::Observe, ..rules(RestartGuard::Strict) });
    scene.servers[0].policy = "allkeys-lru";
    let looks = |scene: &Scene| {
        scene
            .sent
            .iter()
            .all(|(_, command)| !matches!(command, Command::Adopt { .. } | Command::Mark { .. }))
    };
    scene.servers.iter_mut().for_each(|server| server.keys.clear());
    // A look at the adoption is no part of this scene.
    scene.mute = NodeSet::default();
    scene.servers[1].marker = Some(String::from("quorlock 7"));
    scene.servers[2].same_as = Some(0);
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.outcome(1), Some(Ok(())));
    assert!(looks(&scene));
    assert!(matches!(
        scene.engine.standing(NodeId::new(1)),
        Some(Standing::Refused(failure)) if failure.kind() == FailureKind::OtherConfiguration
    ));
}

#[test]
fn what_an_operator_says_of_a_node_waives_its_uptime_and_nothing_else() {
    let lasting = (0..3).map(NodeId::new).collect();
    for (log, outcome) in [
        ("aof_enabled:1", true),
        ("aof_enabled:1\nappendfsync:always\nno-appendfsync-on-rewrite:no", true),
        ("aof_enabled:0", false),
        ("aof_enabled:1\nappendfsync:everysec", false),
        ("aof_enabled:1\nappendfsync:always\nno-appendfsync-on-rewrite:yes", false),
    ] {
        let mut scene = Scene::with(Rules { lasting, ..rules(RestartGuard::Strict) });
        for server in &mut scene.servers {
            server.marker = Some(
                Marker { cluster: cluster(), run_id: "old".into(), promoted_at: -1, floor: 7 }
                    .to_string(),
            );
            server.started = 0;
        }
        scene.now = SECOND;
        // Its INFO may contradict it.
        scene.policy_of_log(log);
        scene.acquire(1, Wait::For(Duration::from_secs(3)));
        scene.pass(SECOND / 2);
        assert_eq!(scene.outcome(1) == Some(Ok(())), outcome, "{log}");
        if !outcome {
            let Some(Standing::Quarantined { why, .. }) = scene.engine.standing(NodeId::new(0))
            else {
                panic!("{log}: it waits")
            };
            assert!(why.contains("declared to forget nothing, but it has "), "{why}");
        }
        if outcome {
            let marker = scene.servers[0].marker.as_ref().unwrap();
            assert_eq!(Marker::parse(marker).unwrap().floor, 7, "nothing was rolled back");
        }
    }
}

impl Scene {
    /// What all servers say of their log, by way of a field that nothing else here uses.
    fn policy_of_log(&mut self, log: &'static str) {
        let policy: &'static str = format!("noeviction\n{log}").leak();
        self.servers.iter_mut().for_each(|server| server.policy = policy);
    }
}

/// What a server says of its uptime was so when it said it, not when it was asked.
#[test]
fn an_answer_that_comes_late_does_not_shorten_the_quarantine() {
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.restart(true, 0);
    }
    scene.mute = [1, 2].map(NodeId::new).into_iter().collect();
    (scene.now, scene.late) = (5 * SECOND, 4 * SECOND);
    scene.acquire(1, Wait::Forever);
    scene.late = 0;
    assert_eq!(
        scene.now,
        9 * SECOND,
        "it stood still, and then said that it has been there for nine"
    );
    scene.pass(3 * SECOND);
    assert_eq!(scene.trusted(), 0, "it has been there for 12 s");
    scene.pass(3 * SECOND);
    assert_eq!(scene.trusted(), 1);
}

#[test]
fn who_only_looks_does_not_ask_all_the_time() {
    let mut scene = Scene::settled();
    let observe = Scene::with(rules(RestartGuard::Observe));
    scene.engine = observe.engine;
    // They came back long ago, and nobody has marked them for it.
    for server in &mut scene.servers {
        server.restart(true, -100 * SECOND);
    }
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.outcome(1), Some(Ok(())));
    scene.late = 2_000_000;
    scene.pass(10 * SECOND);
    let looks = scene.sent.iter().filter(|(_, command)| *command == Command::Greet).count();
    assert!(looks <= 3 * 6, "{looks} looks in ten seconds");
}

/// Others have waited for most of it already: who has time for the rest is not sent away.
#[test]
fn who_has_time_for_the_rest_of_an_adoption_waits_for_it() {
    let mut first = Scene::with(rules(RestartGuard::Strict));
    first.acquire(1, Wait::Once);
    let mut scene = Scene::with(rules(RestartGuard::Strict));
    (scene.servers, scene.now) = (first.servers, 10 * SECOND);
    scene.servers.iter_mut().for_each(|server| server.greeted = 0);
    scene.acquire(1, Wait::For(Duration::from_secs(5)));
    assert_eq!(scene.outcome(1), None);
    scene.pass(3 * SECOND);
    assert_eq!(scene.outcome(1), Some(Ok(())));
}

#[test]
fn a_floor_is_set_on_a_node_that_says_itself_that_it_keeps_no_log() {
    let mut scene = Scene::settled();
    let lasting = NodeSet::only(NodeId::new(0));
    scene.engine = engine(Rules { lasting, ..rules(RestartGuard::Strict) });
    // What the operator says of it is not so: it may have lost its counters.
    scene.servers[0].restart(true, 0);
    scene.acquire(1, Wait::For(Duration::from_secs(20)));
    scene.pass(16 * SECOND);
    let marker = Marker::parse(scene.servers[0].marker.as_ref().unwrap()).unwrap();
    assert_eq!(*marker.run_id, *scene.servers[0].run_id());
    assert!(marker.floor > 0, "counters may have been rolled back");
}

#[test]
fn a_proxy_that_refuses_info_is_told_of() {
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.no_info = Some("ERR unsupported command 'INFO'");
    }
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.refusal(1).kind, RefusalKind::Unsafe);
    let NodeSaid::Failed(failure) = &scene.refusal(1).nodes[0].said else { panic!() };
    let text = failure.to_string();
    assert!(text.starts_with("refused as unsafe: NoInfo(\"ERR unsupp"), "{text}");
}
