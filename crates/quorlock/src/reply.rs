//! A reply that one side awaits and the other sends, once. It is stored in memory that both sides share already, so unlike
//! a channel it needs no allocation of its own.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop::poll_proceed;

use crate::process;

/// The place of a reply of type `T`.
pub(crate) struct Reply<T> {
    state: Mutex<State<T>>,
    /// The process of both sides.
    process: u32,
}

enum State<T> {
    /// The receiver waits for the reply, with this waker.
    Open(Option<Waker>),
    /// The reply was sent, or one side is gone. Has the reply until the receiver takes it.
    Closed(Option<T>),
}

/// Where a reply is in a `C` that both sides share.
type Place<C, T> = fn(&C) -> &Reply<T>;

/// Sends the reply. The receiver gets `None` if the sender is dropped before.
pub(crate) struct Sender<C, T>(Option<Arc<C>>, Place<C, T>);

/// Waits for the reply. If the receiver is dropped, it drops a reply that it has not taken; a later reply goes back to the
/// sender.
pub(crate) struct Receiver<C, T>(Option<Arc<C>>, Place<C, T>);

/// Makes the two sides of the reply at `place`; once for each reply.
pub(crate) fn sides<C, T>(carrier: &Arc<C>, place: Place<C, T>) -> (Sender<C, T>, Receiver<C, T>) {
    (Sender(Some(carrier.clone()), place), Receiver(Some(carrier.clone()), place))
}

/// No waker is called and no reply is dropped while the state is locked: both may lead back to this reply.
impl<T> Reply<T> {
    pub(crate) const fn new(process: u32) -> Self {
        Self { state: Mutex::new(State::Open(None)), process }
    }

    /// `None` in a forked child if the other side had locked the state at the fork.
    fn state(&self) -> Option<MutexGuard<'_, State<T>>> {
        process::lock(&self.state, self.process)
    }

    /// Sends the reply, or closes the place without one. Returns the reply if the receiver is gone.
    fn send(&self, reply: Option<T>) -> Option<T> {
        let Some(mut state) = self.state() else { return reply };
        let State::Open(waker) = &mut *state else { return reply };
        let waker = waker.take();
        *state = State::Closed(reply);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }

    /// Ready with `None` if there is no reply and none will come, or if the reply was taken before.
    fn poll(&self, cx: &Context<'_>) -> Poll<Option<T>> {
        let Some(mut state) = self.state() else { return Poll::Ready(None) };
        let waker = match &mut *state {
            State::Closed(reply) => return Poll::Ready(reply.take()),
            State::Open(waker) => waker,
        };
        if waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            let replaced = waker.replace(cx.waker().clone());
            drop(state);
            drop(replaced);
        }
        Poll::Pending
    }

    fn stop_waiting(&self) {
        let Some(mut state) = self.state() else { return };
        let untaken = std::mem::replace(&mut *state, State::Closed(None));
        drop(state);
        drop(untaken);
    }
}

impl<C, T> Sender<C, T> {
    /// Returns the reply if the receiver is gone.
    pub(crate) fn send(mut self, reply: T) -> Option<T> {
        self.1(&*self.0.take()?).send(Some(reply))
    }
}

impl<C, T> Drop for Sender<C, T> {
    fn drop(&mut self) {
        if let Some(carrier) = &self.0 {
            self.1(carrier).send(None);
        }
    }
}

impl<C, T> Future for Receiver<C, T> {
    /// `None`: the sender was dropped without a reply.
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        // As tokio's own channels do: a task that always finds a reply lets other tasks run.
        let budget = ready!(poll_proceed(cx));
        let Some(carrier) = &self.0 else { return Poll::Ready(None) };
        let reply = ready!(self.1(carrier).poll(cx));
        budget.made_progress();
        self.0 = None;
        Poll::Ready(reply)
    }
}

impl<C, T> Drop for Receiver<C, T> {
    fn drop(&mut self) {
        if let Some(carrier) = &self.0 {
            self.1(carrier).stop_waiting();
        }
    }
}

impl<C, T> fmt::Debug for Sender<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
