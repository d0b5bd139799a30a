//! Locks that outlive their guard: detaching, attaching, extending and releasing them, and locks with the caller's value.

use std::sync::Arc;

use quorlock_core::{
    Command, Effect, EntryOf, Event, FailureKind, Keys, LockId, LossCause, Mode, NodeId,
    NodeOutcome, NodeSet, Origin, Outcome, Quorum, RefusalKind, Request, TakenFrom, Value, Verb,
    Wait,
};
use quorlock_sim::scripted::ScriptedWorld;
use quorlock_sim::scripted::asking::{
    NODE_TIMEOUT, TERM, TTL, attach, automatic, entry_of, fenced, once, request, take, waiting,
};

fn two_clients(nodes: usize) -> ScriptedWorld {
    with_clients(2, nodes)
}

fn with_clients(clients: usize, nodes: usize) -> ScriptedWorld {
    let mut world = ScriptedWorld::with(clients, Quorum::majority(nodes).expect("some nodes"));
    world.shadow();
    world.set_jitter(None);
    world
}

fn only(nodes: &[usize]) -> NodeSet {
    nodes.iter().map(|node| NodeId::new(*node)).collect()
}

/// The text under a key on each node.
fn texts(world: &ScriptedWorld, key: &str) -> Vec<Option<String>> {
    (0..world.node_count()).map(|node| world.text(node, key)).collect()
}

fn kind_of(world: &ScriptedWorld, lock: LockId) -> Option<RefusalKind> {
    world.refused(lock).map(|(_, refusal)| refusal.kind)
}

fn is_attach(command: &Command) -> bool {
    matches!(command, Command::Attach { .. })
}

fn count(world: &ScriptedWorld, client: usize, is_it: fn(&Command) -> bool) -> usize {
    world.orders(client).filter(|(_, command)| is_it(command)).count()
}

#[test]
fn a_detached_lock_stays_on_the_nodes_and_is_neither_extended_nor_released() {
    let mut world = two_clients(3);
    let lock = world.hold(automatic("k"));
    world.run_for(10);
    world.detach(lock);
    assert!(!world.is_valid(lock), "the guard ends first");
    let at = world.now() / 1_000_000;
    assert_eq!(world.detached(lock).len(), 1, "all nodes have answered already");
    let (then, detached) = world.detached(lock).remove(0);
    let detached = detached.expect("it is held");
    assert!(then == at && detached.unanswered.is_empty());
    assert_eq!(detached.validity.votes(world.reading()), 3);
    world.forget_lock(lock);
    world.run_for(TTL - 100);
    assert!((0..3).all(|node| world.has(node, "k")));
    let none = |is_it| assert_eq!(count(&world, 0, is_it), 0);
    none(|it| matches!(it, Command::Extend { .. } | Command::Release { .. }));
    world.run_for(200);
    world.finish();
}

#[test]
fn detaching_waits_for_acquires_and_lists_the_nodes_that_do_not_answer() {
    let mut world = two_clients(5);
    world.set_one_way(3, 8);
    world.mute(4, true);
    let lock = world.hold(request("k"));
    world.detach(lock);
    assert!(world.detached(lock).is_empty(), "two nodes have not answered");
    world.run_for(20);
    assert!(world.detached(lock).is_empty(), "one node has not answered");
    world.run_for(NODE_TIMEOUT);
    let (at, detached) = world.detached(lock).remove(0);
    assert_eq!(detached.expect("it is held").unanswered, only(&[4]));
    assert!((NODE_TIMEOUT..NODE_TIMEOUT + 5).contains(&at), "{at}");
    world.mute(4, false);
    world.forget_lock(lock);
    world.run_for(TTL);
    world.finish();
}

