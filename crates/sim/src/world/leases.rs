//! Detached locks. Callers of any client attach, extend and release them, as if their descriptions had come as text.

use std::sync::Arc;

use quorlock_core::{
    Counter, Detached, DetachedFrom, Entry, EntryOf, Event, Mode, Origin, Request, TakenFrom,
    Token, Validity, Value,
};

use super::{SimEvent, World};
use crate::client::{Caller, CallerState};
use crate::count::Count;
use crate::driver::Driver;
use crate::fact::ClientId;
use crate::guard::GuardId;
use crate::time::Time;

/// A detached lock, as the text of a lease describes it.
#[derive(Clone, Debug)]
pub(crate) struct SimLease {
    of: EntryOf,
    pub(super) request: Request,
    by: ClientId,
    /// Number of further times at which callers use the lease.
    uses: u64,
}

impl World {
    /// Draws whether a call takes its lock with the caller's value.
    pub(super) fn may_take(&mut self, client: ClientId, request: Request) -> Request {
        let leases = &self.plan.later.leases;
        let is_plain = request.mode == Mode::Exclusive && request.fenced.is_none();
        let Some(key) = request.keys.single().filter(|_| is_plain) else { return request };
        if leases.takes == 0 || !self.random.leases.percent(leases.takes) {
            return request;
        }
        let value = match leases.by_value {
            true => format!("worker of client {client}"),
            false => "worker".to_owned(),
        };
        let value = Value::of_caller(value.as_bytes());
        let nonce_key = format!("quorlock:take:{key}").into();
        let from = TakenFrom { value, nonce_key, by_value: false };
        let origin = Origin::Taken(Arc::new(from));
        Request { origin, owner: "".into(), automatic: false, ..request }
    }

    /// Sometimes detaches the lock of a holder that checks its guard.
    pub(super) fn may_detach(&mut self, guard: GuardId) -> bool {
        let percent = self.plan.later.leases.detaches.max(self.plan.later.leases.takes);
        let detaches = percent > 0 && !self.progress.healing && self.random.leases.percent(percent);
        if detaches {
            self.detach(guard);
        }
        detaches
    }

    /// Handles the engine's report of a detached lock. If the lock is lost instead (`None`), releases the guard.
    pub(super) fn detached(&mut self, guard: GuardId, detached: Option<&Detached>) {
        let GuardId { client, lock } = guard;
        let request = self.watch.ledger.request(client, lock).cloned();
        let Some((it, request)) = detached.zip(request) else {
            return self.release_guard(guard, false);
        };
        self.record.counts.add(Count::DetachedLocks);
        if !it.unanswered.is_empty() {
            self.record.counts.add(Count::DetachedUnanswered);
        }
        self.ask(client, Event::Forget { lock });
        let timing = request.timing;
        let of = EntryOf { entry: it.entry.clone(), timing, unanswered: it.unanswered };
        let request = Request { mode: it.entry.mode, ..request };
        let request = match request.mode {
            Mode::Shared => Request { fenced: None, ..request },
            Mode::Exclusive => request,
        };
        let uses = self.random.leases.between(1, 5).unsigned_abs();
        self.leases.push(SimLease { of, request, by: client, uses });
        self.plan_use(self.leases.len() - 1);
        self.may_roll_back(self.leases.len() - 1);
    }

    fn plan_use(&mut self, lease: usize) {
        let ttl = self.plan.load.max_ttl;
        let spans: [Time; 4] = [ttl / 50, ttl / 8, ttl / 3, 2 * ttl];
        let mean = self.random.leases.pick(&spans);
        let span = self.random.leases.span(mean);
        self.plan_in(span, SimEvent::Lease(lease));
    }

