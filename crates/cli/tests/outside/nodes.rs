//! Scenes about nodes: failures, `doctor`, and changes by an operator (`init`).

use expect_test::expect_file;

use crate::common::command;
use crate::scene::{Scene, UNTIL_GO};

#[test]
fn a_lock_without_a_holder_of_a_quorum() {
    let Some(mut scene) = Scene::new(3) else { return };
    for (node, value) in ["x", "y", "z"].iter().enumerate() {
        drop(command(&scene.testbed.nodes[node], &["SET", "k", value, "PX", "60000"]));
    }
    scene.each(["status k", "status k --json"]);
    scene.compare(&expect_file!["split.txt"]);
}

#[test]
fn nodes_that_are_down() {
    let Some(mut scene) = Scene::new(3) else { return };
    scene.say("one node is down");
    scene.testbed.nodes[0].kill().unwrap();
    scene.each(["run k -- echo ran", "status k"]);
    scene.say("two nodes are down");
    scene.testbed.nodes[1].kill().unwrap();
    scene.each(["status k", "status k --json", "doctor", "init --fresh --yes"]);
    scene.say("all nodes are down");
    scene.testbed.nodes[2].kill().unwrap();
    scene.each([
        "run k --wait 0s -- true",
        "run k --wait 0s --json -- true",
        "run k --wait 0s --status-fd 1 -- true",
    ]);
    scene.compare(&expect_file!["down.txt"]);
}

#[test]
fn a_node_that_is_taken_into_use() {
    let Some(mut scene) = Scene::new(1) else { return };
    scene.testbed.guard = "strict";
    scene.each([
        "doctor",
        "run k --wait 0s -- true",
        "run k --wait 0s --json -- true",
        "status k",
        "doctor --notes",
        "doctor --json",
        "init --fresh --yes",
        "doctor",
        "run k --wait 0s --status-fd 1 -- true",
        "run k --wait 0s --max-ttl 20s -- true",
        "run k --wait 0s -n b=redis://127.0.0.1:1 -- true",
        "init --reconfigure",
        "doctor --acl locker",
        "doctor --systemd",
    ]);
    scene.say("it loses its data");
    scene.testbed.on(0..1, &["FLUSHALL"]);
    scene.each(["run k --wait 0s -- true"]);
    scene.compare(&expect_file!["guard.txt"]);
}

#[test]
fn nodes_that_get_other_settings() {
    let Some(mut scene) = Scene::new(3) else { return };
    (scene.testbed.guard, scene.node_timeout) = ("strict", "250ms");
    scene.each([
        "init --fresh --yes --max-ttl 1s",
        "init --reconfigure --yes --max-ttl 2s",
        "run k --max-ttl 2s -- echo ran",
    ]);
    scene.compare(&expect_file!["reconfigure.txt"]);
}

#[test]
fn doctor_on_three_nodes() {
    let Some(mut scene) = Scene::new(3) else { return };
    scene.testbed.guard = "strict";
    scene.each(["init --fresh --yes --quiet", "doctor", "doctor --quiet", "doctor --notes"]);
    scene.say("a node has a memory limit");
    scene.testbed.on(0..1, &["CONFIG", "SET", "maxmemory", "100mb"]);
    scene.each(["doctor"]);
    scene.say("and deletes keys when it is full; another one lost its data; the user of the third may not do everything");
    scene.testbed.on(0..1, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    scene.testbed.on(1..2, &["FLUSHALL"]);
    scene.testbed.on(2..3, &["ACL", "SETUSER", "default", "-eval", "-getrange"]);
    scene.each([
        "doctor",
        "doctor --quiet",
        "doctor --json",
        "status k",
        "run k --wait 0s -- true",
        "run k --wait 0s --json -- true",
        "init --fresh --yes",
    ]);
    scene.compare(&expect_file!["doctor.txt"]);
}

#[test]
fn init_and_its_questions() {
    let Some(mut scene) = Scene::new(3) else { return };
    scene.testbed.guard = "strict";
    scene.each([
        "init --fresh",
        "init --fresh --yes",
        "init --fresh --yes --json",
        "init --fresh --yes --quiet",
        "init --fresh --max-ttl 20s",
        "init --fresh --max-ttl 20s --yes",
        "init --fresh --quorum 3 --yes",
        "init --fresh --quorum 3 --yes --force",
        "doctor",
    ]);
    scene.say("a lock is held");
    let held = ["run", "held", "--quorum", "3", "--label", "nightly", "--", "sh", "-c", UNTIL_GO];
    let running = scene.start(&held);
    scene.each(["init --fresh --quorum 3 --yes", "init --fresh --quorum 3 --yes --force"]);
    scene.go();
    scene.note(&held, &running.end());
    scene.compare(&expect_file!["init.txt"]);
}
