//! Findings about keys: those that look like locks and never expire, and fencing counters.

use quorlock_core::display::{WORD_MAX, shown};

use super::Case;
use crate::doctor::Finding;
use crate::doctor::Severity::{Note, Warning};
use crate::doctor::look::Facts;
use crate::scan::COUNTERS_MAX;

const NAMED_MAX: usize = 5;

impl Case<'_> {
    /// Names the locks that have a fencing counter. A holder without a fencing token makes the tokens of the others useless.
    pub(super) fn fenced(facts: &Facts) -> Option<Finding> {
        let count = facts.fenced.len();
        let names = facts.fenced.iter().take(NAMED_MAX);
        let names: Vec<String> =
            names.map(|name| format!("\"{}\"", shown(name, WORD_MAX))).collect();
        let more = match count.saturating_sub(names.len()) {
            0 => String::new(),
            _ if count >= COUNTERS_MAX => " and many more".to_owned(),
            more => format!(" and {more} more"),
        };
        (count > 0).then(|| {
            Note.finding(
                "fenced",
                format!("it has fencing counters for {}{more}", names.join(", ")),
                "a holder without a fencing token is not refused when it writes late",
                "lock these keys with --fenced (acquire_fenced in programs), all of them, or none",
            )
        })
    }

    pub(super) fn leftovers(&self, facts: &Facts) -> Vec<Finding> {
        let intents = self.topology.intent("");
        let mut findings: Vec<Finding> = facts
            .leftovers
            .iter()
            .take(NAMED_MAX)
            .map(|key| {
                let delete = self.node.redis_cli.line_about("DEL", key.as_bytes());
                Warning.finding(
                    "leftover",
                    format!("its key \"{}\" has the value of a lock and no expiry", shown(key, WORD_MAX)),
                    if key.starts_with(&*intents) {
                        "the node takes it for a waiting writer, and refuses each reader of that lock, for ever"
                    } else {
                        "the node refuses everybody who wants that lock, for ever"
                    },
                    format!("if no other program uses the key: {delete}"),
                )
            })
            .collect();
        let more = facts.leftovers.len() - findings.len();
        if more > 0 {
            findings.push(Warning.finding(
                "leftover",
                format!("{more} more keys have the value of a lock and no expiry"),
                "the node refuses everybody who wants these locks, for ever",
                "quorlock ls lists them: they never end",
            ));
        }
        let incomplete = facts.unscanned.as_ref();
        if let Some(why) = incomplete.filter(|why| !why.is_about_rights()) {
            findings.push(Note.finding(
                "leftover",
                format!("not all of its keys were looked at for locks that never end: {why}"),
                "such a key makes the node refuse everybody who wants that lock",
                "nothing needs to be fixed; quorlock ls looks at all keys",
            ));
        }
        findings
    }
}
