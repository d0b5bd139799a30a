//! Compares what each guard reports over time: valid or lost, and the cause of the loss.

use std::sync::{Arc, Mutex, Weak};

use quorlock::{Guard, LossCause};
use tokio::time::Instant;

use crate::journal::value_of;

/// The guards that were handed out and not dropped yet.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<Vec<GuardWatch>>);

#[derive(Debug)]
struct GuardWatch {
    guard: Weak<Guard>,
    value: String,
    /// `Ok`: the end of the validity at the last check. `Err`: the cause of the loss.
    seen: Result<Instant, LossCause>,
}

impl Watches {
    pub(crate) fn add(&self, guard: &Arc<Guard>) {
        let (value, until) = (value_of(guard), Instant::now() + guard.remaining());
        self.0.lock().unwrap().push(GuardWatch {
            guard: Arc::downgrade(guard),
            value,
            seen: Ok(until),
        });
    }

    /// Checks every guard. A lost lock must stay lost with the same cause (S13). Unless `may_be_lost`, no lock may be
    /// lost early, and no validity may shrink (S11, S12).
    pub(crate) fn look(&self, may_be_lost: bool) {
        let now = Instant::now();
        for watch in self.0.lock().unwrap().iter_mut() {
            let Some(guard) = watch.guard.upgrade() else { continue };
            let (loss, remaining) = (guard.loss_cause(), guard.remaining());
            assert_eq!(loss.is_none(), guard.is_valid(), "lost, or valid");
            assert_eq!(remaining.is_zero(), loss.is_some(), "nothing is left of what is lost");
            watch.seen = match (watch.seen, loss) {
                (Err(before), loss) => {
                    assert_eq!(loss, Some(before), "S13: lost for ever, and for one reason");
                    Err(before)
                }
                (Ok(until), None) => {
                    assert!(may_be_lost || now + remaining >= until, "S11: cut short");
                    Ok(now + remaining)
                }
                (Ok(until), Some(cause)) => {
                    assert!(may_be_lost || now >= until, "{cause:?} before its time");
                    Err(cause)
                }
            };
        }
        let valid = self.0.lock().unwrap().iter().filter(|watch| watch.is_valid()).count();
        assert!(valid <= 1, "two hold one lock");
    }

    /// Whether a guard reports that it holds the lock with this value.
    pub(crate) fn is_held(&self, value: &str) -> bool {
        self.0.lock().unwrap().iter().any(|watch| watch.value == value && watch.is_valid())
    }
}

impl GuardWatch {
    fn is_valid(&self) -> bool {
        self.guard.upgrade().is_some_and(|guard| guard.is_valid())
    }
}
