//! Gaps: periods in which this library's clients do not attempt, so that clients that poll can acquire the lock.
//!
//! Clients of other libraries poll every 100 to 250 ms. Clients of this library receive a push at a release and acquire
//! within a millisecond, so they would hardly ever leave a key free. A *foreign* value, which lacks this library's
//! form, shows such a client. After one was seen on a key, calls leave gaps for ten seconds.
//!
//! All processes must leave the same gaps, because a process that attempts takes the free key. The wall clock decides
//! when a gap is open, so processes agree without a message. If their clocks differ, gaps overlap less, and clients
//! that poll get less of the lock. A gap only delays an attempt, so safety does not depend on it.

use core::time::Duration;

use crate::client::contention::mix;
use crate::command::Holding;
use crate::redlock::retry::fraction;
use crate::time::{BootTime, Reading, nanos};
use crate::token::Value;

/// The length of a gap. A client that polls every 250 ms tries at least once in it.
const GAP: Duration = Duration::from_millis(250);

/// The mean time between two gaps. During this time, this library's clients take the lock from each other.
const TURN: Duration = Duration::from_millis(100);

/// Time for which a foreign value is remembered.
pub(crate) const FOREIGN_FOR: Duration = Duration::from_secs(10);

/// The end of the gap that is open now; `None` if no gap is open. `foreign_seen` is the time at which a foreign value
/// was last seen.
///
/// The longer ago that was, the fewer gaps there are. Time has cycles of 350 ms: in seconds 0 to 2 every cycle has a
/// gap, in seconds 2 to 4 every other cycle, in seconds 4 to 8 every fourth, and in seconds 8 to 10 every eighth. So a
/// foreign client that has gone costs at most about 3 s of waiting. A gap begins at a random time of its cycle, because
/// a client that polls with the period of the cycles might otherwise always poll between two gaps.
pub(crate) fn open_until(foreign_seen: Option<BootTime>, now: Reading) -> Option<BootTime> {
    const CYCLE_NS: u64 = (GAP.as_nanos() + TURN.as_nanos()) as u64;
    let age = age(foreign_seen?, now)?;
    let wall_ns = now.real_ns().unsigned_abs();
    let (cycle, passed) = (wall_ns / CYCLE_NS, Duration::from_nanos(wall_ns % CYCLE_NS));
    let is_left_out = cycle % (age.as_secs() / 2 + 1).next_power_of_two() != 0;
    let start = fraction(TURN, mix(cycle, 0));
    let is_open = (start..start + GAP).contains(&passed) && !is_left_out;
    is_open.then(|| now.after(start + GAP - passed))
}

/// The time since a foreign value was seen; `None` if that is too long ago.
pub(crate) fn age(foreign_seen: BootTime, now: Reading) -> Option<Duration> {
    let nanos = now.boot().as_nanos().saturating_sub(foreign_seen.as_nanos());
    let age = Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
    (age < FOREIGN_FOR).then_some(age)
}

/// The last time at which a foreign client is known to have held the key: now if the holder is foreign, otherwise the
/// time in the holder's value. `None` if the value contains no such time, or a time that is too long ago.
///
/// Each holder writes the time into its value, so the time passes from holder to holder. Each process forgets it by its
/// own clock. A time in the future counts as now.
pub(crate) fn foreign_seen(holding: &Holding, now: Reading) -> Option<BootTime> {
    if is_foreign(holding) {
        return Some(now.boot());
    }
    let Holding::Held { value, .. } = holding else { return None };
    let seen = Duration::from_millis(Value::foreign_seen_ms_of(value)?);
    let now_ns = Duration::from_nanos(u64::try_from(now.real_ns()).ok()?);
    let age = now_ns.saturating_sub(seen);
    let at = now.boot().as_nanos().saturating_sub_unsigned(nanos(age));
    (age < FOREIGN_FOR).then(|| BootTime::from_nanos(at))
}

