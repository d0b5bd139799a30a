//! The driver's transport to a server: from the node's pipeline to the present connection, without a future for each
//! batch. It makes, probes and replaces connections as the [`Supervisor`] decides.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quorlock_core::supervisor::{Activity, Task, is_offence};
use quorlock_core::{
    Answer, Commands, Event, Failure, NodeId, NodePipeline, NodeState, Reading, Supervisor, Ticket,
};
use tokio::time::{Instant, Sleep, sleep_until};

use super::RedisNode;
use super::connection::{Connection, Greeting};
use super::resp;
use super::server::Server;
use super::wire::lost;
use super::wire_batch::{Encoder, WireBatch, WireBatches};
use crate::clock::Clock;
use crate::node::{BoxFuture, PushSink};

pub(crate) struct ServerTransport {
    server: Arc<Server>,
    push_sink: PushSink,
    clock: Clock,
    /// Decides which commands form the next batch, and in which order answers are reported.
    pipeline: NodePipeline,
    /// The batch that waits for a connection; at most one.
    unsent: Option<Box<WireBatch>>,
    /// The clock reading when commands last arrived from the engine. It is the time of sending in the answers to
    /// commands that were never sent. Such an answer is never a vote.
    now: Reading,
    concluded: WireBatches,
    /// Concluded batches, whose memory is used again for new batches.
    spare: WireBatches,
    supervisor: Supervisor,
    /// The instant from which the supervisor's times count.
    started: Instant,
    alarm: Alarm,
    /// Whether the next poll asks the supervisor, even before the alarm fires.
    is_due: bool,
    connecting: Option<BoxFuture<Result<(Connection, Greeting), Failure>>>,
    connection: Option<Connection>,
    /// The connection and the greeting that the engine has not seen yet.
    greeting: Option<(u64, Greeting)>,
    /// Whether the engine has identified the server on the present connection, and trusts it. `None` before it has
    /// decided, and batches wait.
    identified: Option<bool>,
}

impl ServerTransport {
    /// A transport that connects when it is first polled.
    pub(crate) fn new(id: NodeId, node: &RedisNode, push_sink: PushSink, clock: Clock) -> Self {
        let server = node.server.clone();
        Self {
            supervisor: Supervisor::new(server.silence(Duration::ZERO)),
            server,
            push_sink,
            clock,
            pipeline: NodePipeline::new(id),
            unsent: None,
            now: clock.now(),
            concluded: Vec::new(),
            spare: Vec::new(),
            started: Instant::now(),
            alarm: Alarm::default(),
            is_due: true,
            connecting: None,
            connection: None,
            greeting: None,
            identified: None,
        }
    }

    pub(crate) fn state(&self) -> &NodeState {
        self.supervisor.state()
    }

    /// Takes commands for the server, and sends them unless they must wait; `now` was read before the commands were
    /// created.
    pub(crate) fn take(
        &mut self,
        commands: (&Commands, &[usize]),
        now: Reading,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        self.now = now;
        self.pipeline.push(commands.0, commands.1, self.supervisor.state(), now, events);
        self.send(Some(now), encoder, events);
    }

