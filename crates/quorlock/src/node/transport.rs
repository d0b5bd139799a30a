//! The line to a node: carries out what the node's pipeline says.
//!
//! [`NodePipeline`] decides which commands travel together, when, and in which order their answers are told. To a
//! server of ours a line is [`Direct`]. To any other node it is [`Adapted`], which gives it the batches, polls their
//! futures, and tells the pipeline what came of them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesOrdered, Stream};
use quorlock_core::{
    Answer, BatchId, Event, NodeId, NodePipeline, Reading, Ticket, TicketedCommand,
};

use super::redis::{Direct, Encoder};
use super::{Answers, Batch, BoxFuture, Node, PushSink, Stamp};
use crate::clock::Clock;

pub(crate) enum Transport {
    Direct(Direct),
    Adapted(Adapted),
}

impl Transport {
    pub(crate) fn new(id: NodeId, node: &Arc<dyn Node>, clock: Clock) -> Self {
        match node.as_redis() {
            Some(server) => Self::Direct(Direct::new(id, server, clock)),
            None => Self::Adapted(Adapted::new(id, node.clone(), clock)),
        }
    }

    /// What the node does in the background; to be polled before the line.
    pub(crate) fn background(&self, push_sink: PushSink) -> BoxFuture<()> {
        match self {
            Self::Direct(transport) => transport.background(push_sink),
            Self::Adapted(transport) => transport.node.background(push_sink),
        }
    }

    /// Takes commands for the node; `now` was read before they were made. They are sent now, or when the line is
    /// polled. Adds to `events` what the engine is to be told.
    pub(crate) fn take(
        &mut self,
        commands: &mut Vec<TicketedCommand>,
        now: Reading,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        match self {
            Self::Direct(transport) => transport.take(commands, now, encoder, events),
            Self::Adapted(transport) => transport.take(commands, now, events),
        }
    }

    /// It is to be polled although nobody has woken it.
    pub(crate) fn is_changed(&self) -> bool {
        match self {
            Self::Direct(transport) => transport.is_changed(),
            Self::Adapted(_) => false,
        }
    }

    /// It is to be polled after commands were given to it.
    pub(crate) fn sends_when_polled(&self) -> bool {
        matches!(self, Self::Adapted(_))
    }

    /// Sends what waits and takes in what has been answered. Adds to `events` what the engine is to
    /// be told; wakes the task when there is more.
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

    /// Takes back what came with answers, for its memory.
    pub(crate) fn reuse(&mut self, answers: Vec<(Ticket, Answer)>) {
        match self {
            Self::Direct(transport) => transport.reuse(answers),
            Self::Adapted(transport) => transport.pipeline.reuse(answers),
        }
    }
}

/// The way to a node of whatever kind.
pub(crate) struct Adapted {
    node: Arc<dyn Node>,
    clock: Clock,
    pipeline: NodePipeline,
    in_flight: FuturesOrdered<BoxFuture<(BatchId, Answers)>>,
    /// The batch that is not known to be on its way; there is one at most.
    unsent: Option<(BatchId, Arc<Stamp>)>,
    /// When commands were taken last. What fails without being sent is told with this time, which counts
    /// for nothing.
    now: Reading,
}

impl Adapted {
    fn new(id: NodeId, node: Arc<dyn Node>, clock: Clock) -> Self {
        let (pipeline, in_flight) = (NodePipeline::new(id), FuturesOrdered::new());
        Self { node, clock, pipeline, in_flight, unsent: None, now: clock.now() }
    }

    /// Takes commands for the node; they are sent when the line is polled. Adds to `events` what the engine
    /// is to be told.
    fn take(&mut self, commands: &mut Vec<TicketedCommand>, now: Reading, events: &mut Vec<Event>) {
        self.now = now;
        self.pipeline.push(commands, &self.node.state(), now, events);
    }

    /// Sends what waits and takes in what has been answered. Adds to `events` what the engine is to
    /// be told; wakes the task when there is more.
    fn poll(&mut self, cx: &mut Context<'_>, events: &mut Vec<Event>) {
        loop {
            while let Poll::Ready(Some((batch, answered))) =
                Pin::new(&mut self.in_flight).poll_next(cx)
            {
                self.note_sent(events);
                self.unsent.take_if(|(unsent, _)| *unsent == batch);
                let Answers { mut answers, evidence } = answered;
                self.pipeline.answered(batch, &mut answers, evidence, self.now, events);
            }
            self.note_sent(events);
            if self.start(events) {
                continue;
            }
            let Some((_, stamp)) = &self.unsent else { return };
            self.pipeline.announce(events);
            stamp.wake_when_sent(cx.waker());
            self.note_sent(events);
            // Another thread may have sent it in between: then what waits behind it is next.
            if self.unsent.is_some() {
                return;
            }
        }
    }

    /// Gives the next batch to the node, if there is one. Returns whether there was; it must be polled.
    fn start(&mut self, events: &mut Vec<Event>) -> bool {
        if !self.pipeline.has_waiting() {
            return false;
        }
        let mut commands = Vec::new();
        let next = self.pipeline.next_batch(&self.node.state(), self.now, &mut commands, events);
        let Some(batch) = next else { return false };
        let stamp = Arc::new(Stamp::new(self.clock));
        let answers = self.node.execute(Batch { commands, stamp: stamp.clone() });
        self.unsent = Some((batch, stamp));
        self.in_flight.push_back(Box::pin(async move { (batch, answers.await) }));
        true
    }

    fn note_sent(&mut self, events: &mut Vec<Event>) {
        let sent = self.unsent.as_ref().and_then(|(batch, stamp)| Some((*batch, stamp.sent()?)));
        if let Some((batch, at)) = sent {
            self.pipeline.sent(batch, at, events);
            self.unsent = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard};

    use quorlock_core::{Command, Event, Failure, FailureKind, LockId, Ticket, Token, Value, Verb};
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::sync::oneshot;

    use super::*;

    /// A node that sends and answers when it is told to.
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

    /// What the driver does with a line.
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
                    Poll::Ready(Some(mut more)) => {
                        transport.take(&mut more, Clock::Tokio.now(), &mut told)
                    }
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
            let way = Adapted::new(id, to, Clock::Tokio);
            tokio::spawn(run(way, orders, sender));
            Self { node, transport, events }
        }

        /// Gives orders and lets the task run until it has nothing to do.
        async fn order(&self, orders: impl IntoIterator<Item = TicketedCommand>) {
            self.transport.send(orders.into_iter().collect()).unwrap();
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

    /// Gives its batch away.
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
        let mut transport = Adapted::new(NodeId::new(0), node.clone(), Clock::Tokio);
        let mut told = Vec::new();
        transport.take(&mut vec![acquire(1)], Clock::Tokio.now(), &mut told);
        let mut sender = None;
        std::future::poll_fn(|cx| {
            transport.poll(cx, &mut told);
            if matches!(told[..], [Event::Connecting { .. }, Event::Connected { .. }]) {
                return Poll::Ready(());
            }
            // Nothing but the sending wakes this task.
            let batch = node.0.lock().unwrap().take();
            sender = batch.map(|batch| std::thread::spawn(|| drop(batch.send()))).or(sender.take());
            Poll::Pending
        })
        .await;
        sender.unwrap().join().unwrap();
    }
}
