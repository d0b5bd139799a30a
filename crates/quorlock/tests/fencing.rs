//! The story of the example, told to its end: a holder that is stopped between its reading and its
//! writing, on real servers, and a store that refuses it.

#[path = "../examples/fenced_store/store.rs"]
mod store;
#[path = "../examples/fenced_store/story.rs"]
mod story;
#[path = "../examples/fenced_store/withdraw.rs"]
mod withdraw;

use std::process::Command;

use quorlock_servers::find_or_skip;

#[test]
fn a_holder_that_was_stopped_too_long_is_refused_by_the_store() {
    if find_or_skip("a_holder_that_was_stopped_too_long_is_refused_by_the_store").is_none() {
        return;
    }
    // Its processes are this program again, with the one test that is one.
    let withdraw = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--exact", "one_of_the_processes", "--nocapture", "--test-threads=1"]);
        Ok(command)
    };
    story::run(withdraw).expect("the store refuses who has been overtaken");
}

/// No test of its own: what the other one's processes do.
#[test]
fn one_of_the_processes() {
    if withdraw::is_wanted() {
        let code = withdraw::run().expect("a process of the story");
        std::process::exit(if code == std::process::ExitCode::SUCCESS {
            0
        } else {
            withdraw::REFUSED.into()
        });
    }
}
