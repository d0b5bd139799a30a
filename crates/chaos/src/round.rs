//! A round with the library: starts servers and processes, injects faults, ends them, and asks the oracles at the end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use quorlock_servers::proxy::{Effect, Proxy};
use quorlock_servers::{Reply, ServerBinary};
use quorlock_sim::time::{MS, SECOND, Time};
use tokio::runtime::{Builder, Runtime};

use crate::act::{Kind, node_name};
use crate::clock::{now, seconds, wall_ahead};
use crate::holds::{Hold, Pair, disordered, overlaps, together};
use crate::ledger::{
    ATTACHED, ATTACHED_FENCED, ATTACHED_SHARED, CALLS, DOWNGRADE_CONFIRMED, Ledger, PROLONGED,
    SAME_MOMENT, SEVERAL, SEVERAL_FENCED, UNTRUSTED, Violation,
};
use crate::nemesis::Nemesis;
use crate::oracles::{Keys, late};
use crate::plan::failover::FAILOVERS;
use crate::plan::{KINDS, PROCESSES, RoundPlan, nanos, over};
use crate::protocol::{CLIENTS, ControllerMessage, Job, RESOURCES};
use crate::servers::Servers;
use crate::shim::Shim;
use crate::totals::Outcome;
use crate::workers::{Shared, Workers, lock};

/// Extra time in every bound, because the machine may be busy.
const BUSY: Time = 10 * SECOND;

/// After [`bound`], clients get this much more time to stop replacing connections. Later replacements are a violation.
const REST: Time = 30 * SECOND;

const END: Time = 30 * SECOND;

/// The first violation is printed with journal lines from `BEFORE` before it to `AFTER` after it, at most `LINES`.
const BEFORE: Time = 2 * SECOND;
const AFTER: Time = 200 * MS;
const LINES: usize = 200;

/// Titles of the sections in the totals of a round, and names of the counts in these sections.
pub(crate) const FAULTS: &str = "faults injected";
const TOUCHED: &str = "effects of the faults";
const SEEN: &str = "what the oracles looked at";
pub(crate) const ORACLES: &str = "what was wrong";
const OUTSIDE: &str = "what was wrong in rounds beyond the assumptions of mutual exclusion";
pub(crate) const OVERLAPS: &str = "two holders at the same time, not both readers";
pub(crate) const LOST_UPDATES: &str = "updates lost by trust in validity";
const CHANGED: &str = "numbers that changed while readers held the lock";
const LOST_FENCED: &str = "updates lost by the store that checks fencing tokens";
const DISORDERED: &str = "fencing tokens that were not larger than one before";
const KEYS_LEFT: &str = "keys left on the nodes";
const TOGETHER: &str = "readers let in while another one held the same lock";
const WRITES: &str = "increments without a fencing token";
const COMPARED: &str = "numbers that readers compared";
const FENCED_WRITES: &str = "increments with a fencing token";
const REFUSED: &str = "writes and reads refused because of an old fencing token";
const FENCED: &str = "holders with a fencing token";
const AT_ONCE: &str = "rounds in which keys were looked for at once";

/// The effects on connections that the proxies count, and their names.
const EFFECTS: [(Effect, &str); 10] = [
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

/// Counts that must not be zero after enough rounds: each kind of fault, the effect of each connection fault, and the
/// events that each oracle checks.
pub(crate) fn needed(has_clocks: bool) -> Vec<(&'static str, &'static str)> {
    let kinds = KINDS.iter().flat_map(|kinds| kinds.iter());
    let kinds = kinds.filter(|kind| has_clocks || !kind.moves_clock());
    let mut needed: Vec<_> = kinds.map(|kind| (FAULTS, kind.name())).collect();
    // `NoServer` and `Late` are left out, because they occur only by chance.
    let effects =
        EFFECTS.iter().filter(|(effect, _)| !matches!(effect, Effect::NoServer | Effect::Late));
    needed.extend(effects.map(|(_, name)| (TOUCHED, *name)));
    needed.extend(
        [TOGETHER, WRITES, COMPARED, FENCED_WRITES, REFUSED, FENCED, AT_ONCE]
            .map(|name| (SEEN, name)),
    );
    needed.extend(
        [
            SEVERAL,
            SEVERAL_FENCED,
            DOWNGRADE_CONFIRMED,
            UNTRUSTED,
            ATTACHED,
            ATTACHED_SHARED,
            ATTACHED_FENCED,
            SAME_MOMENT,
            PROLONGED,
        ]
        .map(|name| (CALLS, name)),
    );
    needed
}

/// Counts that must not be zero after enough rounds in which nodes have replicas.
pub(crate) fn needed_with_replicas() -> Vec<(&'static str, &'static str)> {
    let failovers = FAILOVERS.iter().map(|kind| (FAULTS, kind.name()));
    failovers.chain([(SEEN, WRITES), (SEEN, FENCED_WRITES)]).collect()
}

/// A flag that a signal handler sets to end the program.
pub(crate) type Interrupt = Arc<AtomicBool>;

/// The longest time from the healing until each client has a lock. In this time, old keys expire, clients replace
/// silent connections (after three node timeouts of at most a quarter of the ttl, and two seconds) and broken ones (one
/// second to notice, one to connect), and nodes without their data vote again.
pub(crate) fn bound(plan: &RoundPlan) -> Time {
    over(plan.max_ttl) + 3 * plan.max_ttl / 4 + 4 * SECOND + plan.quarantine() + BUSY
}

/// Runs a round. An error means that the round could not be run, and says nothing about quorlock.
pub(crate) fn run(
    plan: &RoundPlan,
    binary: &ServerBinary,
    shim: Option<&Shim>,
    interrupt: &Interrupt,
) -> Result<Outcome, String> {
    let round = Round::start(plan, binary, shim, interrupt.clone())?;
    round.run()
}

struct Round<'a> {
    plan: &'a RoundPlan,
    interrupt: Interrupt,
    wall_ahead: Time,
    ledger: Shared,
    nemesis: Nemesis,
    keys: Keys,
    /// The runtime of the proxies. It is the last field, so that it is dropped after the proxies.
    _runtime: Runtime,
}

