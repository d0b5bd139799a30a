//! Back-off between processes: a process that has just held a lock lets other processes acquire it.
//!
//! Redlock has no queue across processes. A process that releases a lock and acquires it again has an advantage: its
//! next `SET` may directly follow its `DEL`, and other processes learn of the release half a round trip later. Without
//! back-off, one process takes the lock a hundred times in a row. So a process that knows of rivals backs off for a few
//! round trips after each release. A process that knows of no rivals backs off now and then, because it cannot see
//! waiting processes. If many processes wait, a process inspects the lock after its back-off before it attempts.
//!
//! When a contended lock becomes free, not all waiters may attempt at once. Each waiter pauses for a random number
//! of steps. A waiter without a pause attempts at once; the others check after their pause whether the lock is still
//! free. The more often a caller missed the free lock, the shorter its pauses are, so no caller starves.
//!
//! Three details make the shares of processes equal. Measurements showed that each is necessary:
//!
//! - The estimate of the number of rivals grows by half of itself, and shrinks by an amount that is proportional to its
//!   square. So all processes approach the same number. With a proportional decrease, a process that was aggressive by
//!   chance stayed aggressive.
//! - A step is as long as the shortest round trip observed. On a busy machine the usual round trip of two processes may
//!   differ tenfold.
//! - A process that released the lock checks whether the lock is free before it attempts again. Otherwise its attempt
//!   succeeds right after its release, while all other processes still pause.
//!
//! Back-off is about fairness, not safety. Without it, other processes may wait longer, but no two hold the lock.

mod own_turns;
mod window;

use core::time::Duration;

use self::own_turns::OwnTurns;
pub(crate) use self::window::ContentionWindow;
use self::window::WINDOW_MIN;
use crate::client::gap::FOREIGN_FOR;
use crate::node::round_trip::ROUND_TRIP_MIN;
use crate::time::{BootTime, Reading};

/// Largest number of hand-overs within a process under one token. After them the process releases the lock, so that
/// other processes can acquire it.
pub(crate) const HANDOVERS_MAX: u32 = 64;

/// Time for which a process remembers rivals.
const RIVALS_FOR: Duration = Duration::from_secs(10);

/// Upper bound of measured round trips. If a node is stopped for a while, the client measures a long round trip.
/// Without this bound, a process would then back off from a free lock for half a minute.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(100);

/// Lower bound of the round trip from which a back-off is computed. A back-off of four round trips then lasts at least
/// 0.4 ms. A rival needs at least 0.4 ms to receive a push and attempt.
const WAY_MIN: Duration = Duration::from_micros(100);

/// A finished period in which this process held the lock under one token: its start, whether it was too long for
/// further hand-overs, and the round trip and a random word of its attempt.
pub(crate) type PastTurn = ((BootTime, bool), (Duration, u64));

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct KeyBackoff {
    own_turns: OwnTurns,
    rivals_until: Option<BootTime>,
    window: ContentionWindow,
    window_until: Option<BootTime>,
    /// The shortest recent round trip, which is the length of a step. It grows slowly if round trips get longer. Steps
    /// must be equally long in all processes, because a process with shorter steps would always win. The mean round
    /// trip would not do: on a busy machine it differs between processes.
    shortest: Duration,
    /// Time at which a client of another library (a foreign client) last held the key; `None` if none was seen.
    foreign_seen: Option<BootTime>,
}

/// The part of a key's back-off record that a call needs when it becomes active in the local queue.
#[derive(Default)]
pub(crate) struct KnownOfKey {
    /// Time until which this process leaves the lock to other processes; `None` if it does not.
    pub(crate) resume_at: Option<BootTime>,
    pub(crate) is_contended: bool,
    pub(crate) foreign_seen: Option<BootTime>,
}

impl KnownOfKey {
    pub(crate) fn merge(self, other: Self) -> Self {
        Self {
            resume_at: self.resume_at.max(other.resume_at),
            is_contended: self.is_contended || other.is_contended,
            foreign_seen: self.foreign_seen.max(other.foreign_seen),
        }
    }
}

impl KeyBackoff {
    pub(crate) fn known(&self, now: Reading) -> KnownOfKey {
        KnownOfKey {
            resume_at: self.resume_at(now),
            is_contended: self.is_contended(now),
            foreign_seen: self.foreign_seen,
        }
    }

    /// Notes the time at which a client of another library held the key.
    pub(crate) fn see_foreign(&mut self, at: BootTime) {
        self.foreign_seen = self.foreign_seen.max(Some(at));
    }

    /// Notes that another process holds the lock or attempts.
    pub(crate) fn see_rivals(&mut self, round_trip: Duration, now: Reading) {
        self.observe(round_trip);
        self.rivals_until = Some(now.after(RIVALS_FOR));
        self.own_turns.retakes = 0;
    }