    /// Reads the server's replies, keeps the server connected, and sends the batches that may be sent now.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        self.read_and_connect(cx, encoder);
        self.report(events);
        if let Some((connection, greeting)) = self.greeting.take() {
            let Greeting { sent, round_trip, evidence } = greeting;
            let demoted = self.connection.as_mut().filter(|it| it.is_demoted(&evidence));
            let node = self.pipeline.node();
            events.push(Event::Greeted { node, connection, sent, round_trip, evidence });
            if let Some(connection) = demoted {
                connection.leave_replica();
                cx.waker().wake_by_ref();
            }
        }
        self.send(None, encoder, events);
    }

    /// Notes whether the engine has identified the server on this connection, and sends the batches that waited.
    pub(crate) fn note_identified(
        &mut self,
        (connection, is_trusted): (u64, bool),
        now: Reading,
        encoder: &mut Encoder,
        events: &mut Vec<Event>,
    ) {
        if self.connection.as_ref().is_some_and(|it| it.epoch == connection) {
            self.identified = Some(is_trusted);
        }
        self.send(Some(now), encoder, events);
    }

    /// Adapts the silence that suspends the server to its distance.
    pub(crate) fn note_round_trip(&mut self, round_trip: Duration) {
        self.supervisor.set_silence(self.server.silence(round_trip));
    }

    pub(crate) fn reuse(&mut self, answers: Vec<(Ticket, Answer)>) {
        self.pipeline.reuse(answers);
    }

    /// Sends the batches that may be sent now. `now` is a current reading from before the commands were created. With
    /// `None`, this function reads the clock.
    fn send(&mut self, now: Option<Reading>, encoder: &mut Encoder, events: &mut Vec<Event>) {
        if self.unsent.is_none() && !self.pipeline.has_waiting() {
            return;
        }
        let now = now.unwrap_or_else(|| self.clock.now());
        while let Some(mut batch) = self.unsent.take().or_else(|| self.next(now, events)) {
            if let NodeState::Down(failure) = self.supervisor.state() {
                batch.exchange.fail(failure);
                self.concluded.push(batch);
                // Answers stay in order: `next` may report failures of later commands, so this one comes first.
                self.report(events);
                continue;
            }
            // If the connection broke since the last poll, batches do not fail on it: they wait for the next connection.
            // A new connection carries no command before the engine has seen what its greeting showed.
            let connection = self.connection.as_mut().filter(|it| !it.wire.is_closed());
            let Some((connection, is_trusted)) = connection.zip(self.identified) else {
                self.unsent = Some(batch);
                return self.pipeline.announce(events);
            };
            // The clock was read before the first byte can leave (S4).
            self.pipeline.sent(&mut batch.exchange, now, events);
            if !is_trusted {
                self.pipeline.decline(&mut batch.exchange, now, events);
            }
            let was_busy = connection.wire.is_busy();
            if let Err(unsent) = connection.send(&self.server, batch, encoder) {
                let concluded = &mut self.concluded;
                conclude_or_resend(&self.server, connection, unsent, encoder, concluded);
            } else if !was_busy {
                self.watch_silence();
            }
        }
        self.report(events);
    }

    /// The next batch of the pipeline; `None` if no batch may be sent now.
    fn next(&mut self, now: Reading, events: &mut Vec<Event>) -> Option<Box<WireBatch>> {
        if !self.pipeline.has_waiting() {
            return None;
        }
        let mut batch = self.spare.pop().unwrap_or_default();
        let state = self.supervisor.state();
        if self.pipeline.next_batch(state, now, &mut batch.exchange, events).is_none() {
            self.spare.push(batch);
            return None;
        }
        Some(batch)
    }

    /// Reports the answers of concluded batches.
    fn report(&mut self, events: &mut Vec<Event>) {
        if self.concluded.is_empty() {
            return;
        }
        for mut batch in self.concluded.drain(..) {
            let is_large = batch.exchange.command_count() > Encoder::KEPT;
            self.pipeline.answered(&mut batch.exchange, self.now, events);
            if self.spare.len() < NodePipeline::IN_FLIGHT_MAX && !is_large {
                self.spare.push(batch);
            }
        }
    }

    /// Concludes the batches that have their answers or have failed, and does what the supervisor decides.
    fn read_and_connect(&mut self, cx: &mut Context<'_>, encoder: &mut Encoder) {
        loop {
            let heard_at = self.read(cx, encoder);
            self.connect(cx, encoder);
            let rings = self.alarm.rings(cx, heard_at);
            if !rings && !std::mem::take(&mut self.is_due) {
                return;
            }
            self.ask_supervisor();
        }
    }

    /// Reads from the present connection. Returns the time of its last message; `None` if no message has arrived now.
    fn read(&mut self, cx: &mut Context<'_>, encoder: &mut Encoder) -> Option<Instant> {
        let Self { server, connection: Some(connection), concluded, .. } = self else {
            return None;
        };
        let alive_at = connection.wire.alive_at;
        let _: Poll<()> = connection.wire.poll(cx);
        let heard_at = Some(connection.wire.alive_at).filter(|at| *at != alive_at);
        while let Some(batch) = connection.wire.next_finished() {
            if batch.is_plain {
                continue;
            }
            // An answer that counts ends the suspension at once: the next commands are not refused.
            let is_answered = batch.flushes.is_some() && batch.has_replies();
            if is_answered && connection.wire.why_out_of_step().is_none() {
                resume(&mut self.supervisor, server);
            }
            conclude_or_resend(server, connection, batch, encoder, concluded);
        }
        if connection.wire.is_closed() {
            self.disconnect();
        } else if heard_at.is_some() && matches!(self.state(), NodeState::Suspended(_)) {
            self.is_due = true;
        }
        heard_at
    }

    /// Drops the present connection after it was lost, and reports the loss to the supervisor.
    fn disconnect(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        self.connecting = None;
        (self.greeting, self.identified) = (None, None);
        let (failure, epoch) = (connection.wire.why_closed(), connection.epoch);
        tracing::debug!(node = self.server.name, epoch, %failure, "disconnected");
        self.supervisor.broken(self.started.elapsed(), failure.clone(), entropy());
        self.warn_if_shut_out(&failure);
        self.is_due = true;
    }

    /// Continues the attempt to connect, if one is in progress.
    fn connect(&mut self, cx: &mut Context<'_>, encoder: &mut Encoder) {
        let Some(connecting) = &mut self.connecting else { return };
        let Poll::Ready(made) = connecting.as_mut().poll(cx) else { return };
        self.connecting = None;
        self.is_due = true;
        let (now, activity) = (self.started.elapsed(), self.activity());
        if let Ok((_, greeting)) = &made {
            self.note_round_trip(greeting.round_trip);
        }
        match made {
            Ok((new, greeting)) if self.supervisor.connected(now, activity) => {
                (self.greeting, self.identified) = (Some((new.epoch, greeting)), None);
                tracing::debug!(node = self.server.name, epoch = new.epoch, "connected");
                self.server.publish(self.supervisor.state());
                if let Some(mut former) = self.connection.replace(new) {
                    former.wire.close(lost("connection lost"));
                    let (server, concluded) = (&self.server, &mut self.concluded);
                    while let Some(batch) = former.wire.next_finished() {
                        if !batch.is_plain {
                            conclude_or_resend(server, &mut former, batch, encoder, concluded);
                        }
                    }
                }
            }
            // The old connection was silent, but answers again. So it stays, and the new one is dropped.
            Ok(_) => {}
            Err(failure) => {
                tracing::debug!(node = self.server.name, %failure, "not connected");
                self.supervisor.not_connected(now, failure.clone(), entropy());
                self.warn_if_shut_out(&failure);
            }
        }
    }

    /// Executes the supervisor's decision, and sets the alarm to the time of its next decision.
    fn ask_supervisor(&mut self) {
        let now = self.started.elapsed();
        match self.supervisor.next_task(now, self.activity()) {
            Some(Task::Connect) => {
                let (server, push_sink) = (self.server.clone(), self.push_sink.clone());
                let clock = self.clock;
                let connecting = async move { server.connect(&push_sink, clock).await };
                self.connecting = Some(Box::pin(connecting));
            }
            Some(Task::Probe) => self.probe(),
            None => {}
        }
        self.server.publish(self.supervisor.state());
        self.alarm.set(self.next_decision(now, self.activity()));
    }

    /// When the first batch after a pause is sent, sets the alarm, so that the supervisor notices a late reply.
    fn watch_silence(&mut self) {
        // The supervisor cannot notice silence before `soonest`. An alarm that rings by then is early enough: the
        // supervisor is asked when it rings.
        let silence = self.server.silence(Duration::ZERO);
        let soonest = self.connection.as_ref().map(|it| it.wire.alive_at + silence);
        if !self.alarm.is_later_than(soonest) {
            return;
        }
        let activity = self.activity();
        let next = self.next_decision(activity.heard_at, activity);
        if self.alarm.is_later_than(next) {
            self.alarm.set(next);
            if let Some(connection) = &self.connection {
                connection.wire.wake();
            }
        }
    }

    fn next_decision(&self, now: Duration, activity: Activity) -> Option<Instant> {
        Some(self.started + self.supervisor.next_task_at(now, activity)?)
    }

    /// Sends a `PING`. The reply shows that the server is alive, and has no other use.
    fn probe(&mut self) {
        if let Some(connection) = &mut self.connection {
            // A wire that is closed needs no probe.
            let _ = connection.wire.send_plain(|out| {
                resp::write(out, &[b"PING"]);
                1
            });
        }
    }

    fn activity(&self) -> Activity {
        let connection = self.connection.as_ref();
        connection.map(|it| it.wire.activity(self.started)).unwrap_or_default()
    }

    fn warn_if_shut_out(&self, failure: &Failure) {
        if is_offence(failure) && matches!(self.supervisor.state(), NodeState::Down(_)) {
            tracing::warn!("node {}: {failure}; it is left alone for a while", self.server.name);
        }
    }
}
/// Ends the suspension of a server that has answered.
fn resume(supervisor: &mut Supervisor, server: &Server) {
    if matches!(supervisor.state(), NodeState::Suspended(_)) {
        supervisor.heard();
        server.publish(supervisor.state());
    }
}