    /// Uses a lease at random: one or two callers attach it, a caller extends or releases it, or nothing happens.
    pub(super) fn use_lease(&mut self, lease: usize) {
        let SimLease { of, request, uses, .. } = self.leases[lease].clone();
        if self.progress.healing || uses == 0 {
            return;
        }
        self.leases[lease].uses -= 1;
        let is_taken = matches!(of.entry.origin, Origin::Taken(_));
        match self.random.leases.below(100) {
            0..45 if !is_taken => {
                self.attach_by_any(&of, &request);
                if self.random.leases.percent(40) {
                    self.attach_by_any(&of, &request);
                }
            }
            45..75 => self.extend_or_release(lease, None, false),
            75..90 => self.extend_or_release(lease, None, true),
            _ => {}
        }
        self.plan_use(lease);
    }

    fn any_client(&mut self) -> Option<ClientId> {
        let is_usable =
            |id: &ClientId| self.clients[*id].life.alive && !self.progress.readers.contains(id);
        let usable: Vec<ClientId> = (0..self.clients.len()).filter(is_usable).collect();
        (!usable.is_empty()).then(|| usable[self.random.leases.index(usable.len())])
    }

    fn attach_by_any(&mut self, of: &EntryOf, request: &Request) {
        let Some(client) = self.any_client() else { return };
        self.record.counts.add(Count::Attaches);
        let (value, unanswered) = (of.entry.value.clone(), of.unanswered);
        let origin = Origin::Detached(Arc::new(DetachedFrom { value, unanswered }));
        self.ask_beside(client, Request { origin, ..request.clone() });
    }

    /// A caller besides the usual ones asks for a lock, once.
    pub(super) fn ask_beside(&mut self, client: ClientId, request: Request) {
        // A client has extra callers for attaching, after its `load.callers` usual ones.
        let callers = &mut self.clients[client].callers;
        let first = self.plan.load.callers;
        let is_over = |it: &Caller| it.state == CallerState::Over;
        let free = callers.iter().skip(first).position(is_over).map(|place| first + place);
        let caller = free.unwrap_or(callers.len());
        if free.is_none() {
            callers.push(Caller { state: CallerState::Over, generation: 0 });
        }
        self.ask_for(client, caller, request);
    }

    /// A caller of this client, or of any client, extends or releases the lock. If the command compares only the value, the caller belongs to the client
    /// that uses this value.
    pub(super) fn extend_or_release(
        &mut self,
        lease: usize,
        client: Option<ClientId>,
        releases: bool,
    ) {
        let SimLease { mut of, request, by, .. } = self.leases[lease].clone();
        let is_own = self.plan.later.leases.by_value && matches!(of.entry.origin, Origin::Taken(_));
        let client = if is_own { Some(by) } else { client.or_else(|| self.any_client()) };
        let Some(client) = client.filter(|client| self.clients[*client].life.alive) else { return };
        if is_own && self.random.leases.coin() {
            of.entry = by_value(of.entry, &Token::new(self.random.leases.bytes()));
            self.record.counts.add(Count::ByValue);
            self.leases[lease].of = of.clone();
        }
        let lock = self.new_lock(client);
        let event = match releases {
            true => {
                let valid_for = of.timing.ttl();
                Event::ReleaseEntry { lock, entry: of, valid_for }
            }
            false => {
                let counter: Option<Counter> = request.fenced.clone();
                Event::ExtendEntry { lock, entry: of, counter }
            }
        };
        self.ask(client, event);
    }

    pub(super) fn entry_extended(&mut self, validity: Option<&Validity>) {
        self.record.counts.add(match validity {
            Some(_) => Count::LeasesExtended,
            None => Count::LeasesNotExtended,
        });
    }
}

/// The same lock with another nonce, for commands that compare only the caller's value.
fn by_value(entry: Entry, nonce: &Token) -> Entry {
    let Origin::Taken(from) = &entry.origin else { return entry };
    let from = TakenFrom { by_value: true, ..(**from).clone() };
    Entry { value: Value::new(nonce, ""), origin: Origin::Taken(Arc::new(from)), ..entry }
}
