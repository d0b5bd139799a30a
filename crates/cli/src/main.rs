//! The quorlock command line: run a command while holding a distributed lock.

mod args;
mod child;
mod commands;
mod exit_code;
mod guardian;
mod options;
mod output;
mod settings;
mod terminal_size;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use signal_hook::consts::SIGINT;
use signal_hook::low_level::emulate_default_handler;

use crate::args::{Cli, Command};
use crate::exit_code::ExitCode as Code;
use crate::settings::Stop;

/// Other words for commands, with the commands that they may mean. clap itself suggests only what is spelled alike.
const SYNONYMS: [(&str, &[&str]); 6] = [
    ("lock", &["run", "acquire"]),
    ("exec", &["run"]),
    ("unlock", &["release"]),
    ("renew", &["extend"]),
    ("list", &["ls"]),
    ("check", &["doctor", "status"]),
];

/// Adds a tip to the error about an unknown command that is another word for a command.
fn suggest(error: &mut clap::Error) {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    if let Some((_, meant)) = SYNONYMS.iter().find(|(word, _)| word == typed) {
        let meant = meant.iter().map(|&command| command.to_owned()).collect();
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(meant));
    }
}

fn main() -> ExitCode {
    // The guardian, its helpers and the keeper must run before any thread or runtime exists, and clap does not know their
    // arguments.
    if let Some(code) = commands::hidden() {
        return code;
    }
    let typed: Vec<OsString> = std::env::args_os().collect();
    match settings::parse(&typed) {
        Ok(cli) => run(cli).into(),
        Err(Stop::Clap(mut error)) => {
            suggest(&mut error);
            output::clap(&error);
            match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Code::Success.into(),
                _ => Code::Usage.into(),
            }
        }
        Err(Stop::Refused(refused, json)) => {
            output::say(json, "refused", &refused.message);
            refused.code.into()
        }
    }
}

/// After Ctrl-C quorlock dies of SIGINT itself, so that a shell ends a loop around it. The exit code is the same.
fn as_shells_see_it(code: Code) -> Code {
    if code == Code::Signal(SIGINT) {
        // This returns only if the signal cannot be raised.
        let _ = emulate_default_handler(SIGINT);
    }
    code
}

fn run(Cli { command, output, .. }: Cli) -> Code {
    if let Some(line) = quorlock::settings::unknown_variables()
        && !output.quiet
    {
        output::say(output.json, "warning", &line);
    }
    let result = match command {
        Command::Run(args) => commands::run::main(&args, output).map(as_shells_see_it),
        Command::Acquire(args) => commands::acquire::main(&args, output).map(as_shells_see_it),
        Command::Extend(args) => commands::lease::extend(&args, output),
        Command::Release(args) => commands::lease::release(&args, output),
        Command::Query(args) => commands::query::main(&args, output),
        Command::Status(args) => commands::status::main(&args, output),
        Command::Ls(args) => commands::ls::main(&args, output),
        Command::Init(args) => commands::init::main(&args, output).map(as_shells_see_it),
        Command::Doctor(args) => commands::doctor::main(&args, output),
        Command::Demo => commands::demo::main(),
        Command::Completions(args) => commands::completions::main(&args),
        Command::Man(args) => commands::man::main(&args),
    };
    result.unwrap_or_else(|refused| {
        output::say(output.json, "refused", &refused.message);
        refused.code
    })
}
