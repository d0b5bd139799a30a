//! Tests one attempt with every combination of answers, times and orders, for one to five nodes and every legal quorum.
//! Compares each decision with a second implementation of the Redlock rule.

use std::time::Duration;

use quorlock_core::{
    Answer, Command, Entry, Failure, FailureKind, FailureReason, Mode, NodeId, Origin, Quorum,
    Reading, ReleaseForm, Timing, TimingOptions, Token, Value,
};
use quorlock_core::{Attempt, Decision};

const MS: i64 = 1_000_000;
/// The durations of every attempt in this file, in nanoseconds. The node timeout is the largest that is allowed.
const TTL: i64 = 1000 * MS;
const TERM: i64 = TTL - (TTL / 100 + 2 * MS);
const MARGIN: i64 = 20 * MS;
const NODE_TIMEOUT: i64 = TTL / 4;
const CONNECT_TIMEOUT: i64 = TTL;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    Grant,
    Refuse,
    FailUnsent,
    FailMaybeSent,
    StaySilent,
    /// The node grants after its timeout.
    GrantLate,
}

const ALL: [Does; 6] = [
    Does::Grant,
    Does::Refuse,
    Does::FailUnsent,
    Does::FailMaybeSent,
    Does::StaySilent,
    Does::GrantLate,
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Answer(usize, Does),
    /// The nodes without an answer time out.
    TimeIsUp,
}

fn at(nanos: i64) -> Reading {
    Reading::new(nanos, nanos)
}

fn timing(min_validity: i64) -> Timing {
    Timing::new(TimingOptions {
        ttl: Duration::from_nanos(TTL as u64),
        margin: Some(Duration::from_nanos(MARGIN as u64)),
        min_validity: Duration::from_nanos(min_validity as u64),
        node_timeout: Some(Duration::from_nanos(NODE_TIMEOUT as u64)),
        connect_timeout: Duration::from_nanos(CONNECT_TIMEOUT as u64),
        ..TimingOptions::default()
    })
    .expect("the times go together")
}

fn attempt(quorum: Quorum, timing: Timing, connecting: &[bool]) -> Attempt {
    let value = Value::new(&Token::new([7; Token::BYTES]), "");
    let connecting = |node: NodeId| connecting[node.index()];
    let entry = Entry { keys: "k".into(), mode: Mode::Exclusive, value, origin: Origin::Absent };
    Attempt::start(entry, quorum, timing, None, |_| Duration::ZERO, connecting, at(0))
}

