//! The models that are checked: their bounds, and the expected results.

use quorlock_core::{Mode, RestartGuard};
use stateright::{CheckerBuilder, Path};

use super::bounds::{
    ATTACHES, DOWNGRADES, FAILOVER, M1, M2, M3, M4, M5, M6, NETWORK, PAUSES, RECONNECTS, RIVAL,
    SETS, TAKES,
};
use super::replica::Replica;
use super::*;
use crate::invariants::{fencing, mutual_exclusion};

/// A model, its bounds, and the expected result.
#[derive(Debug)]
pub struct Scenario {
    /// The short name of the model.
    pub name: &'static str,
    /// A description in a few words.
    pub about: &'static str,
    /// The mutant to switch on, in a build with mutants. `None` if the model needs no mutant.
    pub mutant: Option<&'static str>,
    bounds: Bounds,
    pinned: Pinned,
    sometimes: Vec<Rare>,
}

/// The expected result, as exact numbers. Change a number only for a known reason.
#[derive(Clone, Copy, Debug)]
enum Pinned {
    /// Every invariant holds in every state. The model has exactly these numbers of states and steps.
    Exhausted { states: usize, steps: usize },
    /// Two clients hold the lock, or, in a model of fencing tokens, their order is broken. `after` is the smallest
    /// number of steps to such a state. The numbers of states and steps are not compared.
    Overlap { after: usize },
}

