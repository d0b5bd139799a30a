//! When a run or an adoption began, as far as a client can know; floors, promotions and servers that change places.

use super::*;

/// Deleted and begun anew, an adoption says what it said before; then the server's clock jumps.
#[test]
fn an_adoption_that_was_begun_anew_is_no_older_than_when_it_was_seen_to_be_new() {
    let mut scene = Scene::with(rules(RestartGuard::Strict));
    scene.acquire(1, Wait::Forever);
    scene.pass(8 * SECOND);
    for server in &mut scene.servers {
        server.flush();
    }
    scene.pass(3 * SECOND);
    for server in &mut scene.servers {
        server.jumped = 1000 * SECOND;
    }
    scene.pass(7 * SECOND);
    assert_eq!(scene.trusted(), 0);
    scene.pass(6 * SECOND);
    assert_eq!((scene.trusted(), scene.outcome(1)), (3, Some(Ok(()))));
}

/// The same, begun by another client, and the clock has jumped before this one looks: it has seen the adoption
/// before that.
#[test]
fn an_adoption_that_another_has_begun_anew_is_no_older_than_the_look_at_the_one_before() {
    let mut scene = Scene::with(rules(RestartGuard::Strict));
    scene.acquire(1, Wait::Forever);
    scene.pass(8 * SECOND);
    let now = scene.now;
    for server in &mut scene.servers {
        let (text, _) = server.adoption.clone().expect("it is being adopted");
        let (words, _) = text.rsplit_once(' ').expect("since when");
        server.flush();
        server.adoption = Some((format!("{words} since={now}"), now));
        server.jumped = 1000 * SECOND;
    }
    scene.pass(9 * SECOND);
    assert_eq!(scene.trusted(), 0);
    scene.pass(6 * SECOND);
    assert_eq!((scene.trusted(), scene.outcome(1)), (3, Some(Ok(()))));
}

/// A server forgets after an hour that it was a replica: where locks may live for longer, a marker of
/// another run is not enough, however long the server has been there.
#[test]
fn with_a_long_ttl_a_replica_that_was_promoted_long_ago_is_adopted() {
    let cluster = Cluster::new(names(), 2, 7_200_000);
    let mut scene = Scene::with(Rules { cluster: cluster.clone(), ..rules(RestartGuard::Strict) });
    for server in &mut scene.servers {
        let run_id = "another".into();
        let marker = Marker { cluster: cluster.clone(), run_id, promoted_at: -1, floor: 0 };
        (server.marker, server.started) = (Some(marker.to_string()), -10_000 * SECOND);
    }
    scene.acquire(1, Wait::Once);
    scene.pass(7_200 * SECOND);
    assert_eq!(scene.trusted(), 0);
    scene.pass(80 * SECOND);
    assert_eq!(scene.trusted(), 3);
}

/// Also if nobody listens to how it goes on.
#[test]
fn who_turns_out_to_wait_in_vain_is_told_as_soon_as_that_is_known() {
    for progress in [true, false] {
        let mut scene = Scene::with(rules(RestartGuard::Strict));
        let wait = Wait::For(Duration::from_secs(5));
        let request = quorlock_core::Request { wait, progress, ..request("orders") };
        scene.tell(Event::Acquire { lock: LockId(1), request });
        scene.pass(1_000_000);
        assert_eq!(scene.refusal(1).kind, RefusalKind::Unsafe);
    }
}

#[test]
fn a_floor_that_rests_on_the_clocks_of_few_is_told_of() {
    let few = |scene: &Scene| {
        let few = |effect: &Effect| match effect {
            Effect::FloorOfFew { node, clocks } => Some((node.index(), *clocks)),
            _ => None,
        };
        scene.told.iter().find_map(few)
    };
    for (mute, expected) in [(NodeSet::default(), None), (NodeSet::only(NodeId::new(2)), Some(1))] {
        let mut scene = Scene::settled();
        scene.mute = mute;
        scene.servers[0].restart(false, 0);
        scene.acquire(1, Wait::For(Duration::from_secs(30)));
        scene.pass(30 * SECOND);
        let marker = Marker::parse(scene.servers[0].marker.as_ref().unwrap()).unwrap();
        assert!(marker.floor > 0, "it has lost its counters");
        assert_eq!(few(&scene), expected.map(|clocks| (0, clocks)));
    }
}

