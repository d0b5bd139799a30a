//! Rounds in which commands hold the locks: `quorlock run` as it is shipped, in separate processes. Its keeper process
//! holds the lock, and its guardian process ends the command in time if the keeper fails.
//!
//! ```text
//!   machines ── each has its own proxies to the nodes and its own wall clock
//!     lanes  ── one `quorlock run` after the other: keeper, guardian, command
//!                 command ── writes the time into the lock's file, again and again
//!                 events  ── read from the status descriptor of `quorlock run`
//! ```
//!
//! Some lanes (a lane runs one command after the other) run a script instead. The script holds its lock by `quorlock
//! acquire --hold-by`, `extend` and `release`, and starts a writer that stops at the end of the lease, before another
//! client can get the lock.
//!
//! [`checks`] tests two promises: two commands never write under one lock at the same time where `docs/cli.md` rules
//! this out, and each exit code fits the events.

pub(crate) mod checks;
mod lanes;
pub(crate) mod writer;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quorlock::Lease;
use quorlock_sim::time::{MS, SECOND, Time};
use rustix::process::{Pid, Signal, kill_process};

use self::checks::{Meddling, Run, overlaps, wrote};
use self::lanes::{CALM, CHAOS, Lanes, OVER};
use self::writer::CommandKind;
use crate::clock::{nanos, now, seconds, wait_for};
use crate::faults::{AROUND_RUN, Act, Kind, OF_RUN, Strike, node_name};
use crate::ledger::{Ledger, Shared, lock};
use crate::nemesis::Nemesis;
use crate::plan::{Abilities, RoundPlan};
use crate::round::{Programs, Subject};
use crate::said;
use crate::totals::FAULTS;

const KEYS: [&str; 3] = ["backup", "report", "import"];

const LANES: usize = 2;

/// The ttl of the locks. A command that wrongly survives the loss of its lock runs for the rest of the ttl, which is
/// much longer than a correct command needs to end, even on a busy machine. So the checks can tell the two apart.
pub(crate) const TTL: Time = 3 * SECOND;

/// A due fault waits this long for a command that would go on writing for at least a ttl. A command that ends sooner
/// may hide bugs.
const PICKY: Time = 1000 * MS;

const END: Time = 75 * SECOND;

/// Added to the ttl of a killed script's lock: on a busy machine, the last extension is carried out this much later.
const LINGER: Time = 500 * MS;

/// Titles of sections in the totals of a round with commands, and the name of a count.
const KINDS: &str = "commands that held a lock and wrote";
const STRUCK_SCRIPTS: &str =
    "faults injected while a script held a lock (keeper: the script, guardian: its keeper)";
const EXIT_CODES: &str = "exit codes of `quorlock run` and of scripts";
pub(crate) const WROTE_TOGETHER: &str = "two commands that wrote under one lock at the same time";
const EXCLUDED: &str = "although that is excluded";

/// Counts that must not be zero after enough rounds: each kind of command, and each fault.
pub(crate) fn needed(can: Abilities) -> Vec<(&'static str, &'static str)> {
    let faults = OF_RUN.into_iter().chain(AROUND_RUN).chain([Kind::STALL_READER]);
    let faults = faults.filter(|fault| can.steps || !fault.is_step());
    let faults = faults.filter(|fault| can.leases || *fault != Kind::KILL_BOTH);
    let faults = faults.map(|fault| (FAULTS, fault.name()));
    let kinds = CommandKind::OF_RUN.into_iter().chain(can.leases.then_some(CommandKind::SCRIPT));
    faults.chain(kinds.map(|kind| (KINDS, kind.name()))).collect()
}

/// Whether this `quorlock` has the commands `acquire`, `extend` and `release`.
pub(crate) fn has_leases(quorlock: &Path) -> bool {
    let mut help = Command::new(quorlock);
    help.args(["acquire", "--help"]).stdout(Stdio::null()).stderr(Stdio::null());
    help.status().is_ok_and(|status| status.success())
}

pub(crate) struct Commands {
    plan: RoundPlan,
    lanes: Arc<Lanes>,
    threads: Vec<JoinHandle<()>>,
    meddling: Vec<Meddling>,
    /// Killed scripts: the time at which the script's lock must have expired on all nodes, and the index of the run.
    dead: Vec<(Time, usize)>,
    /// Stopped processes: the time at which they continue, the index of their run, and the processes.
    stopped: Vec<(Time, usize, Vec<Pid>)>,
}

