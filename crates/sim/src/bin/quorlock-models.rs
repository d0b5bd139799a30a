//! `quorlock-models`: explores every model to the end.
fn main() {
    for scenario in quorlock_sim::models::positives() {
        let started = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let found = scenario.check();
        println!("{} {} states {} steps depth {} in {:?}", scenario.name, found.states, found.steps, found.depth, std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap()-started);
        for (a,b) in found.sometimes { println!("{b:>10} {a}"); }
        for l in found.counterexample.into_iter().flatten() { println!("{l}"); }
    }
}
