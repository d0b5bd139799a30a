//! What is to become of the command, and when: the guardian's decisions without its system calls.
//!
//! There are four reasons to end a command that has not ended by itself: its time is up, the lock
//! is lost, the keeper is dead, or the user asked twice. The first three are the lock's
//! and make the result [`Killed`]; the last is the user's and leaves the
//! command's own ending. A fifth is housekeeping: what outlives the command has no lock any more.
//!
//! The keeper has a course as well, told the same words: by it, it knows when a guardian that does
//! nothing should have done something.

use rustix::process::Signal;

use super::clock::{Moment, NEVER_NS};
use super::mutants::{Mutant, is_active};
use super::wire::Message;

/// The two deadlines of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// From here on the command is asked to end (SIGTERM).
    pub(crate) term: Moment,
    /// From here on it is made to end (SIGKILL).
    pub(crate) kill: Moment,
}

impl Deadlines {
    /// So long before the end of the validity, which is what remained of it, counted from a look at the
    /// clocks before that was asked.
    ///
    /// By either clock that end is not later than the validity's own. A vote is good for some time from
    /// the reading (b, r) of its sending; at (b', r') it has used up max(b' − b, r' − r), so until any
    /// later reading no vote uses up more than the clock takes that moves on more. What remained at
    /// the look cannot be used up before one of the two clocks has moved on by it.
    pub(crate) fn before(end: Moment, term_ns: u64, kill_ns: u64) -> Self {
        Self { term: end.before(term_ns), kill: end.before(kill_ns) }
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By itself, with this code.
    Exited {
        /// 0 to 255.
        code: i32,
    },
    /// By a signal.
    Signaled {
        /// Its number.
        signal: i32,
    },
}

/// How and why a command was ended for the lock's sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Killed {
    /// What it took.
    pub(crate) by: KilledBy,
    /// Why it was first told to end.
    pub(crate) why: Why,
    /// When that was, by the boot clock, in nanoseconds.
    pub(crate) at_ns: u64,
}

/// Why a command is ended for the lock's sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The lock is lost, as the keeper has told; or the keeper is dead.
    Lost,
    /// A deadline has come.
    TimeUp,
    /// It has come by the wall clock alone, which was set ahead; or the machine stood still.
    ClockJumped,
}

/// What it took to end a command whose time was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KilledBy {
    /// SIGTERM was enough.
    Term,
    /// Something of it had to be killed.
    Kill,
}

/// The state of one command's life.
#[derive(Debug)]
pub(crate) struct KillPolicy {
    deadlines: Deadlines,
    /// The last that were not earlier than those before. A step of the wall clock makes the validity shorter;
    /// when that was told, only these show that the time was not up by the boot clock.
    granted: Deadlines,
    /// The lock is lost or the keeper dead: there is nothing left to extend.
    sealed: bool,
    stage: Stage,
    /// It was told to end for the lock's sake before it ended: why, and when.
    revoked: Option<(Why, u64)>,
    user_terms: u32,
    ending: Option<Ending>,
    leftovers_until: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    Asked,
    Forced,
}

impl KillPolicy {
    /// The course of a command that is about to start.
    pub(crate) fn new(deadlines: Deadlines) -> Self {
        Self {
            deadlines,
            granted: deadlines,
            sealed: false,
            stage: Stage::Running,
            revoked: None,
            user_terms: 0,
            ending: None,
            leftovers_until: Moment::NEVER,
        }
    }

    /// Whether a command started now would be told at once to end.
    pub(crate) fn too_late(&self, now: Moment) -> bool {
        self.sealed || self.deadlines.term.has_come(now) || self.kill_at().has_come(now)
    }

    /// The lock is valid for longer than was told, or for a shorter time. The newest word counts.
    pub(crate) fn set(&mut self, deadlines: Deadlines) {
        if !self.sealed {
            if deadlines.kill.boot_ns >= self.deadlines.kill.boot_ns {
                self.granted = deadlines;
            }
            self.deadlines = deadlines;
        }
    }

    /// The lock is lost: SIGTERM now, SIGKILL at the time given or when it was due anyway.
    pub(crate) fn terminate(&mut self, kill: Moment) {
        self.sealed = true;
        let known = self.deadlines.kill;
        let kill = if is_active(Mutant::DeadlinesOnlyGrow) { known } else { known.min(kill) };
        self.deadlines = Deadlines { term: Moment::PAST, kill };
    }

    /// Nobody extends the lock any more. What was promised to other holders still holds: SIGKILL
    /// at the last deadline known.
    pub(crate) fn keeper_died(&mut self) {
        self.sealed = true;
        self.deadlines.term = Moment::PAST;
    }

