//! A round with commands: starts servers and machines, injects faults, ends them, and checks after a calm phase.

mod scripts;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quorlock_servers::ServerBinary;
use quorlock_servers::proxy::Proxy;
use quorlock_sim::time::{MS, SECOND, Time};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use self::scripts::keeper_of;
use super::checks::{Meddling, overlaps, wrote};
use super::lane::{Book, CALM, CHAOS, Machine, OVER, RoundContext, work};
use super::plan::{FAULTS, Fault, KEYS, LANES, MACHINES, Strike, TTL, strikes};
use super::writer::Kind;
use crate::act::{Event, node_name};
use crate::clock::{now, seconds};
use crate::ledger::Ledger;
use crate::nemesis::Nemesis;
use crate::plan::{RoundPlan, nanos};
use crate::round::{self, Interrupt, bound};
use crate::servers::Servers;
use crate::shim::Shim;
use crate::totals::{Outcome, Totals};
use crate::workers::{Workers, lock};

/// A due fault waits this long for a command that would go on writing for at least a ttl. A command that ends sooner
/// may hide bugs.
const PICKY: Time = 1000 * MS;

/// A due fault waits at most this long for a command that holds a lock. If there is none, the fault is left out.
const TARGET: Time = 2000 * MS;

const END: Time = 75 * SECOND;

/// Added to the ttl of a killed script's lock: on a busy machine, the last extension is carried out this much later.
const LINGER: Time = 500 * MS;

/// Titles of the sections in the totals of a round with commands, and names of the counts in these sections.
pub(crate) const KINDS: &str = "commands that held a lock and wrote";
pub(crate) const STRUCK: &str = "faults injected while a command held a lock";
const STRUCK_SCRIPTS: &str =
    "faults injected while a script held a lock (keeper: the script, guardian: its keeper)";
const SAID: &str = "what `quorlock run` reported";
pub(crate) const SEEN: &str = "two commands that wrote under one lock at the same time";
const OVERLAPS: &str = "although that is excluded";

/// Counts that must not be zero after enough rounds: each kind of command, and each fault.
pub(crate) fn needed(can_step: bool, has_leases: bool) -> Vec<(&'static str, &'static str)> {
    let faults = Fault::ALL.iter().filter(|fault| can_step || !fault.is_step());
    let faults = faults.filter(|fault| has_leases || **fault != Fault::KillBoth);
    let faults = faults.map(|fault| (STRUCK, fault.name()));
    let kinds = Kind::ALL.iter().chain(has_leases.then_some(&Kind::Script));
    faults.chain(kinds.map(|kind| (KINDS, kind.name()))).collect()
}

/// Whether this `quorlock` has the commands `acquire`, `extend` and `release`.
pub(crate) fn has_leases(quorlock: &Path) -> bool {
    let mut help = Command::new(quorlock);
    help.args(["acquire", "--help"]).stdout(Stdio::null()).stderr(Stdio::null());
    help.status().is_ok_and(|status| status.success())
}

struct Round<'a> {
    plan: &'a RoundPlan,
    interrupt: Interrupt,
    context: Arc<RoundContext>,
    nemesis: Nemesis,
    lanes: Vec<JoinHandle<()>>,
    blows: Blows,
    healed: Option<Time>,
    can_step: bool,
    _runtime: Runtime,
    _home: TempDir,
}

#[derive(Default)]
struct Blows {
    struck: BTreeMap<Fault, u64>,
    meddling: Vec<Meddling>,
    /// The number of times that each fault was injected into a script.
    struck_scripts: BTreeMap<Fault, u64>,
    /// Killed scripts: the time at which the script's lock must have expired on all nodes, and the index of the run.
    dead: Vec<(Time, usize)>,
    /// Stopped processes: the time at which they continue, the index of their run, and the processes.
    stopped: Vec<(Time, usize, Vec<Pid>)>,
}

impl Blows {
    fn stop(&mut self, until: Time, id: usize, pids: Vec<Pid>) {
        self.stopped.push((until, id, pids));
    }

