//! Random histories of callers, faults and the network. The invariants that [`quorlock_sim::scripted`] checks hold at
//! every step, and no key or call is left at the end.
//!
//! The test prints a failing seed. `SEED=N cargo test --test engine random` runs one seed, and `SEEDS=N` runs N seeds.

use std::time::Duration;

use quorlock_core::Wait;
use quorlock_core::{Event, FailureKind, LockId, Quorum, Request, Retry};

use quorlock_sim::Random;
use quorlock_sim::scripted::ScriptedWorld;
use quorlock_sim::scripted::asking::{fenced, request};

const KEYS: [&str; 2] = ["a", "b"];

/// The faults of a run. Each seed draws its own faults.
struct Faults {
    /// Whether nodes lose keys. This breaks an assumption of the protocol, so locks may overlap.
    losses: bool,
    breaks: bool,
    freezes: bool,
    errors: bool,
    clocks: bool,
    duplicates: bool,
    /// Whether the nodes' counters of fencing tokens differ and are ahead of all clocks.
    counters: bool,
    /// The number of callers, out of four, that want a fencing token.
    fenced: usize,
}

/// The numbers of events in all seeds together. The test fails if an event happened in no seed.
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
    let mut random = Random::new(seed, 0);
    let nodes = 1 + random.index(5);
    let needed = nodes / 2 + 1 + random.index(nodes - nodes / 2);
    let clients = 2 + random.index(2);
    let mut world =
        ScriptedWorld::with(clients, Quorum::new(nodes, needed).expect("at least a majority"));
    world.set_jitter(None);
    if seed.is_multiple_of(20) {
        world.shadow();
    }
    let faults = Faults {
        losses: random.percent(33),
        breaks: random.coin(),
        freezes: random.coin(),
        errors: random.coin(),
        clocks: random.coin(),
        duplicates: random.coin(),
        counters: random.coin(),
        fenced: [0, 2, 4][random.index(3)],
    };
    if faults.counters {
        for key in KEYS {
            let ahead = || 10_000_000_000 + random.index(20) as u64;
            let at: Vec<u64> = std::iter::repeat_with(ahead).take(nodes).collect();
            world.set_counters(key, &at);
        }
    }
    for node in 0..nodes {
        world.run_fast(node, if faults.clocks { random.index(10_001) as i64 } else { 0 });
    }
    let mut calls: Vec<LockId> = Vec::new();
    for _ in 0..steps {
        match random.index(8) {
            0 | 1 => calls.push(call(&mut world, &mut random, &faults)),
            2 | 3 if !calls.is_empty() => follow_up(&mut world, &mut random, &calls),
            4 => disturb(&mut world, &mut random, &faults),
            5 => world.run_for(random.index(400) as i64),
            _ => world.run_for(random.index(20) as i64),
        }
    }
    world.finish();
    seen.granted += calls.iter().filter(|lock| world.granted_at(**lock).is_some()).count();
    seen.refused += calls.iter().filter(|lock| world.refused(**lock).is_some()).count();
    seen.lost += calls.iter().filter(|lock| world.lost(**lock).is_some()).count();
    seen.overlapped += world.overlaps();
    seen.raised += world.raised();
    let fenced = world.all_guards().filter(|(_, guard)| guard.fence.is_some());
    seen.passed_on += fenced.filter(|(_, guard)| guard.handover_count > 0).count();
    seen.superseded += calls.iter().map(|lock| world.superseded(*lock).len()).sum::<usize>();
}

fn call(world: &mut ScriptedWorld, random: &mut Random, faults: &Faults) -> LockId {
    let key = KEYS[random.index(2)];
    let wait = match random.index(3) {
        0 => Wait::Once,
        1 => Wait::For(Duration::from_millis(random.index(500) as u64)),
        _ => Wait::Forever,
    };
    let attempts_max = random.percent(25).then(|| random.index(4) as u32);
    let retry = Retry { attempts_max, ..Retry::default() };
    let automatic = random.coin();
    let max_hold = Duration::from_millis(1000 + random.index(3000) as u64);
    let request = Request { wait, retry, automatic, max_hold, ..request(key) };
    let request = if random.index(4) < faults.fenced { fenced(request) } else { request };
    let client = random.index(world.clients());
    world.acquire_by(client, request)
}

/// One of the last callers cancels its call, or extends or releases its lock.
fn follow_up(world: &mut ScriptedWorld, random: &mut Random, calls: &[LockId]) {
    // Selects one of the last four calls, which are most likely to be in progress.
    let back = random.index(calls.len().min(4));
    let lock = calls[calls.len() - 1 - back];
    if world.find(lock).is_none() {
        return world.cancel(lock);
    }
    let client = world.owner(lock);
    match random.index(4) {
        0 => world.extend(lock),
        1 if !world.is_valid(lock) => world.tell(client, Event::RunOut { lock }),
        _ => world.release(lock, random.coin()),
    }
}

fn disturb(world: &mut ScriptedWorld, random: &mut Random, faults: &Faults) {
    let node = random.index(world.node_count());
    match random.index(9) {
        0 if faults.losses => world.flush(node),
        1 if faults.breaks => {
            let orphans = random.coin().then(|| random.index(300) as i64);
            world.cut(node, orphans);
        }
        2 if faults.breaks => {
            world.down(node);
            world.connecting(node);
        }
        3 if faults.breaks => world.connecting_failed(node),
        4 => world.up(node),
        5 if faults.freezes => world.freeze(node, random.coin()),
        6 if faults.freezes => world.mute(node, random.coin()),
        7 if faults.errors => {
            let kinds = [FailureKind::Loading, FailureKind::Rejected, FailureKind::Forbidden];
            world.refuse(node, random.coin().then(|| kinds[random.index(3)]));
        }
        8 if faults.clocks && random.percent(25) => {
            world.step_wall(random.index(600) as i64 - 200);
        }
        8 if faults.clocks => {
            let client = random.index(world.clients());
            world.sleep(client, random.index(1500) as i64);
        }
        _ if faults.duplicates => repeat(world, random),
        _ => world.set_one_way(node, random.index(40) as i64),
    }
}

/// Delivers an earlier answer of a node a second time.
fn repeat(world: &mut ScriptedWorld, random: &mut Random) {
    let history = world.history();
    if history.is_empty() {
        return;
    }
    let back = random.index(history.len().min(40));
    let (client, again) = history[history.len() - 1 - back].clone();
    world.tell(client, again);
}

/// Runs `many` seeds, or as many as `SEEDS` says, and returns their number. If `SEED` is set, runs only that seed and
/// returns `None`.
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
fn in_random_histories_the_rules_hold_and_nothing_is_left() {
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
