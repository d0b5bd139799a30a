//! The line to a node: takes all commands that wait and sends them as one pipeline.
//!
//! Nothing to batch with: sent at once. While a batch is on its way, what comes in gathers and goes
//! with the next one (group commit). A few batches are in flight at a time; their answers are handed
//! on in the order of sending, also across connections, so that an old "extended" can never be
//! taken for news after a newer "gone".

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesOrdered, Stream};
use quorlock_core::{Answer, Command, Event, Failure, FailureKind, NodeId, Proof, Ticket};
use tokio::sync::mpsc::UnboundedSender;

use super::{Answers, Batch, BoxFuture, Node, NodeState, Stamp};
use crate::clock::Clock;

/// A command and what it belongs to.
pub(crate) type Order = (Ticket, Command);

/// At most so many commands travel together.
const BATCH_MAX: usize = 512;

/// At most so many batches are in flight to one node.
const IN_FLIGHT_MAX: usize = 4;

/// At most so many commands wait for one node; further ones fail.
const QUEUE_MAX: usize = 65_536;

/// What is left of a batch once it is under way.
struct Done {
    stamp: Arc<Stamp>,
    tickets: Vec<Ticket>,
    answers: Answers,
}

/// The way to one node.
pub(crate) struct Line {
    id: NodeId,
    node: Arc<dyn Node>,
    clock: Clock,
    events: UnboundedSender<Event>,
    waiting: VecDeque<Order>,
    /// The node is suspended, and nothing but releases waits: looked through once, not with every
    /// order that comes.
    sifted: bool,
    in_flight: FuturesOrdered<BoxFuture<Done>>,
    stamps: VecDeque<Arc<Stamp>>,
    /// What the engine is to be told, and has not been yet.
    told: Vec<Event>,
}

impl Line {
    pub(crate) fn new(
        id: NodeId,
        node: Arc<dyn Node>,
        clock: Clock,
        events: UnboundedSender<Event>,
    ) -> Self {
        Self {
            id,
            node,
            clock,
            events,
            waiting: VecDeque::new(),
            sifted: false,
            in_flight: FuturesOrdered::new(),
            stamps: VecDeque::new(),
            told: Vec::new(),
        }
    }