impl<'a> Round<'a> {
    fn start(
        plan: &'a RoundPlan,
        binary: &ServerBinary,
        shim: Option<&Shim>,
        interrupt: Interrupt,
    ) -> Result<Self, String> {
        let servers = Servers::start(plan, binary, shim)?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let traffic = |place| runtime.block_on(Proxy::start(servers.node(place)));
        let ways = |_| (0..plan.nodes).map(traffic).collect();
        let proxies: Result<Vec<Vec<Proxy>>, _> = (0..PROCESSES).map(ways).collect();
        let proxies = proxies.map_err(|error| format!("a proxy: {error}"))?;
        let ledger = Arc::new(Mutex::new(Ledger::new(now(), plan.outside)));
        let workers = Workers::start(jobs(plan, &proxies), &ledger)?;
        let nemesis = Nemesis::new(servers, proxies, workers, &ledger);
        let (wall_ahead, keys) = (wall_ahead(), Keys::default());
        Ok(Self { plan, interrupt, wall_ahead, ledger, nemesis, keys, _runtime: runtime })
    }

    fn run(mut self) -> Result<Outcome, String> {
        let done = self.adoption()? && self.faults()? && (self.is_negative() || self.healing()?);
        Ok(self.outcome(!done))
    }

    fn is_negative(&self) -> bool {
        self.plan.kinds == [Kind::Amnesia]
    }

    /// Waits until each client has had a lock and, with the restart guard, until all servers vote. To the guard, a new
    /// server is like one that lost its data: it votes only after an adoption, which is a wait and then a new marker.
    /// Returns false after an interruption.
    fn adoption(&mut self) -> Result<bool, String> {
        let bound = bound(self.plan);
        let deadline = now() + bound;
        loop {
            let mut ready = lock(&self.ledger).clients.all_have_held();
            for place in (0..self.plan.nodes).filter(|_| self.plan.guarded) {
                let marked = self.nemesis.servers.node(place).command(&["EXISTS", MARKER]);
                ready &= marked.map_err(|error| error.to_string())? == Reply::Int(1);
            }
            if ready {
                let at = now();
                lock(&self.ledger).note(at, "-- all nodes vote, and the faults begin");
                return Ok(true);
            }
            if now() >= deadline {
                let bound = seconds(bound);
                let what =
                    format!("new nodes did not vote, or a client had no lock, within {bound}");
                lock(&self.ledger).violated(now(), what);
                return Ok(true);
            }
            if !self.sleep_until(now() + 20 * MS) {
                return Ok(false);
            }
        }
    }

    /// Injects the faults of the plan. Returns false if the round was interrupted.
    fn faults(&mut self) -> Result<bool, String> {
        let begin = now();
        lock(&self.ledger).has_faults = true;
        for event in &self.plan.events {
            if event.at >= self.plan.faults {
                break;
            }
            if !self.sleep_until(begin + event.at) {
                return Ok(false);
            }
            self.nemesis.act(event)?;
        }
        Ok(self.sleep_until(begin + self.plan.faults))
    }

