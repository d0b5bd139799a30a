//! A part of a state with its hash. All states in which this part is the same share one copy.
//!
//! Most steps change one engine and one link. The other parts are neither copied nor hashed again.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use ahash::RandomState;

const SEEDED: RandomState = RandomState::with_seeds(1, 2, 3, 4);

#[derive(Clone, Debug)]
pub(crate) struct Shared<T> {
    value: Arc<T>,
    /// Zero while the value is being changed.
    hash: u64,
}

impl<T: Clone + Hash> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        let hash = hash_of(&value);
        Self { value: Arc::new(value), hash }
    }

    /// The caller must call [`Shared::seal`] after the change.
    pub(crate) fn change(&mut self) -> &mut T {
        self.hash = 0;
        Arc::make_mut(&mut self.value)
    }

    pub(crate) fn seal(&mut self) {
        if self.hash == 0 {
            self.hash = hash_of(&*self.value);
        }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && *self.value == *other.value
    }
}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

fn hash_of<T: Hash>(value: &T) -> u64 {
    SEEDED.hash_one(value).max(1)
}
