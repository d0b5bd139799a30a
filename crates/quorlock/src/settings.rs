//! The settings. [`SETTINGS`] has one row for each. The row's name gives the environment variable, the key of the
//! configuration file and the option of the command line.
//!
//! [`Values`] has the texts of the settings that the environment, the file or a command line sets, and where each came
//! from. [`Values::builder`] applies the rows to them.

#[cfg(feature = "config-file")]
mod file;
mod nodes;
mod parse;
mod start;
mod table;
mod values;

use std::env;

#[cfg(feature = "config-file")]
pub use self::file::PLACES;
pub use self::nodes::{nodes, old_nodes};
pub use self::parse::{boolean, default_ttl, duration, number, restart_guard};
pub use self::table::SETTINGS;
pub use self::values::{Given, Origin, Values};
use crate::builder::ClientBuilder;
use crate::error::Reason;
use crate::text::printable;

/// The purpose of an environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Describes the nodes, for all programs that use them.
    Deployment,
    /// Describes one run of the program `quorlock`. The commands that the program runs do not inherit the variable.
    Call,
    /// Describes a held lock to the command that runs under it.
    Lock,
    /// Read by tests and tools.
    Tool,
}

/// The values that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Yes or no.
    Bool,
    /// A time, as [`duration`] reads it.
    Time,
    /// A number.
    Number,
    /// The path of a file.
    File,
    /// One of these texts. The first field is the value's name in help texts.
    OneOf(&'static str, &'static [&'static str]),
    /// Any text, or what the command line checks. The field is the value's name in help texts.
    Text(&'static str),
    /// Several texts between commas. The option is repeatable, and the file may have an array.
    List(&'static str),
}

impl Form {
    /// The value's name in help texts.
    pub fn value_name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Time => "TIME",
            Self::Number => "N",
            Self::File => "FILE",
            Self::OneOf(name, _) | Self::Text(name) | Self::List(name) => name,
        }
    }
}

/// Where a setting may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the command line, in the environment and in the file.
    Anywhere,
    /// On the command line and in the environment.
    NotInFile,
    /// In the environment.
    OnlyVariable,
}

/// Changes the builder as the text says. All values are there, because some settings go together.
pub(crate) type Set = fn(ClientBuilder, &str, &Values) -> Result<ClientBuilder, Reason>;

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The long name of the option, without dashes.
    pub name: &'static str,
    /// Describes the nodes or one call.
    pub class: Class,
    /// The values that it takes.
    pub form: Form,
    /// Where it may stand.
    pub place: Place,
    /// The help text of the option. An empty line ends a paragraph, and `-h` shows the beginning of the first one. For a
    /// setting without an option: words for a table.
    pub help: &'static str,
    /// `None` if the setting has no effect on a client: the command line reads it.
    pub(crate) set: Option<Set>,
}

impl Setting {
    /// The setting with the name of this option.
    pub fn of(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// The name of its variable.
    pub fn variable(&self) -> String {
        match self.name {
            "node" => "QUORLOCK_NODES".to_owned(),
            name => format!("QUORLOCK_{}", name.to_ascii_uppercase().replace('-', "_")),
        }
    }

    /// Its key in the file.
    pub fn key(&self) -> Option<&'static str> {
        match self.name {
            "node" => Some("nodes"),
            name => Some(name).filter(|_| self.place == Place::Anywhere),
        }
    }
}

/// The variables that set nothing.
const OTHER_VARIABLES: &[(&str, Class)] = &[
    ("QUORLOCK_KEY", Class::Lock),
    ("QUORLOCK_TOKEN", Class::Lock),
    ("QUORLOCK_FENCE", Class::Lock),
    ("QUORLOCK_VALID_UNTIL_MS", Class::Lock),
    ("QUORLOCK_SERVER", Class::Tool),
    ("QUORLOCK_REQUIRE_SERVERS", Class::Tool),
    ("QUORLOCK_SKIP_LOG", Class::Tool),
    ("QUORLOCK_MUTANT", Class::Tool),
    ("QUORLOCK_CLOCK_OFFSET_FILE", Class::Tool),
    ("QUORLOCK_BENCH_COMMAND", Class::Tool),
    ("QUORLOCK_FUZZ_SEED", Class::Tool),
    ("QUORLOCK_OLD", Class::Tool),
    ("QUORLOCK_STEPPED", Class::Tool),
];

/// All environment variables that quorlock knows, with their purposes.
pub fn variables() -> impl Iterator<Item = (String, Class)> {
    let settings = SETTINGS.iter().map(|setting| (setting.variable(), setting.class));
    settings.chain(OTHER_VARIABLES.iter().map(|(name, class)| ((*name).to_owned(), *class)))
}

/// One line that lists the variables `QUORLOCK_…` that quorlock does not know, at most ten. `None` if there are none.
pub fn unknown_variables() -> Option<String> {
    let known: Vec<(String, Class)> = variables().collect();
    let is_known = |name: &str| {
        name.starts_with("QUORLOCK_TEST_") || known.iter().any(|(other, _)| other == name)
    };
    let names = env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with("QUORLOCK_") && !is_known(name)).take(10).collect();
    names.sort();
    let of_users = known.iter().filter(|(_, class)| *class != Class::Tool);
    let of_users = of_users.map(|(name, _)| name.as_str());
    let told = names.iter().map(|name| match nearest(name, of_users.clone()) {
        Some(near) => format!("{} (do you mean {near}?)", printable(name)),
        None => printable(name),
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| format!("unknown variables have no effect: {}", told.join(", ")))
}

/// The known name that differs least from `name`; `None` if none resembles it.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.strip_prefix("QUORLOCK_").unwrap_or(name);
    let distance = |other: &str| {
        let other: Vec<char> = other.strip_prefix("QUORLOCK_").unwrap_or(other).chars().collect();
        let mut row: Vec<usize> = (0..=other.len()).collect();
        for (above, c) in name.chars().enumerate() {
            let mut corner = std::mem::replace(&mut row[0], above + 1);
            for (place, o) in other.iter().enumerate() {
                let replaced = corner + usize::from(c != *o);
                corner = row[place + 1];
                row[place + 1] = replaced.min(corner + 1).min(row[place] + 1);
            }
        }
        row[other.len()]
    };
    let near = known.map(|other| (distance(other), other)).min_by_key(|(distance, _)| *distance);
    near.filter(|(distance, _)| *distance <= 1 + name.chars().count() / 3).map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        let known: Vec<String> = variables().map(|(name, _)| name).collect();
        for (typed, near) in [
            ("QUORLOCK_NODE", Some("QUORLOCK_NODES")),
            ("QUORLOCK_PASWORD", Some("QUORLOCK_PASSWORD")),
            ("QUORLOCK_MAXTTL", Some("QUORLOCK_MAX_TTL")),
            ("QUORLOCK_RESTARTGUARD", Some("QUORLOCK_RESTART_GUARD")),
            ("QUORLOCK_SERVICE_HOST_7", None),
            ("QUORLOCK_", None),
        ] {
            assert_eq!(nearest(typed, known.iter().map(String::as_str)), near, "{typed}");
        }
    }

    #[test]
    fn the_documentation_lists_the_variables_of_the_table() {
        let page = include_str!("settings/start.rs");
        for setting in SETTINGS.iter().filter(|setting| setting.set.is_some()) {
            let row = page.lines().find(|line| {
                line.contains(&format!("`{}`", setting.variable())) && line.contains("/// | ")
            });
            assert!(row.is_some(), "from_env: {} is not in the table", setting.variable());
        }
    }
}
