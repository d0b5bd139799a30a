//! A machine is a set of lanes with a common wall clock. A lane runs one `quorlock run` after the other.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use quorlock_sim::Random;
use quorlock_sim::time::{MS, Time};
use rustix::process::Pid;

use super::checks::Run;
use super::plan::{Fault, KEYS, TTL};
use super::run::{Draw, run};
use super::writer::Kind;
use crate::clock::now;
use crate::plan::nanos;
use crate::workers::{Shared, lock};

/// Phases of a round. `CHAOS`: faults are injected. `CALM`: no faults, short commands. `OVER`: no new command starts.
pub(crate) const CHAOS: u8 = 0;
pub(crate) const CALM: u8 = 1;
pub(crate) const OVER: u8 = 2;

/// State that the lanes share with the nemesis, which injects faults.
pub(crate) struct RoundContext {
    pub(crate) quorlock: PathBuf,
    /// The path of this program. The command of a run is a script that starts this program as the writer.
    pub(crate) writer: PathBuf,
    /// Whether this `quorlock` has the commands `acquire`, `extend` and `release`.
    pub(crate) has_leases: bool,
    pub(crate) home: PathBuf,
    pub(crate) machines: Vec<Machine>,
    pub(crate) ledger: Shared,
    pub(crate) phase: AtomicU8,
    pub(crate) book: Mutex<Book>,
}

pub(crate) struct Machine {
    pub(crate) nodes: String,
    /// The file with the offset of this machine's wall clock. Only a special build of `quorlock` reads it.
    pub(crate) clock: PathBuf,
}

#[derive(Default)]
pub(crate) struct Book {
    pub(crate) runs: Vec<Entry>,
}

pub(crate) struct Entry {
    pub(crate) machine: usize,
    pub(crate) kind: Kind,
    pub(crate) keeper: Option<Pid>,
    /// The time of the run's event `acquired`; `None` before it.
    pub(crate) acquired: Option<Time>,
    /// The time for which the run's command writes, counted from `acquired`, if nothing ends the command.
    pub(crate) writes: Time,
    pub(crate) is_held: bool,
    pub(crate) run: Run,
}

impl Entry {
    /// Whether the run's command would still write at `now + time` if nothing ended the command.
    pub(crate) fn goes_on_for(&self, time: Time, now: Time) -> bool {
        self.acquired.is_some_and(|at| at + self.writes > now + time)
    }

    pub(crate) fn is_over(&mut self) {
        self.keeper = None;
        self.is_held = false;
    }
}

impl RoundContext {
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn file(&self, key: usize) -> PathBuf {
        self.home.join(KEYS[key])
    }

    pub(crate) fn lease_file(&self, id: usize) -> PathBuf {
        self.home.join(format!("{id}.lease"))
    }

    pub(crate) fn is(&self, phase: u8) -> bool {
        self.phase.load(Ordering::Relaxed) == phase
    }

    pub(crate) fn note(&self, what: String) {
        lock(&self.ledger).note(now(), what);
    }

    pub(crate) fn heard(&self, id: usize, name: &str, with: &str) {
        let mut book = self.book();
        let entry = &mut book.runs[id];
        match name {
            "acquired" => {
                entry.acquired = Some(now());
                entry.is_held = entry.keeper.is_some();
            }
            _ => entry.is_held = false,
        }
        entry.run.events.push(format!("{name}{with}"));
        let (who, key) = (id, KEYS[entry.run.key]);
        drop(book);
        self.note(format!("run {who} of {key}: {name}{with}"));
    }
}

pub(crate) fn work(context: &Arc<RoundContext>, machine: usize, seed: u64, lane: u64) {
    let mut random = Random::new(seed, 100 + lane);
    while !context.is(OVER) {
        one(context, machine, &mut random);
        thread::sleep(nanos(random.between(0, 30 * MS)));
    }
}

fn one(context: &Arc<RoundContext>, machine: usize, random: &mut Random) {
    let is_chaos = context.is(CHAOS);
    let key = random.index(KEYS.len());
    let kind = match context.has_leases && random.percent(40) {
        true => Kind::Script,
        false => random.pick(&Kind::ALL),
    };
    let ms = match is_chaos && random.percent(60) {
        true => random.between(TTL, 2 * TTL),
        false => random.between(50 * MS, 400 * MS),
    };
    let is_script = kind == Kind::Script;
    let is_stalled = is_chaos && !is_script && random.percent(12);
    let draw = Draw { machine, key, kind, ms: ms / MS, is_stalled };
    let run_of = Run {
        key,
        is_script,
        is_stalled,
        fault: is_stalled.then_some(Fault::StallReader),
        ..Run::default()
    };
    let id = {
        let mut book = context.book();
        book.runs.push(Entry {
            machine,
            kind,
            keeper: None,
            acquired: None,
            writes: ms,
            is_held: false,
            run: run_of,
        });
        book.runs.len() - 1
    };
    let ended = match run(context, id, draw) {
        Ok(ended) => ended,
        Err(error) => {
            let what = format!("quorlock run could not be started: {error}");
            return lock(&context.ledger).violated(now(), what);
        }
    };
    let Some(status) = ended.status else {
        let what = format!("run {id} ({}) of {} did not end", kind.name(), KEYS[key]);
        return lock(&context.ledger).violated(now(), what);
    };
    let mut book = context.book();
    let entry = &mut book.runs[id];
    entry.run.code = status.code();
    entry.run.is_heard = ended.is_heard;
    entry.run.is_keeper_late =
        ended.errors.contains("the keeper does not start: it does not answer");
    let misfit = super::checks::misfit(&entry.run);
    drop(book);
    context.note(format!("run {id} of {} ({}): ended with {status}", KEYS[key], kind.name()));
    if let Some(misfit) = misfit {
        let errors = ended.errors.trim();
        let what =
            format!("run {id} of {} ({}): {misfit}; it says {errors:?}", KEYS[key], kind.name());
        lock(&context.ledger).violated(now(), what);
    }
}
