use quorlock::admin::{AdminConnection, Do, REPLICATED, RedisNode, Reply, Topology};
use quorlock_core::Failure;
use quorlock_core::display::{LINE_MAX, shown};
use quorlock_core::marker::Adoption;

use super::{NodeChange, nothing};

const SCRIPT: &str = include_str!("keys.lua");

/// The time for which a change waits until the node's replicas have acknowledged it, in milliseconds.
const PATIENCE_MS: &str = "500";

/// An atomic change of a node's marker and adoption (the key that begins a wait). An empty text: the key is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Marker and adoption before the change; `*` matches anything.
    pub(super) from: (String, String),
    /// Marker and adoption after the change.
    pub(super) to: (String, String),
    /// Least age of the node's adoption key, in milliseconds: a younger key prevents the change. `None`: any age.
    pub(super) age_ms: Option<u64>,
}

impl Change {
    /// Opens a connection, registers the database of the locks on the node, and then makes the change.
    ///
    /// # Errors
    /// The change was not made, or whether it was made is unknown, or not enough replicas have acknowledged it.
    pub(super) async fn make(
        &self,
        topology: &Topology,
        server: &RedisNode,
        registers: Do,
    ) -> Result<(), NodeChange> {
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
        let connection = AdminConnection::open(server).await.map_err(nothing)?;
        let failed = |failure: Failure| match failure.may_have_been_executed() {
            true => NodeChange::Unknown { why: failure.to_string() },
            false => nothing(failure),
        };
        connection.register(&topology.rules.marker, registers).await.map_err(failed)?;
        let replies = connection.ask(&[call]).await.map_err(failed)?;
        match replies.first() {
            Some(Reply::Int(1)) => acknowledged(topology, server, &connection).await,
            Some(Reply::Int(0)) => Err(nothing("somebody else has changed it meanwhile")),
            Some(Reply::Error(error)) => Err(nothing(shown(error, LINE_MAX))),
            _ => Err(NodeChange::Unknown { why: "an answer that does not fit".to_owned() }),
        }
    }
}

/// Waits until the replicas have a change that an earlier process made. `keys`: marker and adoption after that change.
///
/// # Errors
/// The texts have changed meanwhile, or a replica may lack them.
pub(super) async fn still_there(
    topology: &Topology,
    server: &RedisNode,
    keys: [&str; 2],
) -> Result<(), NodeChange> {
    if server.replicas() == 0 {
        return Ok(());
    }
    let connection = AdminConnection::open(server).await.map_err(nothing)?;
    let rules = &topology.rules;
    let reads = [&rules.marker, &rules.adoption].map(|key| vec!["GET".to_owned(), key.to_string()]);
    let replies = connection.ask(&reads).await.map_err(nothing)?;
    let is_same = |(reply, key): (&Reply, &str)| match reply {
        Reply::Bytes(text) => text == key.as_bytes(),
        Reply::Nil => key.is_empty(),
        _ => false,
    };
    if replies.len() != keys.len() || !replies.iter().zip(keys).all(is_same) {
        return Err(nothing("its marker has changed meanwhile; run the same command again"));
    }
    acknowledged(topology, server, &connection).await
}

/// Waits until the node's replicas have all changes, because the replica that is promoted next must have them too. The
/// connection must be that of the change: behind Sentinel, another connection may lead to another server.
async fn acknowledged(
    topology: &Topology,
    server: &RedisNode,
    connection: &AdminConnection,
) -> Result<(), NodeChange> {
    let replicas = server.replicas();
    if replicas == 0 {
        return Ok(());
    }
    // `WAIT` is only about the writes of its own connection, so this connection writes first.
    let write = vec!["SET".to_owned(), topology.own_key(REPLICATED).to_string(), "1".to_owned()];
    let wait = vec!["WAIT".to_owned(), replicas.to_string(), PATIENCE_MS.to_owned()];
    let why = match connection.ask(&[write, wait]).await.as_deref() {
        Ok([Reply::Okay, Reply::Int(count)]) if *count >= i64::from(replicas) => return Ok(()),
        Ok([Reply::Okay, Reply::Int(count)]) => format!(
            "{count} of {replicas} replicas have the change (a replica that was attached just now still synchronises)"
        ),
        Ok([Reply::Error(error), _] | [_, Reply::Error(error)]) => shown(error, LINE_MAX),
        Ok(_) => "an answer that does not fit".to_owned(),
        Err(failure) => failure.to_string(),
    };
    Err(NodeChange::Unacknowledged { why })
}
