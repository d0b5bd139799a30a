//! Nodes that have the adoption of another configuration, the text by which its clients begin to take a node into use.

use quorlock_core::Adopted;
use quorlock_sim::scripted::asking::automatic;

use super::*;

/// Another configuration, with one node and a longer ttl.
fn alone() -> Cluster {
    Cluster::new(["x"], 1, 3 * MAX_TTL)
}

/// Another configuration, with three nodes.
fn three() -> Cluster {
    Cluster::new(["x", "y", "z"], 2, MAX_TTL)
}

/// Restarts a node without its data. Then a client of another configuration begins to take the node into use.
fn stray(world: &mut ScriptedWorld, node: usize, cluster: Cluster, more: &str) -> String {
    world.restart(node, false);
    let wait_ms = cluster.max_ttl_ms() + cluster.max_ttl_ms() / 100 + 2_000;
    let run_id = run_id(world, node).into();
    let marker = Marker { cluster, run_id, promoted_at: -1, floor: 1 << 50 };
    let text = format!("{} since=1{more}", Adoption { marker, wait_ms });
    write(world, node, ADOPTION, &text);
    text
}

fn adoption(world: &ScriptedWorld, node: usize) -> Adoption {
    Adoption::parse(&world.text(node, ADOPTION).expect("it is adopted")).expect("by one of us")
}

/// Writes the marker of another configuration, as its clients do when the wait of this adoption is over.
fn mark_for_others(world: &mut ScriptedWorld, node: usize, adoption: &str) -> Answer {
    let text = Adoption::parse(adoption).expect("an adoption").marker.to_string().into();
    let adoption = Some(Adopted { key: ADOPTION.into(), text: adoption.into(), age_ms: 0 });
    let command = Command::Mark { key: MARKER.into(), text, replaces: None, adoption };
    let now = world.now();
    world.server_mut(node).execute(ConnectionId(99), &command, now)
}

/// A client calls for the lock, and hears of the last nodes before the first ones vote.
fn call(world: &mut ScriptedWorld, client: usize, wait: Wait) -> LockId {
    (0..2).for_each(|node| world.set_one_way_of(client, node, 5));
    let lock = acquire_by(world, client, wait);
    world.run_for(SECOND);
    lock
}

fn is_barred(world: &ScriptedWorld, lock: LockId) -> bool {
    let is_named = failures(world, lock).contains(&FailureKind::OtherConfiguration);
    refusal(world, lock).kind == RefusalKind::NodesUntrusted && is_named
}

fn is_replacement(command: &Command) -> bool {
    matches!(command, Command::Adopt { replaces: Some(_), .. })
}

#[test]
fn an_adoption_of_others_that_can_have_no_quorum_is_replaced_and_the_lock_is_granted() {
    let mut world = settled();
    let theirs = stray(&mut world, 2, alone(), "");
    let client = another(&mut world);
    let lock = call(&mut world, client, Wait::Once);
    assert_eq!(world.outcome(lock), Some(Ok(())));
    let ours = adoption(&world, 2);
    assert_eq!(ours.marker.cluster, cluster());
    assert_eq!(ours.wait_ms, 32_300, "the longer of the two waits");
    assert_eq!(ours.marker.floor, 1 << 50, "the larger of the two floors");
    assert_eq!(mark_for_others(&mut world, 2, &theirs), Answer::NotMarked);
    world.run_for(30 * SECOND);
    assert_eq!(world.trusted(client), 2);
    world.run_for(3 * SECOND);
    assert_eq!(world.trusted(client), 3);
    assert!(marker(&world, 2).floor >= 1 << 50);
}

#[test]
fn nothing_is_granted_before_the_replacement_is_confirmed() {
    for is_marked in [false, true] {
        let mut world = settled();
        let theirs = stray(&mut world, 2, alone(), "");
        let client = another(&mut world);
        world.hold_back(client, 2, is_replacement);
        let lock = call(&mut world, client, Wait::For(Duration::from_secs(5)));
        assert_eq!(world.outcome(lock), None);
        assert!(!world.has(0, LOCKED) && !world.has(1, LOCKED), "votes are released");
        if is_marked {
            assert_eq!(mark_for_others(&mut world, 2, &theirs), Answer::Marked);
        }
        world.let_go(client, 2);
        world.run_for(SECOND);
        if is_marked {
            assert!(is_barred(&world, lock), "the others were quicker");
            assert!(!world.has(2, ADOPTION));
        } else {
            assert_eq!(world.outcome(lock), Some(Ok(())));
        }
    }
}

