//! Kinds of locks: the keys that callers lock, writers and readers, and downgrades.

use std::time::Duration;

use quorlock_core::Wait;
use quorlock_core::{Key, Keys, Mode, Origin, Request, Retry};

use super::{Mend, Process, Setting, SimEvent, World};
use crate::client::{Caller, CallerState};
use crate::count::Count;
use crate::driver::Driver;
use crate::fact::{ClientId, FaultEvent, NodeIndex};
use crate::guard::GuardId;
use crate::node::Content;
use crate::plan::{Fault, Plan};
use crate::time::{MS, Time};

/// The numbers of callers of the two clients that keep reading during the healing phase.
const READERS: [usize; 2] = [2, 2];

impl Setting {
    pub(super) fn new(plan: &Plan) -> Self {
        const NAMES: [&str; 3] = ["orders", "jobs", "mails"];
        // The sets of keys, as indexes into `NAMES`.
        const SETS: [&[usize]; 4] = [&[0], &[1], &[0, 1], &[1, 2]];
        let is_several = plan.later.kinds.several > 0;
        let count = if is_several { NAMES.len() } else { plan.load.resources };
        let keys: Vec<Key> = NAMES[..count].iter().map(|name| Key::from(*name)).collect();
        let set = |places: &&[usize]| Keys::new(places.iter().map(|place| keys[*place].clone()));
        let wishes = match is_several {
            true => SETS.iter().filter_map(set).collect(),
            false => keys.iter().cloned().map(Keys::from).collect(),
        };
        Self { wishes, keys, rules: plan.rules() }
    }
}

impl World {
    pub(super) fn count_kinds(&mut self) {
        let kinds = &self.plan.later.kinds;
        if kinds.is_deaf {
            self.record.counts.add(Count::Deaf);
        }
        if kinds.readers_stay {
            self.record.counts.add(Count::ReadersStay);
        }
    }

    /// Draws the keys and the mode of a call. `key` is the only key, unless the plan has sets of keys.
    pub(super) fn draw_kind(&mut self, key: usize) -> (Keys, Mode) {
        let (kinds, random) = (&self.plan.later.kinds, &mut self.random.kinds);
        let is_several = kinds.several > 0 && random.percent(kinds.several);
        let is_shared = kinds.shared > 0 && random.percent(kinds.shared);
        let keys = match is_several {
            true => self.setting.wishes[random.index(self.setting.wishes.len())].clone(),
            false => self.setting.keys[key].clone().into(),
        };
        (keys, if is_shared { Mode::Shared } else { Mode::Exclusive })
    }

    /// Sometimes downgrades the guard of a writer that checks it, as if the writer had finished writing. A lock with the
    /// caller's value has no readers.
    pub(super) fn may_become_reader(&mut self, guard: GuardId) {
        let percent = self.plan.later.kinds.downgrades;
        let request = self.watch.ledger.request(guard.client, guard.lock);
        let is_taken = request.is_some_and(|it| matches!(it.origin, Origin::Taken(_)));
        if percent > 0 && self.random.kinds.percent(percent) && !is_taken {
            self.become_reader(guard);
        }
    }

    /// The locks that the new client acquires during the healing: each set of keys once.
    pub(super) fn newcomers_wishes(&self) -> Vec<(Keys, Mode)> {
        let mut wishes: Vec<_> =
            self.setting.wishes.iter().map(|keys| (keys.clone(), Mode::Exclusive)).collect();
        if self.plan.later.kinds.shared > 0 {
            wishes.push((self.setting.wishes[0].clone(), Mode::Shared));
        }
        wishes
    }

    /// Starts readers that keep coming. Their keys are then hardly ever free, and only an intent (the note of a waiting
    /// writer, which keeps new readers out) lets a writer in.
    pub(super) fn start_readers(&mut self) {
        if !self.plan.later.kinds.readers_stay {
            return;
        }
        for callers in READERS {
            let client = self.start_client();
            self.progress.readers.push(client);
            let idle = Caller { state: CallerState::Idle, generation: u32::MAX / 2 };
            self.clients[client].callers = vec![idle; callers];
            (0..callers).for_each(|caller| self.plan_next_wish(client, caller));
        }
    }

