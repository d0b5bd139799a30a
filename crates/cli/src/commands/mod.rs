//! One file per command.

pub(crate) mod acquire;
pub(crate) mod bench;
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
pub(crate) mod status;
mod wait;

use std::process::ExitCode;
use std::time::Duration;

use crate::guardian;

pub(crate) fn hidden() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    Some(match args.next()?.to_str()? {
        guardian::GUARDIAN => guardian::main(args.collect()),
        guardian::EXEC_STEP => guardian::exec_step::main(args.collect()),
        keeper::KEEPER => keeper::main(),
        demo::WORKER => demo::worker(&args.collect::<Vec<_>>()),
        _ => return None,
    })
}

/// The runtime of a command, with one thread. The lock's driver has its own thread, so blocking here does not delay an
/// extension.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    quorlock::admin::current_thread_runtime()
}

/// A percentile of the sorted times: the smallest one such that `percent` percent of the times are not larger.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}
