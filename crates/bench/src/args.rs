//! The command line.

use std::fs;
use std::io::{self, Write as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::{Args, Parser, Subcommand};

use crate::plan::{self, BenchPlan, Scope, WORKLOADS};
use crate::report::Report;
use crate::subjects::Flavor;
use crate::workers::WORKER;
use crate::{count, interop, round_trips, table, worker};

/// Compares quorlock with raw sockets and other lock libraries, on real servers that it starts
///
/// Prints a table and the targets of the project, each met or MISSED, and writes all figures as
/// JSON. Exit code 1 if a target is missed, 2 if nothing could be measured.
#[derive(Debug, Parser)]
#[command(name = "quorlock-bench", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    all: All,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The most important figures, in less than a minute; the last line of --json is one object
    Quick(Common),

    /// Count the round trips of each operation, and print them as a table
    RoundTrips {
        /// As above
        #[arg(long, value_name = "PROGRAM")]
        server: Option<String>,

        /// The `quorlock` whose `run` is counted [default: the one beside this program]
        #[arg(long, value_name = "PATH")]
        quorlock: Option<PathBuf>,
    },

    /// Run this number of pairs and nothing else, for `cargo xtask instructions`
    #[command(hide = true)]
    CountPairs {
        /// Number of lockers that acquire and release, each with its own key
        #[arg(long, default_value_t = 64)]
        lockers: usize,

        /// Number of pairs of all lockers together
        #[arg(long)]
        pairs: usize,

        /// With the restart guard
        #[arg(long)]
        guard: bool,

        /// Locks with a value of the caller
        #[arg(long)]
        take: bool,
    },

    /// A process that contends for a lock, or holds many
    #[command(name = WORKER, hide = true)]
    Worker {
        /// The worker's job, as JSON
        job: String,
    },

    /// A lock library behind the protocol of `cargo xtask interop`
    #[command(name = interop::WORKER, hide = true)]
    InteropWorker {
        /// quorlock or rslock
        library: String,

        /// HOST:PORT,HOST:PORT,…
        nodes: String,
    },
}

#[derive(Debug, Args)]
struct All {
    /// Also N = 1, 3, 5, 7 and c = 1, 8, 64, 512; without a limit of time
    #[arg(long)]
    full: bool,

    /// Leave out the lock libraries of Python and Node.js, which `cargo xtask bench` installs into
    /// target/bench-rivals
    #[arg(long)]
    no_rivals: bool,

    /// Only this workload and its targets, repeatable
    #[arg(long, value_name = "WORKLOAD", value_parser = PossibleValuesParser::new(WORKLOADS))]
    only: Vec<String>,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,

    /// Where to write the JSON [default: target/bench/bench.json, or quick.json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// The server to run: a path, or a program on the PATH [default: as the tests, the first of
    /// QUORLOCK_SERVER, the PATH and target/servers]
    #[arg(long, value_name = "PROGRAM")]
    server: Option<String>,

    /// Number of rounds; every subject is measured once per round
    #[arg(long, default_value_t = 5, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    rounds: usize,

    /// Duration of one measurement, 10ms to 60s [default: 800ms, quick: 500ms]
    #[arg(long, value_name = "TIME", value_parser = sample)]
    sample: Option<Duration>,

    /// The tokio runtime of quorlock and rslock
    #[arg(long, value_enum, default_value_t = Flavor::MultiThread)]
    runtime: Flavor,
}

const SAMPLE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

fn sample(text: &str) -> Result<Duration, String> {
    let sample = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let fits = SAMPLE.contains(&sample);
    if fits {
        Ok(sample)
    } else {
        Err(format!("must be {:?} to {:?}", SAMPLE.start(), SAMPLE.end()))
    }
}

pub(crate) fn main() -> ExitCode {
    let Cli { command, all } = Cli::parse();
    let result = match command {
        None => {
            let scope = if all.full { Scope::Full } else { Scope::Targets };
            measure(scope, &all.common, all.only, !all.no_rivals)
        }
        Some(Command::Quick(common)) => measure(Scope::Quick, &common, Vec::new(), false),
        Some(Command::RoundTrips { server, quorlock }) => {
            let quorlock = quorlock.or_else(beside);
            round_trips::table(server.as_deref(), quorlock.as_deref()).map(|table| {
                // A closed standard output is no error, as for the report.
                let _ = io::stdout().write_all(table.as_bytes());
                ExitCode::SUCCESS
            })
        }
        Some(Command::CountPairs { lockers, pairs, guard, take }) => {
            count::run(lockers, pairs, (guard, take)).map(|()| ExitCode::SUCCESS)
        }
        Some(Command::Worker { job }) => worker::main(&job).map(|()| ExitCode::SUCCESS),
        Some(Command::InteropWorker { library, nodes }) => {
            interop::main(&library, &nodes).map(|()| ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|why| {
        eprintln!("quorlock-bench: {why}");
        ExitCode::from(2)
    })
}

/// The program `quorlock` beside this one, if it was built.
fn beside() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name("quorlock");
    path.is_file().then_some(path)
}

fn measure(
    scope: Scope,
    common: &Common,
    only: Vec<String>,
    rivals: bool,
) -> Result<ExitCode, String> {
    let quick = scope == Scope::Quick;
    let usual = Duration::from_millis(if quick { 500 } else { 800 });
    let plan = BenchPlan {
        scope,
        server: common.server.clone(),
        rounds: common.rounds,
        sample: common.sample.unwrap_or(usual),
        flavor: common.runtime,
        only,
        rivals,
    };
    let file = match &common.out {
        Some(file) => file.clone(),
        None => in_target(if quick { "quick.json" } else { "bench.json" })?,
    };
    // Fails before the measurements if the file cannot be written.
    writable(&file)?;
    let report = plan::run(&plan)?;
    let json = as_json(&report, quick)?;
    fs::write(&file, format!("{json}\n")).map_err(|error| cannot_write(&file, &error))?;
    let text = if common.json { format!("{json}\n") } else { table::report(&report) };
    // A closed standard output is no error, because the report is also in the file.
    let _ = io::stdout().write_all(text.as_bytes());
    eprintln!("quorlock-bench: all figures are in {}", file.display());
    let missed = report.targets.iter().any(|target| !target.met);
    Ok(if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the report as one line. The report of a quick run begins with its summary.
fn as_json(report: &Report, quick: bool) -> Result<String, String> {
    let mut all = serde_json::to_value(report).map_err(|error| error.to_string())?;
    if quick
        && let (Some(all), Some(summary)) =
            (all.as_object_mut(), plan::summary(report).as_object_mut())
    {
        all.append(summary);
    }
    Ok(all.to_string())
}

fn in_target(name: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    // The program is at …/target/release/quorlock-bench.
    let folder = program.ancestors().nth(2).unwrap_or(Path::new("target")).join("bench");
    fs::create_dir_all(&folder).map_err(|error| cannot_write(&folder, &error))?;
    Ok(folder.join(name))
}

fn writable(file: &Path) -> Result<(), String> {
    let open = fs::OpenOptions::new().create(true).append(true).open(file);
    open.map(drop).map_err(|error| cannot_write(file, &error))
}

fn cannot_write(file: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", file.display())
}
