//! One round: servers, processes, faults, healing, calm, the end; and what the oracles say.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use quorlock_servers::proxy::{Effect, Proxy};
use quorlock_servers::{Nodes, Reply, Server, ServerBinary, ServerOptions};
use quorlock_sim::time::{MS, SECOND, Time};
use tokio::runtime::{Builder, Runtime};

use crate::clock::{now, wall_ahead};
use crate::crew::{Crew, Shared, lock};
use crate::ledger::{Ledger, Tally, Violation, seconds};
use crate::nemesis::Nemesis;
use crate::oracles::{Keys, Witness, late, overlaps};
use crate::plan::{Kind, PROCESSES, Plan, nanos, node_name, over};
use crate::talk::{CLIENTS, Job, RESOURCES, Told};

/// What a machine that is busy with other things may take on top of every bound.
const BUSY: Time = 10 * SECOND;

/// How much longer than that connections may be replaced until they rest; then something replaces
/// them for ever.
const REST: Time = 30 * SECOND;

/// How long processes may take to give everything back and end.
const END: Time = 30 * SECOND;

/// How much of the story is told around a violation: before and after it, and how many lines.
const BEFORE: Time = 2 * SECOND;
const AFTER: Time = 200 * MS;
const LINES: usize = 80;

/// Somebody wants an end.
pub(crate) type Interrupt = Arc<AtomicBool>;

/// What came of a round.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// It was left before its end; some oracles were not asked.
    pub(crate) interrupted: bool,
    pub(crate) injected: BTreeMap<Kind, u64>,
    /// What the proxies did; in the order of [`EFFECTS`].
    pub(crate) effects: [u64; EFFECTS.len()],
    pub(crate) tally: Tally,
    pub(crate) overlaps: usize,
    pub(crate) witness: Witness,
    pub(crate) keys: Keys,
    /// When the last client had a lock again after everything was healed; nothing if one had none.
    pub(crate) healed: Option<Time>,
    pub(crate) violations: Vec<Violation>,
    /// The story around the first violation, and all of it.
    pub(crate) extract: Vec<String>,
    pub(crate) story: Vec<String>,
}

/// What is counted, and what it is called.
pub(crate) const EFFECTS: [(Effect, &str); 10] = [
    (Effect::Accepted, "connections made"),
    (Effect::NoServer, "connections to a node that was down"),
    (Effect::Delayed, "messages delayed"),
    (Effect::Held, "messages held"),
    (Effect::Late, "messages that came after their connection was closed"),
    (Effect::Dropped, "messages dropped"),
    (Effect::Split, "messages split"),
    (Effect::HalfClosed, "connections half-closed"),
    (Effect::Truncated, "connections cut off in the middle of a message"),
    (Effect::Reset, "connections reset"),
];

/// Within how long after the healing each client must have a lock: what the fault phase may have left
/// on the nodes is over, a silent connection has been replaced (three node timeouts, of a quarter of
/// the ttl at most, and two seconds), a new one made (one second) after a break (one second).
pub(crate) fn bound(plan: &Plan) -> Time {
    over(plan.max_ttl) + 3 * plan.max_ttl / 4 + 4 * SECOND + BUSY
}

/// Runs it.
///
/// # Errors
/// What kept it from being run; that says nothing about quorlock.
pub(crate) fn run(
    plan: &Plan,
    binary: &ServerBinary,
    interrupt: &Interrupt,
) -> Result<Outcome, String> {
    let round = Round::start(plan, binary, interrupt.clone())?;
    round.run()
}

struct Round<'a> {
    plan: &'a Plan,
    interrupt: Interrupt,
    start: Time,
    wall_ahead: Time,
    ledger: Shared,
    nemesis: Nemesis,
    keys: Keys,
    /// Where the proxies live; the last to go.
    _runtime: Runtime,
}