#[test]
fn detaching_lists_a_node_whose_heal_may_come_later_and_heals_no_more() {
    let mut world = two_clients(5);
    world.promise_nothing();
    let lock = world.hold(request("k"));
    world.run_for(10);
    [0, 1].into_iter().for_each(|node| world.forget_key(node, "k"));
    world.hold_back(0, 0, |it| matches!(it, Command::Heal { .. }));
    world.extend(lock);
    world.run_for(6);
    assert!(world.has(1, "k") && !world.has(0, "k"), "one node is healed, one heal is in flight");
    world.forget_key(1, "k");
    world.extend(lock);
    world.detach(lock);
    world.run_for(NODE_TIMEOUT + 5);
    let (_, detached) = world.detached(lock).remove(0);
    assert_eq!(detached.expect("it is held").unanswered, only(&[0]));
    assert!(!world.has(1, "k"), "no heal after the call");
    world.let_go(0, 0);
    world.release(lock, false);
    world.run_for(50);
    world.finish();
}

#[test]
fn a_release_before_the_lock_is_forgotten_releases_it_and_a_loss_is_reported() {
    let mut world = two_clients(3);
    for is_reported in [false, true] {
        world.mute(2, !is_reported);
        let lock = world.hold(request("k"));
        world.run_for(10);
        world.detach(lock);
        assert_eq!(world.detached(lock).len(), usize::from(is_reported));
        world.release(lock, false);
        world.mute(2, false);
        world.run_for(50);
        assert_eq!(texts(&world, "k"), [None, None, None]);
    }
    world.promise_nothing();
    world.mute(2, true);
    let lost = world.hold(request("k"));
    world.extend(lost);
    [0, 1].into_iter().for_each(|node| world.forget_key(node, "k"));
    world.detach(lost);
    world.run_for(10);
    assert_eq!(world.detached(lost).len(), 1);
    assert!(world.detached(lost)[0].1.is_none(), "answers have shown that the lock is gone");
    world.detach(lost);
    world.tell(0, Event::Detach { lock: lost });
    assert!(world.detached(lost)[1].1.is_none());
    world.finish();
}

/// After the caller has received the detached lock, only the caller ends it: a shutdown releases nothing.
#[test]
fn a_lock_that_was_reported_as_detached_is_not_released_by_a_loss() {
    let mut world = two_clients(3);
    let lock = world.hold(request("k"));
    world.run_for(10);
    world.detach(lock);
    world.tell(0, Event::Close);
    world.run_for(10);
    assert_eq!(world.lost(lock).map(|(_, cause)| cause), Some(LossCause::Shutdown));
    assert_eq!(world.detached(lock).len(), 1, "it is reported once");
    assert!((0..3).all(|node| world.has(node, "k")));
    world.forget_lock(lock);
    assert_eq!(count(&world, 0, Command::is_release), 0);
}

#[test]
fn another_client_attaches_with_a_value_of_its_own_and_extends_and_releases() {
    let mut world = two_clients(5);
    let detached = world.detach_new(automatic("k"));
    let old = world.text(0, "k");
    world.run_for(TTL / 2);
    let lock = world.acquire_by(1, attach(&detached, automatic("k")));
    world.run_for(10);
    assert!(world.is_valid(lock) && world.votes(lock) == 5);
    assert!(world.valid_for(lock) > TERM - 15, "votes count from this attempt");
    assert!(texts(&world, "k").iter().all(|it| it.is_some() && *it != old));
    world.run_for(2 * TTL);
    assert!(world.is_valid(lock), "it is extended like any other lock");
    let second = world.acquire(attach(&detached, once("k")));
    let plain = world.acquire(once("k"));
    world.run_for(20);
    assert_eq!(kind_of(&world, second), Some(RefusalKind::Contended), "v is used up");
    assert_eq!(kind_of(&world, plain), Some(RefusalKind::Contended));
    world.release(lock, true);
    world.run_for(10);
    assert!(world.released(lock).is_some_and(|(_, it)| it.outcome == Outcome::Released));
    world.finish();
}

