//! How a client determines the age of a server's run, or of an adoption: the key that begins a node's wait for a new
//! marker. Also floors (lower bounds for tokens), promotions, and servers that change addresses.

use super::*;

/// The time by which `jump` sets the clock of a server ahead, in nanoseconds.
const JUMP: i64 = 1_000 * SECOND * MS;

fn jump(world: &mut ScriptedWorld, node: usize) {
    let now = world.now();
    world.server_mut(node).clock.step(JUMP, now);
}

/// Flushed nodes begin a new wait for a marker. A jump of their servers' clocks must not make this wait look older.
#[test]
fn an_adoption_that_was_begun_anew_is_no_older_than_when_it_was_seen_to_be_new() {
    let mut world = fresh();
    let lock = acquire(&mut world, Wait::Forever);
    world.run_for(8 * SECOND);
    (0..3).for_each(|node| world.flush(node));
    world.run_for(3 * SECOND);
    (0..3).for_each(|node| jump(&mut world, node));
    world.run_for(7 * SECOND);
    assert_eq!(world.trusted(0), 0);
    world.run_for(6 * SECOND);
    assert_eq!((world.trusted(0), world.outcome(lock)), (3, Some(Ok(()))));
}

/// A node is flushed, another client begins its wait again, and its server's clock jumps ahead. The tested client has
/// seen only the first wait. It must not believe that the new wait began before its last examination of the first one.
#[test]
fn an_adoption_that_another_has_begun_anew_is_no_older_than_the_last_examination() {
    let mut world = fresh();
    let lock = acquire(&mut world, Wait::Forever);
    world.run_for(8 * SECOND);
    for node in 0..3 {
        let text = world.text(node, ADOPTION).expect("it is being adopted");
        let (words, _) = text.rsplit_once(' ').expect("since when");
        world.flush(node);
        let since = world.reading().real_ns() / 1000;
        write(&mut world, node, ADOPTION, &format!("{words} since={since}"));
        jump(&mut world, node);
    }
    world.run_for(9 * SECOND);
    assert_eq!(world.trusted(0), 0);
    world.run_for(6 * SECOND);
    assert_eq!((world.trusted(0), world.outcome(lock)), (3, Some(Ok(()))));
}

/// A client with a largest ttl of 2 h, and nodes with longer uptimes. Their markers (proof of no data loss) name the
/// run that `run` returns.
fn with_a_long_ttl(run: impl Fn(&ScriptedWorld, usize) -> String) -> ScriptedWorld {
    let cluster = Cluster::new(names(), 2, 7_200_000);
    let mut world = with(Rules { cluster: cluster.clone(), ..rules(RestartGuard::Strict) });
    for node in 0..3 {
        let run_id = run(&world, node).into();
        let cluster = cluster.clone();
        mark(&mut world, node, &Marker { cluster, run_id, promoted_at: -1, floor: 0 });
        started_ago(&mut world, node, 10_000 * SECOND);
    }
    world
}

/// A server forgets after an hour that it was a replica. If locks may live longer than that, a long uptime proves
/// nothing, and a node whose marker names another run of the server is adopted: it waits before it votes.
#[test]
fn with_a_long_ttl_a_replica_that_was_promoted_long_ago_is_adopted() {
    let mut world = with_a_long_ttl(|_, _| "another".into());
    acquire(&mut world, Wait::Once);
    world.run_for(7_200 * SECOND);
    assert_eq!(world.trusted(0), 0);
    world.run_for(80 * SECOND);
    assert_eq!(world.trusted(0), 3);
}

/// A call whose wait is shorter than the quarantine ends at once, even if no caller listens to its progress.
#[test]
fn a_call_that_waits_in_vain_ends_as_soon_as_that_is_known() {
    for progress in [true, false] {
        let mut world = fresh();
        let wait = Wait::For(Duration::from_secs(5));
        let lock = world.acquire(Request { wait, progress, ..request(LOCKED) });
        world.run_for(1);
        assert_eq!(refusal(&world, lock).kind, RefusalKind::NodesUntrusted);
    }
}

#[test]
fn a_floor_that_rests_on_the_clocks_of_few_is_reported() {
    let few = |world: &ScriptedWorld| {
        let few = |effect: &Effect| match effect {
            Effect::FloorOfFew { node, clocks } => Some((node.index(), *clocks)),
            _ => None,
        };
        world.log().iter().find_map(|(_, _, effect)| few(effect))
    };
    for (is_mute, expected) in [(false, None), (true, Some(1))] {
        let mut world = settled();
        world.lose(0, 2, is_mute);
        world.restart(0, false);
        acquire(&mut world, Wait::For(Duration::from_secs(30)));
        world.run_for(30 * SECOND);
        assert!(marker(&world, 0).floor > 0, "it has lost its counters");
        assert_eq!(few(&world), expected.map(|clocks| (0, clocks)));
    }
}

