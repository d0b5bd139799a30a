//! `quorlock completions`: a script with which a shell completes commands, options and their values.

use clap::{Arg, CommandFactory as _, ValueHint};
use clap_complete::Shell;

use crate::args::{Cli, Completions};
use crate::exit_code::ExitCode;
use crate::options::Refused;
use crate::output;
use crate::settings::described;

pub(crate) fn main(args: &Completions) -> Result<ExitCode, Refused> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut shaped(Cli::command()), "quorlock", &mut script);
    output::print_as_is(completing_cmd(args.shell, &String::from_utf8_lossy(&script)))?;
    Ok(ExitCode::Success)
}

/// Gives each option the short text of `-h`, which shells show in a menu, and a hint about its values.
fn shaped(command: clap::Command) -> clap::Command {
    command.mut_args(|arg| hinted(described(arg))).mut_subcommands(shaped)
}

/// Without a hint, bash offers file names for each value. With these hints, it does so only where a file is expected.
fn hinted(arg: Arg) -> Arg {
    if !arg.get_action().takes_values() || !arg.get_possible_values().is_empty() {
        return arg;
    }
    let hint = match arg.get_value_hint() {
        ValueHint::Unknown => ValueHint::Other,
        // Only with the hint `FilePath` does bash write a slash behind the name of a folder.
        ValueHint::AnyPath => ValueHint::FilePath,
        hint => hint,
    };
    arg.value_hint(hint)
}

/// After `--`, the words of CMD complete as they do without quorlock. clap_complete by itself offers quorlock's
/// options there in bash, and no options after KEY in zsh.
fn completing_cmd(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => script.replacen("    COMPREPLY=()\n", BASH_CMD, 1),
        Shell::Zsh => script.replace("'*::", "'*:").replace("_cmdambivalent", ZSH_CMD),
        _ => script.to_owned(),
    }
}

/// Without the package bash-completion, bash completes the words of CMD with file names.
const BASH_CMD: &str = "    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ \"${COMP_WORDS[i]}\" == -- ]]; then
            if declare -F _command_offset > /dev/null; then _command_offset $((i + 1)); fi
            return 0
        fi
    done
";

const ZSH_CMD: &str = "{ local dashes=$words[(i)--]; if (( dashes < CURRENT )); then \
words=(\"${(@)words[dashes+1,-1]}\"); (( CURRENT -= dashes )); _normal; else _command_names -e; fi }";