    /// Sends what waits and takes in what has been answered. Adds to `events` what the engine is to
    /// be told; wakes the task when there is more.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, events: &mut Vec<Event>) {
        loop {
            let before = self.told.len();
            while let Poll::Ready(Some(done)) = Pin::new(&mut self.in_flight).poll_next(cx) {
                self.stamps.pop_front();
                self.hand_on(done);
            }
            if mutant!(OutOfOrder) {
                self.told[before..].reverse();
            }
            if !self.start() {
                break;
            }
        }
        for stamp in &self.stamps {
            stamp.announce_waiting();
        }
        events.append(&mut self.told);
    }

    /// Takes commands for the node; they are sent when the line is polled.
    pub(crate) fn take(&mut self, orders: &mut Vec<Order>) {
        let orders = match self.node.state() {
            NodeState::Suspended(failure) => &mut self.sift(std::mem::take(orders), &failure),
            _ => {
                self.sifted = false;
                orders
            }
        };
        let room = QUEUE_MAX.saturating_sub(self.waiting.len());
        if orders.len() <= room {
            self.waiting.extend(orders.drain(..));
        } else {
            self.fail(std::mem::take(orders), &Failure::unsent(FailureKind::QueueFull));
        }
    }

    /// Sends what waits, as far as the node's state and the batches in flight allow. Returns
    /// whether anything was started, which must then be polled.
    fn start(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        match self.node.state() {
            NodeState::Down(failure) => {
                let orders: Vec<Order> = self.waiting.drain(..).collect();
                self.fail(orders, &failure);
                return false;
            }
            NodeState::Suspended(failure) if !self.sifted => {
                let waiting = std::mem::take(&mut self.waiting).into();
                self.waiting = self.sift(waiting, &failure).into();
                self.sifted = true;
            }
            NodeState::Suspended(_) | NodeState::Up | NodeState::Connecting => {}
        }
        // Which of several batches that wait for a connection would be sent first is up to whoever
        // wakes them, and a release must not overtake its acquire: so only one waits at a time.
        let unsent = self.stamps.back().is_some_and(|stamp| stamp.sent().is_none());
        if self.waiting.is_empty() || unsent || self.in_flight.len() >= IN_FLIGHT_MAX {
            return false;
        }
        let count = self.waiting.len().min(BATCH_MAX);
        let (mut tickets, mut commands) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (ticket, command) in self.waiting.drain(..count) {
            tickets.push(ticket);
            commands.push(command);
        }
        let stamp = Arc::new(Stamp::new(self.id, self.clock, self.events.clone()));
        let batch = Batch { commands, stamp: stamp.clone() };
        let answers = self.node.execute(batch);
        self.stamps.push_back(stamp.clone());
        self.in_flight
            .push_back(Box::pin(async move { Done { stamp, tickets, answers: answers.await } }));
        true
    }

    /// Of what is meant for a suspended node, releases go behind what is in its silent connection;
    /// all else fails at once.
    fn sift(&mut self, orders: Vec<Order>, failure: &Failure) -> Vec<Order> {
        let (releases, rest) = orders.into_iter().partition(|(_, command)| command.is_release());
        self.fail(rest, failure);
        releases
    }

    fn fail(&mut self, orders: Vec<Order>, failure: &Failure) {
        if orders.is_empty() {
            return;
        }
        let answers = orders
            .into_iter()
            .map(|(ticket, _)| (ticket, Answer::Failed(failure.clone())))
            .collect();
        let (node, sent) = (self.id, self.clock.now());
        self.told.push(Event::Answered { node, sent, proof: Proof::Vouched, answers });
    }

    fn hand_on(&mut self, done: Done) {
        let Done { stamp, tickets, answers: Answers { mut answers, proof } } = done;
        // An answer to what was never sent is no vote (S4), whenever it is said to have been sent.
        let (sent, was_sent) = match stamp.sent() {
            Some(_) if mutant!(TimedByAnswer) => (self.clock.now(), true),
            Some(sent) => (sent, true),
            None => (self.clock.now(), false),
        };
        if answers.len() != tickets.len() {
            // Which answer belongs to which command cannot be told: none counts.
            answers = vec![Answer::Failed(Failure::new(FailureKind::Protocol)); tickets.len()];
        }
        if !was_sent {
            let votes = answers.iter_mut().filter(|answer| !matches!(answer, Answer::Failed(_)));
            votes.for_each(|answer| *answer = Answer::Failed(Failure::new(FailureKind::Protocol)));
        }
        // With room for all from the start: collecting would make some of the tickets' first.
        let mut both = Vec::with_capacity(tickets.len());
        both.extend(tickets.into_iter().zip(answers));
        let answers = both;
        self.told.push(Event::Answered { node: self.id, sent, proof, answers });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Mutex, MutexGuard};

    use quorlock_core::{LockId, Token, Value, Verb};
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
    use tokio::sync::oneshot;

    use super::*;

    /// A node that sends and answers when it is told to.
    #[derive(Clone, Debug, Default)]
    struct Told(Arc<Mutex<Inner>>);

    #[derive(Debug, Default)]
    struct Inner {
        state: Option<NodeState>,
        given: Vec<Given>,
    }

    #[derive(Debug)]
    struct Given {
        locks: Vec<u64>,
        send: Option<oneshot::Sender<()>>,
        answer: Option<oneshot::Sender<Vec<Answer>>>,
    }

    impl Told {
        fn inner(&self) -> MutexGuard<'_, Inner> {
            self.0.lock().unwrap()
        }

        fn set(&self, state: NodeState) {
            self.inner().state = Some(state);
        }

        /// The commands of each batch that was given, by their locks' numbers.
        fn given(&self) -> Vec<Vec<u64>> {
            self.inner().given.iter().map(|batch| batch.locks.clone()).collect()
        }

        fn send(&self, batch: usize) {
            self.inner().given[batch].send.take().unwrap().send(()).unwrap();
        }

        fn answer(&self, batch: usize, answers: Vec<Answer>) {
            self.inner().given[batch].answer.take().unwrap().send(answers).unwrap();
        }
    }

    impl Node for Told {
        fn name(&self) -> &str {
            "told"
        }

        fn state(&self) -> NodeState {
            self.inner().state.clone().unwrap_or(NodeState::Up)
        }

        fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
            let ((send, sent), (answer, answers)) = (oneshot::channel(), oneshot::channel());
            let locks = batch.commands().iter().map(number).collect();
            let (send, answer) = (Some(send), Some(answer));
            self.inner().given.push(Given { locks, send, answer });
            Box::pin(async move {
                if sent.await.is_ok() {
                    let _ = batch.send();
                }
                answers.await.unwrap().into()
            })
        }
    }

    fn number(command: &Command) -> u64 {
        let (Command::Acquire { key, .. } | Command::Release { key, .. }) = command else {
            panic!("not used here: {command:?}")
        };
        key.parse().unwrap()
    }

    fn acquire(number: u64) -> Order {
        let (key, value) = (number.to_string().into(), Value::new(&Token::new([7; 20]), ""));
        let ticket = Ticket { lock: LockId(number), round: 1, verb: Verb::Acquire };
        (ticket, Command::Acquire { key, value, ttl_ms: 1000 })
    }

    fn release(number: u64) -> Order {
        let (ticket, Command::Acquire { key, value, .. }) = acquire(number) else { unreachable!() };
        (Ticket { verb: Verb::Release, ..ticket }, Command::Release { key, value, tell: true })
    }

    /// What the driver does with a line.
    async fn run(
        mut line: Line,
        mut orders: UnboundedReceiver<Vec<Order>>,
        events: UnboundedSender<Event>,
    ) {
        let mut told = Vec::new();
        std::future::poll_fn(|cx| {
            loop {
                line.poll(cx, &mut told);
                told.drain(..).for_each(|event| events.send(event).unwrap());
                match orders.poll_recv(cx) {
                    Poll::Ready(Some(mut more)) => line.take(&mut more),
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }

    struct Setting {
        node: Told,
        line: UnboundedSender<Vec<Order>>,
        events: UnboundedReceiver<Event>,
    }

    impl Setting {
        fn new() -> Self {
            let node = Told::default();
            let ((line, orders), (sender, events)) = (unbounded_channel(), unbounded_channel());
            let (id, to) = (NodeId::new(0), Arc::new(node.clone()));
            let way = Line::new(id, to, Clock::Tokio, sender.clone());
            tokio::spawn(run(way, orders, sender));
            Self { node, line, events }
        }

        /// Gives orders and lets the task run until it has nothing to do.
        async fn order(&self, orders: impl IntoIterator<Item = Order>) {
            self.line.send(orders.into_iter().collect()).unwrap();
            self.settle().await;
        }

        async fn settle(&self) {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }

        /// What the engine was told: of answers, which locks they belong to.
        fn told(&mut self) -> Vec<(Vec<u64>, Vec<Answer>)> {
            let mut told = Vec::new();
            while let Ok(event) = self.events.try_recv() {
                if let Event::Answered { answers, .. } = event {
                    told.push(answers.into_iter().map(|(ticket, a)| (ticket.lock.0, a)).unzip());
                }
            }
            told
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_given_only_when_the_one_before_is_on_its_way() {
        let mut setting = Setting::new();
        setting.order([acquire(1)]).await;
        setting.order([release(1)]).await;
        setting.order([acquire(2), acquire(3)]).await;
        assert_eq!(setting.node.given(), [vec![1]]);
        assert!(matches!(setting.events.try_recv(), Ok(Event::Connecting { .. })));
        assert!(setting.events.try_recv().is_err(), "told once");
        setting.node.send(0);
        setting.settle().await;
        assert_eq!(setting.node.given(), [vec![1], vec![1, 2, 3]], "all that waits goes together");
        assert!(matches!(setting.events.try_recv(), Ok(Event::Connected { .. })));
        setting.node.send(1);
        // The second is answered first, and told in its turn.
        setting.node.answer(1, vec![Answer::Deleted, Answer::Granted, Answer::Refused]);
        setting.settle().await;
        assert!(setting.told().is_empty());
        setting.node.answer(0, vec![Answer::Granted]);
        setting.settle().await;
        let second = (vec![1, 2, 3], vec![Answer::Deleted, Answer::Granted, Answer::Refused]);
        assert_eq!(setting.told(), [(vec![1], vec![Answer::Granted]), second]);
    }

    #[tokio::test(start_paused = true)]
    async fn few_batches_are_in_flight_and_none_is_too_large() {
        let setting = Setting::new();
        setting.order((0..3 * 512).map(acquire)).await;
        for batch in 0..2 {
            setting.node.send(batch);
            setting.settle().await;
        }
        let sizes =
            |setting: &Setting| setting.node.given().iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(&setting), [512; 3]);
        setting.node.send(2);
        for number in 0..3 {
            setting.order([acquire(number)]).await;
            if number == 0 {
                setting.node.send(3);
            }
        }
        assert_eq!(sizes(&setting), [512, 512, 512, 1], "the others wait");
        setting.node.answer(0, vec![Answer::Refused; 512]);
        setting.settle().await;
        assert_eq!(sizes(&setting), [512, 512, 512, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_node_is_sent_nothing_but_releases() {
        let mut setting = Setting::new();
        let failure = Failure::unsent(FailureKind::Suspended);
        let fails =
            |locks: &[u64]| (locks.to_vec(), vec![Answer::Failed(failure.clone()); locks.len()]);
        setting.order([acquire(1)]).await;
        setting.order([acquire(2), release(2), acquire(3)]).await;
        assert!(setting.told().is_empty());
        setting.node.set(NodeState::Suspended(failure.clone()));
        // What waits is looked through, and what comes.
        setting.order([release(3), acquire(4), release(4)]).await;
        assert_eq!(setting.told(), [fails(&[2, 3]), fails(&[4])]);
        setting.order([acquire(5), release(5)]).await;
        assert_eq!(setting.told(), [fails(&[5])]);
        setting.node.send(0);
        setting.settle().await;
        assert_eq!(setting.node.given(), [vec![1], vec![2, 3, 4, 5]], "the releases, in order");

        setting.node.set(NodeState::Up);
        setting.node.send(1);
        setting.order([acquire(6)]).await;
        setting.order([acquire(7)]).await;
        setting.node.set(NodeState::Suspended(failure.clone()));
        setting.order([release(7)]).await;
        assert_eq!(setting.told(), [fails(&[7])], "suspended again, it is looked through again");
        assert_eq!(setting.node.given()[2..], [vec![6]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_down_fails_everything_at_once() {
        let mut setting = Setting::new();
        let failure = Failure::unsent(FailureKind::Unreachable);
        setting.order([acquire(1)]).await;
        setting.node.set(NodeState::Down(failure.clone()));
        setting.order([acquire(2), release(2)]).await;
        let failed = vec![Answer::Failed(failure); 2];
        assert_eq!(setting.told(), [(vec![2, 2], failed)]);
        assert_eq!(setting.node.given(), [vec![1]]);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_cannot_be_right_are_no_votes() {
        let mut setting = Setting::new();
        let protocol = Answer::Failed(Failure::new(FailureKind::Protocol));
        setting.order([acquire(1), acquire(2)]).await;
        setting.node.send(0);
        setting.node.answer(0, vec![Answer::Granted]);
        setting.settle().await;
        let both = (vec![1, 2], vec![protocol.clone(); 2]);
        assert_eq!(setting.told(), [both], "one answer too few");

        setting.order([acquire(3), acquire(4)]).await;
        let unsent = Answer::Failed(Failure::unsent(FailureKind::Unreachable));
        setting.node.inner().given[1].send = None;
        setting.node.answer(1, vec![Answer::Granted, unsent.clone()]);
        setting.settle().await;
        assert_eq!(setting.told(), [(vec![3, 4], vec![protocol, unsent])], "it was never sent");
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_so_much_waits_for_a_node() {
        let mut setting = Setting::new();
        setting.order([acquire(0)]).await;
        for start in (1..=QUEUE_MAX as u64).step_by(1024) {
            setting.order((start..start + 1024).map(acquire)).await;
        }
        assert!(setting.told().is_empty());
        setting.order([acquire(1_000_000)]).await;
        let full = Answer::Failed(Failure::unsent(FailureKind::QueueFull));
        assert_eq!(setting.told(), [(vec![1_000_000], vec![full])]);
        setting.node.send(0);
        setting.settle().await;
        setting.order([acquire(1_000_001)]).await;
        assert!(setting.told().is_empty(), "there is room again");
        let given: BTreeSet<u64> = setting.node.given().concat().into_iter().collect();
        assert_eq!(given.len(), 513);
    }
}
