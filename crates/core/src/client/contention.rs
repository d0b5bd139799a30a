//! Back-off between processes: a process that has just had a lock lets others have it.
//!
//! Redlock has no queue across processes. A process that gives a lock back and wants it again is
//! nearer to it than all others. Its next `SET` can stand right behind the `DEL`, while others hear
//! of the release half a round trip later. Left alone, one process takes the lock a hundred times
//! in a row. So a process that knows of rivals stays away for a few round trips after each release.
//! One that knows of none does so every now and then, because it cannot see who is waiting. Where
//! there is a crowd, it then looks before it tries, as the others do.
//!
//! And when a lock that many wait for comes free, they must not all rush for it. Each draws a slot;
//! those in the first one try at once, the others look a little later whether it is still there. A
//! caller that has missed it often draws among fewer slots, so that nobody waits for ever.
//!
//! Back-off is about fairness, not safety: without it another process may be next, but never do two hold the lock.

use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::node::round_trip::ROUND_TRIP_MIN;
use crate::redlock::retry::POLL_CEILING;
use crate::time::{BootTime, Reading};
use crate::token::Key;

/// The back-off of no more keys than this is remembered.
const BACKOFF_KEYS_MAX: usize = 1024;

/// Under one token, a lock is handed over within a process at most so many times.
pub(crate) const HANDOVERS_MAX: u32 = 64;

/// In a row, a process that knows of no rivals takes a lock at most so many times before it lets
/// others try.
const TAKES_MAX: u32 = 128;

/// And for no longer than this.
const TAKES_FOR: Duration = Duration::from_millis(100);

/// A process that takes the lock again and again, and knows of rivals, stays away for so much longer at most.
const LONGER_MAX: Duration = Duration::from_millis(8);

/// Rivals that were seen are reckoned with for this long.
const RIVALS_FOR: Duration = Duration::from_secs(10);

/// Longest round trip that the back-off reckons with. A longer one was measured while a node stood still, and says nothing
/// about its distance. The back-off must not make a process wait for a free lock for half a minute.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(100);

/// And for another process to be told, to wake and to come takes at least four times this.
const WAY_MIN: Duration = Duration::from_micros(100);

/// Where others are faster for the first time, those who wait draw among so many slots.
const WINDOW_MIN: u32 = 8;

/// And among no more than this, however many there are.
const WINDOW_MAX: u32 = 128;

/// Who has missed the lock so often comes first.
const PATIENCE: u32 = 16;

/// How many others seem to wait: those who do draw among so many slots.
///
/// It grows by half whenever others were faster, and shrinks the less, the fewer the slots are, when
/// there was room. That is what brings all towards the same number: if it shrank in proportion as well,
/// who once believed to be alone would go on taking the lock from all others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct ContentionWindow(u32);

impl ContentionWindow {
    /// The lock was free, and others were faster.
    fn widen(&mut self) {
        self.0 = (self.0 + self.0 / 2).clamp(WINDOW_MIN, WINDOW_MAX);
    }

    /// The lock was still free when one's slot came.
    fn narrow(&mut self) {
        self.0 = self.0.saturating_sub((self.0 * self.0 / 256).max(1));
    }

    /// There are others.
    pub(crate) const fn is_there(self) -> bool {
        self.0 > 1
    }

    /// How many slots of that length from now to look again; zero is to try at once. Who has missed
    /// the lock often draws among fewer slots, and in the end comes first. They all end within the
    /// poll ceiling, or, where nodes are far away, are no more than at first: the lock may have come
    /// free for good, all others having given up.
    pub(crate) fn slot(self, length: Duration, word: u64, missed: u32) -> u32 {
        let fit = POLL_CEILING.as_nanos() / length.as_nanos().max(1);
        let most = u32::try_from(fit).unwrap_or(u32::MAX).max(WINDOW_MIN);
        let slots = self.0.min(most) * PATIENCE.saturating_sub(missed) / PATIENCE;
        u32::try_from((u128::from(word) * u128::from(slots)) >> 64).unwrap_or(0)
    }
}

