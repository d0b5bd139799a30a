//! Checks that an engine behaves the same when all of its times are shifted. Models depend on this.

use quorlock_core::{Effect, Engine, Event, LockId, Reading, Ticket, Token};

pub(crate) struct Shadow(Engine, Event);

impl Shadow {
    pub(super) fn new(before: &Engine, event: &Event) -> Self {
        Self(before.clone(), event.clone())
    }

    /// Handles the event in a copy of the engine with shifted times, and checks that the copy does the same.
    pub(crate) fn check(
        self,
        now: Reading,
        drawn: Vec<(Token, u64)>,
        after: &Engine,
        effects: &[Effect],
    ) {
        let Self(before, mut event) = self;
        let (mut shadow, map) = before.rebased(now, 10);
        let next = LockId(10 + map.len() as u64);
        // A lock that `map` lacks is new, or the engine has dropped its record. Any unused id fits for such a lock.
        let to = |lock: LockId| map.get(&lock).copied().unwrap_or(next);
        match &mut event {
            Event::Acquire { lock, .. }
            | Event::Cancel { lock }
            | Event::Extend { lock }
            | Event::Downgrade { lock }
            | Event::RunOut { lock }
            | Event::Detach { lock }
            | Event::Forget { lock }
            | Event::ExtendEntry { lock, .. }
            | Event::ReleaseEntry { lock, .. }
            | Event::Release { lock, .. }
            | Event::Inspect { lock, .. } => *lock = to(*lock),
            Event::Answered { sent, answers, .. } => {
                let boot = sent.boot().as_nanos() - now.boot().as_nanos();
                *sent = Reading::new(boot, sent.real_ns() - now.real_ns());
                for (Ticket { lock, .. }, _) in answers {
                    *lock = to(*lock);
                }
            }
            Event::Greeted { sent, .. } => {
                let boot = sent.boot().as_nanos() - now.boot().as_nanos();
                *sent = Reading::new(boot, sent.real_ns() - now.real_ns());
            }
            Event::Connecting { .. }
            | Event::Connected { .. }
            | Event::Pushed { .. }
            | Event::Close
            | Event::Wake => {}
        }
        let origin = Reading::new(0, 0);
        let mut shadowed = Vec::new();
        let mut again = drawn.into_iter();
        let mut entropy = |_| again.next().expect("it draws as often");
        shadow.handle(event, origin, &mut entropy, &mut shadowed);
        assert_eq!(shadow.rebased(origin, 0).0, after.rebased(now, 0).0);
        assert_eq!(shadowed.len(), effects.len());
    }
}
