//! What is kept of a run so that it can be drawn: bars and marks on lanes, one lane for each client and
//! one for each node.
//!
//! What clients hold and nodes store is not taken from what anybody says of it: after every fact, every
//! guard is asked and every node looked into. What ends by itself between two facts, by a clock, ends
//! when that clock says so.

use std::collections::BTreeMap;

use quorlock_core::{Command, Ended, Key, LockId};

use crate::client::Client;
use crate::fact::{ClientId, Fact, FaultEvent, NodeIndex, names, span};
use crate::guard::{Guard, GuardId};
use crate::node::Health;
use crate::time::{MS, Time};
use crate::view::View;

/// A run, to be drawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Until when there is anything to be seen.
    pub until: Time,
    /// When the faults ended.
    pub healing: Option<Time>,
    /// All bars, in the order of their ends.
    pub bars: Vec<Bar>,
    /// All marks.
    pub marks: Vec<Mark>,
    open: BTreeMap<Id, Bar>,
    /// Which rows of a client's lane are taken, by the call that takes it.
    rows: BTreeMap<(ClientId, LockId), usize>,
}

/// Where something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// On a client: one row for each call that goes on at the same time.
    Client(usize),
    /// On a node: one row for each resource.
    Node(usize),
}

/// Something that lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Where.
    pub lane: Lane,
    /// Which row of the lane, if it is not the whole of it.
    pub row: usize,
    /// What.
    pub kind: Kind,
    /// Whose it is, which is to say, its colour.
    pub client: Option<usize>,
    /// Of two resources, which one.
    pub resource: usize,
    /// From when.
    pub from: Time,
    /// Until when.
    pub to: Time,
    /// The beginning of the token, if there is one.
    pub token: String,
    /// In words.
    pub tip: String,
}

/// What lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A client is there.
    Life,
    /// A client stands still.
    Still,
    /// A caller waits for a lock.
    Wait,
    /// An attempt is made to get it.
    Attempt,
    /// A guard says that it is held.
    Hold,
    /// A node stores a key under a token of ours.
    Vote,
    /// A node stores something else under the key.
    Foreign,
    /// A node's process is not there.
    Down,
    /// It is there, and stands still.
    Frozen,
    /// It refuses something.
    Refuses,
    /// Nothing gets through between it and a client.
    Cut,
}

/// Something that happens at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Where.
    pub lane: Lane,
    /// When.
    pub at: Time,
    /// What.
    pub sign: Sign,
    /// In words.
    pub tip: String,
}

/// What happens at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sign {
    /// A lock is lost.
    Lost,
    /// A client is killed or shut down.
    End,
    /// A connection breaks.
    Reset,
    /// A clock is set.
    Clock,
    /// A node loses keys.
    KeysLost,
}

/// What may be going on, and ends later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Id {
    Life(ClientId),
    Still(ClientId),
    Tick(ClientId),
    Wait(ClientId, LockId),
    Attempt(ClientId, LockId),
    Hold(GuardId),
    Stored(NodeIndex, Key),
    Down(NodeIndex),
    Frozen(NodeIndex),
    Refuses(NodeIndex),
}

impl Id {
    /// The client that this ends with.
    const fn client(&self) -> Option<ClientId> {
        match self {
            Self::Life(client) | Self::Still(client) | Self::Tick(client) => Some(*client),
            Self::Wait(client, _) | Self::Attempt(client, _) => Some(*client),
            Self::Hold(guard) => Some(guard.client),
            _ => None,
        }
    }
}

