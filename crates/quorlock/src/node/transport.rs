//! The driver's transport to one node.
//!
//! [`NodePipeline`] decides which commands are sent together, when, and in which order their answers are reported. The
//! transport to a server is [`Direct`]. The transport to any other node is [`Adapted`]: it gives the node the batches,
//! polls their futures, and reports the answers to the pipeline.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesOrdered, Stream};
use quorlock_core::{
    Answer, Commands, Event, Exchange, Failure, NodeId, NodePipeline, Reading, Ticket,
};

use super::redis::{Direct, Encoder};
use super::{Answers, Batch, BoxFuture, ClientNode, Node, NodeState, PushSink, Stamp};
use crate::clock::Clock;

pub(crate) enum Transport {
    Direct(Box<Direct>),
    Adapted(Box<Adapted>),
}

impl Transport {
    pub(crate) fn new(id: NodeId, node: &ClientNode, push_sink: PushSink, clock: Clock) -> Self {
        match node {
            ClientNode::Server(server) => {
                Self::Direct(Box::new(Direct::new(id, server, push_sink, clock)))
            }
            ClientNode::Custom(node) => {
                Self::Adapted(Box::new(Adapted::new(id, node.clone(), push_sink, clock)))
            }
        }
    }

    /// Takes commands for the node; `now` was read before the commands were created. Sends them now, or when it is
    /// polled. Adds to `events` the events for the engine.
    pub(crate) fn take(
        &mut self,
        commands: (&Commands, &[usize]),
        now: Reading,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        match self {
            Self::Direct(transport) => transport.take(commands, now, encoder, events),
            Self::Adapted(transport) => transport.take(commands, now, events),
        }
    }

    /// The failure that makes the node unreachable now; `None` if it can be reached.
    pub(crate) fn down(&self) -> Option<Failure> {
        let state = match self {
            Self::Direct(transport) => transport.state().clone(),
            Self::Adapted(transport) => transport.node.state(),
        };
        match state {
            NodeState::Suspended(failure) | NodeState::Down(failure) => Some(failure),
            _ => None,
        }
    }

    /// Whether the transport must be polled after it has taken commands.
    pub(crate) fn sends_when_polled(&self) -> bool {
        matches!(self, Self::Adapted(_))
    }

    /// Sends the commands that wait, and reads answers. Adds to `events` the events for the engine.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        match self {
            Self::Direct(transport) => transport.poll(cx, encoder, events),
            Self::Adapted(transport) => transport.poll(cx, events),
        }
    }

    pub(crate) fn reuse(&mut self, answers: Vec<(Ticket, Answer)>) {
        match self {
            Self::Direct(transport) => transport.reuse(answers),
            Self::Adapted(transport) => transport.pipeline.reuse(answers),
        }
    }
}

/// The transport to a node that is not a server, through the trait [`Node`].
pub(crate) struct Adapted {
    node: Arc<dyn Node>,
    /// [`Node::background`]; `None` once it has ended or panicked.
    background: Option<BoxFuture<()>>,
    clock: Clock,
    pipeline: NodePipeline,
    in_flight: FuturesOrdered<BoxFuture<Answers>>,
    /// The batches of `in_flight`, in the same order.
    exchanges: VecDeque<Exchange>,
    /// The stamp of the last batch, if the node may not have sent that batch yet.
    unsent: Option<Arc<Stamp>>,
    /// The clock reading when commands were last taken. It is the time of sending in the answers to commands that were
    /// never sent. Such an answer is never a vote.
    now: Reading,
}

impl Adapted {
    fn new(id: NodeId, node: Arc<dyn Node>, push_sink: PushSink, clock: Clock) -> Self {
        let background = Some(node.background(push_sink));
        Self {
            node,
            background,
            clock,
            pipeline: NodePipeline::new(id),
            in_flight: FuturesOrdered::new(),
            exchanges: VecDeque::new(),
            unsent: None,
            now: clock.now(),
        }
    }

