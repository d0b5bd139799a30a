//! Simplifies a failing run: removes, kind by kind, the faults that the failure does not need.

use crate::plan::{Later, Plan};
use crate::run;

/// Removes kinds of faults, and clients, one after another, if the run still breaks the same invariant without them.
pub fn shrink(plan: &Plan) -> Plan {
    let Some(violation) = run(plan, false).violation else {
        return plan.clone();
    };
    let still_fails = |plan: &Plan| {
        run(plan, false).violation.is_some_and(|other| other.invariant == violation.invariant)
    };
    let mut smallest = plan.clone();
    for fault in plan.faults.kinds.clone() {
        let mut smaller = smallest.clone();
        smaller.faults.kinds.retain(|other| *other != fault);
        if still_fails(&smaller) {
            smallest = smaller;
        }
    }
    let smaller = Plan { later: Later::default(), ..smallest.clone() };
    if still_fails(&smaller) {
        smallest = smaller;
    }
    for clients in 1..smallest.load.clients {
        let mut smaller = smallest.clone();
        smaller.load.clients = clients;
        if still_fails(&smaller) {
            return smaller;
        }
    }
    smallest
}