/// To compute the floor of node 0's fencing tokens, a client asks the other nodes for their clocks. Its machine sleeps
/// before the answers arrive, and another client may set a higher floor meanwhile. So the client must ask again.
#[test]
fn a_floor_rests_on_no_clock_that_was_heard_late() {
    let mut world = settled();
    world.flush(0);
    acquire(&mut world, Wait::Forever);
    world.leave(0);
    world.run_for(5 * SECOND);
    let late = another(&mut world);
    world.acquire_by(late, Request { wait: Wait::Forever, ..request(LOCKED) });
    let asks = |world: &ScriptedWorld| {
        world.orders(late).any(|(_, command)| *command == Command::Identify)
    };
    world.run_till(20 * SECOND, asks);
    assert!(asks(&world) && world.now() == 7 * SECOND * MS, "it asks the others for the time");
    world.sleep(late, 10 * SECOND);
    world.run_for(10 * SECOND + QUARANTINE);
    let since = world.now() - 15 * SECOND * MS;
    let least = (world.reading().real_ns() - since) / 1000 + 2 * 3600 * 1_000_000;
    assert!(i64::try_from(marker(&world, 0).floor).unwrap() >= least, "{}", marker(&world, 0));
}

/// A restarted node reports an uptime of 4 s, and then one of over a minute. The jump must not end its quarantine.
#[test]
fn an_uptime_that_jumps_after_it_was_seen_makes_no_run_older() {
    let mut world = settled();
    (0..3).for_each(|node| world.restart(node, true));
    world.run_for(4 * SECOND);
    let lock = acquire(&mut world, Wait::For(Duration::from_secs(10)));
    world.run_for(SECOND);
    assert_eq!(world.trusted(0), 0);
    (0..3).for_each(|node| world.server_mut(node).run.started_s -= 60);
    world.run_for(3 * SECOND);
    assert_eq!((world.trusted(0), world.outcome(lock)), (0, None), "it started 8 s ago");
}

/// A server with older data was promoted. Even if it no longer reports this, its wait of 7274 s must not end early.
#[test]
fn a_promotion_that_the_server_has_forgotten_still_counts() {
    let mut world = with_a_long_ttl(run_id);
    (0..3).for_each(|node| world.server_mut(node).run.promoted_at = Some(15));
    acquire(&mut world, Wait::Once);
    world.run_for(3_600 * SECOND);
    assert_eq!(world.trusted(0), 0, "quarantined for 7274 s");
    (0..3).for_each(|node| world.server_mut(node).run.promoted_at = None);
    world.run_for(10 * SECOND);
    assert_eq!(world.trusted(0), 0, "half of the quarantine has passed");
}

/// A server becomes a replica of its own lagging replica, and then a master again, with that replica's older data. The
/// data lacks the marker. It may contain the key that began the server's earlier wait. With or without this key, the
/// server must not vote before it has waited again.
#[test]
fn an_adoption_from_before_a_promotion_is_none() {
    for keeps_adoption in [true, false] {
        let mut world = fresh();
        let first = acquire(&mut world, Wait::For(Duration::from_secs(20)));
        world.run_for(5 * SECOND);
        let mut lagging = world.server(0).clone();
        assert!(world.has(0, ADOPTION));
        if !keeps_adoption {
            lagging.delete(ADOPTION, world.now());
        }
        world.run_for(8 * SECOND);
        assert_eq!((world.trusted(0), world.outcome(first)), (3, Some(Ok(()))));
        release(&mut world, first);
        world.lose(0, 2, true);
        let second = acquire(&mut world, Wait::Once);
        assert!(is_held(&world, second));
        lagging.run.promoted_at = Some(16);
        world.replace(0, lagging);
        world.reconnect(0);
        let rivals = rival_tries(&mut world);
        assert!(is_held(&world, second), "{keeps_adoption}");
        assert!(!is_held(&world, rivals), "two hold the lock, {keeps_adoption}");
    }
}

