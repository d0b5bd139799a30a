//! Runs the benchmark with measurements too short for meaningful figures. The tests do not check the figures.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::process::{Command, Output};

use quorlock_servers::{SERVER_VARIABLE, find_or_skip};
use serde_json::Value;

fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorlock-bench"));
    command.args(args);
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_last_line_of_a_quick_run_is_one_object_with_what_was_promised() {
    let name = "the_last_line_of_a_quick_run_is_one_object_with_what_was_promised";
    let Some(server) = find_or_skip(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("quick.json");
    let out = file.to_str().unwrap();
    let args = ["quick", "--json", "--rounds", "1", "--sample", "100ms", "--out", out];
    let output = bench(&args).env(SERVER_VARIABLE, &server.path).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));

    let said = String::from_utf8(output.stdout).unwrap();
    let report: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(report, written);
    // In such a short run, one process may hold the lock all the time. Then only figures about hand-overs are missing.
    let not_run = report["not_run"].as_array().unwrap();
    assert!(not_run.iter().all(|missing| missing["workload"] == "handover"), "{said}");
    for (figure, subjects) in [
        ("throughput_n5_c64", &["quorlock", "raw", "rslock"][..]),
        ("p50_us_n5_c1", &["quorlock", "raw", "rslock"]),
        ("cpu_us_per_pair_n5_c64", &["quorlock", "rslock"]),
    ] {
        for subject in subjects {
            assert!(report[figure][subject].as_f64().unwrap() > 0.0, "{figure} {subject}: {said}");
        }
    }
    assert!(report["ping_p50_us"].as_f64().unwrap() > 0.0, "{said}");
    assert!(report.get("handover_p50_us_n5").is_some(), "{said}");
    for field in ["quorlock", "commit", "dirty", "date", "command", "machine", "servers"] {
        assert!(report.get(field).is_some(), "{field}: {said}");
    }
    let row = &report["results"][0];
    assert_eq!((&row["workload"], &row["nodes"]), (&"pairs".into(), &5.into()));
    assert_eq!(row["values"].as_array().map(Vec::len), Some(1));
}

/// `plot.py` draws every plot of an invented report, and escapes names in the SVG files.
#[test]
fn plots_and_figures_come_from_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let crate_folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new("python3");
    python.arg(crate_folder.join("plot.py")).arg(crate_folder.join("tests/report.json"));
    let output = match python.arg(folder.path()).output() {
        Ok(output) => output,
        Err(_) => {
            return quorlock_servers::skip("plots_and_figures_come_from_a_report", "no python3");
        }
    };
    assert!(output.status.success(), "{}", stderr(&output));
    let figures = String::from_utf8(output.stdout).unwrap();
    assert!(figures.contains("pairs\t5\t64\tquorlock\tpairs_per_s\t"), "{figures}");
    for file in ["throughput", "latency", "cpu", "handover", "growth"] {
        let svg = std::fs::read_to_string(folder.path().join(file).with_extension("svg")).unwrap();
        for wanted in ["Invented CPU", "7 × Redis 7.0.15", "commit 0123abc", "quorlock"] {
            assert!(svg.contains(wanted), "{wanted} is not in {file}:\n{svg}");
        }
        assert_eq!(svg.contains("a&lt;b&gt;&amp;c"), file != "handover");
        assert!(svg.contains("prefers-color-scheme: dark") && svg.trim_end().ends_with("</svg>"));
    }
}

#[test]
fn a_missed_target_is_told_and_the_exit_code_says_so() {
    let name = "a_missed_target_is_told_and_the_exit_code_says_so";
    let Some(server) = find_or_skip(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bench.json");
    let out = file.to_str().unwrap();
    let only = ["--only", "contended_in_process", "--rounds", "1", "--sample", "500ms"];
    let mut command = bench(&[&only[..], &["--out", out]].concat());
    let output = command.env(SERVER_VARIABLE, &server.path).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let target = &written["targets"][0];
    assert_eq!(written["targets"].as_array().map(Vec::len), Some(1), "{said}");
    assert!(target["value"].is_f64(), "{said}");
    let (code, word) = if target["met"] == true { (0, " met") } else { (1, " MISSED") };
    assert!(said.contains(word), "{said}");
    assert_eq!(output.status.code(), Some(code), "{said}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let wrong: &[(&[&str], &str)] = &[
        (&["--rounds", "0"], "0 is not in 1..=1000"),
        (&["--sample", "1ms"], "must be 10ms to 60s"),
        (&["--sample", "1"], "time unit needed"),
        (&["--only", "nothing"], "possible values"),
        (&["quick", "--full"], "unexpected argument"),
        (&["--server", "/no/such/server"], "--server /no/such/server"),
        (&["--server", "no-such-server"], "no such program on PATH"),
        (&["--out", "/no/such/folder/file"], "cannot write /no/such/folder/file"),
        (&["worker", "by hand"], "not by hand"),
    ];
    for (args, says) in wrong {
        let output = bench(args).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(says), "{args:?}: {said}");
    }
}

/// A lock costs one round trip, a new connection two more, and TLS one more.
#[test]
fn the_table_of_round_trips_has_what_the_protocol_says() {
    let name = "the_table_of_round_trips_has_what_the_protocol_says";
    let Some(server) = find_or_skip(name) else { return };
    let output = bench(&["round-trips"]).env(SERVER_VARIABLE, &server.path).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    for operation in ["acquire", "extend", "release"] {
        assert!(table.contains(&format!("\n| {operation} | 1 | ")), "{table}");
    }
    assert!(table.contains("the first call of a process | 3 | "), "{table}");
}
