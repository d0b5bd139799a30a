use alloc::string::ToString as _;
use alloc::vec;

use super::*;
use crate::command::{AcquireForm, AttachForm, ExtendForm, ReleaseForm};
use crate::ids::{LockId, Verb};
use crate::keys::{Keys, Mode};
use crate::token::{Token, Value};

const NOW: Reading = Reading::new(0, 0);

struct Setting {
    pipeline: NodePipeline,
    state: NodeState,
    events: Vec<Event>,
    next: Vec<(Exchange, Vec<u64>)>,
}

impl Setting {
    fn new() -> Self {
        let (pipeline, state) = (NodePipeline::new(NodeId::new(0)), NodeState::Up);
        Self { pipeline, state, events: Vec::new(), next: Vec::new() }
    }

    /// Adds commands, and takes every batch that is ready to be sent.
    fn push(&mut self, commands: impl IntoIterator<Item = TicketedCommand>) {
        let commands = Arc::new(commands.into_iter().collect::<Vec<_>>());
        let members: Vec<usize> = (0..commands.len()).collect();
        self.pipeline.push(&commands, &members, &self.state, NOW, &mut self.events);
        self.give();
    }

    fn give(&mut self) {
        loop {
            let mut exchange = Exchange::default();
            let next = self.pipeline.next_batch(&self.state, NOW, &mut exchange, &mut self.events);
            if next.is_none() {
                return;
            }
            let locks = exchange.to_send().map(|(_, command)| number(command)).collect();
            self.next.push((exchange, locks));
        }
    }

    /// The lock numbers of the commands in each batch that was taken from the pipeline.
    fn given(&self) -> Vec<Vec<u64>> {
        self.next.iter().map(|(_, locks)| locks.clone()).collect()
    }

    fn send(&mut self, batch: usize) {
        self.pipeline.sent(&mut self.next[batch].0, NOW, &mut self.events);
        self.give();
    }

    fn answer(&mut self, batch: usize, answers: Vec<Answer>) {
        let exchange = &mut self.next[batch].0;
        exchange.answer_all(answers, Evidence::NotRequired);
        self.pipeline.answered(exchange, NOW, &mut self.events);
        self.give();
    }

    /// Takes the answers that the pipeline has reported to the engine since the last call, after their lock numbers.
    fn answers(&mut self) -> Vec<(Vec<u64>, Vec<Answer>)> {
        let answered = |event| match event {
            Event::Answered { answers, .. } => Some(answers),
            _ => None,
        };
        let answered = self.events.drain(..).filter_map(answered);
        answered
            .map(|answers| answers.into_iter().map(|(ticket, it)| (ticket.lock.0, it)).unzip())
            .collect()
    }
}

fn number(command: &Command) -> u64 {
    match command {
        Command::Acquire { keys, .. } | Command::Release { keys, .. } => keys[0].parse().unwrap(),
        _ => panic!("not used here: {command:?}"),
    }
}

fn acquire(number: u64) -> TicketedCommand {
    let value = Value::new(&Token::new([7; 20]), "");
    let ticket = Ticket { lock: LockId(number), round: 1, verb: Verb::Acquire };
    let keys = number.to_string().as_str().into();
    (ticket, Command::Acquire { keys, value, ttl_ms: 1000, form: AcquireForm::Plain })
}

fn release(number: u64) -> TicketedCommand {
    let (ticket, Command::Acquire { keys, value, .. }) = acquire(number) else { unreachable!() };
    let form = ReleaseForm::Plain { tell: true };
    (Ticket { verb: Verb::Release, ..ticket }, Command::Release { keys, value, form })
}

#[test]
fn few_batches_are_in_flight_and_none_is_too_large() {
    let mut it = Setting::new();
    it.push((0..3 * 512).map(acquire));
    (0..3).for_each(|batch| it.send(batch));
    it.push([acquire(0)]);
    it.send(3);
    it.push([acquire(1)]);
    it.push([acquire(2)]);
    let sizes = |it: &Setting| it.given().iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(sizes(&it), [512, 512, 512, 1], "the others wait");
    it.answer(1, vec![Answer::Refused; 512]);
    assert!(it.answers().is_empty() && it.given().len() == 4, "the first batch is awaited");
    it.answer(0, vec![Answer::Refused; 512]);
    assert_eq!(sizes(&it), [512, 512, 512, 1, 2]);
    let locks: Vec<u64> = it.answers().into_iter().flat_map(|(locks, _)| locks).collect();
    assert!(locks.is_sorted() && locks.len() == 1024);
}

#[test]
fn a_batch_that_waits_for_a_connection_is_announced_once() {
    let mut it = Setting::new();
    it.push([acquire(1)]);
    it.push([release(1)]);
    it.pipeline.announce(&mut it.events);
    it.pipeline.announce(&mut it.events);
    assert!(matches!(it.events[..], [Event::Connecting { .. }]));
    assert_eq!(it.given(), [vec![1]], "one batch waits at a time");
    it.send(0);
    assert!(matches!(it.events[1..], [Event::Connected { .. }]));
    assert_eq!(it.given(), [vec![1], vec![1]]);
}