/// Waits until the client asks node 0 for its evidence (`INFO`, marker), and fails this command: node 0 is suspended.
fn suspended_at_an_examination(world: &mut ScriptedWorld) {
    let of_first = |world: &ScriptedWorld| {
        let tickets = world.log().iter().filter_map(|(_, _, effect)| match effect {
            Effect::Send { nodes, ticket, command: Command::Identify }
                if nodes.contains(NodeId::new(0)) =>
            {
                Some(*ticket)
            }
            _ => None,
        });
        tickets.collect::<Vec<Ticket>>()
    };
    let before = of_first(world).len();
    world.lose(0, 0, true);
    world.run_till(20 * SECOND, |world| of_first(world).len() > before);
    assert_eq!(world.now(), 15 * SECOND * MS, "it is examined now and then");
    let suspended = Answer::Failed(Failure::unsent(FailureKind::Suspended));
    world.answer(0, 0, world.reading(), of_first(world)[before], suspended);
    world.run_for(0);
    world.lose(0, 0, false);
}

fn votes_after_extending(world: &mut ScriptedWorld, lock: LockId) -> Option<usize> {
    let before = world.log().len();
    extend(world, lock);
    let now = world.reading();
    let mut votes = world.log()[before..].iter().filter_map(|(_, _, effect)| match effect {
        Effect::Changed { validity, .. } => Some(validity.votes(now)),
        _ => None,
    });
    votes.next_back()
}

/// A suspended node answers again, but meanwhile a second name leads to its server. The server must have one vote only.
#[test]
fn a_node_that_was_away_may_be_another_names_server_when_it_is_back() {
    let mut world = settled();
    let first = acquire(&mut world, Wait::Once);
    release(&mut world, first);
    assert_eq!(world.trusted(0), 3);
    suspended_at_an_examination(&mut world);
    // From now on the second name leads to the first server.
    world.lose(0, 0, true);
    lead_to_the_first(&mut world, 1);
    let second = acquire(&mut world, Wait::Once);
    assert!(is_held(&world, second));
    let same = world.server(1).clone();
    world.replace(0, same);
    world.lose(0, 0, false);
    assert_eq!(votes_after_extending(&mut world, second), Some(2), "there are two servers");
}

fn lead_to_the_first(world: &mut ScriptedWorld, node: usize) {
    let first = world.server(0).clone();
    world.replace(node, first);
    world.reconnect(node);
}

/// The simulator found this bug. The second name leads to the first server while that server's first name is down. The
/// server's earlier vote still counts, so it must not get a second vote under the second name.
#[test]
fn a_server_that_is_away_under_its_name_has_no_second_vote_under_another() {
    let mut world = settled();
    let first = acquire(&mut world, Wait::Once);
    release(&mut world, first);
    world.lose(0, 1, true);
    world.run_until(14 * SECOND);
    let second = acquire(&mut world, Wait::Once);
    assert!(is_held(&world, second));
    suspended_at_an_examination(&mut world);
    world.lose(0, 0, true);
    lead_to_the_first(&mut world, 1);
    world.lose(0, 1, false);
    let third = acquire(&mut world, Wait::Once);
    let refused = |node| is_refused_as(&world, node, FailureKind::SameServer);
    assert!(refused(1) && !refused(0), "the one that is away may lead elsewhere by now");
    assert!(matches!(world.outcome(third), Some(Err(_))));
    assert_eq!(world.trusted(0), 2);
    world.run_for(QUARANTINE);
    assert_eq!(world.trusted(0), 3, "no vote from before counts any more");
}

/// A lock is granted before the second name of one of its servers is heard. When it is, that server's votes do not
/// count under either name, so the lock ends with the vote that the server gave before.
#[test]
fn a_server_whose_second_name_is_heard_after_the_grant_never_has_two_votes() {
    let mut world = settled();
    world.lose(0, 2, true);
    let lock = acquire(&mut world, Wait::Once);
    assert!(is_held(&world, lock));
    lead_to_the_first(&mut world, 2);
    world.lose(0, 2, false);
    assert_eq!(votes_after_extending(&mut world, lock), Some(2), "there are two servers");
    assert!([0, 2].iter().all(|node| is_refused_as(&world, *node, FailureKind::SameServer)));
    for _ in 0..3 {
        world.run_for(MAX_TTL as i64 / 3);
        assert!(votes_after_extending(&mut world, lock).is_none_or(|votes| votes < 2));
    }
    assert!(!is_held(&world, lock));
}

/// Lets the name of a node lead to another server with a long uptime and a valid marker.
fn lead_to_another(world: &mut ScriptedWorld, node: usize, run: u64) {
    let mut server = world.server(2).clone();
    server.run = Run::new(run, world.reading().real_ns() - 100 * SECOND * MS);
    server.flush();
    world.replace(node, server);
    let run_id = run_id(world, node).into();
    mark(world, node, &Marker { cluster: cluster(), run_id, promoted_at: -1, floor: 0 });
    world.reconnect(node);
}

