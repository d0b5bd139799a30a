//! Cancellation: every public future of the library is dropped after k polls, for every k until it completes, in
//! virtual time, against nodes that are healthy, silent, refusing, failing or down. The invariants S13
//! to S15 of docs/algorithm.md must hold (`journal.rs`, `watch.rs`), and no key may stay (`scene.rs`).
//!
//! There are two patterns of polling and two moments for the drop, see `polls.rs`. The test prints how often it dropped
//! each function's future; the number must not be zero.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod functions;
mod journal;
mod node_fault;
mod polls;
mod public;
mod scene;
mod watch;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use functions::{ALL, Case};
use node_fault::NodeFault;
use polls::PollPattern;
use scene::Scene;

/// The number of polls after which a future counts as hanging.
const POLLS_MAX: usize = 2_000;

/// Drops the future after 0, 1, 2 … polls, until it completes before the drop. Returns the number of drops.
fn sweep(case: &Case, node_fault: NodeFault, pattern: PollPattern) -> usize {
    for polls in 0..POLLS_MAX {
        // With `event_interval(1)`, no other task is polled more than once between two polls of this task.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .event_interval(1)
            .build();
        let one = async { one_drop(case, node_fault, pattern, polls).await };
        let completed = catch_unwind(AssertUnwindSafe(|| runtime.unwrap().block_on(one)))
            .unwrap_or_else(|panic| {
                eprintln!("{case}, {node_fault:?}, {pattern:?}, dropped after {polls} polls:");
                resume_unwind(panic)
            });
        if completed {
            return polls;
        }
    }
    panic!("{case}, {node_fault:?}, {pattern:?}: not done after {POLLS_MAX} polls")
}

/// Returns whether the future completed before it could be dropped.
async fn one_drop(case: &Case, node_fault: NodeFault, pattern: PollPattern, polls: usize) -> bool {
    let scene = Scene::new(node_fault);
    (case.prepare)(scene.clone()).await;
    node_fault.begin(&scene.nodes);
    let call = (case.call)(scene.clone());
    let unfinished = polls::polled(call, pattern, polls, || scene.look()).await;
    let completed = unfinished.is_none();
    node_fault.begin_at_drop(&scene.nodes);
    drop(unfinished);
    scene.finish().await;
    completed
}

#[test]
fn a_future_dropped_after_any_poll_leaves_no_key() {
    let mut sweeps = Vec::new();
    for case in ALL {
        for node_fault in NodeFault::ALL {
            PollPattern::ALL.iter().for_each(|pattern| sweeps.push((case, node_fault, *pattern)));
        }
    }
    let (next, drops) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((case, node_fault, pattern)) =
                    sweeps.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let count =
                        catch_unwind(AssertUnwindSafe(|| sweep(case, **node_fault, *pattern)))
                            .unwrap_or_else(|panic| {
                                // After a failure, the threads start no other sweep.
                                next.store(sweeps.len(), Ordering::Relaxed);
                                resume_unwind(panic)
                            });
                    *drops.lock().unwrap().entry((case.function, **node_fault)).or_insert(0) +=
                        count;
                }
            });
        }
    });
    let drops: BTreeMap<(&str, NodeFault), usize> = drops.into_inner().unwrap();
    for function in functions::names() {
        let by_fault =
            NodeFault::ALL.map(|node_fault| (node_fault, drops[&(function, node_fault)]));
        let total: usize = by_fault.iter().map(|(_, count)| count).sum();
        println!("{function}: dropped {total} times {by_fault:?}");
        for (node_fault, count) in by_fault {
            assert!(count > 0, "{function} was never dropped with {node_fault:?} nodes");
        }
    }
    println!("{} drops in all", drops.values().sum::<usize>());
    let given_back = scene::GIVEN_BACK.load(Ordering::Relaxed);
    assert!(given_back > 0, "no dropped attach gave its lease back");
}

#[test]
fn no_public_future_of_the_library_is_left_out() {
    let swept: Vec<String> = functions::names().into_iter().map(str::to_owned).collect();
    assert_eq!(public::futures_of_the_library(), swept, "in the library, and in functions.rs");
}
