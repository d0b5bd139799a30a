//! The marker: a key on every node. It names the clients for which the node votes, and shows that no data has been
//! deleted since it was written.
//!
//! ```text
//! <prefix>quorlock:node   quorlock 1 nodes=a,b,c quorum=2 max_ttl_ms=30000 run_id=0d2f… promoted=-1 floor=0
//! <prefix>quorlock:adopt  quorlock 1 nodes=a,b,c quorum=2 max_ttl_ms=30000 run_id=0d2f… promoted=-1 floor=0 wait_ms=32300 since=1795…
//! ```
//!
//! The marker has no time to live. Clients read it after every command that may return a vote, on the same connection.
//! If the text is unchanged, nothing has been deleted since it was written, so no earlier vote was lost. Texts are
//! compared whole, and parsed only if they differ.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// The settings that all clients of the nodes must share (invariant S17).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Cluster {
    text: Arc<str>,
    max_ttl_ms: u64,
}

impl Cluster {
    /// The settings with these node names, in any order, this quorum and this longest ttl.
    pub fn new<S: AsRef<str>>(
        names: impl IntoIterator<Item = S>,
        quorum: usize,
        max_ttl_ms: u64,
    ) -> Self {
        let mut names: Vec<String> = names.into_iter().map(|name| plain(name.as_ref())).collect();
        names.sort_unstable();
        let names = names.join(",");
        let text =
            alloc::format!("{VERSION} nodes={names} quorum={quorum} max_ttl_ms={max_ttl_ms}");
        Self { text: text.into(), max_ttl_ms }
    }

    /// The longest ttl, in milliseconds.
    pub const fn max_ttl_ms(&self) -> u64 {
        self.max_ttl_ms
    }

    /// The number of nodes and the quorum; `None` if the text has another form than the one of [`new`](Self::new).
    pub fn nodes_and_quorum(&self) -> Option<(usize, usize)> {
        let mut words = self.text.strip_prefix(VERSION)?.strip_prefix(' ')?.split(' ');
        let names = words.next()?.strip_prefix("nodes=")?;
        let quorum = words.next()?.strip_prefix("quorum=")?.parse().ok()?;
        words.next()?.strip_prefix("max_ttl_ms=")?;
        words.next().is_none().then(|| (names.split(',').count(), quorum))
    }

    fn parse(text: &str) -> Option<(Self, &str)> {
        let end = text.find(" run_id=")?;
        let (cluster, rest) = text.split_at(end);
        let max_ttl_ms = field(cluster, "max_ttl_ms")?.parse().ok()?;
        let known = cluster.starts_with(VERSION) && field(cluster, "nodes").is_some();
        known.then(|| (Self { text: cluster.into(), max_ttl_ms }, rest))
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.strip_prefix(VERSION).unwrap_or(&self.text).trim_start())
    }
}

/// The beginning of every marker and adoption: the library, and the version of the text's format.
const VERSION: &str = "quorlock 1";

/// The marker of a node that votes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Marker {
    /// The settings of the clients for which the node votes.
    pub cluster: Cluster,
    /// The run of the server, from its start to its stop, for which this text was written.
    pub run_id: Box<str>,
    /// The offset at which the server was promoted from a replica; -1 if it never was one.
    pub promoted_at: i64,
    /// The smallest fencing token that this node gives out.
    pub floor: u64,
}

impl Marker {
    /// How far a floor is ahead of every clock, in microseconds. The floor must exceed all proposed fencing tokens: a
    /// proposal may be an hour ahead of a node's clock, and the clocks of nodes may differ by another hour.
    pub const FLOOR_AHEAD_US: u64 = 2 * 3600 * 1_000_000;

    /// Parses a marker; `None` if it is not a marker of this library.
    pub fn parse(text: &str) -> Option<Self> {
        let (cluster, rest) = Cluster::parse(text)?;
        Some(Self {
            cluster,
            run_id: field(rest, "run_id")?.into(),
            promoted_at: field(rest, "promoted")?.parse().ok()?,
            floor: field(rest, "floor")?.parse().ok()?,
        })
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, run_id, promoted_at, floor } = self;
        write!(f, "{} run_id={run_id} promoted={promoted_at} floor={floor}", cluster.text)
    }
}

