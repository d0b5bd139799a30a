//! Runs the example `fenced_store` on real servers: a holder is stopped between its read and its write, and the store
//! refuses its write.

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
    // The example's processes are this program again, limited to the test `child_process_of_the_example`.
    let withdraw = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([
            "--exact",
            "child_process_of_the_example",
            "--nocapture",
            "--test-threads=1",
        ]);
        Ok(command)
    };
    story::run(withdraw).expect("the store refuses the earlier holder");
}

/// This is no test by itself: it is the work of the child processes of the other test.
#[test]
fn child_process_of_the_example() {
    if withdraw::is_wanted() {
        let code = withdraw::run().expect("a process of the story");
        std::process::exit(if code == std::process::ExitCode::SUCCESS {
            0
        } else {
            withdraw::REFUSED.into()
        });
    }
}