#[test]
fn a_lock_that_ended_cannot_be_attached() {
    let mut world = two_clients(3);
    let detached = world.detach_new(request("k"));
    world.run_for(TTL + 10);
    let late = world.acquire_by(1, attach(&detached, request("k")));
    world.run_for(20);
    assert_eq!(kind_of(&world, late), Some(RefusalKind::Gone));
    let other = world.hold(request("k"));
    let late = world.acquire_by(1, attach(&detached, request("k")));
    world.run_for(20);
    assert_eq!(kind_of(&world, late), Some(RefusalKind::Contended), "a quorum names one holder");
    assert!(world.is_valid(other) && count(&world, 1, is_attach) == 9);
    world.finish();
}

/// Callers of the same client wait for the detached lock. A call that attaches does not wait behind them.
#[test]
fn attaching_does_not_wait_in_the_local_queue_and_wakes_it_at_the_end() {
    let mut world = two_clients(3);
    let detached = world.detach_new(request("k"));
    let waits = world.acquire(request("k"));
    world.run_for(10);
    let lock = world.acquire(attach(&detached, request("k")));
    world.run_for(10);
    assert!(world.is_valid(lock) && world.granted_at(waits).is_none());
    world.release(lock, false);
    world.run_for(20);
    assert!(world.granted_at(waits).is_some(), "no push tells a client of its own release");
    world.finish();
}

#[test]
fn readers_and_locks_of_several_keys_are_attached_as_a_whole() {
    let mut world = two_clients(3);
    let reader = Request { mode: Mode::Shared, ..request("k") };
    let detached = world.detach_new(reader.clone());
    let other = world.hold(reader.clone());
    let lock = world.acquire_by(1, attach(&detached, reader));
    world.run_for(10);
    assert!(world.is_valid(lock) && world.is_valid(other) && world.votes(lock) == 3);
    world.release(lock, false);
    world.release(other, false);
    world.run_for(10);
    let keys = Keys::new(["a".into(), "b".into()]).expect("two keys");
    let detached = world.detach_new(Request { keys, ..request("a") });
    let lock = world.acquire_by(1, attach(&detached, request("a")));
    world.run_for(10);
    assert!(world.is_valid(lock));
    assert!(texts(&world, "a").iter().flatten().eq(texts(&world, "b").iter().flatten()));
    world.finish();
}

/// A node without `b` answers *absent*, and its `a` keeps the old value, which would keep the holder from this node. The
/// answer may come after the others have decided the attempt.
#[test]
fn an_attach_of_several_keys_releases_what_a_node_without_one_of_them_has_left() {
    for node in 0..3 {
        let mut world = two_clients(3);
        world.promise_nothing();
        let keys = Keys::new(["a".into(), "b".into()]).expect("two keys");
        let detached = world.detach_new(Request { keys, ..request("a") });
        world.forget_key(node, "b");
        let lock = world.acquire_by(1, attach(&detached, automatic("a")));
        world.run_for(TTL / 2);
        assert!(world.is_valid(lock) && world.votes(lock) == 3, "node {node} is healed");
        world.finish();
    }
}

#[test]
fn a_fenced_attach_gets_a_larger_number_in_one_round() {
    let mut world = two_clients(3);
    let lock = world.hold(fenced(request("k")));
    let before = world.fence(lock);
    world.run_for(10);
    world.detach(lock);
    let detached = world.detached(lock).remove(0).1.expect("it is held");
    world.forget_lock(lock);
    let lock = world.acquire_by(1, attach(&detached, fenced(request("k"))));
    world.run_for(10);
    assert!(world.fence(lock) > before && world.is_valid(lock));
    assert_eq!(count(&world, 1, |it| matches!(it, Command::Raise { .. })), 0);
    world.finish();
}

