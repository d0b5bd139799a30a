//! `quorlock acquire KEY`: takes a lock for a shell script, and prints its lease.

use std::io::{self, Write as _};
use std::process::ChildStdin;
use std::thread;
use std::time::Duration;

use quorlock::settings::Origin;
use quorlock::{AcquireError, DetachError, Lease, Waiting};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::caller::Caller;
use super::keeper::{self, Watched};
use super::lease::{add_lease, clock, lease_json};
use super::lease_file;
use super::wait::REPORTS;
use crate::args::{Acquire, OutputArgs};
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{self, Output, json_line};

pub(crate) fn main(args: &Acquire, format: OutputArgs) -> Result<ExitCode, Refused> {
    let lock = &args.lock;
    options::check_lock(lock, &args.nodes)?;
    // Only a typed label conflicts with --value. A label from the environment or the file has no effect then.
    let is_labelled = args.nodes.values.origin("label") == Some(Origin::Typed);
    let with_value = [
        ("shared", lock.shared, "readers have values of their own"),
        ("fenced", lock.fenced, "a lock with a value of yours has no fencing token"),
        ("also", !lock.also.is_empty(), "a value of yours is for one key"),
        ("label", is_labelled, "a value of yours has no room for a description"),
    ];
    if let Some((other, _, why)) = with_value.iter().find(|it| args.value.is_some() && it.1) {
        let message = format!("these do not go together: {why}");
        return Err(Refused::about(&["value", other], message, &args.nodes));
    }
    match &args.lease_file {
        Some(path) => lease_file::check(path, &args.nodes)?,
        // The script needs no printed lease: the keeper releases the lock, or `quorlock release` finds it by its value.
        None if args.hold_by.is_some() || args.value.is_some() => {}
        None if output::is_stdout_closed() => {
            let message = "standard output is closed, so nobody would get the lease; use --lease-file PATH, or \
                           >/dev/null if no release is to end the lock";
            return Err(Refused::internal(message));
        }
        None => {}
    }
    if let Some(path) = &args.log {
        keeper::check_log(path, &args.nodes)?;
    }
    if args.hold_by.is_some() {
        options::stoppable_ttl(&lock.times, &args.nodes)?;
    }
    let watched = args.hold_by.map(|pid| Watched::find(pid, args.on_lost, &args.nodes));
    let watched = watched.transpose()?;
    let label = match (&lock.label, args.hold_by) {
        (Some(label), _) => label.clone(),
        (None, Some(pid)) => format!("kept for pid {pid}"),
        (None, None) => "acquire".to_owned(),
    };
    let caller = Caller::new(lock, &args.nodes, Output::new(format, None)?, &label)?;
    let giver = Giver { args, format, caller };
    Ok(super::runtime()?.block_on(giver.run(watched)))
}

/// Acquires the lock, starts its keeper, and gives the lease to the script.
struct Giver<'a> {
    args: &'a Acquire,
    format: OutputArgs,
    caller: Caller<'a>,
}

/// The longest time between the end of the keeper by a Ctrl-C and the arrival of the same Ctrl-C in this process.
const CTRL_C: Duration = Duration::from_millis(100);

/// Exit code and message if the lock must be released. A signal has no message.
type Fault = (ExitCode, Option<String>);

