//! The options that every command has.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use quorlock::RestartGuard;
use quorlock::settings::{
    Class, Form, Place, SETTINGS, Setting, Values, boolean, duration, number, restart_guard,
};

/// The nodes and how to talk to them: an option for each setting of the nodes. [`crate::settings::parse`] fills in the
/// values, together with those of all other options.
#[derive(Debug, Default)]
pub(crate) struct NodeArgs {
    pub(crate) values: Values,
}

impl NodeArgs {
    pub(crate) fn quorum(&self) -> Option<usize> {
        self.values.get("quorum", number)
    }

    pub(crate) fn max_ttl(&self) -> Option<Duration> {
        self.values.get("max-ttl", duration)
    }

    pub(crate) fn restart_guard(&self) -> RestartGuard {
        self.values.get("restart-guard", restart_guard).unwrap_or_default()
    }

    pub(crate) fn key_prefix(&self) -> String {
        self.values.get("key-prefix", str::parse::<String>).unwrap_or_default()
    }
}

impl Args for NodeArgs {
    fn augment_args(command: Command) -> Command {
        let has_option = |setting: &&Setting| {
            setting.class == Class::Deployment
                && setting.place != Place::OnlyVariable
                // Only commands that wait have this option. It stands beside `--wait`.
                && setting.name != "yield-to-pollers"
        };
        let command = command.next_help_heading("Nodes");
        command.args(SETTINGS.iter().filter(has_option).map(option))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for NodeArgs {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, Error> {
        Ok(Self::default())
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), Error> {
        Ok(())
    }
}

/// The option of a setting, without the texts that [`crate::settings::prepared`] adds.
fn option(setting: &'static Setting) -> Arg {
    let parser = match setting.form {
        Form::Bool => ValueParser::new(boolean),
        Form::Time => ValueParser::new(duration),
        Form::Number => ValueParser::new(number::<usize>),
        Form::File => ValueParser::path_buf(),
        Form::OneOf(_, texts) => PossibleValuesParser::new(texts).into(),
        Form::Text(_) | Form::List(_) => ValueParser::string(),
    };
    let is_list = matches!(setting.form, Form::List(_));
    let arg = Arg::new(setting.name)
        .long(setting.name)
        .action(if is_list { ArgAction::Append } else { ArgAction::Set })
        .value_parser(parser);
    match setting.name {
        "node" => arg.short('n'),
        "config" => arg.global(true),
        _ => arg,
    }
}

/// What quorlock itself prints
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    #[arg(long, hide_short_help = true, short, global = true)]
    pub(crate) quiet: bool,

    #[arg(long, global = true)]
    pub(crate) json: bool,
}