#[test]
fn a_failed_attach_gives_the_lock_back_and_another_one_gets_it() {
    let mut world = two_clients(3);
    let detached = world.detach_new(request("k"));
    let old = texts(&world, "k");
    [1, 2].into_iter().for_each(|node| world.refuse(node, Some(FailureKind::ReadOnly)));
    let fails = world.acquire(attach(&detached, once("k")));
    world.run_for(10);
    assert_eq!(kind_of(&world, fails), Some(RefusalKind::NoQuorum));
    let cancelled = world.acquire(attach(&detached, request("k")));
    world.run_till(1 + world.now() / 1_000_000, |world| texts(world, "k") != old);
    world.cancel(cancelled);
    world.run_for(10);
    assert_eq!(texts(&world, "k"), old);
    [1, 2].into_iter().for_each(|node| world.refuse(node, None));
    let lock = world.acquire_by(1, attach(&detached, request("k")));
    world.run_for(10);
    assert!(world.is_valid(lock));
    world.finish();
}

#[test]
fn an_attach_that_comes_too_late_for_a_quorum_releases_its_own_value() {
    let mut world = two_clients(3);
    world.promise_nothing();
    let detached = world.detach_new(request("k"));
    [1, 2].into_iter().for_each(|node| world.forget_key(node, "k"));
    let lock = world.acquire_by(1, attach(&detached, request("k")));
    world.run_for(20);
    assert_eq!(kind_of(&world, lock), Some(RefusalKind::Gone));
    assert_eq!(texts(&world, "k"), [None, None, None]);
    assert_eq!(count(&world, 1, |it| matches!(it, Command::GiveBack { .. })), 0);
    world.finish();
}

/// Two or three clients attach the same lock at one moment, and each gets the votes of some nodes.
#[test]
fn a_split_between_attaching_clients_ends_with_one_holder() {
    for (nodes, split) in [(4, &[0, 0, 1, 1][..]), (5, &[0, 0, 1, 1, 1]), (5, &[0, 0, 1, 1, 2])] {
        let clients = 1 + split.iter().max().expect("some nodes");
        let mut world = with_clients(clients, nodes);
        let detached = world.detach_new(request("k"));
        for client in 0..clients {
            for (node, its) in split.iter().enumerate() {
                world.set_one_way_of(client, node, if *its == client { 1 } else { 3 });
            }
        }
        let calls: Vec<LockId> = (0..clients)
            .map(|client| world.acquire_by(client, attach(&detached, automatic("k"))))
            .collect();
        world.run_for(5);
        (0..nodes).for_each(|node| world.set_one_way(node, 1));
        world.run_for(500);
        let held = calls.iter().filter(|lock| world.is_valid(**lock)).count();
        assert_eq!(held, 1, "{split:?}");
        world.run_for(TTL / 2);
        let holder = *calls.iter().find(|lock| world.is_valid(**lock)).expect("one");
        assert_eq!(world.votes(holder), nodes, "nothing of the old value is in the way");
        let kinds: Vec<_> = calls.iter().filter_map(|lock| kind_of(&world, *lock)).collect();
        assert_eq!(kinds, vec![RefusalKind::Contended; clients - 1], "{split:?}");
        world.finish();
    }
}

/// Nodes that had not answered when the lock was detached may set its value later, so no attach or extension asks them.
#[test]
fn nodes_that_had_not_answered_give_no_vote() {
    let mut world = two_clients(5);
    let mut detached = world.detach_new(request("k"));
    detached.unanswered = only(&[0, 1]);
    let lock = world.acquire_by(1, attach(&detached, request("k")));
    let extended = world.extend_entry(0, entry_of(&detached));
    world.run_for(10);
    assert_eq!((world.votes(lock), world.sent(lock, Verb::Acquire, 0).len()), (3, 0));
    assert!(world.sent(extended, Verb::Extend, 1).is_empty());
    world.release(lock, false);
    world.run_for(TTL);
    for unanswered in [&[0, 1, 2][..], &[0, 1, 2, 3, 4]] {
        let mut detached = world.detach_new(request("k"));
        detached.unanswered = only(unanswered);
        let hopeless = world.acquire_by(1, attach(&detached, request("k")));
        let extended = world.extend_entry(1, entry_of(&detached));
        world.run_for(10);
        assert_eq!(kind_of(&world, hopeless), Some(RefusalKind::NoQuorum), "{unanswered:?}");
        assert_eq!(world.entry_extended(extended).map(|(_, left, _)| left), Some(None));
        world.run_for(TTL);
    }
    world.finish();
}

