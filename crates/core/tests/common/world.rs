//! A world in virtual time: clients (one engine each, and its guards), model nodes, and between
//! each two of them a connection that keeps order. The same calls give the same run.
//!
//! The driver in here does what the real one does and no more: it stamps a command when it is
//! written, hands in a token when asked, and delivers what has arrived before it tells of the time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use quorlock_core::{
    Answer, Command, Effect, Engine, Event, Failure, FailureKind, Hold, Key, LockId, NodeId, Proof,
    Quorum, Reading, Request, Ticket, Token, Validity, Value,
};

use super::node::{EPOCH, MS, Node, Stored};
use super::shadow;
use super::story::{ONE_WAY, once};
use super::watch::Watch;

/// A guard, as the library hands it out.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    pub(crate) client: usize,
    pub(crate) request: Request,
    pub(crate) token: Token,
    pub(crate) validity: Validity,
    /// As it was granted.
    pub(crate) hold: Hold,
    pub(crate) attempts: u32,
    pub(crate) turn: u32,
    pub(crate) fence: Option<u64>,
    pub(crate) granted: i64,
    /// Lost or given back: invalid for ever (S13).
    pub(crate) over: bool,
    lost: bool,
}

impl Guard {
    pub(crate) fn is_valid(&self, now: Reading) -> bool {
        !self.over && !self.validity.remaining(now).is_zero()
    }

    pub(crate) fn value(&self) -> Value {
        Value::new(&self.token, &self.request.owner)
    }
}

/// The connection between a client and a node.
#[derive(Clone, Debug)]
struct Link {
    way: Way,
    one_way: i64,
    /// Answers do not arrive any more (and the client cannot tell why).
    mute: bool,
    waiting: VecDeque<(Ticket, Command)>,
    requests: VecDeque<Packet<Command>>,
    replies: VecDeque<Packet<Answer>>,
    /// Keys that have changed, and when the client hears of it; not in one order with the replies.
    pushes: VecDeque<(i64, Key)>,
    /// How long a push takes; `None`: as long as a reply.
    push_way: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Up,
    Connecting,
    Down,
}

#[derive(Clone, Debug)]
struct Packet<T> {
    due: i64,
    sent: Reading,
    ticket: Ticket,
    what: T,
}

/// An answer that a client has got.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    pub(crate) client: usize,
    pub(crate) node: usize,
    pub(crate) sent: Reading,
    pub(crate) ticket: Ticket,
    pub(crate) answer: Answer,
}

/// What happens next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Orphan,
    Request(usize, usize),
    Reply(usize, usize),
    Push(usize, usize),
    Deadline(usize),
}

pub(crate) struct World {
    pub(crate) now: i64,
    /// How far the clients' wall clock is ahead of their boot clock.
    wall: i64,
    quorum: Quorum,
    pub(crate) nodes: Vec<Node>,
    frozen: Vec<bool>,
    /// Who wants to be told when a key changes, by node.
    interest: Vec<BTreeSet<(usize, Key)>>,
    /// The nodes can push.
    pub(crate) pushing: bool,
    pub(crate) engines: Vec<Engine>,
    asleep_until: Vec<i64>,
    links: Vec<Vec<Link>>,
    /// Commands whose connection died while they were on their way, and which arrive all the same.
    orphans: VecDeque<(i64, usize, Command)>,
    pub(crate) guards: BTreeMap<LockId, Guard>,
    owners: Vec<(usize, Request)>,
    tokens: u64,
    /// The random word for every delay; `None`: a different one each time.
    pub(crate) jitter: Option<u64>,
    pub(crate) log: Vec<(i64, usize, Effect)>,
    pub(crate) watch: Watch,
    /// What nodes have answered so far, if answers are to come a second time.
    pub(crate) history: Option<Vec<Delivered>>,
    /// Compares every step with that of a rebased engine.
    pub(crate) shadowed: bool,
}

impl World {
    /// One client, `nodes` nodes, a majority.
    pub(crate) fn new(nodes: usize) -> Self {
        Self::with(1, Quorum::majority(nodes).expect("there are nodes"))
    }

