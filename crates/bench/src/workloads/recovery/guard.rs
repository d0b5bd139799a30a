//! The cost of the restart guard without failures. Two clients without the guard and one with it run the same pairs on
//! the same servers. The two without the guard show the noise of the measurement.

use ::quorlock::RestartGuard;

use super::{NODES, all_vote, ratios};
use crate::subjects::{Subject, TTL, quorlock};
use crate::testbed;
use crate::workloads::{Bench, pairs, progress};

pub(crate) const NAME: &str = "recovery_guard";

/// The prefix of the names of this workload's targets.
pub(crate) const TARGETS: &str = "restart guard";

/// Two equal subjects without the guard, whose difference is the noise, and the subject with the guard.
pub(crate) const OFF: &str = "off";
pub(crate) const OFF_AGAIN: &str = "off again";
pub(crate) const STRICT: &str = "strict";

const SUBJECTS: [(&str, RestartGuard); 3] =
    [(OFF, RestartGuard::Off), (OFF_AGAIN, RestartGuard::Off), (STRICT, RestartGuard::Strict)];

pub(crate) fn run(bench: &mut Bench) {
    for lockers in [1, 64] {
        progress(&format!("{NAME}, N={NODES}, c={lockers}"));
        let subjects = match SUBJECTS.iter().map(|one| subject(bench, *one)).collect() {
            Ok(subjects) => subjects,
            Err(why) => return bench.figures.not_run(STRICT, NAME, why),
        };
        bench.interleave(NAME, subjects, |bench, subject| {
            pairs::turn(bench, subject, NAME, NODES, lockers)
        });
        ratios(&mut bench.figures, NAME, &SUBJECTS.map(|(name, _)| name), lockers);
    }
}

/// Creates a client and waits until all of its nodes vote.
fn subject(
    bench: &Bench,
    (name, guard): (&'static str, RestartGuard),
) -> Result<Box<dyn Subject>, String> {
    let urls = testbed::urls(&bench.testbed[..NODES]);
    let builder = quorlock::builder(urls).max_ttl(TTL).restart_guard(guard);
    let subject = quorlock::named(name, builder, bench.flavor)?;
    subject.runtime.block_on(all_vote(subject.locker.clone()))?;
    Ok(Box::new(subject))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quorlock_servers::find_or_skip;

    use ::quorlock::LockOptions;

    use super::*;
    use crate::subjects::Flavor;
    use crate::testbed::Commands;
    use crate::workloads::recovery::once;

    #[test]
    fn the_guard_costs_a_get_per_node_and_batch() {
        let name = "the_guard_costs_a_get_per_node_and_batch";
        let Some(binary) = find_or_skip(name) else { return };
        let servers = testbed::start(&binary, 3, &[]).unwrap();
        // The ttl is short, so that the nodes vote within three seconds: new nodes wait for the ttl and two seconds.
        let ttl = Duration::from_millis(500);
        let sent = |guard| {
            let builder =
                quorlock::builder(servers.urls()).options(LockOptions::new().ttl(ttl)).max_ttl(ttl);
            let subject =
                quorlock::named("counted", builder.restart_guard(guard), Flavor::CurrentThread);
            let subject = subject.unwrap();
            subject.runtime.block_on(all_vote(subject.locker.clone())).unwrap();
            let before = Commands::read(&servers).unwrap();
            for _ in 0..100 {
                let pair = once(subject.locker.clone(), name.to_owned());
                subject.runtime.block_on(pair).unwrap();
            }
            // The counters must include the commands to the slowest node, which may still be in flight here.
            subject.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(50)).await });
            Commands::read(&servers).unwrap().since(&before)
        };
        let (without, with) = (sent(RestartGuard::Off), sent(RestartGuard::Strict));
        assert_eq!(without.sent(), 600, "{without:?}");
        // The guard adds at most one `GET` per acquire and node: 300 for 100 acquires on three nodes. There may be
        // fewer, because two acquires in one batch share a `GET`.
        let more = with.sent() - without.sent();
        assert!((1..=300).contains(&more), "{more} more: {with:?}");
        assert_eq!(with.calls("get") - without.calls("get"), more, "{with:?}");
    }
}
