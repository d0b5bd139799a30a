//! `cargo xtask soak --hours H`: simulator and chaos in turns, from seeds that nobody has run, for as long
//! as one likes; and a line about it in the ledger.

#![expect(clippy::disallowed_methods, reason = "how long a soak takes is nobody's lock")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quorlock_servers::{SERVER_VARIABLE, ServerBinary, find_all};
use rustix::process::{Pid, Signal, kill_process};

use crate::install::server_or_exit;
use crate::test::clock;
use crate::{cargo, chaos};

/// How long each has its turn.
const TURN: Duration = Duration::from_secs(120);

/// So many seeds at first, until their rate is known.
const SEEDS: u64 = 2_000;

const LEDGER: &str = "docs/soak.md";

/// What was done so far.
#[derive(Default)]
struct Sum {
    seeds: u64,
    library: u64,
    commands: u64,
    sim_base: Option<u64>,
    chaos_base: Option<u64>,
    servers: BTreeSet<String>,
}

/// How a turn ended.
enum Turn {
    Done,
    /// With the command that shows it again.
    Failed(String),
    Interrupted,
}

/// Runs it.
pub(crate) fn run(workspace: &Path, args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let hours = match &args[..] {
        [name, hours] if name == "--hours" => hours.to_str().and_then(|text| text.parse().ok()),
        _ => None,
    };
    let Some(hours) = hours.filter(|hours: &f64| *hours > 0.0 && *hours <= 1000.0) else {
        eprintln!("cargo xtask soak --hours H: above 0, at most 1000; 0.5 is half an hour");
        return ExitCode::from(2);
    };
    match soak(workspace, Duration::from_secs_f64(hours * 3600.0)) {
        Ok(code) => code,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::from(2)
        }
    }
}

fn soak(workspace: &Path, time: Duration) -> Result<ExitCode, String> {
    let first = server_or_exit(workspace).map_err(|_| "there is no server".to_owned())?;
    let mut servers = vec![first];
    for other in find_all(Some(workspace)).unwrap_or_default() {
        if !servers.iter().any(|server| version(server) == version(&other)) {
            servers.push(other);
        }
    }
    let simulator = simulator(workspace)?;
    let chaos = chaos::build(workspace).map_err(|_| "chaos could not be built".to_owned())?;
    let interrupt = Arc::new(AtomicBool::new(false));
    for signal in signal_hook::consts::TERM_SIGNALS {
        signal_hook::flag::register(*signal, interrupt.clone())
            .map_err(|error| error.to_string())?;
    }
    let commit = output(workspace, "git", &["describe", "--always", "--dirty"])?;
    let names: Vec<String> = servers.iter().map(version).collect();
    let began = Instant::now();
    let end = began + time;
    println!(
        "soak of {commit} until {} UTC, with {}; Ctrl-C ends it",
        hour(SystemTime::now() + time),
        names.join(", ")
    );
    let mut sum = Sum::default();
    let mut rate = None;
    let mut verdict = Turn::Done;
    for turn in 0.. {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let span = left.min(TURN);
        verdict = match turn % 2 {
            0 => simulate(&simulator, span, &mut rate, &mut sum, &interrupt)?,
            _ => {
                let server = &servers[turn / 2 % servers.len()];
                break_things(&chaos, server, span, &mut sum, &interrupt)?
            }
        };
        let left = end.saturating_duration_since(Instant::now());
        println!(
            "after {}, {} left until {} UTC: {} seeds{}, {} rounds with the library and {} with commands",
            clock(began.elapsed()),
            clock(left),
            hour(SystemTime::now() + left),
            sum.seeds,
            rate.map(|rate: f64| format!(" ({rate:.0} a second)")).unwrap_or_default(),
            sum.library,
            sum.commands,
        );
        if !matches!(verdict, Turn::Done) {
            break;
        }
    }
    let (result, code) = match &verdict {
        Turn::Done => ("all held".to_owned(), ExitCode::SUCCESS),
        Turn::Interrupted => ("all held, interrupted".to_owned(), ExitCode::from(130)),
        Turn::Failed(again) => (format!("**failed**: `{again}`"), ExitCode::FAILURE),
    };
    let totals = keep(workspace, &commit, &sum, &result)?;
    println!("{result}\n{LEDGER} has a line about it. All of its lines together: {totals}");
    Ok(code)
}