impl Timeline {
    /// Notes what has happened, and what has become of everything by it.
    pub(crate) fn note(
        &mut self,
        fact: &Fact<'_>,
        keys: &[Key],
        clients: &[Client],
        view: &View<'_>,
    ) {
        let now = view.now;
        self.follow_guards(keys, clients, view);
        self.follow_nodes(keys, view);
        match fact {
            Fact::Started { client } => {
                let tip = format!("client {client}");
                self.begin(Id::Life(*client), whole(Lane::Client(*client), Kind::Life, tip), now);
            }
            Fact::Wanted { client, lock, request } => {
                let row = self.take_row(*client, *lock);
                let keys = names(&request.keys);
                let tip = format!("client {client} waits for {keys} (lock {})", lock.0);
                let bar = Bar { row, ..whole(Lane::Client(*client), Kind::Wait, tip) };
                self.begin(Id::Wait(*client, *lock), bar, now);
            }
            Fact::Begun { client, lock, token, .. } => {
                let row = self.rows.get(&(*client, *lock)).copied().unwrap_or(0);
                let token = short(token.to_string().as_bytes());
                let tip = format!("client {client}: attempt for lock {} with {token}", lock.0);
                let bar = Bar { row, ..whole(Lane::Client(*client), Kind::Attempt, tip) };
                self.begin(Id::Attempt(*client, *lock), Bar { token, ..bar }, now);
            }
            Fact::Ordered { client, ticket, command: Command::Release { .. }, .. } => {
                self.end(&Id::Attempt(*client, ticket.lock), now);
            }
            Fact::Granted { guard, .. } => {
                self.end(&Id::Attempt(guard.client, guard.lock), now);
                self.end(&Id::Wait(guard.client, guard.lock), now);
                if !self.open.contains_key(&Id::Hold(*guard))
                    && let Some(late) = view.guards.of(*guard)
                {
                    // Whoever got it stood still for too long in the middle of it.
                    self.hold(*guard, late, keys, (now, now));
                    self.end_saying(&Id::Hold(*guard), ", run out before it was had", now);
                }
            }
            Fact::NotAcquired { client, lock, .. } | Fact::Cancelled { client, lock } => {
                self.end(&Id::Attempt(*client, *lock), now);
                self.end(&Id::Wait(*client, *lock), now);
                self.rows.remove(&(*client, *lock));
            }
            // Of what was given back before, nobody misses anything.
            Fact::Lost { guard, cause }
                if view.guards.of(*guard).is_some_and(|it| !it.given_back) =>
            {
                let tip = format!("{guard}: lost, {cause:?}");
                self.mark(Lane::Client(guard.client), Sign::Lost, tip, now);
            }
            Fact::Tick { client } => {
                let tip = format!("client {client} stands still within a turn");
                self.begin(Id::Tick(*client), whole(Lane::Client(*client), Kind::Still, tip), now);
            }
            Fact::TickOver { client } => match self.open.get(&Id::Tick(*client)) {
                // As most turns do, it has taken no time.
                Some(tick) if tick.from == now => drop(self.open.remove(&Id::Tick(*client))),
                _ => self.end(&Id::Tick(*client), now),
            },
            Fact::FaultEvent(fault) => self.note_fault(*fault, now),
            _ => {}
        }
    }

