use super::*;
use crate::faults::{Change, FLUSH, Failover, MASTER_AGAIN};

const ALL: Abilities = Abilities { clocks: true, steps: true, leases: true };

fn plans() -> impl Iterator<Item = RoundPlan> {
    (0..500).map(|seed| RoundPlan::library(seed, true))
}

#[test]
fn a_seed_is_a_schedule() {
    for seed in 0..50 {
        assert_eq!(RoundPlan::library(seed, true), RoundPlan::library(seed, true));
        assert_ne!(
            RoundPlan::library(seed, true).events,
            RoundPlan::library(seed + 1, true).events
        );
        assert_eq!(RoundPlan::negative(seed, false), RoundPlan::negative(seed, false));
    }
}

#[test]
fn three_seeds_in_a_row_use_every_kind() {
    for from in 0..200 {
        let used: Vec<Kind> = (from..from + SEEDS_FOR_ALL)
            .flat_map(|seed| RoundPlan::library(seed, true).events)
            .filter_map(|event| event.begins)
            .collect();
        let unused: Vec<_> = KINDS.concat();
        let unused: Vec<_> = unused.iter().filter(|kind| !used.contains(kind)).collect();
        assert!(unused.is_empty(), "seeds from {from}: {unused:?}");
    }
}

#[test]
fn clocks_that_cannot_be_moved_are_not() {
    let events = (0..100).flat_map(|seed| RoundPlan::library(seed, false).events);
    assert!(events.filter_map(|event| event.begins).all(|kind| !kind.moves_clock()));
}

/// A majority is never down or stopped at a time, and a server that cannot answer has no other fault.
#[test]
fn few_nodes_are_out_and_have_no_other_fault() {
    for plan in plans() {
        let (seed, mut out, mut follows) = (plan.seed, Vec::new(), Vec::new());
        for Event { act, .. } in &plan.events {
            match act {
                Act::Node(node, Change::Kill | Change::Stop) => {
                    assert!(!follows.contains(node), "seed {seed}");
                    out.push(*node);
                }
                Act::Node(node, _) => out.retain(|other| other != node),
                Act::Amnesia(places)
                | Act::LogTail(places, _)
                | Act::Commands(places, FLUSH)
                | Act::Forget(places) => {
                    assert!(!places.iter().any(|node| out.contains(node)), "seed {seed}");
                    assert!(!places.iter().any(|node| follows.contains(node)), "seed {seed}");
                }
                Act::Follow(node) | Act::ReplicaOf(node, _) => {
                    assert!(!out.contains(node), "seed {seed}");
                    follows.push(*node);
                }
                Act::Promote(node) => {
                    assert!(!out.contains(node), "seed {seed}");
                    follows.retain(|other| other != node);
                }
                Act::Commands(places, MASTER_AGAIN) => {
                    assert!(!out.contains(&places[0]), "seed {seed}");
                    follows.retain(|other| *other != places[0]);
                }
                _ => {}
            }
            assert!(out.len() <= (plan.nodes - 1) / 2, "seed {seed}");
        }
        assert!(follows.is_empty(), "seed {seed}");
    }
}

/// Every plan is within the assumptions of the protocol, or has `outside` set. If nodes lose data, clocks do not jump,
/// because the order of fencing tokens then depends on the clocks. Otherwise at most a few clocks jump, unless
/// `outside` is set. Clocks run only slightly fast or slow.
#[test]
fn a_plan_is_within_the_assumptions_or_says_so() {
    let (mut inside, mut outside) = (0, 0);
    for plan in plans() {
        let jumped = plan.kinds.contains(&Kind::JUMP);
        assert!(!jumped || !plan.kinds.iter().any(|kind| kind.loses_data()));
        let mut steps = vec![0; plan.nodes];
        for Event { act, .. } in &plan.events {
            match act {
                Act::Step(node, by) if by.abs() <= 2 * MS => {
                    steps[*node] += 1;
                    assert!(!plan.exact && steps[*node] == 1);
                }
                Act::Step(..) => assert!(jumped),
                Act::Run(_, ppm) => assert!(!plan.exact && ppm.abs() <= 5000),
                Act::ReplicaOf(node, of) => assert!(of < node),
                _ => {}
            }
        }
        inside += u64::from(jumped && plan.outside.is_none());
        outside += u64::from(plan.outside.is_some());
        assert!(plan.outside.is_none() || jumped);
    }
    assert!(inside > 50 && outside > 20, "{inside} {outside}");
}

/// Three consecutive seeds use every failure of a master, and every failover ends before the faults of its round end.
#[test]
fn rounds_with_replicas_end_every_failover() {
    for from in 0..200 {
        let plans = (from..from + 3).map(RoundPlan::replicated);
        let kinds: Vec<Kind> = plans.clone().map(|plan| plan.kinds[0]).collect();
        assert!(FAILOVERS.iter().all(|kind| kinds.contains(kind)), "seeds from {from}");
        for plan in plans {
            let mut failing: Vec<&Failover> = Vec::new();
            for Event { act, at, .. } in &plan.events {
                match act {
                    Act::Failover(failover) => {
                        assert!(failing.iter().all(|other| other.node != failover.node));
                        assert!(!failover.stale.is_empty() && failover.stale.len() < PROCESSES);
                        failing.push(failover);
                    }
                    Act::OldMasterContinues(failover) => assert!(failing.contains(&failover)),
                    Act::OldMasterLeaves(failover) => {
                        assert!(*at < plan.faults, "seed {}", plan.seed);
                        failing.retain(|other| *other != failover);
                    }
                    _ => {}
                }
            }
            assert!(failing.is_empty() && plan.outside.is_none(), "seed {}", plan.seed);
        }
    }
}

fn is_distant(plan: &RoundPlan) -> bool {
    plan.round_trips().iter().any(|round_trip| *round_trip > 0)
}

#[test]
fn every_fourth_round_is_at_a_distance_that_its_ttl_allows() {
    for seed in 0..200 {
        for plan in [RoundPlan::library(seed, true), RoundPlan::commands(seed, ALL)] {
            assert_eq!(plan.round_trips().len(), plan.nodes);
            assert!(plan.round_trips().iter().all(|it| *it * 20 <= plan.max_ttl), "seed {seed}");
            assert!(seed % 4 == 3 || !is_distant(&plan), "seed {seed}");
        }
    }
    let distant = plans().filter(is_distant).count();
    assert!(distant > 100, "{distant} of 500");
}

#[test]
fn every_round_with_commands_has_every_fault_of_a_holder() {
    for seed in 0..100 {
        let plan = RoundPlan::commands(seed, ALL);
        for fault in OF_RUN.into_iter().chain(AROUND_RUN) {
            let is_it = |act: &Act| matches!(act, Act::ToHolder(strike) if strike.fault == fault);
            assert!(plan.events.iter().any(|event| is_it(&event.act)), "{fault:?}");
        }
        assert_eq!(plan, RoundPlan::commands(seed, ALL), "a seed is a schedule");
        assert_eq!(plan.kinds.is_empty(), seed % 2 == 0, "half of the rounds are calm");
    }
}
