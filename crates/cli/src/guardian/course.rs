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
pub(crate) struct Course {
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

impl Course {
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

    /// The result, when nothing is left of the command now.
    pub(crate) fn result(&self, ending: Ending) -> Message {
        let by = match self.stage {
            Stage::Running | Stage::Asked => KilledBy::Term,
            Stage::Forced => KilledBy::Kill,
        };
        match self.revoked {
            Some((why, at_ns)) => Message::Killed(Killed { by, why, at_ns }),
            None => Message::Ended(ending),
        }
    }
}

/// By less than this the two clocks differ whenever something comes between the looks at them.
const STEP_NS: u64 = 10_000_000;

/// How long what outlives the command may take to end when asked. The lock waits for it, so this
/// is short; one second is what a shell script's clean-up takes.
const LEFTOVERS_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINES: Deadlines = Deadlines { term: at(100), kill: at(200) };
    const LONG: Deadlines = Deadlines { term: at(1_000 * STEP_NS), kill: at(2_000 * STEP_NS) };
    const ZERO: Ending = Ending::Exited { code: 0 };
    const TERMED: Message = time_up(KilledBy::Term, 100);

    const fn time_up(by: KilledBy, at_ns: u64) -> Message {
        Message::Killed(Killed { by, why: Why::TimeUp, at_ns })
    }

    /// The wall clock is ahead of the boot clock by a million.
    const fn at(boot_ns: u64) -> Moment {
        Moment { boot_ns, real_ns: boot_ns + 1_000_000 }
    }

    #[test]
    fn each_signal_is_due_once_and_in_order() {
        let mut course = Course::new(DEADLINES);
        assert_eq!(course.due(at(99)), None);
        assert_eq!(course.next_due(), at(100));
        assert_eq!(course.due(at(100)), Some(Signal::TERM));
        assert_eq!(course.due(at(199)), None);
        assert_eq!(course.next_due(), at(200));
        assert_eq!(course.due(at(200)), Some(Signal::KILL));
        assert_eq!(course.due(at(300)), None);
        assert_eq!(course.next_due(), Moment::NEVER);
    }

    #[test]
    fn a_sleep_past_both_deadlines_kills_at_once() {
        let mut course = Course::new(DEADLINES);
        assert_eq!(course.due(at(1_000)), Some(Signal::KILL));
        assert_eq!(course.due(at(1_000)), None);
        let killed = time_up(KilledBy::Kill, 1_000);
        assert_eq!(course.result(Ending::Signaled { signal: 9 }), killed);
    }

    #[test]
    fn a_wall_clock_that_is_set_ahead_brings_the_deadlines_and_one_set_back_does_not_move_them() {
        let ahead = Moment { real_ns: at(150).real_ns, ..at(10) };
        assert_eq!(Course::new(DEADLINES).due(ahead), Some(Signal::TERM));
        let far_ahead = Moment { real_ns: at(200).real_ns, ..at(10) };
        assert_eq!(Course::new(DEADLINES).due(far_ahead), Some(Signal::KILL));
        let back = |boot_ns| Moment { boot_ns, real_ns: 0 };
        let mut course = Course::new(DEADLINES);
        assert_eq!(course.due(back(99)), None);
        assert_eq!(course.due(back(100)), Some(Signal::TERM));
        assert_eq!(course.due(back(200)), Some(Signal::KILL));
    }

    #[test]
    fn obeying_the_deadline_is_still_being_killed() {
        let mut course = Course::new(DEADLINES);
        assert_eq!(course.due(at(100)), Some(Signal::TERM));
        course.ended(ZERO, at(110));
        assert_eq!(course.result(ZERO), TERMED);
    }