    fn note_fault(&mut self, fault: FaultEvent, now: Time) {
        let tip = fault.to_string();
        match fault {
            FaultEvent::Paused { client, .. } | FaultEvent::Suspended { client, .. } => {
                self.begin(Id::Still(client), whole(Lane::Client(client), Kind::Still, tip), now);
            }
            FaultEvent::Resumed { client } => self.end(&Id::Still(client), now),
            FaultEvent::WallStepped { client, .. } => {
                self.mark(Lane::Client(client), Sign::Clock, tip, now);
            }
            FaultEvent::ClientShutDown { client } => {
                self.mark(Lane::Client(client), Sign::End, tip, now);
            }
            FaultEvent::ClientCrashed { client } => {
                self.mark(Lane::Client(client), Sign::End, tip, now);
                let its = |id: &&Id| id.client() == Some(client);
                let its: Vec<Id> = self.open.keys().filter(its).cloned().collect();
                its.iter().for_each(|id| self.end(id, now));
                self.rows.retain(|(its, _), _| *its != client);
            }
            FaultEvent::NodeStepped { node, .. } => {
                self.mark(Lane::Node(node), Sign::Clock, tip, now)
            }
            FaultEvent::NodeCrashed { node, .. } => {
                self.end(&Id::Frozen(node), now);
                self.begin(Id::Down(node), whole(Lane::Node(node), Kind::Down, tip), now);
            }
            FaultEvent::NodeStarted { node } => self.end(&Id::Down(node), now),
            FaultEvent::NodeFrozen { node } => {
                self.begin(Id::Frozen(node), whole(Lane::Node(node), Kind::Frozen, tip), now);
            }
            FaultEvent::NodeThawed { node } => self.end(&Id::Frozen(node), now),
            FaultEvent::NodeHealth { node, health } => {
                self.end(&Id::Refuses(node), now);
                if health != Health::Good {
                    let bar = whole(Lane::Node(node), Kind::Refuses, tip);
                    self.begin(Id::Refuses(node), bar, now);
                }
            }
            FaultEvent::NodeFlushed { node }
            | FaultEvent::NodeOverwritten { node }
            | FaultEvent::KeyDeleted { node } => {
                self.mark(Lane::Node(node), Sign::KeysLost, tip, now);
            }
            FaultEvent::Blocked { client, node, span, .. } => {
                let bar = Bar {
                    client: Some(client),
                    from: now,
                    to: now + span,
                    ..whole(Lane::Node(node), Kind::Cut, tip)
                };
                self.bars.push(bar);
            }
            FaultEvent::Reset { node, .. } => self.mark(Lane::Node(node), Sign::Reset, tip, now),
            FaultEvent::Healing => {
                self.healing = Some(now);
                // Everything gets through again.
                let cuts = self.bars.iter_mut().filter(|bar| bar.kind == Kind::Cut);
                cuts.for_each(|bar| bar.to = bar.to.min(now));
            }
            // They are seen where they take place.
            FaultEvent::KeyOccupied { .. }
            | FaultEvent::KeyVacated { .. }
            | FaultEvent::CounterMoved { .. } => {}
            // Nobody sees them but who asks the node.
            FaultEvent::NodePromoted { .. } | FaultEvent::NodeEvicts { .. } => {}
        }
    }

    /// Asks every guard whether it holds its lock, and until when if nothing comes between. Of one whose
    /// machine is suspended that can be told only when it goes on.
    fn follow_guards(&mut self, keys: &[Key], clients: &[Client], view: &View<'_>) {
        for (id, guard) in view.guards.iter().filter(|(id, _)| view.can_look(id.client)) {
            let machine = &clients[id.client].machine;
            let reading = machine.read(view.now);
            if guard.is_valid(reading) {
                let left = guard.hold.validity().remaining(reading).as_nanos();
                let shown = machine.boot.at(view.now) + i64::try_from(left).unwrap_or(i64::MAX / 8);
                let until = machine.boot.when(shown);
                match self.open.get_mut(&Id::Hold(id)) {
                    Some(bar) => bar.to = until,
                    None => self.hold(id, guard, keys, (view.now, until)),
                }
            } else if self.open.contains_key(&Id::Hold(id)) {
                let how = match guard.hold.ended() {
                    Some(Ended::Lost(cause)) => format!(", lost: {cause:?}"),
                    Some(Ended::Released) => ", given back".to_owned(),
                    None => ", expired".to_owned(),
                };
                self.end_saying(&Id::Hold(id), &how, view.now);
                self.rows.remove(&(id.client, id.lock));
            }
        }
    }

    fn hold(&mut self, id: GuardId, guard: &Guard, keys: &[Key], (from, to): (Time, Time)) {
        let (client, token) = (id.client, short(guard.value().as_bytes()));
        let its = &guard.request.keys;
        let bar = Bar {
            row: self.take_row(client, id.lock),
            client: Some(client),
            resource: keys.iter().position(|key| its.contains(key)).unwrap_or(0),
            from,
            to,
            tip: format!(
                "client {client} holds {} (lock {}) with {token}/{}",
                names(its),
                id.lock.0,
                guard.handover_count
            ),
            token,
            ..whole(Lane::Client(client), Kind::Hold, String::new())
        };
        self.open.insert(Id::Hold(id), bar);
    }

