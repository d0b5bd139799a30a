//! Keeps a node connected, for ever.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{Failure, FailureKind};
use tokio::time::{Instant, sleep};

use super::{Connection, Link, Shared, resp};
use crate::node::News;

/// After so long a silence on a suspended connection, a new one is tried.
pub(super) const REPLACE_AFTER: Duration = Duration::from_secs(2);

/// A connection without traffic is probed this often, so that a dead one is noticed.
const PROBE_EVERY: Duration = Duration::from_secs(15);

/// The delays between attempts to connect: from, to.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The longest delay for a server that floods us or does not speak our language.
const BACKOFF_OFFENDED: Duration = Duration::from_secs(30);

/// A process that has behaved for so long is as good as new.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);

pub(super) async fn supervise(shared: Arc<Shared>, news: News) {
    let mut failures: u32 = 0;
    let mut offences: u32 = 0;
    loop {
        match shared.connect(&news).await {
            Ok(connection) => {
                let made_at = Instant::now();
                let failure = watch_over(&shared, connection, &news).await;
                if is_offence(&failure) {
                    if made_at.elapsed() >= FORGIVEN_AFTER {
                        offences = 0;
                    }
                    shared.shut_out(&failure, &mut offences).await;
                    continue;
                }
                // It broke just now: perhaps only the connection did, so the first attempt to
                // make a new one has the benefit of the doubt, and commands wait for it.
                shared.link.send_replace(Link::Connecting);
                if made_at.elapsed() >= BACKOFF.1 {
                    failures = 0;
                } else {
                    // But whoever takes every connection and breaks it at once is not to be
                    // asked as fast as we can.
                    sleep(backoff(failures, BACKOFF.1)).await;
                    failures = failures.saturating_add(1);
                }
            }
            Err(failure) if is_offence(&failure) => {
                shared.shut_out(&failure, &mut offences).await;
            }
            Err(failure) => {
                tracing::debug!(node = shared.name, %failure, "not connected");
                shared.link.send_replace(Link::Down(failure));
                sleep(backoff(failures, BACKOFF.1)).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}

/// The connection did not break: the server has said what none of ours would say.
fn is_offence(failure: &Failure) -> bool {
    matches!(failure.kind(), FailureKind::Protocol | FailureKind::Flooding)
}

/// Closes a connection when it is no longer watched over, however that comes.
struct Watched(Arc<Connection>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.wire.close(Failure::new(FailureKind::Unreachable).with_detail("connection lost"));
    }
}

/// Watches over one connection, and those that replace it, until one breaks; says why it did.
async fn watch_over(shared: &Shared, connection: Arc<Connection>, news: &News) -> Failure {
    tracing::debug!(node = shared.name, epoch = connection.epoch, "connected");
    let mut connection = Watched(connection);
    shared.link.send_replace(Link::Up(connection.0.clone()));
    news.all_changed();
    let mut failures: u32 = 0;
    loop {
        let Watched(current) = &connection;
        tokio::select! {
            biased;
            () = current.wire.run() => {
                let failure = current.wire.why_closed();
                tracing::debug!(node = shared.name, epoch = current.epoch, %failure, "disconnected");
                return failure;
            }
            () = silence_or_pause(current) => {}
        }
        let silent_for = current.wire.silent_for();
        let Some(silent_for) = silent_for.filter(|time| *time >= current.silence) else {
            // Whatever was awaited has been answered, be it only a probe.
            shared.resume(current);
            if silent_for.is_none() && current.wire.quiet_for() >= PROBE_EVERY {
                probe(current);
            }
            continue;
        };
        shared.suspend(current, silent_for);
        if silent_for >= current.silence + REPLACE_AFTER {
            // The old connection is kept until the new one has answered its handshake: if the
            // server only slept, what it was sent is executed in order.
            let replacement = tokio::select! {
                biased;
                () = current.wire.run() => return current.wire.why_closed(),
                replacement = shared.connect(news) => replacement,
            };
            let silent_for = current.wire.silent_for();
            let still_silent = silent_for.is_some_and(|time| time >= current.silence);
            match replacement {
                Ok(new) if still_silent => {
                    shared.link.send_replace(Link::Up(new.clone()));
                    news.all_changed();
                    connection = Watched(new);
                    failures = 0;
                }
                // It answers again; the new one is not needed.
                Ok(_) => {}
                Err(_) => {
                    tokio::select! {
                        biased;
                        () = current.wire.run() => return current.wire.why_closed(),
                        () = sleep(backoff(failures, BACKOFF.1)) => {}
                    }
                    failures = failures.saturating_add(1);
                }
            }
        }
    }
}

/// Returns after a while in which there was something to watch over, or after a long pause.
async fn silence_or_pause(connection: &Connection) {
    tokio::select! {
        biased;
        () = connection.wire.busy() => {}
        () = sleep(PROBE_EVERY) => return,
    }
    sleep(connection.silence / 3).await;
}

/// Asks for a sign of life, without waiting for it: who watches sees whether it comes.
fn probe(connection: &Connection) {
    // Closed already: then it is seen at once.
    let _ = connection.wire.send(|out| {
        resp::write(out, &[b"PING"]);
        1
    });
}

impl Shared {
    /// Leaves the server alone for a while, for longer each time.
    async fn shut_out(&self, failure: &Failure, offences: &mut u32) {
        tracing::warn!("node {}: {failure}; it is left alone for a while", self.name);
        // What comes now is not sent.
        let detail = failure.detail().unwrap_or_default();
        let unsent = Failure::unsent(failure.kind()).with_detail(detail);
        self.link.send_replace(Link::Down(unsent));
        sleep(backoff(*offences, BACKOFF_OFFENDED)).await;
        *offences = offences.saturating_add(1);
    }

    fn suspend(&self, connection: &Arc<Connection>, silent_for: Duration) {
        let detail = format!("no answer for {silent_for:.1?}");
        let failure = Failure::unsent(FailureKind::Suspended).with_detail(detail);
        self.link.send_replace(Link::Suspended(connection.clone(), failure));
    }
}

/// Doubling, jittered in its upper half.
fn backoff(failures: u32, longest: Duration) -> Duration {
    let full = BACKOFF.0.saturating_mul(1 << failures.min(10)).min(longest);
    let word = getrandom::u32().unwrap_or(u32::MAX);
    full / 2 + (full / 2).mul_f64(f64::from(word) / f64::from(u32::MAX))
}
