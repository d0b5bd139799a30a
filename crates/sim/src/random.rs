//! Random numbers that depend only on the seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::time::Time;

/// A stream of random numbers. Each part of the world has its own stream, so that a run without one kind of fault draws
/// the same numbers for the other kinds.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// Creates the stream with this number for a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        Self(generator)
    }

    /// Returns a random 64-bit number.
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns random bytes.
    pub fn bytes<const LENGTH: usize>(&mut self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// Returns a number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The upper half of the product is almost evenly distributed: the error is below one in 2^32.
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns an index into a list of this length.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns a time from `from` to `to`, both included.
    pub fn between(&mut self, from: Time, to: Time) -> Time {
        from + self.below((to - from).max(0) as u64 + 1) as i64
    }

    /// Returns true with a probability of `percent` in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns true with a probability of one half.
    pub fn coin(&mut self) -> bool {
        self.word() & 1 == 0
    }

    /// Returns one of the values at random.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// Returns an exponentially distributed span with this mean, of at most twenty times the mean.
    pub fn span(&mut self, mean: Time) -> Time {
        let even = ((self.word() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        ((-even.ln() * mean as f64) as Time).min(20 * mean).max(1)
    }
}