    /// The user wants this signal sent; returns the one to send.
    pub(crate) fn user_signal(&mut self, signal: Signal) -> Option<Signal> {
        if self.ending.is_some() {
            return None;
        }
        if signal == Signal::TERM {
            self.user_terms += 1;
            if self.user_terms > 1 {
                // `due` sends the SIGKILL, since it reaches more than the command's group.
                return None;
            }
        }
        Some(signal)
    }

    /// The command's own process ended; others of it may live on.
    pub(crate) fn ended(&mut self, ending: Ending, now: Moment) {
        self.ending = Some(ending);
        // A guardian that comes late finds that the keeper has done it in its place.
        let killed = ending == Ending::Signaled { signal: Signal::KILL.as_raw() };
        if killed && self.stage != Stage::Forced && self.kill_at().has_come(now) {
            self.stage = Stage::Forced;
            self.revoke(self.granted.kill, now);
        }
        // No validity hangs on this one, so the wall clock has no say.
        self.leftovers_until = Moment { real_ns: NEVER_NS, ..now.after(LEFTOVERS_NS) };
    }

    /// How the command's own process ended, once it has.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The signal that everything of the command must get now. Each is due once.
    pub(crate) fn due(&mut self, now: Moment) -> Option<Signal> {
        let user = self.user_terms > 1;
        let up = self.kill_at().has_come(now);
        if self.stage != Stage::Forced && (up || user || self.leftovers_until.has_come(now)) {
            self.stage = Stage::Forced;
            if up && self.ending.is_none() {
                self.revoke(self.granted.kill, now);
            }
            return Some(Signal::KILL);
        }
        let up = self.deadlines.term.has_come(now);
        if self.stage == Stage::Running && (up || self.ending.is_some()) {
            self.stage = Stage::Asked;
            if self.ending.is_none() {
                self.revoke(self.granted.term, now);
            }
            return Some(Signal::TERM);
        }
        None
    }

    /// The first time counts: what becomes of the lock after that is not why the command was ended.
    fn revoke(&mut self, granted: Moment, now: Moment) {
        let why = self.why(granted, now);
        self.revoked.get_or_insert((why, now.boot_ns));
    }

    fn why(&self, granted: Moment, now: Moment) -> Why {
        let left_by_boot = granted.boot_ns.saturating_sub(now.boot_ns);
        let left_by_real = granted.real_ns.saturating_sub(now.real_ns);
        if self.sealed {
            Why::Lost
        } else if left_by_real <= STEP_NS && left_by_boot > left_by_real + STEP_NS {
            Why::ClockJumped
        } else {
            Why::TimeUp
        }
    }

    /// What is to be told of a command that is killed now, in the place of a guardian that does nothing.
    pub(crate) fn killed_in_its_place(&self, now: Moment) -> Killed {
        let why = self.why(self.granted.kill, now);
        Killed { by: KilledBy::Kill, why, at_ns: now.boot_ns }
    }

    /// Whether the time for asking is over.
    pub(crate) fn forced(&self) -> bool {
        self.stage == Stage::Forced
    }

    /// When [`due`](Self::due) may next have something to say.
    pub(crate) fn next_due(&self) -> Moment {
        let kill_at = self.kill_at().min(self.leftovers_until);
        match self.stage {
            Stage::Running => kill_at.min(self.deadlines.term),
            Stage::Asked => kill_at,
            Stage::Forced => Moment::NEVER,
        }
    }

    /// From when on nothing of the command may be left.
    pub(crate) fn kill_at(&self) -> Moment {
        self.deadlines.kill
    }

    /// The reason, the time and the signal that ended the command for the lock's sake; `None` if no signal was sent.
    pub(crate) fn revoked(&self) -> Option<Killed> {
        let by = match self.stage {
            Stage::Running | Stage::Asked => KilledBy::Term,
            Stage::Forced => KilledBy::Kill,
        };
        self.revoked.map(|(why, at_ns)| Killed { by, why, at_ns })
    }

    /// The result, when nothing is left of the command now.
    pub(crate) fn result(&self, ending: Ending) -> Message {
        self.revoked().map_or(Message::Ended(ending), Message::Killed)
    }
}

/// By less than this the two clocks differ whenever something comes between the looks at them.
const STEP_NS: u64 = 10_000_000;

/// How long what outlives the command may take to end when asked. The lock waits for it, so this
/// is short; one second is what a shell script's clean-up takes.
const LEFTOVERS_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests;
