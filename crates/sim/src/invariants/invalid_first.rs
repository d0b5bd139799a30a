//! No release is in flight while its guard is valid.

use super::Checked;
use crate::fact::Fact;
use crate::invariants::View;

pub(crate) const NAME: &str = "invalid first";

pub(crate) const SENTENCE: &str = "S14: invalid locally before the first release byte. S12: a failed \
     extension deletes nothing. (algorithm)";

pub(crate) fn check(fact: &Fact<'_>, view: &View<'_>) -> Checked {
    let (Fact::Ordered { client, command, .. } | Fact::Sent { client, command, .. }) = fact else {
        return Ok(());
    };
    let Some((_, value)) = command.subject().filter(|_| command.is_release()) else {
        return Ok(());
    };
    let now = view.reading(*client);
    for (id, guard) in view.guards.iter() {
        if id.client == *client && guard.is_valid(now) && guard.value() == *value {
            return Err(format!("{id} is valid, and is being released"));
        }
    }
    Ok(())
}
