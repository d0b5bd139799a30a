//! `quorlock extend` and `release` with the lease in `QUORLOCK_LEASE`, which other users of the machine cannot read.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use common::leases::{acquire, is_free, quorum_holds, script, servers};
use common::{code, eventually, stderr, stdout};

#[test]
fn the_lease_is_in_no_argument_of_a_command_that_reads_it_from_the_variable() {
    let Some(testbed) = servers(1) else { return };
    for (command, result) in [("extend", 69), ("release", 69)] {
        let lease = acquire(&testbed, &[]);
        testbed.nodes[0].pause().unwrap();
        let mut call = testbed.quorlock(&[command]);
        let mut running = call.env("QUORLOCK_LEASE", &lease).spawn().unwrap();
        let of_process = |name: &str| format!("/proc/{}/{name}", running.id());
        let environ = eventually("the program runs", || {
            let text = String::from_utf8(fs::read(of_process("environ")).ok()?).ok()?;
            text.contains(&lease).then_some(text)
        });
        assert!(environ.contains("QUORLOCK_LEASE=quorlock1:"));
        let words = String::from_utf8(fs::read(of_process("cmdline")).unwrap()).unwrap();
        assert!(
            words.ends_with(&format!("\0{command}\0")) && !words.contains("quorlock1:"),
            "{words}"
        );
        let mode = fs::metadata(of_process("environ")).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "only the user reads it");
        assert_eq!(running.wait().unwrap().code(), Some(result), "the node is paused");
        testbed.nodes[0].resume().unwrap();
        code(&testbed.output(&["release", &lease]), 0);
    }
}

#[test]
fn an_argument_wins_over_the_variable() {
    let Some(testbed) = servers(5) else { return };
    let wrong = acquire(&testbed, &[]);
    code(&testbed.output(&["release", &wrong]), 0);
    let release = |args: &[&str], lease: &str| {
        testbed
            .quorlock(&[&["release"], args].concat())
            .env("QUORLOCK_LEASE", lease)
            .output()
            .unwrap()
    };
    let lease = acquire(&testbed, &[]);
    let output = release(&[&lease], &wrong);
    code(&output, 0);
    assert_eq!(stderr(&output), "");
    assert!(is_free(&testbed, "k"));

    acquire(&testbed, &["--lease-file", "x"]);
    code(&release(&["--lease-file", "x"], &wrong), 0);
    assert!(is_free(&testbed, "k"));

    let piped = format!("quorlock acquire k | QUORLOCK_LEASE={wrong} quorlock release -");
    code(&script(&testbed, "sh", &piped).output().unwrap(), 0);
    assert!(is_free(&testbed, "k"));

    acquire(&testbed, &["--value", "mine"]);
    code(&release(&["k", "--value", "mine"], &wrong), 0);
    assert!(is_free(&testbed, "k"));

    // An empty argument is an argument: the lock of the variable stays.
    let lease = acquire(&testbed, &[]);
    code(&release(&[""], &lease), 65);
    assert!(quorum_holds(&testbed, "k"));
    code(&release(&["--value", "mine"], &lease), 64);
    assert!(quorum_holds(&testbed, "k"));
    code(&release(&[], &lease), 0);
    assert!(is_free(&testbed, "k"));
}

#[test]
fn an_empty_variable_is_no_lease_and_a_damaged_one_is_named() {
    let Some(testbed) = servers(1) else { return };
    let lease = acquire(&testbed, &[]);
    for command in ["extend", "release"] {
        for (text, expected, said) in [
            (None, 64, "QUORLOCK_LEASE is not set or empty"),
            (Some(""), 64, "QUORLOCK_LEASE is not set or empty"),
            (Some(" "), 64, "QUORLOCK_LEASE is not set or empty"),
            (Some(&lease[..lease.len() - 1]), 65, "QUORLOCK_LEASE: "),
        ] {
            let mut call = testbed.quorlock(&[command]);
            text.map(|text| call.env("QUORLOCK_LEASE", text));
            let output = call.output().unwrap();
            code(&output, expected);
            assert!(stderr(&output).contains(said), "{}", stderr(&output));
            assert!(!stderr(&output).contains(&lease[..40]), "no secret: {}", stderr(&output));
        }
    }
    let mut call = testbed.quorlock(&["extend"]);
    let extended = call.env("QUORLOCK_LEASE", format!("{lease}\n")).output().unwrap();
    code(&extended, 0);
    assert!(stdout(&extended).starts_with("quorlock1:"));
    assert!(!stderr(&extended).contains("unknown variables"), "{}", stderr(&extended));
}
