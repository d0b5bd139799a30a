//! The settings that markers name, and whether clients of these settings may have a quorum.

use std::collections::BTreeSet;
use std::time::Duration;

use quorlock::admin::{Node as _, RedisNode};
use quorlock_core::marker::Cluster;
use quorlock_core::shown::{SETTINGS_MAX, WORD_MAX, shown};
use quorlock_core::{NODE_COUNT_MAX, Rules};

use super::{NodeKeys, Ours};
use crate::init::InitError;

/// The settings that clients must agree on, as a marker has them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Settings {
    pub(super) text: String,
    pub(super) names: Vec<String>,
    pub(super) quorum: usize,
    pub(super) max_ttl_ms: u64,
}

/// Separates old and new settings in a marker that fits no client.
pub(super) const BECOMES: &str = " becomes ";

impl Settings {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            text.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        Some(Self {
            text: text.to_owned(),
            names: field("nodes")?.split(',').map(str::to_owned).collect(),
            quorum: field("quorum")?.parse().ok()?,
            max_ttl_ms: field("max_ttl_ms")?.parse().ok()?,
        })
    }

    pub(super) fn all_of(cluster: &Cluster) -> Vec<Self> {
        cluster.to_string().split(BECOMES).filter_map(Self::parse).collect()
    }

    /// Whether clients of these settings may have had a quorum until now. If enough of the nodes have the new settings,
    /// an earlier run has already taken the old settings out of use, because a node gets the new ones only after that.
    pub(super) fn is_in_force(
        &self,
        servers: &[RedisNode],
        states: &[Option<NodeKeys>],
        wait: Duration,
    ) -> bool {
        let has_changed = |state: &NodeKeys| state.was_moved() && state.waits_for() >= wait;
        let changed = |state: &NodeKeys| state.ours == Ours::Marked || has_changed(state);
        self.nodes_that(servers, states, changed).len() < self.needed()
    }

    /// Names of the nodes of these settings whose servers match the condition.
    pub(super) fn nodes_that(
        &self,
        servers: &[RedisNode],
        states: &[Option<NodeKeys>],
        is_so: impl Fn(&NodeKeys) -> bool,
    ) -> BTreeSet<String> {
        let all = servers.iter().zip(states);
        let so = all.filter(|(_, state)| state.as_ref().is_some_and(&is_so));
        let names = so.map(|(server, _)| name_in_marker(server.name()));
        names.filter(|name| self.names.contains(name)).collect()
    }

    /// Number of nodes that must be out of use, so that the remaining nodes of these settings are no quorum.
    pub(super) fn needed(&self) -> usize {
        (self.names.len() + 1).saturating_sub(self.quorum)
    }
}

fn name_in_marker(name: &str) -> String {
    let one = Settings::all_of(&Cluster::new([name], 1, 1)).pop();
    one.and_then(|one| one.names.into_iter().next()).unwrap_or_default()
}

/// All settings, except the new ones, whose clients get votes from some node now or later.
pub(super) fn old_settings(states: &[Option<NodeKeys>], rules: &Rules) -> BTreeSet<Settings> {
    let ours = rules.cluster.to_string();
    let all = states.iter().flatten().flat_map(|state| state.settings.iter());
    all.filter(|settings| settings.text != ours).cloned().collect()
}

/// Checks that the old nodes that did not answer are too few for a quorum of the old settings.
pub(super) fn enough_of(
    old: &Settings,
    servers: &[RedisNode],
    states: &[Option<NodeKeys>],
) -> Result<(), InitError> {
    let found = old.nodes_that(servers, states, |state| state.is_of(old));
    if found.len() >= old.needed() {
        return Ok(());
    }
    let answered = old.nodes_that(servers, states, |_| true);
    let (unmarked, missing): (Vec<String>, Vec<String>) = old
        .names
        .iter()
        .filter(|name| !found.contains(*name))
        .cloned()
        .partition(|name| answered.contains(name));
    Err(InitError::OldNodes {
        old: shown(&old.text, SETTINGS_MAX),
        reached: found.len(),
        needed: old.needed(),
        missing: names_shown(missing),
        unmarked: names_shown(unmarked),
    })
}

/// The names in a marker, cut to a sane number and length, because other clients may write any text into markers.
fn names_shown(names: Vec<String>) -> Vec<String> {
    let more = names.len().saturating_sub(NODE_COUNT_MAX);
    let first = names.iter().take(NODE_COUNT_MAX).map(|name| shown(name, WORD_MAX));
    first.chain((more > 0).then(|| format!("{more} more"))).collect()
}
