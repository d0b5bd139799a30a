//! Releases: their reports, owed releases (those that failed and are sent again), and the shutdown of the client.

use std::time::Duration;

use quorlock_core::{
    Answer, Effect, Engine, Event, Evidence, Failure, FailureKind, LockId, LossCause, Mode, NodeId,
    NodeOutcome, NodeReleased, Outcome, Quorum, Reading, RefusalKind, ReleaseReport, Ticket, Token,
    Verb,
};

use quorlock_sim::scripted::ScriptedWorld;
use quorlock_sim::scripted::asking::{NODE_TIMEOUT, TERM, TTL, automatic, once, request, waiting};
use quorlock_sim::time::MS;

fn at(ms: i64) -> Reading {
    Reading::new(ms * MS, ms * MS)
}

/// An engine, without a simulated network, that holds a lock with the votes of some nodes.
struct Held {
    engine: Engine,
    out: Vec<Effect>,
}

const LOCK: LockId = LockId(0);

/// The engine's source of tokens and random words. It gives each attempt the same ones.
fn entropy(_: LockId) -> (Token, u64) {
    (Token::new([1; Token::BYTES]), 0)
}

impl Held {
    fn with_votes_of(quorum: Quorum, voted: u32) -> Self {
        let mut held = Self { engine: Engine::new(quorum), out: Vec::new() };
        held.tell(Event::Acquire { lock: LOCK, request: request("k") }, 0);
        // The grants come first, so that the lock is held before the other answers.
        for granted in [true, false] {
            for node in quorum.node_ids().filter(|node| granted == is_in(voted, *node)) {
                let answer = if granted { Answer::Granted } else { Answer::Refused };
                held.answer(node, Verb::Acquire, 1, answer, 0);
            }
        }
        held
    }

    fn tell(&mut self, event: Event, ms: i64) {
        self.engine.handle(event, at(ms), &mut entropy, &mut self.out);
    }

    fn answer(&mut self, node: NodeId, verb: Verb, round: u32, answer: Answer, ms: i64) {
        let answers = vec![(Ticket { lock: LOCK, round, verb }, answer)];
        self.tell(
            Event::Answered { node, sent: at(ms), evidence: Evidence::NotRequired, answers },
            ms,
        );
    }

    fn reports(&mut self) -> Vec<ReleaseReport> {
        let reports = self.out.drain(..).filter_map(|effect| match effect {
            Effect::Released { report, .. } => Some(report),
            _ => None,
        });
        reports.collect()
    }
}