    #[test]
    fn a_later_extension_does_not_change_why_the_command_was_ended() {
        let stepped = Moment { boot_ns: 10 * STEP_NS, ..at(1_000 * STEP_NS) };
        for (now, why) in [(at(1_000 * STEP_NS), Why::TimeUp), (stepped, Why::ClockJumped)] {
            let mut course = Course::new(LONG);
            assert_eq!(course.due(now), Some(Signal::TERM));
            course.set(Deadlines { term: at(9_000 * STEP_NS), kill: at(9_500 * STEP_NS) });
            course.ended(ZERO, now.after(20));
            let killed = Killed { by: KilledBy::Term, why, at_ns: now.boot_ns };
            assert_eq!(course.result(ZERO), Message::Killed(killed));
        }
    }

    /// The keeper sees a step of the wall clock as well, and may tell of the shorter validity first.
    #[test]
    fn a_shorter_time_that_was_told_hides_no_step_of_the_clock() {
        let boot_ns = 10 * STEP_NS;
        let stepped = Moment { boot_ns, ..at(2_001 * STEP_NS) };
        for (now, why) in [(stepped, Why::ClockJumped), (at(boot_ns), Why::TimeUp)] {
            let mut course = Course::new(LONG);
            course.set(Deadlines { term: now.before(STEP_NS), kill: now.before(1) });
            assert_eq!(course.due(now), Some(Signal::KILL));
            assert_eq!(course.revoked, Some((why, boot_ns)));
        }
        let mut course = Course::new(LONG);
        course.terminate(at(5_000));
        assert_eq!(course.due(stepped), Some(Signal::KILL));
        assert_eq!(course.revoked, Some((Why::Lost, boot_ns)), "what the keeper knows counts");
    }

    #[test]
    fn a_new_word_moves_both_deadlines_either_way_and_a_sealed_course_takes_none() {
        let mut course = Course::new(DEADLINES);
        course.set(Deadlines { term: at(1_100), kill: at(1_200) });
        assert_eq!(course.due(at(1_099)), None);
        course.set(Deadlines { term: at(1_100), kill: at(1_150) });
        course.keeper_died();
        assert_eq!(course.due(at(1_099)), Some(Signal::TERM));
        course.set(Deadlines { term: Moment::NEVER, kill: Moment::NEVER });
        assert_eq!(course.due(at(1_149)), None);
        assert_eq!(course.due(at(1_150)), Some(Signal::KILL));
    }

    #[test]
    fn a_loss_asks_now_and_forces_at_the_earlier_of_two_times() {
        for (kill, forced_at) in [(at(50), at(50)), (at(5_000), DEADLINES.kill)] {
            let mut course = Course::new(DEADLINES);
            course.terminate(kill);
            assert_eq!(course.due(at(10)), Some(Signal::TERM));
            assert_eq!(course.due(forced_at.before(1)), None);
            assert_eq!(course.due(forced_at), Some(Signal::KILL));
        }
    }

    #[test]
    fn the_second_term_of_the_user_kills_and_is_not_the_locks_doing() {
        let mut course = Course::new(DEADLINES);
        assert_eq!(course.user_signal(Signal::TERM), Some(Signal::TERM));
        assert_eq!(course.due(at(1)), None);
        assert_eq!(course.user_signal(Signal::TERM), None);
        assert_eq!(course.due(at(2)), Some(Signal::KILL));
        let ending = Ending::Signaled { signal: 9 };
        course.ended(ending, at(3));
        assert_eq!(course.result(ending), Message::Ended(ending));
    }

    #[test]
    fn who_is_killed_in_the_guardians_place_is_killed_for_the_lock() {
        let killed = Ending::Signaled { signal: 9 };
        for asked in [false, true] {
            let result = |ending, now| {
                let mut course = Course::new(DEADLINES);
                if asked {
                    assert_eq!(course.due(at(100)), Some(Signal::TERM));
                }
                course.ended(ending, now);
                course.result(ending)
            };
            let first_told = if asked { 100 } else { 200 };
            assert_eq!(result(killed, at(200)), time_up(KilledBy::Kill, first_told));
            // Before that it was somebody else, and an ending of its own stays its own.
            let before = if asked { TERMED } else { Message::Ended(killed) };
            assert_eq!(result(killed, at(199)), before);
            if !asked {
                assert_eq!(result(ZERO, at(200)), Message::Ended(ZERO));
            }
        }
    }

