//! Reads the value of each option from the command line, else the environment, else the file.
//!
//! A value from the environment or the file becomes the default of its option. So clap reads all values in the same
//! way, and [`Origins`] keeps where each one came from, for messages and exit codes.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{env, fmt, fs};

use clap::builder::OsStr as ClapStr;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory as _, FromArgMatches as _};
use quorlock::env::{boolean, nearest};
use toml::Value;

use crate::args::{Cli, Command};
use crate::options::Refused;

/// Options that describe one call, and so are not taken from a file.
const NOT_IN_FILE: &[&str] = &["config", "json", "quiet", "shared", "status-fd"];

/// Options that `-h` leaves out, besides those about nodes.
const LONG_HELP_ONLY: &[&str] = &[
    "config",
    "held-exit-code",
    "kill-after",
    "label",
    "max-hold",
    "on-lost",
    "quiet",
    "status-fd",
    "yield-to-pollers",
];

#[derive(Clone, Debug)]
pub(crate) enum Origin {
    Typed(String),
    Variable(String),
    File { key: String, path: PathBuf },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Typed(name) => write!(f, "--{name}"),
            Self::Variable(name) => f.write_str(name),
            Self::File { key, path } => write!(f, "{key} in {}", path.display()),
        }
    }
}

/// Origins of all options that have a value, by their long names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    given: BTreeMap<String, Origin>,
    pub(crate) file: Option<PathBuf>,
}

impl Origins {
    pub(crate) fn of(&self, option: &str) -> Option<&Origin> {
        self.given.get(option)
    }
}

pub(crate) enum Stop {
    /// Wrong arguments, or a request for help.
    Clap(clap::Error),
    /// A wrong value, and whether the message is JSON.
    Refused(Refused, bool),
}

pub(crate) fn parse(typed: &[OsString]) -> Result<Cli, Stop> {
    let mut variables = BTreeMap::new();
    let command = prepared(Cli::command(), &mut variables);
    let matches = command.clone().try_get_matches_from(typed).map_err(Stop::Clap)?;
    let mut layers =
        Layers { command, variables, origins: Origins::default(), defaults: BTreeMap::new() };
    let json = match matches.subcommand() {
        Some((name, matches)) => {
            let json = is_json(matches);
            layers.gather(name, matches).map_err(|refused| Stop::Refused(refused, json))?;
            json
        }
        None => false,
    };
    let Layers { command, origins, mut defaults, .. } = layers;
    let name = matches.subcommand_name().unwrap_or_default();
    let mut with_default = |arg: Arg| match arg.get_long().and_then(|long| defaults.remove(long)) {
        Some(values) => arg.default_values(values),
        None => arg,
    };
    let command = command
        .mut_subcommand(name, |subcommand| subcommand.mut_args(&mut with_default))
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
        nodes.origins = origins;
    }
    Ok(cli)
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
    let command = prepared(Cli::command(), &mut BTreeMap::new());
    let of_run = command.find_subcommand("run").into_iter().flat_map(clap::Command::get_arguments);
    word.to_str().is_some_and(|word| boolean(word).is_ok())
        && command.get_arguments().chain(of_run).any(is_flag)
}

/// Whether a refusal is written as JSON.
fn is_json(matches: &ArgMatches) -> bool {
    let typed = matches!(matches.try_get_one::<bool>("json"), Ok(Some(true)));
    typed || env::var("QUORLOCK_JSON").is_ok_and(|text| boolean(&text) == Ok(true))
}

/// Moves the environment variables of clap's options to `variables`, lets flags with a variable take a value (`--flag`,
/// `--flag=false`), and shortens the text of `-h`.
pub(crate) fn prepared(
    command: clap::Command,
    variables: &mut BTreeMap<String, String>,
) -> clap::Command {
    let command = command.mut_args(|arg| {
        let arg = shortened(arg);
        let (Some(variable), Some(long)) = (arg.get_env(), arg.get_long()) else { return arg };
        let variable = variable.to_string_lossy().into_owned();
        let help =
            format!("{}\n[env: {variable}]", arg.get_long_help().cloned().unwrap_or_default());
        variables.insert(long.to_owned(), variable);
        let arg = arg.env(clap::builder::Resettable::Reset).long_help(help);
        if !matches!(arg.get_action(), ArgAction::SetTrue) {
            return arg;
        }
        arg.action(ArgAction::Set)
            .value_parser(boolean)
            .value_name("BOOL")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .default_value("false")
            .hide_default_value(true)
    });
    command.mut_subcommands(|subcommand| prepared(subcommand, variables))
}

