//! The commands that hold locks: a process that writes the time, and the scripts that start it.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;
use std::time::Duration;

use quorlock::Lease;
use quorlock_sim::time::{MS, Time};

use crate::clock::now;

/// The hidden first argument that makes this program a writer.
const WRITE: &str = "__write";

/// Like [`WRITE`], but the process has a process group of its own.
const WRITE_APART: &str = "__write_apart";

/// Like [`WRITE`], but the process soon starts a successor and ends.
const WRITE_CHAIN: &str = "__write_chain";

/// Like [`WRITE`], but the last argument is a lease, and the process stops at the end of that lease.
const WRITE_LEASE: &str = "__write_lease";

pub(crate) const FIRST_ARGUMENTS: [&str; 4] = [WRITE, WRITE_APART, WRITE_CHAIN, WRITE_LEASE];

/// The exit code of a command that ends by itself.
pub(crate) const OWN_CODE: i32 = 7;

const PAUSE: Duration = Duration::from_millis(2);

/// The longest time for which one process of a chain writes, in milliseconds. Then its successor writes.
const LINK: Time = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Plain,
    Groups,
    Stubborn,
    Forking,
    /// Starts one process after the other, outside of the command's process group.
    Spawning,
    /// Combines the kinds above except `Spawning`.
    All,
    /// A script that holds the lock by `quorlock acquire --hold-by`, and not a command of `quorlock run`.
    Script,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Plain, Self::Groups, Self::Stubborn, Self::Forking, Self::Spawning, Self::All];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "a plain loop",
            Self::Groups => "process groups of its own",
            Self::Stubborn => "ignores SIGTERM",
            Self::Forking => "ends, and its children go on",
            Self::Spawning => "starts ever more processes elsewhere",
            Self::All => "groups, SIGTERM and children",
            Self::Script => "a script with a lease and a keeper",
        }
    }

    /// A script for `sh -c`. `$0` is this program; `$@` is the file, the text of each line, and how many ms to write.
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
            Self::Spawning => {
                r#"exec >/dev/null; timeout 60 sh -c 'trap "" TERM
                for _ in 1 2 3 4; do "$0" __write_chain "$1" "$2" 6000 & done; sleep 6' "$0" "$@" &
                "$0" __write "$@"; exit 7"#
            }
            Self::All => {
                r#"exec >/dev/null; trap '' TERM; timeout 60 "$0" __write "$1" "$2" 6000 &
                "$0" __write_apart "$1" "$2" 6000 & "$0" __write "$@"; exit 7"#
            }
            // The script sleeps for longer than the ttl. Its keeper extends the lock meanwhile.
            Self::Script => {
                r#"exec 3>&1 >/dev/null; n=$(($3 / 250))
                lease=$("$QUORLOCK" acquire "$KEY" --ttl 3s --max-ttl 3s --wait 4s --hold-by $$ \
                    --label "script-$2-" --lease-file "$LEASE_FILE") || exit
                echo '{"event":"acquired"}' >&3
                while [ $n -ge 0 ]; do
                    "$0" __write_lease "$1" "$2" 200 "$lease"
                    [ $n -ne 6 ] || sleep 3.2
                    lease=$("$QUORLOCK" extend "$lease" --max-ttl 3s) || exit
                    n=$((n - 1))
                done
                "$QUORLOCK" release "$lease" --max-ttl 3s"#
            }
        }
    }
}

/// Appends lines to the file, each with the time and a name, and each in a write of its own.
pub(crate) fn main(mode: &str, args: &[String]) -> Result<(), String> {
    let [file, who, ms, lease @ ..] = args else {
        return Err("a writer is started by commands".to_owned());
    };
    let ms: Time = ms.parse().map_err(|_| "not a number of milliseconds".to_owned())?;
    let lease = lease.first().map(|text| text.parse::<Lease>()).transpose();
    let lease = lease.map_err(|error| error.to_string())?;
    write(mode, (file, who), ms, lease.as_ref()).map_err(|error| error.to_string())
}

fn write(mode: &str, (file, who): (&str, &str), ms: Time, lease: Option<&Lease>) -> io::Result<()> {
    let other = |mode: &str, ms: Time| -> io::Result<Command> {
        let mut writer = Command::new(std::env::current_exe()?);
        writer.args([mode, file, who, &ms.to_string()]);
        Ok(writer)
    };
    if mode == WRITE_APART {
        return other(WRITE, ms)?.process_group(0).status().map(drop);
    }
    let of_these = if mode == WRITE_CHAIN { ms.min(LINK) } else { ms };
    let mut file = OpenOptions::new().append(true).create(true).open(file)?;
    let end = now() + of_these * MS;
    while now() < end {
        let at = now();
        if lease.is_some_and(|lease| lease.remaining().is_zero()) {
            break;
        }
        file.write_all(format!("{at} {who}\n").as_bytes())?;
        thread::sleep(PAUSE);
    }
    if ms > of_these {
        other(mode, ms - of_these)?.spawn()?;
    }
    Ok(())
}
