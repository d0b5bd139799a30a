//! `quorlock init` and the restart guard on real servers. The largest ttl is 900 ms, so the quarantine, in which a new
//! node does not vote, is 2.909 s: the ttl, 1 % of it, and 2 s.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::process::{Command, Output};
use std::time::Duration;

use common::{
    Running, Testbed, boot, code, command, eventually, get, json_lines, stderr, stdout, value,
};
use quorlock_servers::Reply;
use rustix::process::Signal;

const QUARANTINE: Duration = Duration::from_millis(2909);

/// `quorlock` with the first `nodes` nodes, the strict restart guard, and this largest ttl.
fn strict(testbed: &Testbed, nodes: usize, max_ttl: &str, args: &[&str]) -> Command {
    let mut command = testbed.quorlock(args);
    command.env("QUORLOCK_NODES", testbed.named(0..nodes));
    command.env("QUORLOCK_RESTART_GUARD", "strict").env("QUORLOCK_MAX_TTL", max_ttl);
    command
}

/// Runs `quorlock` and asserts its exit code.
fn ends(testbed: &Testbed, nodes: usize, max_ttl: &str, args: &[&str], expected: i32) -> Output {
    let output = strict(testbed, nodes, max_ttl, args).output().unwrap();
    code(&output, expected);
    output
}

fn markers(testbed: &Testbed) -> Vec<String> {
    testbed.nodes.iter().map(|node| get(node, "quorlock:node").unwrap_or_default()).collect()
}

const FRESH: &[&str] = &["init", "--fresh", "--yes"];
const FORCE: &[&str] = &["init", "--fresh", "--yes", "--force"];
const RECONFIGURE: &[&str] = &["init", "--reconfigure", "--yes"];
const RUN: &[&str] = &["run", "k", "--wait", "0s", "--", "echo", "ran"];