/// Each attempt to attach prolongs the keys. Without a limit, the keys would live as long as the caller waits in vain.
#[test]
fn attaching_takes_at_most_one_ttl() {
    let mut world = two_clients(3);
    let detached = world.detach_new(request("k"));
    [1, 2].into_iter().for_each(|node| world.refuse(node, Some(FailureKind::Busy)));
    let wait = Request { wait: Wait::Forever, ..request("k") };
    let calls = [wait, waiting("k", 100)].map(|it| world.acquire_by(1, attach(&detached, it)));
    world.run_for(TTL + NODE_TIMEOUT);
    let ends = calls.map(|lock| world.refused(lock).expect("both have ended").0);
    assert!((100..120).contains(&ends[1]) && (TTL - 20..TTL + 30).contains(&ends[0]), "{ends:?}");
    world.run_for(2 * TTL);
    world.finish();
}

#[test]
fn an_extension_by_value_counts_this_calls_confirmations_alone() {
    let mut world = two_clients(5);
    let detached = world.detach_new(request("k"));
    world.run_for(TTL / 2);
    [3, 4].into_iter().for_each(|node| world.mute(node, true));
    let extended = world.extend_entry(1, entry_of(&detached));
    world.run_for(NODE_TIMEOUT + 5);
    let (at, valid_for, confirmed) = world.entry_extended(extended).expect("it is answered");
    assert!(valid_for.is_some_and(|left| left > TERM - 5) && confirmed == 3, "{valid_for:?}");
    assert!(at < TTL / 2 + 30, "a quorum is enough: {at}");
    world.mute(2, true);
    let fails = world.extend_entry(1, entry_of(&detached));
    world.run_for(NODE_TIMEOUT + 5);
    assert_eq!(world.entry_extended(fails).map(|(_, left, _)| left), Some(None));
    (0..5).for_each(|node| world.mute(node, false));
    world.run_for(TTL + 10);
    let late = world.extend_entry(1, entry_of(&detached));
    world.run_for(10);
    assert_eq!(world.entry_extended(late).map(|(_, left, count)| (left, count)), Some((None, 0)));
    world.finish();
}

#[test]
fn a_release_by_value_wakes_local_callers_and_is_owed_where_it_fails() {
    let mut world = two_clients(3);
    let detached = world.detach_new(request("k"));
    let waits = world.acquire_by(1, request("k"));
    world.run_for(10);
    let released = world.release_entry(1, entry_of(&detached));
    world.run_for(20);
    assert!(world.released(released).is_some_and(|(_, it)| it.outcome == Outcome::Released));
    assert!(world.granted_at(waits).is_some());
    world.release(waits, false);
    world.run_for(300);
    let detached = world.detach_new(request("k"));
    world.down(2);
    let released = world.release_entry(1, entry_of(&detached));
    world.run_for(20);
    assert!(world.released(released).is_some() && world.has(2, "k"));
    world.up(2);
    world.run_for(300);
    assert!(!world.has(2, "k"), "it is sent again");
    world.finish();
}

#[test]
fn a_give_back_that_fails_is_sent_again() {
    let mut world = two_clients(3);
    let detached = world.detach_new(request("k"));
    let old = world.text(0, "k");
    [1, 2].into_iter().for_each(|node| world.freeze(node, true));
    world.mute(0, true);
    let fails = world.acquire_by(1, attach(&detached, waiting("k", 20)));
    world.run_for(15);
    world.down(0);
    world.run_for(10);
    assert!(world.refused(fails).is_some() && world.text(0, "k") != old);
    world.mute(0, false);
    world.up(0);
    world.run_for(200);
    assert_eq!(world.text(0, "k"), old);
    [1, 2].into_iter().for_each(|node| world.freeze(node, false));
    world.run_for(10);
    assert_eq!(texts(&world, "k"), vec![old; 3]);
    world.run_for(2 * TTL);
    world.finish();
}

