//! Who held the lock when, put together from the copies of a program that took turns.

use serde::Deserialize;

/// What passing a lock from one process to another took.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HandoverReport {
    /// Median time from the call of release to acquired in another process, in microseconds.
    pub(crate) p50_us: f64,
    /// The time in microseconds that 99 % of the hand-overs did not exceed.
    pub(crate) p99_us: f64,
    /// How often the lock went from one process to another.
    pub(crate) handovers: usize,
    /// How often each process had the lock.
    pub(crate) acquisitions: Vec<usize>,
}

/// With fewer hand-overs, their percentiles would say nothing. Libraries that poll come to that: who
/// releases a lock takes it again at once, while the others sleep until their next try.
const ENOUGH: usize = 20;

/// One hold, in readings of the clock that all processes of the machine share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Hold {
    acquired_ns: u64,
    release_called_ns: u64,
}

/// What one copy printed.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    lifetime: Lifetime,
    holds: Vec<Hold>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Lifetime {
    ready_ns: u64,
    done_ns: u64,
}

impl Copy {
    pub(super) fn read(output: &str) -> Result<Self, String> {
        let unreadable = |why| format!("its report cannot be read: {why}");
        let mut lines = output.lines();
        let lifetime = lines.next().ok_or("it reported nothing")?;
        Ok(Self {
            lifetime: serde_json::from_str(lifetime).map_err(unreadable)?,
            holds: lines.map(serde_json::from_str).collect::<Result<_, _>>().map_err(unreadable)?,
        })
    }
}

/// Puts the holds of all copies in order, as far as they were acquired while all copies ran.
pub(super) fn hand_overs(copies: &[Copy]) -> Result<HandoverReport, String> {
    let begin = copies.iter().map(|copy| copy.lifetime.ready_ns).max().unwrap_or(0);
    let end = copies.iter().map(|copy| copy.lifetime.done_ns).min().unwrap_or(0);
    let mut holds: Vec<(Hold, usize)> = Vec::new();
    for (process, copy) in copies.iter().enumerate() {
        let together = |hold: &&Hold| hold.acquired_ns >= begin && hold.acquired_ns <= end;
        holds.extend(copy.holds.iter().filter(together).map(|hold| (*hold, process)));
    }
    holds.sort_by_key(|(hold, _)| hold.acquired_ns);

    let mut acquisitions = vec![0; copies.len()];
    for (_, process) in &holds {
        acquisitions[*process] += 1;
    }
    let mut took_ns = Vec::new();
    for pair in holds.windows(2) {
        let [(before, from), (after, to)] = pair else { continue };
        // Called, not carried out: an early release is not seen here, two holders are.
        let Some(gap) = after.acquired_ns.checked_sub(before.release_called_ns) else {
            return Err("two processes held the lock at the same time".to_owned());
        };
        if from != to {
            took_ns.push(gap);
        }
    }
    if took_ns.len() < ENOUGH {
        let times = took_ns.len();
        return Err(format!(
            "the lock changed hands at only {times} of {} acquisitions {acquisitions:?}",
            holds.len()
        ));
    }
    took_ns.sort_unstable();
    let at = |share: f64| {
        // The smallest value that at least this share of all values does not exceed.
        let rank = (share * took_ns.len() as f64).ceil() as usize;
        took_ns[rank.clamp(1, took_ns.len()) - 1] as f64 / 1e3
    };
    let (p50_us, p99_us) = (at(0.50), at(0.99));
    Ok(HandoverReport { p50_us, p99_us, handovers: took_ns.len(), acquisitions })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(ready: u64, done: u64, holds: &[(u64, u64)]) -> Copy {
        let mut output = format!("{{\"ready_ns\":{ready},\"done_ns\":{done}}}\n");
        for (acquired, released) in holds {
            output += &format!("{{\"acquired_ns\":{acquired},\"release_called_ns\":{released}}}\n");
        }
        Copy::read(&output).unwrap()
    }

    /// Two processes in turn, with a gap of 1 µs, 2 µs, and so on.
    #[test]
    fn percentiles_are_of_the_changes_of_hands() {
        let (mut holds, mut now) = ([const { Vec::new() }; 2], 1_000_000);
        for turn in 0..=100_usize {
            holds[turn % 2].push((now, now + 5_000));
            now += 5_000 + 1_000 * (turn as u64 + 1);
        }
        let copies = holds.map(|holds| copy(0, now, &holds));
        let report = hand_overs(&copies).unwrap();
        assert_eq!(report.handovers, 100);
        assert_eq!((report.p50_us, report.p99_us), (50.0, 99.0));
        assert_eq!(report.acquisitions, [51, 50]);
    }

    #[test]
    fn only_what_was_acquired_while_all_ran_counts() {
        let a = copy(0, 100_000, &[(1_000, 2_000), (20_000, 25_000), (26_000, 30_000)]);
        let b = copy(10_000, 90_000, &[(33_000, 38_000), (95_000, 97_000)]);
        let why = hand_overs(&[a, b]).unwrap_err();
        assert_eq!(why, "the lock changed hands at only 1 of 3 acquisitions [2, 1]");
    }

    #[test]
    fn two_holders_at_once_are_told() {
        let a = copy(0, 100, &[(10, 50)]);
        let b = copy(0, 100, &[(49, 60)]);
        let why = hand_overs(&[a, b]).unwrap_err();
        assert_eq!(why, "two processes held the lock at the same time");
    }

    #[test]
    fn what_is_not_a_report_is_refused() {
        assert!(Copy::read("").is_err());
        assert!(Copy::read("{\"ready_ns\":1}").is_err());
        assert!(Copy::read("{\"ready_ns\":1,\"done_ns\":2}\nhello").is_err());
    }
}