    #[test]
    fn leftovers_are_asked_at_once_and_forced_by_the_earlier_of_two_times() {
        let far = Deadlines { term: Moment::NEVER.before(1), kill: Moment::NEVER };
        for (deadlines, forced_at) in [(far, 5 + LEFTOVERS_NS), (DEADLINES, 200)] {
            let mut course = Course::new(deadlines);
            course.ended(ZERO, at(5));
            assert_eq!(course.due(at(5)), Some(Signal::TERM));
            assert_eq!(course.next_due().boot_ns, forced_at);
            assert_eq!(course.due(at(forced_at - 1)), None);
            assert_eq!(course.due(at(forced_at)), Some(Signal::KILL));
            assert_eq!(course.result(ZERO), Message::Ended(ZERO));
        }
    }

    #[test]
    fn what_would_end_at_once_is_not_started() {
        assert!(!Course::new(DEADLINES).too_late(at(99)));
        assert!(Course::new(DEADLINES).too_late(at(100)));
        let inverted = Deadlines { term: at(300), kill: at(200) };
        assert!(Course::new(inverted).too_late(at(200)));
    }

    /// A lock of three votes with a quorum of two, on a machine whose wall clock is set at will: votes
    /// are renewed and lost, time passes, and each change is told. Whenever the lock has run out, by
    /// either clock, SIGKILL has been due already.
    #[test]
    fn the_kill_is_never_later_than_the_validity_whatever_becomes_of_that() {
        let mut random = Moment::now().real_ns;
        println!("seed {random}");
        let mut draw = move |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut shrunk, mut ended_by_boot, mut ended_by_real) = (0, 0, 0);
        for _ in 0..2_000 {
            let mut now = Moment { boot_ns: 1_000_000, real_ns: 2_000_000 };
            let mut votes = [Some(now), Some(now), (draw(2) == 0).then_some(now)];
            let mut told = deadlines(now, &votes);
            let mut course = Course::new(told);
            for _ in 0..200 {
                let action = draw(10);
                match action {
                    0..=4 => now = now.after(draw(TERM / 4)),
                    5 | 6 => votes[draw(3) as usize] = Some(now),
                    7 => votes[draw(3) as usize] = None,
                    8 => now.real_ns += draw(TERM),
                    _ => now.real_ns -= draw(TERM).min(now.real_ns),
                }
                if left(now, &votes) == 0 {
                    // Then an answer has ended it, and the command is told to end: `terminate`.
                    let proved = action == 7;
                    assert!(proved || course.kill_at().has_come(now), "{votes:?} {told:?} {now:?}");
                    ended_by_boot += u32::from(!proved && told.kill.boot_ns <= now.boot_ns);
                    ended_by_real += u32::from(!proved && told.kill.boot_ns > now.boot_ns);
                    break;
                }
                let changed = deadlines(now, &votes);
                shrunk += u32::from(changed.kill.boot_ns < told.kill.boot_ns);
                told = changed;
                course.set(told);
                assert!(!course.kill_at().after(KILL).has_come(now), "nor is it told as past");
            }
        }
        assert!(shrunk > 100 && ended_by_boot > 100 && ended_by_real > 100);
    }

    const TERM: u64 = 10_000;
    const KILL: u64 = 500;

    /// What is left of the second youngest vote.
    fn left(now: Moment, votes: &[Option<Moment>; 3]) -> u64 {
        let age = |vote: &Moment| {
            let boot = now.boot_ns.saturating_sub(vote.boot_ns);
            boot.max(now.real_ns.saturating_sub(vote.real_ns))
        };
        let mut ages: Vec<u64> = votes.iter().flatten().map(age).collect();
        ages.sort_unstable();
        ages.get(1).map_or(0, |age| TERM.saturating_sub(*age))
    }

    fn deadlines(now: Moment, votes: &[Option<Moment>; 3]) -> Deadlines {
        Deadlines::before(now.after(left(now, votes)), 2 * KILL, KILL)
    }
}