/// What one process remembers of a key that it has not forgotten yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct KeyBackoff {
    /// Releases to the nodes in a row, each followed by the next acquire before others could have come.
    takes: u32,
    first_take: Option<BootTime>,
    rivals_until: Option<BootTime>,
    resume_at: Option<BootTime>,
    /// So often it had the lock again since an attempt of its own was outrun; 2 stands for more.
    retakes: u32,
    /// How many waited, as far as it was seen.
    window: ContentionWindow,
    window_until: Option<BootTime>,
    /// The shortest round trip observed, forgotten slowly: what those who wait count slots in. The
    /// usual one would not do. It grows when a machine is busy, differently for each process, and
    /// with slots of unlike length some would always come before others.
    shortest: Duration,
}

impl KeyBackoff {
    /// Others hold the lock, or want it.
    pub(crate) fn see_rivals(&mut self, round_trip: Duration, now: Reading) {
        self.observe(round_trip);
        self.rivals_until = Some(now.after(RIVALS_FOR));
        self.retakes = 0;
    }

    fn observe(&mut self, round_trip: Duration) {
        let grown = self.shortest + self.shortest / 32;
        self.shortest = if grown.is_zero() { round_trip } else { round_trip.min(grown) };
    }

    /// The lock was free, and others were faster.
    pub(crate) fn see_contention(&mut self, now: Reading) {
        self.window = self.window(now);
        self.window.widen();
        self.window_until = Some(now.after(RIVALS_FOR));
    }

    /// The lock was still free when one's slot came: so many others there were not.
    pub(crate) fn see_room(&mut self) {
        self.window.narrow();
    }

    /// As many as were seen lately.
    pub(crate) fn window(&self, now: Reading) -> ContentionWindow {
        let crowded = self.window_until.is_some_and(|at| !at.remaining(now).is_zero());
        if crowded { self.window } else { ContentionWindow::default() }
    }

    /// The lock is given back to the nodes; `had_since` is when this process got it, `was_long`
    /// that it has had it for as long as it may in one go.
    pub(crate) fn give_back(
        &mut self,
        (had_since, was_long): (BootTime, bool),
        (round_trip, jitter): (Duration, u64),
        now: Reading,
    ) {
        self.observe(round_trip);
        let stay_away = self.stay_away(jitter, now);
        let in_a_row = self.resume_at.is_none_or(|at| had_since <= at.after(2 * stay_away));
        if !in_a_row {
            (self.takes, self.first_take) = (0, None);
        }
        self.takes += 1;
        let first_take = *self.first_take.get_or_insert(had_since);
        let knows_rivals = self.rivals_until.is_some_and(|at| !at.remaining(now).is_zero());
        let long = first_take.after(TAKES_FOR).remaining(now).is_zero();
        if was_long || knows_rivals || long || self.takes >= TAKES_MAX {
            (self.takes, self.first_take) = (0, None);
            let longer =
                if knows_rivals { self.stay_longer(had_since, now) } else { Duration::ZERO };
            self.resume_at = Some(now.after(stay_away + longer));
        } else {
            // Not to wait for, only to tell by whether the next turn follows on this one.
            self.resume_at = Some(now.boot());
        }
    }

    /// Four round trips and up to two more: long enough for others to hear of a release and to come;
    /// and longer by the slots that they spread over, and come back to, or it would come before them.
    fn stay_away(&self, jitter: u64, now: Reading) -> Duration {
        let step = self.shortest.clamp(WAY_MIN, ROUND_TRIP_MAX);
        let ContentionWindow(window) = self.window(now);
        let slots = 4 * window.min(WINDOW_MIN);
        (4 + slots) * step + crate::redlock::retry::fraction(2 * step, jitter)
    }

