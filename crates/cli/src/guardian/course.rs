//! What is to become of the command, and when: the guardian's decisions without its system calls.
//!
//! There are four reasons to end a command that has not ended by itself: its time is up, the lock
//! is lost by proof, the keeper is dead, or the user asked twice. The first three are the lock's
//! and make the result [`Killed`](Message::Killed); the last is the user's and leaves the
//! command's own ending. A fifth is housekeeping: what outlives the command has no lock any more.

use rustix::process::Signal;

use super::clock::NEVER;
use super::wire::Message;

/// The two moments of a lease, on the boot clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// From here on the command is asked to end (SIGTERM).
    pub(crate) term_at_boot_ns: u64,
    /// From here on it is made to end (SIGKILL).
    pub(crate) kill_at_boot_ns: u64,
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
pub(crate) struct Course {
    deadlines: Deadlines,
    /// The lock is lost or the keeper dead: there is nothing left to extend.
    sealed: bool,
    stage: Stage,
    /// It was told to end for the lock's sake before it ended.
    revoked: bool,
    user_terms: u32,
    ending: Option<Ending>,
    leftovers_until: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    Asked,
    Forced,
}

impl Course {
    /// The course of a command that is about to start.
    pub(crate) fn new(deadlines: Deadlines) -> Self {
        Self {
            deadlines,
            sealed: false,
            stage: Stage::Running,
            revoked: false,
            user_terms: 0,
            ending: None,
            leftovers_until: NEVER,
        }
    }

    /// Whether a command started now would be told at once to end.
    pub(crate) fn too_late(&self, now: u64) -> bool {
        self.sealed || now >= self.deadlines.term_at_boot_ns || now >= self.kill_at()
    }

    /// The lock was extended. The newest word counts, also when it is a shorter one.
    pub(crate) fn extend(&mut self, deadlines: Deadlines) {
        if !self.sealed {
            self.deadlines = deadlines;
        }
    }

    /// The lock is lost by proof: SIGTERM now, SIGKILL then.
    pub(crate) fn terminate(&mut self, kill_at_boot_ns: u64) {
        self.sealed = true;
        self.deadlines = Deadlines { term_at_boot_ns: 0, kill_at_boot_ns };
    }

    /// Nobody extends the lock any more. What was promised to other holders still holds: SIGKILL
    /// at the last deadline known.
    pub(crate) fn keeper_died(&mut self) {
        self.sealed = true;
        self.deadlines.term_at_boot_ns = 0;
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
    pub(crate) fn ended(&mut self, ending: Ending, now: u64) {
        self.ending = Some(ending);
        self.leftovers_until = now.saturating_add(LEFTOVERS_NS);
    }

    /// How the command's own process ended, once it has.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The signal that everything of the command must get now. Each is due once.
    pub(crate) fn due(&mut self, now: u64) -> Option<Signal> {
        let user = self.user_terms > 1;
        let up = now >= self.kill_at();
        if self.stage != Stage::Forced && (up || user || now >= self.leftovers_until) {
            self.stage = Stage::Forced;
            self.revoked |= up && self.ending.is_none();
            return Some(Signal::KILL);
        }
        let up = now >= self.deadlines.term_at_boot_ns;
        if self.stage == Stage::Running && (up || self.ending.is_some()) {
            self.stage = Stage::Asked;
            self.revoked |= self.ending.is_none();
            return Some(Signal::TERM);
        }
        None
    }

    /// Whether the time for asking is over.
    pub(crate) fn forced(&self) -> bool {
        self.stage == Stage::Forced
    }

    /// When [`due`](Self::due) may next have something to say.
    pub(crate) fn next_due(&self) -> u64 {
        let kill_at = self.kill_at().min(self.leftovers_until);
        match self.stage {
            Stage::Running => kill_at.min(self.deadlines.term_at_boot_ns),
            Stage::Asked => kill_at,
            Stage::Forced => NEVER,
        }
    }

    /// The result, when nothing is left of the command at `now`.
    pub(crate) fn result(&self, ending: Ending, now: u64) -> Message {
        let by = match self.stage {
            Stage::Running | Stage::Asked => KilledBy::Term,
            Stage::Forced => KilledBy::Kill,
        };
        if self.revoked {
            Message::Killed { by, gone_at_boot_ns: now }
        } else {
            Message::Ended(ending)
        }
    }

    fn kill_at(&self) -> u64 {
        self.deadlines.kill_at_boot_ns
    }
}

/// How long what outlives the command may take to end when asked. The lock waits for it, so this
/// is short; one second is what a shell script's clean-up takes.
const LEFTOVERS_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINES: Deadlines = Deadlines { term_at_boot_ns: 100, kill_at_boot_ns: 200 };
    const ZERO: Ending = Ending::Exited { code: 0 };

