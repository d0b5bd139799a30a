//! The arguments of the commands that write files for shells and for `man`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

const COMPLETIONS_EXAMPLES: &str = "\
Files:
  bash  ~/.local/share/bash-completion/completions/quorlock
  zsh   _quorlock in a folder of $fpath
  fish  ~/.config/fish/completions/quorlock.fish

Examples:
  bash, in ~/.bashrc:
    source <(quorlock completions bash)

  zsh, in ~/.zshrc behind compinit:
    source <(quorlock completions zsh)

  fish:
    quorlock completions fish > ~/.config/fish/completions/quorlock.fish

  elvish, in ~/.config/elvish/rc.elv:
    eval (quorlock completions elvish | slurp)

  PowerShell, in $PROFILE:
    quorlock completions powershell | Out-String | Invoke-Expression";

const MAN_EXAMPLES: &str = "\
Examples:
  quorlock man | man -l -
  quorlock man ~/.local/share/man/man1";

/// Print a script with which a shell completes commands and options
///
/// The shell reads the script from one of the files below, or at each start by the line of the
/// examples. bash needs the package bash-completion to find the file. TAB never asks a node, so keys
/// are not completed.
#[derive(Debug, Args)]
#[command(after_long_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct Completions {
    /// The shell that reads the script
    pub(crate) shell: clap_complete::Shell,
}

/// Print the manual page, or write one for each command into DIR
///
/// The pages are quorlock.1, quorlock-run.1 and so on. `man` finds them in a folder man1 below a
/// folder that `manpath` names.
///
/// Exit code 0, or 70 if a page cannot be written.
#[derive(Debug, Args)]
#[command(after_long_help = MAN_EXAMPLES)]
pub(crate) struct Man {
    /// The folder for the pages; it is created if it does not exist. Without it, the page of quorlock
    /// itself goes to standard output
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
}
