//! What commands are made of: a process that writes the time, and the scripts that start some.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;
use std::time::Duration;

use quorlock_sim::time::{MS, Time};

use crate::clock::now;

/// The hidden first argument that makes this program a writer.
pub(crate) const WRITE: &str = "__write";

/// The same, in a process group of its own.
pub(crate) const WRITE_APART: &str = "__write_apart";

/// The exit code of a command that ends by itself.
pub(crate) const OWN_CODE: i32 = 7;

/// How often a writer writes.
const PAUSE: Duration = Duration::from_millis(2);

/// How a command behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// One process that goes when it is asked to.
    Plain,
    /// Its processes are in groups of their own.
    Groups,
    /// It ignores SIGTERM.
    Stubborn,
    /// It ends, and what it has started goes on.
    Forking,
    /// All of that.
    All,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] =
        [Self::Plain, Self::Groups, Self::Stubborn, Self::Forking, Self::All];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "a plain loop",
            Self::Groups => "process groups of its own",
            Self::Stubborn => "ignores SIGTERM",
            Self::Forking => "ends, and its children go on",
            Self::All => "all of these",
        }
    }

    /// For `sh -c`. `$0` is this program, `$@` the file, who writes, and for how many milliseconds.
    pub(crate) const fn script(self) -> &'static str {
        match self {
            Self::Plain => r#"exec >/dev/null; "$0" __write "$@"; exit 7"#,
            Self::Groups => {
                r#"exec >/dev/null; timeout 60 "$0" __write "$@" & "$0" __write_apart "$@" & wait; exit 7"#
            }
            Self::Stubborn => r#"exec >/dev/null; trap '' TERM; "$0" __write "$@"; exit 7"#,
            Self::Forking => {
                r#"exec >/dev/null; "$0" __write "$1" "$2" 6000 & "$0" __write "$@"; exit 7"#
            }
            Self::All => {
                r#"exec >/dev/null; trap '' TERM; timeout 60 "$0" __write "$1" "$2" 6000 &
                "$0" __write_apart "$1" "$2" 6000 & "$0" __write "$@"; exit 7"#
            }
        }
    }
}

/// Writes lines of the time and a name, each in one piece at the file's end.
///
/// # Errors
/// What kept it from that.
pub(crate) fn main(apart: bool, args: &[String]) -> Result<(), String> {
    let [file, who, ms] = args else { return Err("a writer is started by commands".to_owned()) };
    if apart {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut writer = Command::new(program);
        let status = writer.arg(WRITE).args(args).process_group(0).status();
        return status.map(drop).map_err(|error| error.to_string());
    }
    let ms: Time = ms.parse().map_err(|_| "not a number of milliseconds".to_owned())?;
    let file = OpenOptions::new().append(true).create(true).open(file);
    let mut file = file.map_err(|error| error.to_string())?;
    let end = now() + ms * MS;
    while now() < end {
        file.write_all(format!("{} {who}\n", now()).as_bytes())
            .map_err(|error| error.to_string())?;
        thread::sleep(PAUSE);
    }
    Ok(())
}
