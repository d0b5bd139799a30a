//! The rivals' programs on real servers. They are fetched with pip and npm, so this runs on demand:
//! `cargo test -p quorlock-bench --test rivals -- --ignored --nocapture`.
#![cfg(feature = "rivals")]

use std::time::Duration;

use quorlock_bench::rivals::subjects;
use quorlock_servers::{Listen, Nodes, ServerOptions, find_or_skip};

#[test]
#[ignore = "fetches packages with pip and npm"]
fn every_rival_runs_or_says_why_not() {
    let Some(binary) = find_or_skip("the rivals' programs") else { return };
    let options = ServerOptions { listen: Listen::Tcp, ..Default::default() };
    let servers = Nodes::start(&binary, 5, options).unwrap();
    for rival in subjects() {
        println!("{} {}", rival.name, rival.version);
        for (nodes, concurrency) in [(1, 1), (1, 64), (5, 1), (5, 64)] {
            match rival.run(&servers.urls()[..nodes], concurrency, 2.0) {
                Ok(report) => {
                    println!(
                        "  N={nodes} c={concurrency}: {:.0} pairs/s, p50 {:.0} us, p99 {:.0} us, \
                         {:.0} us CPU per pair",
                        report.pairs_per_s(),
                        report.p50_us,
                        report.p99_us,
                        report.cpu_us_per_pair()
                    );
                    assert!(report.pairs > 0);
                    assert!(report.p50_us <= report.p99_us);
                    assert!(report.cpu_seconds > 0.0 && report.seconds > 0.0);
                }
                Err(why) => println!("  N={nodes} c={concurrency}: not run: {why}"),
            }
        }
        for (nodes, processes) in [(1, 2), (1, 8), (5, 2)] {
            let hold = Duration::from_millis(5);
            match rival.handover(&servers.urls()[..nodes], processes, 3.0, hold) {
                Ok(report) => println!("  N={nodes}, {processes} processes: {report:?}"),
                Err(why) => println!("  N={nodes}, {processes} processes: not run: {why}"),
            }
        }
    }
}
