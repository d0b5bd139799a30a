//! What caller and driver share of one lock, from the call to the end of the release: one allocation for all of it.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use quorlock_core::{Refusal, ReleaseReport};

use super::{Guard, Held};
use crate::reply::{Receiver, Reply, Sender, sides};

/// What comes of a call. The refusal is boxed, because there is room for this as long as the lock is held.
pub(crate) type Called = Result<Guard, Box<Refusal>>;

/// A call for a lock, and what becomes of it. It does not keep the client alive.
pub(crate) struct Claim {
    called: Reply<Called>,
    /// From the grant on.
    held: OnceLock<Held>,
    released: Reply<ReleaseReport>,
}

/// Gets the result of a call.
pub(crate) type CalledReceiver = Receiver<Claim, Called>;

/// Sends the report of a release.
pub(crate) type ReportSender = Sender<Claim, ReleaseReport>;

/// Gets the report of a release.
pub(crate) type ReportReceiver = Receiver<Claim, ReleaseReport>;

/// To tell what comes of a call. If it is dropped, the caller hears that the driver has gone.
pub(crate) struct CallReply {
    claim: Arc<Claim>,
    reply: Sender<Claim, Called>,
}

/// A claim that has been granted: what guard and driver share.
#[derive(Clone)]
pub(crate) struct Granted(Arc<Claim>);

impl Claim {
    /// A new claim, of which the caller waits to hear.
    pub(crate) fn begin(process: u32) -> (CallReply, CalledReceiver) {
        let (called, released) = (Reply::new(process), Reply::new(process));
        let claim = Arc::new(Self { called, held: OnceLock::new(), released });
        let (reply, called) = sides(&claim, |claim| &claim.called);
        (CallReply { claim, reply }, called)
    }
}

impl CallReply {
    pub(crate) fn refuse(self, refusal: Refusal) {
        // If the caller has gone, nobody wants to know.
        let _ = self.reply.send(Err(Box::new(refusal)));
    }

    /// The lock is held. The caller is to be told with a guard.
    pub(crate) fn grant(self, held: Held) -> (Granted, Sender<Claim, Called>) {
        self.claim.held.get_or_init(|| held);
        (Granted(self.claim), self.reply)
    }
}

impl Granted {
    /// To tell how the release went, and to hear it; once.
    pub(super) fn release_report(&self) -> (ReportSender, ReportReceiver) {
        sides(&self.0, |claim| &claim.released)
    }
}

impl Deref for Granted {
    type Target = Held;

    fn deref(&self) -> &Held {
        let Some(held) = self.0.held.get() else { unreachable!("`grant` has put it there") };
        held
    }
}

impl std::fmt::Debug for CallReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallReply").finish_non_exhaustive()
    }
}
