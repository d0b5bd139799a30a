//! The benchmark as a program.

use std::process::ExitCode;

fn main() -> ExitCode {
    quorlock_bench::main()
}
