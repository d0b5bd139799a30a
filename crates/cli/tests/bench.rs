//! `quorlock bench` on real servers.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use common::{Testbed, code, command, json_lines, quorlock, stderr, stdout};
use quorlock_servers::Reply;

#[test]
fn bench_measures_and_leaves_no_key() {
    let Some(testbed) = Testbed::new() else { return };
    testbed.on(0..1, &["SET", "quorlock-bench:foreign", "1"]);

    let args = ["bench", "--time", "1s", "--json", "--key-prefix", "app:"];
    let output = testbed.output(&args);
    code(&output, 0);
    assert!(stderr(&output).contains("\"loading\""), "{}", stderr(&output));
    let said = stdout(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    let measured = json_lines(&said).remove(0);
    let nodes: Vec<_> = measured["nodes"].as_array().unwrap().iter().map(|n| &n["node"]).collect();
    assert_eq!(nodes, ["a", "b", "c", "d", "e"]);
    for (pairs, lockers) in measured["pairs"].as_array().unwrap().iter().zip([1, 8, 64]) {
        assert_eq!(pairs["lockers"], lockers);
        assert!(pairs["pairs_per_s"].as_f64().unwrap() > 0.0, "{said}");
        assert_eq!(pairs["failed"], 0, "{said}");
    }
    assert!(measured["keys"].as_str().unwrap().starts_with("quorlock-bench:"), "{said}");
    assert!(measured["handover"]["count"].is_u64(), "{said}");

    let keys = |node: usize| command(&testbed.nodes[node], &["DBSIZE"]);
    assert_eq!((keys(0), keys(4)), (Reply::Int(1), Reply::Int(0)));
}

#[test]
fn a_table_shows_the_load_and_its_duration() {
    let Some(testbed) = Testbed::new() else { return };
    testbed.nodes[2].kill().unwrap();
    let output = testbed.output(&["bench", "--time", "1s"]);
    code(&output, 0);
    assert!(stderr(&output).contains("loads the nodes for 1.0s"), "{}", stderr(&output));
    let table = stdout(&output);
    for words in ["ROUND TRIP", "LOCKERS", "HAND-OVERS"] {
        assert!(table.contains(words), "{table}");
    }
    // The row of a node that is down has a `-` instead of a round trip.
    let down = table.lines().find(|line| line.starts_with("c ")).unwrap();
    assert!(down.contains('-'), "{table}");
}

#[test]
fn bench_refuses_invalid_arguments_and_nodes_without_a_quorum() {
    let Some(testbed) = Testbed::new() else { return };
    let wrong: [(&[&str], &str); 3] = [
        (&["bench", "--time", "0s"], "must be 1s to 600s"),
        (&["bench", "--time", "10"], "a time has a unit"),
        (&["bench", "--quorum", "1"], "between 3 (the majority) and 5"),
    ];
    for (args, says) in wrong {
        let output = testbed.output(args);
        code(&output, 64);
        assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
    }
    let output = quorlock(&["bench"]).output().unwrap();
    code(&output, 64);
    for node in testbed.nodes.iter().take(3) {
        node.kill().unwrap();
    }
    let output = testbed.output(&["bench"]);
    code(&output, 69);
}
