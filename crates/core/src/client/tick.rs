//! A tick of the driver: hands all events that have arrived to the engine under one reading of the clock.

use alloc::vec::Vec;
use core::mem;

use crate::client::engine::Event;
use crate::time::Reading;

/// The events that have arrived since the last tick. `R` is the receiver of the reply to a request.
#[derive(Debug)]
pub struct Arrivals<R> {
    /// The answers of the nodes, followed by their pushes.
    pub answered: Vec<Event>,
    /// Requests of callers and guards, each with the receiver of its reply.
    pub requests: Vec<(Event, R)>,
    last: Reading,
}

/// The events of one tick.
#[derive(Debug)]
pub struct Tick<R> {
    now: Reading,
    answered: Vec<Event>,
    requests: Vec<(Event, R)>,
}

impl<R> Arrivals<R> {
    /// Creates an empty collection.
    pub const fn new() -> Self {
        Self { answered: Vec::new(), requests: Vec::new(), last: Reading::new(0, 0) }
    }

    /// Takes all events, and reads the clock after that, so the reading is later than all events (S5).
    pub fn tick(&mut self, clock: impl FnOnce() -> Reading) -> Tick<R> {
        let (answered, requests) = (mem::take(&mut self.answered), mem::take(&mut self.requests));
        let before = mem::replace(&mut self.last, clock());
        let now = if mutant!(CachedNow) { before } else { self.last };
        Tick { now, answered, requests }
    }

    /// Reuses the memory of a finished tick.
    pub fn reuse(&mut self, tick: Tick<R>) {
        let Tick { mut answered, mut requests, .. } = tick;
        answered.clear();
        requests.clear();
        answered.append(&mut self.answered);
        requests.append(&mut self.requests);
        (self.answered, self.requests) = (answered, requests);
    }
}

impl<R> Default for Arrivals<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R> Tick<R> {
    /// The clock reading for all events of the tick.
    pub const fn now(&self) -> Reading {
        self.now
    }

    /// The number of requests.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Passes all events to `act` in the order that the engine needs, each request with the receiver of its reply.
    /// Answers come first, because requests may depend on them. [`Event::Wake`] comes last, so no command times out if
    /// its answer has arrived.
    pub fn for_each(&mut self, mut act: impl FnMut(Event, Option<R>)) {
        // Events are large. Plain loops move them less often than a chain of iterators.
        for event in self.answered.drain(..) {
            act(event, None);
        }
        for (event, reply_to) in self.requests.drain(..) {
            act(event, Some(reply_to));
        }
        act(Event::Wake, None);
    }
}

#[cfg(test)]
mod tests {
    use std::string::{String, ToString as _};

    use super::*;
    use crate::redlock::quorum::NodeId;

    fn order(tick: &mut Tick<char>) -> String {
        let mut names = String::new();
        tick.for_each(|event, reply_to| {
            names.push(match (event, reply_to) {
                (Event::Wake, None) => 'W',
                (_, None) => 'E',
                (_, Some(name)) => name,
            });
        });
        names
    }

    #[test]
    fn answers_go_first_then_requests_then_the_time() {
        let mut arrivals = Arrivals::new();
        arrivals.requests.extend([(Event::Close, 'a'), (Event::Close, 'b')]);
        arrivals.answered.push(Event::Connected { node: NodeId::new(0) });
        let mut tick = arrivals.tick(|| Reading::new(7, 7));
        assert_eq!((tick.now(), tick.requests()), (Reading::new(7, 7), 2));
        // This request arrives after the tick has begun, so it belongs to the next tick.
        arrivals.requests.push((Event::Close, 'c'));
        assert_eq!(order(&mut tick), "EabW".to_string());
        arrivals.reuse(tick);
        assert_eq!(order(&mut arrivals.tick(|| Reading::new(8, 8))), "cW");
    }
}
