//! Connections: what is under way on them, and what becomes of it.

use std::collections::VecDeque;

use quorlock_core::{
    Answer, Command, Event, Evidence, Failure, FailureKind, Key, NodeId, Reading, Ticket,
};

use super::{Delivered, ONE_WAY, ScriptedWorld};
use crate::driver::Driver;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::node::ConnectionId;
use crate::time::{MS, Time};

/// The connection between a client and a node.
pub(super) struct ScriptedLink {
    state: LinkState,
    one_way: Time,
    /// Answers do not arrive any more (and the client cannot tell why).
    is_mute: bool,
    waiting: VecDeque<(Ticket, Command)>,
    requests: VecDeque<Packet<Command>>,
    replies: VecDeque<Packet<(Answer, Evidence)>>,
    /// Keys that have changed, and when the client hears of it; not in one order with the replies.
    pushes: VecDeque<(Time, Key)>,
    /// How long a push takes; `None`: as long as a reply.
    push_way: Option<Time>,
    /// Such commands are not sent until they are let go.
    pub(super) holds_back: Option<fn(&Command) -> bool>,
    pub(super) held_back: Vec<(Ticket, Command)>,
    pub(super) said: NodeReplies,
}

/// What the node has said of itself on a connection.
pub(super) struct NodeReplies {
    /// The connection, counted.
    pub(super) epoch: u64,
    /// It has said what it is.
    pub(super) identified: bool,
    /// How often it has said that its data are others.
    pub(super) flushes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LinkState {
    Up,
    Connecting,
    Down,
}

struct Packet<T> {
    due: Time,
    sent: Reading,
    ticket: Ticket,
    what: T,
}

/// What happens next; of what happens at one time, the first of these first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Step {
    Orphan,
    Request(ClientId, NodeIndex),
    Reply(ClientId, NodeIndex),
    Push(ClientId, NodeIndex),
    Deadline(ClientId),
}

impl ScriptedLink {
    pub(super) const fn new() -> Self {
        Self {
            state: LinkState::Up,
            one_way: ONE_WAY * MS,
            is_mute: false,
            waiting: VecDeque::new(),
            requests: VecDeque::new(),
            replies: VecDeque::new(),
            pushes: VecDeque::new(),
            push_way: None,
            holds_back: None,
            held_back: Vec::new(),
            said: NodeReplies { epoch: 1, identified: false, flushes: 0 },
        }
    }

    fn fail_waiting(&mut self, kind: FailureKind, now: Time) {
        for (ticket, _) in std::mem::take(&mut self.waiting) {
            let what = failed(Failure::unsent(kind));
            self.replies.push_back(Packet { due: now, sent: Reading::new(0, 0), ticket, what });
        }
    }
}

/// The connections between clients and nodes.
pub(super) struct Wires {
    pub(super) links: Vec<Vec<ScriptedLink>>,
    /// Until when a client does not run, by client.
    pub(super) asleep_until: Vec<Time>,
    /// Commands whose connection died while they were on their way, and which arrive all the same.
    pub(super) orphans: VecDeque<(Time, NodeIndex, (usize, Ticket, Command))>,
    pub(super) has_orphans: bool,
}

impl ScriptedWorld {
    pub(super) fn send(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        ticket: Ticket,
        what: Command,
    ) {
        let (now, sent) = (self.now, self.reading());
        match self.wires.links[client][node].state {
            LinkState::Up => {
                self.note(&Fact::Sent { client, node, ticket, command: &what });
                let link = &mut self.wires.links[client][node];
                let due = now + link.one_way;
                match link.holds_back {
                    Some(which) if which(&what) => link.held_back.push((ticket, what)),
                    _ => link.requests.push_back(Packet { due, sent, ticket, what }),
                }
            }
            LinkState::Connecting => {
                self.wires.links[client][node].waiting.push_back((ticket, what))
            }
            LinkState::Down => {
                let what = failed(Failure::unsent(FailureKind::Unreachable));
                let link = &mut self.wires.links[client][node];
                link.replies.push_back(Packet { due: now, sent, ticket, what });
            }
        }
    }