impl Giver<'_> {
    async fn run(mut self, watched: Option<Watched>) -> ExitCode {
        let (progress, waiting) = mpsc::channel(REPORTS);
        let call = self.call(progress);
        let code = match self.caller.await_lock(call, waiting).await {
            Ok(Ok(lease)) => match self.give(lease, watched).await {
                Ok(()) => return ExitCode::Success,
                Err(code) => code,
            },
            Ok(Err(error)) => {
                self.say_failed(&error.to_string());
                match error {
                    DetachError::Lost { .. } => ExitCode::Lost,
                    DetachError::Unanswered { .. } => ExitCode::NoQuorum,
                    _ => ExitCode::Internal,
                }
            }
            Err(code) => code,
        };
        let ttl = self.args.lock.times.ttl(&self.args.nodes);
        let client = &self.caller.client;
        let _ = client.shutdown(client.longest_node_timeout(ttl)).await;
        code
    }

    /// The call for the lock. If it is dropped, the lock is released.
    fn call(
        &self,
        progress: mpsc::Sender<Waiting>,
    ) -> impl Future<Output = Result<Result<Lease, DetachError>, AcquireError>> + use<> {
        let (client, options) = (self.caller.client.clone(), self.caller.options());
        let lock = &self.args.lock;
        let taken = self.args.value.as_ref().map(|value| {
            let ttl = lock.times.ttl(&self.args.nodes);
            client.take(&lock.key, value, ttl).options(options.clone()).progress(progress.clone())
        });
        let call = self.caller.call(options, progress);
        async move {
            match taken {
                Some(take) => Ok(take.await?.detach().await),
                None => Ok(call.await?.0.detach().await),
            }
        }
    }

    /// Starts the keeper, writes the file, and prints the lease. The lock is released if one of these fails.
    async fn give(&mut self, lease: Lease, watched: Option<Watched>) -> Result<(), ExitCode> {
        let mut given = lease;
        let mut unprinted = None;
        let Err((code, message)) = self.try_give(&mut given, watched, &mut unprinted).await else {
            // This byte shows the keeper that the lease was printed. The write may fail if the keeper was killed.
            let _ = unprinted.map(|mut keeper| keeper.write_all(b"\n"));
            return Ok(());
        };
        if let Some(message) = message {
            self.say_failed(&message);
        }
        keeper::end(&given);
        // A failed release is ignored: without its keeper nobody extends the lock, so the lock ends after its ttl.
        let _ = self.caller.client.release_lease(&given).await;
        Err(code)
    }

    async fn try_give(
        &mut self,
        lease: &mut Lease,
        watched: Option<Watched>,
        unprinted: &mut Option<ChildStdin>,
    ) -> Result<(), Fault> {
        let fault = |message: String| (ExitCode::Internal, Some(message));
        if let Some(watched) = watched {
            match keeper::start(lease, &watched, self.args.on_lost) {
                Ok((keeper, pipe)) => {
                    *lease = lease.clone().kept_by(keeper);
                    *unprinted = Some(pipe);
                }
                // Ctrl-C also ends a keeper that has no session of its own yet. Then the signal is the cause.
                Err(why) => match self.caller.interrupted(CTRL_C).await {
                    Some(code) => return Err((code, None)),
                    None => return Err(fault(format!("the keeper does not start: {why}"))),
                },
            }
        }
        if let Some(path) = &self.args.lease_file {
            lease_file::write(path, lease).map_err(|error| {
                fault(format!("cannot write the lease to {}: {error}", path.display()))
            })?;
        }
        let taken_back = |fault| {
            if let Some(path) = &self.args.lease_file {
                let _ = std::fs::remove_file(path);
            }
            Err(fault)
        };
        if let Some(code) = self.caller.interrupted(Duration::ZERO).await {
            return taken_back((code, None));
        }
        let late = || {
            let message = "the time of the lock was up before the lease could be printed";
            (ExitCode::Lost, Some(message.to_owned()))
        };
        if lease.remaining().is_zero() {
            return taken_back(late());
        }
        self.say_acquired(lease);
        let text = match (self.format.json, self.format.quiet) {
            (true, _) => json_line(lease_json(lease)),
            (false, true) if self.args.lease_file.is_some() => return Ok(()),
            (false, _) => format!("{lease}\n"),
        };
        let failed = |error| fault(format!("cannot print the lease: {error}"));
        let (sender, printed) = oneshot::channel();
        // A full pipe blocks only the thread `printer`, and not the response to a signal or to the end of the lock.
        let printer = thread::Builder::new().name("printer".into());
        if let Err(error) = printer.spawn(move || sender.send(output::write(&text))) {
            return taken_back(failed(error));
        }
        let is_kept = lease.keeper().is_some();
        let patience = if is_kept { Duration::MAX } else { lease.remaining() };
        tokio::select! {
            biased;
            result = printed => match result {
                Ok(Ok(())) if is_kept || !lease.remaining().is_zero() => Ok(()),
                Ok(Ok(())) => taken_back(late()),
                Ok(Err(error)) => taken_back(failed(error)),
                // The thread has panicked.
                Err(error) => taken_back(failed(io::Error::other(error))),
            },
            signal = self.caller.interrupted(patience) => {
                taken_back(signal.map_or_else(late, |code| (code, None)))
            }
        }
    }

    fn say_acquired(&mut self, lease: &Lease) {
        let title = self.args.lock.title();
        let mut parts = Vec::new();
        if let Some(fencing_token) = lease.fencing_token() {
            parts.push(format!("the fencing token of \"{title}\" is {fencing_token}"));
        }
        if lease.keeper().is_none() {
            parts.push(format!("\"{title}\" ends {} unless it is extended", clock(lease)));
        }
        let mut event = self.caller.lock_event("acquired");
        add_lease(&mut event, lease);
        event["keeper_pid"] = json!(lease.keeper().map(|keeper| keeper.pid));
        self.caller.say_acquired(event, parts);
    }

    fn say_failed(&mut self, message: &str) {
        let message = format!("lock \"{}\" given back: {message}", self.args.lock.title());
        let event: Value = self.caller.not_acquired(&message, false, &[]);
        self.caller.output.error(event, &message);
    }
}