/// `-h` shows the beginning of each text, and only `--node` of the section "Nodes".
pub(crate) fn shortened(arg: Arg) -> Arg {
    let Some(help) = arg.get_help().map(ToString::to_string) else { return arg };
    let long = arg.get_long_help().map_or_else(|| help.clone(), ToString::to_string);
    let ends = [". ", ": ", "; ", ", so ", " [default"];
    // The text is cut at the first of these marks, but not within its first 15 characters.
    let from = help.char_indices().nth(15).map_or(help.len(), |(place, _)| place);
    let end = ends.iter().filter_map(|end| help[from..].find(end)).min();
    let end = end.map_or(help.len(), |end| from + end);
    let name = arg.get_long().unwrap_or_default();
    let is_rare = arg.get_help_heading() == Some("Nodes") && name != "node";
    let is_hidden = is_rare || LONG_HELP_ONLY.contains(&name);
    arg.help(help[..end].to_owned()).long_help(long).hide_short_help(is_hidden)
}

struct Layers {
    command: clap::Command,
    variables: BTreeMap<String, String>,
    origins: Origins,
    defaults: BTreeMap<String, Vec<ClapStr>>,
}

impl Layers {
    fn gather(&mut self, name: &str, typed: &ArgMatches) -> Result<(), Refused> {
        let Some(subcommand) = self.command.find_subcommand(name) else { return Ok(()) };
        let mut args: Vec<Arg> = subcommand.get_arguments().cloned().collect();
        if !args.iter().any(|arg| arg.get_long() == Some("node")) {
            return Ok(());
        }
        let of_all = self.command.get_arguments().filter(|arg| arg.get_long() != Some("config"));
        args.extend(of_all.cloned());
        let is_here = |long: &str| args.iter().any(|arg| arg.get_long() == Some(long));
        // Variables of other commands are checked as well: a wrong value is refused even if this command ignores it.
        let all = self.command.get_subcommands().flat_map(clap::Command::get_arguments);
        let mut others = all.filter(|arg| arg.get_long().is_some_and(|long| !is_here(long)));
        others.try_for_each(|arg| self.variable(arg).map(drop))?;
        for arg in &args {
            let Some(long) = arg.get_long() else { continue };
            if typed.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine) {
                self.origins.given.insert(long.to_owned(), Origin::Typed(long.to_owned()));
            } else if let Some((variable, text)) = self.variable(arg)? {
                self.origins.given.insert(long.to_owned(), Origin::Variable(variable));
                self.defaults.insert(long.to_owned(), vec![text.into()]);
            }
        }
        let named = typed.get_one::<PathBuf>("config").cloned();
        let (path, origin) = match self.origins.of("config") {
            Some(origin @ Origin::Variable(name)) => {
                (env::var_os(name).map(PathBuf::from), format!("{origin}: "))
            }
            Some(origin) => (named, format!("{origin}: ")),
            None => (default_file()?, String::new()),
        };
        let Some(path) = path else { return Ok(()) };
        for (key, value) in read_file(&path, &origin)? {
            let long = if key == "nodes" { "node" } else { &key };
            let refuse =
                |reason: String| Refused::config(format!("{key} in {}: {reason}", path.display()));
            let arg = self.option_in_file(long).ok_or_else(|| refuse(self.unknown(&key)))?;
            let texts =
                texts(value, matches!(arg.get_action(), ArgAction::Append)).map_err(refuse)?;
            texts.iter().try_for_each(|text| check(arg, text.as_ref())).map_err(refuse)?;
            if long == "node" && texts.is_empty() {
                return Err(refuse("must name at least one node".to_owned()));
            }
            if is_here(long) && !self.origins.given.contains_key(long) {
                self.defaults
                    .insert(long.to_owned(), texts.into_iter().map(ClapStr::from).collect());
                let origin = Origin::File { key: key.clone(), path: path.clone() };
                self.origins.given.insert(long.to_owned(), origin);
            }
        }
        self.origins.file = Some(path);
        Ok(())
    }

    /// The variable of an option, with its value if it is set and good.
    fn variable(&self, arg: &Arg) -> Result<Option<(String, OsString)>, Refused> {
        let variable = arg.get_long().and_then(|long| self.variables.get(long));
        let Some((variable, text)) = variable.and_then(|it| Some((it, value_of(it)?))) else {
            return Ok(None);
        };
        check(arg, &text).map_err(|reason| Refused::config(format!("{variable}: {reason}")))?;
        Ok(Some((variable.clone(), text)))
    }

    /// The option, of any command, that a key in the file sets.
    fn option_in_file(&self, long: &str) -> Option<&Arg> {
        let mut args = self.command.get_subcommands().flat_map(clap::Command::get_arguments);
        args.find(|arg| arg.get_long() == Some(long)).filter(|_| self.is_in_file(long))
    }

    fn is_in_file(&self, long: &str) -> bool {
        self.variables.contains_key(long) && !NOT_IN_FILE.contains(&long)
    }

    fn unknown(&self, key: &str) -> String {
        if self.variables.contains_key(key) {
            return "it describes one call, and cannot stand in the file".to_owned();
        }
        let known = self.variables.keys().map(String::as_str).filter(|long| self.is_in_file(long));
        match nearest(key, known.map(|long| if long == "node" { "nodes" } else { long })) {
            Some(near) => format!("no such setting; do you mean {near}?"),
            None => "no such setting".to_owned(),
        }
    }
}