/// The result of a model.
#[derive(Debug)]
pub struct Exploration {
    /// The number of different states.
    pub states: usize,
    /// The number of steps between states.
    pub steps: usize,
    /// Rare events, and the number of steps in which each occurred.
    pub sometimes: Vec<(&'static str, u64)>,
    /// The first invariant that did not hold. `None` if all invariants hold.
    pub broken: Option<&'static str>,
    /// The length of the shortest counterexample, in steps.
    pub after: usize,
    /// The shortest counterexample, line by line.
    pub trace: Vec<String>,
    /// The difference to the expected result. `None` if the result is as expected.
    pub wrong: Option<String>,
}

pub(super) fn positive(
    name: &'static str,
    about: &'static str,
    bounds: Bounds,
    (states, steps): (usize, usize),
    sometimes: &[Rare],
) -> Scenario {
    let pinned = Pinned::Exhausted { states, steps };
    Scenario { name, about, mutant: None, bounds, pinned, sometimes: sometimes.to_vec() }
}

pub(super) fn negative(
    name: &'static str,
    about: &'static str,
    mutant: Option<&'static str>,
    bounds: Bounds,
    after: usize,
) -> Scenario {
    let pinned = Pinned::Overlap { after };
    Scenario { name, about, mutant, bounds, pinned, sometimes: Vec::new() }
}

/// The largest number of states of a small model. `cargo xtask test` explores the small models, `.ci/run` all.
pub const SMALL: usize = 400_000;

/// Models in which every invariant holds in every state.
pub fn positives() -> Vec<Scenario> {
    let new = positive;
    let failover = [
        Rare::InTurn,
        Rare::Extended,
        Rare::Promoted,
        Rare::Acknowledged,
        Rare::Unacknowledged,
        Rare::GrantedByOld,
        Rare::GrantedByNew,
        Rare::Adopted,
        Rare::LostExpired,
    ];
    let mut all = vec![
        new(
            "M1 retries",
            "timed mutex: two attempts each, fast node clocks",
            Bounds { attempts: [2; 3], ..M1 },
            (59_291, 205_286),
            &[Rare::InTurn, Rare::Retry, Rare::Contended, Rare::LostExpired],
        ),
        new(
            "M1 looks",
            "timed mutex: two attempts each, a refused client inspects the lock and waits for pushes",
            Bounds { attempts: [2; 3], node_fast: 0, looks: true, ..M1 },
            (142_475, 542_891),
            &[Rare::InTurn, Rare::Retry, Rare::Contended, Rare::Watched],
        ),
        new(
            "M1 delays",
            "timed mutex: slow links, fast node clocks, slow client clocks",
            NETWORK,
            (516_867, 2_475_352),
            &[
                Rare::InTurn,
                Rare::Contended,
                Rare::LateGrant,
                Rare::KeyExpired,
                Rare::FastClock,
                Rare::SlowClock,
                Rare::LostExpired,
            ],
        ),
        new(
            "M1 pauses",
            "timed mutex: a client pauses, fast node clocks",
            PAUSES,
            (1_048_912, 5_133_425),
            &[
                Rare::InTurn,
                Rare::Contended,
                Rare::TooSlow,
                Rare::KeyExpired,
                Rare::FastClock,
                Rare::Pause,
                Rare::LostExpired,
            ],
        ),
        new(
            "M4 healing",
            "extension: a key vanishes, votes are healed",
            Bounds { flushes: 1, ..M4 },
            (154_623, 505_336),
            &[
                Rare::InTurn,
                Rare::Extended,
                Rare::ProofOfLoss,
                Rare::Heal,
                Rare::Flush,
                Rare::LostExpired,
            ],
        ),
        new(
            "M4 reordering",
            "extension: a connection breaks, and its commands come later",
            Bounds { breaks: 1, zombie_age: 2, ..M4 },
            (451_642, 1_700_403),
            &[
                Rare::InTurn,
                Rare::Extended,
                Rare::Heal,
                Rare::Break,
                Rare::ZombieSet,
                Rare::Reordered,
                Rare::LostExpired,
            ],
        ),
        new(
            "M2 fencing",
            "fencing tokens without time: keys vanish, only the tokens are checked",
            M2,
            (1_116_991, 4_364_259),
            &[Rare::InTurn, Rare::Raise, Rare::Vanished],
        ),
        new(
            "M3 restarts",
            "restart guard: nodes with votes come back without their data",
            M3,
            (1_099_694, 4_202_643),
            &[
                Rare::InTurn,
                Rare::Contended,
                Rare::KeyExpired,
                Rare::LostExpired,
                Rare::RestartedHeld,
                Rare::Voided,
                Rare::Adopted,
            ],
        ),
        new(
            "M5 readers",
            "readers: two of them and a writer",
            M5,
            (812_251, 3_600_600),
            &[Rare::InTurn, Rare::Together, Rare::Contended, Rare::LostExpired],
        ),
        new(
            "M5 downgrades",
            "readers: a writer becomes one while another writer waits, and a connection breaks",
            Bounds { breaks: 1, zombie_age: 2, extensions: [0; 3], ..DOWNGRADES },
            (406_470, 1_557_282),
            &[Rare::InTurn, Rare::Downgrade, Rare::Break, Rare::Reordered, Rare::LostExpired],
        ),
        new(
            "M5 joins",
            "readers: a writer becomes one while another reader waits, and a key vanishes",
            Bounds {
                flushes: 1,
                extensions: [0; 3],
                modes: [Mode::Exclusive, Mode::Shared, Mode::Exclusive],
                ..DOWNGRADES
            },
            (167_273, 584_153),
            &[Rare::InTurn, Rare::Together, Rare::Downgrade, Rare::Heal, Rare::Flush],
        ),
        new(
            "M6 sets",
            "sets of keys: two keys, and both of them",
            M6,
            (764_608, 3_846_615),
            &[Rare::InTurn, Rare::Contended, Rare::LostExpired],
        ),
        new(
            "M6 fencing",
            "fencing tokens of sets without time: keys vanish one by one, only the tokens are checked",
            SETS,
            (395_006, 1_550_896),
            &[Rare::InTurn, Rare::Raise, Rare::Vanished],
        ),
        new(
            "M7 attaches",
            "detached lock: two clients attach it, and a command of its former holder comes later",
            ATTACHES,
            (133_288, 436_521),
            &[
                Rare::FirstAttaches,
                Rare::SecondAttaches,
                Rare::Retry,
                Rare::GivenBack,
                Rare::Split,
                Rare::KeyExpired,
                Rare::LostExpired,
                Rare::ZombieSet,
            ],
        ),
        new(
            "M7 delays",
            "detached lock: two clients attach it, slow links",
            Bounds { attempts: [1; 3], command_age: 1, answer_age: 2, slow_links: 1, ..ATTACHES },
            (324_401, 1_160_359),
            &[
                Rare::FirstAttaches,
                Rare::SecondAttaches,
                Rare::GivenBack,
                Rare::Split,
                Rare::KeyExpired,
                Rare::LostExpired,
                Rare::ZombieSet,
            ],
        ),
        new(
            "M7 rival",
            "detached lock: one client attaches it, another acquires the lock",
            RIVAL,
            (202_117, 722_087),
            &[Rare::FirstAttaches, Rare::RivalAcquires, Rare::KeyExpired, Rare::ZombieSet],
        ),
        new(
            "M8 takes",
            "equal values: three clients take a lock with one value",
            TAKES,
            (236_801, 929_295),
            &[Rare::InTurn, Rare::Contended, Rare::EqualKept, Rare::LostExpired],
        ),
        new(
            "M9 failover",
            "a node with a replica: the replica is promoted, and the old master goes on",
            FAILOVER,
            (559_467, 1_569_171),
            &failover,
        ),
        new(
            "M9 reconnects",
            "a node with a replica: a connection breaks, and its commands come later",
            RECONNECTS,
            (1_038_780, 3_717_460),
            &[&failover[..], &[Rare::Break, Rare::BreakUnanswered, Rare::Reordered]].concat(),
        ),
    ];
    all.extend(others::positives());
    all
}

/// Models in which two clients must come to hold the lock, because an assumption is violated or a mutant is on.
pub fn negatives() -> Vec<Scenario> {
    let new = negative;
    let drift = Bounds { client_slow: 4, ..M1 };
    let mut all = vec![
        new(
            "no allowance",
            "the clients allow for no drift",
            None,
            Bounds { drift: 0, ..drift },
            15,
        ),
        new(
            "no bound",
            "a node's clock runs faster than clients allow for",
            None,
            Bounds { node_fast: 3, ..drift },
            13,
        ),
        new(
            "no guard",
            "nodes that have forgotten their votes vote at once",
            None,
            Bounds { guard: RestartGuard::Off, fresh: false, ..M3 },
            7,
        ),
        new(
            "no nonce",
            "a holder releases the value alone, also on nodes that granted it to another client",
            None,
            Bounds { verbs: Verbs::Take { by_value: true }, ..TAKES },
            14,
        ),
        new(
            "no own write",
            "clients write nothing before WAIT, and a server waits for the connection's own writes",
            None,
            Bounds { replica: Some(Replica { own_write: false }), ..RECONNECTS },
            24,
        ),
    ];
    if cfg!(quorlock_mutants) {
        all.push(new(
            "no clock check",
            "the clock is not read after the quorum",
            Some("no clock check after the quorum"),
            PAUSES,
            14,
        ));
        all.push(new(
            "no acknowledgement",
            "a vote counts without the replica's acknowledgement",
            Some("counts a vote without the replica's acknowledgement"),
            FAILOVER,
            18,
        ));
        all.push(new(
            "what is free",
            "a node grants several keys and has set those that are free",
            Some("several keys: what is free is set"),
            M6,
            6,
        ));
        all.push(new(
            "readers ignored",
            "a node lets a writer in where there are readers",
            Some("a writer let in among readers"),
            M5,
            6,
        ));
        all.push(new(
            "given away twice",
            "a node gives a detached lock to two clients",
            Some("a node gives a lock away twice"),
            ATTACHES,
            10,
        ));
        all.push(new(
            "quorum less one",
            "one vote of three is enough",
            Some("quorum less one"),
            M1,
            6,
        ));
        all.extend(others::negatives());
    }
    all
}

impl Scenario {
    /// The expected number of states, by which the largest models are started first. A model that must have a
    /// counterexample ends early, so it counts as 0.
    pub const fn size(&self) -> usize {
        match self.pinned {
            Pinned::Exhausted { states, .. } => states,
            Pinned::Overlap { .. } => 0,
        }
    }

