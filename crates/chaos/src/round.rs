//! A round: starts servers and the processes that are tested, injects faults, ends them, and judges at the end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use quorlock_servers::proxy::{Effect, Proxy};
use quorlock_servers::{Reply, ServerBinary};
use quorlock_sim::time::{MS, SECOND, Time};
use tokio::runtime::{Builder, Runtime};

use crate::args::RoundKind;
use crate::clock::{nanos, now, seconds, wall_ahead};
use crate::commands::Commands;
use crate::faults::{Act, Event, node_name};
use crate::ledger::{Ledger, Shared, lock};
use crate::leftover_keys::{LeftoverKeys, MARKER};
use crate::nemesis::Nemesis;
use crate::plan::{Abilities, PROCESSES, RoundPlan, over};
use crate::said;
use crate::sentinel::Sentinel;
use crate::server_clock::Shim;
use crate::servers::Servers;
use crate::totals::{CHECKED, CONNECTIONS, FAULTS, KEYS_LEFT, Outcome, WRONG};
use crate::workers::{Workers, jobs};

/// Extra time in every bound, because the machine may be busy.
const BUSY: Time = 10 * SECOND;

/// After [`bound`], clients get this much more time to stop replacing connections. Later replacements are a violation.
const REST: Time = 30 * SECOND;

/// A due fault waits at most this long for a process that it can strike. If there is none, the fault is left out.
const TARGET: Time = 2000 * MS;

pub(crate) const AT_ONCE: &str = "rounds in which keys were looked for at once";

/// The effects on connections that the proxies count, and their names.
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

/// The processes that a round tests: workers that use the library, `quorlock run` and scripts, or workers behind
/// Sentinels. Each reports what it holds and writes to the ledger.
pub(crate) trait Subject {
    /// Injects a fault of a process, or ends it. Returns false if there is no process now that the fault can strike.
    fn strike(&mut self, act: &Act, due: Time, nemesis: &Nemesis) -> Result<bool, String>;

    /// Does the work that has become due while faults are injected.
    fn look(&mut self, _nemesis: &Nemesis) {}

    /// Ends the faults of all processes. From now on, processes hold each lock only briefly.
    fn calm(&mut self) -> Result<(), String>;

    /// Whether the processes make new connections although nothing is wrong.
    fn reconnects(&self) -> bool {
        false
    }

    /// Ends the processes. Returns whether all ended in such a way that no key may be left.
    fn stop(&mut self) -> Result<bool, String>;

    /// Kills the processes that still run, and adds counts and violations to the ledger.
    fn judge(&mut self) -> Result<(), String>;
}

/// The programs that rounds run, and the flag that a signal handler sets to end them.
pub(crate) struct Programs {
    pub(crate) server: ServerBinary,
    pub(crate) shim: Option<Shim>,
    pub(crate) quorlock: PathBuf,
    pub(crate) can: Abilities,
    pub(crate) interrupt: Arc<AtomicBool>,
}

/// The longest time from the healing until each client has a lock. In this time, old keys expire, clients replace
/// silent connections (after three node timeouts of at most a quarter of the ttl, and two seconds) and broken ones (one
/// second to notice, one to connect), and nodes without their data vote again.
fn bound(plan: &RoundPlan) -> Time {
    over(plan.max_ttl) + 3 * plan.max_ttl / 4 + 4 * SECOND + plan.quarantine() + BUSY
}

/// Runs a round. An error means that the round could not be run, and says nothing about quorlock.
pub(crate) fn run(plan: &RoundPlan, programs: &Programs) -> Result<Outcome, String> {
    let mut round = Round::start(plan, programs)?;
    let done = round.adoption()? && round.faults()? && (!plan.heals || round.healing()?);
    round.outcome(!done)
}

struct Round<'a> {
    plan: &'a RoundPlan,
    interrupt: &'a AtomicBool,
    wall_ahead: Time,
    ledger: Shared,
    subject: Box<dyn Subject>,
    nemesis: Nemesis,
    keys: LeftoverKeys,
    /// The runtime of the proxies. It is the last field, so that it is dropped after the proxies.
    _runtime: Runtime,
}