fn is_in(set: u32, node: NodeId) -> bool {
    set >> node.index() & 1 == 1
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reply {
    Deleted,
    Absent,
    Other,
    Failed,
    Nothing,
}

const REPLIES: [Reply; 5] =
    [Reply::Deleted, Reply::Absent, Reply::Other, Reply::Failed, Reply::Nothing];

/// The expected outcome of a release, computed from the rules of the protocol and the nodes' answers.
fn expected(quorum: Quorum, voted: u32, valid: bool, said: &[Reply]) -> Outcome {
    let deleted = said.iter().filter(|said| **said == Reply::Deleted).count();
    let unknown = quorum.node_ids().zip(said).filter(|(node, said)| {
        is_in(voted, *node) && matches!(said, Reply::Failed | Reply::Nothing)
    });
    let taken = said.contains(&Reply::Other);
    if valid && deleted >= quorum.needed() {
        Outcome::Released
    } else if valid && deleted + unknown.count() >= quorum.needed() {
        Outcome::Unknown
    } else if taken {
        Outcome::TakenByOther
    } else {
        Outcome::Expired
    }
}

fn reported(said: Reply, voted: bool) -> NodeReleased {
    match said {
        Reply::Deleted => NodeReleased::Deleted,
        Reply::Absent if voted => NodeReleased::LostEarly,
        Reply::Absent => NodeReleased::NeverGranted,
        Reply::Other => NodeReleased::Other,
        Reply::Failed => NodeReleased::Failed(Failure::new(FailureKind::Loading)),
        Reply::Nothing => NodeReleased::Unanswered,
    }
}

#[test]
fn the_outcome_of_a_release_follows_from_our_clock_and_the_nodes_answers() {
    let quorums = [(1, 1), (2, 2), (3, 2), (3, 3), (4, 3), (5, 3)];
    for (nodes, needed) in quorums {
        let quorum = Quorum::new(nodes, needed).unwrap();
        let voting = (0_u32..1 << nodes).filter(|set| set.count_ones() as usize >= needed);
        // With up to four nodes, all sets of votes are tested. With five: the votes of one quorum, and of all nodes.
        for voted in voting.filter(|set| nodes < 5 || [0b111, 0b11111].contains(set)) {
            let held = Held::with_votes_of(quorum, voted);
            for answers in 0..REPLIES.len().pow(nodes as u32) {
                let said: Vec<Reply> = (0..nodes)
                    .map(|node| REPLIES[answers / REPLIES.len().pow(node as u32) % REPLIES.len()])
                    .collect();
                for valid in [true, false] {
                    let held = Held { engine: held.engine.clone(), out: Vec::new() };
                    release_and_check(held, quorum, voted, valid, &said);
                }
            }
        }
    }
}

fn release_and_check(mut held: Held, quorum: Quorum, voted: u32, valid: bool, said: &[Reply]) {
    // After the end of a lock, the engine first sends a release of its own (round 2), so the caller's is round 3.
    let (now, round) = if valid { (10, 2) } else { (TERM, 3) };
    held.tell(Event::Release { lock: LOCK, report: true }, now);
    let mut heard = vec![Reply::Nothing; said.len()];
    let mut reports = held.reports();
    for (node, said) in quorum.node_ids().zip(said) {
        let answer = match said {
            Reply::Deleted => Answer::Deleted,
            Reply::Absent => Answer::Absent,
            Reply::Other => Answer::Other,
            Reply::Failed => Answer::Failed(Failure::new(FailureKind::Loading)),
            Reply::Nothing => continue,
        };
        held.answer(node, Verb::Release, round, answer, now);
        if reports.is_empty() {
            heard[node.index()] = *said;
        }
        reports.extend(held.reports());
    }
    held.tell(Event::Wake, now + NODE_TIMEOUT);
    reports.extend(held.reports());
    // The caller of a valid lock waits for a quorum until the lock is over.
    held.tell(Event::Wake, now.max(TERM));
    reports.extend(held.reports());
    let nodes = quorum.node_ids().zip(heard);
    let expected = ReleaseReport {
        handed_over: false,
        outcome: expected(quorum, voted, valid, said),
        nodes: nodes.map(|(node, said)| reported(said, is_in(voted, node))).collect(),
    };
    assert_eq!(reports, [expected], "{quorum:?} {voted:b} valid {valid} {said:?}");
}

/// The answer to the first release is lost with the connection, so the next one may find the key deleted.
#[test]
fn a_node_that_may_have_deleted_the_key_does_not_prove_that_the_lock_was_lost() {
    let quorum = Quorum::majority(3).unwrap();
    let mut held = Held::with_votes_of(quorum, 0b111);
    held.tell(Event::Release { lock: LOCK, report: true }, 10);
    let lost = || Answer::Failed(Failure::new(FailureKind::Unreachable));
    for (node, answer) in [(0, Answer::Deleted), (1, lost()), (2, lost())] {
        held.answer(NodeId::new(node), Verb::Release, 2, answer, 10);
    }
    held.tell(Event::Wake, 200);
    for (node, answer) in [(1, Answer::Absent), (2, Answer::Other)] {
        held.answer(NodeId::new(node), Verb::Release, 2, answer, 210);
    }
    held.tell(Event::Wake, 210 + NODE_TIMEOUT);
    let reports = held.reports();
    let [ReleaseReport { outcome: Outcome::Unknown, nodes, .. }] = &reports[..] else {
        panic!("{reports:?}")
    };
    let failed = NodeReleased::Failed(Failure::new(FailureKind::Unreachable));
    assert_eq!(nodes[..], [NodeReleased::Deleted, failed.clone(), failed]);
    assert_eq!(held.engine.releases_owed(), 0, "the keys are gone");
}

#[test]
fn a_release_is_reported_when_the_lock_is_over_although_connections_break_again_and_again() {
    let mut held = Held::with_votes_of(Quorum::majority(3).unwrap(), 0b111);
    held.tell(Event::Release { lock: LOCK, report: true }, 10);
    held.answer(NodeId::new(0), Verb::Release, 2, Answer::Deleted, 10);
    let reported_at = (10..TERM).step_by(50).find(|now| {
        for node in [1, 2].map(NodeId::new) {
            held.tell(Event::Connecting { node }, *now);
            held.tell(Event::Connected { node }, *now);
            let lost = Answer::Failed(Failure::new(FailureKind::Unreachable));
            held.answer(node, Verb::Release, 2, lost, *now);
        }
        held.tell(Event::Wake, *now + 49);
        !held.reports().is_empty()
    });
    assert_eq!(reported_at, Some(960), "at the end of the validity");
}

#[test]
fn a_release_of_what_is_not_held_says_expired_and_sends_nothing() {
    let mut engine = Engine::new(Quorum::majority(3).unwrap());
    let mut out = Vec::new();
    engine.handle(Event::Release { lock: LockId(7), report: true }, at(0), &mut entropy, &mut out);
    assert!(matches!(&out[..], [Effect::Released { report, .. }]
        if report.outcome == Outcome::Expired));
}

#[test]
fn a_lost_lock_that_is_released_says_so_and_never_touches_anothers_key() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.run_until(2000);
    world.occupy(1, "k", b"another", Some(10_000));
    world.release(lock, true);
    world.run_for(10);
    let report = world.released(lock).unwrap().1;
    assert_eq!(report.outcome, Outcome::TakenByOther);
    assert_eq!(report.nodes[1], NodeReleased::Other);
    assert!(world.has(1, "k"));
    world.finish();
}