    /// Rivals sleep while the lock is held, and draw slots: a process that wakes up late, or draws a late slot, misses a
    /// free lock, and draws among more then. The process that has it learns nothing of that. So it stays away for a
    /// part of the time that it has held the lock, and for more of it the more often it had the lock again.
    fn stay_longer(&mut self, had_since: BootTime, now: Reading) -> Duration {
        let held = Duration::from_nanos(now.boot().as_nanos().abs_diff(had_since.as_nanos()));
        let longer = (held / 4) * (1 << self.retakes);
        self.retakes = (self.retakes + 1).min(2);
        longer.min(LONGER_MAX)
    }

    /// When this process may try again; `None`: now.
    fn resume_at(&self, now: Reading) -> Option<BootTime> {
        self.resume_at.filter(|at| !at.remaining(now).is_zero())
    }

    /// It makes no difference any more.
    fn is_stale(&self, now: Reading) -> bool {
        let over = |at: Option<BootTime>, grace: Duration| {
            at.is_none_or(|at| at.after(grace).remaining(now).is_zero())
        };
        over(self.rivals_until, Duration::ZERO)
            && over(self.window_until, Duration::ZERO)
            && over(self.resume_at, RIVALS_FOR)
    }

    fn shift(&mut self, base: Reading) {
        self.first_take = self.first_take.map(|at| at.shifted(base));
        self.rivals_until = self.rivals_until.map(|at| at.shifted(base));
        self.window_until = self.window_until.map(|at| at.shifted(base));
        self.resume_at = self.resume_at.map(|at| at.shifted(base));
    }
}

/// What one process remembers of all keys; bounded, for to forget it does no harm.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct BackoffTable(BTreeMap<Key, KeyBackoff>);

impl BackoffTable {
    /// What is remembered of a key, to be added to.
    pub(crate) fn of(&mut self, key: &Key, now: Reading) -> &mut KeyBackoff {
        if self.0.len() >= BACKOFF_KEYS_MAX && !self.0.contains_key(key) {
            self.0.retain(|_, backoff| !backoff.is_stale(now));
            if self.0.len() >= BACKOFF_KEYS_MAX {
                self.0.clear();
            }
        }
        let backoff = self.0.entry(key.clone()).or_default();
        if backoff.is_stale(now) {
            *backoff = KeyBackoff::default();
        }
        backoff
    }

    /// When this process may try for a key again; `None`: now.
    pub(crate) fn resume_at(&self, key: &Key, now: Reading) -> Option<BootTime> {
        self.0.get(key)?.resume_at(now)
    }

    /// There is a crowd that waits for a key, as far as was seen lately.
    pub(crate) fn is_contended(&self, key: &Key, now: Reading) -> bool {
        self.0.get(key).is_some_and(|backoff| backoff.window(now).is_there())
    }

    /// For how long to let others have a key first that has come free; zero is to try at once.
    pub(crate) fn slot(&self, key: &Key, word: u64, missed: u32, now: Reading) -> Duration {
        let Some(backoff) = self.0.get(key) else {
            return Duration::ZERO;
        };
        let length = believed(backoff.shortest);
        backoff.window(now).slot(length, word, missed) * length
    }

    /// The length of a slot, where there are others who count in it.
    pub(crate) fn step(&self, key: &Key, now: Reading) -> Option<Duration> {
        let known = self.0.get(key).filter(|backoff| !backoff.is_stale(now));
        known.map(|backoff| backoff.shortest).filter(|step| !step.is_zero())
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.0.retain(|_, backoff| !backoff.is_stale(base));
        self.0.values_mut().for_each(|backoff| backoff.shift(base));
    }
}

/// The observed round trip, as far as it is believed; at least as much as it takes to be woken.
pub(crate) fn believed(round_trip: Duration) -> Duration {
    round_trip.clamp(ROUND_TRIP_MIN, ROUND_TRIP_MAX)
}

