//! Prints the plan and the result of a round, and after a violation the command that repeats the round.

use std::fs;
use std::path::{Path, PathBuf};

use quorlock_sim::time::MS;

use crate::args::RoundKind;
use crate::clock::seconds;
use crate::commands::WROTE_TOGETHER;
use crate::ledger::Findings;
use crate::plan::RoundPlan;
use crate::totals::{CALLS, FAULTS, GRANTED, LOST, Outcome, Totals, WRONG};

pub(crate) fn announce(plan: &RoundPlan) {
    let RoundPlan { seed, nodes, quorum, .. } = plan;
    let kind = match plan.kind {
        RoundKind::Library => String::new(),
        kind => format!(", {}", kind.name()),
    };
    let exact = if plan.exact { ", no margin" } else { "" };
    let off = if plan.guarded { "" } else { ", restart guard off" };
    let kinds: Vec<_> = plan.kinds.iter().map(|kind| kind.name()).collect();
    let kinds = if kinds.is_empty() { "undisturbed nodes".to_owned() } else { kinds.join(", ") };
    println!(
        "\nseed {seed}{kind}: {quorum} of {nodes} nodes{}, ttl up to {}{exact}{off}; {kinds}",
        distances(plan),
        seconds(plan.max_ttl)
    );
    if let Some(why) = plan.outside {
        println!(
            "  mutual exclusion is not promised in this round, because {why}; everything else is promised"
        );
    }
}

/// The round trips to the nodes; empty if all nodes are near.
fn distances(plan: &RoundPlan) -> String {
    let millis: Vec<String> = plan.round_trips().iter().map(|it| (it / MS).to_string()).collect();
    match millis.iter().all(|it| it == "0") {
        true => String::new(),
        false => format!(", round trips of {} ms", millis.join(", ")),
    }
}

pub(crate) fn tell(plan: &RoundPlan, outcome: &Outcome, prints_journal: bool) {
    let totals = &outcome.totals;
    let healed = match totals.healed_within {
        Some(after) => format!("healed within {}", seconds(after)),
        None => "not healed".to_owned(),
    };
    println!(
        "  {} faults, {} grants, {} losses; {}; {healed}",
        totals.sum(FAULTS),
        totals.get(CALLS, GRANTED),
        totals.sum(LOST),
        wrong(totals)
    );
    let Findings { violations, extract, journal } = &outcome.findings;
    if prints_journal {
        journal.iter().for_each(|line| println!("{line}"));
    }
    let Some(first) = violations.first() else { return };
    // The violation is printed here as well, because the extract of the journal is limited and may not contain it.
    println!("  VIOLATION: {}", first.what);
    if !prints_journal {
        println!("  around the first violation (p1c: the third caller of process 1):");
        extract.iter().for_each(|line| println!("{line}"));
    }
    let seed = plan.seed;
    let again = match (plan.kind, plan.heals) {
        (RoundKind::Sentinel, _) => "sentinel".to_owned(),
        (_, false) => format!("chaos --seed {seed} --negative"),
        (kind, true) => format!("chaos --seed {seed} --only {} --minutes 0.1", kind.name()),
    };
    let count = violations.len();
    println!("  {count} violations; the same schedule again: cargo xtask {again}");
    match write_journal(plan, journal) {
        Ok(path) => println!("  the whole journal is in {}", path.display()),
        Err(error) => eprintln!("quorlock-chaos: the journal could not be written: {error}"),
    }
}

fn wrong(totals: &Totals) -> String {
    let counts =
        [WRONG, WROTE_TOGETHER].into_iter().filter_map(|section| totals.counts.get(section));
    let counts = counts.flatten().filter(|(_, count)| **count > 0);
    let counts: Vec<String> = counts.map(|(name, count)| format!("{count} {name}")).collect();
    if counts.is_empty() { "nothing wrong".to_owned() } else { counts.join(", ") }
}

fn write_journal(plan: &RoundPlan, journal: &[String]) -> std::io::Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = manifest.ancestors().nth(2).unwrap_or(manifest).join("target/chaos");
    fs::create_dir_all(&folder)?;
    let file = folder.join(format!("seed-{}-{}.txt", plan.seed, plan.kind.name()));
    fs::write(&file, journal.join("\n") + "\n")?;
    Ok(file)
}
