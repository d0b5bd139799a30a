//! A link keeps one server connected: it makes, probes and replaces connections as its [`Supervisor`] decides, and
//! sends batches on the current one.
//!
//! One task owns a link and polls it: the driver's task ([`direct`](super::direct)), or the task of a node that
//! another node wraps ([`wrapped`](super::wrapped)).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quorlock_core::supervisor::{Activity, Task, is_offence};
use quorlock_core::{Failure, NodeState, Supervisor};
use tokio::time::{Instant, Sleep, sleep_until};

use super::connection::Connection;
use super::resp;
use super::server::Server;
use super::wire::lost;
use super::wire_batch::{Encoder, WireBatch, WireBatches};
use crate::node::{BoxFuture, PushSink};

pub(super) struct Link {
    server: Arc<Server>,
    push_sink: PushSink,
    /// The instant from which the supervisor's times count.
    started: Instant,
    supervisor: Supervisor,
    connection: Option<Connection>,
    connecting: Option<BoxFuture<Result<Connection, Failure>>>,
    alarm: Alarm,
    /// Whether the next poll asks the supervisor, even before the alarm fires.
    is_due: bool,
}

impl Link {
    /// A link that connects when it is first polled.
    pub(super) fn new(server: Arc<Server>, push_sink: PushSink) -> Self {
        Self {
            supervisor: Supervisor::new(server.silence),
            server,
            push_sink,
            started: Instant::now(),
            connection: None,
            connecting: None,
            alarm: Alarm::default(),
            is_due: true,
        }
    }

    pub(super) fn state(&self) -> &NodeState {
        self.supervisor.state()
    }

    /// Whether batches can be sent now, or the failure that explains why not. `None` while an attempt to connect is in
    /// progress: batches then wait for its outcome.
    pub(super) fn readiness(&self) -> Option<Result<(), Failure>> {
        if let NodeState::Down(failure) = self.supervisor.state() {
            return Some(Err(failure.clone()));
        }
        // If the connection broke since the last poll, batches do not fail on it: they wait for the next connection.
        self.connection.as_ref().filter(|it| !it.wire.is_closed()).map(|_| Ok(()))
    }

    /// Sends a batch if the link is [ready](Self::readiness). A later poll adds it to `concluded`.
    pub(super) fn send(
        &mut self,
        batch: Box<WireBatch>,
        encoder: &mut Encoder,
        concluded: &mut WireBatches,
    ) {
        let Self { server, connection: Some(connection), .. } = self else {
            let mut batch = batch;
            batch.exchange.fail(&lost("connection lost"));
            return concluded.push(batch);
        };
        let was_busy = connection.wire.is_busy();
        if let Err(unsent) = connection.send(server, batch, encoder) {
            conclude_or_resend(server, connection, unsent, encoder, concluded);
        } else if !was_busy {
            self.watch_silence();
        }
    }

    /// Reads replies and keeps the server connected. Adds to `concluded` the batches that have their answers, or have
    /// failed.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        encoder: &mut Encoder,
        concluded: &mut WireBatches,
    ) {
        loop {
            let heard_at = self.read(cx, encoder, concluded);
            self.connect(cx, encoder, concluded);
            let rings = self.alarm.rings(cx, heard_at);
            if !rings && !std::mem::take(&mut self.is_due) {
                return;
            }
            self.ask_supervisor();
        }
    }

    /// Reads from the current connection. Returns the time of its last message; `None` if no message has arrived now.
    fn read(
        &mut self,
        cx: &mut Context<'_>,
        encoder: &mut Encoder,
        concluded: &mut WireBatches,
    ) -> Option<Instant> {
        let Self { server, connection: Some(connection), .. } = self else { return None };
        let alive_at = connection.wire.alive_at;
        let _: Poll<()> = connection.wire.poll(cx);
        let heard_at = Some(connection.wire.alive_at).filter(|at| *at != alive_at);
        while let Some(batch) = connection.wire.next_finished() {
            if batch.is_plain {
                continue;
            }
            // An answer that counts ends the suspension at once: the next commands are not refused.
            let is_answered = batch.flushes.is_some();
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

    /// Drops the current connection after it was lost, and reports the loss to the supervisor.
    fn disconnect(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        self.connecting = None;
        let (failure, epoch) = (connection.wire.why_closed(), connection.epoch);
        tracing::debug!(node = self.server.name, epoch, %failure, "disconnected");
        self.supervisor.broken(self.started.elapsed(), failure.clone(), entropy());
        self.warn_if_shut_out(&failure);
        self.is_due = true;
    }

    /// Continues the attempt to connect, if one is in progress.
    fn connect(
        &mut self,
        cx: &mut Context<'_>,
        encoder: &mut Encoder,
        concluded: &mut WireBatches,
    ) {
        let Some(connecting) = &mut self.connecting else { return };
        let Poll::Ready(made) = connecting.as_mut().poll(cx) else { return };
        self.connecting = None;
        self.is_due = true;
        let (now, activity) = (self.started.elapsed(), self.activity());
        match made {
            Ok(new) if self.supervisor.connected(now, activity) => {
                tracing::debug!(node = self.server.name, epoch = new.epoch, "connected");
                self.server.publish(self.supervisor.state());
                self.push_sink.all_changed();
                if let Some(mut former) = self.connection.replace(new) {
                    former.wire.close(lost("connection lost"));
                    while let Some(batch) = former.wire.next_finished() {
                        if !batch.is_plain {
                            conclude_or_resend(
                                &self.server,
                                &mut former,
                                batch,
                                encoder,
                                concluded,
                            );
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
        match self.supervisor.look(now, self.activity()) {
            Some(Task::Connect) => {
                let (server, push_sink) = (self.server.clone(), self.push_sink.clone());
                let connecting = async move { server.connect(&push_sink).await };
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
        let soonest = self.connection.as_ref().map(|it| it.wire.alive_at + self.server.silence);
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
        Some(self.started + self.supervisor.next_look(now, activity)?)
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