    /// Removes and returns the processes that must continue by `until`.
    fn due(&mut self, until: Time) -> Vec<(Time, usize, Vec<Pid>)> {
        let (due, rest) = self.stopped.drain(..).partition(|(at, ..)| *at <= until);
        self.stopped = rest;
        due
    }
}

/// Runs a round. An error means that the round could not be run, and says nothing about quorlock.
pub(crate) fn run(
    plan: &RoundPlan,
    (binary, shim): (&ServerBinary, Option<&Shim>),
    quorlock: &Path,
    interrupt: &Interrupt,
) -> Result<Outcome, String> {
    let mut round = Round::start(plan, (binary, shim), quorlock, interrupt.clone())?;
    let result = round.faults().and_then(|goes_on| Ok(goes_on && round.healing()?));
    let at_end = round.end();
    let done = result?;
    at_end?;
    Ok(round.conclude(!done))
}

impl<'a> Round<'a> {
    fn start(
        plan: &'a RoundPlan,
        (binary, shim): (&ServerBinary, Option<&Shim>),
        quorlock: &Path,
        interrupt: Interrupt,
    ) -> Result<Self, String> {
        let failed = |error: std::io::Error| error.to_string();
        let servers = Servers::start(plan, binary, shim)?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let traffic = |place| runtime.block_on(Proxy::start(servers.node(place)));
        let ways = |_| (0..plan.nodes).map(traffic).collect();
        let proxies: Result<Vec<Vec<Proxy>>, _> = (0..MACHINES).map(ways).collect();
        let proxies = proxies.map_err(|error| format!("a proxy: {error}"))?;
        let home = tempfile::tempdir().map_err(failed)?;
        let url = |(node, proxy): (usize, &Proxy)| format!("{}={}", node_name(node), proxy.url());
        let machine = |(place, proxies): (usize, &Vec<Proxy>)| Machine {
            nodes: proxies.iter().enumerate().map(url).collect::<Vec<_>>().join(","),
            clock: home.path().join(format!("clock-{place}")),
        };
        let machines: Vec<Machine> = proxies.iter().enumerate().map(machine).collect();
        init(quorlock, &machines[0].nodes)?;
        let ledger = Arc::new(Mutex::new(Ledger::new(now(), None)));
        let workers = Workers::start(Vec::new(), &ledger)?;
        let context = Arc::new(RoundContext {
            quorlock: quorlock.to_owned(),
            has_leases: has_leases(quorlock),
            writer: std::env::current_exe().map_err(failed)?,
            home: home.path().to_owned(),
            machines,
            ledger: ledger.clone(),
            phase: AtomicU8::new(CHAOS),
            book: Mutex::new(Book::default()),
        });
        let lanes = (0..MACHINES * LANES).map(|lane| {
            let (context, seed) = (context.clone(), plan.seed);
            thread::spawn(move || work(&context, lane / LANES, seed, lane as u64))
        });
        Ok(Self {
            plan,
            interrupt,
            lanes: lanes.collect(),
            context,
            nemesis: Nemesis::new(servers, proxies, workers, &ledger),
            blows: Blows::default(),
            healed: None,
            can_step: cfg!(quorlock_stepped_clock),
            _runtime: runtime,
            _home: home,
        })
    }

    /// Injects the faults of the plan. Returns false if the round was interrupted.
    fn faults(&mut self) -> Result<bool, String> {
        let begin = now();
        let strikes = strikes(self.plan, self.can_step, self.context.has_leases);
        let mut strikes: Vec<&Strike> = strikes.iter().collect();
        let events: Vec<&Event> = self.plan.events.iter().collect();
        let mut events = events.into_iter().peekable();
        while now() < begin + FAULTS {
            while let Some(event) = events.next_if(|event| begin + event.at <= now()) {
                self.nemesis.act(event)?;
            }
            let mut waiting = Vec::new();
            for strike in strikes {
                let due = begin + strike.at;
                let is_too_late = now() > due + TARGET;
                if now() < due || !self.strike(strike, due) && !is_too_late {
                    waiting.push(strike);
                }
            }
            strikes = waiting;
            self.go_on(now());
            self.check_dead();
            if self.interrupt.load(Ordering::Relaxed) {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(3));
        }
        Ok(true)
    }