impl Commands {
    pub(crate) fn start(
        plan: &RoundPlan,
        nemesis: &Nemesis,
        ledger: &Shared,
        programs: &Programs,
    ) -> Result<Self, String> {
        let home = tempfile::tempdir().map_err(said)?;
        let machines = (0..plan.machines()).map(|place| nemesis.urls(place).join(","));
        let machines: Vec<String> = machines.collect();
        init(&programs.quorlock, &machines[0])?;
        let count = machines.len();
        lock(ledger).clients.expected = (0..count).map(|machine| (machine, 0)).collect();
        let lanes = Arc::new(Lanes {
            quorlock: programs.quorlock.clone(),
            has_leases: programs.can.leases,
            writer: std::env::current_exe().map_err(said)?,
            home,
            machines,
            ledger: ledger.clone(),
            phase: AtomicU8::new(CHAOS),
        });
        let threads = (0..count * LANES).map(|lane| {
            let (lanes, seed) = (lanes.clone(), plan.seed);
            thread::spawn(move || lanes.work(lane / LANES, seed, lane))
        });
        Ok(Self {
            plan: plan.clone(),
            threads: threads.collect(),
            lanes,
            meddling: Vec::new(),
            dead: Vec::new(),
            stopped: Vec::new(),
        })
    }

    /// Chooses a run that holds a lock, and records the fault in it. Returns its index and the run.
    fn target(&self, strike: &Strike, due: Time) -> Option<(usize, Run)> {
        let &Strike { fault, span, word, .. } = strike;
        let at = now();
        let is_picky = at < due + PICKY;
        let runs = &mut lock(&self.lanes.ledger).runs;
        let is_one = |place: &usize| {
            let run = &runs[*place];
            run.is_held
                && run.keeper.is_some()
                && fault.fits(run.kind)
                && (!OF_RUN.contains(&fault) || run.fault.is_none())
                && (!is_picky || run.goes_on_for(TTL, at) && fault.suits(run.kind))
        };
        let targets: Vec<usize> = (0..runs.len()).filter(is_one).collect();
        let place = usize::try_from(word % targets.len().max(1) as u64).unwrap_or(0);
        let id = *targets.get(place)?;
        let run = &mut runs[id];
        // The fault is recorded before the signal is sent, because the run may end at once.
        if OF_RUN.contains(&fault) {
            run.fault = Some(fault);
        }
        if fault == Kind::STOP_BOTH && !run.is_script() {
            run.alone = Some((at, at + span));
        }
        Some((id, run.clone()))
    }

    /// The node that a random number selects.
    fn place(&self, word: u64) -> usize {
        usize::try_from(word % self.plan.nodes as u64).unwrap_or(0)
    }

    /// Changes a key from outside on `count` nodes. Returns whether a node has changed it.
    fn meddle(
        &mut self,
        (word, key): (u64, usize),
        count: usize,
        words: &[&str],
        nemesis: &Nemesis,
    ) -> bool {
        let first = self.place(word);
        let nodes = (0..count).map(|next| (first + next) % self.plan.nodes);
        let at = now();
        // Skips nodes that are down, because they have no key, and stopped nodes, because they cannot answer.
        let up: Vec<_> = nodes.filter(|node| nemesis.is_up(*node)).collect();
        let did = up.iter().filter(|node| nemesis.servers.command(**node, words).is_ok()).count();
        // If no node was up, the key has not changed, so no overlap is excused.
        if !up.is_empty() {
            self.meddling.push(Meddling { key, at });
        }
        did > 0
    }

    fn step(&self, machine: usize, by: Time) -> bool {
        let file = self.lanes.clock(machine);
        let was = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
        let ahead: Time = was.unwrap_or(0) + by;
        // The rename makes the complete file appear at once.
        let new = file.with_extension("new");
        fs::write(&new, ahead.to_string()).and_then(|()| fs::rename(new, file)).is_ok()
    }

