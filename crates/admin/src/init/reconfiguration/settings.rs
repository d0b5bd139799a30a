//! The settings that markers name, and whether clients of these settings may have a quorum.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quorlock::admin::{AgreedSettings, Topology, names};
use quorlock::node::NodeConfig;
use quorlock_core::display::{SETTINGS_MAX, WORD_MAX, shown};
use quorlock_core::{NODE_COUNT_MAX, Rules};

use super::{NodeKeys, Ours, Servers};
use crate::init::{InitError, known, list};

/// Whether clients of these settings may have had a quorum until now. If enough of the nodes have the new settings,
/// an earlier run has already taken the old settings out of use, because a node gets the new ones only after that.
pub(super) fn is_in_force(
    old: &AgreedSettings,
    servers: &Servers,
    states: &[Option<NodeKeys>],
    wait: Duration,
) -> bool {
    let has_changed = |state: &NodeKeys| state.was_moved() && state.waits_for() >= wait;
    let changed = |state: &NodeKeys| state.ours == Ours::Marked || has_changed(state);
    nodes_that(old, servers, states, changed).len() < old.needed()
}

/// Names of the nodes of these settings whose servers match the condition. Different names stand for different servers,
/// because each server has one name. A server that only its address shows to be such a node counts if its keys have
/// these settings.
fn nodes_that(
    old: &AgreedSettings,
    servers: &Servers,
    states: &[Option<NodeKeys>],
    is_so: impl Fn(&NodeKeys) -> bool,
) -> BTreeSet<String> {
    let so = states.iter().enumerate().filter_map(|(place, state)| {
        let (state, name) = (state.as_ref()?, servers.name_in(place, old)?);
        let is_proved = !servers.is_by_address(place, &name) || state.names(old);
        (is_proved && is_so(state)).then_some(name)
    });
    so.collect()
}

/// Names of the nodes of these settings whose servers answered, whatever their keys have.
fn answered_of(
    old: &AgreedSettings,
    servers: &Servers,
    states: &[Option<NodeKeys>],
) -> BTreeSet<String> {
    let answered = states.iter().enumerate().filter(|(_, state)| state.is_some());
    answered.filter_map(|(place, _)| servers.name_in(place, old)).collect()
}

/// All settings, except the new ones, whose clients get votes from some node now or later.
pub(super) fn old_settings(states: &[Option<NodeKeys>], rules: &Rules) -> BTreeSet<AgreedSettings> {
    let ours = rules.cluster.to_string();
    let all = states.iter().flatten().flat_map(|state| state.settings.iter());
    all.filter(|settings| settings.text != ours).cloned().collect()
}

/// Whether the old nodes that did not answer are too few for a quorum of the old settings.
pub(super) fn is_enough_of(
    old: &AgreedSettings,
    servers: &Servers,
    states: &[Option<NodeKeys>],
) -> bool {
    nodes_that(old, servers, states, |state| state.is_of(old)).len() >= old.needed()
}

/// The error if [`is_enough_of`] is false. `all`: all old settings. `given`: the old nodes that the operator has given.
pub(super) fn not_enough_of(
    old: &AgreedSettings,
    (topology, servers): (&Topology, &Servers),
    states: &[Option<NodeKeys>],
    all: &BTreeSet<AgreedSettings>,
    given: &[NodeConfig],
) -> InitError {
    let found = nodes_that(old, servers, states, |state| state.is_of(old));
    let answered = answered_of(old, servers, states);
    let (init, mut advice) = (&topology.init, Vec::new());
    let is_listed = |place: &usize| servers.name_in(*place, old).is_some();
    let listed = || (0..servers.list.len()).filter(is_listed);
    let silent = listed().filter(|place| states[*place].is_none()).map(|place| {
        let why = known(&servers.looked[place]).err().unwrap_or_default();
        (Arc::from(servers.list[place].name()), why)
    });
    let silent: Vec<_> = silent.collect();
    if !silent.is_empty() {
        let silent = list(&silent);
        advice.push(format!("make the others usable, and run the same command again ({silent})"));
    }
    let unmarked = answered.difference(&found).take(NODE_COUNT_MAX);
    let unmarked: Vec<String> = unmarked.map(|name| shown(name, WORD_MAX)).collect();
    if !unmarked.is_empty() {
        advice.push(format!(
            "what answers as {} has no marker of theirs: if the old server of that name is another one, give its URL as \
             an old node; if this one was that node, and has the new settings already, the command at the end is right; if \
             it has lost its data, have a client of the old settings look at it first",
            unmarked.join(", ")
        ));
    }
    let is_renamed = |place: &usize| {
        !is_listed(place) && states[*place].as_ref().is_some_and(|it| it.settings.contains(old))
    };
    let renamed = (0..servers.list.len()).filter(is_renamed);
    let renamed: Vec<&str> = renamed.map(|place| servers.list[place].name()).collect();
    match renamed.len() {
        0 => {}
        1 => advice.push(format!("{} is in the old list under another name", names(&renamed))),
        _ => advice.push(format!("{} are in the old list under other names", names(&renamed))),
    }
    let is_handled = |place: usize| states[place].as_ref().is_some_and(NodeKeys::is_handled);
    if listed().count() < old.needed() || listed().any(is_handled) {
        let (ours, nodes) = (topology.rules.cluster.to_string(), servers.list.iter().zip(states));
        let theirs = nodes.flat_map(|(server, state)| {
            let moved = state.iter().filter(|state| state.is_handled()).map(|_| &*ours);
            let settings = state.iter().flat_map(|state| &state.settings);
            settings.map(|it| &*it.text).chain(moved).map(|text| (server.name(), text))
        });
        advice.push(init.reconfigure(theirs, given));
    }
    if found.len() + renamed.len() < old.needed() {
        let longest_ms = all.iter().map(|old| old.max_ttl_ms).max().unwrap_or(0);
        let fresh = init.fresh(true, longest_ms);
        advice.push(format!("if the old nodes are gone for good, {fresh}"));
    }
    InitError::OldNodes {
        old: shown(&old.text, SETTINGS_MAX),
        reached: found.len(),
        needed: old.needed(),
        advice: advice.join("; "),
    }
}