    /// How long a node's commands and answers take, each.
    pub fn set_one_way(&mut self, node: usize, ms: i64) {
        (0..self.engines.len()).for_each(|client| self.set_one_way_of(client, node, ms));
    }

    /// The same for one client.
    pub fn set_one_way_of(&mut self, client: usize, node: usize, ms: i64) {
        self.wires.links[client][node].one_way = ms * MS;
    }

    /// How long pushes of this node take, whatever its replies do.
    pub fn set_push_way(&mut self, node: usize, ms: i64) {
        self.wires.links.iter_mut().for_each(|links| links[node].push_way = Some(ms * MS));
    }

    /// Answers of this node do not arrive until it is no longer mute.
    pub fn mute(&mut self, node: usize, mute: bool) {
        self.wires.links.iter_mut().for_each(|links| links[node].is_mute = mute);
    }

    /// The connections break; what was under way is lost, or arrives as an orphan later.
    pub fn cut(&mut self, node: usize, orphans_after: Option<i64>) {
        for client in 0..self.engines.len() {
            self.nodes[node].model.disconnect(ConnectionId(client as u64));
            let link = &mut self.wires.links[client][node];
            link.state = LinkState::Down;
            link.is_mute = false;
            link.pushes.clear();
            for Packet { sent, ticket, what, .. } in std::mem::take(&mut link.requests) {
                let failed = failed(Failure::new(FailureKind::Unreachable));
                link.replies.push_back(Packet { due: 0, sent, ticket, what: failed });
                if let Some(after) = orphans_after {
                    self.wires.orphans.push_back((
                        self.now + after * MS,
                        node,
                        (client, ticket, what),
                    ));
                }
            }
            for reply in &mut link.replies {
                reply.due = self.now;
                if !matches!(reply.what.0, Answer::Failed(_)) {
                    reply.what = failed(Failure::new(FailureKind::Unreachable));
                }
            }
            link.fail_waiting(FailureKind::Unreachable, self.now);
        }
    }

    /// Nothing listens: commands fail at once, unsent.
    pub fn down(&mut self, node: usize) {
        self.cut(node, None);
    }

    /// Connections are being made.
    pub fn connecting(&mut self, node: usize) {
        for client in 0..self.engines.len() {
            self.wires.links[client][node].state = LinkState::Connecting;
            self.tell(client, Event::Connecting { node: NodeId::new(node) });
        }
    }

    /// The connections that were being made could not be.
    pub fn connecting_failed(&mut self, node: usize) {
        for link in self.wires.links.iter_mut().map(|links| &mut links[node]) {
            if link.state == LinkState::Connecting {
                link.state = LinkState::Down;
                link.fail_waiting(FailureKind::ConnectTimeout, self.now);
            }
        }
    }

    /// The connection is there: what waited for it is sent, ahead of everything else, and the
    /// client is told.
    pub fn up(&mut self, node: usize) {
        for client in 0..self.engines.len() {
            self.wires.links[client][node].state = LinkState::Up;
            for (ticket, command) in std::mem::take(&mut self.wires.links[client][node].waiting) {
                self.send(client, node, ticket, command);
            }
            self.tell(client, Event::Connected { node: NodeId::new(node) });
            self.tell(client, Event::Pushed { node: NodeId::new(node), keys: None });
        }
    }

    /// The connection is made while no command waits for it: then nobody tells the engine.
    ///
    /// # Panics
    /// If one waits.
    pub fn up_untold(&mut self, node: usize) {
        for links in &mut self.wires.links {
            assert!(links[node].waiting.is_empty());
            links[node].state = LinkState::Up;
        }
    }

    /// A node carries out a command, perhaps of a connection that is dead, and tells those who wanted to know
    /// that a key has changed.
    pub(super) fn execute(
        &mut self,
        (client, zombie): (ClientId, bool),
        node: NodeIndex,
        ticket: Ticket,
        command: &Command,
    ) -> Answer {
        let by = ConnectionId(if zombie { u64::MAX } else { client as u64 });
        let it = &mut self.nodes[node];
        let looks = matches!(command, Command::Inspect { .. } | Command::Watch { .. });
        let answer = &match it.is_blind && looks {
            true => Answer::Failed(Failure::new(FailureKind::Rejected)),
            false => it.model.execute(by, command, self.now),
        };
        let (duplicate, early) = (false, false);
        self.note(&Fact::Executed {
            node,
            client,
            ticket,
            command,
            answer,
            zombie,
            duplicate,
            early,
        });
        self.push_all(node);
        answer.clone()
    }