/// Another random word out of one.
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
    const SLOT: Duration = Duration::from_micros(100);
    const ROUND_TRIP: (Duration, u64) = (Duration::from_millis(1), 0);

    fn at(ms: i64) -> Reading {
        Reading::new(ms * MS, ms * MS)
    }

    fn give_back(backoff: &mut KeyBackoff, had: i64, now: i64) -> bool {
        backoff.give_back((at(had).boot(), false), ROUND_TRIP, at(now));
        backoff.resume_at(at(now)).is_some()
    }

    #[test]
    fn who_knows_rivals_stays_away_after_each_release() {
        let mut backoff = KeyBackoff::default();
        assert!(!give_back(&mut backoff, 0, 1));
        backoff.see_rivals(ROUND_TRIP.0, at(1));
        assert!(give_back(&mut backoff, 1, 2));
        let away = at(2).after(4 * ROUND_TRIP.0 + ROUND_TRIP.0 / 4);
        assert_eq!(
            backoff.resume_at(at(2)),
            Some(away),
            "four round trips, and a quarter of what it had it for"
        );
        assert_eq!(backoff.resume_at(at(7)), None);
        assert!(!give_back(&mut backoff, 20_000, 20_001), "seen long ago");
    }

    /// Found by the simulator (seed 487 of its first version): nodes had stood still, the round trip
    /// seemed to be 0.7 s, and a process stayed away for 26 s from a lock that nobody else wanted.
    #[test]
    fn nobody_stays_away_for_long_because_nodes_stood_still() {
        let mut backoff = KeyBackoff::default();
        backoff.see_rivals(ROUND_TRIP.0, at(0));
        backoff.see_contention(at(0));
        let pace = (Duration::from_millis(700), u64::MAX);
        backoff.give_back((at(0).boot(), false), pace, at(1));
        assert_eq!(backoff.resume_at(at(4_000)), None);
    }

    #[test]
    fn who_knows_none_stays_away_after_so_many_turns_in_a_row() {
        let mut backoff = KeyBackoff::default();
        let mut away = std::vec::Vec::new();
        for number in 0..300 {
            let us = |us: i64| Reading::new(us * 1000, us * 1000);
            let (had, now) = (us(100 * number), us(100 * number + 50));
            backoff.give_back((had.boot(), false), ROUND_TRIP, now);
            away.extend(backoff.resume_at(now).map(|_| number));
        }
        assert_eq!(away, [127, 255]);
    }

    #[test]
    fn who_leaves_room_between_turns_need_not_stay_away() {
        let mut backoff = KeyBackoff::default();
        assert!((0..200).all(|number| !give_back(&mut backoff, 20 * number, 20 * number + 1)));
    }

    #[test]
    fn long_turns_in_a_row_count_by_their_time() {
        let mut backoff = KeyBackoff::default();
        assert!(!give_back(&mut backoff, 0, 60));
        assert!(give_back(&mut backoff, 60, 120));
    }

    /// Two processes at one node: the first always had the lock again before the second had woken up and drawn its
    /// slot, which made that draw among more.
    #[test]
    fn who_has_it_again_and_again_stays_away_for_as_long_as_it_had_it() {
        let mut backoff = KeyBackoff::default();
        backoff.see_rivals(ROUND_TRIP.0, at(0));
        let mut away = |had: i64, held: i64| {
            backoff.give_back((at(had).boot(), false), ROUND_TRIP, at(had + held));
            let until = backoff.resume_at(at(had + held)).unwrap();
            until.remaining(at(had + held)).as_millis()
        };
        let times = [(10, 4), (30, 4), (50, 4), (70, 4), (90, 0), (100, 4000)];
        let away = times.map(|(had, held)| away(had, held));
        assert_eq!(
            away,
            [4 + 1, 4 + 2, 4 + 4, 4 + 4, 4, 4 + 8],
            "and for no longer than some milliseconds"
        );
        backoff.see_rivals(ROUND_TRIP.0, at(5_000));
        backoff.give_back((at(5_010).boot(), false), ROUND_TRIP, at(5_014));
        assert_eq!(backoff.resume_at(at(5_014 + 4 + 1)), None, "they had it in between");
    }

    #[test]
    fn a_crowd_spreads_and_gathers_again() {
        let mut window = ContentionWindow::default();
        assert_eq!(window.slot(SLOT, u64::MAX, 0), 0, "alone: at once");
        window.widen();
        assert_eq!((window.slot(SLOT, 0, 0), window.slot(SLOT, u64::MAX, 0)), (0, 7));
        window.widen();
        assert_eq!(window.slot(SLOT, u64::MAX, 0), 11);
        (0..9).for_each(|_| window.widen());
        assert_eq!(window.slot(SLOT, u64::MAX, 0), 127, "bounded");
        let steps = (0..200).take_while(|_| {
            window.narrow();
            window.is_there()
        });
        assert!((20..60).contains(&steps.count()), "the slower, the fewer there are");
        assert_eq!(window.slot(SLOT, u64::MAX, 0), 0);
    }

    /// Two of them that judge differently at first end up alike.
    #[test]
    fn all_come_to_the_same_number() {
        let (mut shy, mut bold) = (ContentionWindow(WINDOW_MAX), ContentionWindow(2 * WINDOW_MIN));
        for _ in 0..20 {
            for window in [&mut shy, &mut bold] {
                window.widen();
                (0..3).for_each(|_| window.narrow());
            }
        }
        assert!(shy.0 < 2 * bold.0, "{shy:?} {bold:?}");
    }

    #[test]
    fn who_has_missed_the_lock_often_comes_first() {
        let slots =
            [0, 4, 8, 12, 16, 1000].map(|missed| ContentionWindow(32).slot(SLOT, u64::MAX, missed));
        assert_eq!(slots, [31, 23, 15, 7, 0, 0]);
    }

    #[test]
    fn nobody_leaves_a_free_lock_alone_for_long() {
        let last = |ms| ContentionWindow(WINDOW_MAX).slot(Duration::from_millis(ms), u64::MAX, 0);
        assert_eq!([1, 2, 10, 100].map(last), [127, 124, 24, 7]);
    }

    #[test]
    fn as_many_are_reckoned_with_as_were_seen_lately() {
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
            "what is forgotten stays so"
        );
        backoff.see_room();
        assert_eq!(backoff.window(at(10_002)), ContentionWindow(WINDOW_MIN - 1));
    }

    /// A process on a busy machine observes longer round trips than others; its slots are as long.
    #[test]
    fn slots_are_as_long_as_the_shortest_round_trip() {
        let mut backoff = KeyBackoff::default();
        for ms in [3, 1, 20, 20] {
            backoff.see_rivals(Duration::from_millis(ms), at(0));
        }
        assert!(backoff.shortest < Duration::from_micros(1100));
        (0..200).for_each(|_| backoff.see_rivals(Duration::from_millis(20), at(0)));
        assert_eq!(backoff.shortest, Duration::from_millis(20), "it may have become a longer way");
    }

    /// The way to the nodes may be another one by then.
    #[test]
    fn slots_are_not_counted_in_what_is_forgotten() {
        let (mut backoff, key) = (BackoffTable::default(), Key::from("k"));
        backoff.of(&key, at(0)).see_rivals(ROUND_TRIP.0, at(0));
        assert_eq!(backoff.step(&key, at(1)), Some(ROUND_TRIP.0));
        assert_eq!(backoff.step(&key, at(10_001)), None);
    }

    #[test]
    fn what_makes_no_difference_is_forgotten() {
        let mut backoff = KeyBackoff::default();
        give_back(&mut backoff, 0, 1);
        assert!(!backoff.is_stale(at(2)) && backoff.is_stale(at(10_001)));
    }
}
