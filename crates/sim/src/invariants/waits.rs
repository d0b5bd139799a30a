//! A node is marked when it has been waited for, by the clock of the client that waits: whatever the node's
//! own clock says.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorlock_core::marker::{Adoption, Marker};
use quorlock_core::{Answer, Command, Evidence, Ticket, TrustState, Verb};

use super::Checked;
use crate::fact::{ClientId, Fact, NodeIndex, span};
use crate::time::{MS, SECOND, Time};
use crate::view::View;

pub(crate) const NAME: &str = "waits";

pub(crate) const SENTENCE: &str = "Uptime ≥ max_ttl·(1+ε) + 2 s, bounded also by our own Δboot observation. \
     Minimum waits (quarantine, adoption) use Δboot only. (protocol, 7 and 9) — Since a client first asked of a \
     run or of an adoption, no more time has passed than by its own boot clock.";

type Channel = (ClientId, NodeIndex);

/// What each client has heard of each node, in points of its boot clock. In the models no client begins its
/// life, and so nothing is kept.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Waits {
    is_watching: bool,
    /// The newest connection, and data on it, of which a node has spoken.
    epochs: BTreeMap<Channel, (u64, u64)>,
    /// When each run had begun at the earliest, by what it said when it was first heard of.
    runs: BTreeMap<(Channel, String), Time>,
    /// The adoption that was seen last, when it had begun at the earliest, by all that was heard of it, and
    /// when it was asked for last.
    adoptions: BTreeMap<Channel, Seen>,
    /// The newest command about trust: its number, and the adoption that it asks for, if it does.
    asked: BTreeMap<Channel, (u32, Option<Arc<str>>)>,
    /// What was answered in this turn: it counts unless the engine had something new to ask by then, for
    /// what came with the answer.
    heard: BTreeMap<Channel, Seen>,
}

/// An adoption, as a client has heard of it.
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
            Fact::Proved { client, node, sent, evidence } => {
                self.proved((*client, *node), sent.boot().as_nanos(), evidence);
            }
            Fact::Told { client, node, sent, ticket, answer: Answer::Adopting { text, age } }
                if self.is_asked_for((*client, *node), ticket.round, text) =>
            {
                // That was its age between asking and hearing: it had begun so long before asking at most.
                let asked = sent.boot().as_nanos();
                let began = asked - age.as_nanos() as i64;
                let seen = Seen { text: text.clone(), began, asked };
                self.heard.insert((*client, *node), seen);
            }
            Fact::Ordered { client, node, ticket, command } if ticket.verb == Verb::Trust => {
                return self.ordered((*client, *node), *ticket, command, view);
            }
            // A client that refuses a node for another reason no longer takes it into use, and is not told so.
            Fact::TrustState { client, node, trust_state: TrustState::Refused(_) } => {
                let channel = (*client, *node);
                self.heard.remove(&channel);
                if let Some((_, asked)) = self.asked.get_mut(&channel) {
                    *asked = None;
                }
            }
            // The adoption has ended with the marker. A later one has begun later.
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
        // The client looks at the node anew; what it had asked of it before may be about another run.
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
            // It came back with its data and need not wait; one that is adopted must.
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

    /// One that was begun anew, perhaps by another client, is younger than the look at the one before it.
    fn begins(&mut self, channel: Channel, mut seen: Seen) {
        if let Some(before) = self.adoptions.get(&channel) {
            let is_same = before.text == seen.text;
            seen.began = seen.began.max(if is_same { before.began } else { before.asked });
        }
        self.adoptions.insert(channel, seen);
    }

    /// Whether this is the adoption that was asked for last. One for another run, or from before it was a
    /// replica, is no beginning of the wait.
    fn is_asked_for(&self, of: Channel, round: u32, found: &str) -> bool {
        let Some((newest, Some(asked))) = self.asked.get(&of) else { return false };
        let (asked, found) = (Adoption::parse(asked), Adoption::parse(found));
        let run = |it: &Adoption| (it.run_id.clone(), it.promoted_at);
        *newest == round && asked.as_ref().map(run) == found.as_ref().map(run)
    }
}
