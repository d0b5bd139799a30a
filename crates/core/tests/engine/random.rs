//! Random histories: callers, faults and the network do what they like; the rules of
//! [`quorlock_sim::scripted`] hold at every step, and in the end nothing is left.
//!
//! A failing seed is printed; `SEED=… cargo test --test engine random` runs it alone, and
//! `SEEDS=…` so many of them.

use std::time::Duration;

use quorlock_core::Wait;
use quorlock_core::{Event, Evidence, FailureKind, LockId, Quorum, Request, Retry};

use quorlock_sim::scripted::asking::{fenced, request};
use quorlock_sim::scripted::{Delivered, ScriptedWorld};

/// SplitMix64: small, and the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

const KEYS: [&str; 2] = ["a", "b"];

/// What a run may do beside calling: each seed draws its own.
struct Faults {
    /// Nodes lose keys: outside the assumptions, locks may overlap.
    losses: bool,
    breaks: bool,
    freezes: bool,
    errors: bool,
    clocks: bool,
    duplicates: bool,
    /// Nodes' counters are ahead of all clocks, and differ.
    counters: bool,
    /// How many callers in four want a fence.
    fenced: usize,
}

/// What must have happened in some seed, or the test shows nothing.
#[derive(Default, Debug)]
struct Seen {
    granted: usize,
    refused: usize,
    lost: usize,
    overlapped: usize,
    raised: usize,
    passed_on: usize,
    superseded: usize,
}

fn run(seed: u64, steps: usize, seen: &mut Seen) {
    println!("SEED={seed}");
    let mut random = Random(seed);
    let nodes = 1 + random.below(5);
    let needed = nodes / 2 + 1 + random.below(nodes - nodes / 2);
    let clients = 2 + random.below(2);
    let mut world =
        ScriptedWorld::with(clients, Quorum::new(nodes, needed).expect("at least a majority"));
    world.settings.jitter = None;
    world.settings.shadowed = seed.is_multiple_of(20);
    let faults = Faults {
        losses: random.one_in(3),
        breaks: random.one_in(2),
        freezes: random.one_in(2),
        errors: random.one_in(2),
        clocks: random.one_in(2),
        duplicates: random.one_in(2),
        counters: random.one_in(2),
        fenced: [0, 2, 4][random.below(3)],
    };
    if faults.counters {
        for key in KEYS {
            let ahead = || 10_000_000_000 + random.below(20) as u64;
            let at: Vec<u64> = std::iter::repeat_with(ahead).take(nodes).collect();
            world.set_counters(key, &at);
        }
    }
    if faults.duplicates {
        world.settings.history = Some(Vec::new());
    }
    for node in 0..nodes {
        world.run_fast(node, if faults.clocks { random.below(10_001) as i64 } else { 0 });
    }
    let mut calls: Vec<LockId> = Vec::new();
    for _ in 0..steps {
        match random.below(8) {
            0 | 1 => calls.push(call(&mut world, &mut random, &faults)),
            2 | 3 if !calls.is_empty() => follow_up(&mut world, &mut random, &calls),
            4 => disturb(&mut world, &mut random, &faults),
            5 => world.run_for(random.below(400) as i64),
            _ => world.run_for(random.below(20) as i64),
        }
    }
    world.finish();
    seen.granted += calls.iter().filter(|lock| world.granted_at(**lock).is_some()).count();
    seen.refused += calls.iter().filter(|lock| world.refused(**lock).is_some()).count();
    seen.lost += calls.iter().filter(|lock| world.lost(**lock).is_some()).count();
    seen.overlapped += world.overlaps();
    seen.raised += world.raising.count;
    let fenced = world.all_guards().filter(|(_, guard)| guard.fence.is_some());
    seen.passed_on += fenced.filter(|(_, guard)| guard.handover_count > 0).count();
    seen.superseded += calls.iter().map(|lock| world.superseded(*lock).len()).sum::<usize>();
}