    pub(super) fn comes_and_goes(&self, client: ClientId) -> bool {
        self.progress.readers.contains(&client) && !self.progress.closing
    }

    pub(super) fn reads_for(&mut self) -> Time {
        let ttl = self.plan.load.max_ttl;
        self.random.kinds.between(ttl / 8, ttl / 2)
    }

    /// A caller of a reading client asks to read. The client's position among the reading clients selects the key, so
    /// all callers of one client read the same key.
    pub(super) fn want_to_read(&mut self, client: ClientId, caller: usize) {
        let place = self.progress.readers.iter().position(|reader| *reader == client).unwrap_or(0);
        let request = Request {
            keys: self.setting.keys[place % self.setting.keys.len()].clone().into(),
            mode: Mode::Shared,
            prefix_bytes: 0,
            origin: Origin::Absent,
            owner: "".into(),
            timing: self.plan.load.timings[0],
            wait: Wait::Forever,
            retry: Retry::default(),
            automatic: true,
            keeps_on_loss: false,
            yields_to_pollers: true,
            max_hold: Duration::from_nanos((2 * self.plan.load.max_ttl).unsigned_abs()),
            progress: false,
            fenced: None,
        };
        self.ask_for(client, caller, request);
    }

    /// Leaves another program's keys on a minority of nodes, the same nodes for all locks. Otherwise a lock of several
    /// keys might have no quorum of nodes on which all its keys are free.
    pub(super) fn leave_litter(&mut self) {
        let leftovers = self.plan.later.kinds.leftovers;
        // If two names lead to one server, a quorum needs all other nodes, so no node may have such keys.
        if leftovers == 0 || self.plan.servers.duplicates || self.plan.later.merges {
            return;
        }
        let nodes = self.servers.len();
        let first = self.random.kinds.index(nodes);
        for place in 0..leftovers {
            for key in self.setting.keys.clone() {
                self.plan_in(0, SimEvent::Mend(Mend::Litter((first + place) % nodes, key)));
            }
        }
    }

    pub(super) fn litter(&mut self, node: NodeIndex, key: Key) {
        let server = &mut self.servers[node];
        if self.progress.closing {
            return;
        }
        if server.process != Process::Runs || server.node.stored(&key, self.now).is_some() {
            let span = self.random.kinds.span(self.plan.load.max_ttl / 8);
            return self.plan_in(span, SimEvent::Mend(Mend::Litter(node, key)));
        }
        self.record.counts.add(Count::Leftovers);
        let content = match self.random.kinds.below(3) {
            0 => Content::Text(b"another library's".to_vec()),
            1 => Content::Other,
            _ => self.foreign_set(),
        };
        let ttl_ms = self.random.kinds.percent(30).then_some(3_600_000);
        self.servers[node].node.put_there(&key, content, ttl_ms, self.now);
        self.note_fault(FaultEvent::KeyOccupied { node });
        self.deliver_pushes(node);
    }

    pub(super) fn occupy(&mut self, node: NodeIndex, span: Time) {
        let key = self.setting.keys
            [self.random.faults[Fault::Occupants as usize].index(self.setting.keys.len())]
        .clone();
        if self.servers[node].node.stored(&key, self.now).is_some() {
            return;
        }
        let chance = self.chance(Fault::Occupants);
        let value = chance.coin().then(|| b"another library's".to_vec());
        let ttl_ms = chance.coin().then_some(span / MS + 1);
        self.record.counts.add(Count::Occupied);
        let content = match value {
            Some(value) => Content::Text(value),
            None if self.plan.later.kinds.shared > 0 => self.foreign_set(),
            None => Content::Other,
        };
        self.servers[node].node.put_there(&key, content, ttl_ms, self.now);
        self.note_fault(FaultEvent::KeyOccupied { node });
        self.deliver_pushes(node);
        self.plan_in(span, SimEvent::Mend(Mend::Vacate(node, key)));
    }

    /// A sorted set of another program. It is no set of readers, because its expiry differs from its member's score.
    fn foreign_set(&mut self) -> Content {
        self.record.counts.add(Count::ForeignSets);
        let score = self.random.kinds.pick(&[0, 7, i64::MAX / 2]);
        Content::Scored([(b"a job".to_vec(), score)].into())
    }
}
