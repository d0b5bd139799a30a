//! `quorlock-models`: explores every model to the end; exit code 1 if anything is not as it must be.

use std::process::ExitCode;

use clap::Parser;
use quorlock_sim::models::{Found, Scenario, negatives, positives};

/// Explores what quorlock's engine can do under a model checker, within bounds, to the end.
#[derive(Debug, Parser)]
#[command(name = "quorlock-models", version)]
struct Args {
    /// Explore only the models whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,

    /// Tell the counterexamples line by line
    #[arg(long)]
    trace: bool,

    /// Make this mistake, and tell which of the models that must hold catches it
    #[cfg(quorlock_mutants)]
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(quorlock_mutants)]
    if let Some(mutant) = &args.mutant {
        return hunt(&args, mutant);
    }
    let mut wrong = 0;
    for scenario in positives().iter().chain(&negatives()) {
        if !scenario.name.contains(&args.only) {
            continue;
        }
        if let Some(mutant) = scenario.mutant
            && !quorlock_sim::mutants::switch_on(mutant)
        {
            println!("{}: there is no mistake called {mutant:?}", scenario.name);
            return ExitCode::from(2);
        }
        let found = scenario.check();
        tell(scenario, &found, args.trace);
        wrong += u32::from(found.wrong.is_some());
    }
    println!("\n{wrong} models are not as they must be");
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tell(scenario: &Scenario, found: &Found, traced: bool) {
    let Scenario { name, about, .. } = scenario;
    let Found { states, steps, depth, broken, .. } = found;
    let how = match broken {
        None => "exhausted".to_owned(),
        Some(invariant) => format!("counterexample: {invariant}"),
    };
    println!("{name} ({about}): {states} states, {steps} steps, depth {depth}, {how}");
    let sometimes: Vec<_> =
        found.sometimes.iter().map(|(what, times)| format!("{what} ({times})")).collect();
    if !sometimes.is_empty() {
        println!("  sometimes: {}", sometimes.join(", "));
    }
    if let Some(wrong) = &found.wrong {
        println!("  WRONG: {wrong}");
    }
    if traced || found.wrong.is_some() {
        found.story.iter().for_each(|line| println!("  {line}"));
    }
}

/// Which of the models that must hold shows the mistake.
#[cfg(quorlock_mutants)]
fn hunt(args: &Args, mutant: &str) -> ExitCode {
    if !quorlock_sim::mutants::switch_on(mutant) {
        eprintln!("quorlock-models: there is no mutant {mutant:?}");
        return ExitCode::from(2);
    }
    for scenario in positives().iter().filter(|it| it.name.contains(&args.only)) {
        let found = scenario.check();
        if let Some(broken) = found.broken {
            println!(
                "{mutant}: caught by {} after {} states: {broken}",
                scenario.name, found.states
            );
            if args.trace {
                found.story.iter().for_each(|line| println!("  {line}"));
            }
            return ExitCode::SUCCESS;
        }
    }
    println!("{mutant}: not caught");
    ExitCode::FAILURE
}