    pub(crate) fn with(clients: usize, quorum: Quorum) -> Self {
        let link = Link {
            way: Way::Up,
            one_way: ONE_WAY * MS,
            mute: false,
            waiting: VecDeque::new(),
            requests: VecDeque::new(),
            replies: VecDeque::new(),
            pushes: VecDeque::new(),
            push_way: None,
        };
        Self {
            now: 0,
            wall: EPOCH,
            quorum,
            nodes: vec![Node::default(); quorum.nodes()],
            frozen: vec![false; quorum.nodes()],
            interest: vec![BTreeSet::new(); quorum.nodes()],
            pushing: true,
            engines: vec![idle(quorum); clients],
            asleep_until: vec![0; clients],
            links: vec![vec![link; quorum.nodes()]; clients],
            orphans: VecDeque::new(),
            guards: BTreeMap::new(),
            owners: Vec::new(),
            tokens: 0,
            jitter: Some(0),
            log: Vec::new(),
            watch: Watch::new(quorum),
            history: None,
            shadowed: false,
        }
    }

    // What callers do.

    pub(crate) fn acquire(&mut self, request: Request) -> LockId {
        self.acquire_by(0, request)
    }

    pub(crate) fn acquire_by(&mut self, client: usize, request: Request) -> LockId {
        let lock = LockId(self.owners.len() as u64);
        self.owners.push((client, request.clone()));
        self.tell(client, Event::Acquire { lock, request });
        lock
    }

    /// Acquires and waits until the lock is held.
    pub(crate) fn hold(&mut self, request: Request) -> LockId {
        let lock = self.acquire(request);
        while !self.guards.contains_key(&lock) {
            assert!(self.step(i64::MAX), "the lock is never granted");
        }
        lock
    }

    pub(crate) fn cancel(&mut self, lock: LockId) {
        self.tell(self.owners[lock.0 as usize].0, Event::Cancel { lock });
    }

    pub(crate) fn extend(&mut self, lock: LockId) {
        self.tell(self.owners[lock.0 as usize].0, Event::Extend { lock });
    }

    /// Gives a lock back: the guard is invalid first (S14), then the engine is told.
    pub(crate) fn release(&mut self, lock: LockId, report: bool) {
        self.guards.get_mut(&lock).expect("a guard").over = true;
        self.tell(self.owners[lock.0 as usize].0, Event::Release { lock, report });
    }