fn simulator(workspace: &Path) -> Result<PathBuf, String> {
    let built = cargo(workspace)
        .args(["build", "--quiet", "--release", "-p", "quorlock-sim", "--bin", "quorlock-sim"])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the simulator could not be built".to_owned());
    }
    Ok(workspace.join("target/release/quorlock-sim"))
}

/// Seeds from a base of the time in microseconds, so that no two turns share any.
fn simulate(
    program: &Path,
    span: Duration,
    rate: &mut Option<f64>,
    sum: &mut Sum,
    interrupt: &AtomicBool,
) -> Result<Turn, String> {
    let base = u64::try_from(since_1970().as_micros()).unwrap_or(0);
    let count = rate.map_or(SEEDS, |rate| (rate * span.as_secs_f64()).max(1.0) as u64);
    let jobs = thread::available_parallelism().map_or(1, |count| count.get().min(256));
    println!("simulator: {count} seeds from {base}");
    sum.sim_base.get_or_insert(base);
    let mut command = Command::new(program);
    let [from, seeds, jobs] = [base, count, jobs as u64].map(|number| number.to_string());
    command.args(["--brief", "--from", &from, "--seeds", &seeds, "--jobs", &jobs]);
    let began = Instant::now();
    let (code, said) = until_its_end(&mut command, interrupt)?;
    match code {
        Some(0) => {
            sum.seeds += count;
            *rate = Some(count as f64 / began.elapsed().as_secs_f64().max(0.001));
            Ok(Turn::Done)
        }
        _ if interrupt.load(Ordering::Relaxed) => Ok(Turn::Interrupted),
        _ => {
            let broken =
                said.iter().find_map(|line| line.strip_prefix("seed ")?.split_once(" breaks "));
            let again = match broken {
                Some((seed, _)) => format!("--seed {seed}"),
                None => format!("--from {base} --seeds {count}"),
            };
            Ok(Turn::Failed(format!("cargo run --release -p quorlock-sim -- {again}")))
        }
    }
}

fn break_things(
    program: &Path,
    server: &ServerBinary,
    span: Duration,
    sum: &mut Sum,
    interrupt: &AtomicBool,
) -> Result<Turn, String> {
    let base = since_1970().as_secs();
    let minutes = format!("{:.2}", (span.as_secs_f64() / 60.0).max(0.01));
    println!("chaos: {minutes} minutes from {base}, against {}", version(server));
    sum.chaos_base.get_or_insert(base);
    sum.servers.insert(version(server));
    let mut command = Command::new(program);
    command.args(["--stop-at-first", "--minutes", &minutes, "--seed", &base.to_string()]);
    command.env(SERVER_VARIABLE, &server.path);
    let (code, said) = until_its_end(&mut command, interrupt)?;
    // `rounds: 3 library, 3 commands; first seed 17`
    for line in said.iter().filter_map(|line| line.strip_prefix("rounds: ")) {
        let mut numbers = line.split(' ').filter_map(|word| word.parse::<u64>().ok());
        sum.library += numbers.next().unwrap_or(0);
        sum.commands += numbers.next().unwrap_or(0);
    }
    let again = said.iter().find_map(|line| line.split_once("the same schedule again: "));
    match (code, again) {
        (Some(0), _) => Ok(Turn::Done),
        (_, Some((_, again))) => {
            Ok(Turn::Failed(format!("{SERVER_VARIABLE}={} {again}", server.path.display())))
        }
        _ if interrupt.load(Ordering::Relaxed) => Ok(Turn::Interrupted),
        _ => Ok(Turn::Failed(format!("cargo xtask chaos --seed {base} --minutes {minutes}"))),
    }
}