impl<'a> Round<'a> {
    fn start(plan: &'a RoundPlan, programs: &'a Programs) -> Result<Self, String> {
        let servers = Servers::start(plan, &programs.server, programs.shim.as_ref())?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(said)?;
        let traffic = |place| {
            let proxy = runtime.block_on(Proxy::start(servers.node(place)))?;
            proxy.set_distance(plan.distance(place));
            Ok(proxy)
        };
        let ways = |_| (0..plan.nodes).map(traffic).collect();
        let proxies: std::io::Result<Vec<Vec<Proxy>>> = (0..plan.machines()).map(ways).collect();
        let proxies = proxies.map_err(|error| format!("a proxy: {error}"))?;
        let ledger = Arc::new(Mutex::new(Ledger::new(now(), plan.outside)));
        let nemesis = Nemesis::new(servers, proxies);
        let subject: Box<dyn Subject> = match plan.kind {
            RoundKind::Library | RoundKind::Replicas => {
                Box::new(Workers::start(jobs(plan, &nemesis), PROCESSES, &ledger)?)
            }
            RoundKind::Commands => Box::new(Commands::start(plan, &nemesis, &ledger, programs)?),
            RoundKind::Sentinel => Box::new(Sentinel::start(plan, &nemesis, &ledger, programs)?),
        };
        Ok(Self {
            plan,
            interrupt: &programs.interrupt,
            wall_ahead: wall_ahead(),
            ledger,
            subject,
            nemesis,
            keys: LeftoverKeys::default(),
            _runtime: runtime,
        })
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
                ready &= marked.map_err(said)? == Reply::Int(1);
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
            if !self.sleep(20 * MS) {
                return Ok(false);
            }
        }
    }

    /// Injects the faults of the plan. Returns false if the round was interrupted.
    fn faults(&mut self) -> Result<bool, String> {
        let begin = now();
        lock(&self.ledger).has_faults = true;
        let plan = self.plan;
        let mut events: Vec<&Event> =
            plan.events.iter().filter(|event| event.at < plan.faults).collect();
        while now() < begin + plan.faults || !events.is_empty() {
            let (due, later): (Vec<_>, Vec<_>) =
                events.into_iter().partition(|event| begin + event.at <= now());
            let mut waiting = Vec::new();
            for event in due {
                if self.interrupt.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                let due = begin + event.at;
                if !self.act(event, due)? && now() <= due + TARGET {
                    waiting.push(event);
                }
            }
            waiting.extend(later);
            events = waiting;
            self.subject.look(&self.nemesis);
            if !self.sleep(3 * MS) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Carries out an act. Returns false if no process is there that it can strike.
    fn act(&mut self, event: &Event, due: Time) -> Result<bool, String> {
        let is_done = match &event.act {
            act @ (Act::Client(..) | Act::ToHolder(_) | Act::BySentinel(_)) => {
                self.subject.strike(act, due, &self.nemesis)?
            }
            act => {
                lock(&self.ledger).note(now(), format!("-- {act}"));
                self.nemesis.act(act)?;
                true
            }
        };
        if let Some(kind) = event.begins {
            lock(&self.ledger).totals.count(FAULTS, kind.name(), u64::from(is_done));
        }
        Ok(is_done)
    }

    /// Ends all faults and waits for recovery. Returns false if the round was interrupted.
    fn healing(&mut self) -> Result<bool, String> {
        lock(&self.ledger).note(now(), "-- everything is taken back");
        self.nemesis.heal()?;
        self.subject.calm()?;
        lock(&self.ledger).healed(now());
        let bound = bound(self.plan);
        let Some(settled) = self.settle(now() + bound) else { return Ok(false) };
        {
            let mut ledger = lock(&self.ledger);
            let late = ledger.clients.late(bound);
            if !settled && late.is_empty() {
                let bound = seconds(bound + REST);
                let what = format!(
                    "connections were still being made {bound} after everything was healed"
                );
                ledger.violated(now(), what);
            }
            for name in late {
                let bound = seconds(bound);
                let what = format!("{name} had no lock within {bound} after everything was healed");
                ledger.violated(now(), what);
            }
        }
        let accepted = self.nemesis.count(Effect::Accepted);
        let is_clean = self.subject.stop()?;
        let new_connections = self.nemesis.count(Effect::Accepted) != accepted;
        // Leftover keys are excused if a violation was recorded above, if a client did not report its shutdown, or if
        // connections were made during the shutdown: commands of the replaced ones may still arrive.
        let excused = !settled || new_connections || !is_clean;
        let deadline = now() + over(self.plan.max_ttl) + SECOND;
        self.keys = LeftoverKeys::look(&self.nemesis.servers, deadline, excused)?;
        lock(&self.ledger).totals.count(CHECKED, AT_ONCE, u64::from(!excused));
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
                ledger.clients.healed_within().is_some()
            };
            let quiet = now() - since > over(self.plan.max_ttl) + 100 * MS;
            if all && (quiet || self.subject.reconnects()) {
                return Some(true);
            }
            if now() > if all { deadline + REST } else { deadline } {
                return Some(false);
            }
            if !self.sleep(10 * MS) {
                return None;
            }
        }
    }

    /// Sleeps for this short time. Returns false if the round was interrupted.
    fn sleep(&self, time: Time) -> bool {
        thread::sleep(nanos(time));
        !self.interrupt.load(Ordering::Relaxed)
    }

    fn outcome(mut self, interrupted: bool) -> Result<Outcome, String> {
        self.subject.judge()?;
        let mut ledger = lock(&self.ledger);
        let moved = wall_ahead() - self.wall_ahead;
        if moved.abs() > 2 * MS {
            let what = format!("-- the wall clock was moved by {} in this round", seconds(moved));
            ledger.note(now(), what);
        }
        for (node, key) in self.keys.wrong() {
            let node = node_name(node);
            ledger.violated(now(), format!("on node {node}, key {key} is left"));
        }
        let mut totals = std::mem::take(&mut ledger.totals);
        totals.count(WRONG, KEYS_LEFT, self.keys.wrong().count() as u64);
        for (effect, name) in EFFECTS {
            totals.count(CONNECTIONS, name, self.nemesis.count(effect));
        }
        let healed = ledger.clients.healed_within();
        let findings = ledger.findings();
        Ok(Outcome::new(self.plan, interrupted, totals, healed, findings))
    }
}