/// A client stands still between the reading of the clocks and the hearing, while a node is adopted by another. What
/// it heard is of ten seconds ago: a floor by that could be below one that was set meanwhile.
#[test]
fn a_floor_rests_on_no_clock_that_was_heard_late() {
    let mut scene = Scene::settled();
    scene.servers[0].flush();
    scene.acquire(1, Wait::Forever);
    let mut late = Scene::with(rules(RestartGuard::Strict));
    (late.servers, late.now, late.stands_still) = (scene.servers, 5 * SECOND, 10 * SECOND);
    late.acquire(1, Wait::Forever);
    late.pass(QUARANTINE);
    let marker = Marker::parse(late.servers[0].marker.as_ref().unwrap()).unwrap();
    let least = at(15 * SECOND).real_ns() / 1000 + 2 * 3600 * 1_000_000;
    assert!(i64::try_from(marker.floor).unwrap() >= least, "{marker}");
}

/// This very client has seen the run when it was 4 s old; then the server's clock jumps.
#[test]
fn an_uptime_that_jumps_after_it_was_seen_makes_no_run_older() {
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.restart(true, 0);
        server.keys.clear();
    }
    scene.now = 4 * SECOND;
    scene.acquire(1, Wait::For(Duration::from_secs(10)));
    scene.pass(SECOND);
    assert_eq!(scene.trusted(), 0);
    for server in &mut scene.servers {
        server.started -= 60 * SECOND;
    }
    scene.pass(3 * SECOND);
    assert_eq!((scene.trusted(), scene.outcome(1)), (0, None), "it started 8 s ago");
}

/// Promoted, with older data that has its own marker; after an hour it forgets that.
#[test]
fn a_promotion_that_the_server_has_forgotten_still_counts() {
    let cluster = Cluster::new(names(), 2, 7_200_000);
    let mut scene = Scene::with(Rules { cluster: cluster.clone(), ..rules(RestartGuard::Strict) });
    for server in &mut scene.servers {
        let run_id = server.run_id().into();
        let marker = Marker { cluster: cluster.clone(), run_id, promoted_at: -1, floor: 0 };
        (server.marker, server.started) = (Some(marker.to_string()), -10_000 * SECOND);
        server.promoted = 15;
    }
    scene.acquire(1, Wait::Once);
    scene.pass(3_600 * SECOND);
    assert_eq!(scene.trusted(), 0, "quarantined for 7274 s");
    for server in &mut scene.servers {
        server.promoted = -1;
    }
    scene.pass(10 * SECOND);
    assert_eq!(scene.trusted(), 0, "half of the quarantine has passed");
}

/// It becomes a replica of its own replica, which is behind, and a master again; in the replica's data there
/// is an adoption from before, or none.
#[test]
fn an_adoption_from_before_a_promotion_is_none() {
    for keeps_adoption in [true, false] {
        let mut scene = Scene::with(rules(RestartGuard::Strict));
        scene.acquire(1, Wait::For(Duration::from_secs(20)));
        scene.pass(5 * SECOND);
        let mut lagging = scene.servers[0].clone();
        assert!(lagging.adoption.is_some());
        lagging.adoption = lagging.adoption.filter(|_| keeps_adoption);
        scene.pass(8 * SECOND);
        assert_eq!((scene.trusted(), scene.outcome(1)), (3, Some(Ok(()))));
        scene.tell(Event::Release { lock: LockId(1), report: false });
        scene.mute = NodeSet::only(NodeId::new(2));
        scene.acquire(2, Wait::Once);
        assert!(is_held(&scene, 2));
        scene.servers[0] = Server { promoted: 16, epoch: 2, ..lagging };
        let rival = rival_tries(&mut scene);
        assert!(is_held(&scene, 2), "{keeps_adoption}");
        assert!(!is_held(&rival, 1), "two hold the lock, {keeps_adoption}");
    }
}