    /// Injects a fault into a run that holds a lock. Returns false if there is no such run, or the injection failed.
    fn strike(&mut self, strike: &Strike, due: Time) -> bool {
        let fault = strike.fault;
        let at = now();
        let is_picky = at < due + PICKY;
        let target = {
            let mut book = self.context.book();
            let is_one = |place: &usize| {
                let entry = &book.runs[*place];
                entry.is_held
                    && fault.fits(entry.kind)
                    && (!fault.is_to_processes() || entry.run.fault.is_none())
                    && (!is_picky || entry.goes_on_for(TTL, at) && fault.suits(entry.kind))
            };
            let targets: Vec<usize> = (0..book.runs.len()).filter(is_one).collect();
            let place = usize::try_from(strike.word % targets.len().max(1) as u64).unwrap_or(0);
            let Some(id) = targets.get(place).copied() else { return false };
            let entry = &mut book.runs[id];
            let Some(keeper) = entry.keeper else { return false };
            // The fault is recorded before the signal is sent, because the run may end at once.
            entry.run.was_termed |= fault == Fault::TermKeeper;
            if fault.is_to_processes() {
                entry.run.fault = Some(fault);
            }
            if fault == Fault::StopBoth && !entry.run.is_script {
                entry.run.alone = Some((at, at + strike.span));
            }
            (id, keeper, entry.machine, entry.run.key, entry.run.is_script)
        };
        let (id, keeper, machine, key, is_script) = target;
        let guardian = match is_script {
            true => keeper_of(&self.context.lease_file(id)),
            false => guardian_of(keeper),
        };
        self.context.note(format!("-- {}: run {id} of {}", fault.name(), KEYS[key]));
        let sent = |pid: Pid, signal| kill_process(pid, signal).is_ok();
        let is_done = match (fault, guardian) {
            (Fault::StopKeeper, _) => {
                self.blows.stop(at + strike.span, id, vec![keeper]);
                sent(keeper, Signal::STOP)
            }
            (Fault::KillKeeper, _) => sent(keeper, Signal::KILL),
            (Fault::TermKeeper, _) => sent(keeper, Signal::TERM),
            (Fault::StopGuardian, Some(guardian)) => {
                self.blows.stop(at + strike.span, id, vec![guardian]);
                sent(guardian, Signal::STOP)
            }
            (Fault::StopGuardianAndStep, Some(guardian)) => {
                self.blows.stop(at + strike.span, id, vec![guardian]);
                sent(guardian, Signal::STOP) && self.step(machine, strike.step.max(TTL))
            }
            (Fault::KillGuardian, Some(guardian)) => sent(guardian, Signal::KILL),
            (Fault::TermGuardian, Some(guardian)) => sent(guardian, Signal::TERM),
            (Fault::StopBoth, Some(guardian)) => {
                self.blows.stop(at + strike.span, id, vec![guardian, keeper]);
                sent(keeper, Signal::STOP) && sent(guardian, Signal::STOP)
            }
            (Fault::KillBoth, Some(guardian)) => {
                sent(keeper, Signal::KILL) && sent(guardian, Signal::KILL)
            }
            (Fault::DeleteMinority, _) => self.meddle(strike, key, 1, &["DEL", KEYS[key]]),
            (Fault::DeleteMajority, _) => {
                self.meddle(strike, key, self.plan.quorum, &["DEL", KEYS[key]])
            }
            (Fault::Overwrite, _) => {
                let count = 1 + usize::try_from(strike.word % self.plan.nodes as u64).unwrap_or(0);
                self.meddle(strike, key, count, &["SET", KEYS[key], "stranger", "PX", "500"])
            }
            (Fault::StepClock, _) => self.step(machine, strike.step),
            _ => false,
        };
        *self.blows.struck.entry(fault).or_default() += u64::from(is_done);
        if is_script {
            *self.blows.struck_scripts.entry(fault).or_default() += u64::from(is_done);
            // If connections have faults, a delayed message may extend the lock, so the end of the lock is not checked.
            let is_dead = matches!(fault, Fault::KillKeeper | Fault::KillBoth);
            if is_dead && self.plan.events.is_empty() {
                self.blows.dead.push((now() + TTL + LINGER, id));
            }
        }
        is_done
    }

