//! A reply that one side waits for and the other gives, once. It lies in what both sides share already: unlike a
//! channel it needs no allocation of its own.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop::poll_proceed;

/// Where a reply lies between its two sides.
pub(crate) struct Reply<T>(Mutex<State<T>>);

enum State<T> {
    /// Nothing has been said yet. Whom to wake then.
    Open(Option<Waker>),
    /// It has been told, or one of the two sides has gone. With what was told and not heard.
    Closed(Option<T>),
}

/// What has a place for a reply.
pub(crate) trait Carries<T>: Send + Sync {
    fn reply(&self) -> &Reply<T>;

    /// The process in which both sides are.
    fn process(&self) -> u32;
}

/// Tells. If it is dropped without a word, the other side hears of that.
pub(crate) struct Sender<T>(Option<Arc<dyn Carries<T>>>);

/// Waits to be told. If it is dropped, what was told and not heard is dropped, and what is told later comes back.
pub(crate) struct Receiver<T>(Option<Arc<dyn Carries<T>>>);

/// The two sides of a reply, which are made once.
pub(crate) fn sides<T>(carrier: &Arc<impl Carries<T> + 'static>) -> (Sender<T>, Receiver<T>) {
    (Sender(Some(carrier.clone())), Receiver(Some(carrier.clone())))
}

/// Nobody is woken, and nothing of another's is dropped, while the state is locked: both may lead back to it.
impl<T> Reply<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(State::Open(None)))
    }

    /// `None` in a fork of the process, if the other side had the lock at that moment: it is never given back there.
    fn state(&self, process: u32) -> Option<MutexGuard<'_, State<T>>> {
        // What stands there is right at every moment, also behind a panic.
        match self.0.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) if std::process::id() != process => None,
            Err(TryLockError::WouldBlock) => {
                Some(self.0.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// Nothing more will be said. Returns what was to be told if nobody waits any more.
    fn say(&self, told: Option<T>, process: u32) -> Option<T> {
        let Some(mut state) = self.state(process) else { return told };
        let State::Open(waker) = &mut *state else { return told };
        let waker = waker.take();
        *state = State::Closed(told);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }

    /// `None`: nothing has been told, and nothing will be; or it has been heard.
    fn poll(&self, cx: &Context<'_>, process: u32) -> Poll<Option<T>> {
        let Some(mut state) = self.state(process) else { return Poll::Ready(None) };
        let waker = match &mut *state {
            State::Closed(told) => return Poll::Ready(told.take()),
            State::Open(waker) => waker,
        };
        if waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            let replaced = waker.replace(cx.waker().clone());
            drop(state);
            drop(replaced);
        }
        Poll::Pending
    }

    fn stop_waiting(&self, process: u32) {
        let Some(mut state) = self.state(process) else { return };
        let unheard = std::mem::replace(&mut *state, State::Closed(None));
        drop(state);
        drop(unheard);
    }
}

impl<T> Sender<T> {
    /// Returns what was to be told if nobody waits any more.
    pub(crate) fn send(mut self, told: T) -> Option<T> {
        let carrier = self.0.take()?;
        carrier.reply().say(Some(told), carrier.process())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if let Some(carrier) = &self.0 {
            carrier.reply().say(None, carrier.process());
        }
    }
}

impl<T> Future for Receiver<T> {
    /// `None`: the sender was dropped without a word.
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        // As at tokio's own channels: a task that is told something at each turn lets others have theirs.
        let budget = ready!(poll_proceed(cx));
        let Some(carrier) = &self.0 else { return Poll::Ready(None) };
        let heard = ready!(carrier.reply().poll(cx, carrier.process()));
        budget.made_progress();
        self.0 = None;
        Poll::Ready(heard)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if let Some(carrier) = &self.0 {
            carrier.reply().stop_waiting(carrier.process());
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
