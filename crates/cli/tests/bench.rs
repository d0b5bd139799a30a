//! `quorlock bench` on nodes that are somebody's own.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use common::{Testbed, quorlock, stderr, stdout};
use quorlock_servers::Reply;
use serde_json::Value;

#[test]
fn it_measures_and_leaves_nothing_behind() {
    let Some(testbed) = Testbed::new("it_measures_and_leaves_nothing_behind") else { return };
    let foreign = ["SET", "quorlock-bench:somebody's", "1"];
    testbed.nodes[0].command(&foreign).unwrap();

    let args = ["bench", "--time", "1s", "--json", "--key-prefix", "app:"];
    let output = testbed.quorlock(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("\"loading\""), "{}", stderr(&output));
    let said = stdout(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    let measured: Value = serde_json::from_str(&said).unwrap();
    let nodes: Vec<_> = measured["nodes"].as_array().unwrap().iter().map(|n| &n["node"]).collect();
    assert_eq!(nodes, ["a", "b", "c", "d", "e"]);
    for (pairs, lockers) in measured["pairs"].as_array().unwrap().iter().zip([1, 8, 64]) {
        assert_eq!(pairs["lockers"], lockers);
        assert!(pairs["pairs_per_s"].as_f64().unwrap() > 0.0, "{said}");
        assert_eq!(pairs["failed"], 0, "{said}");
    }
    assert!(measured["keys"].as_str().unwrap().starts_with("quorlock-bench:"), "{said}");
    assert!(measured["handover"]["count"].is_u64(), "{said}");

    let keys = |node: usize| testbed.nodes[node].command(&["DBSIZE"]).unwrap();
    assert_eq!((keys(0), keys(4)), (Reply::Int(1), Reply::Int(0)));
}

#[test]
fn a_table_says_what_was_loaded_and_for_how_long() {
    let Some(testbed) = Testbed::new("a_table_says_what_was_loaded_and_for_how_long") else {
        return;
    };
    testbed.nodes[2].kill().unwrap();
    let output = testbed.quorlock(&["bench", "--time", "1s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("loads the nodes for 1.0s"), "{}", stderr(&output));
    let table = stdout(&output);
    for words in ["ROUND TRIP", "LOCKERS", "HAND-OVERS"] {
        assert!(table.contains(words), "{table}");
    }
    // The node that is down has no round trip.
    let down = table.lines().find(|line| line.starts_with("c ")).unwrap();
    assert!(down.contains('-'), "{table}");
}

#[test]
fn it_refuses_what_cannot_be_measured() {
    let Some(testbed) = Testbed::new("it_refuses_what_cannot_be_measured") else { return };
    let wrong: [(&[&str], &str); 3] = [
        (&["bench", "--time", "0s"], "must be 1s to 600s"),
        (&["bench", "--time", "10"], "a time has a unit"),
        (&["bench", "--quorum", "1"], "between 3 (the majority) and 5"),
    ];
    for (args, says) in wrong {
        let output = testbed.quorlock(args).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
    }
    let output = quorlock(&["bench"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
    for node in testbed.nodes.iter().take(3) {
        node.kill().unwrap();
    }
    let output = testbed.quorlock(&["bench"]).output().unwrap();
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
}