impl<'a> Round<'a> {
    fn start(plan: &'a Plan, binary: &ServerBinary, interrupt: Interrupt) -> Result<Self, String> {
        let nodes = Nodes::start(binary, plan.nodes, ServerOptions::default());
        let nodes = nodes.map_err(|error| error.to_string())?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let ways = |_| nodes.iter().map(|node| runtime.block_on(Proxy::start(node))).collect();
        let proxies: Result<Vec<Vec<Proxy>>, _> = (0..PROCESSES).map(ways).collect();
        let proxies = proxies.map_err(|error| format!("a proxy: {error}"))?;
        let start = now();
        let ledger = Arc::new(Mutex::new(Ledger::new(start)));
        let crew = Crew::start(jobs(plan, &proxies), &ledger)?;
        let nemesis = Nemesis::new(plan, nodes, proxies, crew, &ledger);
        let (wall_ahead, keys) = (wall_ahead(), Keys::default());
        Ok(Self { plan, interrupt, start, wall_ahead, ledger, nemesis, keys, _runtime: runtime })
    }

    fn run(mut self) -> Result<Outcome, String> {
        let done = self.faults()? && (self.is_negative() || self.healing()?);
        Ok(self.outcome(!done))
    }

    fn is_negative(&self) -> bool {
        self.plan.kinds == [Kind::Amnesia]
    }

    /// Returns whether it came to its end.
    fn faults(&mut self) -> Result<bool, String> {
        for event in &self.plan.events {
            if event.at >= self.plan.faults {
                break;
            }
            if !self.sleep_until(self.start + event.at) {
                return Ok(false);
            }
            self.nemesis.act(event)?;
        }
        Ok(self.sleep_until(self.start + self.plan.faults))
    }

    /// Everything must come to a good end. Returns whether it came to an end at all.
    fn healing(&mut self) -> Result<bool, String> {
        self.nemesis.heal()?;
        self.nemesis.crew.tell(Told::Calm);
        let bound = bound(self.plan);
        let Some(settled) = self.settle(now() + bound) else { return Ok(false) };
        let clients = lock(&self.ledger).after_healing();
        let late = late(clients.iter().map(|(name, after)| (name.as_str(), *after)), bound);
        if !settled && late.is_empty() {
            let bound = seconds(bound + REST);
            let what = format!("connections were still made {bound} after everything was healed");
            lock(&self.ledger).violated(now(), what);
        }
        for name in late {
            let bound = seconds(bound);
            let what = format!("{name} had no lock within {bound} after everything was healed");
            lock(&self.ledger).violated(now(), what);
        }
        self.nemesis.crew.tell(Told::Stop);
        let accepted = self.nemesis.count(Effect::Accepted);
        let unwell = self.nemesis.crew.ended(now() + END);
        let new_connections = self.nemesis.count(Effect::Accepted) != accepted;
        {
            let mut ledger = lock(&self.ledger);
            for what in unwell {
                ledger.violated(now(), what);
            }
            let owed = ledger.owed;
            if owed > 0 {
                let what = format!("{owed} releases were still owed when clients had shut down");
                ledger.violated(now(), what);
            }
            // What is no violation already: right at the end a connection was replaced, and what was
            // sent on the old one may still come; or a client's last word could not be read.
            let all_closed = ledger.closed >= PROCESSES * CLIENTS;
            self.keys.excused = !settled || new_connections || owed > 0 || !all_closed;
        }
        self.keys.at_once = keys(&self.nemesis.nodes)?;
        if !self.keys.at_once.is_empty() {
            let deadline = now() + over(self.plan.max_ttl) + SECOND;
            self.keys.later = loop {
                let left = keys(&self.nemesis.nodes)?;
                if left.is_empty() || now() >= deadline {
                    break left;
                }
                thread::sleep(Duration::from_millis(20));
            };
        }
        Ok(true)
    }

    /// Waits until every client has had a lock, and for so long nothing was connected anew that
    /// nothing can be left of what was sent on a connection that is gone; for that it waits for
    /// [`REST`] more. Returns whether that came about, or nothing if somebody wants an end.
    fn settle(&self, deadline: Time) -> Option<bool> {
        let (mut accepted, mut since) = (self.nemesis.count(Effect::Accepted), now());
        loop {
            let current = self.nemesis.count(Effect::Accepted);
            if current != accepted {
                (accepted, since) = (current, now());
            }
            let all = lock(&self.ledger).after_healing().iter().all(|(_, after)| after.is_some());
            let quiet = now() - since > over(self.plan.max_ttl) + 100 * MS;
            if all && quiet {
                return Some(true);
            }
            if now() > if all { deadline + REST } else { deadline } {
                return Some(false);
            }
            if !self.sleep_until(now() + 10 * MS) {
                return None;
            }
        }
    }