#[test]
fn a_suspended_node_receives_only_releases() {
    let mut it = Setting::new();
    let failure = Failure::unsent(FailureKind::Suspended);
    let fails =
        |locks: &[u64]| (locks.to_vec(), vec![Answer::Failed(failure.clone()); locks.len()]);
    it.push([acquire(1)]);
    it.push([acquire(2), release(2), acquire(3)]);
    assert!(it.answers().is_empty());
    it.state = NodeState::Suspended(failure.clone());
    // A suspended node gets only releases. All other commands fail, both those that waited and the new ones.
    it.push([release(3), acquire(4), release(4)]);
    assert_eq!(it.answers(), [fails(&[4]), fails(&[2, 3])]);
    it.push([acquire(5), release(5)]);
    assert_eq!(it.answers(), [fails(&[5])]);
    it.send(0);
    assert_eq!(it.given(), [vec![1], vec![2, 3, 4, 5]], "the releases, in order");

    it.state = NodeState::Up;
    it.send(1);
    it.push([acquire(6)]);
    it.push([acquire(7)]);
    it.state = NodeState::Suspended(failure.clone());
    it.push([release(7)]);
    assert_eq!(it.answers(), [fails(&[7])], "a second suspension fails waiting commands again");
    assert_eq!(it.given()[2..], [vec![6]]);
}

#[test]
fn a_node_that_is_down_fails_everything_at_once() {
    let mut it = Setting::new();
    let failure = Failure::unsent(FailureKind::Unreachable);
    it.push([acquire(1)]);
    it.state = NodeState::Down(failure.clone());
    it.push([acquire(2), release(2)]);
    assert_eq!(it.answers(), [(vec![2, 2], vec![Answer::Failed(failure); 2])]);
    assert_eq!(it.given(), [vec![1]]);
}

#[test]
fn impossible_answers_do_not_count_as_votes() {
    let mut it = Setting::new();
    let protocol = Answer::Failed(Failure::new(FailureKind::Protocol));
    it.push([acquire(1), acquire(2)]);
    it.send(0);
    it.answer(0, vec![Answer::Granted]);
    assert_eq!(it.answers(), [(vec![1, 2], vec![protocol.clone(); 2])], "one answer too few");

    it.push([acquire(3), acquire(4)]);
    let unsent = Answer::Failed(Failure::unsent(FailureKind::Unreachable));
    it.answer(1, vec![Answer::Granted, unsent.clone()]);
    assert_eq!(it.answers(), [(vec![3, 4], vec![protocol, unsent])], "the command was never sent");
}

#[test]
fn a_sent_command_may_have_been_executed_whatever_the_answer() {
    let mut it = Setting::new();
    it.push([acquire(1), acquire(2)]);
    it.send(0);
    let unsent = |kind| Answer::Failed(Failure::unsent(kind));
    let declined = unsent(FailureKind::Rejected);
    it.answer(0, vec![unsent(FailureKind::Unreachable), declined.clone()]);
    let broken = Answer::Failed(Failure::new(FailureKind::Unreachable));
    assert_eq!(it.answers(), [(vec![1, 2], vec![broken, declined])]);
}

#[test]
fn the_queue_for_a_node_is_bounded() {
    let mut it = Setting::new();
    it.push([acquire(0)]);
    it.push((1..=NodePipeline::QUEUE_MAX as u64).map(acquire));
    assert!(it.answers().is_empty());
    it.push([acquire(1_000_000)]);
    let full = Answer::Failed(Failure::unsent(FailureKind::QueueFull));
    assert_eq!(it.answers(), [(vec![1_000_000], vec![full])]);
    it.send(0);
    it.push([acquire(1_000_001)]);
    assert!(it.answers().is_empty(), "there is room again");
    assert_eq!(it.given().concat().len(), 513);
}

#[test]
fn a_node_that_is_not_identified_prolongs_nothing_without_a_guard() {
    let ticket = |lock, round, verb| Ticket { lock: LockId(lock), round, verb };
    let (keys, ttl_ms) = (|| Keys::from("k"), 1000);
    let value = |token| Value::new(&Token::new([token; 20]), "");
    let extend = |token| {
        let (keys, value) = (keys(), value(token));
        Command::Extend { keys, value, ttl_ms, form: ExtendForm::Plain }
    };
    let (from, form) = (value(1), AttachForm::Plain);
    let attach = Command::Attach { keys: keys(), from, value: value(2), ttl_ms, form };
    let give_back =
        Command::GiveBack { keys: keys(), mode: Mode::Exclusive, value: value(2), to: value(1) };
    let mut it = Setting::new();
    let commands = Arc::new(vec![
        (ticket(1, 0, Verb::Extend), extend(1)),
        acquire(2),
        (ticket(3, 1, Verb::Acquire), attach),
        (ticket(4, 2, Verb::Extend), extend(4)),
        (ticket(5, 1, Verb::Release), give_back),
        release(6),
    ]);
    let (exchange, members) = (&mut Exchange::default(), [0, 1, 2, 3, 4, 5]);
    it.pipeline.push(&commands, &members, &it.state, NOW, &mut it.events);
    assert!(it.pipeline.next_batch(&it.state, NOW, exchange, &mut it.events).is_some());
    it.pipeline.decline(exchange, NOW, &mut it.events);
    let [Event::Answered { answers, .. }] = &it.events[..] else { panic!("{:?}", it.events) };
    let declined: Vec<u64> = answers.iter().map(|(ticket, _)| ticket.lock.0).collect();
    assert_eq!(declined, [1, 3, 5]);
    let is_unsent = |answer: &Answer| {
        matches!(answer, Answer::Failed(failure)
            if failure.kind() == FailureKind::Unverified && !failure.may_have_been_executed())
    };
    assert!(answers.iter().all(|(_, answer)| is_unsent(answer)));
    let left: Vec<u64> =
        exchange.to_send().map(|(ticket, _)| ticket.lock.0).filter(|lock| *lock > 0).collect();
    assert_eq!(left, [2, 4, 6], "a guard's extension is sent");
}
