//! Locks that outlive a process. Compares attach with acquire, a lock that has the caller's value with a plain lock,
//! and `quorlock acquire` with `redis-cli`, both from a shell.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use ::quorlock::{Client, Guard};

use super::{Bench, progress};
use crate::clock;
use crate::report::Cell;
use crate::sample::Latencies;
use crate::subjects::{TTL, quorlock};
use crate::testbed;

pub(crate) const NAME: &str = "leases";

const NODES: usize = 5;

/// The number of processes of each program in a round.
const PROCESSES: usize = 20;

/// Measures each kind of call with one locker. The calls alternate, so that a disturbance affects all kinds.
pub(crate) fn run(bench: &mut Bench) {
    for round in 1..=bench.rounds {
        progress(&format!("{NAME}, N={NODES}, round {round}"));
        if let Err(why) = measure(bench).and_then(|()| shell(bench)) {
            return bench.figures.not_run("quorlock", NAME, why);
        }
    }
}

fn measure(bench: &mut Bench) -> Result<(), String> {
    let subject = quorlock::new(&bench.testbed[..NODES], bench.flavor)?;
    let client = subject.locker.clone();
    let until = clock::now() + bench.warm_up();
    subject.runtime.block_on(alternate(client.clone(), until))?;
    let until = clock::now() + 4 * bench.sample;
    let steps = subject.runtime.block_on(alternate(client, until))?;
    for (name, latencies) in steps {
        add(bench, name, &latencies)?;
    }
    Ok(())
}

type Steps = [(&'static str, Latencies); 6];

async fn alternate(client: Client, until: Duration) -> Result<Steps, String> {
    let names = ["acquire", "attach", "fenced acquire", "fenced attach", "pair", "taken pair"];
    let mut steps = names.map(|name| (name, Latencies::default()));
    let failed = |error: &dyn std::error::Error| error.to_string();
    let key = "bench/leases";
    while clock::now() < until {
        let began = clock::now();
        let guard = client.acquire(key).await.map_err(|error| failed(&error))?;
        let acquired = clock::now();
        let lease = guard.detach().await.map_err(|error| failed(&error))?;
        let detached = clock::now();
        let guard = client.attach(&lease).await.map_err(|error| failed(&error))?;
        let attached = clock::now();
        release(guard).await?;
        steps[0].1.record(acquired - began);
        steps[1].1.record(attached - detached);

        let began = clock::now();
        let guard = client.acquire_fenced(key).await.map_err(|error| failed(&error))?;
        let acquired = clock::now();
        let lease = guard.detach().await.map_err(|error| failed(&error))?;
        let detached = clock::now();
        let guard = client.attach_fenced(&lease).await.map_err(|error| failed(&error))?;
        let attached = clock::now();
        release(guard.into()).await?;
        steps[2].1.record(acquired - began);
        steps[3].1.record(attached - detached);

        let began = clock::now();
        release(client.acquire(key).await.map_err(|error| failed(&error))?).await?;
        let paired = clock::now();
        let taken = client.take(key, "worker", TTL);
        let taken = taken.await.map_err(|error| failed(&error))?;
        quorlock::went_well(key, taken.release().await.outcome)?;
        steps[4].1.record(paired - began);
        steps[5].1.record(clock::now() - paired);
    }
    Ok(steps)
}

async fn release(guard: Guard) -> Result<(), String> {
    quorlock::went_well(NAME, guard.release().await.outcome)
}

/// The time from the start of a process to its end: `quorlock acquire`, and `redis-cli` with a `SET` to one node.
fn shell(bench: &mut Bench) -> Result<(), String> {
    let servers = &bench.testbed[..NODES];
    let nodes = testbed::urls(servers).join(",");
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let quorlock: PathBuf = program.with_file_name("quorlock");
    let (mut ours, mut theirs) = (Latencies::default(), Latencies::default());
    for nth in 0..PROCESSES {
        let key = format!("bench/shell/{}/{nth}", clock::nanos(clock::now()));
        let mut acquire = Command::new(&quorlock);
        acquire.args(["acquire", &key, "--ttl", "1s"]).env("QUORLOCK_NODES", &nodes);
        acquire.env("QUORLOCK_RESTART_GUARD", "off");
        ours.record(timed(&mut acquire)?);
        let mut set = Command::new("redis-cli");
        set.args(["-u", &servers[0].url(), "SET", &format!("{key}/cli"), "1", "NX", "PX", "1000"]);
        theirs.record(timed(&mut set)?);
    }
    add(bench, "quorlock acquire", &ours)?;
    add(bench, "redis-cli SET", &theirs)
}

fn timed(command: &mut Command) -> Result<Duration, String> {
    let began = clock::now();
    let output = command.stdin(Stdio::null()).output();
    let took = clock::now() - began;
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(took),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn add(bench: &mut Bench, subject: &'static str, latencies: &Latencies) -> Result<(), String> {
    if latencies.count() == 0 {
        return Err(format!("{subject}: nothing was done"));
    }
    let cell = Cell::new(NAME, subject, NODES, 1);
    let nanos = latencies.histogram().value_at_quantile(0.5);
    bench.figures.add(cell, "p50_us", nanos as f64 / 1000.0);
    Ok(())
}
