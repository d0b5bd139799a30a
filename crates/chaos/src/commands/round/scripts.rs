//! Scripts that hold a lock by `quorlock acquire --hold-by`: their keepers, and the locks that they leave.

use std::fs;
use std::path::Path;

use quorlock::Lease;
use quorlock_servers::Reply;
use rustix::process::Pid;

use super::super::plan::KEYS;
use super::Round;
use crate::act::node_name;
use crate::clock::now;
use crate::workers::lock;

impl Round<'_> {
    /// Checks that no node has the lock of a script that was killed more than a ttl ago.
    pub(super) fn check_dead(&mut self) {
        let (due, rest) = self.blows.dead.drain(..).partition(|(at, _)| *at <= now());
        self.blows.dead = rest;
        for (_, id) in Vec::into_iter(due) {
            let key = KEYS[self.context.book().runs[id].run.key];
            for place in 0..self.plan.nodes {
                let value = self.nemesis.servers.node(place).command(&["GET", key]);
                if format!("{value:?}").contains(&format!("script-{id}-")) {
                    let what = format!(
                        "node {} has the lock of run {id}, a script that was killed more than a ttl ago",
                        node_name(place)
                    );
                    lock(&self.context.ledger).violated(now(), what);
                }
            }
        }
    }

    /// Checks that no node has a lock. No process has extended a lock within the last ttl, so all have expired.
    pub(super) fn check_keys(&self) -> Result<(), String> {
        for place in 0..self.plan.nodes {
            for key in KEYS {
                let reply = self.nemesis.servers.node(place).command(&["EXISTS", key]);
                if reply.map_err(|error| error.to_string())? != Reply::Int(0) {
                    let what = format!("on node {}, key {key} is left", node_name(place));
                    lock(&self.context.ledger).violated(now(), what);
                }
            }
        }
        Ok(())
    }
}

/// Returns the keeper of a script, which the script's lease names.
pub(super) fn keeper_of(lease_file: &Path) -> Option<Pid> {
    let lease: Lease = fs::read_to_string(lease_file).ok()?.trim().parse().ok()?;
    Pid::from_raw(lease.keeper()?.pid.cast_signed())
}