/// The adoption of a node: the text that starts the wait after which the node votes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Adoption {
    /// The settings, the run and the promotion for which the node waits. Another run, or a later promotion, needs
    /// another adoption. The floor is the largest of the marker and the adoption that this adoption replaces.
    pub marker: Marker,
    /// The length of the wait in milliseconds: the node votes when the adoption is this old.
    pub wait_ms: u64,
}

impl Adoption {
    /// The time to live of an adoption, which is longer than any wait that it starts. The age of an adoption is this
    /// ttl minus its remaining time.
    pub const TTL_MS: u64 = 2 * 86_400_000;

    /// Parses an adoption; `None` if it is not an adoption of this library. The field `since`, which the node writes,
    /// is ignored here.
    pub fn parse(text: &str) -> Option<Self> {
        let wait_ms = field(text, "wait_ms")?.parse().ok()?;
        Some(Self { marker: Marker::parse(text)?, wait_ms })
    }

    /// Whether an operator's move wrote this text of an adoption. Such an adoption is the decision of a person.
    pub fn was_moved(text: &str) -> bool {
        field(text, "moved") == Some("1")
    }
}

impl fmt::Display for Adoption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { marker, wait_ms } = self;
        write!(f, "{marker} wait_ms={wait_ms}")
    }
}

/// The value after `name=`; `None` if the text has no such field.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Escapes the characters that separate names, because the path of a socket may contain any character.
fn plain(name: &str) -> String {
    if !name.contains([' ', ',', '%', '=']) {
        return name.to_owned();
    }
    name.replace('%', "%25").replace(' ', "%20").replace(',', "%2C").replace('=', "%3D")
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn texts_are_read_as_they_were_written() {
        let cluster = Cluster::new(["b", "/run/a b,c", "a"], 2, 30_000);
        assert_eq!(cluster.to_string(), "nodes=/run/a%20b%2Cc,a,b quorum=2 max_ttl_ms=30000");
        let run_id = Box::from("0d2f");
        let marker = Marker { cluster, run_id, promoted_at: -1, floor: 17 };
        assert_eq!(Marker::parse(&marker.to_string()), Some(marker.clone()));
        let adoption = Adoption { marker: marker.clone(), wait_ms: 32_300 };
        assert_eq!(Adoption::parse(&adoption.to_string()), Some(adoption.clone()));
        assert_eq!(Adoption::parse(&marker.to_string()), None);
        assert_eq!(Marker::parse("something else"), None);
        assert_eq!(Marker::parse(&marker.to_string().replace("quorlock 1", "quorlock 2")), None);
    }

    #[test]
    fn a_text_shows_how_many_nodes_there_are_and_how_many_must_agree() {
        let counts = |cluster: Cluster| cluster.nodes_and_quorum();
        assert_eq!(counts(Cluster::new(["/run/a b,c", "a", "b"], 2, 30_000)), Some((3, 2)));
        assert_eq!(counts(Cluster::new(["a"], 1, 1000)), Some((1, 1)));
        // The text of a node that an operator moves from one configuration to another fits neither.
        let moved = "quorlock 1 nodes=a quorum=1 max_ttl_ms=5 becomes nodes=b quorum=1 max_ttl_ms=5 run_id=0d promoted=-1 floor=0";
        let moved = Marker::parse(moved).expect("it is a marker").cluster;
        assert_eq!(counts(moved), None);
    }

    #[test]
    fn the_order_of_the_nodes_does_not_matter_all_else_does() {
        let cluster = Cluster::new(["a", "b"], 2, 1000);
        assert_eq!(cluster, Cluster::new(["b", "a"], 2, 1000));
        assert_ne!(cluster, Cluster::new(["b", "a"], 1, 1000));
        assert_ne!(cluster, Cluster::new(["b", "a"], 2, 1001));
        assert_ne!(cluster, Cluster::new(["b", "a", "c"], 2, 1000));
    }
}