#[test]
fn a_call_waits_for_the_quarantine_of_new_servers_unless_its_wait_is_shorter() {
    let Some(testbed) = Testbed::new() else { return };
    let run = |args: &[&str]| {
        strict(&testbed, 5, "900ms", &[&["run", "k"], args].concat()).output().unwrap()
    };
    let start = boot();
    let refused = run(&["--wait", "2s", "--", "true"]);
    code(&refused, 69);
    let said = stderr(&refused);
    assert!(!said.contains("waiting for "), "refused without a wait: {said}");
    for words in
        ["nodes a, b, c, d, e: quarantined: ", "its votes count in 3 s", "quorlock init --fresh"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    let status = || {
        let output = strict(&testbed, 5, "900ms", &["status", "k", "--json"]).output().unwrap();
        json_lines(&stdout(&output)).remove(0)["nodes"].take()
    };
    let e = status()[4].take();
    assert_eq!(e["trust_state"], "quarantined");
    let left = e["votes_count_in_ms"].as_u64().unwrap();
    assert!(left > 0 && u128::from(left) <= QUARANTINE.as_millis(), "{e}");
    let text = stdout(&strict(&testbed, 5, "900ms", &["status", "k"]).output().unwrap());
    assert!(text.contains("\n  nodes a, b, c, d, e: quarantined: "), "{text}");

    // The first call started the quarantine, so this call waits for the rest of it.
    let waited = run(&["--wait", "20s", "--", "echo", "ran"]);
    code(&waited, 0);
    assert!(boot() - start >= QUARANTINE);
    let said = stderr(&waited);
    assert!(said.contains("waiting for ") && said.contains("votes count in "), "{said}");
    // Three votes are a quorum, so the command may have ended before the other two nodes were taken into use.
    let nodes = status();
    let trusted = nodes.as_array().unwrap().iter().filter(|it| it["trust_state"] == "trusted");
    assert!(trusted.count() >= 3, "{nodes}");
    code(&run(&["--wait", "0s", "--", "true"]), 0);
}

#[test]
fn an_observing_guard_warns_about_votes_of_untrusted_nodes() {
    let Some(testbed) = Testbed::new() else { return };
    ends(&testbed, 5, "30s", FRESH, 0);
    let run = |args: &[&str]| {
        let mut command = strict(&testbed, 5, "30s", &[&["run", "k"], args].concat());
        command.env("QUORLOCK_RESTART_GUARD", "observe").output().unwrap()
    };
    let said = |output: Output| {
        code(&output, 0);
        stderr(&output)
    };
    assert_eq!(said(run(&["--", "true"])), "");
    // Three nodes lose their markers. The two others, whose votes count, are no quorum, so `run` warns.
    testbed.on(0..3, &["DEL", "quorlock:node"]);
    let told = said(run(&["--", "true"]));
    assert!(told.contains("\"k\" is held, but votes count of nodes that are not"), "{told}");
    assert!(
        told.contains("quarantined: is new under these settings, or has lost its data"),
        "{told}"
    );
    assert_eq!(said(run(&["--quiet", "--", "true"])), "");
    let events = said(run(&["--json", "--", "true"]));
    let acquired = json_lines(&events).remove(0);
    assert_eq!(acquired["event"], "acquired");
    let nodes = acquired["untrusted_nodes"].as_array().unwrap();
    assert!(!nodes.is_empty() && nodes.iter().all(|node| node["why"].is_string()), "{acquired}");
}

#[test]
fn a_lock_lost_by_a_change_of_settings_names_the_cause_and_the_doctor() {
    let Some(testbed) = Testbed::new() else { return };
    ends(&testbed, 5, "4s", FRESH, 0);
    let hold = ["run", "k", "--ttl", "1s", "--", "sleep", "30"];
    let run = Running::start(&mut strict(&testbed, 5, "4s", &hold));
    eventually("the lock is held", || get(&testbed.nodes[0], "k"));
    ends(&testbed, 5, "3s", FORCE, 0);
    let lost = run.end();
    code(&lost, 79);
    let said = stderr(&lost);
    assert!(said.contains("quorlock doctor): a, b, c, d, e: another configuration"), "{said}");
}

#[test]
fn status_and_doctor_write_nothing() {
    let Some(testbed) = Testbed::new() else { return };
    // None of the new nodes votes yet, so `status` cannot tell whether the lock is free, and `doctor` finds errors.
    for (args, expected) in
        [(&["status", "k"][..], 69), (&["doctor"], 2), (&["doctor", "--json"], 2)]
    {
        ends(&testbed, 5, "900ms", args, expected);
    }
    for node in testbed.nodes.iter() {
        assert_eq!(command(node, &["DBSIZE"]), Reply::Int(0));
    }
}

#[test]
fn init_fresh_says_what_the_replica_lacks() {
    let Some(testbed) = Testbed::new() else { return };
    let node = format!("a={}?replicas=1", testbed.nodes[0].url());
    let output = strict(&testbed, 1, "30s", FRESH).env("QUORLOCK_NODES", node).output().unwrap();
    code(&output, 69);
    let said = stderr(&output);
    let expected =
        "node a: written on the master, but not yet acknowledged: 0 of 1 replicas have the change";
    assert!(said.contains(expected) && said.contains("run the same command again"), "{said}");
    assert!(!markers(&testbed)[0].is_empty());
}

#[test]
fn init_fresh_replaces_the_quarantine() {
    let Some(testbed) = Testbed::new() else { return };
    let unsaid = ends(&testbed, 5, "30s", &["init", "--fresh"], 64);
    assert!(stderr(&unsaid).contains("--yes") && markers(&testbed)[0].is_empty());
    testbed.nodes[4].kill().unwrap();
    let done = ends(&testbed, 5, "30s", FRESH, 0);
    let said = stderr(&done);
    assert!(
        said.contains("nodes a, b, c, d: votes count\n")
            && said.contains("node e: nothing was done"),
        "{said}"
    );
    ends(&testbed, 5, "30s", RUN, 0);

    // The fencing token of each lock is larger than that of the lock before.
    let fence = || {
        let args = ["run", "k", "--fenced", "--", "sh", "-c", "echo $QUORLOCK_FENCE"];
        stdout(&strict(&testbed, 5, "30s", &args).output().unwrap()).trim().parse::<u64>().unwrap()
    };
    let (first, second) = (fence(), fence());
    assert!(first > 0 && second > first, "{first} {second}");
    let none = ["run", "k", "--", "sh", "-c", "echo ${QUORLOCK_FENCE-none}"];
    let none = strict(&testbed, 5, "30s", &none).env("QUORLOCK_FENCE", "7").output().unwrap();
    assert_eq!(stdout(&none), "none\n");

    // With fewer nodes than a quorum, init writes nothing.
    testbed.nodes[3].kill().unwrap();
    testbed.nodes[2].kill().unwrap();
    let before = get(&testbed.nodes[0], "quorlock:node");
    let refused = ends(&testbed, 5, "30s", FRESH, 69);
    let said = stderr(&refused);
    assert!(
        said.contains("2 of 5 nodes can be used, but 3 must; make the others usable"),
        "{said}"
    );
    assert_eq!(get(&testbed.nodes[0], "quorlock:node"), before);
}

#[test]
fn three_nodes_become_five() {
    let Some(testbed) = Testbed::new() else { return };
    ends(&testbed, 3, "900ms", FRESH, 0);
    ends(&testbed, 3, "900ms", RUN, 0);
    let other = ends(&testbed, 5, "900ms", RUN, 69);
    let said = stderr(&other);
    assert!(said.contains("nodes=a,b,c ") && said.contains("nodes=a,b,c,d,e "), "{said}");

    let start = boot();
    let done = ends(&testbed, 5, "900ms", RECONFIGURE, 0);
    assert!(boot() - start >= QUARANTINE);
    let said = stderr(&done);
    let count = said.lines().next().unwrap();
    // The whole line must fit on a terminal.
    assert!(count.len() < 79 && count.contains("; Ctrl-C is safe"), "{count}");
    let time = count.strip_prefix("quorlock: ").unwrap();
    assert!(time.starts_with(|first: char| first.is_ascii_digit()), "{count}");
    assert!(markers(&testbed).iter().all(|marker| marker.contains(" nodes=a,b,c,d,e quorum=3 ")));
    ends(&testbed, 5, "900ms", RUN, 0);
    // Clients with the old settings get no votes.
    ends(&testbed, 3, "900ms", RUN, 69);
    let again = ends(&testbed, 5, "900ms", RECONFIGURE, 0);
    assert!(stderr(&again).contains("counted before"), "{}", stderr(&again));
}

/// A change of the settings makes each node wait before it votes. The larger one of the old and the new largest ttl
/// determines this wait, which continues after the command that began it was interrupted.
#[test]
fn an_interrupted_change_is_finished_by_a_client_or_a_second_run() {
    let Some(testbed) = Testbed::new() else { return };
    ends(&testbed, 5, "2s", FRESH, 0);
    let start = boot();
    let run = Running::start(&mut strict(&testbed, 5, "900ms", RECONFIGURE));
    eventually("every node is adopted", || {
        testbed.nodes.iter().all(|node| get(node, "quorlock:adopt").is_some()).then_some(())
    });
    assert!(get(&testbed.nodes[0], "quorlock:adopt").unwrap().contains(" wait_ms=4020"));
    run.signal(Signal::INT);
    let output = run.end();
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    assert!(!output.status.success() && markers(&testbed)[0].is_empty());

    ends(&testbed, 5, "2s", RUN, 69);
    let wait = ["run", "k", "--wait", "20s", "--", "true"];
    let client = Running::start(&mut strict(&testbed, 5, "900ms", &wait));
    ends(&testbed, 5, "900ms", RECONFIGURE, 0);
    code(&client.end(), 0);
    // The wait is 2 s × 1.01 + 2 s: the largest ttl, 1 % of it, and 2 s.
    assert!(boot() - start >= Duration::from_millis(4020));
}

/// A reconfiguration would end the job: its lock could not be extended any more.
#[test]
fn a_reconfiguration_does_not_stop_a_running_job_without_force() {
    let Some(testbed) = Testbed::new() else { return };
    ends(&testbed, 3, "900ms", FRESH, 0);
    let before = markers(&testbed);
    let hold = ["run", "held", "--ttl", "800ms", "--", "sleep", "30"];
    let mut job = Running::start(&mut strict(&testbed, 3, "900ms", &hold));
    eventually("the lock is held", || get(&testbed.nodes[0], "held"));
    let refused = ends(&testbed, 5, "900ms", RECONFIGURE, 75);
    let said = stderr(&refused);
    let process = format!(":{} is connected (to a, b, c)", job.id());
    for words in [
        "nothing was changed: a lock is in use; wait until it has ended, or give --force, which ends the work",
        "\"held\" in database 0 is held by",
        &process,
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(markers(&testbed) == before && job.is_running());
    // A client of the new list gets the command with the same warning.
    let other = stderr(&ends(&testbed, 5, "900ms", RUN, 69));
    assert!(
        other.contains("run this (refused while clients are connected; --force stops"),
        "{other}"
    );

    // A process without a lock may be about to take one.
    job.signal(Signal::TERM);
    job.end();
    testbed.on(0..3, &["SET", "k", &value(1, "h:1"), "PX", "100000"]);
    let waiting = ["run", "k", "--wait", "60s", "--", "true"];
    let waiting = Running::start(&mut strict(&testbed, 3, "900ms", &waiting));
    waiting.await_line("waiting for");
    testbed.on(0..3, &["PERSIST", "k"]);
    let said = stderr(&ends(&testbed, 5, "900ms", RECONFIGURE, 75));
    assert!(said.contains("a client that takes locks is connected; stop it, or"), "{said}");
    drop(waiting);
    testbed.on(0..3, &["DEL", "k"]);

    let job = Running::start(&mut strict(&testbed, 3, "900ms", &hold));
    eventually("the lock is held again", || get(&testbed.nodes[0], "held"));
    let force = [RECONFIGURE, &["--force"]].concat();
    let said = stderr(&ends(&testbed, 5, "900ms", &force, 0));
    assert!(said.contains("a lock is in use; --force goes on"), "{said}");
    code(&job.end(), 79);
    ends(&testbed, 5, "900ms", RUN, 0);
}

/// A client with the new settings may have marked the new nodes already. These nodes wait again, because locks of
/// clients with the old settings have not expired.
#[test]
fn new_nodes_with_a_marker_wait_during_a_reconfiguration() {
    let Some(testbed) = Testbed::new() else { return };
    // A marker shows that a node lost no data. Nodes b and c get the markers of a client with the new settings.
    ends(&testbed, 3, "900ms", FRESH, 0);
    ends(&testbed, 1, "4s", FORCE, 0);
    let hold = ["run", "k", "--ttl", "4s", "--", "sleep", "30"];
    let old = Running::start(&mut strict(&testbed, 1, "4s", &hold));
    eventually("the old client has the lock", || get(&testbed.nodes[0], "k"));
    let force = [RECONFIGURE, &["--force"]].concat();
    let moving = Running::start(&mut strict(&testbed, 3, "900ms", &force));
    eventually("a does not vote for the old client", || get(&testbed.nodes[0], "quorlock:adopt"));
    for node in &testbed.nodes[1..3] {
        let adoption = eventually("the node is adopted", || get(node, "quorlock:adopt"));
        assert!(adoption.contains(" wait_ms=6040"));
        assert_eq!(get(node, "quorlock:node"), None, "no vote while the old lock is held");
    }
    assert!(!strict(&testbed, 3, "900ms", RUN).output().unwrap().status.success());
    old.signal(Signal::TERM);
    old.end();
    code(&moving.end(), 0);
    ends(&testbed, 3, "900ms", RUN, 0);
}

/// `quorlock` with this value of `QUORLOCK_NODES`.
fn with(testbed: &Testbed, nodes: &str, args: &[&str]) -> Output {
    strict(testbed, 0, "900ms", args).env("QUORLOCK_NODES", nodes).output().unwrap()
}

fn reconfigure(testbed: &Testbed, nodes: &str, more: &[&str]) -> Output {
    with(testbed, nodes, &[RECONFIGURE, more].concat())
}

/// Writes a marker, like an `init` that is killed right after that.
fn mark(testbed: &Testbed, place: usize, marker: &str) {
    testbed.on(place..place + 1, &["SET", "quorlock:node", marker]);
}

/// Splits a marker into its settings and the rest.
fn parts(marker: &str) -> (&str, &str) {
    marker.split_at(marker.find(" run_id=").unwrap())
}

#[test]
fn a_reconfiguration_needs_so_many_old_nodes_that_the_others_are_no_quorum() {
    let Some(testbed) = Testbed::new() else { return };
    ends(&testbed, 3, "900ms", FRESH, 0);
    // The nodes change from a, b, c to a, d, e. Nodes b and c could still grant locks to the old clients.
    let urls = testbed.nodes.urls();
    let new = format!("a={},d={},e={}", urls[0], urls[3], urls[4]);
    let before = markers(&testbed);
    let refused = reconfigure(&testbed, &new, &[]);
    code(&refused, 69);
    let said = stderr(&refused);
    assert!(said.contains("2 of the nodes that vote for"), "{said}");
    assert!(
        said.contains("with the URLs of at least 1 of b, c (nodes of the old list): quorlock init"),
        "{said}"
    );
    assert_eq!(markers(&testbed), before);

    // Simulates a reconfiguration that was killed before it reached node b. By then node a votes for no client.
    let (cluster, rest) = parts(&before[0]);
    let blocked = format!("{cluster} becomes nodes=a,d,e quorum=2 max_ttl_ms=900{rest}");
    mark(&testbed, 0, &blocked);
    code(&reconfigure(&testbed, &new, &[]), 69);
    assert_eq!(markers(&testbed)[0], blocked);
    testbed.nodes[1].kill().unwrap();
    ends(&testbed, 3, "900ms", RUN, 69);
    testbed.nodes[1].restart().unwrap();

    let done = reconfigure(&testbed, &new, &["--old-node", &format!("c={}", urls[2])]);
    code(&done, 0);
    let said = stderr(&done);
    assert!(said.contains("node c: taken out of use, with a vote for no client"), "{said}");
    let after = markers(&testbed);
    for place in [0, 3, 4] {
        assert!(after[place].contains("nodes=a,d,e quorum=2 max_ttl_ms=900 run_id="), "{after:?}");
    }
    assert!(after[2].contains(" becomes nodes=a,d,e ") && after[1].is_empty(), "{after:?}");
}

/// Old and new nodes are disjoint sets. If `init` did not ask the old nodes, both sets would grant the same locks.
#[test]
fn a_reconfiguration_onto_other_nodes_needs_the_old_nodes() {
    let Some(testbed) = Testbed::new() else { return };
    let urls = testbed.nodes.urls();
    let old = format!("a={},b={}", urls[0], urls[1]);
    let new = format!("x={},y={},z={}", urls[2], urls[3], urls[4]);
    code(&with(&testbed, &old, FRESH), 0);
    let refused = reconfigure(&testbed, &new, &[]);
    code(&refused, 69);
    assert!(stderr(&refused).contains("ever marked for other nodes"), "{}", stderr(&refused));
    assert_eq!(command(&testbed.nodes[2], &["DBSIZE"]), Reply::Int(0));
    // A client with the new settings writes `quorlock:adopt`, which begins a node's wait before it votes. The
    // reconfiguration still needs the old nodes. A call may end before that write, so the test repeats the call.
    eventually("a node is adopted", || {
        code(&with(&testbed, &new, RUN), 69);
        testbed.nodes[2..].iter().find_map(|node| get(node, "quorlock:adopt"))
    });
    code(&reconfigure(&testbed, &new, &[]), 69);
    code(&with(&testbed, &old, RUN), 0);

    code(&reconfigure(&testbed, &new, &["--old-node", &format!("a={}", urls[0])]), 0);
    code(&with(&testbed, &new, RUN), 0);
    code(&with(&testbed, &old, RUN), 69);
    code(&reconfigure(&testbed, &new, &[]), 0);
    // Simulates a reconfiguration that was interrupted after it took the last old node out of use.
    for (node, marker) in testbed.nodes.iter().zip(markers(&testbed)).skip(2) {
        command(node, &["DEL", "quorlock:node"]);
        let adoption = format!("{marker} wait_ms=2909 moved=1");
        command(node, &["SET", "quorlock:adopt", &adoption, "PX", "172800000"]);
    }
    code(&reconfigure(&testbed, &new, &[]), 0);
    code(&with(&testbed, &new, RUN), 0);
}

/// A server with an old node's name and another address does not know the locks of the old node.
#[test]
fn a_new_server_with_the_name_of_an_old_node_does_not_count_as_the_old_node() {
    let Some(testbed) = Testbed::new() else { return };
    ends(&testbed, 3, "900ms", FRESH, 0);
    let urls = testbed.nodes.urls();
    // The servers of nodes a and c change. The old servers still form a quorum for old clients, so `init` refuses.
    let new = format!("a={},b={},c={}", urls[3], urls[1], urls[4]);
    let before = markers(&testbed);
    let refused = reconfigure(&testbed, &new, &["--quorum", "3"]);
    code(&refused, 69);
    let said = stderr(&refused);
    assert!(said.contains("what answers as a, c has no marker of theirs"), "{said}");
    assert_eq!(markers(&testbed), before);
    // A killed reconfiguration may have left a marker on the new server of node a. The server still does not count as
    // the old node.
    let (cluster, rest) = parts(&before[1]);
    let came = format!("{cluster} becomes nodes=a,b,c quorum=3 max_ttl_ms=900{rest} came=1");
    mark(&testbed, 3, &came);
    code(&reconfigure(&testbed, &new, &["--quorum", "3"]), 69);

    let old = format!("a={}", urls[0]);
    // If old and new settings were equal, a node could not distinguish the old clients from the new ones.
    let same = reconfigure(&testbed, &new, &["--old-node", &old]);
    code(&same, 78);
    assert!(stderr(&same).contains("give the new one another name"), "{}", stderr(&same));
    code(&reconfigure(&testbed, &new, &["--quorum", "3", "--old-node", &old]), 0);
    ends(&testbed, 3, "900ms", RUN, 69);
    let mut moved = strict(&testbed, 0, "900ms", RUN);
    code(&moved.env("QUORLOCK_NODES", &new).env("QUORLOCK_QUORUM", "3").output().unwrap(), 0);
}

/// A client that started too early has marked a new server. The server does not count as an old node that is silent: by
/// its name if the operator has named the server of that node, or by an address that leads to it now.
#[test]
fn a_marked_new_server_does_not_count_as_a_silent_old_node() {
    for is_named in [true, false] {
        let Some(testbed) = Testbed::new() else { return };
        let urls = testbed.nodes.urls();
        let (old, place) = match is_named {
            true => (testbed.named(0..3), 3),
            false => (urls[..3].join(","), 2),
        };
        code(&with(&testbed, &old, FRESH), 0);
        let before = get(&testbed.nodes[0], "quorlock:node").unwrap();
        let (_, rest) = parts(&before);
        mark(&testbed, place, &format!("quorlock 1 nodes=a,b,c quorum=2 max_ttl_ms=1000{rest}"));
        match is_named {
            true => testbed.nodes[1..3].iter().for_each(|node| node.kill().unwrap()),
            false => testbed.nodes[1].pause().unwrap(),
        }
        let new = format!("a={},b={},c={}", urls[0], urls[1], urls[place]);
        let given = format!("c={}", urls[2]);
        let silent: &[&str] = if is_named { &["--old-node", &given] } else { &[] };
        let change = |more: &[&str]| {
            let mut change = strict(&testbed, 0, "1s", &[RECONFIGURE, more].concat());
            change.env("QUORLOCK_NODES", &new).env("QUORLOCK_NODE_TIMEOUT", "200ms");
            change.output().unwrap()
        };
        let refused = change(silent);
        code(&refused, 69);
        let said = stderr(&refused);
        assert!(said.contains("2 of the nodes that vote for") && said.contains("1 did"), "{said}");
        assert_eq!(get(&testbed.nodes[0], "quorlock:node").unwrap(), before);
        if !is_named {
            // The server is the old node, and the operator says so. The same goes for the others once they are marked.
            let command = said.split("the command at the end is right").nth(1).unwrap();
            assert!(command.contains(&format!(" --old-node {}", urls[2])), "{said}");
            code(&change(&["--old-node", &urls[2]]), 0);
            testbed.nodes[1].resume().unwrap();
            code(&change(&[]), 69);
            code(&change(&["--old-node", &urls[0]]), 0);
            assert!(markers(&testbed)[1].contains(" nodes=a,b,c quorum=2 max_ttl_ms=1000 "));
        }
    }
}

#[test]
fn an_adoption_for_settings_that_were_never_in_force_does_not_block_a_reconfiguration() {
    let Some(testbed) = Testbed::new() else { return };
    ends(&testbed, 3, "900ms", FRESH, 0);
    // A client with a list of five nodes has heard node d before the others.
    let adoption = markers(&testbed)[0].replace("a,b,c quorum=2", "a,b,c,d,e quorum=3");
    let adoption = format!("{adoption} wait_ms=2909");
    testbed.on(3..4, &["SET", "quorlock:adopt", &adoption, "PX", "172800000"]);
    ends(&testbed, 5, "900ms", RUN, 69);
    ends(&testbed, 4, "900ms", RECONFIGURE, 0);
    ends(&testbed, 4, "900ms", RUN, 0);
    // A killed reconfiguration to nodes d and e may have left these markers. They must not block the next
    // reconfiguration.
    let marker = markers(&testbed)[3].clone();
    let (cluster, rest) = parts(&marker);
    let left = format!("{cluster} becomes nodes=d,e quorum=2 max_ttl_ms=900{rest}");
    mark(&testbed, 3, &left);
    mark(&testbed, 4, &format!("{left} came=1"));
    ends(&testbed, 5, "900ms", RECONFIGURE, 0);
    assert!(markers(&testbed).iter().all(|marker| marker.contains(" nodes=a,b,c,d,e quorum=3 ")));
}

/// The floor, a node's smallest fencing token, stays below the limit of tokens even if a marker has a floor far ahead.
#[test]
fn a_floor_leaves_room_for_fencing_tokens() {
    let Some(testbed) = Testbed::new() else { return };
    ends(&testbed, 3, "900ms", FRESH, 0);
    let marker = markers(&testbed)[0].clone();
    let (settings, _) = marker.split_at(marker.find(" floor=").unwrap());
    mark(&testbed, 0, &format!("{settings} floor={}", u64::MAX));
    ends(&testbed, 3, "900ms", FRESH, 0);
    let floor = format!(" floor={}", (1_u64 << 53) - 1);
    let has_floor = |markers: &[String]| markers[..3].iter().all(|it| it.ends_with(&floor));
    assert!(has_floor(&markers(&testbed)), "{:?}", markers(&testbed));
    // If no node has a marker, `init` takes the floor, the smallest fencing token, from the text of `quorlock:adopt`.
    let adoption = format!("{} wait_ms=2909", markers(&testbed)[0]);
    testbed.on(0..3, &["DEL", "quorlock:node"]);
    testbed.on(0..1, &["SET", "quorlock:adopt", &adoption, "PX", "172800000"]);
    ends(&testbed, 3, "900ms", FRESH, 0);
    assert!(has_floor(&markers(&testbed)), "{:?}", markers(&testbed));
}

#[test]
fn a_marker_of_a_later_version_is_not_replaced() {
    let Some(testbed) = Testbed::new() else { return };
    mark(&testbed, 0, "quorlock 2 something new");
    let refused = ends(&testbed, 5, "900ms", RECONFIGURE, 69);
    assert!(stderr(&refused).contains("not this version's"), "{}", stderr(&refused));
    assert_eq!(markers(&testbed)[0], "quorlock 2 something new");
}