/// Ends one sending of a batch whose replies have arrived or will not: concludes it, or sends some commands again.
fn conclude_or_resend(
    server: &Server,
    connection: &mut Connection,
    mut batch: Box<WireBatch>,
    encoder: &mut Encoder,
    concluded: &mut WireBatches,
) {
    while connection.judge_answers(server, &mut batch) {
        match connection.send(server, batch, encoder) {
            Ok(()) => return,
            Err(unsent) => {
                batch = unsent;
                // The replies to the first sending do not answer the commands that were to be sent again.
                batch.flushes = None;
            }
        }
    }
    concluded.push(batch);
}

/// A timer that is rarely reset. When it fires, the link asks the supervisor again.
#[derive(Default)]
struct Alarm {
    /// `None` if the alarm is not set.
    at: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// The task has polled `sleep` since the alarm was last set, so `sleep` will wake the task.
    is_registered: bool,
}

impl Alarm {
    fn set(&mut self, at: Option<Instant>) {
        self.at = at;
        self.is_registered = false;
        match (at, &mut self.sleep) {
            (Some(at), Some(sleep)) => sleep.as_mut().reset(at),
            (Some(at), None) => self.sleep = Some(Box::pin(sleep_until(at))),
            (None, _) => {}
        }
    }

    fn is_later_than(&self, other: Option<Instant>) -> bool {
        other.is_some_and(|other| self.at.is_none_or(|at| at > other))
    }

    /// Whether the alarm's time has come. If `now` shows that it has not come, the timer need not be polled.
    fn rings(&mut self, cx: &mut Context<'_>, now: Option<Instant>) -> bool {
        let (Some(at), Some(sleep)) = (self.at, &mut self.sleep) else { return false };
        if self.is_registered && now.is_some_and(|now| now < at) {
            return false;
        }
        self.is_registered = true;
        let rings = sleep.as_mut().poll(cx).is_ready();
        if rings {
            self.at = None;
        }
        rings
    }
}

fn entropy() -> u64 {
    getrandom::u64().unwrap_or(u64::MAX)
}
