//! Random words, the same for the same seed everywhere.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::time::Time;

/// A stream of random words. Each part of the world draws from a stream of its own, so that a fault
/// that is left out does not change all the others.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// A stream of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        Self(generator)
    }

    /// A random word.
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Random bytes.
    pub fn bytes<const LENGTH: usize>(&mut self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// Below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The upper half of a product: evenly spread, but for less than one in 2^32 here.
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// An index into something that long.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// From `from` to `to`, both included.
    pub fn between(&mut self, from: Time, to: Time) -> Time {
        from + self.below((to - from).max(0) as u64 + 1) as i64
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True in half of the cases.
    pub fn coin(&mut self) -> bool {
        self.word() & 1 == 0
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// Spans around `mean`, mostly shorter, now and then several times as long: how long it is until
    /// something happens that may happen at any time.
    pub fn span(&mut self, mean: Time) -> Time {
        let even = ((self.word() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        ((-even.ln() * mean as f64) as Time).min(20 * mean).max(1)
    }
}
