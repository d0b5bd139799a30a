//! A key that a node may have set for a client is released there. If the release fails, the client sends it again as
//! soon as the node answers, until the key has expired.

use std::collections::BTreeMap;

use quorlock_core::{Answer, Ticket, Verb};

use super::Checked;
use crate::fact::{ClientId, Fact, NodeIndex, span};
use crate::invariants::View;
use crate::time::{MS, SECOND, Time};

pub(crate) const NAME: &str = "owed";

pub(crate) const SENTENCE: &str = "Unknown = no vote, release owed. S15: every attempt that ends other than \
     by success releases on all nodes. (algorithm) — What is owed is sent again within a second, and \
     as soon as the node answers, until the key has expired.";

/// The longest time until a client sends a failed release again, by its boot clock.
const RETRY_MAX: Time = SECOND;

/// Keys that may be on nodes. Models report no `Fact::Started`, which sets `is_watching`, so this stays empty there.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Owed {
    is_watching: bool,
    /// Values that were sent to a node and may be stored there. The answer to a release removes the value.
    keys: BTreeMap<(ClientId, NodeIndex, Vec<u8>), Set>,
    /// The value in each command in flight.
    commands: BTreeMap<(ClientId, NodeIndex, Ticket), Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Set {
    /// The first of the commands sent to this node that can set the key.
    first: Ticket,
    /// The earliest time at which the key has expired, by the client's boot clock.
    until: Time,
    /// The time at which the last release failed. `None` if none failed, or if the client has sent it again.
    failed: Option<Time>,
    /// `is_reach`: the last release failed because the node was unreachable. `is_back`: the node has answered since.
    is_back: bool,
    is_reach: bool,
}

impl Owed {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Started { .. } => self.is_watching = true,
            Fact::Ordered { client, node, ticket, command } if self.is_watching => {
                let Some((_, value)) = command.subject() else { return Ok(()) };
                let value = value.as_bytes().to_vec();
                match ticket.verb {
                    Verb::Release => {
                        if let Some(set) = self.keys.get_mut(&(*client, *node, value.clone())) {
                            set.failed = None;
                        }
                    }
                    Verb::Acquire | Verb::Heal => {}
                    _ => return Ok(()),
                }
                self.commands.insert((*client, *node, *ticket), value);
            }
            Fact::Detached { guard, detached: Some(detached) } => {
                let value = detached.entry.value.as_bytes();
                self.keys.retain(|(of, _, its), _| *of != guard.client || its != value);
            }
            Fact::Sent { client, node, ticket, .. }
                if matches!(ticket.verb, Verb::Acquire | Verb::Heal) =>
            {
                self.sent(*client, *node, *ticket, view);
            }
            Fact::Answered { client, node, ticket, answer, .. } if self.is_watching => {
                let now = view.tick_reading(*client).boot().as_nanos();
                // If the client needs evidence, an untrusted node's answer about a vote proves nothing.
                let is_sure = !view.ledger.needs_evidence(*client)
                    || matches!(ticket.verb, Verb::Release | Verb::Inspect | Verb::Trust);
                self.on_answer((*client, *node), *ticket, (answer, is_sure), now);
            }
            Fact::TickOver { client } => return self.tick_over(*client, view),
            Fact::Drained { client } => {
                let now = view.tick_reading(*client).boot().as_nanos();
                let is_kept = |value: &[u8]| {
                    let mut guards = view.guards.iter();
                    guards.any(|(_, guard)| guard.is_kept() && guard.value().as_bytes() == value)
                };
                let mut left = self.of_client(*client);
                let left = left.find(|((.., value), set)| now < set.until && !is_kept(value));
                if let Some(((_, node, _), set)) = left {
                    let left = span(set.until - now);
                    return Err(format!(
                        "client {client} owes nothing any more, and node {node} may have its key for {left}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn of_client(
        &self,
        client: ClientId,
    ) -> impl Iterator<Item = (&(ClientId, NodeIndex, Vec<u8>), &Set)> {
        let from = (client, 0, Vec::new());
        self.keys.range(from..).take_while(move |((of, ..), _)| *of == client)
    }

    fn sent(&mut self, client: ClientId, node: NodeIndex, ticket: Ticket, view: &View<'_>) {
        let Some(value) = self.commands.get(&(client, node, ticket)) else { return };
        if view.ledger.is_detached(value) {
            return;
        }
        let ttl = view.ledger.request(client, ticket.lock);
        let ttl = ttl.map_or(0, |it| it.timing.ttl_ms() as i64 * MS);
        let until = view.reading(client).boot().as_nanos() + ttl;
        let new = Set { first: ticket, until, failed: None, is_back: false, is_reach: false };
        let set = self.keys.entry((client, node, value.clone())).or_insert(new);
        set.until = until;
    }

    fn on_answer(
        &mut self,
        (client, node): (ClientId, NodeIndex),
        ticket: Ticket,
        (answer, is_sure): (&Answer, bool),
        now: Time,
    ) {
        let failure = match answer {
            Answer::Failed(failure) => Some(failure),
            _ if !is_sure => None,
            _ => {
                let from = (client, node, Vec::new());
                let of_line = self.keys.range_mut(from..);
                for (_, set) in of_line.take_while(|((of, at, _), _)| (*of, *at) == (client, node))
                {
                    set.is_back |= set.is_reach;
                }
                None
            }
        };
        let Some(value) = self.commands.remove(&(client, node, ticket)) else { return };
        let key = (client, node, value);
        match (ticket.verb, failure) {
            (Verb::Release, None) => drop(self.keys.remove(&key)),
            (Verb::Release, Some(failure)) => {
                if let Some(set) = self.keys.get_mut(&key) {
                    set.failed = Some(now);
                    (set.is_reach, set.is_back) = (failure.kind().is_about_reach(), false);
                }
            }
            // The node refused the first command that could set the key, so there is no key to release.
            (_, Some(failure))
                if !failure.may_have_been_executed()
                    && !failure.kind().is_about_reach()
                    && self.keys.get(&key).is_some_and(|set| set.first == ticket) =>
            {
                self.keys.remove(&key);
            }
            _ => {}
        }
    }

    fn tick_over(&mut self, client: ClientId, view: &View<'_>) -> Checked {
        let now = view.tick_reading(client).boot().as_nanos();
        for ((_, node, _), set) in self.of_client(client) {
            let Some(failed) = set.failed.filter(|_| now < set.until) else { continue };
            let ago = span(now - failed);
            if set.is_back {
                return Err(format!(
                    "client {client}: a release has failed on node {node}, which answers again, and is not sent again"
                ));
            }
            if now - failed > RETRY_MAX {
                return Err(format!(
                    "client {client}: a release has failed on node {node} {ago} ago, and is not sent again"
                ));
            }
        }
        // An expired key needs no release.
        self.keys.retain(|(of, ..), set| *of != client || now < set.until);
        Ok(())
    }
}
