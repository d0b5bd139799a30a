//! Reads the value of each option from the command line, else the environment, else the file.
//!
//! A value from the environment or the file becomes the default of its option. So clap reads all values in the same
//! way, and [`Values`] keeps where each one came from, for messages and exit codes.

use std::env;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};

use clap::builder::OsStr as ClapStr;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory as _, FromArgMatches as _};
use quorlock::BuildError;
use quorlock::settings::{Class, Form, Origin, Place, Setting, Values, boolean};

use crate::args::{Cli, Command};
use crate::options::Refused;

pub(crate) enum Stop {
    /// Wrong arguments, or a request for help.
    Clap(clap::Error),
    /// A wrong value, and whether the message is JSON.
    Refused(Refused, bool),
}

pub(crate) fn parse(typed: &[OsString]) -> Result<Cli, Stop> {
    let command = prepared(Cli::command());
    let matches = command.clone().try_get_matches_from(typed).map_err(Stop::Clap)?;
    let (name, json, values) = match matches.subcommand() {
        Some((name, matches)) => {
            let json = is_json(matches);
            let refuse =
                |error: BuildError| Stop::Refused(Refused::config(error.to_string()), json);
            (name, json, gather(&command, name, matches).map_err(refuse)?)
        }
        None => ("", false, Values::default()),
    };
    let with_default = |arg: Arg| {
        let long = arg.get_long().unwrap_or_default();
        match values.of(long).filter(|given| given.origin != Origin::Typed) {
            Some(given) => arg.default_values(given.texts.iter().cloned().map(ClapStr::from)),
            None => arg,
        }
    };
    let command = command
        .mut_subcommand(name, |subcommand| subcommand.mut_args(with_default))
        .mut_args(with_default);
    let read =
        command.try_get_matches_from(typed).and_then(|matches| Cli::from_arg_matches(&matches));
    let mut cli = read.map_err(Stop::Clap)?;
    let refuse = |refused| Stop::Refused(refused, json);
    if let Command::Run(run) = &cli.command {
        let behind = typed.iter().rev().take_while(|word| *word != "--").count();
        let first = typed.iter().position(|word| word == "--");
        let behind_first = first.map_or(behind, |place| typed.len() - place - 1);
        if first.is_some() && behind_first > run.cmd.len() {
            let message = "KEY stands before --, as in: quorlock run KEY -- CMD";
            return Err(refuse(Refused::usage(message)));
        }
        let end = first.unwrap_or(typed.len() + 1 - run.cmd.len());
        refuse_unclear(&typed[..end], "; else put KEY before the options, and -- before CMD")
            .map_err(refuse)?;
    }
    if let Command::Acquire(_) = &cli.command {
        refuse_unclear(typed, "; else put KEY before the options").map_err(refuse)?;
    }
    if let Some(nodes) = cli.command.nodes_mut() {
        nodes.values = values;
    }
    Ok(cli)
}

/// The values of the options of a command. A command without nodes reads no variables and no file.
fn gather(command: &clap::Command, name: &str, typed: &ArgMatches) -> Result<Values, BuildError> {
    let of_command =
        command.find_subcommand(name).into_iter().flat_map(clap::Command::get_arguments);
    let here: Vec<&Arg> = of_command.chain(command.get_arguments()).collect();
    let find = |long: &str| here.iter().copied().find(|arg| arg.get_long() == Some(long));
    let mut values = Values::default();
    if find("node").is_none() {
        return Ok(values);
    }
    for arg in &here {
        let id = arg.get_id().as_str();
        if let Some(long) = arg.get_long()
            && typed.value_source(id) == Some(ValueSource::CommandLine)
        {
            let texts = typed.get_raw(id).into_iter().flatten().map(OsStr::to_owned).collect();
            values.insert(long, texts, Origin::Typed, format!("--{long}"));
        }
    }
    // A wrong value is refused even if only other commands have the option.
    let accept = |setting: &'static Setting, text: &OsStr| {
        let own = find(setting.name);
        let mut all = command.get_subcommands().flat_map(clap::Command::get_arguments);
        if let Some(arg) = own.or_else(|| all.find(|arg| arg.get_long() == Some(setting.name))) {
            check(arg, text)?;
        }
        Ok(own.is_some() || setting.place == Place::OnlyVariable)
    };
    values.read_variables(&accept)?;
    values.read_file(&accept)?;
    Ok(values)
}

