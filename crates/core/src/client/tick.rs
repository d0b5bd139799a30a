//! A tick of the driver: all that has come in goes through the engine under one reading of the clock.

use alloc::vec::Vec;
use core::{iter, mem};

use crate::client::engine::Event;
use crate::time::Reading;

/// What has come in since the last tick.
#[derive(Debug)]
pub struct Arrivals<A> {
    /// What the nodes have answered or said unasked, in that order.
    pub answered: Vec<Event>,
    /// What callers and guards ask.
    pub asked: Vec<A>,
    /// The reading of the last tick.
    last: Reading,
}

/// What one tick hands to the engine.
#[derive(Debug)]
pub struct Tick<A> {
    now: Reading,
    answered: Vec<Event>,
    asked: Vec<A>,
}

/// Something for the engine.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, and a box would be an allocation for each event"
)]
pub enum Step<A> {
    /// An event as it is.
    Event(Event),
    /// What was asked.
    Asked(A),
}

impl<A> Arrivals<A> {
    /// Nothing has come in.
    pub const fn new() -> Self {
        Self { answered: Vec::new(), asked: Vec::new(), last: Reading::new(0, 0) }
    }

    /// Takes all of it, and reads the clock then: so the reading is later than all that came in (S5).
    pub fn tick(&mut self, clock: impl FnOnce() -> Reading) -> Tick<A> {
        let (answered, asked) = (mem::take(&mut self.answered), mem::take(&mut self.asked));
        let before = mem::replace(&mut self.last, clock());
        let now = if mutant!(CachedNow) { before } else { self.last };
        Tick { now, answered, asked }
    }

    /// Keeps the memory of a tick that is over for the next ones.
    pub fn reuse(&mut self, tick: Tick<A>) {
        let Tick { mut answered, mut asked, .. } = tick;
        answered.clear();
        asked.clear();
        answered.append(&mut self.answered);
        asked.append(&mut self.asked);
        (self.answered, self.asked) = (answered, asked);
    }
}

impl<A> Default for Arrivals<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A> Tick<A> {
    /// The reading that all of it is handled under.
    pub const fn now(&self) -> Reading {
        self.now
    }

    /// What was asked.
    pub fn asked(&self) -> usize {
        self.asked.len()
    }

    /// Gives everything away, in the order in which the engine is to be told. Answers come first,
    /// because what is asked may depend on them. The time comes last, so that nothing times out
    /// whose answer is here.
    pub fn steps(&mut self) -> impl Iterator<Item = Step<A>> {
        let answered = self.answered.drain(..).map(Step::Event);
        let asked = self.asked.drain(..).map(Step::Asked);
        answered.chain(asked).chain(iter::once(Step::Event(Event::Wake)))
    }
}

#[cfg(test)]
mod tests {
    use std::string::{String, ToString as _};

    use super::*;
    use crate::redlock::quorum::NodeId;

    fn told(tick: &mut Tick<char>) -> String {
        let name = |step| match step {
            Step::Event(Event::Wake) => 'W',
            Step::Event(_) => 'E',
            Step::Asked(name) => name,
        };
        tick.steps().map(name).collect()
    }

    #[test]
    fn answers_go_first_then_what_is_asked_then_the_time() {
        let mut arrivals = Arrivals::new();
        arrivals.asked.extend(['a', 'b']);
        arrivals.answered.push(Event::Connected { node: NodeId::new(0) });
        let mut tick = arrivals.tick(|| Reading::new(7, 7));
        assert_eq!((tick.now(), tick.asked()), (Reading::new(7, 7), 2));
        // This comes in while the tick is carried out.
        arrivals.asked.push('c');
        assert_eq!(told(&mut tick), "EabW".to_string());
        arrivals.reuse(tick);
        assert_eq!(told(&mut arrivals.tick(|| Reading::new(8, 8))), "cW");
    }
}