    fn observe(&mut self, round_trip: Duration) {
        let grown = self.shortest + self.shortest / 32;
        self.shortest = if grown.is_zero() { round_trip } else { round_trip.min(grown) };
    }

    /// Notes that another process took the freed lock first.
    pub(crate) fn see_contention(&mut self, now: Reading) {
        self.window = self.window(now);
        self.window.widen();
        self.window_until = Some(now.after(RIVALS_FOR));
    }

    /// Notes that the lock was still free after the random pause, so fewer processes wait than estimated.
    pub(crate) fn see_room(&mut self) {
        self.window.narrow();
    }

    /// The estimated number of waiting processes; zero if the last contention was long ago.
    pub(crate) fn window(&self, now: Reading) -> ContentionWindow {
        let crowded = self.window_until.is_some_and(|at| !at.has_come(now));
        if crowded { self.window } else { ContentionWindow::default() }
    }

    /// Whether other processes have waited for this key lately, as far as this process has seen.
    pub(crate) fn is_contended(&self, now: Reading) -> bool {
        self.window(now).is_crowded()
    }

    /// Notes a release. `had_since` is the time of the grant. `was_long` means that this process held the lock for too
    /// long to hand it over within the process again.
    pub(crate) fn note_release(
        &mut self,
        had: (BootTime, bool),
        (round_trip, jitter): (Duration, u64),
        now: Reading,
    ) {
        self.observe(round_trip);
        let stay_away = self.stay_away(jitter, now);
        let knows_rivals = self.rivals_until.is_some_and(|at| !at.has_come(now));
        self.own_turns.note_release(had, stay_away, knows_rivals, now);
    }

    /// The usual back-off: four to six round trips, in which other processes receive a push and attempt. The duration
    /// of their pauses is added, because otherwise this process would be faster than a waiter with a long pause.
    fn stay_away(&self, jitter: u64, now: Reading) -> Duration {
        let step = self.shortest.clamp(WAY_MIN, ROUND_TRIP_MAX);
        let ContentionWindow(window) = self.window(now);
        let pauses = 4 * window.min(WINDOW_MIN);
        (4 + pauses) * step + crate::redlock::retry::fraction(2 * step, jitter)
    }

    /// The length of a step on this key; `None` without a recent round trip.
    pub(crate) fn step(&self, now: Reading) -> Option<Duration> {
        (!self.is_stale(now) && !self.shortest.is_zero()).then_some(self.shortest)
    }

    /// The pause before this process attempts to take a key that has become free. Zero means an attempt at once.
    pub(crate) fn pause(&self, word: u64, missed: u32, now: Reading) -> Duration {
        let step = believed(self.shortest);
        self.window(now).steps(step, word, missed) * step
    }

    pub(crate) fn resume_at(&self, now: Reading) -> Option<BootTime> {
        self.own_turns.resume_at.filter(|at| !at.has_come(now))
    }

    pub(crate) fn is_stale(&self, now: Reading) -> bool {
        let over = |at: Option<BootTime>, grace: Duration| {
            at.is_none_or(|at| at.after(grace).has_come(now))
        };
        over(self.rivals_until, Duration::ZERO)
            && over(self.window_until, Duration::ZERO)
            && over(self.own_turns.resume_at, RIVALS_FOR)
            && over(self.foreign_seen, FOREIGN_FOR)
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.own_turns.shift(base);
        self.rivals_until = self.rivals_until.map(|at| at.shifted(base));
        self.window_until = self.window_until.map(|at| at.shifted(base));
        self.foreign_seen = self.foreign_seen.map(|at| at.shifted(base));
    }
}

pub(crate) fn believed(round_trip: Duration) -> Duration {
    round_trip.clamp(ROUND_TRIP_MIN, ROUND_TRIP_MAX)
}