    fn take(&mut self, commands: (&Commands, &[usize]), now: Reading, events: &mut Vec<Event>) {
        self.now = now;
        self.pipeline.push(commands.0, commands.1, &self.node.state(), now, events);
    }

    fn poll_background(&mut self, cx: &mut Context<'_>) {
        let Some(background) = &mut self.background else { return };
        match catch_unwind(AssertUnwindSafe(|| background.as_mut().poll(cx))) {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(())) => self.background = None,
            Err(_) => {
                let name = self.node.name();
                tracing::error!("the background task of node {name} panicked, and has ended");
                self.background = None;
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, events: &mut Vec<Event>) {
        self.poll_background(cx);
        loop {
            while let Poll::Ready(Some(answered)) = Pin::new(&mut self.in_flight).poll_next(cx) {
                self.note_sent(events);
                let Some(mut exchange) = self.exchanges.pop_front() else { return };
                if self.exchanges.is_empty() {
                    self.unsent = None;
                }
                exchange.answer_all(answered.answers, answered.evidence);
                self.pipeline.answered(&mut exchange, self.now, events);
            }
            self.note_sent(events);
            if self.start(events) {
                continue;
            }
            let Some(stamp) = &self.unsent else { return };
            self.pipeline.announce(events);
            stamp.wake_when_sent(cx.waker());
            self.note_sent(events);
            // Another thread may have sent the batch meanwhile. Then the loop continues with the next batch.
            if self.unsent.is_some() {
                return;
            }
        }
    }

    /// Gives the next batch to the node. Returns whether there was a batch; the caller then polls its future.
    fn start(&mut self, events: &mut Vec<Event>) -> bool {
        if !self.pipeline.has_waiting() {
            return false;
        }
        let mut exchange = Exchange::default();
        let state = &self.node.state();
        if self.pipeline.next_batch(state, self.now, &mut exchange, events).is_none() {
            return false;
        }
        let commands = exchange.to_send().map(|(_, command)| command.clone()).collect();
        let stamp = Arc::new(Stamp::new(self.clock));
        self.in_flight.push_back(self.node.execute(Batch { commands, stamp: stamp.clone() }));
        self.exchanges.push_back(exchange);
        self.unsent = Some(stamp);
        true
    }

    fn note_sent(&mut self, events: &mut Vec<Event>) {
        if let Some(at) = self.unsent.as_ref().and_then(|stamp| stamp.sent())
            && let Some(exchange) = self.exchanges.back_mut()
        {
            self.pipeline.sent(exchange, at, events);
            self.unsent = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard};

    use quorlock_core::{
        Command, Event, Failure, FailureKind, LockId, Ticket, TicketedCommand, Token, Value, Verb,
    };
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::sync::oneshot;

    use super::*;
    use crate::node::Inbox;

    /// A node that sends and answers when the test requests it.
    #[derive(Clone, Debug, Default)]
    struct Told(Arc<Mutex<Inner>>);

    #[derive(Debug, Default)]
    struct Inner {
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

        /// The lock ids of each batch that the node was given.
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
        let (Command::Acquire { keys, .. } | Command::Release { keys, .. }) = command else {
            panic!("not used here: {command:?}")
        };
        keys[0].parse().unwrap()
    }

    fn acquire(number: u64) -> TicketedCommand {
        let (keys, value) = ((*number.to_string()).into(), Value::new(&Token::new([7; 20]), ""));
        let ticket = Ticket { lock: LockId(number), round: 1, verb: Verb::Acquire };
        (ticket, Command::Acquire { keys, value, ttl_ms: 1000 })
    }

    fn release(number: u64) -> TicketedCommand {
        let (ticket, Command::Acquire { keys, value, .. }) = acquire(number) else {
            unreachable!()
        };
        (Ticket { verb: Verb::Release, ..ticket }, Command::Release { keys, value, tell: true })
    }

    fn take(transport: &mut Adapted, commands: Vec<TicketedCommand>, told: &mut Vec<Event>) {
        let members: Vec<usize> = (0..commands.len()).collect();
        transport.take((&Arc::new(commands), &members), Clock::Tokio.now(), told);
    }

    /// Polls a transport as the driver does.
    async fn run(
        mut transport: Adapted,
        mut orders: UnboundedReceiver<Vec<TicketedCommand>>,
        events: UnboundedSender<Event>,
    ) {
        let mut told = Vec::new();
        std::future::poll_fn(|cx| {
            loop {
                transport.poll(cx, &mut told);
                told.drain(..).for_each(|event| events.send(event).unwrap());
                match orders.poll_recv(cx) {
                    Poll::Ready(Some(more)) => take(&mut transport, more, &mut told),
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }

    struct Setting {
        node: Told,
        transport: UnboundedSender<Vec<TicketedCommand>>,
        events: UnboundedReceiver<Event>,
    }

    impl Setting {
        fn new() -> Self {
            let node = Told::default();
            let ((transport, orders), (sender, events)) =
                (unbounded_channel(), unbounded_channel());
            let (id, to) = (NodeId::new(0), Arc::new(node.clone()));
            let push_sink = Inbox::new(1).push_sink(id);
            let adapted = Adapted::new(id, to, push_sink, Clock::Tokio);
            tokio::spawn(run(adapted, orders, sender));
            Self { node, transport, events }
        }

        /// Gives commands to the transport, and lets its task run until it has nothing to do.
        async fn order(&self, orders: impl IntoIterator<Item = TicketedCommand>) {
            self.transport.send(orders.into_iter().collect()).unwrap();
            self.settle().await;
        }

        async fn settle(&self) {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }

        /// The answers for the engine, with their lock ids.
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
        // The second batch is answered first, but reported after the first.
        setting.node.answer(1, vec![Answer::Deleted, Answer::Granted, Answer::Refused]);
        setting.settle().await;
        assert!(setting.told().is_empty());
        setting.node.answer(0, vec![Answer::Granted]);
        setting.settle().await;
        let second = (vec![1, 2, 3], vec![Answer::Deleted, Answer::Granted, Answer::Refused]);
        assert_eq!(setting.told(), [(vec![1], vec![Answer::Granted]), second]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_said_to_be_sent_is_no_vote() {
        let mut setting = Setting::new();
        setting.order([acquire(1)]).await;
        setting.node.inner().given[0].send = None;
        setting.node.answer(0, vec![Answer::Granted]);
        setting.settle().await;
        let protocol = Answer::Failed(Failure::new(FailureKind::Protocol));
        assert_eq!(setting.told(), [(vec![1], vec![protocol])]);
        setting.order([acquire(2)]).await;
        assert_eq!(setting.node.given(), [vec![1], vec![2]], "and the line goes on");
    }

    /// A node that keeps its batch for another thread, which sends it.
    #[derive(Debug, Default)]
    struct Elsewhere(Mutex<Option<Batch>>);

    impl Node for Elsewhere {
        fn name(&self) -> &str {
            "elsewhere"
        }

        fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
            *self.0.lock().unwrap() = Some(batch);
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test]
    async fn a_batch_that_another_thread_sends_is_noticed() {
        let node = Arc::new(Elsewhere::default());
        let id = NodeId::new(0);
        let push_sink = Inbox::new(1).push_sink(id);
        let mut transport = Adapted::new(id, node.clone(), push_sink, Clock::Tokio);
        let mut told = Vec::new();
        take(&mut transport, vec![acquire(1)], &mut told);
        let mut sender = None;
        std::future::poll_fn(|cx| {
            transport.poll(cx, &mut told);
            if matches!(told[..], [Event::Connecting { .. }, Event::Connected { .. }]) {
                return Poll::Ready(());
            }
            // Another thread sends the batch, which must wake this task. Nothing else wakes it.
            let batch = node.0.lock().unwrap().take();
            sender = batch.map(|batch| std::thread::spawn(|| drop(batch.send()))).or(sender.take());
            Poll::Pending
        })
        .await;
        sender.unwrap().join().unwrap();
    }
}
