//! Nodes are killed (SIGKILL) and restarted at once: the time until a call that starts at that moment acquires a lock.

use std::thread;
use std::time::Duration;

use ::quorlock::{Client, LockOptions, RestartGuard};
use quorlock_servers::{Nodes, Server};

use super::{NODES, all_vote, once};
use crate::clock;
use crate::report::Cell;
use crate::subjects::closed_loop::AsyncSubject;
use crate::subjects::quorlock;
use crate::testbed;
use crate::workloads::{Bench, progress};

pub(crate) const NAME: &str = "recovery_restart";

/// The numbers of nodes that are killed at once, of five: a minority, a majority, all.
const KILLED: [usize; 3] = [1, 3, 5];

/// There are few rounds, because a round takes long and its figures vary little.
const ROUNDS: usize = 3;

/// A configuration of servers and clients.
struct Setup {
    name: &'static str,
    guard: RestartGuard,
    max_ttl: Duration,
    args: &'static [&'static str],
    /// Whether the client relies on the nodes to keep their data over a restart (`durable_nodes`).
    is_durable: bool,
}

const SETUPS: [Setup; 4] = [
    Setup {
        name: "strict, max_ttl 1 s",
        guard: RestartGuard::Strict,
        max_ttl: Duration::from_secs(1),
        args: &[],
        is_durable: false,
    },
    Setup {
        name: "strict, max_ttl 3 s",
        guard: RestartGuard::Strict,
        max_ttl: Duration::from_secs(3),
        args: &[],
        is_durable: false,
    },
    Setup {
        name: "strict, max_ttl 3 s, always, declared durable",
        guard: RestartGuard::Strict,
        max_ttl: Duration::from_secs(3),
        args: &["--appendonly", "yes", "--appendfsync", "always"],
        is_durable: true,
    },
    Setup {
        name: "off: unsafe",
        guard: RestartGuard::Off,
        max_ttl: Duration::from_secs(3),
        args: &[],
        is_durable: false,
    },
];

const TTL: Duration = Duration::from_secs(1);

/// Measures each setup in every round.
pub(crate) fn run(bench: &mut Bench) {
    let started: Result<Vec<_>, String> = SETUPS.iter().map(|setup| start(bench, setup)).collect();
    let started = match started {
        Ok(started) => started,
        Err(why) => return bench.figures.not_run("quorlock", NAME, why),
    };
    for round in 1..=bench.rounds.min(ROUNDS) {
        for (setup, testbed, subject) in &started {
            progress(&format!("{NAME}, round {round}: {}", setup.name));
            for (at, killed) in KILLED.into_iter().enumerate() {
                let key = format!("bench:{NAME}:{round}:{at}");
                match outage(&testbed[..killed], subject, key) {
                    Ok(time) => {
                        let cell = Cell::new(NAME, setup.name, NODES, killed);
                        bench.figures.add(cell, "back_after_ms", time.as_secs_f64() * 1000.0);
                    }
                    Err(why) => return bench.figures.not_run(setup.name, NAME, why),
                }
            }
        }
    }
}

type Started = (&'static Setup, Nodes, AsyncSubject<Client>);

fn start(bench: &Bench, setup: &'static Setup) -> Result<Started, String> {
    let testbed = testbed::start(&bench.binary, NODES, setup.args)?;
    let name = |(index, url)| format!("n{index}={url}");
    let nodes = testbed.urls().into_iter().enumerate().map(name);
    let builder = quorlock::builder(nodes)
        .options(LockOptions::new().ttl(TTL))
        .max_ttl(setup.max_ttl)
        .restart_guard(setup.guard)
        .durable_nodes((0..NODES).filter(|_| setup.is_durable).map(|index| format!("n{index}")));
    let subject = quorlock::named(setup.name, builder, bench.flavor)?;
    Ok((setup, testbed, subject))
}

/// Returns the time from just before the first kill to the grant of a lock. The call starts after the last kill.
fn outage(
    killed: &[Server],
    subject: &AsyncSubject<Client>,
    key: String,
) -> Result<Duration, String> {
    let AsyncSubject { locker, runtime, .. } = subject;
    runtime.block_on(all_vote(locker.clone()))?;
    let begin = clock::now();
    killed.iter().try_for_each(Server::kill).map_err(|error| error.to_string())?;
    thread::scope(|scope| {
        let restarts: Vec<_> =
            killed.iter().map(|server| scope.spawn(|| server.restart())).collect();
        let had = runtime.block_on(runtime.spawn(once(locker.clone(), key)));
        for restart in restarts {
            let restarted = restart.join().map_err(|_| "a restart panicked".to_owned())?;
            restarted.map_err(|error| error.to_string())?;
        }
        Ok(had.map_err(|panic| panic.to_string())?? - begin)
    })
}
