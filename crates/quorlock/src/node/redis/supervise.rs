//! Keeps a node connected, for ever: carries out what its [`Supervisor`] decides.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;

use quorlock_core::supervisor::{Activity, Task, is_offence};
use quorlock_core::{Failure, FailureKind, NodeState, Supervisor};
use tokio::time::{Instant, sleep_until};

use super::connection::Connection;
use super::resp;
use super::server::Server;
use crate::node::PushSink;

type Made = Result<Arc<Connection>, Failure>;
type Making<'a> = Pin<Box<dyn Future<Output = Made> + Send + 'a>>;

/// The part of the client that reads what the server says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    Pipeline,
    /// The supervisor itself, because no line reads.
    Supervisor,
}

pub(super) async fn supervise(server: Arc<Server>, push_sink: PushSink, reader: Reader) {
    let started = Instant::now();
    let mut supervisor = Supervisor::new(server.silence);
    let mut watched: Option<Watched> = None;
    let mut making: Option<Making<'_>> = None;
    loop {
        let now = started.elapsed();
        match supervisor.look(now, activity(watched.as_ref(), started)) {
            Some(Task::Connect) => making = Some(Box::pin(server.connect(&push_sink))),
            Some(Task::Probe) => probe(watched.as_ref()),
            None => {}
        }
        server.publish(supervisor.state(), watched.as_ref());
        let current = activity(watched.as_ref(), started);
        let next = supervisor.next_look(now, current).map(|next| started + next);
        let is_suspended = matches!(supervisor.state(), NodeState::Suspended(_));
        let sign = match &watched {
            Some(Watched(connection)) if !current.is_awaited => Sign::Busy(connection),
            Some(Watched(connection)) if is_suspended => Sign::Heard(connection),
            _ => Sign::Nothing,
        };
        tokio::select! {
            biased;
            failure = broken(watched.as_ref(), reader) => {
                let epoch = watched.take().map(|it| it.0.epoch);
                making = None;
                tracing::debug!(node = server.name, epoch, %failure, "disconnected");
                supervisor.broken(started.elapsed(), failure.clone(), entropy());
                server.tell_if_shut_out(&supervisor, &failure);
            }
            made = made(&mut making) => {
                making = None;
                let now = started.elapsed();
                match made {
                    Ok(new) => {
                        if supervisor.connected(now, activity(watched.as_ref(), started)) {
                            tracing::debug!(node = server.name, epoch = new.epoch, "connected");
                            let new = Some(Watched(new));
                            server.publish(supervisor.state(), new.as_ref());
                            push_sink.all_changed();
                            // The one before is closed last: what waits then finds the new one.
                            watched = new;
                        }
                    }
                    Err(failure) => {
                        tracing::debug!(node = server.name, %failure, "not connected");
                        supervisor.not_connected(now, failure.clone(), entropy());
                        server.tell_if_shut_out(&supervisor, &failure);
                    }
                }
            }
            () = due(next, sign) => {}
        }
    }
}

/// Closes a connection when it is no longer watched over, however that comes.
struct Watched(Arc<Connection>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.wire.close(Failure::new(FailureKind::Unreachable).with_detail("connection lost"));
    }
}

fn activity(watched: Option<&Watched>, started: Instant) -> Activity {
    watched.map(|it| it.0.wire.activity(started)).unwrap_or_default()
}

/// Waits until the connection is closed, and returns the reason.
async fn broken(watched: Option<&Watched>, reader: Reader) -> Failure {
    let Some(Watched(connection)) = watched else { return pending().await };
    match reader {
        Reader::Pipeline => connection.wire.closed().await,
        Reader::Supervisor => connection.wire.run().await,
    }
    connection.wire.why_closed()
}

async fn made(making: &mut Option<Making<'_>>) -> Made {
    match making {
        Some(making) => making.await,
        None => pending().await,
    }
}

/// An event that comes before the next look is due.
#[derive(Clone, Copy)]
enum Sign<'a> {
    /// A command awaits a reply again.
    Busy(&'a Connection),
    /// The suspended server answers.
    Heard(&'a Connection),
    Nothing,
}

/// Returns at that time, or at the event.
async fn due(next: Option<Instant>, sign: Sign<'_>) {
    let time = async {
        match next {
            Some(next) => sleep_until(next).await,
            None => pending().await,
        }
    };
    let seen = async {
        match sign {
            Sign::Busy(connection) => connection.wire.busy().await,
            Sign::Heard(connection) => connection.wire.heard().await,
            Sign::Nothing => pending().await,
        }
    };
    tokio::select! {
        biased;
        () = seen => {}
        () = time => {}
    }
}

/// Asks for a sign of life, without waiting for it: who watches sees whether it comes.
fn probe(watched: Option<&Watched>) {
    if let Some(Watched(connection)) = watched {
        // Closed already: then it is seen at once.
        let _ = connection.wire.send(|out| {
            resp::write(out, &[b"PING"]);
            1
        });
    }
}

impl Server {
    /// Publishes the state and the connection if either has changed.
    fn publish(&self, state: &NodeState, watched: Option<&Watched>) {
        self.status.send_if_modified(|status| {
            let current = watched.map(|Watched(connection)| connection);
            let is_same =
                status.connection.as_ref().map(|it| it.epoch) == current.map(|it| it.epoch);
            if status.state == *state && is_same {
                return false;
            }
            status.state = state.clone();
            status.connection = current.cloned();
            true
        });
    }

    fn tell_if_shut_out(&self, supervisor: &Supervisor, failure: &Failure) {
        if is_offence(failure) && matches!(supervisor.state(), NodeState::Down(_)) {
            tracing::warn!("node {}: {failure}; it is left alone for a while", self.name);
        }
    }
}

fn entropy() -> u64 {
    getrandom::u64().unwrap_or(u64::MAX)
}
