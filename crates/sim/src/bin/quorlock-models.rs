//! `quorlock-models`: explores all states of every model. The exit code is 1 if a model gives an unexpected result.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use clap::{Parser, ValueEnum};
use quorlock_sim::models::{Exploration, SMALL, Scenario, negatives, positives};

/// Explores every state that quorlock's engine can reach within bounds
#[derive(Debug, Parser)]
#[command(name = "quorlock-models", version)]
struct Args {
    /// Explore only the models whose name contains this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,

    /// Explore only models that must have a counterexample (in a build with mutants, only those that need a mutant)
    #[arg(long)]
    negative: bool,

    /// Explore only the models of this size
    #[arg(long)]
    size: Option<Size>,

    /// Number of models to explore at a time
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,

    /// Print the counterexamples line by line
    #[arg(long)]
    trace: bool,

    /// Switch on this mutant, a deliberate bug, and print which of the positive models catches it
    #[cfg(quorlock_mutants)]
    #[arg(long, value_name = "NAME", conflicts_with = "negative")]
    mutant: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Size {
    /// The models of at most 400 000 states, and all that must have a counterexample
    Small,
    /// The models of more states
    Large,
}

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(quorlock_mutants)]
    if let Some(mutant) = &args.mutant {
        return hunt(&args, mutant);
    }
    let positives = if args.negative { Vec::new() } else { positives() };
    let all = positives.into_iter().chain(negatives());
    let mistaken_only = args.negative && cfg!(quorlock_mutants);
    let size =
        |scenario: &Scenario| if scenario.size() > SMALL { Size::Large } else { Size::Small };
    let chosen = all.filter(|scenario| scenario.name.contains(&args.only));
    let chosen = chosen.filter(|scenario| args.size.is_none_or(|chosen| chosen == size(scenario)));
    let chosen = chosen.filter(|scenario| !mistaken_only || scenario.mutant.is_some());
    let (mistaken, mut sound): (Vec<_>, Vec<_>) = chosen.partition(|it| it.mutant.is_some());
    // Starts with the largest model, because it would otherwise run alone at the end.
    sound.sort_by_key(|scenario| std::cmp::Reverse(scenario.size()));
    let mut wrong = explore(&sound, &args);
    // A mutant affects the whole process, so these models run one by one, after the other models.
    for scenario in &mistaken {
        if let Some(mutant) = scenario.mutant
            && !quorlock_sim::mutants::switch_on(mutant)
        {
            println!("{}: there is no mistake called {mutant:?}", scenario.name);
            return ExitCode::from(2);
        }
        wrong += explore(std::slice::from_ref(scenario), &args);
    }
    if sound.is_empty() && mistaken.is_empty() {
        eprintln!("quorlock-models: there is no model like {:?}", args.only);
        return ExitCode::from(2);
    }
    println!("\n{wrong} models gave an unexpected result");
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Explores `args.jobs` models at a time and prints each result. Returns the number of unexpected results.
fn explore(scenarios: &[Scenario], args: &Args) -> u32 {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(0));
    thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                while let Some(scenario) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let explored = scenario.check();
                    // The mutex keeps the lines of one result together in the output.
                    let mut wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner);
                    print(scenario, &explored, args.trace);
                    *wrong += u32::from(explored.wrong.is_some());
                }
            });
        }
    });
    wrong.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn print(scenario: &Scenario, explored: &Exploration, traced: bool) {
    let Scenario { name, about, .. } = scenario;
    let Exploration { states, steps, broken, after, .. } = explored;
    let how = match broken {
        None => "exhausted".to_owned(),
        Some(invariant) => format!("counterexample in {after} steps: {invariant}"),
    };
    println!("{name} ({about}): {states} states, {steps} steps, {how}");
    let sometimes: Vec<_> =
        explored.sometimes.iter().map(|(what, times)| format!("{what} ({times})")).collect();
    if !sometimes.is_empty() {
        println!("  sometimes: {}", sometimes.join(", "));
    }
    if let Some(wrong) = &explored.wrong {
        println!("  WRONG: {wrong}");
    }
    if traced || explored.wrong.is_some() {
        explored.trace.iter().for_each(|line| println!("  {line}"));
    }
}

/// Prints the first positive model with a counterexample under this mutant. Without mutants, the model has none.
#[cfg(quorlock_mutants)]
fn hunt(args: &Args, mutant: &str) -> ExitCode {
    if !quorlock_sim::mutants::switch_on(mutant) {
        eprintln!("quorlock-models: there is no mutant {mutant:?}");
        return ExitCode::from(2);
    }
    for scenario in positives().iter().filter(|it| it.name.contains(&args.only)) {
        let explored = scenario.check();
        if let Some(broken) = explored.broken {
            println!(
                "{mutant}: caught by {} after {} states: {broken}",
                scenario.name, explored.states
            );
            if args.trace {
                explored.trace.iter().for_each(|line| println!("  {line}"));
            }
            return ExitCode::SUCCESS;
        }
    }
    println!("{mutant}: not caught");
    ExitCode::FAILURE
}