    #[test]
    fn each_signal_is_due_once_and_in_order() {
        let mut course = Course::new(DEADLINES);
        assert_eq!(course.due(99), None);
        assert_eq!(course.next_due(), 100);
        assert_eq!(course.due(100), Some(Signal::TERM));
        assert_eq!(course.due(199), None);
        assert_eq!(course.next_due(), 200);
        assert_eq!(course.due(200), Some(Signal::KILL));
        assert_eq!(course.due(300), None);
        assert_eq!(course.next_due(), NEVER);
    }

    #[test]
    fn a_sleep_past_both_deadlines_kills_at_once() {
        let mut course = Course::new(DEADLINES);
        assert_eq!(course.due(1_000), Some(Signal::KILL));
        assert_eq!(course.due(1_000), None);
        let killed = Message::Killed { by: KilledBy::Kill, gone_at_boot_ns: 1_001 };
        assert_eq!(course.result(Ending::Signaled { signal: 9 }, 1_001), killed);
    }

    #[test]
    fn obeying_the_deadline_is_still_being_killed() {
        let mut course = Course::new(DEADLINES);
        assert_eq!(course.due(100), Some(Signal::TERM));
        course.ended(ZERO, 110);
        let killed = Message::Killed { by: KilledBy::Term, gone_at_boot_ns: 111 };
        assert_eq!(course.result(ZERO, 111), killed);
    }

    #[test]
    fn an_extension_moves_both_deadlines_and_a_sealed_course_has_none() {
        let mut course = Course::new(DEADLINES);
        let later = Deadlines { term_at_boot_ns: 1_100, kill_at_boot_ns: 1_200 };
        course.extend(later);
        assert_eq!(course.due(1_099), None);
        course.keeper_died();
        assert_eq!(course.due(1_099), Some(Signal::TERM));
        course.extend(Deadlines { term_at_boot_ns: NEVER, kill_at_boot_ns: NEVER });
        assert_eq!(course.due(1_200), Some(Signal::KILL));
    }

    #[test]
    fn a_proof_of_loss_asks_now_and_forces_at_the_time_given() {
        let mut course = Course::new(DEADLINES);
        course.terminate(50);
        assert_eq!(course.due(10), Some(Signal::TERM));
        assert_eq!(course.due(49), None);
        assert_eq!(course.due(50), Some(Signal::KILL));
    }

    #[test]
    fn the_second_term_of_the_user_kills_and_is_not_the_locks_doing() {
        let mut course = Course::new(DEADLINES);
        assert_eq!(course.user_signal(Signal::TERM), Some(Signal::TERM));
        assert_eq!(course.due(1), None);
        assert_eq!(course.user_signal(Signal::TERM), None);
        assert_eq!(course.due(2), Some(Signal::KILL));
        let ending = Ending::Signaled { signal: 9 };
        course.ended(ending, 3);
        assert_eq!(course.result(ending, 3), Message::Ended(ending));
    }

    #[test]
    fn leftovers_are_asked_at_once_and_forced_by_the_earlier_of_two_times() {
        let far = Deadlines { term_at_boot_ns: NEVER - 1, kill_at_boot_ns: NEVER };
        for (deadlines, forced_at) in [(far, 5 + LEFTOVERS_NS), (DEADLINES, 200)] {
            let mut course = Course::new(deadlines);
            course.ended(ZERO, 5);
            assert_eq!(course.due(5), Some(Signal::TERM));
            assert_eq!(course.next_due(), forced_at);
            assert_eq!(course.due(forced_at - 1), None);
            assert_eq!(course.due(forced_at), Some(Signal::KILL));
            assert_eq!(course.result(ZERO, forced_at), Message::Ended(ZERO));
        }
    }

    #[test]
    fn what_would_end_at_once_is_not_started() {
        assert!(!Course::new(DEADLINES).too_late(99));
        assert!(Course::new(DEADLINES).too_late(100));
        let inverted = Deadlines { term_at_boot_ns: 300, kill_at_boot_ns: 200 };
        assert!(Course::new(inverted).too_late(200));
    }
}
