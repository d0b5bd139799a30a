//! Callers: the simulated users of the library.

use std::time::Duration;

use quorlock_core::Wait;
use quorlock_core::{Counter, Delay, Event, Keys, LockId, Mode, Origin, Request, Retry};

use super::{Mend, SimEvent, World};
use crate::client::CallerState;
use crate::count::Count;
use crate::driver::Driver;
use crate::fact::{ClientId, Fact};
use crate::guard::GuardId;
use crate::time::{MS, Time, US};

impl World {
    pub(crate) fn plan_next_wish(&mut self, client: ClientId, caller: usize) {
        let mean = if self.comes_and_goes(client) { MS } else { self.plan.load.max_ttl / 6 };
        let span = self.random.callers.span(mean);
        self.plan_caller(client, caller, span);
    }

    fn plan_caller(&mut self, client: ClientId, caller: usize, span: Time) {
        let it = &mut self.clients[client].callers[caller];
        it.generation += 1;
        let generation = it.generation;
        self.plan_in(span, SimEvent::Caller { client, caller, generation });
    }

    pub(crate) fn act(&mut self, client: ClientId, caller: usize) {
        match self.clients[client].callers[caller].state {
            CallerState::Idle if self.comes_and_goes(client) => self.want_to_read(client, caller),
            CallerState::Idle if self.progress.healing => {
                self.set(client, caller, CallerState::Over)
            }
            CallerState::Idle => self.want(client, caller),
            CallerState::Waiting { lock } => self.cancel(client, caller, lock),
            CallerState::Holding { lock, until, careless } => {
                self.hold(client, caller, lock, until, careless);
            }
            CallerState::Over => {}
        }
    }

    fn set(&mut self, client: ClientId, caller: usize, state: CallerState) {
        self.clients[client].callers[caller].state = state;
    }

    fn want(&mut self, client: ClientId, caller: usize) {
        let request = self.draw_request(client);
        self.ask_for(client, caller, request);
        if self.random.callers.percent(15) {
            let span = self.random.callers.span(self.plan.load.max_ttl / 4);
            self.plan_caller(client, caller, span);
        }
    }

    pub(super) fn draw_request(&mut self, client: ClientId) -> Request {
        let random = &mut self.random.callers;
        let ttl = self.plan.load.max_ttl;
        let key = random.index(self.setting.keys.len());
        let timing = self.plan.load.timings[random.index(self.plan.load.timings.len())];
        let wait = match random.below(4) {
            0 => Wait::Once,
            1 => Wait::For(Duration::from_nanos(random.span(ttl).unsigned_abs())),
            _ => Wait::Forever,
        };
        let (min, max) = (Duration::from_millis(1), Duration::from_nanos(ttl.unsigned_abs() / 5));
        let delay = if random.percent(20) {
            Delay::Between { min, max: max.max(min) }
        } else {
            Retry::default().delay
        };
        let attempts_max = random.percent(10).then(|| 1 + random.below(4) as u32);
        let automatic = random.coin();
        let fenced = self.plan.load.fenced > 0 && random.percent(self.plan.load.fenced);
        let owner = if random.coin() { "".into() } else { "sim".into() };
        let max_hold = Duration::from_nanos((ttl * random.between(2, 8)).unsigned_abs());
        let (keys, mode) = self.draw_kind(key);
        let fenced = self.counter_for(&keys, fenced && mode == Mode::Exclusive);
        let request = Request {
            keys,
            mode,
            prefix_bytes: 0,
            origin: Origin::Absent,
            owner,
            timing,
            wait,
            retry: Retry { delay, attempts_max },
            automatic,
            keeps_on_loss: false,
            yields_to_pollers: true,
            max_hold,
            progress: true,
            fenced,
        };
        self.may_take(client, request)
    }

    pub(crate) fn counter_for(&self, keys: &Keys, fenced: bool) -> Option<Counter> {
        const WEEK_MS: u64 = 7 * 86_400_000;
        fenced.then(|| Counter {
            keys: keys.map(|key| format!("quorlock:fence:{key}").into()),
            ttl_ms: WEEK_MS,
            marker: self.setting.rules.marker.clone(),
        })
    }

    pub(crate) fn ask_for(&mut self, client: ClientId, caller: usize, request: Request) {
        let lock = self.new_lock(client);
        self.note(&Fact::Wanted { client, lock, request: &request });
        let it = &mut self.clients[client];
        it.callers[caller].state = CallerState::Waiting { lock };
        it.callers[caller].generation += 1;
        self.ask(client, Event::Acquire { lock, request });
    }

    fn cancel(&mut self, client: ClientId, caller: usize, lock: LockId) {
        self.record.counts.add(Count::Cancelled);
        self.note(&Fact::Cancelled { client, lock });
        self.ask(client, Event::Cancel { lock });
        self.next(client, caller);
    }