    pub(crate) fn tell(&mut self, client: usize, event: Event) {
        let now = self.reading();
        let waking = event == Event::Wake;
        let (mut effects, mut drawn) = (Vec::new(), Vec::new());
        let before = self.shadowed.then(|| (self.engines[client].clone(), event.clone()));
        let (tokens, jitter) = (&mut self.tokens, self.jitter);
        let mut entropy = |_| {
            *tokens += 1;
            let mut token = [0; Token::BYTES];
            token[..8].copy_from_slice(&tokens.to_be_bytes());
            let word = jitter.unwrap_or(tokens.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            drawn.push((Token::new(token), word));
            (Token::new(token), word)
        };
        self.engines[client].handle(event, now, &mut entropy, &mut effects);
        if let Some((before, event)) = before {
            shadow::check((&before, &event, now), drawn, &self.engines[client], &effects);
        }
        let deadline = self.engines[client].deadline();
        assert!(
            !waking || deadline.is_none_or(|at| at > now.boot()),
            "a deadline that has come is dealt with: {deadline:?} at {now:?}"
        );
        for effect in effects {
            self.log.push((self.now / MS, client, effect.clone()));
            self.carry_out(client, effect);
        }
        if self.engines[client].has_attempt_to_begin() {
            self.tell(client, Event::Wake);
        }
    }

    fn carry_out(&mut self, client: usize, effect: Effect) {
        let now = self.reading();
        match effect {
            Effect::Send { nodes, ticket, command } => {
                for node in nodes.iter() {
                    self.watch.sent((client, node), ticket, &command, &self.guards, now);
                    self.send(client, node.index(), ticket, command.clone());
                }
            }
            Effect::Acquired { lock, token, hold, attempts, turn, fence } => {
                let guard = Guard {
                    client,
                    request: self.owners[lock.0 as usize].1.clone(),
                    token,
                    validity: hold.validity().clone(),
                    hold,
                    attempts,
                    turn,
                    fence,
                    granted: self.now,
                    over: false,
                    lost: false,
                };
                self.watch.granted(&guard, &self.guards, now);
                self.watch.fenced(&guard, &self.guards, &self.nodes);
                self.watch.votes(&guard);
                assert!(self.guards.insert(lock, guard).is_none(), "granted once");
            }
            Effect::Changed { lock, validity } => {
                let guard = self.guards.get_mut(&lock).expect("only what is held changes");
                assert!(!guard.over, "what is over does not change (S13)");
                guard.validity = validity;
                self.watch.votes(guard);
            }
            Effect::Lost { lock, .. } => {
                let guard = self.guards.get_mut(&lock).expect("only what is held is lost");
                // A loss that is due is told even if the release is what comes next.
                assert!(!std::mem::replace(&mut guard.lost, true), "lost once (S13)");
                guard.over = true;
            }
            _ => {}
        }
    }

    fn send(&mut self, client: usize, node: usize, ticket: Ticket, command: Command) {
        let (now, sent) = (self.now, self.reading());
        let link = &mut self.links[client][node];
        match link.way {
            Way::Up => {
                let due = now + link.one_way;
                link.requests.push_back(Packet { due, sent, ticket, what: command });
            }
            Way::Connecting => link.waiting.push_back((ticket, command)),
            Way::Down => {
                let what = Answer::Failed(Failure::unsent(FailureKind::Unreachable));
                link.replies.push_back(Packet { due: now, sent, ticket, what });
            }
        }
    }

    // What happens to nodes and connections.

    pub(crate) fn set_one_way(&mut self, node: usize, ms: i64) {
        (0..self.engines.len()).for_each(|client| self.set_one_way_of(client, node, ms));
    }

    pub(crate) fn set_one_way_of(&mut self, client: usize, node: usize, ms: i64) {
        self.links[client][node].one_way = ms * MS;
    }

    /// Answers of this node do not arrive until it is no longer mute.
    pub(crate) fn mute(&mut self, node: usize, mute: bool) {
        self.links.iter_mut().for_each(|links| links[node].mute = mute);
    }

    /// A stopped process: what is sent to it waits, and is carried out when it goes on.
    pub(crate) fn freeze(&mut self, node: usize, frozen: bool) {
        self.frozen[node] = frozen;
    }

    /// The connections break; what was under way is lost, or arrives as an orphan later.
    pub(crate) fn cut(&mut self, node: usize, orphans_after: Option<i64>) {
        for client in 0..self.engines.len() {
            self.interest[node].retain(|(watcher, _)| *watcher != client);
            let link = &mut self.links[client][node];
            link.way = Way::Down;
            link.mute = false;
            link.pushes.clear();
            for Packet { sent, ticket, what, .. } in std::mem::take(&mut link.requests) {
                let failed = Answer::Failed(Failure::new(FailureKind::Unreachable));
                link.replies.push_back(Packet { due: 0, sent, ticket, what: failed });
                if let Some(after) = orphans_after {
                    self.orphans.push_back((self.now + after * MS, node, what));
                }
            }
            for reply in &mut link.replies {
                reply.due = self.now;
                if !matches!(reply.what, Answer::Failed(_)) {
                    reply.what = Answer::Failed(Failure::new(FailureKind::Unreachable));
                }
            }
            Self::fail_waiting(link, FailureKind::Unreachable, self.now);
        }
    }

    /// Nothing listens: commands fail at once, unsent.
    pub(crate) fn down(&mut self, node: usize) {
        self.cut(node, None);
    }

    pub(crate) fn connecting(&mut self, node: usize) {
        for client in 0..self.engines.len() {
            self.links[client][node].way = Way::Connecting;
            self.tell(client, Event::Connecting { node: NodeId::new(node) });
        }
    }

    /// The connection is there: what waited for it is sent, ahead of everything else, and the
    /// client is told.
    pub(crate) fn up(&mut self, node: usize) {
        for client in 0..self.engines.len() {
            self.links[client][node].way = Way::Up;
            for (ticket, command) in std::mem::take(&mut self.links[client][node].waiting) {
                self.send(client, node, ticket, command);
            }
            self.tell(client, Event::Connected { node: NodeId::new(node) });
            self.tell(client, Event::Pushed { node: NodeId::new(node), keys: None });
        }
    }

    /// How long pushes of this node take, whatever its replies do.
    pub(crate) fn set_push_way(&mut self, node: usize, ms: i64) {
        self.links.iter_mut().for_each(|links| links[node].push_way = Some(ms * MS));
    }

    /// A node carries out a command, and tells those who wanted to know that a key has changed.
    fn execute(&mut self, client: Option<usize>, node: usize, command: &Command) -> Answer {
        let (Command::Acquire { key, .. }
        | Command::AcquireFenced { key, .. }
        | Command::Raise { key, .. }
        | Command::HealFenced { key, .. }
        | Command::Extend { key, .. }
        | Command::ExtendFenced { key, .. }
        | Command::Release { key, .. }
        | Command::Inspect { key }
        | Command::Watch { key }) = command
        else {
            unreachable!("there are no other commands")
        };
        self.nodes[node].expire(self.now);
        let before = self.nodes[node].keys.get(key).cloned();
        let answer = self.nodes[node].execute(command, self.now);
        if before != self.nodes[node].keys.get(key).cloned() {
            self.push(node, key, client);
        }
        match (answer, client) {
            (Answer::Watched(holding), Some(client)) if self.pushing => {
                self.interest[node].insert((client, key.clone()));
                Answer::Watched(holding)
            }
            (Answer::Watched(holding), _) => Answer::Seen(holding),
            (answer, _) => answer,
        }
    }

    fn push(&mut self, node: usize, key: &Key, by: Option<usize>) {
        let concerns = |(watcher, of): &(usize, Key)| of == key && by != Some(*watcher);
        let (told, others) =
            std::mem::take(&mut self.interest[node]).into_iter().partition(concerns);
        self.interest[node] = others;
        let told: BTreeSet<(usize, Key)> = told;
        for (client, key) in told {
            let link = &mut self.links[client][node];
            let due = self.now + link.push_way.unwrap_or(link.one_way);
            link.pushes.push_back((due, key));
        }
    }

    /// The connection is made while no command waits for it: then nobody tells the engine.
    pub(crate) fn up_untold(&mut self, node: usize) {
        for links in &mut self.links {
            assert!(links[node].waiting.is_empty());
            links[node].way = Way::Up;
        }
    }

    pub(crate) fn connecting_failed(&mut self, node: usize) {
        for link in self.links.iter_mut().map(|links| &mut links[node]) {
            if link.way == Way::Connecting {
                link.way = Way::Down;
                Self::fail_waiting(link, FailureKind::ConnectTimeout, self.now);
            }
        }
    }

    fn fail_waiting(link: &mut Link, kind: FailureKind, now: i64) {
        for (ticket, _) in std::mem::take(&mut link.waiting) {
            let what = Answer::Failed(Failure::unsent(kind));
            link.replies.push_back(Packet { due: now, sent: Reading::new(0, 0), ticket, what });
        }
    }

    /// The node loses its keys. From here on votes may be missing, and locks may overlap.
    pub(crate) fn flush(&mut self, node: usize) {
        self.nodes[node].keys.clear();
        self.watch.assume_no_loss = false;
    }

    /// Somebody else's key, for `ttl_ms` or for ever.
    pub(crate) fn occupy(&mut self, node: usize, key: &str, value: &[u8], ttl_ms: Option<i64>) {
        let expires = ttl_ms.map(|ttl| self.now + ttl * MS);
        let stored = Stored { value: Some(value.to_vec()), expires };
        if self.nodes[node].keys.insert(key.into(), stored).is_some() {
            self.watch.assume_no_loss = false;
        }
    }

    /// Somebody deletes a key, and those who wanted to know are told.
    pub(crate) fn forget(&mut self, node: usize, key: &str) {
        if self.nodes[node].keys.remove(key).is_some() {
            self.watch.assume_no_loss = false;
            self.push(node, &key.into(), None);
        }
    }

    /// The client's process stands still: nothing is delivered to it, no timer fires.
    pub(crate) fn sleep(&mut self, client: usize, ms: i64) {
        self.asleep_until[client] = self.now + ms * MS;
    }

    /// The clients' wall clocks are set.
    pub(crate) fn step_wall(&mut self, ms: i64) {
        self.wall += ms * MS;
    }

    // Time.

    pub(crate) fn reading(&self) -> Reading {
        Reading::new(self.now, self.now + self.wall)
    }

    pub(crate) fn run_for(&mut self, ms: i64) {
        self.run_until(self.now / MS + ms);
    }

    pub(crate) fn run_until(&mut self, ms: i64) {
        while self.step(ms * MS) {}
        self.now = ms * MS;
        self.watch.look(&self.nodes, &self.guards, self.reading());
    }

    /// Runs until nothing is under way and no timer is set.
    pub(crate) fn settle(&mut self) {
        let bound = self.now + 600_000 * MS;
        while self.step(bound) {}
        for engine in &self.engines {
            assert_eq!(engine.deadline(), None, "it never comes to rest: {engine:#?}");
        }
    }

    /// One step, if there is one by `limit`.
    fn step(&mut self, limit: i64) -> bool {
        let Some((due, step)) = self.next_step().filter(|(due, _)| *due <= limit) else {
            return false;
        };
        self.now = due;
        self.watch.look(&self.nodes, &self.guards, self.reading());
        match step {
            Step::Orphan => {
                let (_, node, command) = self.orphans.pop_front().expect("just seen");
                self.execute(None, node, &command);
                self.watch.orphans += 1;
            }
            Step::Request(client, node) => {
                let link = &mut self.links[client][node];
                let Packet { sent, ticket, what, .. } = link.requests.pop_front().expect("seen");
                let what = self.execute(Some(client), node, &what);
                let link = &mut self.links[client][node];
                link.replies.push_back(Packet { due: due + link.one_way, sent, ticket, what });
            }
            Step::Push(client, node) => {
                let (_, key) = self.links[client][node].pushes.pop_front().expect("just seen");
                let keys = Some(vec![key]);
                self.tell(client, Event::Pushed { node: NodeId::new(node), keys });
            }
            Step::Reply(client, node) => {
                let reply = self.links[client][node].replies.pop_front().expect("just seen");
                let unsent = matches!(&reply.what, Answer::Failed(failure)
                    if !failure.may_have_been_executed());
                if let Some(history) = self.history.as_mut().filter(|_| !unsent) {
                    let Packet { sent, ticket, what, .. } = reply.clone();
                    history.push(Delivered { client, node, sent, ticket, answer: what });
                }
                self.answer(client, node, reply.sent, reply.ticket, reply.what);
            }
            Step::Deadline(client) => self.tell(client, Event::Wake),
        }
        true
    }

    pub(crate) fn answer(
        &mut self,
        client: usize,
        node: usize,
        sent: Reading,
        ticket: Ticket,
        answer: Answer,
    ) {
        let node = NodeId::new(node);
        self.watch.answered((client, node), ticket, &answer);
        self.tell(
            client,
            Event::Answered { node, sent, proof: Proof::Vouched, answers: vec![(ticket, answer)] },
        );
    }

    fn next_step(&self) -> Option<(i64, Step)> {
        let orphan = self.orphans.front().map(|(due, ..)| (*due, Step::Orphan));
        let clients = 0..self.engines.len();
        let links = clients.clone().flat_map(|client| {
            self.links[client].iter().enumerate().flat_map(move |(node, link)| {
                let request = link.requests.front().filter(|_| !self.frozen[node]);
                let reply = link.replies.front().filter(|_| !link.mute);
                let request = request.map(|packet| (packet.due, Step::Request(client, node)));
                let awake = self.asleep_until[client];
                let reply = reply.map(|packet| (packet.due.max(awake), Step::Reply(client, node)));
                let push = link.pushes.front().filter(|_| !link.mute);
                let push = push.map(|(due, _)| ((*due).max(awake), Step::Push(client, node)));
                [request, reply, push].into_iter().flatten()
            })
        });
        let deadlines = clients.filter_map(|client| {
            let at = self.engines[client].deadline()?.as_nanos();
            Some((at.max(self.asleep_until[client]), Step::Deadline(client)))
        });
        let steps = orphan.into_iter().chain(links).chain(deadlines);
        steps.map(|(due, step)| (due.max(self.now), step)).min()
    }

    /// Drops every guard, mends everything, and shows that nothing is left: no key of ours on any
    /// node (unless an orphan was set free), no record, no deadline, no place in a queue.
    pub(crate) fn finish(&mut self) {
        self.asleep_until.fill(0);
        for node in 0..self.nodes.len() {
            self.nodes[node].failing = None;
            self.freeze(node, false);
            self.mute(node, false);
            self.set_one_way(node, ONE_WAY);
            self.up(node);
        }
        for lock in 0..self.owners.len() as u64 {
            self.cancel(LockId(lock));
        }
        let held: Vec<LockId> = self.guards.keys().copied().collect();
        for lock in held {
            self.release(lock, false);
        }
        self.settle();
        let now = self.now;
        self.nodes.iter_mut().for_each(|node| node.expire(now));
        self.watch.everything_was_released();
        if self.watch.orphans == 0 {
            self.watch.no_key_is_left(&self.nodes);
        }
        for client in 0..self.engines.len() {
            let lock = self.acquire_by(client, once("afterwards"));
            self.run_for(3 * ONE_WAY);
            self.release(lock, false);
            self.settle();
            self.now += 60_000 * MS;
            let engine = self.engines[client].rebased(self.reading(), 0).0;
            assert_eq!(engine, idle(self.quorum), "something has leaked");
        }
    }
}

/// An engine with nothing in it, which knows how far the nodes are.
fn idle(quorum: Quorum) -> Engine {
    Engine::new(quorum).with_fixed_round_trip(Duration::from_millis(2 * ONE_WAY as u64))
}