    /// Looks what every node stores, and until when by its clock.
    fn follow_nodes(&mut self, keys: &[Key], view: &View<'_>) {
        for node in 0..view.terms.quorum.nodes() {
            for (row, key) in keys.iter().enumerate() {
                let id = Id::Stored(node, key.clone());
                let stored = view.node(node).stored(key, view.now);
                let Some(stored) = stored else {
                    self.end(&id, view.now);
                    continue;
                };
                let clock = &view.node(node).clock;
                let to = stored.expires_ms.map_or(Time::MAX, |at| clock.when(at * MS));
                let value = stored.values().next().map(Vec::as_slice);
                let client = value.and_then(|value| view.ledger.client_of(value));
                let token = value.map_or_else(String::new, short);
                if let Some(bar) = self.open.get_mut(&id)
                    && bar.token == token
                {
                    bar.to = to.max(view.now);
                    continue;
                }
                self.end(&id, view.now);
                let (kind, tip) = match client {
                    Some(client) => (
                        Kind::Vote,
                        format!("node {node} stores {key}: {token} of client {client}"),
                    ),
                    None => (Kind::Foreign, format!("on node {node}, {key} is somebody else's")),
                };
                let bar = Bar { row, resource: row, client, ..whole(Lane::Node(node), kind, tip) };
                self.open.insert(id, Bar { token, from: view.now, to, ..bar });
            }
        }
    }

    /// The lowest row of a client's lane that no other call takes.
    fn take_row(&mut self, client: ClientId, lock: LockId) -> usize {
        let taken =
            |row: &usize| self.rows.iter().any(|((its, _), it)| *its == client && it == row);
        let free = (0..).find(|row| !taken(row)).unwrap_or(0);
        *self.rows.entry((client, lock)).or_insert(free)
    }

    fn begin(&mut self, id: Id, bar: Bar, now: Time) {
        self.end(&id, now);
        self.open.insert(id, Bar { from: now, to: Time::MAX, ..bar });
    }

    fn end(&mut self, id: &Id, now: Time) {
        self.end_saying(id, "", now);
    }

    fn end_saying(&mut self, id: &Id, how: &str, now: Time) {
        if let Some(mut bar) = self.open.remove(id) {
            bar.to = bar.to.min(now);
            let lasted = span(bar.to - bar.from);
            bar.tip = format!("{}{how}; {lasted}", bar.tip);
            self.bars.push(bar);
        }
    }

    fn mark(&mut self, lane: Lane, sign: Sign, tip: String, at: Time) {
        self.marks.push(Mark { lane, at, sign, tip });
    }

    /// The run is over.
    pub(crate) fn finish(&mut self, now: Time) {
        for id in self.open.keys().cloned().collect::<Vec<_>>() {
            self.end(&id, now);
        }
        let matters = |bar: &&Bar| bar.kind != Kind::Life;
        self.until = self.bars.iter().filter(matters).map(|bar| bar.to).max().unwrap_or(now);
        self.until = self.until.max(self.healing.unwrap_or(0));
        self.bars.iter_mut().for_each(|bar| bar.to = bar.to.min(self.until));
    }

    /// Bars of one kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Bar> {
        self.bars.iter().filter(move |bar| bar.kind == kind)
    }

    /// From when to when two held one lock.
    pub fn overlaps(&self) -> Vec<(Time, Time)> {
        let holds: Vec<&Bar> = self.of(Kind::Hold).collect();
        let pairs = holds.iter().enumerate().flat_map(|(place, one)| {
            let others = holds[place + 1..].iter();
            let same = others.filter(|other| other.resource == one.resource);
            same.map(|other| (one.from.max(other.from), one.to.min(other.to)))
        });
        pairs.filter(|(from, to)| from < to).collect()
    }
}

/// A bar over the whole height of a lane.
fn whole(lane: Lane, kind: Kind, tip: String) -> Bar {
    let client = match lane {
        Lane::Client(client) => Some(client),
        Lane::Node(_) => None,
    };
    Bar { lane, row: 0, kind, client, resource: 0, from: 0, to: 0, token: String::new(), tip }
}

/// The beginning of what a node stores, for people.
fn short(value: &[u8]) -> String {
    String::from_utf8_lossy(&value[..value.len().min(6)]).into_owned()
}