    /// Continues the processes that have been stopped for long enough.
    fn go_on(&mut self, until: Time) {
        let (due, rest) = self.stopped.drain(..).partition(|(at, ..)| *at <= until);
        self.stopped = rest;
        for (_, id, pids) in Vec::into_iter(due) {
            self.lanes.note(format!("-- SIGCONT: run {id}"));
            for pid in pids.iter().rev() {
                // Errors are ignored, because the process may have been killed meanwhile.
                let _ = kill_process(*pid, Signal::CONT);
            }
            if pids.len() > 1 {
                let alone = &mut lock(&self.lanes.ledger).runs[id].alone;
                *alone = alone.map(|(from, _)| (from, now()));
            }
        }
    }

    /// Checks that no node has the lock of a script that was killed more than a ttl ago.
    fn check_dead(&mut self, nemesis: &Nemesis) {
        let (due, rest) = self.dead.drain(..).partition(|(at, _)| *at <= now());
        self.dead = rest;
        for (_, id) in Vec::into_iter(due) {
            let key = KEYS[lock(&self.lanes.ledger).runs[id].key];
            for place in 0..self.plan.nodes {
                let value = nemesis.servers.node(place).command(&["GET", key]);
                if format!("{value:?}").contains(&format!("script-{id}-")) {
                    self.lanes.violated(format!(
                        "node {} has the lock of run {id}, a script that was killed more than a ttl ago",
                        node_name(place)
                    ));
                }
            }
        }
    }

    /// Waits until the threads of all lanes have ended.
    fn end(&mut self) -> Result<(), String> {
        self.go_on(Time::MAX);
        self.lanes.phase.store(OVER, Ordering::Relaxed);
        let deadline = now() + END;
        for thread in self.threads.drain(..) {
            if wait_for(deadline, || thread.is_finished().then_some(())).is_some() {
                thread.join().map_err(|_| "a lane panicked".to_owned())?;
            }
        }
        Ok(())
    }

    fn judge_key(&self, ledger: &mut Ledger, runs: &[Run], key: usize) {
        let name = KEYS[key];
        let file = fs::read_to_string(self.lanes.file(key)).unwrap_or_default();
        let wrote = wrote(&file);
        for span in &wrote {
            let Some(run) = runs.get(span.run) else { continue };
            ledger.totals.count(KINDS, run.kind.name(), 1);
            if run.is_stalled {
                ledger.totals.count(FAULTS, Kind::STALL_READER.name(), 1);
            }
            ledger.note(span.from, format!("   run {} of {name} writes", span.run));
            ledger.note(span.to, format!("   run {} of {name} has written", span.run));
        }
        for overlap in overlaps(&wrote, runs, &self.meddling, self.plan.kinds.is_empty()) {
            let kind = |run: usize| runs.get(run).map_or("?", |run| run.kind.name());
            let what = format!(
                "run {} ({}) and run {} ({}) both write under {name}, for {}",
                overlap.first,
                kind(overlap.first),
                overlap.second,
                kind(overlap.second),
                seconds(overlap.to - overlap.from)
            );
            ledger.totals.count(WROTE_TOGETHER, overlap.excuse.unwrap_or(EXCLUDED), 1);
            match overlap.excuse {
                Some(why) => ledger.note(overlap.from, format!("{what}, but {why}")),
                None => ledger.violated(overlap.from, what),
            }
        }
    }
}

