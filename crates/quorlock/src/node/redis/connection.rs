//! One connection to a server: its session and its wire. Sends batches, and decides whether their answers count.

use std::time::Duration;

use quorlock_core::{Command, Evidence, Exchange, Failure, MarkerSeen, Reading, Session};

use super::codec::{Capabilities, count_watches};
use super::evidence::{self, EvidenceQuestions};
use super::registration::Registration;
use super::replicas::{Replicas, is_of_a_replica};
use super::resp::Reply;
use super::server::Server;
use super::wire::{Wire, lost};
use super::wire_batch::{Encoder, WireBatch};

pub(super) struct Connection {
    /// Number of the connection, counted from one for each server.
    pub(super) epoch: u64,
    /// Decides which evidence (`INFO`, marker, acknowledgement) is requested, and in which form commands are sent.
    pub(super) session: Session,
    pub(super) wire: Wire,
    pub(super) capabilities: Capabilities,
    /// The bytes that ask for the marker, which shows that no data was lost. `None` without a restart guard.
    pub(super) marker: Option<Box<[u8]>>,
    /// The database that this client uses on the server. `None` without a restart guard.
    pub(super) registration: Option<Registration>,
    /// The replicas that must acknowledge each vote; `None` if the server has none.
    pub(super) replicas: Option<Replicas>,
    /// The operator declared the server durable. The client reads its settings, and warns if they say otherwise.
    pub(super) is_durable: bool,
}

/// The outcome of the greeting of a connection.
pub(super) struct Greeting {
    /// The clock reading before the first byte of the greeting could leave.
    pub(super) sent: Reading,
    /// The time from the greeting to the reply to the log-in.
    pub(super) round_trip: Duration,
    /// The server's `INFO` and marker; not required without a restart guard.
    pub(super) evidence: Evidence,
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
        let registration = self.registration.as_ref().and_then(|registration| {
            let is_taken_into_use = exchange.to_send().any(|(_, command)| writes_a_marker(command));
            registration.due(request.info, self.session.has_marker(), is_taken_into_use)
        });
        let questions = EvidenceQuestions::new(request, self.is_durable, registration);
        let Capabilities { watches, sections, .. } = self.capabilities;
        if watches {
            let watched = count_watches(exchange.to_send().map(|(_, command)| command));
            if watched > 0 {
                self.wire.expect_pushes(watched);
            }
        }
        batch.prepare(self.capabilities.encoding(form), questions);
        batch.is_first = is_first;
        let (marker, registration) = (self.marker.as_deref(), self.registration.as_ref());
        let acknowledgement = self.replicas.as_ref().map(|replicas| &*replicas.question);
        self.wire.send(batch, |out, batch| {
            questions.write_preamble(sections, registration, out);
            let replies = encoder.write(batch, &server.scripts, out);
            questions.write_epilogue(marker, acknowledgement, out);
            questions.preamble_replies + replies + questions.epilogue_replies()
        })
    }

    /// Decides whether the answers of a finished batch count. Returns whether some of its commands must be sent again.
    pub(super) fn judge_answers(&mut self, server: &Server, batch: &mut WireBatch) -> bool {
        let evidence = self.read_evidence(server, batch).unwrap_or_else(|failure| {
            batch.exchange.fail(&failure);
            Evidence::NotRequired
        });
        let is_demoted = self.is_demoted(&evidence);
        let replicas = self.replicas.as_ref();
        let is_acknowledged = replicas.and_then(|replicas| replicas.have_acknowledged(&evidence));
        let again = self.session.end_sending(&mut batch.exchange, evidence);
        if is_demoted {
            self.leave_replica();
        } else if !again
            && let Some(replicas) = &mut self.replicas
            && replicas.are_missing(is_acknowledged, &batch.exchange)
        {
            self.wire.close(lost("its replicas are missing, so its name is resolved again"));
        }
        again
    }

    /// Whether the server of a node with replicas is a replica itself.
    pub(super) fn is_demoted(&self, evidence: &Evidence) -> bool {
        self.replicas.is_some() && is_of_a_replica(evidence)
    }

    /// The host name may lead to a promoted server by now. Only a new connection resolves it, so this one is closed.
    pub(super) fn leave_replica(&mut self) {
        self.wire.close(lost("the server has become a replica"));
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
        // Without a restart guard, no evidence is needed. Without a reply, there is none.
        if self.marker.is_none() || !batch.has_replies() {
            return Ok(Evidence::NotRequired);
        }
        let WireBatch { questions, is_first, .. } = *batch;
        let epilogue = (std::mem::take(&mut batch.marker), batch.acknowledged.take());
        Ok(self.read(server, (questions, is_first), &mut batch.preamble, epilogue, flushes))
    }

    /// Reads the replies to the greeting's questions of evidence. `None` if they do not fit their questions.
    pub(super) fn identify(
        &mut self,
        server: &Server,
        questions: EvidenceQuestions,
        mut replies: Vec<Reply>,
        flushes: (u64, u64),
    ) -> Option<Evidence> {
        let marker = evidence::marker_of(&replies.pop()?, &Exchange::default())?;
        if !replies.iter().enumerate().all(|(place, reply)| questions.fits(place, reply)) {
            return None;
        }
        let epilogue = (marker, None);
        let evidence = self.read(server, (questions, true), &mut replies, epilogue, flushes);
        if let Evidence::Seen { marker, .. } = &evidence {
            self.session.identify(marker);
        }
        Some(evidence)
    }

    /// Reads the replies to the preamble, and adds those to the epilogue.
    #[inline]
    fn read(
        &mut self,
        server: &Server,
        (questions, is_first): (EvidenceQuestions, bool),
        preamble: &mut Vec<Reply>,
        epilogue: (MarkerSeen, Option<Result<u32, Failure>>),
        flushes: (u64, u64),
    ) -> Evidence {
        let (info, registered) = questions.read_preamble(&mut preamble.drain(..));
        if questions.settings && is_first {
            server.warn_if_not_durable(info.as_ref());
        }
        let registered = registered.zip(self.registration.as_mut());
        let registered = registered.map(|(reply, registration)| registration.note(&reply));
        evidence::read(info, epilogue, registered, self.epoch, flushes)
    }
}

/// Whether the command takes the server into use, because it writes a marker or an adoption. A client sends such a
/// command only after it has found no reason to refuse the server.
fn writes_a_marker(command: &Command) -> bool {
    matches!(command, Command::Adopt { .. } | Command::Mark { .. })
}
