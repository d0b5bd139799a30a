//! The picture of a run shows what its trace tells: the lanes, the holds, the votes, the faults.

use std::process::Command;

use quorlock_sim::timeline::{Bar, Kind, Lane, Sign};
use quorlock_sim::timeline_svg::draw;
use quorlock_sim::{Fault, Outcome, Plan, run};

const SEEDS: u64 = 200;

/// Those in which every lock has one key and excludes all others. Of other locks only the first key is drawn, and of
/// readers only the first of them.
fn plans() -> impl Iterator<Item = (u64, Plan)> {
    let all = (0..SEEDS).map(|seed| (seed, Plan::draw(seed)));
    all.filter(|(_, plan)| !plan.later.kinds.is_any())
}

/// How many lines of the trace say so.
fn told(outcome: &Outcome, says: impl Fn(&str) -> bool) -> usize {
    outcome.trace.iter().filter(|line| says(line)).count()
}

#[test]
fn the_tape_of_a_run_has_what_its_trace_tells() {
    let (mut held, mut overlaps) = (0, 0);
    for (seed, plan) in plans() {
        let outcome = run(&plan, true);
        let timeline = &outcome.timeline;
        let count = |kind| timeline.of(kind).count();
        let signs = |sign| timeline.marks.iter().filter(|mark| mark.sign == sign).count();
        let told = |says: &dyn Fn(&str) -> bool| told(&outcome, says);
        held += count(Kind::Hold);
        overlaps += timeline.overlaps().len();
        assert_eq!(count(Kind::Hold), told(&|line| line.contains(": GRANTED, ")), "seed {seed}");
        assert_eq!(count(Kind::Life), told(&|line| line.ends_with(": starts")), "seed {seed}");
        assert_eq!(
            count(Kind::Attempt),
            told(&|line| line.contains(": attempt for ")),
            "seed {seed}"
        );
        assert_eq!(count(Kind::Down), told(&|line| line.contains("is killed, ")), "seed {seed}");
        assert_eq!(count(Kind::Cut), told(&|line| line.contains("nothing gets through")));
        assert_eq!(signs(Sign::Reset), told(&|line| line.ends_with(" breaks")), "seed {seed}");
        let granted = told(&|line| line.contains(": SET ") && line.contains("): Granted"));
        assert!(count(Kind::Vote) >= granted, "seed {seed}: {granted} votes were given");
        for bar in &timeline.bars {
            assert!(bar.from <= bar.to && bar.to <= timeline.until, "seed {seed}: {bar:?}");
        }
        if plan.excludes() {
            assert_eq!(timeline.overlaps(), [], "seed {seed}: two are drawn to hold one lock");
        }
    }
    println!("{held} holds; {overlaps} times two held one lock");
    assert!(held > 100 && overlaps > 0, "{held} holds, {overlaps} overlaps");
}

/// A hold of a token lies within the time in which enough nodes store it, where clocks are as assumed and
/// no node loses a key, be it one that stays down for long enough afterwards, or one with another's data.
#[test]
fn who_is_drawn_to_hold_a_lock_has_the_votes_drawn() {
    let mut seen = 0;
    for (seed, plan) in plans() {
        let loses = plan.has(Fault::Crashes) || plan.has(Fault::Distrust) || plan.later.merges;
        if !plan.excludes() || !plan.servers.lossy.is_empty() || loses {
            continue;
        }
        let outcome = run(&plan, true);
        for hold in outcome.timeline.of(Kind::Hold).filter(|hold| hold.from < hold.to) {
            let middle = hold.from.midpoint(hold.to);
            let stores =
                |bar: &&Bar| bar.token == hold.token && bar.from <= middle && middle <= bar.to;
            let votes = outcome.timeline.of(Kind::Vote).filter(stores).count();
            assert!(
                votes >= plan.servers.quorum.needed(),
                "seed {seed}: {hold:?} has {votes} votes"
            );
            seen += 1;
        }
    }
    println!("{seen} holds");
    assert!(seen > 100);
}

#[test]
fn the_picture_has_what_the_tape_has() {
    for seed in 0..20 {
        let plan = Plan::draw(seed);
        let outcome = run(&plan, true);
        let svg = draw(&plan, &outcome);
        let legend = |class: &str| 1 + usize::from(class == "hold" && plan.load.resources > 1);
        for (class, kind) in [
            ("hold", Kind::Hold),
            ("vote", Kind::Vote),
            ("attempt", Kind::Attempt),
            ("down", Kind::Down),
        ] {
            let drawn = svg.matches(&format!("<rect class=\"{class}\"")).count()
                + svg.matches(&format!("<rect class=\"{class} second\"")).count();
            let bars = outcome.timeline.of(kind).count();
            assert_eq!(drawn, bars + legend(class), "seed {seed}: {class}");
        }
        let mut lanes: Vec<Lane> = outcome.timeline.of(Kind::Life).map(|bar| bar.lane).collect();
        lanes.extend((0..plan.servers.quorum.nodes()).map(Lane::Node));
        for lane in lanes {
            let name = match lane {
                Lane::Client(client) => format!(">client {client}</text>"),
                Lane::Node(node) => format!(">node {node}</text>"),
            };
            assert_eq!(svg.matches(&name).count(), 1, "seed {seed}: {name}");
        }
        assert_eq!(draw(&plan, &run(&plan, true)), svg, "one seed, one picture");
    }
}

/// The program itself, with this on its command line: its exit code and all that it says.
fn quorlock_sim(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_quorlock-sim")).args(args).output();
    let output = output.expect("the program is there");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn the_program_draws_one_seed_and_refuses_what_does_not_go_together() {
    let file = std::env::temp_dir().join(format!("quorlock-sim-{}.svg", std::process::id()));
    let path = file.to_string_lossy().into_owned();
    let (code, said) = quorlock_sim(&["--seed", "7", "--only", "votes", "--draw", &path]);
    assert_eq!(code, Some(0), "{said}");
    let drawn = std::fs::read_to_string(&file).expect("it is drawn");
    std::fs::remove_file(&file).expect("it is there");
    let plan = Plan { only: Some("votes".to_owned()), ..Plan::draw(7) };
    assert_eq!(drawn, draw(&plan, &run(&plan, true)));

    for (args, reason) in [
        (&["--draw", &path][..], "--seed <SEED>"),
        (&["--seeds", "10", "--draw", &path], "cannot be used with"),
        (&["--from", "7", "--draw", &path], "cannot be used with"),
        (&["--seed", "7", "--seeds", "10", "--draw", &path], "cannot be used with"),
        (&["--seed", "7", "--brief", "--draw", &path], "cannot be used with"),
        (&["--seed", "7", "--draw", "run.png"], "must end in .svg"),
        (&["--seed", "7", "--draw", "/nowhere/at/all/run.svg"], "cannot write"),
    ] {
        let (code, said) = quorlock_sim(args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(reason), "{args:?}: {said}");
        assert!(!file.exists());
    }
}