#[test]
fn a_lock_with_the_callers_value_is_taken_extended_and_released_by_its_nonce() {
    let mut world = two_clients(3);
    let lock = world.hold(take("k", "worker"));
    world.run_for(10);
    assert_eq!(texts(&world, "k"), vec![Some("worker".to_owned()); 3]);
    let equal = world.acquire_by(1, Request { wait: Wait::Once, ..take("k", "worker") });
    let plain = world.acquire_by(1, once("k"));
    world.run_for(20);
    assert_eq!(kind_of(&world, equal), Some(RefusalKind::Contended), "equal, and another's");
    assert!(kind_of(&world, plain).is_some() && world.is_valid(lock));
    assert_eq!(texts(&world, "k"), vec![Some("worker".to_owned()); 3], "a failed take is clean");
    world.run_for(TTL / 2);
    world.extend(lock);
    world.run_for(10);
    assert!(world.valid_for(lock) > TERM - 15);
    world.promise_nothing();
    world.forget_key(0, "k");
    world.extend(lock);
    world.run_for(10);
    assert!(!world.has(0, "k") && world.votes(lock) == 2, "it is not healed");
    world.release(lock, false);
    world.run_for(10);
    assert!([1, 2].iter().all(|node| world.locks(*node).next().is_none()), "with its nonce");
    world.run_for(TTL);
    world.finish();
}

/// An extension that compares only the value replaces the nonce. So a release with the earlier nonce does nothing.
#[test]
fn the_forms_that_compare_the_value_alone_replace_the_nonce() {
    let mut world = two_clients(3);
    let taken = world.detach_new(take("k", "worker"));
    let mut by_value = entry_of(&taken);
    by_value.entry.value = Value::of_caller(b"another nonce");
    let Origin::Taken(from) = &by_value.entry.origin else { unreachable!("it was taken") };
    let from = TakenFrom { by_value: true, ..(**from).clone() };
    by_value.entry.origin = Origin::Taken(Arc::new(from));
    let extended = world.extend_entry(1, by_value.clone());
    world.run_for(10);
    assert!(world.entry_extended(extended).is_some_and(|(_, left, _)| left.is_some()));
    let stale = world.release_entry(0, entry_of(&taken));
    world.run_for(10);
    assert_ne!(world.released(stale).expect("answered").1.outcome, Outcome::Released);
    assert!((0..3).all(|node| world.has(node, "k")));
    let EntryOf { entry, .. } = &by_value;
    assert_eq!(world.text(0, "quorlock:take:k").as_deref(), Some("another nonce"), "{entry:?}");
    let released = world.release_entry(1, by_value);
    world.run_for(10);
    assert!(world.released(released).is_some_and(|(_, it)| it.outcome == Outcome::Released));
    world.finish();
}

/// Node 0 has lost the lock, node 1 has another client's value, and node 2 is busy. The report distinguishes them.
#[test]
fn the_report_of_a_failed_attach_has_the_answer_of_each_node() {
    let mut world = two_clients(3);
    world.promise_nothing();
    let detached = world.detach_new(request("k"));
    world.forget_key(0, "k");
    world.occupy(1, "k", b"another's", None);
    world.refuse(2, Some(FailureKind::Busy));
    let fails = world.acquire_by(1, attach(&detached, once("k")));
    world.run_for(10);
    let (_, refusal) = world.refused(fails).expect("it fails");
    assert!(matches!(refusal.nodes[0].said, NodeOutcome::Seen(_)), "{refusal:?}");
    assert!(matches!(refusal.nodes[1].said, NodeOutcome::Refused(Some(_))), "{refusal:?}");
    assert!(matches!(refusal.nodes[2].said, NodeOutcome::Failed(_)), "{refusal:?}");
    let is_waiting = |(.., effect): &(_, _, Effect)| matches!(effect, Effect::Waiting { .. });
    assert!(!world.log().iter().any(is_waiting), "it tries once");
    world.refuse(2, None);
    world.run_for(2 * TTL);
    world.finish();
}