/// Makes a call for another lock, because its answers contain the nodes' evidence.
fn examine(world: &mut ScriptedWorld) {
    let lock = world.acquire_by(0, Request { wait: Wait::Once, ..request("other") });
    world.run_for(0);
    release(world, lock);
}

/// The second name leads to the first server, and the first name leads to another server. The first server's vote under
/// its first name still counts, so it must not get a second vote.
#[test]
fn a_server_has_no_second_vote_under_another_name_when_its_first_leads_elsewhere() {
    let mut world = settled();
    world.lose(0, 1, true);
    let lock = acquire(&mut world, Wait::Once);
    assert!(is_held(&world, lock));
    let until = world.reading().after(Duration::from_millis(QUARANTINE as u64));
    world.lose(0, 1, false);
    world.run_for(SECOND / 2);
    lead_to_the_first(&mut world, 1);
    lead_to_another(&mut world, 0, 50);
    examine(&mut world);
    world.lose(0, 0, true);
    assert_eq!(votes_after_extending(&mut world, lock), Some(2), "there are two servers");
    let second = world.engine(0).trust_state(NodeId::new(1));
    assert!(matches!(second, Some(TrustState::Quarantined { until: it, .. }) if *it == until));
    assert_eq!(world.trusted(0), 2, "the first name leads to a server that has done nothing wrong");
    world.lose(0, 0, false);
    world.run_for(QUARANTINE - SECOND / 2 - 1);
    assert_eq!(world.trusted(0), 2);
    world.run_for(1);
    assert_eq!(world.trusted(0), 3, "no vote from before counts any more");
}

/// The first server votes under the second name, which then leads to another server. When the first server answers
/// under its own name again, it must not get a second vote.
#[test]
fn a_server_that_was_away_has_no_second_vote_when_the_other_name_leads_elsewhere() {
    let mut world = settled();
    let first = acquire(&mut world, Wait::Once);
    release(&mut world, first);
    suspended_at_an_examination(&mut world);
    world.lose(0, 0, true);
    lead_to_the_first(&mut world, 1);
    let second = acquire(&mut world, Wait::Once);
    assert!(is_held(&world, second));
    let same = world.server(1).clone();
    world.replace(0, same);
    lead_to_another(&mut world, 1, 50);
    examine(&mut world);
    world.lose(0, 0, false);
    world.lose(0, 1, true);
    assert_eq!(votes_after_extending(&mut world, second), Some(2), "there are two servers");
    assert_eq!(world.trusted(0), 2);
}

/// The first server is durable and has voted. Then it restarts, and the second name leads to it, so it must not vote.
#[test]
fn a_durable_server_that_was_restarted_has_no_second_vote_under_another_name() {
    let durable = (0..3).map(NodeId::new).collect();
    let mut world = with(Rules { durable, ..rules(RestartGuard::Strict) });
    mark_all(&mut world);
    (0..3).for_each(|node| world.say(node, "aof_enabled", "1"));
    world.lose(0, 1, true);
    let lock = acquire(&mut world, Wait::Once);
    assert!(is_held(&world, lock));
    world.lose(0, 1, false);
    world.run_for(SECOND / 4);
    let mut restarted = world.server(0).clone();
    restarted.run = Run::new(60, world.reading().real_ns());
    world.replace(1, restarted);
    world.reconnect(1);
    lead_to_another(&mut world, 0, 50);
    examine(&mut world);
    world.run_for(SECOND / 4);
    world.lose(0, 0, true);
    assert_eq!(votes_after_extending(&mut world, lock), Some(2), "there are two servers");
    assert_eq!(world.trusted(0), 2);
    world.lose(0, 0, false);
    world.run_for(QUARANTINE);
    assert_eq!(world.trusted(0), 3, "no vote from before counts any more");
}

/// The votes of a server that was refused did not count. The next server under its name need not wait for their end.
#[test]
fn a_server_is_not_held_back_for_what_did_not_count() {
    let mut world = settled();
    examine(&mut world);
    lead_to_the_first(&mut world, 1);
    acquire(&mut world, Wait::Once);
    assert!((0..2).all(|node| is_refused_as(&world, node, FailureKind::SameServer)));
    world.run_for(QUARANTINE);
    lead_to_another(&mut world, 0, 50);
    world.run_for(5 * SECOND);
    assert_eq!(world.trusted(0), 3);
}