    /// Returns false if somebody wants an end before that.
    fn sleep_until(&self, at: Time) -> bool {
        loop {
            if self.interrupt.load(Ordering::Relaxed) {
                return false;
            }
            let left = at - now();
            if left <= 0 {
                return true;
            }
            thread::sleep(nanos(left.min(20 * MS)));
        }
    }

    fn outcome(self, interrupted: bool) -> Outcome {
        let Self { start, wall_ahead, ledger, nemesis, keys, .. } = self;
        let effects = EFFECTS.map(|(effect, _)| nemesis.count(effect));
        let Nemesis { injected, crew, .. } = nemesis;
        let alive_at = now();
        // From here on nobody says anything any more.
        drop(crew);
        let mut ledger = lock(&ledger);
        for process in 0..PROCESSES {
            ledger.killed(process, alive_at);
        }
        let found: Vec<Violation> = overlaps(ledger.holds())
            .into_iter()
            .map(|(first, second)| {
                let both = first.to.min(second.to) - second.from;
                let (one, other) = (&first.holder, &second.holder);
                let (lock, both) = (RESOURCES[second.resource], seconds(both));
                let what = format!("{one} and {other} both hold {lock}, for {both}");
                Violation { at: second.from, what }
            })
            .collect();
        let overlaps = found.len();
        for Violation { at, what } in found {
            ledger.violated(at, what);
        }
        for (node, key) in keys.wrong() {
            let node = node_name(node);
            ledger.violated(now(), format!("on node {node}, key {key} is left"));
        }
        let moved = self::wall_ahead() - wall_ahead;
        if moved.abs() > 2 * MS {
            let what = format!("-- the wall clock was moved by {} in this round", seconds(moved));
            ledger.note(now(), what);
        }
        let mut witness = Witness::default();
        for one in ledger.witnesses {
            witness.number += one.number;
            witness.writes += one.writes;
            witness.too_late += one.too_late;
        }
        let mut violations = std::mem::take(&mut ledger.violations);
        violations.sort_by_key(|violation| violation.at);
        let first = violations.first().map_or(start, |violation| violation.at);
        let mut extract = ledger.story(first - BEFORE, first + AFTER);
        extract.drain(..extract.len().saturating_sub(LINES));
        let after: Option<Vec<Time>> =
            ledger.after_healing().into_iter().map(|(_, after)| after).collect();
        let healed = after.and_then(|after| after.into_iter().max());
        Outcome {
            interrupted,
            injected,
            effects,
            tally: ledger.tally.clone(),
            overlaps,
            witness,
            keys,
            healed,
            violations,
            extract,
            story: ledger.story(start, Time::MAX),
        }
    }
}

fn jobs(plan: &Plan, proxies: &[Vec<Proxy>]) -> Vec<Job> {
    let url = |(node, proxy): (usize, &Proxy)| format!("{}={}", node_name(node), proxy.url());
    let job = |(place, proxies): (usize, &Vec<Proxy>)| Job {
        urls: proxies.iter().enumerate().map(url).collect(),
        // The streams of a seed are those of callers; the plan's own is another seed's.
        seed: plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(place as u64 + 1),
        max_ttl: plan.max_ttl,
        exact: plan.exact,
    };
    proxies.iter().enumerate().map(job).collect()
}

/// The keys on each node that has any. Asked for by name, because servers count those that have
/// expired and were not yet swept away.
fn keys(nodes: &[Server]) -> Result<BTreeMap<usize, Vec<String>>, String> {
    let mut all = BTreeMap::new();
    for (place, node) in nodes.iter().enumerate() {
        let reply = node.command(&["KEYS", "*"]);
        let Ok(Reply::Array(keys)) = reply else {
            return Err(format!("node {}: KEYS: {reply:?}", node_name(place)));
        };
        let text = |key: Reply| match key {
            Reply::Bulk(Some(key)) => String::from_utf8_lossy(&key).into_owned(),
            other => format!("{other:?}"),
        };
        if !keys.is_empty() {
            all.insert(place, keys.into_iter().map(text).collect());
        }
    }
    Ok(all)
}