/// Refuses a word that may be the value of the flag before it, such as `false` in `--json false`.
fn refuse_unclear(typed: &[OsString], otherwise: &str) -> Result<(), Refused> {
    let Some(pair) = typed.windows(2).find(|pair| is_unclear(&pair[0], &pair[1])) else {
        return Ok(());
    };
    let [flag, word] = [&pair[0], &pair[1]].map(|it| it.to_string_lossy());
    Err(Refused::usage(format!(
        "{flag} {word}: write {flag}={word} if it is the option's value{otherwise}"
    )))
}

/// Whether a word looks like the value of the flag before it. A flag takes a value only behind `=`.
fn is_unclear(flag: &OsStr, word: &OsStr) -> bool {
    let is_flag = |arg: &Arg| {
        let typed = flag.to_string_lossy();
        let is_named = |name: String| *typed == *name;
        arg.is_require_equals_set()
            && (arg.get_long().is_some_and(|long| is_named(format!("--{long}")))
                || arg.get_short().is_some_and(|short| is_named(format!("-{short}"))))
    };
    let command = prepared(Cli::command());
    let of_run = command.find_subcommand("run").into_iter().flat_map(clap::Command::get_arguments);
    word.to_str().is_some_and(|word| boolean(word).is_ok())
        && command.get_arguments().chain(of_run).any(is_flag)
}

/// Whether a refusal is written as JSON.
fn is_json(matches: &ArgMatches) -> bool {
    let typed = matches!(matches.try_get_one::<bool>("json"), Ok(Some(true)));
    typed || env::var("QUORLOCK_JSON").is_ok_and(|text| boolean(&text) == Ok(true))
}

fn setting_of(arg: &Arg) -> Option<&'static Setting> {
    arg.get_long().and_then(Setting::of)
}

/// Adds the texts of the table of settings, lets flags that are settings take a value (`--flag`, `--flag=false`), and
/// shortens the text of `-h`.
pub(crate) fn prepared(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let arg = described(arg);
        let Some(setting) = setting_of(&arg) else { return arg };
        let help = arg.get_long_help().map(ToString::to_string).unwrap_or_default();
        let arg = arg.long_help(format!("{help}\n[env: {}]", setting.variable()));
        if !matches!(arg.get_action(), ArgAction::SetTrue) {
            return arg;
        }
        arg.action(ArgAction::Set)
            .value_parser(boolean)
            .value_name(Form::Bool.value_name())
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .default_value("false")
            .hide_default_value(true)
    });
    command.mut_subcommands(prepared)
}

/// Adds the texts of the table of settings. `-h` shows the beginning of each text, and only `--node` of the section
/// "Nodes".
pub(crate) fn described(arg: Arg) -> Arg {
    let setting = setting_of(&arg);
    let of_arg = arg.get_help().map(ToString::to_string);
    let Some(help) = of_arg.or_else(|| setting.map(|it| it.help.to_owned())) else { return arg };
    let long = arg.get_long_help().map_or_else(|| help.clone(), ToString::to_string);
    let help = help.split("\n\n").next().unwrap_or_default();
    let ends = [". ", ": ", "; ", ", so ", " [default"];
    // The text is cut at the first of these marks, but not within its first 15 characters.
    let from = help.char_indices().nth(15).map_or(help.len(), |(place, _)| place);
    let end = ends.iter().filter_map(|end| help[from..].find(end)).min();
    let end = end.map_or(help.len(), |end| from + end);
    let is_rare = setting.is_some_and(|it| it.class == Class::Deployment && it.name != "node");
    let is_hidden = is_rare || arg.is_hide_short_help_set();
    let arg = arg.help(help[..end].to_owned()).long_help(long).hide_short_help(is_hidden);
    match setting {
        Some(setting) if arg.get_action().takes_values() => {
            arg.value_name(setting.form.value_name())
        }
        _ => arg,
    }
}