#[test]
fn a_release_that_fails_is_sent_again_with_growing_pauses_and_dropped_after_the_ttl() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.run_until(100);
    world.down(0);
    world.release(lock, true);
    world.run_until(5000);
    assert_eq!(world.released(lock).unwrap().1.outcome, Outcome::Released);
    assert_eq!(world.sent(lock, Verb::Release, 0), [100, 150, 250, 450, 850]);
    assert_eq!(world.sent(lock, Verb::Release, 1), [100], "only where it is owed");
    assert_eq!(world.engine(0).releases_owed(), 0);
    world.finish();

    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.run_until(100);
    world.down(0);
    world.release(lock, false);
    world.run_until(100 + TTL - 1);
    assert_eq!(world.engine(0).releases_owed(), 1);
    world.run_for(1);
    assert_eq!(world.engine(0).releases_owed(), 0);
    world.finish();
}

#[test]
fn a_node_that_is_back_gets_what_it_is_owed_at_once() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.down(0);
    world.release(lock, false);
    world.run_until(700);
    assert!(world.has(0, "k"));
    world.up(0);
    world.run_for(2);
    assert_eq!(world.sent(lock, Verb::Release, 0).last(), Some(&700));
    assert!(!world.has(0, "k"));
    assert!(world.engine(0).is_idle());
    world.finish();
}

#[test]
fn a_node_that_refuses_to_release_is_asked_again() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.refuse(2, Some(FailureKind::Busy));
    world.release(lock, false);
    world.run_until(20);
    world.refuse(2, None);
    world.run_until(60);
    assert_eq!(world.sent(lock, Verb::Release, 2), [2, 54]);
    assert!(world.engine(0).is_idle());
    // After a successful release, the back-off of the next failed release begins again with the shortest pause.
    let lock = world.hold(request("k"));
    world.refuse(2, Some(FailureKind::Busy));
    world.release(lock, false);
    world.run_for(60);
    let sent = world.sent(lock, Verb::Release, 2);
    assert_eq!(sent[1] - sent[0], 52);
    world.finish();
}

#[test]
fn a_release_without_an_answer_is_not_repeated_and_kept_in_mind_for_a_bounded_time() {
    let mut world = ScriptedWorld::new(3);
    let lock = world.hold(request("k"));
    world.freeze(0, true);
    world.release(lock, true);
    world.run_until(60_000);
    assert_eq!(world.sent(lock, Verb::Release, 0), [2]);
    assert_eq!(world.engine(0).releases_owed(), 1);
    world.run_until(70_000);
    assert!(world.engine(0).is_idle() && world.engine(0).deadline().is_none());
    world.finish();
}