/// The replacement is lost with its connection. As long as the client does not know what became of it, it grants
/// nothing.
#[test]
fn a_node_that_goes_away_with_the_adoption_of_others_bars_until_it_is_heard() {
    let mut world = settled();
    stray(&mut world, 2, alone(), "");
    world.hold_back(0, 2, is_replacement);
    let lock = call(&mut world, 0, Wait::For(Duration::from_secs(2)));
    world.down(2);
    world.run_for(3 * SECOND);
    assert!(is_barred(&world, lock));
    world.lose(0, 2, false);
    world.up(2);
    world.run_for(3 * SECOND);
    let lock = call(&mut world, 0, Wait::Once);
    assert_eq!(
        (world.outcome(lock), adoption(&world, 2).marker.cluster),
        (Some(Ok(())), cluster())
    );
}

/// The client has asked a node for its adoption. Before the answer arrives, a new connection says that the server loads
/// its data, which ends the examination.
#[test]
fn an_adoption_of_others_bars_even_if_the_examination_has_ended() {
    let mut world = settled();
    let client = another(&mut world);
    stray(&mut world, 2, three(), "");
    world.hold_back(client, 2, |command| matches!(command, Command::Adopt { .. }));
    (0..2).for_each(|node| world.set_one_way_of(client, node, 20));
    let lock = acquire_by(&mut world, client, Wait::Once);
    world.run_for(10);
    world.say(2, "loading", "1");
    world.reconnect(2);
    world.run_for(10);
    world.say(2, "loading", "0");
    world.let_go(client, 2);
    world.run_for(SECOND);
    assert!(is_barred(&world, lock), "{:?}", world.outcome(lock));
}

#[test]
fn an_adoption_of_others_that_may_have_a_quorum_bars() {
    let mut world = settled();
    let theirs = stray(&mut world, 2, three(), "");
    let lock = call(&mut world, 0, Wait::For(Duration::from_secs(60)));
    assert!(is_barred(&world, lock));
    assert_eq!(refusal(&world, lock).retry_after, None, "time does not mend it");
    assert_eq!(world.text(2, ADOPTION), Some(theirs));
    // The client examines the node again and again. No examination is an opening for a lock.
    (0..2).for_each(|node| world.set_one_way(node, 0));
    world.set_one_way(2, 50);
    for _ in 0..100 {
        let lock = acquire(&mut world, Wait::For(Duration::from_millis(20)));
        world.run_for(50);
        assert!(is_barred(&world, lock), "at {}", world.now());
    }
}

/// Two of the three nodes of the other configuration have its adoption alone, so the third one is no quorum.
#[test]
fn nodes_are_counted_that_have_the_same_adoption() {
    let names = ["a", "b", "c", "d", "e"].map(Arc::from).to_vec();
    let five = Cluster::new(&names, 3, MAX_TTL);
    let rules = Rules { cluster: five.clone(), names, ..rules(RestartGuard::Strict) };
    for (others, is_granted) in [([three(), three()], true), ([three(), alone()], false)] {
        let mut world = ScriptedWorld::guarded(std::slice::from_ref(&rules));
        for node in 0..5 {
            world.set_one_way(node, if node == 2 { 5 } else { 0 });
            let run_id = run_id(&world, node).into();
            let cluster = five.clone();
            mark(&mut world, node, &Marker { cluster, run_id, promoted_at: -1, floor: 0 });
        }
        for (node, cluster) in (3..5).zip(others) {
            stray(&mut world, node, cluster, "");
        }
        let lock = call(&mut world, 0, Wait::For(Duration::from_secs(1)));
        world.run_for(SECOND);
        assert_eq!(world.outcome(lock) == Some(Ok(())), is_granted);
        let is_ours = |node| adoption(&world, node).marker.cluster == five;
        assert_eq!((is_ours(3), is_ours(4)), (is_granted, true));
    }
}