    fn meddle(&mut self, strike: &Strike, key: usize, count: usize, words: &[&str]) -> bool {
        let first = usize::try_from(strike.word % self.plan.nodes as u64).unwrap_or(0);
        let nodes = (0..count).map(|next| (first + next) % self.plan.nodes);
        let at = now();
        // Skips nodes that are down, because they have no key, and stopped nodes, because they cannot answer.
        let up: Vec<_> = nodes.filter(|node| self.nemesis.is_up(*node)).collect();
        let did =
            up.iter().filter(|node| self.nemesis.servers.command(**node, words).is_ok()).count();
        // If no node was up, the key has not changed, so no overlap is excused.
        if !up.is_empty() {
            self.blows.meddling.push(Meddling { key, at });
        }
        did > 0
    }

    fn step(&self, machine: usize, by: Time) -> bool {
        let file = &self.context.machines[machine].clock;
        let was = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        let ahead: Time = was.unwrap_or(0) + by;
        // The rename makes the complete file appear at once.
        let new = file.with_extension("new");
        fs::write(&new, ahead.to_string()).and_then(|()| fs::rename(new, file)).is_ok()
    }

    /// Continues the processes that have been stopped for long enough.
    fn go_on(&mut self, until: Time) {
        for (_, id, pids) in self.blows.due(until) {
            self.context.note(format!("-- SIGCONT: run {id}"));
            let is_both = pids.len() > 1;
            for pid in pids {
                // Errors are ignored, because the process may have been killed meanwhile.
                let _ = kill_process(pid, Signal::CONT);
            }
            if is_both {
                let alone = &mut self.context.book().runs[id].run.alone;
                *alone = alone.map(|(from, _)| (from, now()));
            }
        }
    }

