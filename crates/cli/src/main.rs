//! The quorlock command line: run a command while holding a distributed lock.

mod args;
mod child;
mod commands;
mod exit_code;
mod guardian;
mod options;
mod output;
mod window;

use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use signal_hook::consts::SIGINT;
use signal_hook::low_level::emulate_default_handler;

use crate::args::{Cli, Command};
use crate::exit_code::ExitCode as Code;

fn main() -> ExitCode {
    // The guardian and its helpers must run before any thread or runtime exists, and what they are
    // given is not for clap.
    if let Some(code) = commands::hidden() {
        return code;
    }
    match Cli::try_parse() {
        Ok(cli) => run(cli.command).into(),
        Err(error) => {
            // Nothing can be done about a closed standard error.
            let _ = error.print();
            blame(&error).into()
        }
    }
}

/// A shell ends its loop on Ctrl-C only if the command in it died of SIGINT itself; the code it sees
/// is the same.
fn as_shells_see_it(code: Code) -> Code {
    if code == Code::Signal(SIGINT) {
        // It returns only if the signal cannot be raised, and then the code does.
        let _ = emulate_default_handler(SIGINT);
    }
    code
}

/// The exit code for what clap refuses: 78 if the wrong value was never typed, so that it must have
/// come from the environment.
fn blame(error: &clap::Error) -> Code {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Code::Success;
    }
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return Code::Usage;
    };
    let typed = std::env::args().skip(1).any(|arg| arg.contains(value.as_str()));
    if value.is_empty() || typed { Code::Usage } else { Code::Config }
}

fn run(command: Command) -> Code {
    let (json, result) = match command {
        Command::Run(args) => (args.output.json, commands::run::main(&args).map(as_shells_see_it)),
        Command::Status(args) => (args.output.json, commands::status::main(&args)),
        Command::Ls(args) => (args.output.json, commands::ls::main(&args)),
        Command::Init(args) => {
            (args.output.json, commands::init::main(&args).map(as_shells_see_it))
        }
        Command::Doctor(args) => (args.output.json, commands::doctor::main(&args)),
        Command::Bench(args) => (args.output.json, commands::bench::main(&args)),
        Command::Demo(args) => (false, commands::demo::main(&args)),
    };
    result.unwrap_or_else(|refused| {
        output::refused(json, &refused.message);
        refused.code
    })
}
