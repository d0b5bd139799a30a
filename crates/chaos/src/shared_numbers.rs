//! The numbers that holders of locks read and increment, one for each resource. Locks of some resources have fencing
//! tokens, which the number's store checks. The numbers are kept in this process and not in a file. Otherwise the write
//! of a holder that was stopped after its check of the lock could be carried out later. No lock with a timeout can
//! prevent such a write.

use quorlock_sim::time::Time;

use crate::protocol::{RESOURCES, is_fenced};

/// Oracle 2: no update is lost. Without a fencing token, the validity of the lock alone permits a write. With a token,
/// the number refuses a token below the largest token so far, and a new holder presents its token before it reads. The
/// number then does not know locks or validity, so the result is exact under all faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Number {
    newest_fence: u64,
    pub(crate) value: u64,
    pub(crate) writes: u64,
    /// The number of writes after the end of the lock, or of accesses with too small a token.
    pub(crate) refused: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Yes,
    TooLate,
    /// The number had changed since the holder read it, so the write undid another holder's write.
    OverAnothers {
        was: u64,
    },
}

impl Number {
    fn read(&mut self, fence: Option<u64>) -> Option<u64> {
        // A reader that attached the lease of a downgraded writer has no fencing token.
        let is_refused = fence.is_some_and(|fence| self.is_old(fence));
        self.refused += u64::from(is_refused);
        (!is_refused).then_some(self.value)
    }

    fn write(&mut self, read: u64, (fence, until): (Option<u64>, Time), now: Time) -> Written {
        if fence.map_or(now >= until, |fence| self.is_old(fence)) {
            self.refused += 1;
            return Written::TooLate;
        }
        let was = self.value;
        self.value = read + 1;
        self.writes += 1;
        if was == read { Written::Yes } else { Written::OverAnothers { was } }
    }

    fn is_old(&mut self, fence: u64) -> bool {
        let newest = self.newest_fence;
        self.newest_fence = newest.max(fence);
        fence < newest
    }

    pub(crate) fn lost(&self) -> u64 {
        self.writes.abs_diff(self.value)
    }
}

#[derive(Debug, Default)]
pub(crate) struct SharedNumbers {
    numbers: [Number; RESOURCES.len()],
    pub(crate) comparisons: Comparisons,
}

/// Oracle 6: a number does not change while readers hold its lock. Readers compare it with the number that they read,
/// or that they wrote before they became readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparisons {
    pub(crate) made: u64,
    pub(crate) changed: u64,
    /// The number of comparisons that arrived after the lock had ended. They do not count.
    pub(crate) too_late: u64,
}

impl SharedNumbers {
    /// The numbers that a new holder reads; `None` if one refuses its fencing token.
    pub(crate) fn read(&mut self, resources: &[usize], fence: Option<u64>) -> Option<Vec<u64>> {
        resources.iter().map(|resource| self.numbers[*resource].read(fence)).collect()
    }

    /// Writes the number that the holder has read, plus one, if its fencing token or its lock's validity allows it.
    pub(crate) fn write(
        &mut self,
        resource: usize,
        read: u64,
        by: (Option<u64>, Time),
        now: Time,
    ) -> Written {
        self.numbers[resource].write(read, by, now)
    }

    /// Checks that the number is unchanged for a reader that still holds its lock. The error is the new number.
    pub(crate) fn is_still(
        &mut self,
        resource: usize,
        known: u64,
        until: Time,
        now: Time,
    ) -> Result<(), u64> {
        let is = self.numbers[resource].value;
        if now >= until {
            self.comparisons.too_late += 1;
            return Ok(());
        }
        self.comparisons.made += 1;
        self.comparisons.changed += u64::from(known != is);
        (known == is).then_some(()).ok_or(is)
    }

    /// The sums over all numbers whose locks have fencing tokens, or have none.
    pub(crate) fn sum(&self, fenced: bool) -> Number {
        let mut sum = Number::default();
        let all = self.numbers.iter().enumerate();
        for (_, one) in all.filter(|(resource, _)| is_fenced(*resource) == fenced) {
            sum.value += one.value;
            sum.writes += one.writes;
            sum.refused += one.refused;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_refuses_smaller_tokens_and_sees_lost_updates() {
        let mut number = Number::default();
        let write = |number: &mut Number, fence, read| number.write(read, (Some(fence), 0), 0);
        assert_eq!((number.read(Some(5)), write(&mut number, 5, 0)), (Some(0), Written::Yes));
        assert_eq!((number.read(Some(6)), write(&mut number, 5, 1)), (Some(1), Written::TooLate));
        assert_eq!((number.read(Some(4)), write(&mut number, 6, 1)), (None, Written::Yes));
        // After two writes with one token, the number must detect the lost update.
        assert_eq!(write(&mut number, 6, 1), Written::OverAnothers { was: 2 });
        assert_eq!((number.refused, number.lost()), (2, 1));
    }

    #[test]
    fn a_lost_update_is_seen_at_once_and_in_the_end() {
        let mut number = Number::default();
        assert_eq!(number.write(0, (None, 10), 5), Written::Yes);
        assert_eq!(number.lost(), 0);
        assert_eq!(number.write(0, (None, 10), 6), Written::OverAnothers { was: 1 });
        assert_eq!((number.value, number.writes, number.lost()), (1, 2, 1));
    }

    #[test]
    fn a_write_after_the_end_of_the_lock_is_not_made() {
        let mut number = Number::default();
        assert_eq!(number.write(0, (None, 10), 10), Written::TooLate);
        assert_eq!(number, Number { refused: 1, ..Number::default() });
    }

    #[test]
    fn a_number_must_not_change_while_its_reader_holds_the_lock() {
        let mut numbers = SharedNumbers::default();
        assert_eq!(numbers.write(0, 3, (None, 10), 5), Written::OverAnothers { was: 0 });
        assert_eq!(
            (numbers.is_still(0, 4, 10, 9), numbers.is_still(0, 3, 10, 10)),
            (Ok(()), Ok(()))
        );
        assert_eq!(numbers.is_still(0, 3, 10, 9), Err(4));
        assert_eq!(numbers.comparisons, Comparisons { made: 2, changed: 1, too_late: 1 });
    }
}
