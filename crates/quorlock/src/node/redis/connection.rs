//! One connection to a server, an epoch: it sends parcels, and judges what comes back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quorlock_core::info::Info;
use quorlock_core::{Command, Evidence, Failure, FailureKind, Session};

use super::codec::{Capabilities, count_watches};
use super::evidence::{self, Beside};
use super::parcel::{Encoder, Parcel, To};
use super::registration::{Do, Registration};
use super::resp::Reply;
use super::server::Server;
use super::wire::Wire;

/// One connection: an epoch.
pub(super) struct Connection {
    pub(super) epoch: u64,
    pub(super) wire: Wire,
    pub(super) capabilities: Capabilities,
    /// What is said to ask for its marker, if it has to prove itself.
    pub(super) marker: Option<Box<[u8]>>,
    /// Which of the server's databases this client uses.
    pub(super) registration: Option<Registration>,
    /// The client may write which database has the locks.
    pub(super) registers: bool,
    /// A look found no registration: the next batch on a server in use writes it (S17).
    pub(super) is_unregistered: AtomicBool,
    /// The operator says that it forgets nothing when it stops, and it is asked whether that can be.
    pub(super) is_durable: bool,
    /// What is asked beside commands, and in which form they are sent. All are sent by one task, the client's.
    pub(super) session: Mutex<Session>,
}

impl Connection {
    /// Sends a parcel's commands, for the first time or again. When it comes back it is to be
    /// [concluded](Self::conclude). Given back at once: the connection was gone before.
    pub(super) fn send(
        &self,
        server: &Server,
        mut parcel: Box<Parcel>,
        to: To,
        encoder: &mut Encoder,
    ) -> Result<(), Box<Parcel>> {
        let (is_first, has_marker) = {
            let mut session = self.session();
            let is_first = session.is_new();
            session.send(&mut parcel.exchange);
            (is_first, session.has_marker())
        };
        let (evidence_request, form) = (parcel.exchange.evidence_request(), parcel.exchange.form());
        let registration = self.registration.as_ref().and_then(|_| {
            // A server that is refused is not taken into use, and nothing is written there.
            let is_taken_into_use = parcel.exchange.to_send().any(writes_a_marker);
            let is_in_use = has_marker || is_taken_into_use;
            let what = if is_in_use && self.registers { Do::Register } else { Do::Look };
            let is_owed = what == Do::Register && self.is_unregistered.load(Ordering::Relaxed);
            (evidence_request.info || is_taken_into_use || is_owed).then_some(what)
        });
        let beside = Beside::new(evidence_request, self.is_durable, registration);
        let Capabilities { watches, sections, .. } = self.capabilities;
        parcel.prepare(self.capabilities.way(form), beside);
        parcel.is_first = is_first;
        if watches {
            let watched = count_watches(parcel.exchange.to_send());
            if watched > 0 {
                self.wire.expect_pushes(watched);
            }
        }
        self.wire.send_parcel(parcel, to, |out, parcel| {
            beside.say_before(sections, self.registration.as_ref(), out);
            let replies = encoder.write(parcel, &server.scripts, out);
            if let Some(asked) = self.marker.as_ref().filter(|_| beside.has_marker()) {
                out.extend_from_slice(asked);
            }
            beside.before + replies + beside.behind()
        })
    }

    /// Judges what came back of a parcel. Returns whether it is to be sent once more.
    pub(super) fn conclude(&self, server: &Server, parcel: &mut Parcel) -> bool {
        let evidence = match self.read_evidence(server, parcel) {
            Ok(evidence) => evidence,
            Err(failure) => {
                parcel.exchange.fail(&failure);
                Evidence::NotRequired
            }
        };
        self.session().conclude(&mut parcel.exchange, evidence)
    }

    /// What shows that the answers count. An error: they do not.
    fn read_evidence(&self, server: &Server, parcel: &mut Parcel) -> Result<Evidence, Failure> {
        let Some(flushes) = parcel.flushes else { return Err(self.wire.why_closed()) };
        // What came in one piece with something out of step cannot be told from it (S22).
        if let Some(failure) = self.wire.why_out_of_step() {
            return Err(failure);
        }
        server.resume(self);
        let Parcel { beside, in_step, is_first, .. } = *parcel;
        let marker = std::mem::take(&mut parcel.marker);
        if in_step && beside.before == 0 && !mutant!(NothingProved) {
            let (epoch, flushes, info) = (self.epoch, flushes.1, None);
            let is_guarded = self.marker.is_some();
            let seen = || Evidence::Seen { epoch, flushes, info, marker };
            return Ok(if is_guarded { seen() } else { Evidence::NotRequired });
        }
        let (info, registered) = beside.take_before(&mut parcel.before.drain(..));
        if beside.asked_settings() && is_first {
            server.contradict(info.as_ref());
        }
        let registered = registered.zip(self.registration.as_ref());
        let registered = registered.map(|(reply, registration)| {
            self.is_unregistered.store(reply == Reply::Nil, Ordering::Relaxed);
            registration.check(&reply)
        });
        let seen = evidence::read(info, marker, registered, self.epoch, flushes);
        match seen {
            Some(evidence) if in_step && self.marker.is_some() && !mutant!(NothingProved) => {
                Ok(evidence)
            }
            // Nobody looks.
            Some(_) if in_step => Ok(Evidence::NotRequired),
            // Out of step somewhere: which of the other replies fit their commands cannot be told
            // either, so none of them counts (S22).
            _ => {
                let failure =
                    Failure::new(FailureKind::Protocol).with_detail("its answers do not fit");
                self.wire.close(failure.clone());
                Err(failure)
            }
        }
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client that sends this has found nothing that keeps the server from being taken into use.
fn writes_a_marker(command: &Command) -> bool {
    matches!(command, Command::Adopt { .. } | Command::Mark { .. })
}

impl Server {
    /// Tells the operator, once for each connection, if the server itself says that it forgets.
    fn contradict(&self, info: Option<&Reply>) {
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