#[test]
fn where_the_acquire_never_arrived_nothing_is_owed() {
    // Node 0 is down, or its connection is never made. The client learns this after a grant, a refusal, or the release.
    let mut world = ScriptedWorld::new(3);
    world.down(0);
    let lock = world.hold(request("k"));
    world.release(lock, false);
    world.run_for(10);
    assert!(world.engine(0).is_idle());
    world.finish();

    let mut world = ScriptedWorld::new(3);
    world.connecting(0);
    let lock = world.hold(request("k"));
    world.connecting_failed(0);
    world.run_for(10);
    world.release(lock, false);
    world.run_for(10);
    assert!(world.engine(0).is_idle());
    world.finish();

    let mut world = ScriptedWorld::new(3);
    world.connecting(0);
    world.occupy(1, "k", b"another", Some(500));
    world.occupy(2, "k", b"another", Some(500));
    world.acquire(once("k"));
    world.run_for(10);
    assert_eq!(world.engine(0).releases_owed(), 1);
    world.connecting_failed(0);
    world.run_for(10);
    assert!(world.engine(0).is_idle());
    world.finish();

    let mut world = ScriptedWorld::new(3);
    world.connecting(0);
    let lock = world.hold(request("k"));
    world.release(lock, false);
    world.run_for(10);
    world.connecting_failed(0);
    world.run_for(10);
    assert!(world.engine(0).is_idle());
    world.finish();
}

#[test]
fn where_the_node_itself_declined_the_acquire_nothing_is_owed() {
    let mut world = ScriptedWorld::new(3);
    world.refuse(0, Some(FailureKind::ReadOnly));
    let lock = world.hold(request("k"));
    world.release(lock, false);
    world.run_for(10);
    assert!(world.engine(0).is_idle());
    world.finish();
}

#[test]
fn where_the_acquire_may_have_arrived_the_release_is_owed() {
    let mut world = ScriptedWorld::new(3);
    world.mute(0, true);
    let lock = world.acquire(once("k"));
    world.run_for(1);
    world.cut(0, None);
    world.run_for(1);
    assert!(world.has(0, "k"), "executed without an answer");
    world.release(lock, false);
    world.run_for(300);
    world.up(0);
    world.run_for(10);
    assert!(!world.has(0, "k"));
    world.finish();
}

#[test]
fn a_command_that_arrives_after_its_connection_died_leaves_a_key_for_no_longer_than_the_ttl() {
    let mut world = ScriptedWorld::new(3);
    (0..3).for_each(|node| world.set_one_way(node, 20));
    let lock = world.acquire(once("k"));
    world.run_until(10);
    (0..3).for_each(|node| world.cut(node, Some(100)));
    (0..3).for_each(|node| world.up(node));
    world.run_until(300);
    assert_eq!(world.refused(lock).unwrap().1.kind, RefusalKind::NoQuorum);
    assert_eq!(world.locks(0).count(), 1, "an orphan");
    world.run_until(110 + TTL);
    assert_eq!(world.locks(0).count(), 0);
    world.finish();
}

#[test]
fn beyond_a_bound_the_oldest_release_is_dropped_and_reported() {
    const MANY: u64 = 65_536;
    let mut engine = Engine::new(Quorum::majority(1).unwrap());
    let mut out = Vec::new();
    for n in 0..=MANY {
        let lock = LockId(n);
        out.clear();
        engine.handle(Event::Acquire { lock, request: once("k") }, at(0), &mut entropy, &mut out);
        let answers = vec![(Ticket { lock, round: 1, verb: Verb::Acquire }, Answer::Granted)];
        engine.handle(
            Event::Answered {
                node: NodeId::new(0),
                sent: at(0),
                evidence: Evidence::NotRequired,
                answers,
            },
            at(0),
            &mut entropy,
            &mut out,
        );
        engine.handle(Event::Release { lock, report: true }, at(0), &mut entropy, &mut out);
    }
    assert_eq!(engine.releases_owed() as u64, MANY);
    let is_report = |effect: &Effect| {
        matches!(effect, Effect::Released { lock: LockId(0), report }
        if report.outcome == Outcome::Unknown)
    };
    assert!(out.iter().any(is_report), "{out:?}");
}

