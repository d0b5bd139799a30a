//! What goes with a batch of answers to show that they may count.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use crate::command::Failure;
use crate::shown::shown_text;

/// What goes with a batch of answers: from which connection they come, and what the node said of
/// itself on it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Proof {
    /// Nobody looks: the restart guard is off, or the node keeps its promises by itself, as one in
    /// memory does.
    #[default]
    Vouched,
    /// It was looked.
    Seen {
        /// On which connection, counted from one and growing.
        epoch: u64,
        /// How often the node had said on this connection, before the last of these answers, that all of its
        /// data was deleted or replaced. A node that cannot say so leaves it at zero.
        flushes: u64,
        /// The answer to `INFO`, which was asked for before any other command of the batch. Part of the
        /// first batch on every connection, and of every one with a [`Command::Greet`](crate::Command::Greet);
        /// but not if the data were replaced between it and the last answer.
        info: Option<Result<Arc<str>, Failure>>,
        /// The marker, which was read behind every other command of the batch. Part of every batch
        /// with `INFO`, or with a command about votes.
        marker: MarkerSeen,
    },
}

/// A look at a node's marker. `Debug` shows as much of it as a message would.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub enum MarkerSeen {
    /// There was none.
    #[default]
    NotAsked,
    /// There is no marker.
    Missing,
    /// This is what it says.
    Text(String),
    /// No answer.
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