#[test]
fn a_client_without_a_quorum_of_its_own_replaces_nothing() {
    let mut world = settled();
    world.restart(1, false);
    let theirs = stray(&mut world, 2, alone(), "");
    let lock = call(&mut world, 0, Wait::For(Duration::from_secs(60)));
    assert!(is_barred(&world, lock));
    assert_eq!(world.text(2, ADOPTION), Some(theirs));
    // Another node has ended its wait, so there is a quorum.
    world.run_for(QUARANTINE + 4 * SECOND);
    assert_eq!(adoption(&world, 2).marker.cluster, cluster());
    let lock = call(&mut world, 0, Wait::Once);
    assert_eq!(world.outcome(lock), Some(Ok(())));
}

/// The node with the adoption of others answers first, and a node that the quorum needs answers last.
#[test]
fn nodes_that_answer_late_are_waited_for() {
    let mut world = settled();
    stray(&mut world, 2, alone(), "");
    let client = another(&mut world);
    world.set_one_way_of(client, 0, 5);
    world.set_one_way_of(client, 1, 20);
    let lock = acquire_by(&mut world, client, Wait::Once);
    world.run_for(2 * SECOND);
    assert_eq!(world.outcome(lock), Some(Ok(())));
    assert_eq!(adoption(&world, 2).marker.cluster, cluster());
}

#[test]
fn a_node_that_an_operator_has_moved_is_not_taken_back() {
    let mut world = settled();
    let theirs = stray(&mut world, 2, alone(), " moved=1");
    let lock = call(&mut world, 0, Wait::For(Duration::from_secs(60)));
    assert!(is_barred(&world, lock));
    assert_eq!(world.text(2, ADOPTION), Some(theirs));
}

#[test]
fn a_marker_of_others_bars_however_few_nodes_they_have() {
    let mut world = settled();
    let theirs = stray(&mut world, 2, alone(), "");
    assert_eq!(mark_for_others(&mut world, 2, &theirs), Answer::Marked);
    let lock = call(&mut world, 0, Wait::For(Duration::from_secs(60)));
    assert!(is_barred(&world, lock));
    assert!(world.has(2, MARKER));
}

/// The server restarts, and loads its data. Its next word is that it has no marker any more.
#[test]
fn a_marker_of_others_bars_until_the_node_says_otherwise() {
    for is_readable in [true, false] {
        let mut world = settled();
        let theirs = stray(&mut world, 2, alone(), "");
        assert_eq!(mark_for_others(&mut world, 2, &theirs), Answer::Marked);
        if !is_readable {
            write(&mut world, 2, MARKER, "quorlock 2 of a later version");
        }
        let lock = call(&mut world, 0, Wait::Once);
        assert!(is_barred(&world, lock));
        world.restart(2, true);
        world.server_mut(2).health = Health::Refusing(FailureKind::Loading);
        world.run_for(3 * SECOND);
        let lock = call(&mut world, 0, Wait::Once);
        assert_eq!(refusal(&world, lock).kind, RefusalKind::NodesUntrusted);
        world.server_mut(2).health = Health::Good;
        world.restart(2, false);
        world.run_for(3 * SECOND);
        let lock = call(&mut world, 0, Wait::Once);
        assert_eq!(world.outcome(lock), Some(Ok(())));
    }
}

#[test]
fn an_adoption_that_cannot_be_read_bars_while_the_server_is_busy() {
    let mut world = settled();
    stray(&mut world, 2, alone(), "");
    write(&mut world, 2, ADOPTION, "quorlock 2 of a later version");
    let lock = call(&mut world, 0, Wait::Once);
    assert!(is_barred(&world, lock));
    world.server_mut(2).health = Health::Refusing(FailureKind::Busy);
    world.run_for(3 * SECOND);
    let lock = call(&mut world, 0, Wait::Once);
    assert_eq!(refusal(&world, lock).kind, RefusalKind::NodesUntrusted);
}

/// A client may have no right to `INFO`, or the node has replicas that nobody declared. Both concern this client alone.
#[test]
fn a_marker_of_others_bars_without_a_right_to_read_info() {
    let mut world = settled();
    let theirs = stray(&mut world, 2, alone(), "");
    assert_eq!(mark_for_others(&mut world, 2, &theirs), Answer::Marked);
    world.refuse_info(2, "ERR unknown command 'INFO'");
    let lock = call(&mut world, 0, Wait::For(Duration::from_secs(60)));
    assert!(is_barred(&world, lock));
}