fn call(world: &mut ScriptedWorld, random: &mut Random, faults: &Faults) -> LockId {
    let key = KEYS[random.below(2)];
    let wait = match random.below(3) {
        0 => Wait::Once,
        1 => Wait::For(Duration::from_millis(random.below(500) as u64)),
        _ => Wait::Forever,
    };
    let attempts_max = random.one_in(4).then(|| random.below(4) as u32);
    let retry = Retry { attempts_max, ..Retry::default() };
    let automatic = random.one_in(2);
    let max_hold = Duration::from_millis(1000 + random.below(3000) as u64);
    let request = Request { wait, retry, automatic, max_hold, ..request(key) };
    let request = if random.below(4) < faults.fenced { fenced(request) } else { request };
    let client = random.below(world.engines.len());
    world.acquire_by(client, request)
}

/// A caller does something with its call or its lock.
fn follow_up(world: &mut ScriptedWorld, random: &mut Random, calls: &[LockId]) {
    // The later ones are more likely to be still of interest.
    let back = random.below(calls.len().min(4));
    let lock = calls[calls.len() - 1 - back];
    if world.find(lock).is_none() {
        return world.cancel(lock);
    }
    let client = world.owner(lock);
    match random.below(4) {
        0 => world.extend(lock),
        1 if !world.is_valid(lock) => world.tell(client, Event::RunOut { lock }),
        _ => world.release(lock, random.one_in(2)),
    }
}

fn disturb(world: &mut ScriptedWorld, random: &mut Random, faults: &Faults) {
    let node = random.below(world.node_count());
    match random.below(9) {
        0 if faults.losses => world.flush(node),
        1 if faults.breaks => {
            let orphans = random.one_in(2).then(|| random.below(300) as i64);
            world.cut(node, orphans);
        }
        2 if faults.breaks => {
            world.down(node);
            world.connecting(node);
        }
        3 if faults.breaks => world.connecting_failed(node),
        4 => world.up(node),
        5 if faults.freezes => world.freeze(node, random.one_in(2)),
        6 if faults.freezes => world.mute(node, random.one_in(2)),
        7 if faults.errors => {
            let kinds = [FailureKind::Loading, FailureKind::Rejected, FailureKind::Forbidden];
            world.refuse(node, random.one_in(2).then(|| kinds[random.below(3)]));
        }
        8 if faults.clocks && random.one_in(4) => {
            world.step_wall(random.below(600) as i64 - 200);
        }
        8 if faults.clocks => {
            let client = random.below(world.engines.len());
            world.sleep(client, random.below(1500) as i64);
        }
        _ if faults.duplicates => repeat(world, random),
        _ => world.set_one_way(node, random.below(40) as i64),
    }
}

/// An answer comes a second time.
fn repeat(world: &mut ScriptedWorld, random: &mut Random) {
    let history = world.settings.history.as_ref().expect("kept");
    if history.is_empty() {
        return;
    }
    let back = random.below(history.len().min(40));
    let again = history[history.len() - 1 - back].clone();
    let Delivered { client, node, sent, ticket, answer } = again;
    let answers = vec![(ticket, answer)];
    let node = quorlock_core::NodeId::new(node);
    world.tell(client, Event::Answered { node, sent, evidence: Evidence::NotRequired, answers });
}

/// Runs so many seeds, or as many as `SEEDS` says, and returns how many; or the one that `SEED` says.
pub(crate) fn seeds(many: usize, mut run: impl FnMut(u64)) -> Option<usize> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("SEED") {
        run(seed);
        return None;
    }
    let many = number("SEEDS").map_or(many, |many| many as usize);
    (0..many as u64).for_each(run);
    Some(many)
}

#[test]
fn whatever_happens_the_rules_hold_and_nothing_is_left() {
    let mut seen = Seen::default();
    let Some(seeds) = seeds(400, |seed| run(seed, 300, &mut seen)) else {
        return;
    };
    let often = seeds / 2;
    assert!(seen.granted > often && seen.refused > often && seen.lost > often, "{seen:?}");
    assert!(seen.overlapped > 0, "the losses are real: {seen:?}");
    assert!(seen.raised > 0 && seen.passed_on > 0 && seen.superseded > 0, "{seen:?}");
    println!("{seen:?}");
}
