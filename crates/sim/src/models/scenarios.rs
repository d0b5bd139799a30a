//! The models that are checked, with their bounds, and what must come of each.

use stateright::Path;

use super::*;

/// A model, its bounds, and what must come of it.
#[derive(Debug)]
pub struct Scenario {
    /// A short name.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// A mistake to switch on, in a build that has them.
    pub mutant: Option<&'static str>,
    bounds: Bounds,
    only: Option<&'static str>,
    /// How many states there are; `None`: there must be a counterexample.
    pinned: Option<usize>,
    sometimes: &'static [Rare],
}

/// What came of a model.
#[derive(Debug)]
pub struct Found {
    /// States that differ.
    pub states: usize,
    /// Steps from a state to another.
    pub steps: usize,
    /// The longest way from the beginning.
    pub depth: usize,
    /// What happened how often.
    pub sometimes: Vec<(&'static str, u64)>,
    /// Line by line, if an invariant did not hold.
    pub counterexample: Option<Vec<String>>,
    /// What is not as it must be.
    pub wrong: Option<String>,
}

const M1: Bounds = Bounds {
    ttl: 5,
    drift: 2,
    node_fast: 1,
    client_slow: 5,
    suspends: 0,
    attempts: [1, 1],
    extensions: [0, 0],
    command_age: 1,
    answer_age: 4,
    slow_links: 1,
    pause: 4,
    pauses: 1,
    flushes: 0,
    breaks: 0,
    alike: true,
};

/// Models in which every invariant holds in every state.
pub fn positives() -> Vec<Scenario> {
    vec![Scenario {
        name: "M1",
        about: "timed mutex",
        mutant: None,
        bounds: tune(M1),
        only: None,
        pinned: Some(0),
        sometimes: Rare::ALL,
    }]
}

fn tune(mut b: Bounds) -> Bounds {
    for kv in std::env::var("M").unwrap_or_default().split_whitespace() {
        let (k, v) = kv.split_once('=').unwrap();
        let n: u32 = v.split(',').next().unwrap().parse().unwrap();
        let m: u32 = v.split(',').next_back().unwrap().parse().unwrap();
        match k {
            "ttl" => b.ttl = n,
            "drift" => b.drift = n,
            "fast" => b.node_fast = n,
            "slow" => b.client_slow = n as u8,
            "susp" => b.suspends = n as u8,
            "att" => b.attempts = [n, m],
            "ext" => b.extensions = [n as u8, m as u8],
            "cmd" => b.command_age = n,
            "links" => b.slow_links = n as usize,
            "ans" => b.answer_age = n,
            "pause" => b.pause = n,
            "pauses" => b.pauses = n as u8,
            "flush" => b.flushes = n as u8,
            "break" => b.breaks = n as u8,
            "alike" => b.alike = n > 0,
            _ => panic!("{k}"),
        }
    }
    b
}

/// Models in which two must come to hold the lock.
pub fn negatives() -> Vec<Scenario> {
    vec![]
}

impl Scenario {
    /// Explores it, to the end unless something is wrong.
    pub fn check(&self) -> Found {
        let model = Timed {
            bounds: self.bounds,
            only: self.only,
            seen: Witnesses::default(),
            failed: AtomicBool::new(false),
        };
        let checker = model.checker().threads(1).finish_when(HasDiscoveries::AnyFailures);
        let limit = std::env::var("N").ok().and_then(|n| n.parse().ok()).unwrap_or(usize::MAX);
        let checker = checker.target_state_count(limit).spawn_bfs().join();
        let failure = checker.discoveries().into_values().next();
        let model = checker.model();
        let sometimes =
            self.sometimes.iter().map(|rare| (rare.text(), model.seen.of(*rare))).collect();
        Found {
            states: checker.unique_state_count(),
            steps: checker.state_count(),
            depth: checker.max_depth(),
            sometimes,
            counterexample: failure.map(|path| tell(model, path)),
            wrong: None,
        }
    }
}

/// A way through the model as a story: what is done, and what happens then.
fn tell(model: &Timed, path: Path<World, Action>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut world = World::new(&model.bounds, model.only);
    let mut ticks = 0;
    for action in path.into_actions() {
        let (next, trace) = model.step(&world, action, true);
        if matches!(action, Action::Tick(..)) {
            ticks += 1;
        }
        lines.extend(trace.into_iter().map(|line| format!("tick {ticks:>2}  {line}")));
        world = next;
    }
    lines
}
