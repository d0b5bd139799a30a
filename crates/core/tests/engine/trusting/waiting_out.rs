//! How long a node is waited for that was started or emptied, and by whose clock.

use super::*;

#[test]
fn short_lived_clients_wait_together() {
    let mut servers = Scene::with(rules(RestartGuard::Strict)).servers;
    for second in 0..=13 {
        let mut scene = Scene::with(rules(RestartGuard::Strict));
        (scene.servers, scene.now) = (servers, second * SECOND);
        scene.servers.iter_mut().for_each(|server| server.greeted = 0);
        scene.acquire(1, Wait::Once);
        scene.pass(1000);
        // The first that comes when the wait is over finishes it, and has its lock.
        let has_it = scene.outcome(1).is_some_and(|outcome| outcome.is_ok());
        assert_eq!(has_it, second > 12, "second {second}");
        assert_eq!(scene.trusted() == 3, second > 12, "second {second}");
        servers = scene.servers;
    }
}

/// The same where one node is dead: nothing else is missing when the wait is over, and the first call has its lock.
#[test]
fn short_lived_clients_wait_together_although_a_node_is_dead() {
    for dead in 0..3 {
        let mut servers = Scene::with(rules(RestartGuard::Strict)).servers;
        for second in 0..=13 {
            let mut scene = Scene::with(rules(RestartGuard::Strict));
            (scene.servers, scene.now) = (servers, second * SECOND);
            scene.servers.iter_mut().for_each(|server| server.greeted = 0);
            scene.dead = NodeSet::only(NodeId::new(dead));
            scene.acquire(1, Wait::Once);
            scene.pass(1000);
            let has_it = scene.outcome(1).is_some_and(|outcome| outcome.is_ok());
            assert_eq!(has_it, second > 12, "second {second}, node {dead} is dead");
            if !has_it {
                // It is told for how long, by the clock that counts.
                let refusal = scene.refusal(1);
                assert_eq!(refusal.kind, RefusalKind::Unsafe, "second {second}");
                assert!(refusal.retry_after.is_some_and(|time| !time.is_zero()));
            }
            servers = scene.servers;
        }
    }
}

/// A client that is shut down while a node is being taken into use lets that finish, for a moment.
#[test]
fn who_is_shut_down_lets_an_adoption_finish() {
    for answers in [true, false] {
        let mut scene = Scene::settled();
        scene.servers[2].restart(false, 0);
        scene.acquire(1, Wait::Once);
        assert_eq!(scene.outcome(1), Some(Ok(())));
        // It is adopted, and is 13 s old when the next one comes; which hears of it behind its lock.
        assert!(scene.servers[2].adoption.is_some());
        let mut next = Scene::with(rules(RestartGuard::Strict));
        (next.servers, next.now) = (scene.servers, 13 * SECOND);
        next.servers.iter_mut().for_each(|server| server.greeted = 0);
        next.slow_to_adopt = true;
        next.acquire(1, Wait::Once);
        next.tell(Event::Release { lock: LockId(1), report: false });
        next.tell(Event::Close);
        let is_drained = |scene: &Scene| scene.told.contains(&Effect::Drained);
        assert!(!is_drained(&next), "the adoption has been asked for");
        if answers {
            next.hear_of_adoption();
            assert!(next.servers[2].marker.is_some(), "and the node is marked");
        } else {
            next.pass(SECOND / 4);
        }
        assert!(is_drained(&next));
    }
}

#[test]
fn a_majority_that_comes_back_without_data_does_not_vote_for_a_rival() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.now = SECOND / 10;
    scene.servers[0].restart(false, scene.now);
    scene.servers[1].restart(false, scene.now);

    let mut rival = Scene::with(rules(RestartGuard::Strict));
    (rival.servers, rival.now) = (scene.servers.clone(), scene.now);
    rival.servers.iter_mut().for_each(|server| server.greeted = 0);
    rival.acquire(1, Wait::Once);
    assert_eq!(rival.refusal(1).kind, RefusalKind::Unsafe);

    // With the guard off it has both.
    let mut rival = Scene::with(rules(RestartGuard::Off));
    rival.servers = scene.servers.clone();
    rival.acquire(1, Wait::Once);
    assert_eq!(rival.outcome(1), Some(Ok(())));

    // The holder keeps what it has, and what such a node says changes nothing.
    scene.tell(Event::Extend { lock: LockId(1) });
    assert!(!scene.told.iter().any(|effect| matches!(effect, Effect::Lost { .. })));
    scene.pass(9 * SECOND);
    assert!(scene.told.iter().any(|effect| matches!(effect, Effect::Lost { .. })));
}