    /// What a node has to tell is on its way.
    pub(super) fn push_all(&mut self, node: NodeIndex) {
        for (ConnectionId(client), key) in self.nodes[node].model.take_pushes() {
            if let Some(links) = self.wires.links.get_mut(client as usize) {
                let link = &mut links[node];
                let due = self.now + link.push_way.unwrap_or(link.one_way);
                link.pushes.push_back((due, key));
            }
        }
    }

    pub(super) fn request(&mut self, client: ClientId, node: NodeIndex) {
        let Some(packet) = self.wires.links[client][node].requests.pop_front() else { return };
        let Packet { sent, ticket, what, .. } = packet;
        let what = self.execute_proved(client, node, ticket, &what);
        let link = &mut self.wires.links[client][node];
        link.replies.push_back(Packet { due: self.now + link.one_way, sent, ticket, what });
    }

    pub(super) fn pushed(&mut self, client: ClientId, node: NodeIndex) {
        let Some((_, key)) = self.wires.links[client][node].pushes.pop_front() else { return };
        self.tell(client, Event::Pushed { node: NodeId::new(node), keys: Some(vec![key]) });
    }

    pub(super) fn reply(&mut self, client: ClientId, node: NodeIndex) {
        let Some(packet) = self.wires.links[client][node].replies.pop_front() else { return };
        let Packet { sent, ticket, what: (answer, evidence), .. } = packet;
        let unsent = matches!(&answer, Answer::Failed(failure)
            if !failure.may_have_been_executed());
        if let Some(history) = self.settings.history.as_mut().filter(|_| !unsent) {
            history.push(Delivered { client, node, sent, ticket, answer: answer.clone() });
        }
        self.answer_proved((client, node), sent, (ticket, answer), evidence);
    }

    /// A client is told an answer, whether or not a node gave it.
    pub fn answer(
        &mut self,
        client: usize,
        node: usize,
        sent: Reading,
        ticket: Ticket,
        answer: Answer,
    ) {
        self.answer_proved((client, node), sent, (ticket, answer), Evidence::NotRequired);
    }

    fn answer_proved(
        &mut self,
        (client, node): (ClientId, NodeIndex),
        sent: Reading,
        answer: (Ticket, Answer),
        evidence: Evidence,
    ) {
        let (node, answers) = (NodeId::new(node), vec![answer]);
        self.tell(client, Event::Answered { node, sent, evidence, answers });
    }

    pub(super) fn next_step(&self) -> Option<(Time, Step)> {
        let orphan = self.wires.orphans.front().map(|(due, ..)| (*due, Step::Orphan));
        let clients = 0..self.engines.len();
        let links = clients.clone().flat_map(|client| {
            self.wires.links[client].iter().enumerate().flat_map(move |(node, link)| {
                let request = link.requests.front().filter(|_| !self.nodes[node].is_frozen);
                let reply = link.replies.front().filter(|_| !link.is_mute);
                let request = request.map(|packet| (packet.due, Step::Request(client, node)));
                let awake = self.wires.asleep_until[client];
                let reply = reply.map(|packet| (packet.due.max(awake), Step::Reply(client, node)));
                let push = link.pushes.front().filter(|_| !link.is_mute);
                let push = push.map(|(due, _)| ((*due).max(awake), Step::Push(client, node)));
                [request, reply, push].into_iter().flatten()
            })
        });
        let deadlines = clients.filter_map(|client| {
            let at = self.engines[client].deadline()?.as_nanos();
            Some((at.max(self.wires.asleep_until[client]), Step::Deadline(client)))
        });
        let steps = orphan.into_iter().chain(links).chain(deadlines);
        steps.map(|(due, step)| (due.max(self.now), step)).min()
    }
}

/// A failure, which needs no proof.
fn failed(failure: Failure) -> (Answer, Evidence) {
    (Answer::Failed(failure), Evidence::NotRequired)
}