/// Derives the next random word from a word and a counter.
pub(crate) fn mix(word: u64, number: u32) -> u64 {
    let mut mixed = word.wrapping_add(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;
    const ROUND_TRIP: (Duration, u64) = (Duration::from_millis(1), 0);

    fn at(ms: i64) -> Reading {
        Reading::new(ms * MS, ms * MS)
    }

    fn is_backed_off(backoff: &mut KeyBackoff, had: i64, now: i64) -> bool {
        backoff.note_release((at(had).boot(), false), ROUND_TRIP, at(now));
        backoff.resume_at(at(now)).is_some()
    }

    #[test]
    fn a_process_with_rivals_backs_off_after_each_release() {
        let mut backoff = KeyBackoff::default();
        assert!(!is_backed_off(&mut backoff, 0, 1));
        backoff.see_rivals(ROUND_TRIP.0, at(1));
        assert!(is_backed_off(&mut backoff, 1, 2));
        let away = at(2).after(4 * ROUND_TRIP.0 + ROUND_TRIP.0 / 4);
        assert_eq!(
            backoff.resume_at(at(2)),
            Some(away),
            "four round trips, and a quarter of the time held"
        );
        assert_eq!(backoff.resume_at(at(7)), None);
        assert!(!is_backed_off(&mut backoff, 20_000, 20_001), "the rivals were seen long ago");
    }

    /// Regression test for a failure that the simulator found: stopped nodes had raised the round trip to 0.7 s, so
    /// a process backed off for 26 s from a lock without rivals.
    #[test]
    fn stopped_nodes_do_not_make_the_backoff_long() {
        let mut backoff = KeyBackoff::default();
        backoff.see_rivals(ROUND_TRIP.0, at(0));
        backoff.see_contention(at(0));
        let pace = (Duration::from_millis(700), u64::MAX);
        backoff.note_release((at(0).boot(), false), pace, at(1));
        assert_eq!(backoff.resume_at(at(4_000)), None);
    }

    #[test]
    fn a_process_without_rivals_backs_off_after_many_turns_in_a_row() {
        let mut backoff = KeyBackoff::default();
        let mut away = std::vec::Vec::new();
        for number in 0..300 {
            let us = |us: i64| Reading::new(us * 1000, us * 1000);
            let (had, now) = (us(100 * number), us(100 * number + 50));
            backoff.note_release((had.boot(), false), ROUND_TRIP, now);
            away.extend(backoff.resume_at(now).map(|_| number));
        }
        assert_eq!(away, [127, 255]);
    }

    #[test]
    fn a_process_that_pauses_between_turns_need_not_back_off() {
        let mut backoff = KeyBackoff::default();
        assert!((0..200).all(|number| !is_backed_off(&mut backoff, 20 * number, 20 * number + 1)));
    }

    #[test]
    fn long_turns_in_a_row_count_by_their_time() {
        let mut backoff = KeyBackoff::default();
        assert!(!is_backed_off(&mut backoff, 0, 60));
        assert!(is_backed_off(&mut backoff, 60, 120));
    }

    /// Two processes contend on one node. If the first takes the lock again before the pause of the second ends, the
    /// pauses of the second become longer. So the first must back off longer each time.
    #[test]
    fn the_backoff_grows_with_each_turn_in_a_row() {
        let mut backoff = KeyBackoff::default();
        backoff.see_rivals(ROUND_TRIP.0, at(0));
        let mut away = |had: i64, held: i64| {
            backoff.note_release((at(had).boot(), false), ROUND_TRIP, at(had + held));
            let until = backoff.resume_at(at(had + held)).unwrap();
            until.remaining(at(had + held)).as_millis()
        };
        let times = [(10, 4), (30, 4), (50, 4), (70, 4), (90, 0), (100, 4000)];
        let away = times.map(|(had, held)| away(had, held));
        assert_eq!(away, [4 + 1, 4 + 2, 4 + 4, 4 + 4, 4, 4 + 8], "the addition is at most 8 ms");
        backoff.see_rivals(ROUND_TRIP.0, at(5_000));
        backoff.note_release((at(5_010).boot(), false), ROUND_TRIP, at(5_014));
        assert_eq!(backoff.resume_at(at(5_014 + 4 + 1)), None, "another process had it in between");
    }

    #[test]
    fn the_window_is_forgotten_after_a_while() {
        let mut backoff = KeyBackoff::default();
        assert_eq!(backoff.window(at(0)), ContentionWindow::default());
        backoff.see_contention(at(0));
        backoff.see_contention(at(1));
        assert_eq!(backoff.window(at(2)), ContentionWindow(12));
        assert_eq!(backoff.window(at(10_001)), ContentionWindow::default());
        backoff.see_contention(at(10_001));
        assert_eq!(
            backoff.window(at(10_001)),
            ContentionWindow(WINDOW_MIN),
            "a forgotten window starts again"
        );
        backoff.see_room();
        assert_eq!(backoff.window(at(10_002)), ContentionWindow(WINDOW_MIN - 1));
    }

    /// A process on a busy machine observes longer round trips, but its steps are as long as those of other processes.
    #[test]
    fn steps_are_as_long_as_the_shortest_round_trip() {
        let mut backoff = KeyBackoff::default();
        for ms in [3, 1, 20, 20] {
            backoff.see_rivals(Duration::from_millis(ms), at(0));
        }
        assert!(backoff.shortest < Duration::from_micros(1100));
        (0..200).for_each(|_| backoff.see_rivals(Duration::from_millis(20), at(0)));
        assert_eq!(backoff.shortest, Duration::from_millis(20), "the path may have become longer");
    }

    #[test]
    fn a_backoff_without_effect_is_stale() {
        let mut backoff = KeyBackoff::default();
        is_backed_off(&mut backoff, 0, 1);
        assert!(!backoff.is_stale(at(2)) && backoff.is_stale(at(10_001)));
    }
}
