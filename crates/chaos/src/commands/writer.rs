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
use crate::said;

/// The hidden first argument that makes this program a writer. If the last argument is a lease, the writer stops at the
/// end of that lease.
const WRITE: &str = "__write";

/// Like [`WRITE`], but the process has a process group of its own.
const WRITE_APART: &str = "__write_apart";

/// Like [`WRITE`], but the process soon starts a successor and ends.
const WRITE_CHAIN: &str = "__write_chain";

pub(crate) const FIRST_ARGUMENTS: [&str; 3] = [WRITE, WRITE_APART, WRITE_CHAIN];

/// The exit code of a command that ends by itself.
pub(crate) const OWN_CODE: i32 = 7;

const PAUSE: Duration = Duration::from_millis(2);

/// The longest time for which one process of a chain writes, in milliseconds. Then its successor writes.
const LINK: Time = 20;

/// A kind of command: its name, and its script for `sh -c`. `$0` is this program; `$@` is the file, the text of each line,
/// and how many ms to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandKind(&'static str, &'static str);

impl CommandKind {
    const PLAIN: Self = Self("a plain loop", r#"exec >/dev/null; "$0" __write "$@"; exit 7"#);
    const GROUPS: Self = Self(
        "process groups of its own",
        r#"exec >/dev/null; timeout 60 "$0" __write "$@" & "$0" __write_apart "$@" & wait; exit 7"#,
    );
    const STUBBORN: Self =
        Self("ignores SIGTERM", r#"exec >/dev/null; trap '' TERM; "$0" __write "$@"; exit 7"#);
    const FORKING: Self = Self(
        "ends, and its children go on",
        r#"exec >/dev/null; "$0" __write "$1" "$2" 6000 & "$0" __write "$@"; exit 7"#,
    );
    /// Starts one process after the other, outside of the command's process group.
    pub(crate) const SPAWNING: Self = Self(
        "starts ever more processes elsewhere",
        r#"exec >/dev/null; timeout 60 sh -c 'trap "" TERM
        for _ in 1 2 3 4; do "$0" __write_chain "$1" "$2" 6000 & done; sleep 6' "$0" "$@" &
        "$0" __write "$@"; exit 7"#,
    );
    /// Combines the kinds above except `SPAWNING`.
    const ALL_OF_THEM: Self = Self(
        "groups, SIGTERM and children",
        r#"exec >/dev/null; trap '' TERM; timeout 60 "$0" __write "$1" "$2" 6000 &
        "$0" __write_apart "$1" "$2" 6000 & "$0" __write "$@"; exit 7"#,
    );
    /// A script that holds the lock by `quorlock acquire --hold-by`, and not a command of `quorlock run`. It sleeps for
    /// longer than the ttl. Its keeper extends the lock meanwhile.
    pub(crate) const SCRIPT: Self = Self(
        "a script with a lease and a keeper",
        r#"exec 3>&1 >/dev/null; n=$(($3 / 250))
        lease=$("$QUORLOCK" acquire "$KEY" --ttl 3s --max-ttl 3s --wait 4s --hold-by $$ \
            --label "script-$2-" --lease-file "$LEASE_FILE") || exit
        echo '{"event":"acquired"}' >&3
        while [ $n -ge 0 ]; do
            "$0" __write "$1" "$2" 200 "$lease"
            [ $n -ne 6 ] || sleep 3.2
            lease=$("$QUORLOCK" extend "$lease" --max-ttl 3s) || exit
            n=$((n - 1))
        done
        "$QUORLOCK" release "$lease" --max-ttl 3s"#,
    );

    /// The kinds of commands of `quorlock run`.
    pub(crate) const OF_RUN: [Self; 6] = [
        Self::PLAIN,
        Self::GROUPS,
        Self::STUBBORN,
        Self::FORKING,
        Self::SPAWNING,
        Self::ALL_OF_THEM,
    ];

    pub(crate) const fn name(self) -> &'static str {
        self.0
    }

    pub(crate) const fn script(self) -> &'static str {
        self.1
    }
}

/// Appends lines to the file, each with the time and a name, and each in a write of its own.
pub(crate) fn main(mode: &str, args: &[String]) -> Result<(), String> {
    let [file, who, ms, lease @ ..] = args else {
        return Err("a writer is started by commands".to_owned());
    };
    let ms: Time = ms.parse().map_err(|_| "not a number of milliseconds".to_owned())?;
    let lease = lease.first().map(|text| text.parse::<Lease>()).transpose();
    let lease = lease.map_err(said)?;
    write(mode, (file, who), ms, lease.as_ref()).map_err(said)
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
