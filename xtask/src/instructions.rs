//! `cargo xtask instructions`: counts instructions per pair, because a busy machine does not change this count.
//!
//! With `--check` the task fails if a pair costs more than the count pinned here. A commit that raises a pin says why.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quorlock_servers::{SERVER_VARIABLE, ServerBinary};

use crate::install::works;
use crate::{Outcome, cargo, succeed};

/// One run has `few` pairs (acquire and release), another has `many`. Their difference excludes the client's start.
struct Run {
    lockers: u64,
    few: u64,
    many: u64,
    /// The expected number of instructions per pair, and the allowed deviation (`margin`) in percent.
    pinned: u64,
    margin: u64,
}

/// The number of commands in a batch and of answers per poll varies between machines, most with one locker. Machines
/// counted 21 400 to 22 240 instructions with 64 lockers, and 62 500 to 65 700 with one.
const RUNS: [Run; 2] = [
    Run { lockers: 64, few: 2_048, many: 10_240, pinned: 21_400, margin: 8 },
    Run { lockers: 1, few: 400, many: 2_000, pinned: 62_500, margin: 15 },
];

/// A separate target folder. Otherwise this build, which has other cargo features, would replace the benchmark.
const TARGET: &str = "target/instructions";

const HOW_TO_INSTALL: &str = "valgrind is needed and cannot be run; install it, for example with \
     `apt-get install valgrind`, `dnf install valgrind` or `pacman -S valgrind`";

/// Builds the program, counts its instructions and prints the counts. With `--guard`, also counts a client with the
/// restart guard, and locks with a value of the caller. With `--check`, compares the counts with the pinned ones.
pub(crate) fn run(workspace: &Path, server: &ServerBinary, args: &[OsString]) -> Outcome {
    match args.iter().map(|arg| arg.to_str()).collect::<Vec<_>>()[..] {
        [] => count(workspace, server, false).map(|_| true),
        [Some("--guard")] => count(workspace, server, true).map(|_| true),
        [Some("--check")] => count(workspace, server, false),
        _ => Err(format!("instructions takes --guard or --check, not {args:?}")),
    }
}

/// Counts each run. Returns false if a count exceeds the pinned count by more than its margin.
fn count(workspace: &Path, server: &ServerBinary, with_guard: bool) -> Outcome {
    if !works(&["valgrind", "--version"]) {
        return Err(HOW_TO_INSTALL.to_owned());
    }
    let target = workspace.join(TARGET);
    let mut cargo = cargo(workspace);
    cargo
        .args(["build", "--release", "--package", "quorlock-bench"])
        .args(["--features", "valgrind"])
        .args(["--config", "profile.release.debug=1", "--target-dir"]);
    succeed(cargo.arg(&target), "cargo build")?;
    let program = target.join("release/quorlock-bench");
    let mut is_kept = true;
    for Run { lockers, few, many, pinned, margin } in RUNS {
        let each = |option| {
            let count = |pairs| instructions(&program, &server.path, (lockers, pairs), option);
            let (less, more) = (count(few)?, count(many)?);
            Ok::<_, String>(more.saturating_sub(less) / (many - few))
        };
        let off = each(None)?;
        let more = (off as f64 / pinned as f64 - 1.0) * 100.0;
        println!(
            "N = 5, c = {lockers}: {off} instructions per pair ({more:+.1} % of the pinned {pinned})"
        );
        if off * 100 > pinned * (100 + margin) {
            println!("MORE THAN PINNED: at most {margin} % are borne with");
            is_kept = false;
        }
        if with_guard {
            for (option, what) in
                [("--guard", "with the restart guard"), ("--take", "with a value of the caller")]
            {
                let on = each(Some(option))?;
                let more = (on as f64 / off as f64 - 1.0) * 100.0;
                println!("N = 5, c = {lockers}: {on} {what}, {more:+.1} %");
            }
        }
    }
    println!("profiles: callgrind_annotate --inclusive=yes {TARGET}/*.callgrind");
    Ok(is_kept)
}

/// Counts the client's instructions for a number of pairs, including the client's start.
fn instructions(
    program: &Path,
    server: &Path,
    (lockers, pairs): (u64, u64),
    option: Option<&str>,
) -> Result<u64, String> {
    let file = program.ancestors().nth(2).unwrap_or(Path::new("."));
    let suffix = option.unwrap_or_default();
    let file: PathBuf = file.join(format!("c{lockers}-{pairs}{suffix}.callgrind"));
    let mut out = OsString::from("--callgrind-out-file=");
    out.push(&file);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(out)
        .arg(program)
        .args(["count-pairs", "--lockers", &lockers.to_string(), "--pairs", &pairs.to_string()])
        .args(option)
        .env(SERVER_VARIABLE, server)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the run under valgrind failed: {}\n{said}", output.status));
    }
    let profile = fs::read_to_string(&file);
    let total = profile.and_then(|profile| {
        let total = profile.lines().find_map(|line| line.strip_prefix("summary: "));
        let total = total.and_then(|total| total.trim().parse().ok());
        total.ok_or_else(|| io::Error::other("no line `summary:`"))
    });
    total.map_err(|error| format!("{}: {error}", file.display()))
}