/// The marker changes on a living connection. The answer with the client's vote shows it. The other nodes' votes arrive
/// before the node has been examined.
#[test]
fn a_marker_of_others_bars_from_the_vote_that_shows_it() {
    let mut world = settled();
    let lock = acquire(&mut world, Wait::Once);
    release(&mut world, lock);
    assert_eq!(world.trusted(0), 3);
    let theirs = Marker { cluster: alone(), ..marker(&world, 2) };
    mark(&mut world, 2, &theirs);
    world.hold_back(0, 2, |command| *command == Command::Identify);
    let lock = call(&mut world, 0, Wait::Once);
    assert!(is_barred(&world, lock), "{:?}", world.outcome(lock));
}

/// The server restarts without its data, and a client of the other configuration begins to take it into use again.
#[test]
fn a_marker_of_others_that_is_gone_bars_until_the_adoption_is_read() {
    let mut world = settled();
    let theirs = stray(&mut world, 2, three(), "");
    assert_eq!(mark_for_others(&mut world, 2, &theirs), Answer::Marked);
    let lock = call(&mut world, 0, Wait::Once);
    assert!(is_barred(&world, lock));
    stray(&mut world, 2, three(), "");
    world.hold_back(0, 2, |command| matches!(command, Command::Adopt { .. }));
    world.run_for(3 * SECOND);
    for _ in 0..2 {
        let lock = call(&mut world, 0, Wait::Once);
        assert!(is_barred(&world, lock), "{:?}", world.outcome(lock));
        world.let_go(0, 2);
        world.run_for(SECOND);
    }
}

/// A master that evicts keys keeps a marker for locks that it granted before. The key of the marker gets another type,
/// so the marker cannot be read.
#[test]
fn a_marker_of_others_that_cannot_be_read_again_bars_on_a_node_that_evicts() {
    let mut world = settled();
    let theirs = stray(&mut world, 2, alone(), "");
    assert_eq!(mark_for_others(&mut world, 2, &theirs), Answer::Marked);
    world.say(2, "maxmemory", "1");
    world.say(2, "maxmemory_policy", "allkeys-lru");
    let lock = call(&mut world, 0, Wait::Once);
    assert!(is_barred(&world, lock));
    world.occupy_with(2, MARKER, None, None);
    world.run_for(3 * SECOND);
    let lock = call(&mut world, 0, Wait::Once);
    assert!(is_barred(&world, lock), "{:?}", world.outcome(lock));
}

/// Two clients see the adoption of others at the same moment. The second one finds the replacement of the first one.
#[test]
fn two_clients_may_replace_an_adoption_at_the_same_time() {
    let mut world = settled();
    stray(&mut world, 2, alone(), "");
    let clients = [another(&mut world), another(&mut world)];
    clients.iter().for_each(|client| world.hold_back(*client, 2, is_replacement));
    let locks = clients.map(|client| call(&mut world, client, Wait::For(Duration::from_secs(5))));
    for (client, lock) in clients.into_iter().zip(locks) {
        let before = world.text(2, ADOPTION);
        world.let_go(client, 2);
        world.run_for(SECOND);
        assert_eq!(world.text(2, ADOPTION) != before, client == clients[0]);
        assert_eq!(world.outcome(lock), Some(Ok(())));
        release(&mut world, lock);
    }
}

/// A holder that is there already goes on, also while another configuration's adoption bars new locks.
#[test]
fn a_held_lock_is_extended_although_new_ones_are_barred() {
    let mut world = settled();
    let lock = world.acquire(Request { wait: Wait::Once, ..automatic(LOCKED) });
    world.run_for(SECOND);
    stray(&mut world, 2, three(), "");
    world.run_for(2 * SECOND);
    let barred = another(&mut world);
    let other = call(&mut world, barred, Wait::Once);
    assert!(is_barred(&world, other));
    world.run_for(20 * SECOND);
    assert!(is_held(&world, lock));
    assert_eq!(world.votes(lock), 2);
}
