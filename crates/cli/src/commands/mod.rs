//! One file per command.

pub(crate) mod acquire;
mod caller;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod doctor;
mod events;
pub(crate) mod init;
mod keeper;
pub(crate) mod lease;
mod lease_file;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod query;
pub(crate) mod run;
mod slow;
pub(crate) mod status;
mod wait;

use std::process::ExitCode;

use crate::guardian;

pub(crate) fn hidden() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    Some(match args.next()?.to_str()? {
        guardian::GUARDIAN => guardian::main(args.collect()),
        guardian::EXEC_STEP => guardian::exec_step::main(args.collect()),
        keeper::KEEPER => keeper::main(),
        _ => return None,
    })
}

/// The runtime of a command, with one thread. The lock's driver has its own thread, so blocking here does not delay an
/// extension.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    quorlock::admin::current_thread_runtime()
}