/// Whether a client that is not of this library holds the key.
pub(crate) fn is_foreign(holding: &Holding) -> bool {
    match holding {
        Holding::Held { value, .. } => Value::owner_of(value).is_none(),
        Holding::OtherType { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;
    use alloc::vec::Vec;

    const EPOCH_MS: i64 = 1_764_065_000_000;

    fn at(ms: i64) -> Reading {
        Reading::new(ms * 1_000_000, (EPOCH_MS + ms) * 1_000_000)
    }

    fn held(value: &Value) -> Holding {
        Holding::Held { value: value.as_bytes().to_vec(), ttl: None }
    }

    /// Milliseconds of gaps in each second after a foreign value was seen at time 0.
    fn gaps(boot_ms: i64) -> Vec<usize> {
        let now = |ms: i64| Reading::new((boot_ms + ms) * 1_000_000, at(ms).real_ns());
        let seen = Some(now(0).boot());
        let is_open = |ms: &i64| open_until(seen, now(*ms)).is_some();
        (0..12)
            .map(|second| (1000 * second..1000 * second + 1000).filter(is_open).count())
            .collect()
    }

    #[test]
    fn gaps_take_most_of_the_time_at_first_and_end_after_ten_seconds() {
        let gaps = gaps(0);
        assert!(gaps[..2].iter().all(|gap| (600..=900).contains(gap)), "{gaps:?}");
        assert_eq!(gaps[10..], [0, 0]);
        assert!((1500..=3500).contains(&gaps.iter().sum::<usize>()), "{gaps:?}");
    }

    /// Two machines whose boot clocks differ have the same gaps, because their wall clocks agree.
    #[test]
    fn the_wall_clock_decides_when_a_gap_is_open() {
        assert_eq!(gaps(0), gaps(77_777));
    }

    #[test]
    fn a_gap_lasts_for_a_quarter_of_a_second_and_begins_at_different_times() {
        let seen = |ms: i64| Some(at(ms).boot());
        let mut gaps = Vec::new();
        let mut ms = 0;
        while gaps.len() < 40 {
            match open_until(seen(ms), at(ms)) {
                Some(end) => {
                    let left = end.remaining(at(ms)).as_millis() as i64;
                    assert!(left <= 250, "{left}");
                    gaps.push(ms % 350);
                    ms += left + 1;
                }
                None => ms += 1,
            }
        }
        gaps.sort_unstable();
        gaps.dedup();
        assert!(gaps.len() > 20, "{gaps:?}");
    }

    #[test]
    fn the_time_of_the_last_sight_passes_from_value_to_value() {
        let token = Token::new([7; 20]);
        let foreign = held(&Value::of_caller(b"another library's"));
        assert!(is_foreign(&foreign));
        let mut seen = foreign_seen(&foreign, at(0));
        assert_eq!(seen, Some(at(0).boot()));
        for ms in (1000..9000).step_by(1000) {
            let age = seen.and_then(|seen| age(seen, at(ms)));
            let value = held(&Value::dated(&token, "owner", at(ms), age));
            assert!(!is_foreign(&value));
            seen = foreign_seen(&value, at(ms + 3));
            let age = at(ms).boot().as_nanos() - seen.unwrap().as_nanos();
            assert!(age >= ms * 1_000_000 && age <= (ms + ms / 1000) * 1_000_000, "{age}");
        }
        assert_eq!(seen.and_then(|seen| age(seen, at(10_001))), None, "forgotten");
        let old = held(&Value::dated(&token, "owner", at(0), Some(Duration::from_secs(9))));
        assert_eq!(foreign_seen(&old, at(1000)), None);
        assert_eq!(foreign_seen(&held(&Value::new(&token, "version 0.1.0")), at(0)), None);
        assert_eq!(foreign_seen(&old, at(-60_000)), Some(at(-60_000).boot()), "at most now");
    }
}
