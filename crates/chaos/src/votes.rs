//! Oracle 4: what each server did, replayed from its `MONITOR` stream, says for how long it had voted
//! for whom. Whoever held a lock must have had the votes of a quorum all the time.
//!
//! A writer's vote is a key that was set, a reader's a member of a sorted set, both while the server was marked
//! for its present run: what is granted before that, quarantined nodes grant, and it is none. A vote ends when
//! it is deleted, or would have expired; also if the server lost its data before that: then it must not vote
//! for anybody else so soon, and that is what the mark is for.

mod replay;

use std::collections::BTreeMap;

use quorlock_sim::time::{MS, Time};

pub(crate) use self::replay::{INTENT, Reading, replay};
use crate::holds::Hold;

/// How exact times are when a clock is read here and another one there.
const SLACK: Time = 2 * MS;

/// A vote, on the clock that all share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vote {
    pub(crate) resource: usize,
    pub(crate) value: String,
    /// It excludes writers only.
    pub(crate) is_readers: bool,
    pub(crate) from: Time,
    pub(crate) to: Time,
}

impl Vote {
    /// Whether it is for who holds that lock, as what it is at that time. A writer's vote is good for a reader: nobody
    /// has told the node of the downgrade yet.
    fn is_for(&self, hold: &Hold, at: Time) -> bool {
        let is_alive = (self.from - SLACK..self.to + SLACK).contains(&at);
        is_alive && (!self.is_readers || at >= hold.reads_from)
    }
}

/// What a node did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) votes: Vec<Vote>,
    /// When anything may have been granted that was not seen.
    pub(crate) blind: Vec<(Time, Time)>,
    /// How often a writer that waits has left word of it, and for how long at most, in milliseconds.
    pub(crate) intents: u64,
    pub(crate) longest_intent: i64,
    /// What it said of locks and its mark, for whoever has to understand what came of it.
    pub(crate) said: Vec<(Time, String)>,
}

impl Record {
    /// Adds another server's at the same address.
    pub(crate) fn add(&mut self, other: Self) {
        self.votes.extend(other.votes);
        self.blind.extend(other.blind);
        self.intents += other.intents;
        self.longest_intent = self.longest_intent.max(other.longest_intent);
        self.said.extend(other.said);
    }
}

/// What became of the holds that were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VoteCheck<'a> {
    pub(crate) judged: u64,
    /// Of these nobody can say: too many nodes were not seen.
    pub(crate) blind: u64,
    /// These had too few votes.
    pub(crate) short: Vec<Short<'a>>,
}

/// A hold that had too few votes for one of its resources: since when, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Short<'a> {
    pub(crate) hold: &'a Hold,
    pub(crate) resource: usize,
    pub(crate) at: Time,
    pub(crate) count: usize,
}

/// Whether every hold had so many votes for each of its resources, for all of its time.
pub(crate) fn check_votes<'a>(holds: &'a [Hold], nodes: &[Record], quorum: usize) -> VoteCheck<'a> {
    let mut vote_check = VoteCheck::default();
    // By what is asked for: a round has thousands of votes.
    let mut votes: BTreeMap<&str, Vec<(usize, &Vote)>> = BTreeMap::new();
    for (node, record) in nodes.iter().enumerate() {
        for vote in &record.votes {
            let token = vote.value.split(' ').next().unwrap_or_default();
            votes.entry(token).or_default().push((node, vote));
        }
    }
    for hold in holds.iter().filter(|hold| hold.from < hold.to) {
        // One that was handed on has the token that its nodes have, and a number.
        let token = hold.token.split('/').next().unwrap_or_default();
        let its = votes.get(token).map(Vec::as_slice).unwrap_or_default();
        let unseen = |record: &Record| {
            record.blind.iter().any(|(from, to)| *from <= hold.to && *to >= hold.asked)
        };
        let blind: Vec<bool> = nodes.iter().map(unseen).collect();
        let (mut is_blind, mut short) = (false, None);
        for &resource in &hold.resources {
            let its = its.iter().filter(|(_, vote)| vote.resource == resource);
            let its: Vec<_> = its.collect();
            let alive = |at: Time, node: usize| {
                its.iter().any(|(of, vote)| *of == node && vote.is_for(hold, at))
            };
            let count = |at: Time, with_blind: bool| {
                let nodes =
                    (0..nodes.len()).filter(|node| with_blind && blind[*node] || alive(at, *node));
                nodes.count()
            };
            // It gets fewer only when one ends.
            let ends = its.iter().map(|(_, vote)| vote.to + SLACK);
            let mut moments: Vec<Time> =
                ends.filter(|at| (hold.from..hold.to).contains(at)).collect();
            moments.push(hold.from);
            moments.sort_unstable();
            let lowest =
                |with_blind| moments.iter().copied().find(|at| count(*at, with_blind) < quorum);
            is_blind |= lowest(false).is_some();
            let at = lowest(true);
            short = short.or(at.map(|at| Short { hold, resource, at, count: count(at, true) }));
        }
        if is_blind && short.is_none() {
            vote_check.blind += 1;
        } else {
            vote_check.judged += 1;
        }
        vote_check.short.extend(short);
    }
    vote_check
}

#[cfg(test)]
mod tests;
