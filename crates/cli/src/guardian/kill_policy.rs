//! Decides which signal the command gets, and when. Makes no system calls.
//!
//! The guardian ends a command that has not ended by itself for one of four reasons: its time is up, the lock is lost,
//! the keeper is dead, or the user has sent SIGTERM twice. The first three reasons protect the lock and make the result
//! [`Killed`]. After the fourth one the result is the command's own ending. In addition, the guardian ends processes
//! that outlive the command's first process, because they have no lock any more.
//!
//! The keeper has a [`KillPolicy`] with the same deadlines. It tells the keeper when a guardian has missed a deadline.

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::clock::{Moment, NEVER_NS};
use super::wire::Message;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Deadlines {
    pub(crate) term: Moment,
    pub(crate) kill: Moment,
}

impl Deadlines {
    /// The deadlines at these distances before `end`. The caller first reads the clocks, then the remaining validity;
    /// `end` is their sum.
    ///
    /// By either clock `end` is not later than the end of the validity itself. A vote is valid for some time from its
    /// sending, when boot and wall clock read (b, r). At (b', r') it has used up max(b' − b, r' − r). So between two
    /// readings no vote uses up more than the larger of the two elapsed times, and the remaining validity is not used
    /// up before one of the clocks has advanced by it.
    pub(crate) fn before(end: Moment, term_ns: u64, kill_ns: u64) -> Self {
        Self { term: end.before(term_ns), kill: end.before(kill_ns) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    Exited { code: i32 },
    Signaled { signal: i32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Killed {
    pub(crate) by: KilledBy,
    pub(crate) why: Why,
    /// The time of the first signal, by the boot clock.
    pub(crate) at_ns: u64,
}

/// The reason to end a command in order to protect the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Why {
    /// The keeper has reported the loss of the lock, or is dead.
    Lost,
    TimeUp,
    /// Only the wall clock has reached the deadline: it was set ahead, or the host had paused this virtual machine.
    ClockJumped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum KilledBy {
    Term,
    /// At least one process of the command got SIGKILL.
    Kill,
}

#[derive(Debug)]
pub(crate) struct KillPolicy {
    deadlines: Deadlines,
    /// The newest deadlines that were not earlier than those before, used only for the reported reason. After a
    /// wall-clock jump the keeper sends earlier deadlines. `granted` then shows that by the boot clock time was left.
    granted: Deadlines,
    /// The lock is lost or the keeper is dead, so no deadline is extended.
    sealed: bool,
    stage: Stage,
    /// The reason and the boot time of the first signal that protects the lock, if it came before the command's end.
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

    /// Whether a command that starts now would get a signal at once.
    pub(crate) fn too_late(&self, now: Moment) -> bool {
        self.sealed || self.deadlines.term.has_come(now) || self.kill_at().has_come(now)
    }

    /// Sets the deadlines of a validity that has grown or shrunk.
    pub(crate) fn set(&mut self, deadlines: Deadlines) {
        if !self.sealed {
            if deadlines.kill.boot_ns >= self.deadlines.kill.boot_ns {
                self.granted = deadlines;
            }
            self.deadlines = deadlines;
        }
    }

    /// The lock is lost: SIGTERM is due now, SIGKILL at `kill` or at the last deadline, whichever is earlier.
    pub(crate) fn terminate(&mut self, kill: Moment) {
        self.sealed = true;
        self.deadlines = Deadlines { term: Moment::PAST, kill: self.deadlines.kill.min(kill) };
    }

    /// No process extends the lock any more. SIGTERM is due now, and SIGKILL at the last deadline, because no other
    /// client can have the lock before.
    pub(crate) fn keeper_died(&mut self) {
        self.sealed = true;
        self.deadlines.term = Moment::PAST;
    }

    /// Handles a signal from the user. Returns the signal to send to the command's group.
    pub(crate) fn user_signal(&mut self, signal: Signal) -> Option<Signal> {
        if self.ending.is_some() {
            return None;
        }
        if signal == Signal::TERM {
            self.user_terms += 1;
            if self.user_terms > 1 {
                // `due` returns the SIGKILL, because that must reach more processes than the command's group.
                return None;
            }
        }
        Some(signal)
    }

    /// The command's own process has ended. Its descendants may live on.
    pub(crate) fn ended(&mut self, ending: Ending, now: Moment) {
        self.ending = Some(ending);
        // If SIGKILL ended the command after the deadline, the keeper sent it, because this guardian was stopped.
        let killed = ending == Ending::Signaled { signal: Signal::KILL.as_raw() };
        if killed && self.stage != Stage::Forced && self.kill_at().has_come(now) {
            self.stage = Stage::Forced;
            self.revoke(self.granted.kill, now);
        }
        // This deadline does not depend on the validity, so only the boot clock counts.
        self.leftovers_until = Moment { real_ns: NEVER_NS, ..now.after(LEFTOVERS_NS) };
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The signal that all processes of the command must get now. Each signal is due once.
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

    /// Keeps the reason of the first signal. Later events do not change why the command was ended.
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

    /// The result for a command that the keeper kills now because the guardian has missed the deadline.
    pub(crate) fn killed_in_its_place(&self, now: Moment) -> Killed {
        let why = self.why(self.granted.kill, now);
        Killed { by: KilledBy::Kill, why, at_ns: now.boot_ns }
    }

    /// Whether SIGKILL has become due. The guardian then repeats it until no process of the command is left.
    pub(crate) fn forced(&self) -> bool {
        self.stage == Stage::Forced
    }

    /// The next time at which [`due`](Self::due) may return a signal.
    pub(crate) fn next_due(&self) -> Moment {
        let kill_at = self.kill_at().min(self.leftovers_until);
        match self.stage {
            Stage::Running => kill_at.min(self.deadlines.term),
            Stage::Asked => kill_at,
            Stage::Forced => Moment::NEVER,
        }
    }

    /// The time at which SIGKILL is due for every process of the command.
    pub(crate) fn kill_at(&self) -> Moment {
        self.deadlines.kill
    }

    /// Reason, time and strongest signal if the command was ended to protect the lock; `None` without such a signal.
    pub(crate) fn revoked(&self) -> Option<Killed> {
        let by = match self.stage {
            Stage::Running | Stage::Asked => KilledBy::Term,
            Stage::Forced => KilledBy::Kill,
        };
        self.revoked.map(|(why, at_ns)| Killed { by, why, at_ns })
    }

    /// The result to report if no process of the command is left.
    pub(crate) fn result(&self, ending: Ending) -> Message {
        self.revoked().map_or(Message::Ended(ending), Message::Killed)
    }
}

/// The clocks are read one after the other, so they disagree by up to this. A larger difference is a clock jump.
const STEP_NS: u64 = 10_000_000;

/// Time between SIGTERM and SIGKILL for processes that outlive the command. The lock stays held meanwhile, so the time
/// is short. The clean-up of a shell script takes about a second.
const LEFTOVERS_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests;