    /// Ends all faults and waits for recovery. Returns false if the round was interrupted.
    fn healing(&mut self) -> Result<bool, String> {
        self.nemesis.heal()?;
        self.nemesis.workers.send(&ControllerMessage::Calm);
        let bound = bound(self.plan);
        let Some(settled) = self.settle(now() + bound) else { return Ok(false) };
        let clients = lock(&self.ledger).clients.after_healing();
        let late = late(clients.iter().map(|(name, after)| (name.as_str(), *after)), bound);
        if !settled && late.is_empty() {
            let bound = seconds(bound + REST);
            let what =
                format!("connections were still being made {bound} after everything was healed");
            lock(&self.ledger).violated(now(), what);
        }
        for name in late {
            let bound = seconds(bound);
            let what = format!("{name} had no lock within {bound} after everything was healed");
            lock(&self.ledger).violated(now(), what);
        }
        self.nemesis.workers.send(&ControllerMessage::Stop);
        let accepted = self.nemesis.count(Effect::Accepted);
        let unwell = self.nemesis.workers.ended(now() + END);
        let new_connections = self.nemesis.count(Effect::Accepted) != accepted;
        {
            let mut ledger = lock(&self.ledger);
            for what in unwell {
                ledger.violated(now(), what);
            }
            let owed = ledger.clients.owed;
            if owed > 0 {
                let what = format!("{owed} releases were still owed when clients had shut down");
                ledger.violated(now(), what);
            }
            // Leftover keys are excused if a violation was recorded above, if a client did not report its shutdown, or
            // if connections were made during the shutdown: commands of the replaced ones may still arrive.
            let all_closed = ledger.clients.closed >= PROCESSES * CLIENTS;
            self.keys.excused = !settled || new_connections || owed > 0 || !all_closed;
        }
        let left = keys(&self.nemesis.servers)?;
        // Intents (notes that waiting writers leave on nodes) are allowed here, because they expire within a second.
        self.keys.at_once = left
            .iter()
            .map(|(node, keys)| {
                let locks = keys.iter().filter(|key| !key.starts_with(INTENT));
                (*node, locks.cloned().collect())
            })
            .filter(|(_, locks): &(_, Vec<_>)| !locks.is_empty())
            .collect();
        if !left.is_empty() {
            let deadline = now() + over(self.plan.max_ttl) + SECOND;
            self.keys.later = loop {
                let left = keys(&self.nemesis.servers)?;
                if left.is_empty() || now() >= deadline {
                    break left;
                }
                thread::sleep(Duration::from_millis(20));
            };
        }
        Ok(true)
    }

