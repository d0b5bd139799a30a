//! S5: a granted lock is still valid at a clock reading taken after the answer that completed the quorum.

use super::Checked;
use crate::fact::Fact;
use crate::invariants::View;

pub(crate) const NAME: &str = "clock check";

pub(crate) const SENTENCE: &str = "If and only if the client was able to acquire the lock in the \
     majority of the instances, and the total time elapsed to acquire the lock is less than lock \
     validity time, the lock is considered to be acquired. (paper) — S5: clock re-read after the \
     deciding reply. (algorithm)";

pub(crate) fn check(fact: &Fact<'_>, view: &View<'_>) -> Checked {
    let Fact::Granted { guard: id, .. } = fact else { return Ok(()) };
    let Some(guard) = view.guards.of(*id) else { return Ok(()) };
    let then = view.tick_reading(id.client);
    let (valid_for, timing) = (guard.hold.validity().valid_for(then), guard.request.timing);
    if guard.hold.validity().remaining(then).is_zero() || valid_for < timing.min_validity() {
        let needed = timing.min_validity();
        return Err(format!("{id} is handed out with {valid_for:?} left, of {needed:?}"));
    }
    Ok(())
}