/// Checks a value as clap does. The error contains the value; no option that is checked here is a secret.
fn check(arg: &Arg, text: &OsStr) -> Result<(), String> {
    let parser = arg.get_value_parser().clone();
    let value = Arg::new("value").value_parser(parser).allow_hyphen_values(true);
    let command = clap::Command::new("value").no_binary_name(true).arg(value);
    let Err(error) = command.try_get_matches_from([text]) else { return Ok(()) };
    let reason = match (error.source(), error.get(ContextKind::ValidValue)) {
        (Some(reason), _) => reason.to_string(),
        (_, Some(ContextValue::Strings(valid))) => format!("must be one of: {}", valid.join(", ")),
        _ => "it is not UTF-8 text".to_owned(),
    };
    let shown: String = text.to_string_lossy().chars().take(40).collect();
    Err(format!("{shown:?}: {reason}"))
}

#[cfg(test)]
mod tests {
    use quorlock::settings::SETTINGS;

    use super::*;

    /// The options that have no variable and stand in no file, because each describes one call alone.
    const ONLY_TYPED: &[&str] = &[
        "acl",
        "also",
        "exit-code",
        "force",
        "fresh",
        "hold-by",
        "holder",
        "lease-file",
        "log",
        "notes",
        "old-node",
        "on-lost",
        "reconfigure",
        "stale",
        "systemd",
        "value",
        "watch",
        "yes",
    ];

    #[test]
    fn each_option_is_in_the_table_or_only_typed_and_each_row_has_its_option() {
        let command = prepared(Cli::command());
        let of_commands = command.get_subcommands().flat_map(clap::Command::get_arguments);
        let options: Vec<&str> =
            of_commands.chain(command.get_arguments()).filter_map(Arg::get_long).collect();
        for option in &options {
            let is_row = Setting::of(option).is_some();
            assert_ne!(is_row, ONLY_TYPED.contains(option), "--{option}: add it to SETTINGS");
        }
        for setting in SETTINGS {
            let has_option = options.contains(&setting.name);
            assert_eq!(has_option, setting.place != Place::OnlyVariable, "{}", setting.name);
        }
    }

    #[test]
    fn short_help_fits_a_screen_and_long_help_has_examples() {
        let command = prepared(Cli::command());
        let names = command.get_subcommands().map(|it| it.get_name().to_owned());
        for name in names.chain([String::new()]) {
            let help = |option: &'static str| {
                let words = ["quorlock", &name, option].into_iter().filter(|word| !word.is_empty());
                let shown = command.clone().try_get_matches_from(words).unwrap_err().to_string();
                assert!(shown.lines().all(|line| line.chars().count() <= 80), "{name}: {shown}");
                shown
            };
            let short = help("-h");
            // The page of `quorlock` itself also lists all commands, so it may have more rows.
            let rows = if name.is_empty() { 34 } else { 24 };
            assert!(
                short.lines().count() <= rows,
                "{name}: {} lines:\n{short}",
                short.lines().count()
            );
            let long = help("--help");
            assert!(name.is_empty() || long.contains("Examples:\n"), "{long}");
            // No line in the table of exit codes is wrapped. A wrapped line would continue without two spaces.
            let codes = long.lines().skip_while(|line| !line.starts_with("Exit codes")).skip(2);
            let is_code = |line: &str| line.starts_with("  ") || line.starts_with("Of doctor");
            assert!(codes.take_while(|line| !line.is_empty()).all(is_code), "{long}");
        }
    }
}