    /// Waits until (1) every client has had a lock, and (2) for longer than a ttl no connection was made and no caller
    /// left a lock behind. Then no command of an older connection can arrive, and locks without a holder have ended. If
    /// only condition 2 is missing at the deadline, waits for [`REST`] more. Returns whether both conditions were met;
    /// `None` if the round was interrupted.
    fn settle(&self, deadline: Time) -> Option<bool> {
        let (mut accepted, mut since) = (self.nemesis.count(Effect::Accepted), now());
        loop {
            let current = self.nemesis.count(Effect::Accepted);
            if current != accepted {
                (accepted, since) = (current, now());
            }
            let all = {
                let ledger = lock(&self.ledger);
                since = since.max(ledger.leases.left);
                ledger.clients.after_healing().iter().all(|(_, after)| after.is_some())
            };
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

    /// Sleeps until this time. Returns false if the round was interrupted meanwhile.
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
        let Self { plan, wall_ahead, ledger, nemesis, keys, .. } = self;
        let effects = EFFECTS.map(|(effect, _)| nemesis.count(effect));
        let Nemesis { injected, workers, .. } = nemesis;
        let alive_at = now();
        // Drops the workers first, so that none of their messages arrives during the evaluation of the ledger.
        drop(workers);
        let mut ledger = lock(&ledger);
        for process in 0..PROCESSES {
            ledger.killed(process, alive_at);
        }
        let found: Vec<Violation> = overlaps(ledger.holds())
            .into_iter()
            .map(|pair| {
                let (what, both) = pair.overlap();
                let what = format!("{what}, for {}", seconds(both));
                Violation { at: pair.second.from, what }
            })
            .collect();
        let overlaps = found.len();
        let moved = self::wall_ahead() - wall_ahead;
        if moved.abs() > 2 * MS {
            let what = format!("-- the wall clock was moved by {} in this round", seconds(moved));
            ledger.note(now(), what);
        }
        for Violation { at, what } in found {
            match plan.outside {
                Some(why) => ledger.note(at, format!("{what}, but {why}")),
                None => ledger.violated(at, what),
            }
        }
        let wrong: Vec<Violation> =
            disordered(ledger.holds()).into_iter().map(in_disorder).collect();
        let disordered = wrong.len();
        for Violation { at, what } in wrong {
            ledger.violated(at, what);
        }
        for (node, key) in keys.wrong() {
            let node = node_name(node);
            ledger.violated(now(), format!("on node {node}, key {key} is left"));
        }
        let wrong_keys = keys.wrong().count() as u64;
        let mut totals = std::mem::take(&mut ledger.totals);
        for (kind, count) in &injected {
            totals.count(FAULTS, kind.name(), *count);
        }
        for ((_, name), count) in EFFECTS.iter().zip(effects) {
            totals.count(TOUCHED, name, count);
        }
        let (witness, store) = (ledger.numbers.witness(), ledger.numbers.store());
        let rereading = ledger.numbers.rereading;
        let fenced = ledger.holds().iter().filter(|hold| hold.fence.is_some()).count();
        // Beyond the assumptions of the protocol, broken mutual exclusion is counted separately and is no violation.
        let oracles = if plan.outside.is_some() { OUTSIDE } else { ORACLES };
        for (section, name, count) in [
            (oracles, OVERLAPS, overlaps as u64),
            (oracles, LOST_UPDATES, witness.lost()),
            (oracles, CHANGED, rereading.changed),
            (ORACLES, LOST_FENCED, store.lost()),
            (ORACLES, DISORDERED, disordered as u64),
            (ORACLES, KEYS_LEFT, wrong_keys),
            (SEEN, TOGETHER, together(ledger.holds()) as u64),
            (SEEN, WRITES, witness.writes),
            (SEEN, "writes after the end of their lock: refused", witness.too_late),
            (SEEN, COMPARED, rereading.compared),
            (SEEN, "comparisons after the end of their lock", rereading.too_late),
            (SEEN, FENCED_WRITES, store.writes),
            (SEEN, REFUSED, store.refused),
            (SEEN, FENCED, fenced as u64),
            (SEEN, AT_ONCE, u64::from(!interrupted && !keys.excused)),
        ] {
            totals.count(section, name, count);
        }
        let mut findings = ledger.findings(BEFORE, AFTER);
        let surplus = findings.extract.len().saturating_sub(LINES);
        findings.extract.drain(..surplus);
        let after: Option<Vec<Time>> =
            ledger.clients.after_healing().into_iter().map(|(_, after)| after).collect();
        let healed = after.and_then(|after| after.into_iter().max());
        Outcome::new(plan.seed, interrupted, totals, healed, findings)
    }
}

fn in_disorder(Pair { first: before, second: hold, resource }: Pair<'_>) -> Violation {
    let fence = |hold: &Hold| hold.fence.unwrap_or_default();
    let what = format!(
        "{} gets fence {} of {}, after {} was shown {}",
        hold.holder,
        fence(hold),
        RESOURCES[resource],
        before.holder,
        fence(before)
    );
    Violation { at: hold.from, what }
}

fn jobs(plan: &RoundPlan, proxies: &[Vec<Proxy>]) -> Vec<Job> {
    let replicas = match plan.replicas() {
        0 => String::new(),
        count => format!("?replicas={count}"),
    };
    let url =
        |(node, proxy): (usize, &Proxy)| format!("{}={}{replicas}", node_name(node), proxy.url());
    let job = |(place, proxies): (usize, &Vec<Proxy>)| Job {
        urls: proxies.iter().enumerate().map(url).collect(),
        // Callers draw random numbers from this seed. It is not the plan's seed, so their draws differ from the plan's.
        seed: plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(place as u64 + 1),
        quorum: plan.quorum,
        max_ttl: plan.max_ttl,
        exact: plan.exact,
        guarded: plan.guarded,
    };
    proxies.iter().enumerate().map(job).collect()
}

const MARKER: &str = "quorlock:node";

/// The prefix of the library's keys other than locks, such as markers (which show that no data was lost), counters.
const OWN: &str = "quorlock:";

const INTENT: &str = "quorlock:intent:";

/// Prefixes of keys that expire with their lock: intents (notes of waiting writers), and nonces of taken locks.
const EPHEMERAL: [&str; 2] = [INTENT, "quorlock:take:"];

/// The keys of locks, intents and nonces on each node. Lists the keys with `KEYS`, because `DBSIZE` also counts expired
/// keys that the server has not deleted yet.
fn keys(servers: &Servers) -> Result<BTreeMap<usize, Vec<String>>, String> {
    let mut all = BTreeMap::new();
    for place in 0..servers.places() {
        let reply = servers.node(place).command(&["KEYS", "*"]);
        let Ok(Reply::Array(keys)) = reply else {
            return Err(format!("node {}: KEYS: {reply:?}", node_name(place)));
        };
        let text = |key: Reply| match key {
            Reply::Bulk(Some(key)) => String::from_utf8_lossy(&key).into_owned(),
            other => format!("{other:?}"),
        };
        let keys = keys
            .into_iter()
            .map(text)
            .filter(|key| !key.starts_with(OWN) || EPHEMERAL.iter().any(|of| key.starts_with(of)));
        let keys: Vec<String> = keys.collect();
        if !keys.is_empty() {
            all.insert(place, keys);
        }
    }
    Ok(all)
}
