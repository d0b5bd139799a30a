//! `quorlock init` and the restart guard as the command line shows it, on real servers whose longest
//! ttl is 900 ms: they wait for 2.909 s.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::process::Output;
use std::time::Duration;

use common::{Running, Testbed, boot, eventually, stderr, stdout};
use quorlock_servers::{Reply, Server};
use rustix::process::Signal;
use serde_json::Value;

const QUARANTINE: Duration = Duration::from_millis(2909);

/// `quorlock` with the first so many nodes of the lab, strict, and this longest ttl.
fn strict(testbed: &Testbed, nodes: usize, max_ttl: &str, args: &[&str]) -> std::process::Command {
    let mut command = testbed.quorlock(args);
    let named = ["a", "b", "c", "d", "e"].iter().zip(testbed.nodes.urls()).take(nodes);
    let named: Vec<String> = named.map(|(name, url)| format!("{name}={url}")).collect();
    command.env("QUORLOCK_NODES", named.join(","));
    command.env("QUORLOCK_RESTART_GUARD", "strict").env("QUORLOCK_MAX_TTL", max_ttl);
    command
}

fn get(server: &Server, key: &str) -> Option<String> {
    match server.command(&["GET", key]).unwrap() {
        Reply::Bulk(Some(text)) => Some(String::from_utf8(text).unwrap()),
        Reply::Bulk(None) => None,
        reply => panic!("{reply:?}"),
    }
}

fn markers(testbed: &Testbed) -> Vec<String> {
    testbed.nodes.iter().map(|node| get(node, "quorlock:node").unwrap_or_default()).collect()
}

fn code(output: &Output, expected: i32) {
    assert_eq!(output.status.code(), Some(expected), "{}{}", stdout(output), stderr(output));
}

const FRESH: &[&str] = &["init", "--fresh", "--yes"];
const FORCE: &[&str] = &["init", "--fresh", "--yes", "--force"];
const RECONFIGURE: &[&str] = &["init", "--reconfigure", "--yes"];
const RUN: &[&str] = &["run", "k", "--wait", "0s", "--", "echo", "ran"];

