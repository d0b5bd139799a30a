//! One connection to a server: sends batches, and decides whether their answers count.

use std::collections::BTreeSet;

use quorlock_core::info::Info;
use quorlock_core::{
    Command, Evidence, Exchange, Failure, FailureKind, Session, Supervisor, Value,
};
use tokio::time::Instant;

use super::codec::{Capabilities, count_watches};
use super::evidence::{self, Beside};
use super::registration::{Do, Registration};
use super::resp::Reply;
use super::server::Server;
use super::wire::{Wire, lost};
use super::wire_batch::{Encoder, WireBatch};

pub(super) struct Connection {
    /// Number of the connection, counted from one for each server.
    pub(super) epoch: u64,
    pub(super) opened_at: Instant,
    pub(super) wire: Wire,
    pub(super) capabilities: Capabilities,
    /// The bytes that ask for the marker, which shows that no data was lost. `None` without a restart guard.
    pub(super) marker: Option<Box<[u8]>>,
    /// The bytes that ask for the replicas' acknowledgement. `None` if the server has no replicas.
    pub(super) acknowledgement: Option<Box<[u8]>>,
    /// The database that this client uses on the server. `None` without a restart guard.
    pub(super) registration: Option<Registration>,
    /// Whether the client may register its database on the server.
    pub(super) registers: bool,
    /// The server has no registration: the next batch registers the database if the server is in use (S17).
    pub(super) is_unregistered: bool,
    /// Votes without the replicas' acknowledgement. `None` if all have it, or in the connection's first two seconds.
    pub(super) alone: Option<Alone>,
    /// The operator declared the server durable. The client reads its settings, and warns if they say otherwise.
    pub(super) is_durable: bool,
    /// Decides which evidence (`INFO`, marker, acknowledgement) is requested, and in which form commands are sent.
    pub(super) session: Session,
}

/// Votes that failed because the replicas of the server did not acknowledge them.
pub(super) struct Alone {
    since: Instant,
    /// The values of votes whose releases were not answered yet.
    unreleased: BTreeSet<Value>,
}

impl Connection {
    /// Sends a batch for the first time, or some of its commands again. Once the wire has
    /// [finished](Wire::next_finished) the batch, the caller must [judge](Self::judge_answers) its answers.
    ///
    /// # Errors
    /// Returns the batch if the wire is closed; nothing was sent.
    pub(super) fn send(
        &mut self,
        server: &Server,
        mut batch: Box<WireBatch>,
        encoder: &mut Encoder,
    ) -> Result<(), Box<WireBatch>> {
        let is_first = self.session.is_new();
        self.session.prepare(&mut batch.exchange);
        let exchange = &batch.exchange;
        let (request, form) = (exchange.evidence_request(), exchange.form());
        let registration = self.registration.as_ref().and_then(|_| {
            // The client registers its database only on a server that is in use, or that a command of this batch takes
            // into use, because it must write nothing to a server that it refuses.
            let is_taken_into_use = exchange.to_send().any(|(_, command)| writes_a_marker(command));
            let is_in_use = self.session.has_marker() || is_taken_into_use;
            let what = if is_in_use && self.registers { Do::Register } else { Do::Look };
            let is_owed = what == Do::Register && self.is_unregistered;
            (request.info || is_taken_into_use || is_owed).then_some(what)
        });
        let beside = Beside::new(request, self.is_durable, registration);
        let Capabilities { watches, sections, .. } = self.capabilities;
        if watches {
            let watched = count_watches(exchange.to_send().map(|(_, command)| command));
            if watched > 0 {
                self.wire.expect_pushes(watched);
            }
        }
        batch.prepare(self.capabilities.encoding(form), beside);
        batch.is_first = is_first;
        let (marker, registration) = (&self.marker, &self.registration);
        let acknowledgement = self.acknowledgement.as_deref();
        self.wire.send(batch, |out, batch| {
            beside.say_before(sections, registration.as_ref(), out);
            let replies = encoder.write(batch, &server.scripts, out);
            if let Some(question) = marker.as_ref().filter(|_| beside.request.marker) {
                out.extend_from_slice(question);
            }
            if let Some(question) = acknowledgement.filter(|_| beside.request.acknowledgement) {
                out.extend_from_slice(question);
            }
            beside.before + replies + beside.behind()
        })
    }

    /// Decides whether the answers of a finished batch count. Returns whether some of its commands must be sent again.
    pub(super) fn judge_answers(&mut self, server: &Server, batch: &mut WireBatch) -> bool {
        let evidence = self.read_evidence(server, batch).unwrap_or_else(|failure| {
            batch.exchange.fail(&failure);
            Evidence::NotRequired
        });
        let is_demoted = self.acknowledgement.is_some() && is_of_a_replica(&evidence);
        let is_acknowledged = is_acknowledged(&evidence, server);
        let again = self.session.end_sending(&mut batch.exchange, evidence);
        // The host name may lead to a promoted server by now. Only a new connection resolves it, so this one is closed.
        if is_demoted {
            self.wire.close(lost("the server has become a replica"));
        } else if !again && self.note_acknowledgement(is_acknowledged, &batch.exchange) {
            self.wire.close(lost("its replicas are missing, so its name is resolved again"));
        }
        again
    }

