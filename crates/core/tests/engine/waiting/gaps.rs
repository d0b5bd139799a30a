//! Waiting calls leave gaps (times without an attempt) in which clients of other libraries, which poll, get the lock.

use super::*;

const NODES: usize = 3;

/// A foreign client. It tries when it calls, and then every 200 ms, as redlock-py does. It calls again 5 ms after a release,
/// because it sends its commands to one node after the other.
struct Poller {
    asked: i64,
    tries_at: i64,
    holds_until: Option<i64>,
    grants: usize,
    longest_wait: i64,
}

impl Poller {
    const HOLD: i64 = 5;

    fn step(&mut self, world: &mut ScriptedWorld, now: i64) {
        if self.holds_until.is_some_and(|until| until <= now) {
            (0..NODES).for_each(|node| world.forget_key(node, "k"));
            self.holds_until = None;
            (self.asked, self.tries_at) = (now, now + 5);
        }
        if self.holds_until.is_some() || self.tries_at > now {
            return;
        }
        self.tries_at = now + 200;
        self.longest_wait = self.longest_wait.max(now - self.asked);
        if (0..NODES).all(|node| !world.has(node, "k")) {
            (0..NODES).for_each(|node| world.occupy(node, "k", b"a poller", Some(10_000)));
            self.holds_until = Some(now + Self::HOLD);
            self.grants += 1;
        }
    }
}

/// Three pollers and three clients want one lock for 12 s, and hold it for 5 ms. Returns the grants of each side, and the
/// longest wait of a poller in milliseconds.
fn contend(request: &Request) -> (usize, usize, i64) {
    const CLIENTS: usize = 3;
    const END: i64 = 12_000;
    let mut world = ScriptedWorld::with(CLIENTS, Quorum::majority(NODES).expect("there are nodes"));
    world.set_jitter(None);
    let poller =
        |at| Poller { asked: 0, tries_at: at, holds_until: None, grants: 0, longest_wait: 0 };
    let mut pollers = [1, 60, 130].map(poller);
    let mut locks: Vec<(LockId, Option<i64>)> = Vec::new();
    let mut grants = 0;
    for now in 0..END {
        world.run_until(now);
        if now < CLIENTS as i64 {
            locks.push((world.acquire_by(now as usize, request.clone()), None));
        }
        pollers.iter_mut().for_each(|poller| poller.step(&mut world, now));
        for (client, (lock, release_at)) in locks.iter_mut().enumerate() {
            match release_at {
                Some(at) if *at <= now => {
                    world.release(*lock, false);
                    (*lock, *release_at) = (world.acquire_by(client, request.clone()), None);
                    grants += 1;
                }
                None if world.find(*lock).is_some() => *release_at = Some(now + Poller::HOLD),
                _ => {}
            }
        }
    }
    assert_eq!(world.overlaps(), 0);
    let longest_wait = pollers.iter().map(|it| it.longest_wait.max(END - it.asked)).max();
    (pollers.iter().map(|it| it.grants).sum(), grants, longest_wait.unwrap_or_default())
}

#[test]
fn clients_that_poll_get_their_share_within_three_seconds() {
    let (foreign, ours, longest_wait) = contend(&request("k"));
    let all = foreign + ours;
    assert!(foreign * 10 >= all && ours * 10 >= all, "{foreign} and {ours}");
    assert!(longest_wait <= 3000, "{longest_wait}");
    // Without gaps, the pollers' share of the grants is less than half of their share with gaps.
    let (foreign_without, ours_without, _) =
        contend(&Request { yields_to_pollers: false, ..request("k") });
    let all_without = foreign_without + ours_without;
    assert!(2 * foreign_without * all < foreign * all_without, "{foreign_without}, {ours_without}");
}

/// A world in which the client has seen a foreign client hold the lock, at the beginning of a gap.
fn in_a_gap() -> ScriptedWorld {
    let mut world = ScriptedWorld::new(NODES);
    (0..NODES).for_each(|node| world.occupy(node, "k", b"a poller", Some(10_000)));
    let call = world.acquire(request("k"));
    world.run_for(10);
    (0..NODES).for_each(|node| world.forget_key(node, "k"));
    world.run_for(10);
    assert!(world.is_valid(call), "the foreign client has had its turn, so there is no gap");
    world.release(call, false);
    // The call `probe` shows whether a gap has begun: during a gap, this call does not get the free lock.
    for _ in 0..100 {
        let probe = world.acquire(request("k"));
        world.run_for(10);
        if world.find(probe).is_none() {
            world.cancel(probe);
            return world;
        }
        world.release(probe, false);
    }
    panic!("no gap in a second");
}

/// Runs for `after_ms` milliseconds. Then the call must have the lock.
fn finish_with(mut world: ScriptedWorld, call: LockId, after_ms: i64) {
    world.run_for(after_ms);
    assert!(world.is_valid(call));
    world.finish();
}

/// Every gap ends within this number of milliseconds.
const GAP_MS: i64 = 260;

#[test]
fn a_call_in_a_gap_looks_at_the_lock_and_attempts_after_the_gap() {
    let mut world = in_a_gap();
    let call = world.acquire(request("k"));
    world.run_for(50);
    assert!(world.sent(call, Verb::Acquire, 0).is_empty());
    assert!(!world.sent(call, Verb::Inspect, 0).is_empty());
    finish_with(world, call, GAP_MS);
}

#[test]
fn a_call_attempts_as_soon_as_a_foreign_client_has_had_the_gap() {
    let mut world = in_a_gap();
    let call = world.acquire(request("k"));
    world.run_for(20);
    (0..NODES).for_each(|node| world.occupy(node, "k", b"a poller", Some(10_000)));
    world.run_for(10);
    assert!(world.find(call).is_none());
    (0..NODES).for_each(|node| world.forget_key(node, "k"));
    finish_with(world, call, 10);
}

#[test]
fn a_gap_lengthens_no_bounded_wait_and_a_single_attempt_never_waits() {
    let mut world = in_a_gap();
    let bounded = world.acquire(waiting("k", 60));
    world.run_for(60);
    assert!(world.is_valid(bounded), "it gives up half of its wait");
    world.release(bounded, false);
    world.run_for(2);
    let single = world.acquire(once("k"));
    world.run_for(5);
    assert!(world.is_valid(single));
    world.release(single, false);
    world.run_for(10);
    let unyielding = world.acquire(Request { yields_to_pollers: false, ..request("k") });
    finish_with(world, unyielding, 15);
}

#[test]
fn a_lock_is_not_handed_over_in_a_gap() {
    let mut world = in_a_gap();
    let holder = world.acquire(once("k"));
    world.run_for(10);
    let next = world.acquire(request("k"));
    world.release(holder, false);
    world.run_for(20);
    assert!(world.find(next).is_none());
    assert!((0..NODES).all(|node| !world.has(node, "k")), "the key is free for pollers");
    finish_with(world, next, GAP_MS);
}
