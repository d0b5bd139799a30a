//! Detects forks. A forked child has a copy of a client's memory, but none of its threads, and its connections are the
//! parent's: nothing of a client may work there (S24).

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Whether `process` is this process. Costs a system call.
pub(crate) fn is_current(process: u32) -> bool {
    std::process::id() == process
}

/// Locks a mutex of a client that belongs to `process`. Returns `None` in a forked child if another thread of the
/// parent had locked the mutex at the fork: there it stays locked. Costs a system call only if the mutex is locked.
///
/// A panic does not poison the mutex: the data are consistent whenever other code runs.
pub(crate) fn lock<T>(mutex: &Mutex<T>, process: u32) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(data) => Some(data),
        Err(TryLockError::Poisoned(data)) => Some(data.into_inner()),
        Err(TryLockError::WouldBlock) if is_current(process) => {
            Some(mutex.lock().unwrap_or_else(PoisonError::into_inner))
        }
        Err(TryLockError::WouldBlock) => None,
    }
}
