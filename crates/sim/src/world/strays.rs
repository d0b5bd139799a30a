//! Clients of another configuration, which have a node in their list by mistake. They are scripts of the world and have
//! no engine: they adopt a node that has just lost its data, mark it when its wait is over, and go away.

use std::sync::Arc;

use quorlock_core::marker::{Adoption, Cluster, Marker};
use quorlock_core::{Adopted, Answer, Command};

use super::{Mend, Process, SimEvent, World};
use crate::count::Count;
use crate::fact::{FaultEvent, NodeIndex};
use crate::node::{ConnectionId, Health};
use crate::time::MS;

/// The connection of a stray client. It is never told of changes, so all of them may be one.
const STRAY: ConnectionId = ConnectionId(u64::MAX);

impl World {
    /// A stray client may be the first one that finds a node without its data.
    pub(super) fn may_stray(&mut self, node: NodeIndex) {
        let server = &self.servers[node];
        let may = self.plan.later.strays && !self.progress.healing;
        if !may || server.process != Process::Runs || server.node.health != Health::Good {
            return;
        }
        let random = &mut self.random.strays;
        if !random.percent(40) {
            return;
        }
        let (names, quorum): (&[&str], usize) =
            if random.percent(70) { (&["stray"], 1) } else { (&["stray", "y", "z"], 2) };
        let (rules, quarantine) = (self.plan.rules(), self.plan.quarantine());
        let cluster = Cluster::new(names, quorum, rules.cluster.max_ttl_ms());
        let run_id = format!("{:040x}", server.node.run.id).into();
        let promoted_at = server.node.run.promoted_at.unwrap_or(-1);
        let marker = Marker { cluster, run_id, promoted_at, floor: 0 };
        let wait_ms = u64::try_from(quarantine / MS).unwrap_or(0);
        let (key, marker_key) = (rules.adoption.clone(), rules.marker.clone());
        let text = Adoption { marker, wait_ms }.to_string().into();
        let command = Command::Adopt { key, text, replaces: None, marker: marker_key, seen: None };
        let answer = self.servers[node].node.execute(STRAY, &command, self.now);
        let Answer::Adopting { text, .. } = answer else { return };
        if text.starts_with(&format!("quorlock 1 {} ", rules.cluster)) {
            return;
        }
        self.record.counts.add(Count::Strays);
        self.note_fault(FaultEvent::NodeAdoptedByOthers { node });
        let random = &mut self.random.strays;
        if random.percent(30) {
            let span = quarantine + random.between(0, quarantine / 2);
            self.plan_in(span, SimEvent::Mend(Mend::MarkForOthers(node, text)));
        }
    }

    /// The wait of the stray client's adoption is over. If the adoption is still there, its marker takes its place.
    pub(super) fn mark_for_others(&mut self, node: NodeIndex, adoption: Arc<str>) {
        let server = &self.servers[node];
        let is_up = server.process == Process::Runs && server.node.health == Health::Good;
        let Some(Adoption { marker, wait_ms }) = Adoption::parse(&adoption) else { return };
        if !is_up || self.progress.healing {
            return;
        }
        let rules = self.plan.rules();
        let adopted = Adopted { key: rules.adoption, text: adoption, age_ms: wait_ms };
        let text = marker.to_string().into();
        let command =
            Command::Mark { key: rules.marker, text, replaces: None, adoption: Some(adopted) };
        if self.servers[node].node.execute(STRAY, &command, self.now) == Answer::Marked {
            self.record.counts.add(Count::StraysMarked);
            self.note_fault(FaultEvent::NodeMarkedByOthers { node });
            let span = self.random.strays.between(0, self.plan.load.max_ttl);
            self.plan_in(span, SimEvent::Mend(Mend::SendStraysAway(node)));
        }
    }

    /// A person deletes what stray clients have left on a node and the clients must not replace.
    pub(super) fn send_strays_away(&mut self, node: NodeIndex) {
        let rules = self.plan.rules();
        let ours = format!("quorlock 1 {} ", rules.cluster);
        let replaced = "quorlock 1 nodes=stray quorum=1 ";
        let server = &mut self.servers[node].node;
        for key in [rules.marker.clone(), rules.adoption] {
            let text = server.stored(&key, self.now).and_then(|it| it.value());
            let text = text.map(|text| String::from_utf8_lossy(text).into_owned());
            let stays = |text: String| {
                text.starts_with(&ours) || key != rules.marker && text.starts_with(replaced)
            };
            if text.is_some_and(|text| !stays(text)) {
                server.delete(&key, self.now);
            }
        }
    }
}