impl Subject for Commands {
    /// Injects a fault into a run that holds a lock.
    fn strike(&mut self, act: &Act, due: Time, nemesis: &Nemesis) -> Result<bool, String> {
        let Act::ToHolder(strike) = act else { return Ok(false) };
        let Some((id, run)) = self.target(strike, due) else { return Ok(false) };
        let (fault, key) = (strike.fault, KEYS[run.key]);
        let guardian = || match run.is_script() {
            true => keeper_of(&self.lanes.lease_file(id)),
            false => guardian_of(run.keeper?),
        };
        self.lanes.note(format!("-- {act}: run {id} of {key}"));
        let (pids, signal) = match fault {
            Kind::STOP_KEEPER => (vec![run.keeper], Signal::STOP),
            Kind::KILL_KEEPER => (vec![run.keeper], Signal::KILL),
            Kind::TERM_KEEPER => (vec![run.keeper], Signal::TERM),
            Kind::STOP_GUARDIAN | Kind::STOP_GUARDIAN_AND_STEP => (vec![guardian()], Signal::STOP),
            Kind::KILL_GUARDIAN => (vec![guardian()], Signal::KILL),
            Kind::TERM_GUARDIAN => (vec![guardian()], Signal::TERM),
            Kind::STOP_BOTH => (vec![run.keeper, guardian()], Signal::STOP),
            Kind::KILL_BOTH => (vec![run.keeper, guardian()], Signal::KILL),
            _ => (Vec::new(), Signal::CONT),
        };
        let Some(pids) = pids.into_iter().collect::<Option<Vec<Pid>>>() else { return Ok(false) };
        if signal == Signal::STOP {
            self.stopped.push((now() + strike.span, id, pids.clone()));
        }
        let is_sent = pids.iter().all(|pid| kill_process(*pid, signal).is_ok());
        let count = match fault {
            Kind::DELETE_MAJORITY => self.plan.quorum,
            Kind::OVERWRITE => 1 + self.place(strike.word),
            _ => 1,
        };
        let is_done = is_sent
            && match fault {
                Kind::DELETE_MINORITY | Kind::DELETE_MAJORITY => {
                    self.meddle((strike.word, run.key), count, &["DEL", key], nemesis)
                }
                Kind::OVERWRITE => {
                    let words = ["SET", key, "stranger", "PX", "500"];
                    self.meddle((strike.word, run.key), count, &words, nemesis)
                }
                Kind::STEP_CLOCK => self.step(run.machine, strike.step),
                Kind::STOP_GUARDIAN_AND_STEP => self.step(run.machine, strike.step.max(TTL)),
                _ => true,
            };
        if run.is_script() {
            let totals = &mut lock(&self.lanes.ledger).totals;
            totals.count(STRUCK_SCRIPTS, fault.name(), u64::from(is_done));
            // If connections have faults, a delayed message may extend the lock, so the end of the lock is not checked.
            let is_dead = matches!(fault, Kind::KILL_KEEPER | Kind::KILL_BOTH);
            if is_dead && self.plan.kinds.is_empty() {
                self.dead.push((now() + TTL + LINGER, id));
            }
        }
        Ok(is_done)
    }

    fn look(&mut self, nemesis: &Nemesis) {
        self.go_on(now());
        self.check_dead(nemesis);
    }

    fn calm(&mut self) -> Result<(), String> {
        self.go_on(Time::MAX);
        self.lanes.phase.store(CALM, Ordering::Relaxed);
        Ok(())
    }

    fn reconnects(&self) -> bool {
        true
    }

    /// Also checks that no process of a command survives. A killed script leaves its lock for a ttl.
    fn stop(&mut self) -> Result<bool, String> {
        self.end()?;
        // The guardian of a killed keeper may let the command run until the validity ends, so wait for a ttl.
        thread::sleep(nanos(TTL));
        let sizes = || -> Vec<u64> {
            let size = |key| fs::metadata(self.lanes.file(key)).map_or(0, |file| file.len());
            (0..KEYS.len()).map(size).collect()
        };
        let before = sizes();
        thread::sleep(Duration::from_millis(200));
        if sizes() != before {
            self.lanes.violated("a process of a command survives the last lock".to_owned());
        }
        Ok(false)
    }

    fn judge(&mut self) -> Result<(), String> {
        self.end()?;
        let ledger = &mut *lock(&self.lanes.ledger);
        let runs = std::mem::take(&mut ledger.runs);
        ledger.totals.count(WROTE_TOGETHER, EXCLUDED, 0);
        (0..KEYS.len()).for_each(|key| self.judge_key(ledger, &runs, key));
        for code in runs.iter().filter_map(|run| run.code) {
            ledger.totals.count(EXIT_CODES, &format!("exit code {code}"), 1);
        }
        Ok(())
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.go_on(Time::MAX);
        self.lanes.phase.store(OVER, Ordering::Relaxed);
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

/// Returns the keeper of a script, which the script's lease names.
fn keeper_of(lease_file: &Path) -> Option<Pid> {
    let lease: Lease = fs::read_to_string(lease_file).ok()?.trim().parse().ok()?;
    Pid::from_raw(lease.keeper()?.pid.cast_signed())
}
