//! Threads that sleep until their reply comes, while another thread drives the client.
//!
//! The driver replies to many callers in one poll. If it woke each thread with a system call of its own, most of these
//! threads would preempt it. So the wake-ups of a poll are collected, and sent with one system call per 32 threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::task::Wake;

use self::bell::Bell;

/// The number of threads that can sleep at the same time.
pub(super) const PLACES: usize = 32 * WORDS;

const WORDS: usize = 32;

#[derive(Default)]
pub(super) struct Sleepers {
    words: [Word; WORDS],
    /// The driver is being polled, so wake-ups are sent when this poll ends.
    is_collecting: AtomicBool,
}

/// 32 places, each with a bit.
#[derive(Default)]
struct Word {
    bell: Bell,
    /// Places with a wake-up that their thread has not noticed yet.
    notified: AtomicU32,
    /// Places with a wake-up that was not sent yet.
    unsent: AtomicU32,
}

impl Sleepers {
    /// Runs `poll`, then sends all wake-ups that were made meanwhile.
    pub(super) fn collect<T>(&self, poll: impl FnOnce() -> T) -> T {
        struct Sends<'a>(&'a Sleepers);
        impl Drop for Sends<'_> {
            fn drop(&mut self) {
                // A wake-up either is in `unsent` now, or finds that nothing is collected and is sent at once.
                self.0.is_collecting.store(false, SeqCst);
                self.0.words.iter().for_each(Word::send);
            }
        }
        self.is_collecting.store(true, SeqCst);
        let _sends = Sends(self);
        poll()
    }
}

impl Word {
    fn send(&self) {
        let unsent = self.unsent.swap(0, SeqCst);
        if unsent != 0 {
            self.bell.ring(unsent);
        }
    }
}

/// One thread's place among the sleepers: a bit of a [`Word`]. As a waker, it wakes this thread.
pub(super) struct Place {
    sleepers: Arc<Sleepers>,
    index: usize,
}

impl Place {
    /// `index` is below [`PLACES`].
    pub(super) fn new(sleepers: Arc<Sleepers>, index: usize) -> Self {
        Self { sleepers, index }
    }

    fn word(&self) -> (&Word, u32) {
        (&self.sleepers.words[self.index / 32], 1 << (self.index % 32))
    }

    pub(super) fn is_notified(&self) -> bool {
        let (word, bit) = self.word();
        word.notified.load(SeqCst) & bit != 0
    }

    /// Forgets earlier wake-ups.
    pub(super) fn reset(&self) {
        let (word, bit) = self.word();
        word.notified.fetch_and(!bit, SeqCst);
    }

    /// Returns when the thread has been woken since the last `reset`. May also return without a wake-up.
    pub(super) fn sleep(&self) {
        let (word, bit) = self.word();
        let rung = word.bell.rung();
        if !self.is_notified() {
            word.bell.sleep(rung, bit);
        }
    }
}

impl Wake for Place {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let (word, bit) = self.word();
        word.notified.fetch_or(bit, SeqCst);
        word.unsent.fetch_or(bit, SeqCst);
        if !self.sleepers.is_collecting.load(SeqCst) {
            word.send();
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod bell {
    use std::num::NonZeroU32;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use rustix::thread::futex::{self, Flags};

    /// A futex: the number of times that the bell has rung.
    #[derive(Default)]
    pub(super) struct Bell(AtomicU32);

    impl Bell {
        pub(super) fn rung(&self) -> u32 {
            self.0.load(SeqCst)
        }

        /// Sleeps until the bell rings for one of these bits, unless it has rung more than `rung` times by now.
        pub(super) fn sleep(&self, rung: u32, bits: u32) {
            if let Some(bits) = NonZeroU32::new(bits) {
                // An error means that the bell has rung or a signal came, and the caller checks its wake-ups again.
                let _ = futex::wait_bitset(&self.0, Flags::PRIVATE, rung, None, bits);
            }
        }

        pub(super) fn ring(&self, bits: u32) {
            self.0.fetch_add(1, SeqCst);
            if let Some(bits) = NonZeroU32::new(bits) {
                // The result, the number of woken threads, is ignored, because zero is no error.
                let _ = futex::wake_bitset(&self.0, Flags::PRIVATE, u32::MAX >> 1, bits);
            }
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod bell {
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

    /// Wakes all threads of its word, because there is no portable way to wake only some of them.
    #[derive(Default)]
    pub(super) struct Bell {
        rung: Mutex<u32>,
        rings: Condvar,
    }

    impl Bell {
        fn lock(&self) -> MutexGuard<'_, u32> {
            self.rung.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(super) fn rung(&self) -> u32 {
            *self.lock()
        }

        pub(super) fn sleep(&self, rung: u32, _bits: u32) {
            let has_not_rung = |now: &mut u32| *now == rung;
            drop(self.rings.wait_while(self.lock(), has_not_rung));
        }

        pub(super) fn ring(&self, _bits: u32) {
            let mut rung = self.lock();
            *rung = rung.wrapping_add(1);
            drop(rung);
            self.rings.notify_all();
        }
    }
}
