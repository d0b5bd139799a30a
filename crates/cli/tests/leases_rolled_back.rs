//! A lease whose value came back with a node's old data, after another client had the lock.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::process::Command;

use common::{Running, Testbed, code, eventually, get, stdout};
use quorlock_servers::ServerOptions;

/// Two of three servers are killed, and start again with data from before the release. Each `quorlock extend` is a new
/// process, which does not know the servers. If it prolonged the old value before it has identified them, the value
/// would outlive the quarantine, and the extension would succeed at last.
#[test]
fn an_extension_never_succeeds_after_another_holder_although_old_data_returns() {
    let Some(mut testbed) = Testbed::with(3, ServerOptions::default()) else { return };
    testbed.guard = "strict";
    let quorlock = |words: &[&str]| {
        let (command, rest) = words.split_first().unwrap();
        testbed.output(&[&[command, "--max-ttl", "4s"], rest].concat())
    };
    code(&quorlock(&["init", "--fresh", "--yes"]), 0);
    // The lease names this process, so its text alone does not show that the lock is over.
    let keeper = Running::start(Command::new("sleep").arg("300"));
    let by = keeper.id().to_string();
    let acquired = quorlock(&["acquire", "k", "--ttl", "4s", "--hold-by", &by]);
    code(&acquired, 0);
    let lease = stdout(&acquired).trim_end().to_owned();
    testbed.on(0..2, &["SAVE"]);
    code(&quorlock(&["release", &lease]), 0);
    code(&quorlock(&["run", "k", "--ttl", "4s", "--", "true"]), 0);

    testbed.nodes[..2].iter().for_each(|node| node.restart().unwrap());
    let is_back = |place: usize| get(&testbed.nodes[place], "k").is_some();
    assert!(is_back(0) && is_back(1), "the machine is too slow: the old value has expired");
    let mut tries = 0;
    eventually("the old value expires", || {
        tries += 1;
        assert_ne!(quorlock(&["extend", &lease]).status.code(), Some(0), "in try {tries}");
        (!is_back(0) && !is_back(1)).then_some(())
    });
    assert!(tries > 1, "the value was not there for long");
    eventually("the nodes vote again", || {
        let output = quorlock(&["extend", &lease]);
        assert_ne!(output.status.code(), Some(0));
        (output.status.code() == Some(79)).then_some(())
    });
}
