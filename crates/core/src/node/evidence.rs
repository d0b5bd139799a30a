//! The evidence that comes with a batch of answers and shows whether votes in the batch may count.

use alloc::sync::Arc;
use core::fmt;

use crate::command::{Failure, FailureKind};
use crate::display::shown_text;

/// The evidence for a batch of answers: the node's `INFO` and marker, and the connection on which they were read.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Evidence {
    /// There is no evidence: the restart guard is off, or the node cannot lose votes, like a `MemoryNode`.
    #[default]
    NotRequired,
    /// The node sent evidence.
    Seen {
        /// Number of the connection, counted from one.
        epoch: u64,
        /// Number of times that the node announced, on this connection and before the last answer of the batch, that
        /// all of its data was deleted or replaced. Zero if the node cannot announce that.
        flushes: u64,
        /// The answer to `INFO`. The client requests it before all other commands, in the first batch on a connection
        /// and in every batch with a [`Command::Identify`](crate::Command::Identify). `None` if the client did not
        /// request it, or if the data were replaced between `INFO` and the last answer of the batch.
        info: Option<Result<Arc<str>, Failure>>,
        /// The marker, which the client read after all other commands of the batch. An unchanged marker shows that no
        /// earlier vote was lost. Every batch with `INFO` or with a command about votes reads it.
        marker: MarkerSeen,
        /// The number of replicas that have acknowledged the write that this connection sent after all commands of the
        /// batch, or the error of the node. `None` if the client did not ask. A replica receives writes in order, so
        /// each of these replicas has all earlier writes of all clients.
        acknowledged: Option<Result<u32, Failure>>,
    },
}

impl Evidence {
    /// The connection on which the evidence was read, and the number of flushes that the node had announced on it.
    /// `None` without evidence.
    pub(crate) const fn epoch(&self) -> Option<(u64, u64)> {
        match self {
            Self::NotRequired => None,
            Self::Seen { epoch, flushes, .. } => Some((*epoch, *flushes)),
        }
    }

    /// Combines the evidence of a batch (`self`) with that of its second sending (`later`), which repeated some
    /// commands on the same connection. If both contain a marker, votes count only if the markers are equal.
    #[must_use]
    pub fn and_later(self, later: Self) -> Self {
        let Self::Seen { epoch, flushes, info, marker: second, acknowledged: later } = later else {
            return self;
        };
        let Self::Seen { flushes: before, info: first, marker, acknowledged, .. } = self else {
            return Self::Seen { epoch, flushes, info, marker: second, acknowledged: later };
        };
        let marker = match (marker, second) {
            (MarkerSeen::NotAsked, marker) | (marker, MarkerSeen::NotAsked) => marker,
            (first, second) if first == second => first,
            (failed @ MarkerSeen::Failed(_), _) | (_, failed @ MarkerSeen::Failed(_)) => failed,
            _ => MarkerSeen::Failed(
                Failure::new(FailureKind::Unverified).with_detail("its marker changed meanwhile"),
            ),
        };
        // If the data were replaced between the two sendings, the first `INFO` describes old data and does not count.
        let info = info.or(first.filter(|_| before == flushes));
        // The second acknowledgement covers the first sending too. The client counts the smaller number, which is safe.
        let acknowledged = match (acknowledged, later) {
            (Some(Ok(first)), Some(Ok(second))) => Some(Ok(first.min(second))),
            (failed @ Some(Err(_)), _) | (_, failed @ Some(Err(_))) => failed,
            (one, other) => one.or(other),
        };
        Self::Seen { epoch, flushes, info, marker, acknowledged }
    }
}

/// The outcome of reading a node's marker. `Debug` shows only the part of the marker that messages show.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub enum MarkerSeen {
    /// The marker was not read.
    #[default]
    NotAsked,
    /// There is no marker.
    Missing,
    /// The text of the marker. Equal texts on one connection share one allocation.
    Text(Arc<str>),
    /// Reading the marker failed.
    Failed(Failure),
}

impl fmt::Debug for MarkerSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked => f.write_str("NotAsked"),
            Self::Missing => f.write_str("Missing"),
            Self::Text(text) => f.debug_tuple("Text").field(&shown_text(text)).finish(),
            Self::Failed(failure) => f.debug_tuple("Failed").field(failure).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(flushes: u64, info: Option<&str>, marker: MarkerSeen) -> Evidence {
        let info = info.map(|info| Ok(info.into()));
        Evidence::Seen { epoch: 1, flushes, info, marker, acknowledged: None }
    }

    fn text(text: &str) -> MarkerSeen {
        MarkerSeen::Text(text.into())
    }

    #[test]
    fn two_readings_count_only_if_they_saw_the_same_marker() {
        let joined = |first, second| {
            let Evidence::Seen { marker, .. } =
                seen(0, None, first).and_later(seen(0, None, second))
            else {
                panic!("there is evidence")
            };
            marker
        };
        assert_eq!(joined(text("a"), text("a")), text("a"));
        assert_eq!(joined(text("a"), MarkerSeen::NotAsked), text("a"));
        assert_eq!(joined(MarkerSeen::NotAsked, text("a")), text("a"));
        assert_eq!(joined(MarkerSeen::Missing, MarkerSeen::Missing), MarkerSeen::Missing);
        let loading = MarkerSeen::Failed(Failure::new(FailureKind::Loading));
        assert_eq!(joined(loading.clone(), text("a")), loading);
        assert_eq!(joined(text("a"), loading.clone()), loading);
        for (first, second) in [
            (text("a"), text("b")),
            (text("a"), MarkerSeen::Missing),
            (MarkerSeen::Missing, text("a")),
        ] {
            let MarkerSeen::Failed(failure) = joined(first, second) else { panic!("it changed") };
            assert_eq!(failure.kind(), FailureKind::Unverified);
        }
    }

    #[test]
    fn of_two_acknowledgements_the_weaker_one_counts() {
        let failed = Failure::new(FailureKind::Forbidden);
        let seen = |acknowledged: Option<Result<u32, Failure>>| {
            let marker = MarkerSeen::NotAsked;
            Evidence::Seen { epoch: 1, flushes: 0, info: None, marker, acknowledged }
        };
        for (first, second, both) in [
            (None, Some(Ok(1)), Some(Ok(1))),
            (Some(Ok(2)), Some(Ok(1)), Some(Ok(1))),
            (Some(Ok(1)), Some(Err(failed.clone())), Some(Err(failed))),
        ] {
            assert_eq!(seen(first.clone()).and_later(seen(second.clone())), seen(both.clone()));
            assert_eq!(seen(second).and_later(seen(first)), seen(both));
        }
    }

    #[test]
    fn what_it_was_before_its_data_were_replaced_is_not_reported() {
        let earlier = seen(1, Some("# Server"), text("m"));
        assert_eq!(earlier.clone().and_later(seen(1, None, text("m"))), earlier);
        assert_eq!(earlier.clone().and_later(seen(2, None, text("m"))), seen(2, None, text("m")));
        assert_eq!(earlier.clone().and_later(Evidence::NotRequired), earlier, "it came to nothing");
    }
}