    /// Explores every state, or stops at the first violation. If no violation is expected, searches depth-first, which
    /// is twice as fast as breadth-first. A breadth-first search with one thread finds the shortest counterexample.
    pub fn check(&self) -> Exploration {
        if let Pinned::Exhausted { .. } = self.pinned {
            let explored = self.explored(&self.checker().spawn_dfs().join());
            if explored.broken.is_none() {
                return explored;
            }
        }
        self.explored(&self.checker().spawn_bfs().join())
    }

    fn checker(&self) -> CheckerBuilder<Timed> {
        let overlaps = matches!(self.pinned, Pinned::Overlap { .. });
        let model = Timed {
            bounds: self.bounds,
            only: match self.bounds.vanishing {
                Some(_) => Some(fencing::NAME),
                None if overlaps || self.bounds.is_exclusion_alone() => {
                    Some(mutual_exclusion::NAME)
                }
                None => None,
            },
            seen: Witnesses::default(),
            failed: AtomicBool::new(false),
        };
        model.checker().threads(1).finish_when(HasDiscoveries::AnyFailures)
    }

    fn explored(&self, checker: &impl Checker<Timed>) -> Exploration {
        let model = checker.model();
        let sometimes = self.sometimes.iter().map(|rare| (rare.text(), model.seen.of(*rare)));
        let sometimes: Vec<_> = sometimes.collect();
        let failure = checker.discoveries().into_values().next();
        let broken = failure.as_ref().and_then(|path| path.last_state().violation);
        let after = failure.as_ref().map_or(0, |path| path.clone().into_actions().len());
        let mut found = Exploration {
            states: checker.unique_state_count(),
            steps: checker.state_count(),
            sometimes,
            broken,
            after,
            trace: failure.map(|path| tell(model, path)).unwrap_or_default(),
            wrong: None,
        };
        found.wrong = self.what_is_wrong(&found);
        found
    }

    fn what_is_wrong(&self, found: &Exploration) -> Option<String> {
        let never = found.sometimes.iter().find(|(_, times)| *times == 0);
        match (self.pinned, found.broken, never) {
            (Pinned::Overlap { .. }, None, _) => Some("every invariant holds".to_owned()),
            (Pinned::Overlap { after }, Some(_), _) => {
                (found.after != after).then(|| format!("it took {after} steps"))
            }
            (_, Some(broken), _) => Some(format!("{broken} does not hold")),
            (_, None, Some((what, _))) => Some(format!("this never happened: {what}")),
            (Pinned::Exhausted { states, steps }, None, None) => {
                let same = (found.states, found.steps) == (states, steps);
                (!same).then(|| format!("there were {states} states and {steps} steps"))
            }
        }
    }
}

fn tell(model: &Timed, path: Path<ModelWorld, Action>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut ticks = 0;
    let mut states = path.clone().into_states().into_iter();
    let Some(mut world) = states.next() else { return lines };
    for action in path.into_actions() {
        let (next, trace) = model.step(&world, action, true);
        ticks += u32::from(matches!(action, Action::Tick(..)));
        lines.extend(trace.into_iter().map(|line| format!("tick {ticks:>2}  {line}")));
        world = next;
    }
    lines
}