/// Runs it to its end, which comes early if somebody wants that. What it said is printed if it ended
/// badly, and returned.
fn until_its_end(
    command: &mut Command,
    interrupt: &AtomicBool,
) -> Result<(Option<i32>, Vec<String>), String> {
    // Ctrl-C is for this program, which ends its children in order.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let output = child.stdout.take();
    let reader = thread::spawn(move || {
        let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
        lines.map_while(Result::ok).collect::<Vec<String>>()
    });
    let code = wait(&mut child, interrupt).map_err(|error| error.to_string())?;
    let said = reader.join().map_err(|_| "a reader panicked".to_owned())?;
    if code != Some(0) && !interrupt.load(Ordering::Relaxed) {
        said.iter().for_each(|line| println!("{line}"));
    }
    Ok((code, said))
}

fn wait(child: &mut Child, interrupt: &AtomicBool) -> io::Result<Option<i32>> {
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if interrupt.load(Ordering::Relaxed) && !told {
            told = true;
            kill_process(Pid::from_child(child), Signal::INT)?;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

const HEAD: &str = "# Soaks\n\nEach line is one run of `cargo xtask soak`: simulator and chaos in turns, from \
    bases drawn from the time. [proof.md](proof.md) says what they look for.\n\n\
    | date | commit | simulator from | seeds | chaos from | rounds, library | rounds, commands | servers | result |\n\
    |---|---|---|---|---|---|---|---|---|\n";

/// Adds a line; returns what all of them come to.
fn keep(workspace: &Path, commit: &str, sum: &Sum, result: &str) -> Result<String, String> {
    let failed = |error: io::Error| format!("{LEDGER}: {error}");
    let path = workspace.join(LEDGER);
    if !path.exists() {
        fs::write(&path, HEAD).map_err(failed)?;
    }
    let date = output(workspace, "date", &["-u", "+%F"])?;
    let base = |base: Option<u64>| base.map_or("–".to_owned(), |base| base.to_string());
    let servers: Vec<&str> = sum.servers.iter().map(String::as_str).collect();
    let line = format!(
        "| {date} | {commit} | {} | {} | {} | {} | {} | {} | {result} |\n",
        base(sum.sim_base),
        sum.seeds,
        base(sum.chaos_base),
        sum.library,
        sum.commands,
        servers.join(", "),
    );
    let file = fs::OpenOptions::new().append(true).open(&path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(failed)?;
    Ok(totals(&fs::read_to_string(&path).map_err(failed)?))
}

fn totals(ledger: &str) -> String {
    let rows: Vec<Vec<&str>> = ledger
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
        .filter(|cells| cells.len() > 7 && cells[4].parse::<u64>().is_ok())
        .collect();
    let column =
        |at: usize| -> u64 { rows.iter().filter_map(|row| row[at].parse::<u64>().ok()).sum() };
    let (seeds, library, commands) = (column(4), column(6), column(7));
    format!(
        "{} runs, {seeds} seeds, {library} rounds with the library, {commands} with commands",
        rows.len()
    )
}

fn version(server: &ServerBinary) -> String {
    format!("{} {}", server.flavor, server.version)
}

fn output(workspace: &Path, program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).current_dir(workspace).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// `17:05`.
fn hour(at: SystemTime) -> String {
    let minutes = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
    format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_is_summed_up() {
        let rows = "| 2026-11-22 | abc | 17 | 2000 | 4 | 3 | 2 | Redis 7.0.15 | all held |\n\
                    | 2026-11-23 | abd | 18 | 500 | – | 0 | 1 |  | all held, interrupted |\n";
        assert_eq!(
            totals(&format!("{HEAD}{rows}")),
            "2 runs, 2500 seeds, 3 rounds with the library, 3 with commands"
        );
    }
}