#[test]
fn new_servers_are_waited_for_and_a_shorter_wait_is_refused_at_once() {
    let name = "new_servers_are_waited_for_and_a_shorter_wait_is_refused_at_once";
    let Some(testbed) = Testbed::new(name) else { return };
    let run = |args: &[&str]| {
        strict(&testbed, 5, "900ms", &[&["run", "k"], args].concat()).output().unwrap()
    };
    let start = boot();
    let refused = run(&["--wait", "2s", "--", "true"]);
    code(&refused, 69);
    // It would be that long otherwise; and it says what to do.
    assert!(boot() - start < Duration::from_secs(2));
    let said = stderr(&refused);
    for words in
        ["nodes a, b, c, d, e: quarantined: ", "its votes count in 3 s", "quorlock init --fresh"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    let status = strict(&testbed, 5, "900ms", &["status", "k", "--json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["nodes"][4]["trust_state"], "quarantined");
    let left = status["nodes"][4]["votes_count_in_ms"].as_u64().unwrap();
    assert!(left > 0 && u128::from(left) <= QUARANTINE.as_millis(), "{status}");
    let text = stdout(&strict(&testbed, 5, "900ms", &["status", "k"]).output().unwrap());
    assert!(text.contains("\n  nodes a, b, c, d, e: quarantined: "), "{text}");

    // The wait that has begun goes on, whoever waits.
    let waited = run(&["--wait", "20s", "--", "echo", "ran"]);
    code(&waited, 0);
    assert!(boot() - start >= QUARANTINE);
    let said = stderr(&waited);
    assert!(said.contains("waiting for ") && said.contains("votes count in "), "{said}");
    let status = strict(&testbed, 5, "900ms", &["status", "k", "--json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["nodes"][4]["trust_state"], "trusted");
    code(&run(&["--wait", "0s", "--", "true"]), 0);
}

#[test]
fn votes_that_only_observers_count_are_told_of() {
    let Some(testbed) = Testbed::new("votes_that_only_observers_count_are_told_of") else { return };
    code(&strict(&testbed, 5, "30s", FRESH).output().unwrap(), 0);
    let run = |args: &[&str]| {
        let mut command = strict(&testbed, 5, "30s", &[&["run", "k"], args].concat());
        command.env("QUORLOCK_RESTART_GUARD", "observe").output().unwrap()
    };
    let said = |output: Output| {
        code(&output, 0);
        stderr(&output)
    };
    assert_eq!(said(run(&["--", "true"])), "");
    // The others alone are no quorum.
    for node in testbed.nodes.iter().take(3) {
        node.command(&["DEL", "quorlock:node"]).unwrap();
    }
    let told = said(run(&["--", "true"]));
    assert!(told.contains("\"k\" is held, but votes count of nodes that are not"), "{told}");
    assert!(
        told.contains("quarantined: is new under these settings, or has lost its data"),
        "{told}"
    );
    assert_eq!(said(run(&["--quiet", "--", "true"])), "");
    let events = said(run(&["--json", "--", "true"]));
    let acquired: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    assert_eq!(acquired["event"], "acquired");
    let nodes = acquired["untrusted_nodes"].as_array().unwrap();
    assert!(!nodes.is_empty() && nodes.iter().all(|node| node["why"].is_string()), "{acquired}");
}

/// Who holds a lock is told why an extension came to nothing, or where that is to be found out.
#[test]
fn who_loses_a_lock_by_a_change_of_settings_is_sent_to_the_doctor() {
    let name = "who_loses_a_lock_by_a_change_of_settings_is_sent_to_the_doctor";
    let Some(testbed) = Testbed::new(name) else { return };
    code(&strict(&testbed, 5, "4s", FRESH).output().unwrap(), 0);
    let hold = ["run", "k", "--ttl", "1s", "--", "sleep", "30"];
    let run = Running::start(&mut strict(&testbed, 5, "4s", &hold));
    eventually("the lock is held", || get(&testbed.nodes[0], "k"));
    code(&strict(&testbed, 5, "3s", FORCE).output().unwrap(), 0);
    let lost = run.end();
    code(&lost, 79);
    let said = stderr(&lost);
    assert!(said.contains("quorlock doctor): a, b, c, d, e: another configuration"), "{said}");
}

#[test]
fn who_only_looks_writes_nothing() {
    let Some(testbed) = Testbed::new("who_only_looks_writes_nothing") else { return };
    // New nodes are not believed that nobody holds it, and the doctor's code says that nobody votes yet.
    for (args, expected) in
        [(&["status", "k"][..], 69), (&["doctor"], 2), (&["doctor", "--json"], 2)]
    {
        code(&strict(&testbed, 5, "900ms", args).output().unwrap(), expected);
    }
    for node in testbed.nodes.iter() {
        assert_eq!(node.command(&["DBSIZE"]).unwrap(), Reply::Int(0));
    }
}

#[test]
fn an_operators_word_spares_the_wait() {
    let Some(testbed) = Testbed::new("an_operators_word_spares_the_wait") else { return };
    let unsaid = strict(&testbed, 5, "30s", &["init", "--fresh"]).output().unwrap();
    code(&unsaid, 64);
    assert!(stderr(&unsaid).contains("--yes") && markers(&testbed)[0].is_empty());
    testbed.nodes[4].kill().unwrap();
    let done = strict(&testbed, 5, "30s", FRESH).output().unwrap();
    code(&done, 0);
    let said = stderr(&done);
    assert!(
        said.contains("nodes a, b, c, d: votes count\n")
            && said.contains("node e: nothing was done"),
        "{said}"
    );
    code(&strict(&testbed, 5, "30s", RUN).output().unwrap(), 0);

    // The number that CMD gets grows.
    let fence = || {
        let args = ["run", "k", "--fenced", "--", "sh", "-c", "echo $QUORLOCK_FENCE"];
        stdout(&strict(&testbed, 5, "30s", &args).output().unwrap()).trim().parse::<u64>().unwrap()
    };
    let (first, second) = (fence(), fence());
    assert!(first > 0 && second > first, "{first} {second}");
    let none = ["run", "k", "--", "sh", "-c", "echo ${QUORLOCK_FENCE-none}"];
    let none = strict(&testbed, 5, "30s", &none).env("QUORLOCK_FENCE", "7").output().unwrap();
    assert_eq!(stdout(&none), "none\n");

    // Fewer than a quorum: nothing is written.
    testbed.nodes[3].kill().unwrap();
    testbed.nodes[2].kill().unwrap();
    let before = get(&testbed.nodes[0], "quorlock:node");
    let refused = strict(&testbed, 5, "30s", FRESH).output().unwrap();
    code(&refused, 69);
    assert!(
        stderr(&refused)
            .contains("2 of 5 nodes can be used, but 3 must; make the others reachable"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(get(&testbed.nodes[0], "quorlock:node"), before);
}

#[test]
fn three_nodes_become_five() {
    let Some(testbed) = Testbed::new("three_nodes_become_five") else { return };
    code(&strict(&testbed, 3, "900ms", FRESH).output().unwrap(), 0);
    code(&strict(&testbed, 3, "900ms", RUN).output().unwrap(), 0);
    let other = strict(&testbed, 5, "900ms", RUN).output().unwrap();
    code(&other, 69);
    let said = stderr(&other);
    assert!(said.contains("nodes=a,b,c ") && said.contains("nodes=a,b,c,d,e "), "{said}");

    let start = boot();
    let done = strict(&testbed, 5, "900ms", RECONFIGURE).output().unwrap();
    code(&done, 0);
    assert!(boot() - start >= QUARANTINE);
    let said = stderr(&done);
    let count = said.lines().next().unwrap();
    // A terminal shows the end of it, too.
    assert!(count.len() < 79 && count.contains("; Ctrl-C is safe"), "{count}");
    let time = count.strip_prefix("quorlock: ").unwrap();
    assert!(time.starts_with(|first: char| first.is_ascii_digit()), "{count}");
    assert!(markers(&testbed).iter().all(|marker| marker.contains(" nodes=a,b,c,d,e quorum=3 ")));
    code(&strict(&testbed, 5, "900ms", RUN).output().unwrap(), 0);
    // The old settings are worth nothing any more.
    code(&strict(&testbed, 3, "900ms", RUN).output().unwrap(), 69);
    // Once more is once too often, and says so.
    let start = boot();
    let again = strict(&testbed, 5, "900ms", RECONFIGURE).output().unwrap();
    code(&again, 0);
    assert!(stderr(&again).contains("counted before") && boot() - start < QUARANTINE);
}

/// The wait is that of the longer of both, and who is interrupted leaves it to clients.
#[test]
fn an_interrupted_change_is_finished_by_a_client_or_a_second_run() {
    let name = "an_interrupted_change_is_finished_by_a_client_or_a_second_run";
    let Some(testbed) = Testbed::new(name) else { return };
    code(&strict(&testbed, 5, "2s", FRESH).output().unwrap(), 0);
    let start = boot();
    let run = Running::start(&mut strict(&testbed, 5, "900ms", RECONFIGURE));
    eventually("every node is adopted", || {
        testbed.nodes.iter().all(|node| get(node, "quorlock:adopt").is_some()).then_some(())
    });
    assert!(get(&testbed.nodes[0], "quorlock:adopt").unwrap().contains(" wait_ms=4020"));
    run.signal(Signal::INT);
    let output = run.end();
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    // It died of the signal, as shells want it.
    assert!(!output.status.success() && markers(&testbed)[0].is_empty());

    code(&strict(&testbed, 5, "2s", RUN).output().unwrap(), 69);
    let wait = ["run", "k", "--wait", "20s", "--", "true"];
    let client = Running::start(&mut strict(&testbed, 5, "900ms", &wait));
    let again = strict(&testbed, 5, "900ms", RECONFIGURE).output().unwrap();
    code(&again, 0);
    code(&client.end(), 0);
    // Two seconds and a hundredth, and two.
    assert!(boot() - start >= Duration::from_millis(4020));
}

/// Clients of the new settings may have run before, been told to reconfigure, and taken the new nodes
/// into use meanwhile: those nodes wait again, for the old clients' locks have not ended.
#[test]
fn new_nodes_that_new_clients_have_marked_wait_as_well() {
    let name = "new_nodes_that_new_clients_have_marked_wait_as_well";
    let Some(testbed) = Testbed::new(name) else { return };
    // As a client of the new settings would have marked b and c, had it been given the time.
    code(&strict(&testbed, 3, "900ms", FRESH).output().unwrap(), 0);
    code(&strict(&testbed, 1, "4s", FORCE).output().unwrap(), 0);
    let hold = ["run", "k", "--ttl", "4s", "--", "sleep", "30"];
    let old = Running::start(&mut strict(&testbed, 1, "4s", &hold));
    eventually("the old client has the lock", || get(&testbed.nodes[0], "k"));
    let moving = Running::start(&mut strict(&testbed, 3, "900ms", RECONFIGURE));
    eventually("a does not vote for the old client", || get(&testbed.nodes[0], "quorlock:adopt"));
    for node in &testbed.nodes.iter().collect::<Vec<_>>()[1..3] {
        // All are written to at once, so another may be later.
        let adoption = eventually("it is adopted", || get(node, "quorlock:adopt"));
        assert!(adoption.contains(" wait_ms=6040"));
        assert_eq!(get(node, "quorlock:node"), None, "it would vote while the old lock is held");
    }
    assert!(!strict(&testbed, 3, "900ms", RUN).output().unwrap().status.success());
    old.signal(Signal::TERM);
    old.end();
    code(&moving.end(), 0);
    code(&strict(&testbed, 3, "900ms", RUN).output().unwrap(), 0);
}

#[test]
fn so_many_old_nodes_must_answer_that_the_others_are_no_quorum() {
    let name = "so_many_old_nodes_must_answer_that_the_others_are_no_quorum";
    let Some(testbed) = Testbed::new(name) else { return };
    code(&strict(&testbed, 3, "900ms", FRESH).output().unwrap(), 0);
    // From a, b, c to a, d, e: b and c could still grant locks to the old clients.
    let urls = testbed.nodes.urls();
    let new = format!("a={},d={},e={}", urls[0], urls[3], urls[4]);
    let run = |args: &[&str]| {
        let mut command = strict(&testbed, 3, "900ms", &[RECONFIGURE, args].concat());
        command.env("QUORLOCK_NODES", &new).output().unwrap()
    };
    let before = markers(&testbed);
    let refused = run(&[]);
    code(&refused, 69);
    let said = stderr(&refused);
    assert!(
        said.contains("2 of the nodes that vote for") && said.contains("URLs of b, c"),
        "{said}"
    );
    assert_eq!(markers(&testbed), before);

    // The same is so if a was taken out of use by a run that was killed before it came to b.
    let marker = &before[0];
    let (cluster, rest) = marker.split_at(marker.find(" run_id=").unwrap());
    let ours = "nodes=a,d,e quorum=2 max_ttl_ms=900";
    let blocked = format!("{cluster} becomes {ours}{rest}");
    testbed.nodes[0].command(&["SET", "quorlock:node", &blocked]).unwrap();
    code(&run(&[]), 69);
    assert_eq!(markers(&testbed)[0], blocked);
    // Such a node votes for nobody: neither the old ones nor the new ones.
    testbed.nodes[1].kill().unwrap();
    code(&strict(&testbed, 3, "900ms", RUN).output().unwrap(), 69);
    testbed.nodes[1].restart().unwrap();

    let old = format!("c={}", urls[2]);
    let done = run(&["--old-node", &old]);
    code(&done, 0);
    assert!(
        stderr(&done).contains("node c: taken out of use, with a vote for no client"),
        "{}",
        stderr(&done)
    );
    let after = markers(&testbed);
    for place in [0, 3, 4] {
        assert!(after[place].contains("nodes=a,d,e quorum=2 max_ttl_ms=900 run_id="), "{after:?}");
    }
    assert!(after[2].contains(" becomes nodes=a,d,e ") && after[1].is_empty(), "{after:?}");
}

/// `init --reconfigure` onto these nodes, with these arguments.
fn reconfigured(testbed: &Testbed, nodes: &str, args: &[&str]) -> Output {
    let mut command = strict(testbed, 0, "900ms", &[RECONFIGURE, args].concat());
    command.env("QUORLOCK_NODES", nodes).output().unwrap()
}

/// Else two lists of nodes would grant the same locks.
#[test]
fn old_nodes_that_are_not_given_are_not_left_behind() {
    let Some(testbed) = Testbed::new("old_nodes_that_are_not_given_are_not_left_behind") else {
        return;
    };
    let urls = testbed.nodes.urls();
    let old = format!("a={},b={}", urls[0], urls[1]);
    let new = format!("x={},y={},z={}", urls[2], urls[3], urls[4]);
    let with = |nodes: &str, args: &[&str]| {
        strict(&testbed, 0, "900ms", args).env("QUORLOCK_NODES", nodes).output().unwrap()
    };
    code(&with(&old, FRESH), 0);
    let refused = reconfigured(&testbed, &new, &[]);
    code(&refused, 69);
    assert!(stderr(&refused).contains("ever marked for other nodes"), "{}", stderr(&refused));
    assert_eq!(testbed.nodes[2].command(&["DBSIZE"]).unwrap(), Reply::Int(0));
    // Nor does it help that a client of the new settings has looked at them.
    code(&with(&new, RUN), 69);
    // It ends as soon as too few are left that might vote: perhaps before it has begun with any.
    eventually("one is adopted", || {
        code(&with(&new, RUN), 69);
        testbed.nodes.iter().skip(2).find_map(|node| get(node, "quorlock:adopt"))
    });
    code(&reconfigured(&testbed, &new, &[]), 69);
    code(&with(&old, RUN), 0);

    let a = format!("a={}", urls[0]);
    code(&reconfigured(&testbed, &new, &["--old-node", &a]), 0);
    code(&with(&new, RUN), 0);
    code(&with(&old, RUN), 69);
    // It is complete, so once more does no harm.
    code(&reconfigured(&testbed, &new, &[]), 0);
    // An earlier run was interrupted behind the last old node.
    for (node, marker) in testbed.nodes.iter().zip(markers(&testbed)).skip(2) {
        node.command(&["DEL", "quorlock:node"]).unwrap();
        let adoption = format!("{marker} wait_ms=2909 moved=1");
        node.command(&["SET", "quorlock:adopt", &adoption, "PX", "172800000"]).unwrap();
    }
    code(&reconfigured(&testbed, &new, &[]), 0);
    code(&with(&new, RUN), 0);
}

/// A server that has an old node's name and another address is another server: what the old one grants
/// it does not know.
#[test]
fn old_nodes_are_not_taken_for_new_ones_of_their_names() {
    let Some(testbed) = Testbed::new("old_nodes_are_not_taken_for_new_ones_of_their_names") else {
        return;
    };
    code(&strict(&testbed, 3, "900ms", FRESH).output().unwrap(), 0);
    let urls = testbed.nodes.urls();
    // a and c move, and still are a quorum of the old ones.
    let new = format!("a={},b={},c={}", urls[3], urls[1], urls[4]);
    let settings = ["--quorum", "3"];
    let before = markers(&testbed);
    let refused = reconfigured(&testbed, &new, &settings);
    code(&refused, 69);
    let said = stderr(&refused);
    assert!(said.contains("what answers as a, c has no marker of theirs"), "{said}");
    assert_eq!(markers(&testbed), before);
    // Not even if a run that was killed has marked them for nobody.
    let (cluster, rest) = before[1].split_at(before[1].find(" run_id=").unwrap());
    let came = format!("{cluster} becomes nodes=a,b,c quorum=3 max_ttl_ms=900{rest} came=1");
    testbed.nodes[3].command(&["SET", "quorlock:node", &came]).unwrap();
    code(&reconfigured(&testbed, &new, &settings), 69);

    let old = format!("a={}", urls[0]);
    // With the same settings, the old ones' clients could not be told from the new ones'.
    let same = reconfigured(&testbed, &new, &["--old-node", &old]);
    code(&same, 78);
    assert!(stderr(&same).contains("give the new one another name"), "{}", stderr(&same));
    code(&reconfigured(&testbed, &new, &["--quorum", "3", "--old-node", &old]), 0);
    code(&strict(&testbed, 3, "900ms", RUN).output().unwrap(), 69);
    let mut moved = strict(&testbed, 0, "900ms", RUN);
    code(&moved.env("QUORLOCK_NODES", &new).env("QUORLOCK_QUORUM", "3").output().unwrap(), 0);
}

/// Settings that a client tried, and that were never in force, do not ask for nodes of their own.
#[test]
fn what_was_only_tried_is_no_hindrance() {
    let Some(testbed) = Testbed::new("what_was_only_tried_is_no_hindrance") else { return };
    code(&strict(&testbed, 3, "900ms", FRESH).output().unwrap(), 0);
    code(&strict(&testbed, 5, "900ms", RUN).output().unwrap(), 69);
    let adopted = |testbed: &Testbed| get(&testbed.nodes[3], "quorlock:adopt");
    eventually("d is adopted by who tried", || {
        // A disagreement may be seen before d is: then it is not tried there.
        strict(&testbed, 5, "900ms", RUN).output().unwrap();
        adopted(&testbed)
    });
    assert!(adopted(&testbed).unwrap().contains("nodes=a,b,c,d,e"));
    code(&strict(&testbed, 4, "900ms", RECONFIGURE).output().unwrap(), 0);
    code(&strict(&testbed, 4, "900ms", RUN).output().unwrap(), 0);
    // And what a killed run left there is its own: here, of a move to d, e that was then given up.
    let (cluster, rest) = {
        let marker = markers(&testbed)[3].clone();
        let at = marker.find(" run_id=").unwrap();
        (marker[..at].to_owned(), marker[at..].to_owned())
    };
    let left = format!("{cluster} becomes nodes=d,e quorum=2 max_ttl_ms=900{rest}");
    testbed.nodes[3].command(&["SET", "quorlock:node", &left]).unwrap();
    testbed.nodes[4].command(&["SET", "quorlock:node", &format!("{left} came=1")]).unwrap();
    code(&strict(&testbed, 5, "900ms", RECONFIGURE).output().unwrap(), 0);
    assert!(markers(&testbed).iter().all(|marker| marker.contains(" nodes=a,b,c,d,e quorum=3 ")));
}

/// A clock, or a marker, that is far off leaves room for fences.
#[test]
fn a_floor_is_below_the_largest_fence() {
    let Some(testbed) = Testbed::new("a_floor_is_below_the_largest_fence") else { return };
    code(&strict(&testbed, 3, "900ms", FRESH).output().unwrap(), 0);
    let marker = markers(&testbed)[0].clone();
    let (rest, _) = marker.split_at(marker.find(" floor=").unwrap());
    let far = format!("{rest} floor={}", u64::MAX);
    testbed.nodes[0].command(&["SET", "quorlock:node", &far]).unwrap();
    code(&strict(&testbed, 3, "900ms", FRESH).output().unwrap(), 0);
    let floor = format!(" floor={}", (1_u64 << 53) - 1);
    assert!(
        markers(&testbed)[..3].iter().all(|marker| marker.ends_with(&floor)),
        "{:?}",
        markers(&testbed)
    );
    // Where the marker was taken away, the adoption has its floor.
    let adoption = format!("{} wait_ms=2909", markers(&testbed)[0]);
    for node in testbed.nodes.iter().take(3) {
        node.command(&["DEL", "quorlock:node"]).unwrap();
    }
    testbed.nodes[0].command(&["SET", "quorlock:adopt", &adoption, "PX", "172800000"]).unwrap();
    code(&strict(&testbed, 3, "900ms", FRESH).output().unwrap(), 0);
    assert!(markers(&testbed)[..3].iter().all(|marker| marker.ends_with(&floor)));
}

#[test]
fn what_is_not_this_versions_is_not_replaced() {
    let Some(testbed) = Testbed::new("what_is_not_this_versions_is_not_replaced") else { return };
    testbed.nodes[0].command(&["SET", "quorlock:node", "quorlock 2 something new"]).unwrap();
    let refused = strict(&testbed, 5, "900ms", RECONFIGURE).output().unwrap();
    code(&refused, 69);
    assert!(stderr(&refused).contains("not this version's"), "{}", stderr(&refused));
    assert_eq!(get(&testbed.nodes[0], "quorlock:node").unwrap(), "quorlock 2 something new");
    let unknown = strict(&testbed, 5, "900ms", &["run", "k", "--durable", "a,z", "--", "true"]);
    let unknown = { unknown }.output().unwrap();
    code(&unknown, 64);
    assert!(stderr(&unknown).contains("no node has the name \"z\""), "{}", stderr(&unknown));
}
