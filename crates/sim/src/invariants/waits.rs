//! A client writes a marker (the key that shows that a node lost no data) only after a wait in which the node does not
//! vote. An adoption key on the node begins the wait. The client's boot clock measures it, and not the node's clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorlock_core::marker::{Adoption, Marker};
use quorlock_core::{Answer, Command, Evidence, Ticket, TrustState, Verb};

use super::Checked;
use crate::fact::{ClientId, Fact, NodeIndex, span};
use crate::invariants::View;
use crate::time::{MS, SECOND, Time};

pub(crate) const NAME: &str = "waits";

pub(crate) const SENTENCE: &str = "Uptime ≥ max_ttl·(1+ε) + 2 s, bounded also by our own Δboot observation. \
     Minimum waits (quarantine, adoption) use Δboot only. (algorithm) — Since a client first asked of a \
     run or of an adoption, no more time has passed than by its own boot clock.";

type Channel = (ClientId, NodeIndex);

/// Each client's information about each node, in times of the client's boot clock. Models report no `Fact::Started`,
/// which sets `is_watching`, so this record stays empty there.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Waits {
    is_watching: bool,
    /// The newest connection with evidence from the node, and the number of pushes on it that report a flush.
    epochs: BTreeMap<Channel, (u64, u64)>,
    /// The earliest possible start of each server run: the time of the client's first `INFO` request to it, less the
    /// uptime in the reply.
    runs: BTreeMap<(Channel, String), Time>,
    /// The last adoption (the key that begins a node's wait for a marker) that the client has read.
    adoptions: BTreeMap<Channel, Seen>,
    /// The newest command about trust: its number, and the adoption that it requests. `None`: no request still counts.
    asked: BTreeMap<Channel, (u32, Option<Arc<str>>)>,
    /// Adoptions that arrived in this tick. They take effect at the end of the tick, unless evidence in the same batch
    /// makes the engine send a new request.
    heard: BTreeMap<Channel, Seen>,
}

/// An adoption as a client read it: the text of the key, the earliest start of the wait, and the time of the request.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Seen {
    text: Arc<str>,
    began: Time,
    asked: Time,
}

impl Waits {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Started { .. } => self.is_watching = true,
            _ if !self.is_watching => {}
            Fact::Evidence { client, node, sent, evidence } => {
                self.proved((*client, *node), sent.boot().as_nanos(), evidence);
            }
            Fact::Answered {
                client,
                node,
                sent,
                ticket,
                answer: Answer::Adopting { text, age },
            } if self.is_asked_for((*client, *node), ticket.round, text) => {
                // The node measured this age after the client had sent the request. So the adoption began at the
                // earliest this long before the request.
                let asked = sent.boot().as_nanos();
                let began = asked - age.as_nanos() as i64;
                let seen = Seen { text: text.clone(), began, asked };
                self.heard.insert((*client, *node), seen);
            }
            Fact::Ordered { client, node, ticket, command } if ticket.verb == Verb::Trust => {
                return self.ordered((*client, *node), *ticket, command, view);
            }
            // A client that refuses a node ignores the node's adoption, because a wait does not help.
            Fact::TrustState { client, node, trust_state: TrustState::Refused(_) } => {
                let channel = (*client, *node);
                self.heard.remove(&channel);
                if let Some((_, asked)) = self.asked.get_mut(&channel) {
                    *asked = None;
                }
            }
            // The marker has ended the wait, so the beginning of this wait must not count for a later adoption.
            Fact::TrustState { client, node, trust_state: TrustState::Trusted } => {
                self.adoptions.remove(&(*client, *node));
                self.heard.remove(&(*client, *node));
            }
            Fact::TickOver { client } => {
                let mut heard = self.heard.split_off(&(*client, 0));
                self.heard.append(&mut heard.split_off(&(*client + 1, 0)));
                for (channel, seen) in heard {
                    self.begins(channel, seen);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn proved(&mut self, channel: Channel, asked: Time, evidence: &Evidence) {
        let Evidence::Seen { epoch, flushes, info, .. } = evidence else { return };
        let newest = self.epochs.entry(channel).or_default();
        if (*epoch, *flushes) < *newest {
            return;
        }
        *newest = (*epoch, *flushes);
        let Some(info) = info else { return };
        // The client identifies the node again. Its earlier request for an adoption may concern another run of the
        // server, so it no longer counts.
        if let Some((_, asked)) = self.asked.get_mut(&channel) {
            *asked = None;
        }
        let Ok(info) = info else { return };
        let find = |name: &str| {
            info.lines().find_map(|channel| channel.strip_prefix(name)?.strip_prefix(':'))
        };
        if let (Some(run), Some(uptime)) = (find("run_id"), find("uptime_in_seconds")) {
            let uptime: i64 = uptime.parse().unwrap_or(0);
            let began = asked - uptime.max(0) * SECOND;
            self.runs.entry((channel, run.to_owned())).or_insert(began);
        }
    }

    fn ordered(
        &mut self,
        channel: Channel,
        ticket: Ticket,
        command: &Command,
        view: &View<'_>,
    ) -> Checked {
        let asked = match command {
            Command::Adopt { text, .. } => Some(text.clone()),
            _ => None,
        };
        self.asked.insert(channel, (ticket.round, asked));
        let heard = self.heard.remove(&channel);
        let Command::Mark { text, replaces, adoption, .. } = command else { return Ok(()) };
        if let Some(seen) = heard {
            self.begins(channel, seen);
        }
        let (began, needed) = match adoption {
            Some(it) => {
                let seen = self.adoptions.get(&channel).filter(|seen| seen.text == it.text);
                (seen.map(|seen| seen.began), it.age_ms as i64 * MS)
            }
            // A durable node that came back with its data (`replaces` is its old marker) need not wait. Any other node
            // without an adoption must have run for a quarantine.
            None if view.terms.durable.contains(&channel.1) && replaces.is_some() => (None, 0),
            None => {
                let run = Marker::parse(text).map_or(String::new(), |it| it.run_id.into());
                (self.runs.get(&(channel, run)).copied(), view.terms.quarantine)
            }
        };
        let now = view.tick_reading(channel.0).boot().as_nanos();
        let passed = began.map_or(0, |began| now - began);
        if passed < needed {
            let ((client, node), passed, needed) = (channel, span(passed), span(needed));
            return Err(format!(
                "client {client} marks node {node} after {passed} of {needed}, as far as it can know"
            ));
        }
        Ok(())
    }

    /// Records an adoption. If its text is new, a client began the adoption after the request that showed the previous
    /// one, so it cannot be older than that request.
    fn begins(&mut self, channel: Channel, mut seen: Seen) {
        if let Some(before) = self.adoptions.get(&channel) {
            let is_same = before.text == seen.text;
            seen.began = seen.began.max(if is_same { before.began } else { before.asked });
        }
        self.adoptions.insert(channel, seen);
    }

    /// Whether this adoption names the server run and promotion that the client's latest request named. The wait does
    /// not begin with an adoption of another run or promotion.
    fn is_asked_for(&self, of: Channel, round: u32, found: &str) -> bool {
        let Some((newest, Some(asked))) = self.asked.get(&of) else { return false };
        let (asked, found) = (Adoption::parse(asked), Adoption::parse(found));
        let run = |it: &Adoption| (it.marker.run_id.clone(), it.marker.promoted_at);
        *newest == round && asked.as_ref().map(run) == found.as_ref().map(run)
    }
}
