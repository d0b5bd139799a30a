//! Statistics about a lock with several contenders, computed from the records of all contenders.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::sample::Latencies;

/// One acquisition: the times of the acquire call, the grant and the release call, in nanoseconds of the monotonic
/// clock. If the measurement ends during the last acquisition of a process, the times after that end are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turn(pub(crate) u64, pub(crate) Option<u64>, pub(crate) Option<u64>);

/// The statistics of all contenders together.
pub(crate) struct HandoverStats {
    pub(crate) acquisitions: u64,
    /// The number of acquisitions of each contender, by the contender's index.
    pub(crate) shares: Vec<u64>,
    /// Times from a release call to the grant for another contender that was waiting.
    pub(crate) handovers: Histogram<u64>,
    /// Times from the acquire call to the grant. A wait without a grant counts until the last time in any record.
    pub(crate) waits: Histogram<u64>,
    /// The number of releases by other contenders during a wait, summed over all acquisitions. After each such release,
    /// the waiting contender can try to get the lock.
    pub(crate) wakeups: u64,
}

/// A period in which a contender held the lock.
#[derive(Clone, Copy)]
struct Hold {
    process: usize,
    asked: u64,
    acquired: u64,
    released: u64,
}

impl HandoverStats {
    /// # Errors
    /// If no contender ever held the lock, or two held the lock at the same time.
    pub(crate) fn new(turns: &[Vec<Turn>]) -> Result<Self, String> {
        let mut holds = Vec::new();
        let mut waits = Latencies::default();
        let end = turns.iter().flatten().map(|turn| turn.2.unwrap_or(turn.0)).max().unwrap_or(0);
        for (process, turns) in turns.iter().enumerate() {
            for &Turn(asked, acquired, released) in turns {
                let until = acquired.unwrap_or(end).saturating_sub(asked);
                waits.record(Duration::from_nanos(until));
                if let Some((acquired, released)) = acquired.zip(released) {
                    holds.push(Hold { process, asked, acquired, released });
                }
            }
        }
        holds.sort_by_key(|hold| hold.acquired);
        if holds.is_empty() {
            return Err("nobody ever had the lock".to_owned());
        }
        let mut handovers = Latencies::default();
        for pair in holds.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            let Some(gap) = after.acquired.checked_sub(before.released) else {
                return Err(format!(
                    "numbers {} and {} had the lock at the same time",
                    before.process, after.process
                ));
            };
            if before.process != after.process && after.asked < before.released {
                handovers.record(Duration::from_nanos(gap));
            }
        }
        let mut shares = vec![0; turns.len()];
        holds.iter().for_each(|hold| shares[hold.process] += 1);
        Ok(Self {
            acquisitions: holds.len() as u64,
            shares,
            handovers: handovers.histogram(),
            waits: waits.histogram(),
            wakeups: holds.iter().map(|hold| wakeups(&holds, *hold)).sum(),
        })
    }
}

/// The number of releases by other contenders during a wait.
fn wakeups(holds: &[Hold], waiter: Hold) -> u64 {
    // `holds` do not overlap and are sorted by their start, so they are sorted by their release too.
    let first = holds.partition_point(|hold| hold.released <= waiter.asked);
    let last = holds.partition_point(|hold| hold.released <= waiter.acquired);
    let others = holds[first..last].iter().filter(|hold| hold.process != waiter.process);
    others.count() as u64
}

/// Jain's fairness index: 1 if all shares are equal, 1/n if one contender has everything.
pub(crate) fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(asked: u64, acquired: u64, released: u64) -> Turn {
        Turn(asked, Some(acquired), Some(released))
    }

    #[test]
    fn a_handover_is_from_one_process_to_another_that_waits() {
        let turns = [
            vec![turn(0, 10, 100), turn(101, 110, 200), turn(800, 900, 950)],
            vec![turn(5, 230, 300), Turn(301, None, None)],
        ];
        let handover_stats = HandoverStats::new(&turns).unwrap();
        assert_eq!(handover_stats.acquisitions, 4);
        assert_eq!(handover_stats.shares, [3, 1]);
        // The only hand-over is from 200 to 230. At 110 the last holder gets the lock again. At 800 the lock is free.
        assert_eq!((handover_stats.handovers.len(), handover_stats.handovers.max()), (1, 30));
        assert_eq!((handover_stats.waits.len(), handover_stats.waits.max()), (5, 649));
        // Two releases, at 100 and 200, fall into the first wait of the second process.
        assert_eq!(handover_stats.wakeups, 2);
    }

    #[test]
    fn two_holders_at_once_are_no_result() {
        let turns = [vec![turn(0, 10, 100)], vec![turn(0, 99, 120)]];
        assert!(HandoverStats::new(&turns).is_err());
    }

    #[test]
    fn shares_that_are_equal_have_index_one() {
        assert!((jain(&[5, 5, 5, 5]) - 1.0).abs() < 1e-9);
        assert!((jain(&[8, 0, 0, 0]) - 0.25).abs() < 1e-9);
    }
}