/// The first node is looked at while it is suspended.
fn suspended_at_a_look(scene: &mut Scene) {
    scene.now = 15 * SECOND + 1;
    let mut out = Vec::new();
    scene.engine.handle(
        Event::Wake,
        at(scene.now),
        &mut |_| unreachable!("nobody attempts"),
        &mut out,
    );
    for effect in out {
        if let Effect::Send { nodes, ticket, command: Command::Greet } = effect
            && nodes.contains(NodeId::new(0))
        {
            let failure = Failure::unsent(FailureKind::Suspended);
            let answers = vec![(ticket, Answer::Failed(failure))];
            scene.tell(Event::Answered {
                node: NodeId::new(0),
                sent: at(scene.now),
                proof: Proof::Vouched,
                answers,
            });
        }
    }
}

fn votes_after_extending(scene: &mut Scene, lock: u64) -> Option<usize> {
    scene.told.clear();
    scene.tell(Event::Extend { lock: LockId(lock) });
    let mut votes = scene.told.iter().filter_map(|effect| match effect {
        Effect::Changed { validity, .. } => Some(validity.votes(at(scene.now))),
        _ => None,
    });
    votes.next_back()
}

/// A node that was suspended answers again on its old connection; meanwhile another name leads to
/// the same server.
#[test]
fn a_node_that_was_away_may_be_another_names_server_when_it_is_back() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.tell(Event::Release { lock: LockId(1), report: false });
    assert_eq!(scene.trusted(), 3);
    suspended_at_a_look(&mut scene);
    // The second name leads to the first server now.
    scene.mute = NodeSet::only(NodeId::new(0));
    scene.servers[1] = Server { epoch: 2, greeted: 0, ..scene.servers[0].clone() };
    scene.acquire(2, Wait::Once);
    assert!(is_held(&scene, 2));
    scene.servers[0].keys = scene.servers[1].keys.clone();
    scene.mute = NodeSet::default();
    assert_eq!(votes_after_extending(&mut scene, 2), Some(2), "there are two servers");
}

/// Found by the simulator: the second name leads to the first server, which is away under its own name; its vote from
/// before still counts.
#[test]
fn a_server_that_is_away_under_its_name_has_no_second_vote_under_another() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.tell(Event::Release { lock: LockId(1), report: false });
    scene.mute = NodeSet::only(NodeId::new(1));
    scene.now = 14 * SECOND;
    scene.acquire(2, Wait::Once);
    assert!(is_held(&scene, 2));
    suspended_at_a_look(&mut scene);
    scene.mute = NodeSet::only(NodeId::new(0));
    scene.servers[1] = Server { epoch: 2, greeted: 0, ..scene.servers[0].clone() };
    scene.acquire(3, Wait::Once);
    let refused = |scene: &Scene, node| {
        matches!(
            scene.engine.standing(NodeId::new(node)),
            Some(Standing::Refused(failure)) if failure.kind() == FailureKind::SameServer
        )
    };
    assert!(
        refused(&scene, 1) && !refused(&scene, 0),
        "the one that is away may lead elsewhere by now"
    );
    assert_eq!(scene.outcome(3).map(|it| it.is_ok()), Some(false));
    assert_eq!(scene.trusted(), 2);
    scene.pass(QUARANTINE);
    assert_eq!(scene.trusted(), 3, "no vote from before counts any more");
}