/// The value of a variable; `None` if it is unset or empty.
fn value_of(variable: &str) -> Option<OsString> {
    env::var_os(variable).filter(|text| text.to_str().is_none_or(|text| !text.trim().is_empty()))
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

/// The default files, for messages.
pub(crate) const PLACES: &str = "~/.config/quorlock/config.toml or /etc/quorlock/config.toml";

/// The first default file that exists. A file in the working directory is never a default.
fn default_file() -> Result<Option<PathBuf>, Refused> {
    let absolute = |name, below: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .map(|path| path.join(below))
    };
    let own = absolute("XDG_CONFIG_HOME", "").or_else(|| absolute("HOME", ".config"));
    let folders = own.into_iter().chain([PathBuf::from("/etc")]);
    for path in folders.map(|folder| folder.join("quorlock/config.toml")) {
        match fs::metadata(&path) {
            Ok(metadata) if is_anothers(&metadata) => {
                return Err(Refused::config(format!(
                    "{0}: another user of this machine can change this file, and so the nodes; chmod go-w {0}, and give \
                     it to root or to the user that runs quorlock",
                    path.display()
                )));
            }
            Ok(_) => return Ok(Some(path)),
            // There is no such file, or the user may not read its folder. The next default file is tried.
            Err(_) => {}
        }
    }
    Ok(None)
}

/// Whether another user than root and the current user can change the file. `ssh` has the same rule for its files.
fn is_anothers(file: &fs::Metadata) -> bool {
    let owners = [0, rustix::process::geteuid().as_raw()];
    file.mode() & 0o022 != 0 || !owners.contains(&file.uid())
}

/// Reads the configuration. `origin`: the option or variable that names the file, for errors.
fn read_file(path: &Path, origin: &str) -> Result<toml::Table, Refused> {
    let text = fs::read_to_string(path).map_err(|error| {
        Refused::config(format!("{origin}the configuration in {}: {error}", path.display()))
    })?;
    text.parse().map_err(|error: toml::de::Error| {
        // The error's full text quotes the line, which may hold a password. So only its message is shown.
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        Refused::config(format!("{}, line {line}: {}", path.display(), error.message()))
    })
}

/// The value of a key in the file, as a user would type it. A repeatable option may have several values.
fn texts(value: Value, repeatable: bool) -> Result<Vec<OsString>, String> {
    match value {
        Value::String(text) => Ok(vec![text.into()]),
        Value::Integer(number) => Ok(vec![number.to_string().into()]),
        Value::Boolean(yes) => Ok(vec![yes.to_string().into()]),
        Value::Array(values) if repeatable => {
            let texts = values.into_iter().map(|value| texts(value, false));
            texts.collect::<Result<Vec<_>, _>>().map(|texts| texts.concat())
        }
        _ => Err("must be a text, a number, true or false".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use quorlock::env::{Class, class_of, variable_of};

    use super::*;

    #[test]
    fn every_variable_is_in_the_table_and_is_called_as_its_option() {
        let mut variables = BTreeMap::new();
        prepared(Cli::command(), &mut variables);
        assert!(variables.len() > 25);
        for (long, variable) in variables {
            assert!(
                matches!(class_of(&variable), Some(Class::Deployment | Class::Call)),
                "{variable}: add it to quorlock::env::VARIABLES"
            );
            assert_eq!(variable, variable_of(&long));
        }
    }

    #[test]
    fn short_help_fits_a_screen_and_long_help_has_examples() {
        let command = prepared(Cli::command(), &mut BTreeMap::new());
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
            let rows = if name.is_empty() { 27 } else { 24 };
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