    /// Returns whether to close the connection: either all votes that the replicas did not acknowledge are released, or
    /// such votes have failed for two seconds.
    fn note_acknowledgement(&mut self, is_acknowledged: Option<bool>, exchange: &Exchange) -> bool {
        let is_old = |since: Instant| since.elapsed() >= Supervisor::REPLACE_AFTER;
        let has_failed = is_acknowledged == Some(false);
        if is_acknowledged == Some(true) {
            self.alone = None;
        } else if has_failed && self.alone.is_none() && is_old(self.opened_at) {
            self.alone = Some(Alone { since: Instant::now(), unreleased: BTreeSet::new() });
        }
        let Some(Alone { since, unreleased }) = &mut self.alone else { return false };
        for (_, command) in exchange.commands() {
            let Some(value) = command.value() else { continue };
            if command.is_release() {
                unreleased.remove(value);
            } else if has_failed && command.is_about_votes() {
                unreleased.insert(value.clone());
            }
        }
        unreleased.is_empty() || has_failed && is_old(*since)
    }

    /// Reads the evidence that the answers count. With an error, no answer of the batch counts.
    fn read_evidence(
        &mut self,
        server: &Server,
        batch: &mut WireBatch,
    ) -> Result<Evidence, Failure> {
        let Some(flushes) = batch.flushes else { return Err(self.wire.why_closed()) };
        // If the stream is out of step, replies that arrived in the same read may belong to other commands (S22).
        if let Some(failure) = self.wire.why_out_of_step() {
            return Err(failure.clone());
        }
        let WireBatch { beside, in_step, is_first, .. } = *batch;
        let behind = (std::mem::take(&mut batch.marker), batch.acknowledged.take());
        let (info, registered) = beside.take_before(&mut batch.before.drain(..));
        if beside.settings && is_first {
            server.warn_if_not_durable(info.as_ref());
        }
        let registered = registered.zip(self.registration.as_ref());
        let registered = registered.map(|(reply, registration)| {
            self.is_unregistered = reply == Reply::Nil;
            registration.check(&reply)
        });
        let seen = evidence::read(info, behind, registered, self.epoch, flushes);
        match seen {
            Some(evidence) if in_step && self.marker.is_some() && !mutant!(NothingProved) => {
                Ok(evidence)
            }
            // Without a restart guard, no evidence is needed.
            Some(_) if in_step => Ok(Evidence::NotRequired),
            // One reply does not fit, so any other may be the reply to another command: none of them counts (S22).
            _ => {
                let failure =
                    Failure::new(FailureKind::Protocol).with_detail("its answers do not fit");
                self.wire.close(failure.clone());
                Err(failure)
            }
        }
    }
}

/// Whether the evidence shows that the server is a replica.
fn is_of_a_replica(evidence: &Evidence) -> bool {
    let Evidence::Seen { info, acknowledged, .. } = evidence else { return false };
    let is_read_only = |failure: &Failure| failure.kind() == FailureKind::ReadOnly;
    acknowledged.as_ref().is_some_and(|it| it.as_ref().err().is_some_and(is_read_only))
        || matches!(info, Some(Ok(info)) if Info::parse(info).is_ok_and(|info| !info.is_master))
}

/// Whether the replicas acknowledged the batch; `None` if they were not asked. A server that was cut off while its
/// replica was promoted lacks the acknowledgement. With `min-replicas-to-write`, such a server answers with an error.
fn is_acknowledged(evidence: &Evidence, server: &Server) -> Option<bool> {
    let Evidence::Seen { acknowledged: Some(acknowledged), .. } = evidence else { return None };
    let needed = server.dialer.target.replicas;
    Some(acknowledged.as_ref().is_ok_and(|count| *count >= needed))
}

/// Whether the command takes the server into use, because it writes a marker or an adoption. A client sends such a
/// command only after it has found no reason to refuse the server.
fn writes_a_marker(command: &Command) -> bool {
    matches!(command, Command::Adopt { .. } | Command::Mark { .. })
}

impl Server {
    /// Warns if the operator declared the server durable and its settings say otherwise.
    fn warn_if_not_durable(&self, info: Option<&Reply>) {
        let Some(Reply::Bytes(info)) = info else { return };
        let setting =
            Info::parse(&String::from_utf8_lossy(info)).ok().and_then(|info| info.forgets_by());
        if let Some(setting) = setting {
            tracing::warn!(
                "node {}: declared to forget nothing when it stops (durable), but it has {setting}: it waits \
                 after a restart as others do",
                self.name
            );
        }
    }
}
