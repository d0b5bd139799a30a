use quorlock::admin::{AdminConnection, Do, RedisNode, Reply, Topology};
use quorlock_core::marker::Adoption;
use quorlock_core::shown::{LINE_MAX, shown};

const SCRIPT: &str = include_str!("keys.lua");

/// A change of a node's marker and adoption (the text that starts a wait) in one atomic step. An empty text: no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Marker and adoption before the change; `*` matches anything.
    pub(super) from: (String, String),
    /// Marker and adoption after the change.
    pub(super) to: (String, String),
    /// If set, the change is made only if the node's adoption (wait) is at least this old, in milliseconds.
    pub(super) age_ms: Option<u64>,
}

impl Change {
    /// Makes the change on a connection of its own. First registers the database of the locks.
    ///
    /// # Errors
    /// The reason why the change was not made, or why its result is unknown.
    pub(super) async fn make(
        &self,
        topology: &Topology,
        server: &RedisNode,
        registers: Do,
    ) -> Result<(), String> {
        let left_max = match self.age_ms {
            Some(age_ms) => Adoption::TTL_MS.saturating_sub(age_ms).to_string(),
            None => "-1".to_owned(),
        };
        let ttl = Adoption::TTL_MS.to_string();
        let words = [
            ("EVAL", SCRIPT, "2"),
            (&*topology.rules.marker, &*topology.rules.adoption, &*self.from.0),
            (&*self.from.1, &*self.to.0, &*self.to.1),
        ];
        let mut call: Vec<&str> = words.iter().flat_map(|(a, b, c)| [*a, *b, *c]).collect();
        call.extend([&*ttl, &*left_max]);
        let connection =
            AdminConnection::open(server).await.map_err(|failure| failure.to_string())?;
        let registered = connection.register(&topology.rules.marker, registers).await;
        registered.map_err(|failure| failure.to_string())?;
        let replies = connection.ask(&[call]).await.map_err(|failure| failure.to_string())?;
        match replies.first() {
            Some(Reply::Int(1)) => Ok(()),
            Some(Reply::Int(0)) => Err("somebody else has changed it meanwhile".to_owned()),
            Some(Reply::Error(error)) => Err(shown(error, LINE_MAX)),
            _ => Err("an answer that does not fit".to_owned()),
        }
    }
}