    /// Heals everything and waits until each machine had a lock. Returns false if the round was interrupted.
    fn healing(&mut self) -> Result<bool, String> {
        self.go_on(Time::MAX);
        self.nemesis.heal()?;
        self.context.phase.store(CALM, Ordering::Relaxed);
        let (healed, bound) = (now(), bound(self.plan));
        loop {
            let all = {
                let book = self.context.book();
                (0..MACHINES).all(|machine| {
                    let its = book.runs.iter().filter(|entry| entry.machine == machine);
                    its.filter_map(|entry| entry.acquired).any(|at| at > healed)
                })
            };
            if all {
                self.healed = Some(now() - healed);
                return Ok(true);
            }
            if now() > healed + bound {
                let bound = seconds(bound);
                let what =
                    format!("a machine had no lock within {bound} after everything was healed");
                lock(&self.context.ledger).violated(now(), what);
                return Ok(true);
            }
            if self.interrupt.load(Ordering::Relaxed) {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the threads of all lanes have ended, and checks that no process of a command survives.
    fn end(&mut self) -> Result<(), String> {
        self.go_on(Time::MAX);
        self.context.phase.store(OVER, Ordering::Relaxed);
        let deadline = now() + END;
        for lane in self.lanes.drain(..) {
            while !lane.is_finished() && now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
            if lane.is_finished() {
                lane.join().map_err(|_| "a lane panicked".to_owned())?;
            }
        }
        // The guardian of a killed keeper may let the command run until the validity ends, so wait for a ttl.
        thread::sleep(nanos(TTL));
        let sizes = || -> Vec<u64> {
            let size = |key| fs::metadata(self.context.file(key)).map_or(0, |file| file.len());
            (0..KEYS.len()).map(size).collect()
        };
        let before = sizes();
        thread::sleep(Duration::from_millis(200));
        if sizes() != before {
            let what = "a process of a command survives the last lock".to_owned();
            lock(&self.context.ledger).violated(now(), what);
        }
        if self.healed.is_some() {
            self.check_keys()?;
        }
        Ok(())
    }

    fn conclude(self, interrupted: bool) -> Outcome {
        let mut totals = Totals::default();
        for (kind, count) in &self.nemesis.injected {
            totals.count(round::FAULTS, kind.name(), *count);
        }
        for (fault, count) in &self.blows.struck {
            totals.count(STRUCK, fault.name(), *count);
        }
        for (fault, count) in &self.blows.struck_scripts {
            totals.count(STRUCK_SCRIPTS, fault.name(), *count);
        }
        totals.count(SEEN, OVERLAPS, 0);
        let calm = self.plan.events.is_empty();
        let book = self.context.book();
        let runs: Vec<_> = book.runs.iter().map(|entry| entry.run.clone()).collect();
        let mut ledger = lock(&self.context.ledger);
        for (key, name) in KEYS.iter().enumerate() {
            let file = fs::read_to_string(self.context.file(key)).unwrap_or_default();
            let wrote = wrote(&file);
            for span in &wrote {
                let Some(entry) = book.runs.get(span.run) else { continue };
                totals.count(KINDS, entry.kind.name(), 1);
                if entry.run.is_stalled {
                    totals.count(STRUCK, Fault::StallReader.name(), 1);
                }
                ledger.note(span.from, format!("   run {} of {name} writes", span.run));
                ledger.note(span.to, format!("   run {} of {name} has written", span.run));
            }
            for overlap in overlaps(&wrote, &runs, &self.blows.meddling, calm) {
                let kind = |run: usize| book.runs.get(run).map_or("?", |entry| entry.kind.name());
                let what = format!(
                    "run {} ({}) and run {} ({}) both write under {name}, for {}",
                    overlap.first,
                    kind(overlap.first),
                    overlap.second,
                    kind(overlap.second),
                    seconds(overlap.to - overlap.from)
                );
                match overlap.excuse {
                    Some(why) => {
                        totals.count(SEEN, why, 1);
                        ledger.note(overlap.from, format!("{what}, but {why}"));
                    }
                    None => {
                        totals.count(SEEN, OVERLAPS, 1);
                        ledger.violated(overlap.from, what);
                    }
                }
            }
        }
        for entry in &book.runs {
            if let Some(code) = entry.run.code {
                totals.count(SAID, &format!("exit code {code}"), 1);
            }
            for cause in entry.run.events.iter().filter_map(|event| event.strip_prefix("lost:")) {
                totals.count(SAID, &format!("lost: {cause}"), 1);
            }
        }
        let findings = ledger.findings(3 * SECOND, SECOND);
        Outcome::new(self.plan.seed, interrupted, totals, self.healed, findings)
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.go_on(Time::MAX);
        self.context.phase.store(OVER, Ordering::Relaxed);
    }
}

/// Runs `quorlock init --fresh`, so that the new servers vote at once. This is safe, because no client has used them.
fn init(quorlock: &Path, nodes: &str) -> Result<(), String> {
    let mut init = Command::new(quorlock);
    init.args(["init", "--fresh", "--yes", "--max-ttl", &format!("{}ms", TTL / MS)]);
    let output = init.env("QUORLOCK_NODES", nodes).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", quorlock.display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("quorlock init: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Returns the guardian process: the keeper's child that is named `lock-guardian`.
fn guardian_of(keeper: Pid) -> Option<Pid> {
    let parent = keeper.as_raw_nonzero().get().to_string();
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(process.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let its = rest.split(' ').nth(1)?;
        (name == "lock-guardian" && its == parent).then(|| Pid::from_raw(pid)).flatten()
    })
}