/// A server of this run that has been there for long and is marked.
fn marked(run: u32, epoch: u64) -> Server {
    let mut server = Server { epoch, ..Server::new(run, -100 * SECOND) };
    let run_id = server.run_id().into();
    let marker = Marker { cluster: cluster(), run_id, promoted_at: -1, floor: 0 };
    server.marker = Some(marker.to_string());
    server
}

/// Another caller wants another lock, which is of no interest but for what nodes say of themselves meanwhile.
fn look(scene: &mut Scene, lock: u64) {
    let request = quorlock_core::Request { wait: Wait::Once, ..request("other") };
    scene.tell(Event::Acquire { lock: LockId(lock), request });
    scene.tell(Event::Wake);
    scene.tell(Event::Release { lock: LockId(lock), report: false });
}

/// The second name leads to the first one's server, and the first one leads elsewhere: what the server has voted under
/// its first name still counts.
#[test]
fn a_server_has_no_second_vote_under_another_name_when_its_first_leads_elsewhere() {
    let mut scene = Scene::settled();
    scene.mute = NodeSet::only(NodeId::new(1));
    scene.acquire(1, Wait::Once);
    assert!(is_held(&scene, 1));
    scene.now = SECOND / 2;
    scene.servers[1] = Server { epoch: 2, ..scene.servers[0].clone() };
    scene.servers[0] = marked(50, 2);
    look(&mut scene, 2);
    scene.mute = NodeSet::only(NodeId::new(0));
    assert_eq!(votes_after_extending(&mut scene, 1), Some(2), "there are two servers");
    let second = |scene: &Scene| scene.engine.standing(NodeId::new(1)).cloned();
    let until = at(0).after(Duration::from_nanos(QUARANTINE as u64));
    assert!(matches!(second(&scene), Some(Standing::Quarantined { until: it, .. }) if it == until));
    assert_eq!(scene.trusted(), 2, "the first name leads to a server that has done nothing wrong");
    scene.mute = NodeSet::default();
    scene.pass(QUARANTINE - SECOND / 2 - 1);
    assert_eq!(scene.trusted(), 2);
    scene.pass(1);
    assert_eq!(scene.trusted(), 3, "no vote from before counts any more");
}

/// The same, and it answers again on its old connection under its first name.
#[test]
fn a_server_that_was_away_has_no_second_vote_when_the_other_name_leads_elsewhere() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.tell(Event::Release { lock: LockId(1), report: false });
    suspended_at_a_look(&mut scene);
    scene.mute = NodeSet::only(NodeId::new(0));
    scene.servers[1] = Server { epoch: 2, greeted: 0, ..scene.servers[0].clone() };
    scene.acquire(2, Wait::Once);
    assert!(is_held(&scene, 2));
    scene.servers[0].keys = std::mem::replace(&mut scene.servers[1], marked(50, 3)).keys;
    look(&mut scene, 3);
    scene.mute = NodeSet::only(NodeId::new(1));
    assert_eq!(votes_after_extending(&mut scene, 2), Some(2), "there are two servers");
    assert_eq!(scene.trusted(), 2);
}

/// A server may come back time and again, and a name may lead to and fro; but not to more servers than can be kept in
/// mind.
#[test]
fn a_name_that_leads_to_ever_other_servers_waits_until_the_first_ones_votes_cannot_count() {
    let mut scene = Scene::settled();
    look(&mut scene, 1);
    for (epoch, run) in (2..).zip([50, 0, 50, 51, 52, 53]) {
        scene.now += SECOND / 4;
        scene.servers[0] = marked(run, epoch);
        look(&mut scene, epoch);
        assert_eq!(scene.trusted(), if run == 53 { 2 } else { 3 }, "{run}");
    }
    scene.pass(QUARANTINE);
    assert_eq!(scene.trusted(), 3);
}