/// A name leads to more servers, one after another, than a client remembers for a name. The last of these servers must
/// not vote until the votes of the first one have expired.
#[test]
fn a_name_that_leads_to_ever_other_servers_waits_until_the_first_ones_votes_cannot_count() {
    let mut world = settled();
    examine(&mut world);
    let last = 50 + 15;
    for run in [50, 0].into_iter().chain(50..=last) {
        world.run_for(SECOND / 4);
        lead_to_another(&mut world, 0, run);
        examine(&mut world);
        assert_eq!(world.trusted(0), if run == last { 2 } else { 3 }, "{run}");
    }
    world.run_for(QUARANTINE);
    assert_eq!(world.trusted(0), 3);
}

/// A server that has just started with an old copy of the data replaces a node's server. The new server must not vote.
#[test]
fn a_server_with_a_copy_that_has_just_started_does_not_vote() {
    let mut world = settled();
    world.lose(0, 2, true);
    let mut copy: ModelNode = world.server(0).clone();
    let lock = acquire(&mut world, Wait::Once);
    copy.run = Run::new(50, world.reading().real_ns());
    world.replace(0, copy);
    world.reconnect(0);
    let rivals = rival_tries(&mut world);
    assert!(is_held(&world, lock) && !is_held(&world, rivals));
}

/// The second client's command to begin the wait for a marker (the adoption) arrives after the first client's marker,
/// and the node must refuse it. Also, the key of an old wait does not count for a node that was just a replica.
#[test]
fn an_adoption_that_comes_behind_the_marker_does_nothing() {
    let mut world = fresh();
    let first = acquire(&mut world, Wait::For(Duration::from_secs(20)));
    world.run_for(13 * SECOND);
    assert_eq!((world.trusted(0), world.outcome(first)), (3, Some(Ok(()))));
    release(&mut world, first);
    // Executes the command again, as if it came late from a client that had read the node before it had a marker.
    let adopts =
        |(to, command): &(usize, &Command)| *to == 0 && matches!(command, Command::Adopt { .. });
    let (_, adopt) = world.orders(0).find(adopts).expect("it was adopted");
    let (adopt, now) = (adopt.clone(), world.now());
    assert_eq!(world.server_mut(0).execute(ConnectionId(9), &adopt, now), Answer::NotMarked);
    assert!(!world.has(0, ADOPTION));
    let Command::Adopt { text, .. } = adopt else { unreachable!("as it was found") };
    write(&mut world, 0, ADOPTION, &text);
    world.run_for(60 * SECOND);
    world.lose(0, 2, true);
    let second = acquire(&mut world, Wait::Once);
    assert!(is_held(&world, second));
    // The node was a replica of its own replica, which lacks the vote for the lock, and is a master again.
    world.server_mut(0).run.promoted_at = Some(16);
    world.forget_key(0, LOCKED);
    let rivals = rival_tries(&mut world);
    assert!(is_held(&world, second));
    assert!(!is_held(&world, rivals), "two hold the lock");
}

/// The servers' clocks were set back, but the client has seen their runs for the whole quarantine, so they vote.
#[test]
fn a_client_that_has_seen_a_run_for_long_enough_does_not_ask_its_clock() {
    let mut world = settled();
    for node in 0..3 {
        world.restart(node, true);
        started_ago(&mut world, node, -3600 * SECOND);
    }
    world.run_for(SECOND);
    let lock = acquire(&mut world, Wait::Forever);
    world.run_for(60 * SECOND);
    assert_eq!(world.outcome(lock), Some(Ok(())), "seen for 60 s: {:?}", world.log().last());
}

#[test]
fn with_one_node_down_and_one_in_quarantine_the_time_of_a_quorum_is_reported() {
    let mut world = settled();
    world.restart(1, true);
    world.lose(0, 2, true);
    let lock = acquire(&mut world, Wait::Once);
    world.run_for(SECOND);
    let refusal = refusal(&world, lock);
    assert_eq!(refusal.kind, RefusalKind::NoQuorum);
    let after = refusal.retry_after.expect("the quarantine has an end");
    let range = Duration::from_secs(10)..Duration::from_secs(14);
    assert!(range.contains(&after), "{after:?}");
}

#[test]
fn a_node_that_is_refused_is_not_healed() {
    let mut world = settled();
    let lock = acquire(&mut world, Wait::Once);
    assert_eq!((world.outcome(lock), asked_for_votes(&world, 2)), (Some(Ok(())), 1));
    world.server_mut(2).run.evicts = true;
    world.reconnect(2);
    world.forget_key(2, LOCKED);
    extend(&mut world, lock);
    let outcomes = world.extended(lock);
    assert!(outcomes.iter().any(|(_, it)| *it == quorlock_core::Extended::Confirmed));
    assert_eq!(asked_for_votes(&world, 2), 1);
}
