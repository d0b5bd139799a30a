//! Makes a connection on which votes may count: opens a socket, and exchanges the [handshake](super::handshake).

use std::io;

use quorlock_core::{Failure, FailureKind, Reading};

use super::client_name;
use super::dialer::{Awaits, Dialer, certificate_hint};
use super::handshake::{Greeted, Identification, handshake};
use super::scripts::Scripts;
use super::target::Target;
use super::wire::Wire;
use crate::clock::Clock;
use crate::node::PushSink;
use crate::os_limits::{exhausted, explained};
use crate::text::for_people;

/// A new connection.
pub(super) struct Made {
    pub(super) wire: Wire,
    /// The clock reading before the first byte of the handshake could leave.
    pub(super) sent: Reading,
    pub(super) greeted: Greeted,
}

/// The reason why no connection was made.
pub(super) enum NotConnected {
    /// The server knows only the older protocol.
    OnlyResp2,
    /// The server refused the log-in or the certificate, or its certificate was refused. Nothing else was sent.
    Refused(Failure),
    /// Another failure. No command of a caller was sent.
    Because(Failure),
}

impl From<Failure> for NotConnected {
    fn from(failure: Failure) -> Self {
        Self::Because(failure)
    }
}

/// The failure if no socket was opened.
pub(super) fn not_dialled(error: io::Error) -> Failure {
    let kind = match exhausted(&error) {
        Some(_) => FailureKind::Exhausted,
        None => FailureKind::Unreachable,
    };
    let error = explained(&error);
    let detail = for_people(&error) + certificate_hint(&error);
    Failure::unsent(kind).with_detail(detail)
}

/// The failure of a wire, with a hint at the likely mistake if the wire was closed before the first reply.
pub(super) fn hinted(failure: Failure, wire: &Wire, dialer: &Dialer) -> Failure {
    if !wire.broke_unanswered() {
        return failure;
    }
    let detail = failure.detail().unwrap_or("connection lost");
    let hint = match certificate_hint(detail) {
        "" => dialer.scheme_hint(),
        hint => hint,
    };
    let hinted = format!("{detail}{hint}");
    failure.with_detail(hinted)
}

pub(super) async fn connect(
    dialer: &Dialer,
    target: &Target,
    scripts: &Scripts,
    resp2: bool,
    (push_sink, clock): (&PushSink, Clock),
    identification: Option<&Identification<'_>>,
) -> Result<Made, NotConnected> {
    let dialled = dialer.dial(&target.address, &dialer.resolver).await;
    let socket = dialled.map_err(|error| match dialer.awaits() {
        Awaits::Tls => NotConnected::Refused(not_dialled(error)),
        _ => NotConnected::Because(not_dialled(error)),
    })?;
    let mut wire = Wire::new(socket, push_sink.clone());
    let name = client_name::of_this_process(push_sink.takes_locks);
    let handshake = handshake(target, scripts, (resp2, &name), identification);
    let sent = clock.now();
    match handshake.exchange(&mut wire, resp2, target).await {
        Ok(greeted) => Ok(Made { wire, sent, greeted }),
        Err(NotConnected::Because(failure)) => {
            // In TLS 1.3 the client has finished before the server looks at its certificate.
            let is_refused = match failure.kind() {
                FailureKind::Unauthenticated => true,
                _ => target.is_encrypted() && wire.broke_unanswered(),
            };
            let failure = hinted(failure, &wire, dialer);
            Err(if is_refused { NotConnected::Refused(failure) } else { failure.into() })
        }
        Err(other) => Err(other),
    }
}
