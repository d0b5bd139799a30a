//! An attach asks a node for a detached lock only if no unanswered command may set the lock's value there. A failed
//! attach restores the lock's earlier value unless the lock is over. A release by value alone is sent once.

use std::collections::{BTreeMap, BTreeSet};

use quorlock_core::{Answer, Command, Holding, LockId, Origin, ReleaseForm, Ticket, Value, Verb};

use super::Checked;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::invariants::View;

pub(crate) const NAME: &str = "detached";

pub(crate) const SENTENCE: &str = "After detach, v is never written where it is absent, so its presence on ≥ Q trusted \
     nodes proves continuity; nodes that the text lists with an unanswered heal give none. A failed attach gives each \
     node back while v can still have a quorum. (kinds, 4)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Detached {
    /// The value of each command in flight that can set a lock where it is absent.
    sets: BTreeMap<(ClientId, NodeIndex, Ticket), Vec<u8>>,
    /// For each value and node, the number of commands in flight, or without a known outcome, that may set the value.
    open: BTreeMap<(Vec<u8>, NodeIndex), u32>,
    /// For each attempt to attach, the nodes on which the lock was absent.
    absent: BTreeMap<(ClientId, LockId, u32), BTreeSet<NodeIndex>>,
    held: BTreeSet<(ClientId, LockId)>,
    by_value: BTreeSet<(ClientId, NodeIndex, Ticket)>,
}

impl Detached {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Granted { guard, .. } => drop(self.held.insert((guard.client, guard.lock))),
            Fact::Ordered { client, node, ticket, command } => {
                return self.ordered((*client, *node, *ticket), command, view);
            }
            Fact::Answered { client, node, ticket, answer, .. } => {
                self.answered((*client, *node, *ticket), answer);
            }
            _ => {}
        }
        Ok(())
    }

    fn ordered(
        &mut self,
        (client, node, ticket): (ClientId, NodeIndex, Ticket),
        command: &Command,
        view: &View<'_>,
    ) -> Checked {
        let Some((_, value)) = command.subject() else { return Ok(()) };
        let request = view.ledger.request(client, ticket.lock);
        let is_open = |value: &Value| self.open.contains_key(&(value.as_bytes().to_vec(), node));
        match (command, ticket.verb) {
            (Command::Attach { from, .. }, _) if is_open(from) => {
                return Err(format!(
                    "client {client} attaches a lock on node {node}, and an unanswered command may set it there"
                ));
            }
            (Command::Attach { .. }, _) => {}
            (_, Verb::Extend) if request.is_none() && is_open(value) => {
                return Err(format!(
                    "client {client} extends a lock on node {node}, and an unanswered command may set it there"
                ));
            }
            (_, Verb::Acquire | Verb::Heal) => {
                let value = value.as_bytes().to_vec();
                *self.open.entry((value.clone(), node)).or_default() += 1;
                self.sets.insert((client, node, ticket), value);
            }
            (Command::Release { form: ReleaseForm::Taken(from), .. }, _)
                if from.by_value && !self.by_value.insert((client, node, ticket)) =>
            {
                return Err(format!("client {client} sends a release by value again: {command:?}"));
            }
            (Command::Release { form: ReleaseForm::Plain { .. } | ReleaseForm::Shared, .. }, _) => {
                let origin = request.map(|request| &request.origin);
                let attempt = (client, ticket.lock, ticket.round);
                let absent = self.absent.get(&attempt).map_or(0, BTreeSet::len);
                let quorum = view.terms.quorum;
                let is_over = quorum.is_out_of_reach(quorum.nodes() - absent, 0);
                let is_own = |from: &Value| from != value;
                if let Some(Origin::Detached(from)) = origin
                    && is_own(&from.value)
                    && !is_over
                    && !self.held.contains(&(client, ticket.lock))
                {
                    return Err(format!(
                        "client {client} attached in vain, and gives nothing back"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn answered(&mut self, (client, node, ticket): (ClientId, NodeIndex, Ticket), answer: &Answer) {
        let is_absent = match answer {
            Answer::Absent => true,
            Answer::RefusedFenced { holding, .. } => **holding == Holding::Free,
            _ => false,
        };
        if is_absent && matches!(ticket.verb, Verb::Acquire | Verb::Raise) {
            let attempt = (client, ticket.lock, ticket.round);
            self.absent.entry(attempt).or_default().insert(node);
        }
        let is_over =
            !matches!(answer, Answer::Failed(failure) if failure.may_have_been_executed());
        let Some(value) = self.sets.remove(&(client, node, ticket)).filter(|_| is_over) else {
            return;
        };
        if let Some(count) = self.open.get_mut(&(value.clone(), node)) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&(value, node));
            }
        }
    }
}