    fn next(&mut self, client: ClientId, caller: usize) {
        if caller >= self.plan.load.callers && !self.comes_and_goes(client) {
            return self.set(client, caller, CallerState::Over);
        }
        self.set(client, caller, CallerState::Idle);
        self.plan_next_wish(client, caller);
    }

    /// Handles a grant: plans what the caller does with the lock. If no caller waits for it any more, drops the guard.
    pub(crate) fn granted(&mut self, guard: GuardId) {
        let GuardId { client, lock } = guard;
        let Some(caller) = self.clients[client].caller_of(lock) else {
            self.record.counts.add(Count::CancelledInVain);
            return self.release_guard(guard, false);
        };
        let random = &mut self.random.callers;
        let ttl = self.plan.load.max_ttl;
        let span = match random.below(4) {
            0 => random.span(MS),
            1 => random.span(ttl / 8),
            2 => random.span(ttl),
            _ => random.between(ttl, 4 * ttl),
        };
        let span = if self.progress.healing { random.span(MS) } else { span };
        let careless = random.percent(15) && !self.progress.healing;
        let span = if self.comes_and_goes(client) { self.reads_for() } else { span };
        let (span, careless) = match self.step_to_the_margin(guard) {
            // This caller does not check its guard, so it does not notice the end of the lock before it releases.
            Some(short) => (short, true),
            None => (span, careless),
        };
        let until = self.now + span;
        self.set(client, caller, CallerState::Holding { lock, until, careless });
        self.plan_step(client, caller, until);
    }

    /// If a lock was granted late, plans a jump of the wall clock to about the end of the lock, shortly before the
    /// holder releases it. The engine must not hand the lock over if no more than the margin is left of it.
    fn step_to_the_margin(&mut self, guard: GuardId) -> Option<Time> {
        let (ttl, is_sober) =
            (self.plan.load.max_ttl, self.plan.clocks.sober && self.plan.load.fenced > 0);
        if !self.plan.later.small_steps || is_sober || self.progress.healing {
            return None;
        }
        let reading = self.clients[guard.client].machine.read(self.now);
        let held = self.watch.guards.of(guard)?;
        let left = held.hold.validity().remaining(reading).as_nanos() as Time;
        if left > ttl / 12 || left == 0 {
            return None;
        }
        let random = &mut self.random.later;
        let (span, by) = (random.between(US, ttl / 100), left + random.between(0, ttl / 50));
        self.record.counts.add(Count::StepsToTheMargin);
        self.plan_in(span / 2, SimEvent::Mend(Mend::SetWall(guard.client, by)));
        Some(span)
    }

    fn plan_step(&mut self, client: ClientId, caller: usize, until: Time) {
        let left = (until - self.now).max(1);
        let step = self.random.callers.span(self.plan.load.max_ttl / 4);
        self.plan_caller(client, caller, step.min(left));
    }

    fn hold(&mut self, client: ClientId, caller: usize, lock: LockId, until: Time, careless: bool) {
        let guard = GuardId { client, lock };
        let reading = self.clients[client].machine.read(self.now);
        let is_over = self.now >= until;
        // The holder writes whether or not it still has the lock. The resource must refuse late writes.
        if self.watch.guards.of(guard).is_some_and(|held| held.fence.is_some()) {
            self.note(&Fact::Written { guard });
        }
        let Some(held) = self.watch.guards.of_mut(guard) else {
            return self.next(client, caller);
        };
        // A careless holder does not notice the end of its lock. Only its driver does.
        if !careless && held.hold.latch_end(reading).is_some() {
            self.tell_end(guard);
        }
        let lost = self.watch.guards.of(guard).is_some_and(|held| held.hold.ended().is_some());
        // A holder that has noticed the loss of its lock does not always release it at once.
        if is_over || lost && !careless && self.random.callers.percent(60) {
            let report = self.random.callers.coin();
            self.release_guard(guard, report);
            return self.next(client, caller);
        }
        if !careless && !lost && self.random.callers.percent(40) {
            self.note(&Fact::ExtendAsked { guard });
            self.ask(client, Event::Extend { lock });
        }
        if !careless && !lost {
            self.may_become_reader(guard);
            if self.may_detach(guard) {
                return self.next(client, caller);
            }
        }
        self.plan_step(client, caller, until);
    }

    pub(crate) fn refused(&mut self, client: ClientId, lock: LockId) {
        if let Some(caller) = self.clients[client].caller_of(lock) {
            self.next(client, caller);
        }
    }

    /// Handles the loss of a lock. A holder that checks its guard notices the loss soon, and releases then or later.
    pub(crate) fn lost(&mut self, guard: GuardId) {
        let GuardId { client, lock } = guard;
        let Some(caller) = self.clients[client].caller_of(lock) else { return };
        if let CallerState::Holding { careless: false, .. } =
            self.clients[client].callers[caller].state
        {
            let span = self.random.callers.span(MS);
            self.plan_caller(client, caller, span);
        }
    }
}