/// Another server with an old copy of the data takes a node's place.
#[test]
fn a_server_with_a_copy_that_has_just_started_does_not_vote() {
    let mut scene = Scene::settled();
    scene.mute = NodeSet::only(NodeId::new(2));
    let copy = scene.servers[0].marker.clone();
    scene.acquire(1, Wait::Once);
    scene.servers[0] = Server { marker: copy, ..Server::new(50, 0) };
    let rival = rival_tries(&mut scene);
    assert!(is_held(&scene, 1) && !is_held(&rival, 1));
}

/// A second client's command to adopt comes behind the first one's marker; and what another has left
/// there is not taken for the adoption of a node that was a replica a moment ago.
#[test]
fn an_adoption_that_comes_behind_the_marker_does_nothing() {
    let mut scene = Scene::with(rules(RestartGuard::Strict));
    scene.acquire(1, Wait::For(Duration::from_secs(20)));
    scene.pass(13 * SECOND);
    assert_eq!((scene.trusted(), scene.outcome(1)), (3, Some(Ok(()))));
    scene.tell(Event::Release { lock: LockId(1), report: false });
    // The other has looked before it was marked.
    let adopt = scene
        .sent
        .iter()
        .find(|(to, command)| *to == 0 && matches!(command, Command::Adopt { .. }));
    let (adopt, now) = (adopt.expect("it was adopted").1.clone(), scene.now);
    assert_eq!(scene.servers[0].execute(&adopt, now), Answer::NotMarked);
    assert_eq!(scene.servers[0].adoption, None);
    let Command::Adopt { text, .. } = adopt else { unreachable!("as it was found") };
    scene.servers[0].adoption = Some((text.to_string(), now));
    scene.pass(60 * SECOND);
    scene.mute = NodeSet::only(NodeId::new(2));
    scene.acquire(2, Wait::Once);
    assert!(is_held(&scene, 2));
    // A replica of its own replica, which had not got the vote yet; and a master again.
    let server = &mut scene.servers[0];
    (server.promoted, server.role) = (16, "master");
    server.keys.clear();
    let rival = rival_tries(&mut scene);
    assert!(is_held(&scene, 2));
    assert!(!is_held(&rival, 1), "two hold the lock");
}

/// Its clock was set back since it started, but it has been seen for longer than the quarantine.
#[test]
fn who_has_seen_a_run_for_long_enough_does_not_ask_its_clock() {
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.restart(true, 0);
        server.started += 3600 * SECOND;
    }
    scene.now = SECOND;
    scene.acquire(1, Wait::Forever);
    scene.pass(60 * SECOND);
    assert_eq!(scene.outcome(1), Some(Ok(())), "seen for 60 s: {:?}", scene.told.last());
}

#[test]
fn where_a_node_is_down_and_one_in_quarantine_it_is_told_when_there_will_be_a_quorum() {
    let mut scene = Scene::settled();
    scene.servers[1].restart(true, 0);
    scene.mute = [NodeId::new(2)].into_iter().collect();
    scene.acquire(1, Wait::Once);
    scene.pass(SECOND);
    let refusal = scene.refusal(1);
    assert_eq!(refusal.kind, RefusalKind::NoQuorum);
    let after = refusal.retry_after.expect("the quarantine has an end");
    let range = Duration::from_secs(10)..Duration::from_secs(14);
    assert!(range.contains(&after), "{after:?}");
}

#[test]
fn a_node_that_is_refused_is_not_healed() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    assert_eq!((scene.outcome(1), scene.asked_for_votes(2)), (Some(Ok(())), 1));
    let server = &mut scene.servers[2];
    (server.policy, server.epoch) = ("allkeys-lru", server.epoch + 1);
    server.keys.clear();
    scene.tell(Event::Extend { lock: LockId(1) });
    let confirmed = |effect: &Effect| {
        matches!(effect, Effect::Extended { outcome: quorlock_core::Extended::Confirmed, .. })
    };
    assert!(scene.told.iter().any(confirmed));
    assert_eq!(scene.asked_for_votes(2), 1);
}
