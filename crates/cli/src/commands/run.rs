//! `quorlock run KEY -- CMD`: takes the lock, runs the command while holding it, and releases the lock.
//!
//! This process is the *keeper*: it holds the lock through a driver on its own thread. A second process, the *guardian*
//! (see [`crate::child`]), runs the command, and ends it in time whatever happens to the keeper. The keeper sends each
//! new deadline to the guardian, and releases the lock when no process of the command is left.

mod health;
mod hold;
mod lease;
mod loss;
mod plan;

use quorlock::admin::exhausted;
use quorlock::{AcquireError, Waiting};
use tokio::sync::mpsc;

use self::lease::Lease;
use self::plan::RunPlan;
use super::caller::Caller;
use super::wait::REPORTS;
use crate::args::{OutputArgs, Run};
use crate::child;
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::Output;

pub(crate) fn main(args: &Run, format: OutputArgs) -> Result<ExitCode, Refused> {
    options::check_lock(&args.lock, &args.nodes)?;
    if args.cmd.first().is_none_or(|program| program.is_empty()) {
        return Err(Refused::usage("CMD is empty: the first word after KEY names the command"));
    }
    let plan = RunPlan::new(args)?;
    child::check_machine()?;
    let output = Output::new(format, args.status_fd).map_err(|error| match args.status_fd {
        Some(fd) if exhausted(&error).is_none() => {
            let message = format!(
                "cannot write to file descriptor {fd} ({error}); open it when you start quorlock, as in \
                 {fd}>status.json"
            );
            Refused::about(&["status-fd"], message, &args.nodes)
        }
        _ => error.into(),
    })?;
    let caller = Caller {
        if_held: args.if_held,
        held: args.held_exit_code.map_or(ExitCode::Held, ExitCode::Own),
        ..Caller::new(&args.lock, &args.nodes, output, &plan.label)?
    };
    let runtime = super::runtime()?;
    Ok(runtime.block_on(Keeper { args, plan, caller, is_left: false }.run()))
}

struct Keeper<'a> {
    args: &'a Run,
    plan: RunPlan,
    caller: Caller<'a>,
    /// The keys are left to expire, and not released.
    is_left: bool,
}

impl Keeper<'_> {
    async fn run(mut self) -> ExitCode {
        let (progress, waiting) = mpsc::channel(REPORTS);
        let call = self.call(progress);
        let code = match self.caller.await_lock(call, waiting).await {
            Ok(lease) => self.hold(lease).await,
            Err(code) => code,
        };
        // A node that answers confirms a release within a round trip. The wait for other nodes ends after one node
        // timeout, because their keys expire anyway.
        if !self.is_left {
            let client = &self.caller.client;
            let _ = client.shutdown(client.longest_node_timeout(self.plan.ttl)).await;
        }
        code
    }

    /// The call for the lock, with the options of the command line.
    fn call(
        &self,
        progress: mpsc::Sender<Waiting>,
    ) -> impl Future<Output = Result<Lease, AcquireError>> + use<> {
        let options = self.caller.options().keep_on_loss(true);
        let call = self.caller.call(options, progress);
        async move {
            let (guard, fencing_token) = call.await?;
            Ok(Lease::new(guard, fencing_token))
        }
    }
}
