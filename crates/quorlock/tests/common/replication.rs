//! A master and its replicas.

use quorlock_servers::{Listen, Nodes, Reply, Server, ServerBinary, ServerOptions};

use super::{eventually, run};

/// Starts a master and `replicas` replicas, and waits until all replicas are online.
pub(crate) async fn master_and(replicas: usize, binary: &ServerBinary) -> Nodes {
    let args = ["--repl-diskless-sync-delay", "0"].map(str::to_owned).to_vec();
    let options = ServerOptions { args, listen: Listen::Tcp, ..ServerOptions::default() };
    let nodes = Nodes::start(binary, 1 + replicas, options).unwrap();
    for replica in &nodes[1..] {
        follow(replica, &nodes[0]).await;
    }
    nodes
}

pub(crate) async fn follow(replica: &Server, master: &Server) {
    let (_, port) =
        master.address().rsplit_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    run(replica, &["REPLICAOF", "127.0.0.1", &port]);
    // The master counts the acknowledgements of a replica only while the replica is online.
    eventually("the replica is online", || {
        run(master, &["SET", "x", "1", "PX", "1"]);
        matches!(run(replica, &["INFO", "replication"]), Reply::Bulk(Some(info))
            if String::from_utf8_lossy(&info).contains("master_link_status:up"))
            && matches!(run(master, &["INFO", "replication"]), Reply::Bulk(Some(info))
            if String::from_utf8_lossy(&info).contains("state=online"))
    })
    .await;
}