#[test]
fn a_node_that_comes_back_with_its_data_waits_by_its_uptime_alone() {
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.restart(true, 0);
    }
    scene.now = 4 * SECOND;
    scene.acquire(1, Wait::For(Duration::from_secs(10)));
    let waiting = scene.told.iter().find_map(|effect| match effect {
        Effect::Waiting { story, .. } => Some(story.clone()),
        _ => None,
    });
    let NodeSaid::Failed(failure) = &waiting.unwrap().nodes[0].said else { panic!() };
    assert_eq!(failure.to_string(), "quarantined: started 4 s ago, its votes count in 9 s");
    scene.pass(8 * SECOND);
    assert_eq!(scene.outcome(1), None);
    scene.pass(SECOND + SECOND / 2);
    assert_eq!(scene.outcome(1), Some(Ok(())));
    let marker = Marker::parse(scene.servers[0].marker.as_ref().unwrap()).unwrap();
    assert_eq!(*marker.run_id, *scene.servers[0].run_id());
    assert!(marker.floor > 0, "counters may have been rolled back");
}

#[test]
fn an_uptime_by_a_clock_that_jumped_is_bounded_by_what_was_seen() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.now = SECOND;
    for server in &mut scene.servers {
        server.restart(true, -1000 * SECOND);
        server.keys.clear();
    }
    scene.acquire(2, Wait::Once);
    scene.tell(Event::Release { lock: LockId(1), report: false });
    scene.acquire(3, Wait::Once);
    assert_eq!(scene.refusal(3).kind, RefusalKind::Unsafe);
    assert_eq!(scene.trusted(), 0, "it cannot have started before it was seen as another");
    scene.pass(12 * SECOND);
    assert_eq!(scene.trusted(), 3);
}

#[test]
fn an_uptime_below_zero_is_no_long_time() {
    // Their clocks have been set back since they were started again; this client knows of no earlier run.
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.restart(true, 1000 * SECOND);
    }
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.refusal(1).kind, RefusalKind::Unsafe);
    assert_eq!(scene.trusted(), 0);
    assert!(scene.servers[0].info(scene.now).contains("uptime_in_seconds:-1000\n"));
}

#[test]
fn data_that_vanishes_on_a_living_connection_is_noticed() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.servers[0].flush();
    scene.servers[1].flush();
    scene.tell(Event::Extend { lock: LockId(1) });
    assert_eq!(scene.trusted(), 1);
    assert!(
        !scene.told.iter().any(|effect| matches!(effect, Effect::Lost { .. })),
        "nobody else can have them"
    );
    scene.pass(30 * SECOND);
    assert_eq!(scene.trusted(), 3, "it is adopted anew");
}

/// A master that was the replica of its own lagging replica for a moment has older data, with its own
/// marker. It has said so between the answers: what comes behind counts only if it is verified anew (F12).
#[test]
fn data_that_are_replaced_on_a_living_connection_are_noticed_by_the_push() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.outcome(1), Some(Ok(())));
    for server in &mut scene.servers[..2] {
        server.keys.clear();
        server.promoted = 15;
        server.flushes += 1;
    }
    let rival = rival_tries(&mut scene);
    assert!(!is_held(&rival, 1), "a new connection sees it");
    scene.tell(Event::Release { lock: LockId(1), report: false });
    scene.acquire(3, Wait::Once);
    assert_eq!(scene.outcome(3).map(|it| it.is_ok()), Some(false), "and so does the old one");
    assert_eq!(scene.trusted(), 1);
    // Where nothing was lost, it is asked once more what it is, and that is all.
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.servers.iter_mut().for_each(|server| server.flushes += 1);
    scene.acquire(2, Wait::For(Duration::from_secs(1)));
    scene.tell(Event::Release { lock: LockId(1), report: false });
    scene.pass(SECOND / 2);
    assert_eq!(scene.outcome(2), Some(Ok(())));
    assert_eq!(scene.trusted(), 3);
}

/// Who is told so looks at once, not when somebody wants a lock.
#[test]
fn a_flush_push_is_followed_by_a_look() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.tell(Event::Release { lock: LockId(1), report: false });
    let greets = |scene: &Scene| {
        let greets = scene.sent.iter().filter(|(_, command)| *command == Command::Greet);
        greets.count()
    };
    let before = greets(&scene);
    scene.servers[0].promoted = 15;
    scene.servers[0].flushes += 1;
    scene.tell(Event::Pushed { node: NodeId::new(0), keys: None });
    assert_eq!(greets(&scene), before + 1);
    assert_eq!(scene.trusted(), 2);
}
