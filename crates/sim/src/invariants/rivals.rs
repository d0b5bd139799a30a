//! A client grants no lock while it knows that a node votes, or may soon vote, for clients of another configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorlock_core::info::Info;
use quorlock_core::marker::{Adoption, Cluster, Marker};
use quorlock_core::{Answer, Command, Evidence, MarkerSeen, Verb};

use super::Checked;
use crate::count::{Count, Counts};
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::invariants::View;

pub(crate) const NAME: &str = "rivals";

pub(crate) const SENTENCE: &str = "S37: While the last word of a node is another configuration's marker, or its \
     adoption, no attempt succeeds. A client replaces an adoption only if too few nodes for a quorum are left to the \
     other configuration. (algorithm)";

type Channel = (ClientId, NodeIndex);

/// The other configurations that clients know of. Models report no `Fact::Started`, which sets `is_watching`, so this
/// stays empty there.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Rivals {
    is_watching: bool,
    /// The newest connection with evidence from the node, and the number of pushes on it that report a flush.
    epochs: BTreeMap<Channel, (u64, u64)>,
    /// The number of the newest command about trust. The client ignores answers to earlier ones.
    asked: BTreeMap<Channel, u32>,
    words: BTreeMap<Channel, Word>,
    /// The adoption that was read last in this tick: the channel, and its word before. If the evidence that came with
    /// it makes the client begin a new examination, it ignores the adoption.
    newest: Option<(Channel, Option<Word>)>,
}

/// The last word of a node about another configuration.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Word {
    Marker,
    /// The marker was there, and is gone. The adoption has not been read since.
    MarkerGone,
    /// The adoption of these settings, read on this connection.
    Adoption(Cluster, (u64, u64)),
}

impl Rivals {
    pub(crate) fn check(
        &mut self,
        fact: &Fact<'_>,
        view: &View<'_>,
        counts: &mut Counts,
    ) -> Checked {
        match fact {
            Fact::Started { .. } => self.is_watching = true,
            _ if !self.is_watching => {}
            Fact::Tick { .. } => self.newest = None,
            Fact::Evidence { client, node, evidence, .. }
                if view.ledger.needs_evidence(*client) =>
            {
                let channel = (*client, *node);
                self.newest.take_if(|(newest, _)| *newest == channel);
                self.proved(channel, evidence, view);
            }
            Fact::Ordered { client, node, ticket, command } if ticket.verb == Verb::Trust => {
                self.asked.insert((*client, *node), ticket.round);
                // A marker or a replacement follows from the adoption, and is no new examination.
                let is_new =
                    matches!(command, Command::Identify | Command::Adopt { replaces: None, .. });
                let is_it = |(channel, _): &mut (Channel, _)| *channel == (*client, *node);
                if is_new && let Some((channel, before)) = self.newest.take_if(is_it) {
                    self.set(channel, before);
                }
                return self.ordered(*client, command, view, counts);
            }
            Fact::Answered {
                client, node, ticket, answer: Answer::Adopting { text, .. }, ..
            } if view.ledger.needs_evidence(*client) => {
                let channel = (*client, *node);
                if self.asked.get(&channel) == Some(&ticket.round) {
                    self.newest = Some((channel, self.words.get(&channel).cloned()));
                    self.adopted(channel, text, view);
                }
            }
            Fact::Granted { guard, .. } => {
                let guards = view.guards.of(*guard);
                let is_handed_over = guards.is_some_and(|guard| guard.handover_count > 0);
                let of_client = (guard.client, 0)..(guard.client + 1, 0);
                if let Some(((_, node), word)) = self.words.range(of_client).next()
                    && !is_handed_over
                {
                    return Err(format!("{guard} is granted, although node {node} has {word:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn proved(&mut self, channel: Channel, evidence: &Evidence, view: &View<'_>) {
        let Evidence::Seen { epoch, flushes, info, marker, .. } = evidence else { return };
        let (newest, epoch) = (self.epochs.entry(channel).or_default(), (*epoch, *flushes));
        if epoch < *newest {
            return;
        }
        *newest = epoch;
        let info = info.as_ref().and_then(|info| Info::parse(info.as_ref().ok()?).ok());
        let evicts = info.as_ref().is_some_and(|info| info.evicts_by.is_some());
        let is_refused_by_all = info.is_some_and(|info| !info.is_master || info.is_cluster);
        match marker {
            // Clients of every configuration refuse the server. A master that evicts keys keeps a marker for locks that
            // it granted before. The examination is over, so the client ignores the answers to its earlier commands.
            marker if is_refused_by_all || evicts && *marker == MarkerSeen::Missing => {
                self.asked.remove(&channel);
                self.set(channel, None);
            }
            MarkerSeen::Text(text) if view.ledger.is_of_cluster(text) => self.set(channel, None),
            MarkerSeen::Text(_) => self.set(channel, Some(Word::Marker)),
            MarkerSeen::Missing if self.words.get(&channel) == Some(&Word::Marker) => {
                self.set(channel, Some(Word::MarkerGone));
            }
            _ => {}
        }
    }

    fn set(&mut self, channel: Channel, word: Option<Word>) {
        match word {
            Some(word) => self.words.insert(channel, word),
            None => self.words.remove(&channel),
        };
    }

    fn adopted(&mut self, channel: Channel, text: &Arc<str>, view: &View<'_>) {
        let found = Marker::parse(text).filter(|_| !view.ledger.is_of_cluster(text));
        let epoch = self.epochs.get(&channel).copied().unwrap_or_default();
        self.set(channel, found.map(|found| Word::Adoption(found.cluster, epoch)));
    }

    fn ordered(
        &self,
        client: ClientId,
        command: &Command,
        view: &View<'_>,
        counts: &mut Counts,
    ) -> Checked {
        let Command::Adopt { replaces: Some(text), .. } = command else { return Ok(()) };
        let Some(theirs) = Adoption::parse(text).map(|it| it.marker.cluster) else {
            return Err(format!("client {client} replaces a text that is no adoption"));
        };
        if view.ledger.is_of_cluster(text) {
            return Ok(());
        }
        counts.add(Count::StraysReplaced);
        let of_client = self.words.range((client, 0)..(client + 1, 0));
        let is_adopted = |(channel, word): &(&Channel, &Word)| {
            matches!(word, Word::Adoption(cluster, epoch)
                if *cluster == theirs && self.epochs.get(channel) == Some(epoch))
        };
        let adopted = of_client.filter(is_adopted).count();
        let Some((nodes, quorum)) = theirs.nodes_and_quorum() else {
            return Err(format!("client {client} replaces an adoption of {theirs}"));
        };
        if nodes.saturating_sub(adopted) < quorum {
            return Ok(());
        }
        Err(format!(
            "client {client} replaces an adoption of {theirs}, of which it knows {adopted}"
        ))
    }
}