#[test]
fn a_shutdown_ends_waiting_calls_releases_locks_and_drains_owed_releases() {
    let mut world = ScriptedWorld::new(3);
    let held = world.hold(automatic("held"));
    let queued = world.acquire(request("held"));
    world.down(0);
    let asking = world.acquire(request("asking"));
    world.tell(0, Event::Close);
    assert_eq!(world.lost(held), Some((2, LossCause::Shutdown)));
    for call in [queued, asking] {
        assert_eq!(world.refused(call).unwrap().1.kind, RefusalKind::Closed);
    }
    let refused = world.acquire(waiting("late", 100));
    assert_eq!(world.refused(refused).unwrap().1.kind, RefusalKind::Closed);
    let drained = |world: &ScriptedWorld| {
        world.log().iter().find(|(_, _, effect)| *effect == Effect::Drained).map(|(at, ..)| *at)
    };
    world.run_until(500);
    assert_eq!(drained(&world), None, "one node is owed a release");
    world.up(0);
    world.run_until(600);
    assert_eq!(drained(&world), Some(502));
    assert!((0..3).all(|node| world.locks(node).next().is_none()));
    world.release(held, true);
    world.run_until(700);
    assert_eq!(world.released(held).unwrap().1.outcome, Outcome::Expired);
    assert!(world.engine(0).is_idle());
}

#[test]
fn an_idle_client_is_drained_as_soon_as_it_is_closed() {
    let mut world = ScriptedWorld::new(3);
    world.tell(0, Event::Close);
    assert!(matches!(world.log()[..], [(0, 0, Effect::Drained)]));
}

#[test]
fn an_inspection_reports_every_answer_and_changes_nothing() {
    let mut world = ScriptedWorld::new(3);
    let holder = world.hold(request("k"));
    world.down(1);
    world.freeze(2, true);
    let lock = LockId(1000);
    let timeout = Duration::from_millis(30);
    world.tell(
        0,
        Event::Inspect { lock, keys: "k".into(), timeout, connect_timeout: Duration::ZERO },
    );
    world.run_for(100);
    let inspected = world.log().iter().find_map(|(at, _, effect)| match effect {
        Effect::Inspected { lock: LockId(1000), nodes, .. } => Some((*at, nodes)),
        _ => None,
    });
    let (at, nodes) = inspected.unwrap();
    assert_eq!(at, 32);
    assert!(
        matches!(&nodes[0].said, NodeOutcome::Seen(seen) if seen.free_in(Mode::Exclusive).is_some())
    );
    assert!(matches!(&nodes[1].said, NodeOutcome::Failed(_)));
    assert_eq!(nodes[2].said, NodeOutcome::Nothing);
    assert!(world.is_valid(holder));
    let lock = LockId(1001);
    world.tell(
        0,
        Event::Inspect { lock, keys: "k".into(), timeout, connect_timeout: Duration::ZERO },
    );
    world.tell(0, Event::Cancel { lock });
    world.finish();
}

/// An answer ends the lock, so the next call may begin its attempt. The engine must first handle all other pending
/// answers and the timers.
#[test]
fn an_attempt_that_an_answer_brings_begins_with_the_next_event() {
    for (wait_ms, attempts) in [(1000, 1), (100, 0)] {
        let mut held = Held::with_votes_of(Quorum::majority(1).unwrap(), 1);
        let next = LockId(1);
        held.tell(Event::Acquire { lock: next, request: waiting("k", wait_ms) }, 1);
        held.tell(Event::Extend { lock: LOCK }, 2);
        held.out.clear();
        held.answer(NodeId::new(0), Verb::Extend, 1, Answer::Absent, 500);
        let asks = |effect: &Effect| {
            matches!(effect, Effect::Send { ticket, .. }
                if ticket.lock == next && ticket.verb == Verb::Acquire)
        };
        assert!(held.engine.has_attempt_to_begin() && !held.out.iter().any(asks));
        assert!(held.engine.deadline().is_some_and(|due| due < at(0).boot()), "at once");
        held.tell(Event::Wake, 500);
        assert_eq!(held.out.iter().filter(|effect| asks(effect)).count(), attempts);
        let is_over = |effect: &Effect| {
            matches!(effect, Effect::NotAcquired { lock, refusal }
                if *lock == next && refusal.attempts == 0)
        };
        assert_eq!(held.out.iter().any(is_over), attempts == 0, "the wait is over");
    }
}
