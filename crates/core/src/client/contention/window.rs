//! The random pause of a waiter before it attempts to take a lock that has become free.

use core::time::Duration;

use crate::redlock::retry::POLL_CEILING;

/// The window of a process that has lost a freed lock to another process once.
pub(super) const WINDOW_MIN: u32 = 8;

/// The largest window.
const WINDOW_MAX: u32 = 128;

/// A caller that has lost the freed lock to other clients this many times attempts at once, without a pause.
const PATIENCE: u32 = 16;

/// The estimated number of waiting processes. A pause has fewer steps than this number.
///
/// The window grows by half when another process took the freed lock first. When the lock was still free after the
/// pause, the window shrinks by an amount that grows with its square, so the windows of all processes converge. If the
/// amount were proportional, a process that once saw no rivals would keep taking the lock from the other processes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct ContentionWindow(pub(super) u32);

impl ContentionWindow {
    /// Takes into account that another process took the freed lock first.
    pub(super) fn widen(&mut self) {
        self.0 = (self.0 + self.0 / 2).clamp(WINDOW_MIN, WINDOW_MAX);
    }

    /// Takes into account that the lock was still free after the pause.
    pub(super) fn narrow(&mut self) {
        self.0 = self.0.saturating_sub((self.0 * self.0 / 256).max(1));
    }

    pub(crate) const fn is_crowded(self) -> bool {
        self.0 > 1
    }

    /// Chooses the number of steps of this length for which the caller pauses before it checks the lock again. Zero
    /// means an attempt at once. The more often the caller missed the free lock, the smaller the number is. If at least
    /// [`WINDOW_MIN`] steps fit into [`POLL_CEILING`], the longest pause ends within this time, so a lock does not stay
    /// free for longer if the other waiters gave up.
    pub(crate) fn steps(self, length: Duration, word: u64, missed: u32) -> u32 {
        let fit = POLL_CEILING.as_nanos() / length.as_nanos().max(1);
        let most = u32::try_from(fit).unwrap_or(u32::MAX).max(WINDOW_MIN);
        let window = self.0.min(most) * PATIENCE.saturating_sub(missed) / PATIENCE;
        u32::try_from((u128::from(word) * u128::from(window)) >> 64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(100);

    #[test]
    fn a_crowd_spreads_and_gathers_again() {
        let mut window = ContentionWindow::default();
        assert_eq!(window.steps(STEP, u64::MAX, 0), 0, "alone: at once");
        window.widen();
        assert_eq!((window.steps(STEP, 0, 0), window.steps(STEP, u64::MAX, 0)), (0, 7));
        window.widen();
        assert_eq!(window.steps(STEP, u64::MAX, 0), 11);
        (0..9).for_each(|_| window.widen());
        assert_eq!(window.steps(STEP, u64::MAX, 0), 127, "bounded");
        let steps = (0..200).take_while(|_| {
            window.narrow();
            window.is_crowded()
        });
        assert!((20..60).contains(&steps.count()), "a small window shrinks slowly");
        assert_eq!(window.steps(STEP, u64::MAX, 0), 0);
    }

    /// A large and a small window become similar if they grow and shrink equally often.
    #[test]
    fn windows_converge() {
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
    fn a_caller_that_missed_the_lock_often_comes_first() {
        let pauses = [0, 4, 8, 12, 16, 1000]
            .map(|missed| ContentionWindow(32).steps(STEP, u64::MAX, missed));
        assert_eq!(pauses, [31, 23, 15, 7, 0, 0]);
    }

    #[test]
    fn a_free_lock_is_attempted_soon() {
        let last = |ms| ContentionWindow(WINDOW_MAX).steps(Duration::from_millis(ms), u64::MAX, 0);
        assert_eq!([1, 2, 10, 100].map(last), [127, 124, 24, 7]);
    }
}
