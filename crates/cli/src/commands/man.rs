//! `quorlock man`: one manual page per command.

use std::io;
use std::path::Path;
use std::{fs, iter};

use clap::builder::StyledStr;
use clap::{Arg, CommandFactory as _};
use clap_mangen::roff::{Roff, bold, roman};
use quorlock::settings::{PLACES, Place, SETTINGS, Setting};

use crate::args::{Cli, Man};
use crate::exit_code::ExitCode;
use crate::options::Refused;
use crate::output;
use crate::settings::prepared;

const VARIABLES: &str = "\
The value of an option comes from the first of these that has one: the command line, the environment, the file. An empty \
variable counts as not set. The variable of a flag is 1, true, yes or on, or 0, false, no or off. QUORLOCK_PASSWORD is \
the password itself, in place of --password-file.";

const VARIABLES_ELSEWHERE: &str = "\
The description of an option ends with the name of its variable, which gives the value if the command line does not. \
quorlock(1) lists all variables.";

pub(crate) fn main(args: &Man) -> Result<ExitCode, Refused> {
    let mut root = prepared(Cli::command()).disable_help_subcommand(true);
    root.build();
    let Some(folder) = &args.dir else {
        let (_, text) = page(&root)?;
        output::print_as_is(&text)?;
        return Ok(ExitCode::Success);
    };
    fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
    let shown = root.get_subcommands().filter(|command| !command.is_hide_set());
    for command in iter::once(&root).chain(shown) {
        let (name, text) = page(command)?;
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| unwritten(&path, &error))?;
    }
    Ok(ExitCode::Success)
}

fn unwritten(path: &Path, error: &io::Error) -> Refused {
    Refused::internal(format!("cannot write {}: {error}", path.display()))
}

/// The page's file name and text.
fn page(command: &clap::Command) -> io::Result<(String, Vec<u8>)> {
    let text = |text: Option<&StyledStr>| text.map(ToString::to_string).unwrap_or_default();
    let about = text(command.get_about());
    let long_about = command.get_long_about().map_or_else(|| about.clone(), ToString::to_string);
    let (codes, description): (Vec<&str>, Vec<&str>) =
        long_about.split("\n\n").partition(|paragraph| paragraph.starts_with("Exit code"));
    // The section NAME has the first paragraph already.
    let description = description.get(1..).filter(|it| !it.is_empty()).unwrap_or(&description);
    let usage = command.clone().render_usage().to_string();
    let is_root = command.has_subcommands();
    let shaped = command
        .clone()
        .long_about(description.join("\n\n"))
        // Without this usage line, clap_mangen lists every option in the synopsis.
        .override_usage(usage.trim_start_matches("Usage: ").to_owned())
        .subcommand_help_heading("COMMANDS")
        .mut_args(shaped_arg);
    let man = clap_mangen::Man::new(shaped)
        // `roff` leaves an empty argument out, so the source would take the place of the date.
        .date("\"\"")
        .source(concat!("quorlock ", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    // Names of options, files and variables are not hyphenated, and lines are not stretched around them.
    page.extend_from_slice(b".nh\n.ad l\n");
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if is_root {
        man.render_subcommands_section(&mut page)?;
    }
    man.render_options_section(&mut page)?;
    let mut rest = Roff::new();
    sections(&mut rest, &text(command.get_after_long_help()));
    if !codes.is_empty() {
        rest.control("SH", ["EXIT STATUS"]).text([roman(codes.join("\n"))]);
    }
    rest.control("SH", ["ENVIRONMENT"]);
    if is_root {
        rest.text([roman(VARIABLES)]).control("PP", []).control("PD", ["0"]);
        let has_option = |setting: &&Setting| setting.place != Place::OnlyVariable;
        let mut settings: Vec<&Setting> = SETTINGS.iter().filter(has_option).collect();
        settings.sort_by_key(|setting| setting.name);
        for setting in settings {
            let option = bold(format!("--{}", setting.name));
            rest.control("TP", ["28"]).text([bold(setting.variable())]).text([option]);
        }
        rest.control("PD", []).control("SH", ["FILES"]).text([roman(format!(
            "{PLACES}: the first one that exists has the settings, unless --config names another file."
        ))]);
    } else {
        rest.text([roman(VARIABLES_ELSEWHERE)]);
        rest.control("SH", ["SEE ALSO"]).text([bold("quorlock"), roman("(1)")]);
    }
    rest.to_writer(&mut page)?;
    Ok((man.get_filename(), page))
}

/// Adapts an argument to clap_mangen, which puts arguments without a section of their own after the options, and each
/// possible value on a line of its own.
fn shaped_arg(arg: Arg) -> Arg {
    let values: Vec<String> =
        arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let mut help =
        arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    if !values.is_empty() && !arg.is_hide_possible_values_set() {
        help += &format!(" [possible values: {}]", values.join(", "));
    }
    // No line ends within a note such as `[env: QUORLOCK_TTL]`.
    let help = help.replace("[env: ", "[env:\u{a0}");
    let heading = match arg.get_help_heading() {
        Some(heading) => heading.to_owned(),
        None if arg.is_positional() => "Arguments".to_owned(),
        None => "Options".to_owned(),
    };
    arg.long_help(help).hide_possible_values(true).help_heading(heading)
}

/// Writes the text that `--help` shows after the options. A line that ends with a colon begins a section, and an
/// indented line stays a line.
fn sections(roff: &mut Roff, text: &str) {
    let mut is_filled = true;
    for line in text.lines() {
        let indented = line.strip_prefix("  ");
        if !line.is_empty() && is_filled == indented.is_some() {
            is_filled = !is_filled;
            roff.control(if is_filled { "fi" } else { "nf" }, []);
        }
        match (indented, line.strip_suffix(':')) {
            (Some(line), _) => roff.text([roman(line)]),
            (None, Some(title)) if title.starts_with("Exit codes") => {
                roff.control("SH", ["EXIT STATUS"]).text([roman(line)])
            }
            (None, Some(title)) => roff.control("SH", [title.to_uppercase().as_str()]),
            _ if line.is_empty() => roff.control("PP", []),
            _ => roff.text([roman(line)]),
        };
    }
    if !is_filled {
        roff.control("fi", []);
    }
}