fn answer(does: Does) -> Answer {
    match does {
        Does::Grant | Does::GrantLate => Answer::Granted,
        Does::Refuse => Answer::Refused,
        Does::FailUnsent => Answer::Failed(Failure::unsent(FailureKind::Unreachable)),
        Does::FailMaybeSent => Answer::Failed(Failure::new(FailureKind::Unreachable)),
        Does::StaySilent => unreachable!("silence is no answer"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decided {
    /// The lock is acquired, with this remaining validity in nanoseconds.
    Yes(i64),
    No(FailureReason),
}

/// A second, naive implementation of Redlock. It tries every answer that the outstanding nodes could give.
struct Oracle {
    needed: usize,
    min_validity: i64,
    heard: Vec<Option<Does>>,
}

impl Oracle {
    fn decided(&self, elapsed: i64) -> Option<Decided> {
        let silent = self.heard.iter().filter(|heard| heard.is_none()).count();
        let yes = self.yes();
        // The numbers of votes that are possible: each silent node may still grant or refuse.
        let futures = (0_u32..1 << silent).map(|future| yes + future.count_ones() as usize);
        let possible = futures.clone().any(|votes| votes >= self.needed);
        let certain = futures.clone().all(|votes| votes >= self.needed);
        let left = TERM - elapsed;
        match (certain, possible) {
            // Redlock's validity is `left`: ttl minus drift minus elapsed time. It must be longer than the margin.
            (true, _) if left >= self.min_validity && left > MARGIN => Some(Decided::Yes(left)),
            (true, _) => Some(Decided::No(FailureReason::TooSlow)),
            (false, true) => None,
            (false, false) => Some(Decided::No(self.why_not())),
        }
    }

    /// The reason is contention if the nodes that refused could form a quorum together with those that granted or are
    /// silent. Otherwise too few nodes could vote.
    fn why_not(&self) -> FailureReason {
        let may_say_yes = |heard: &&Option<Does>| {
            matches!(heard, None | Some(Does::Grant | Does::GrantLate | Does::Refuse))
        };
        if self.heard.iter().filter(may_say_yes).count() >= self.needed {
            FailureReason::Contended
        } else {
            FailureReason::NoQuorum
        }
    }

    fn yes(&self) -> usize {
        let granted = |heard: &&Option<Does>| matches!(heard, Some(Does::Grant | Does::GrantLate));
        self.heard.iter().filter(granted).count()
    }
}

/// Runs the steps, each at its time, until the attempt is decided. Compares every decision with the oracle.
fn run(quorum: Quorum, min_validity: i64, schedule: &Schedule) -> Option<Decided> {
    let Schedule { connecting, steps } = schedule;
    let mut attempt = attempt(quorum, timing(min_validity), connecting);
    let needed = quorum.needed();
    let mut oracle = Oracle { needed, min_validity, heard: vec![None; quorum.nodes()] };
    for (step, time) in steps {
        let decision = match *step {
            Step::Answer(node, does) => {
                oracle.heard[node] = Some(does);
                attempt.handle_answer(NodeId::new(node), at(0), &answer(does), at(*time))
            }
            Step::TimeIsUp => {
                let mut timed_out = 0;
                let decision = attempt.handle_time(at(*time), |_| timed_out += 1);
                let mut count = 0;
                for (heard, connecting) in oracle.heard.iter_mut().zip(connecting) {
                    let bound = if *connecting { CONNECT_TIMEOUT } else { 0 } + NODE_TIMEOUT;
                    if heard.is_none() && *time >= bound {
                        *heard = Some(Does::StaySilent);
                        count += 1;
                    }
                }
                assert_eq!(timed_out, count, "each node that times out is reported");
                decision
            }
        };
        let expected = oracle.decided(*time);
        let decided = match decision {
            Decision::Wait => None,
            Decision::Raise(_) => unreachable!("no fence is wanted"),
            Decision::GiveUp(why) => Some(Decided::No(why)),
            Decision::Acquired(validity) => {
                assert_eq!(validity.votes(at(0)), oracle.yes(), "the votes are the grants");
                Some(Decided::Yes(validity.valid_for(at(*time)).as_nanos() as i64))
            }
        };
        assert_eq!(decided, expected, "{quorum:?} after {step:?} of {steps:?}");
        if decided.is_some() {
            return decided;
        }
        assert!(attempt.deadline().is_some(), "no deadline: {steps:?}");
    }
    None
}

/// The steps with their times, and the nodes that are connecting at the start.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Schedule {
    connecting: Vec<bool>,
    steps: Vec<(Step, i64)>,
}

/// The prompt answers arrive at `time`. Then the silent nodes time out, and the late answers arrive.
fn prompt(does: &[Does], time: i64, order: &[usize]) -> Schedule {
    let [prompt, late] = answers(does, order);
    let after = time.max(NODE_TIMEOUT);
    let mut steps: Vec<(Step, i64)> = prompt.into_iter().map(|step| (step, time)).collect();
    steps.push((Step::TimeIsUp, after));
    steps.extend(late.into_iter().map(|step| (step, after)));
    Schedule { connecting: vec![false; does.len()], steps }
}

/// Late answers arrive after their nodes' timeout. They count, because the attempt still waits for connecting nodes.
fn connecting(does: &[Does], time: i64, order: &[usize]) -> Schedule {
    let [prompt, late] = answers(does, order);
    let after = time.max(NODE_TIMEOUT);
    let mut steps = vec![(Step::TimeIsUp, NODE_TIMEOUT)];
    steps.extend(late.into_iter().chain(prompt).map(|step| (step, after)));
    let late = |does: &Does| matches!(does, Does::StaySilent | Does::GrantLate);
    Schedule { connecting: does.iter().map(|does| !late(does)).collect(), steps }
}

/// Returns the prompt answers and the late answers, each list in the order of the nodes in `order`.
fn answers(does: &[Does], order: &[usize]) -> [Vec<Step>; 2] {
    [false, true].map(|late| {
        let nodes = order.iter().filter(|node| does[**node] != Does::StaySilent);
        nodes
            .filter(|node| late == (does[**node] == Does::GrantLate))
            .map(|node| Step::Answer(*node, does[*node]))
            .collect()
    })
}

fn all_answers(nodes: usize) -> impl Iterator<Item = Vec<Does>> {
    let count = ALL.len();
    (0..count.pow(nodes as u32)).map(move |number| {
        (0..nodes).map(|node| ALL[number / count.pow(node as u32) % count]).collect()
    })
}

fn quorums(nodes: usize) -> impl Iterator<Item = Quorum> {
    (nodes / 2 + 1..=nodes).map(move |needed| Quorum::new(nodes, needed).expect("legal"))
}

#[test]
fn the_lock_is_acquired_exactly_when_a_quorum_granted_and_validity_remains() {
    let boundary = TERM - MARGIN;
    let times = [0, NODE_TIMEOUT, boundary - 1, boundary, boundary + 1, TERM, TTL, 10 * TTL];
    let mut decided = [0; 4];
    for nodes in 1..=5 {
        let order: Vec<usize> = (0..nodes).collect();
        for (quorum, does) in
            quorums(nodes).flat_map(|quorum| all_answers(nodes).map(move |does| (quorum, does)))
        {
            for time in times {
                for schedule in [prompt, connecting] {
                    let outcome = run(quorum, 0, &schedule(&does, time, &order));
                    decided[match outcome.expect("after all answers it is decided") {
                        Decided::Yes(_) => 0,
                        Decided::No(FailureReason::Contended) => 1,
                        Decided::No(FailureReason::NoQuorum) => 2,
                        Decided::No(FailureReason::TooSlow) => 3,
                        Decided::No(FailureReason::NodesUntrusted) => {
                            unreachable!("nobody doubts these nodes")
                        }
                    }] += 1;
                }
            }
        }
    }
    assert!(decided.iter().all(|count| *count > 1000), "every outcome is covered: {decided:?}");
}

#[test]
fn a_smallest_validity_is_kept_to_the_nanosecond() {
    let min_validity = 500 * MS;
    for nodes in 1..=3 {
        let order: Vec<usize> = (0..nodes).collect();
        for does in all_answers(nodes) {
            for time in [TERM - min_validity - 1, TERM - min_validity, TERM - min_validity + 1] {
                let quorum = Quorum::majority(nodes).unwrap();
                assert!(run(quorum, min_validity, &prompt(&does, time, &order)).is_some());
            }
        }
    }
}

#[test]
fn the_order_of_the_answers_makes_no_difference_to_yes_or_no() {
    for nodes in 1..=4 {
        for quorum in quorums(nodes) {
            for does in all_answers(nodes) {
                // Late answers are left out, because after the node timeout the order of the answers does matter.
                if does.contains(&Does::GrantLate) {
                    continue;
                }
                let outcome = |order: &Vec<usize>| {
                    let decided = run(quorum, 0, &prompt(&does, 0, order));
                    matches!(decided, Some(Decided::Yes(_)))
                };
                let yes = does.iter().filter(|does| **does == Does::Grant).count();
                for order in permutations(nodes) {
                    assert_eq!(outcome(&order), yes >= quorum.needed(), "{does:?} {order:?}");
                }
            }
        }
    }
}

fn permutations(nodes: usize) -> Vec<Vec<usize>> {
    if nodes == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(nodes - 1);
    let with_last = |order: &Vec<usize>| {
        (0..nodes)
            .map(|place| {
                let mut order = order.clone();
                order.insert(place, nodes - 1);
                order
            })
            .collect::<Vec<_>>()
    };
    shorter.iter().flat_map(with_last).collect()
}

/// The client sends the commands at different times. Each vote expires by its own time, and the lock ends when fewer
/// than a quorum of votes are left.
#[test]
fn the_lock_is_valid_until_the_quorum_th_largest_end_of_votes_sent_at_different_times() {
    let sent_at = [0, 7 * MS, 30 * MS, 55 * MS, 90 * MS];
    for nodes in 1..=5 {
        for quorum in quorums(nodes) {
            for order in permutations(nodes) {
                let mut attempt = attempt(quorum, timing(0), &[false; 5]);
                let now = at(100 * MS);
                let mut decision = Decision::Wait;
                let heard = &order[..quorum.needed()];
                for node in heard {
                    assert_eq!(decision, Decision::Wait);
                    let sent = at(sent_at[*node]);
                    decision =
                        attempt.handle_answer(NodeId::new(*node), sent, &Answer::Granted, now);
                }
                let Decision::Acquired(validity) = decision else { panic!("{order:?}") };
                let ends =
                    |time: i64| heard.iter().filter(|node| time < sent_at[**node] + TERM).count();
                let end = (0..TTL / MS)
                    .map(|ms| TERM + ms * MS)
                    .find(|time| ends(*time) < quorum.needed());
                assert_eq!(
                    validity.valid_for(now).as_nanos() as i64,
                    end.expect("every lock ends") - 100 * MS
                );
            }
        }
    }
}

/// Step 5 of Redlock: after a failed attempt, the client sends a release with the attempt's value to every node.
#[test]
fn giving_up_releases_on_every_node_and_owes_only_where_the_key_may_be() {
    for nodes in 1..=4 {
        let quorum = Quorum::majority(nodes).unwrap();
        for does in all_answers(nodes) {
            let mut attempt = attempt(quorum, timing(0), &[false; 5]);
            let order: Vec<usize> = (0..nodes).collect();
            for (step, time) in prompt(&does, 0, &order).steps {
                let _ = match step {
                    Step::Answer(node, does) => {
                        attempt.handle_answer(NodeId::new(node), at(0), &answer(does), at(time))
                    }
                    Step::TimeIsUp => attempt.handle_time(at(time), |_| {}),
                };
            }
            let mut release = attempt.give_up(1, at(NODE_TIMEOUT));
            let Command::Acquire { keys, value, ttl_ms, .. } = attempt.command(0) else {
                panic!("an attempt acquires");
            };
            assert_eq!(ttl_ms as i64 * MS, TTL);
            let form = ReleaseForm::Plain { tell: false };
            assert_eq!(release.command(), Command::Release { keys, value, form });
            for (node, does) in quorum.node_ids().zip(does) {
                assert!(!release.is_over(), "every node's answer is awaited");
                let failed = Answer::Failed(Failure::new(FailureKind::Unreachable));
                release.handle_answer(node, &failed, at(NODE_TIMEOUT));
                assert_eq!(release.is_owed_to(node), does != Does::FailUnsent, "{does:?}");
            }
        }
    }
}

#[test]
fn the_five_steps_of_the_paper_are_named_once_each_and_in_order() {
    let source = include_str!("../src/redlock/acquire.rs");
    let steps: Vec<&str> =
        source.match_indices("Step ").map(|(at, _)| &source[at..at + 7]).collect();
    assert_eq!(steps, ["Step 1:", "Step 2:", "Step 3:", "Step 4:", "Step 5:"]);
}
