//! Compares a real server's `INFO` with that of the model node, in the fields that the engine uses.

use quorlock_core::FailureKind;
use quorlock_core::info::Info;
use quorlock_servers::{NotFound, REQUIRE_VARIABLE, Reply, Server, ServerOptions, find_all, skip};
use quorlock_sim::node::{Health, Kind, ModelNode};
use quorlock_sim::time::Clock;

#[test]
fn a_server_says_of_itself_what_the_model_says() {
    const NAME: &str = "a_server_says_of_itself_what_the_model_says";
    let servers = match find_all(None) {
        Ok(servers) => servers,
        Err(NotFound::Nowhere) if std::env::var_os(REQUIRE_VARIABLE).is_none() => {
            return skip(NAME, "no Redis or Valkey server found");
        }
        Err(help) => panic!("{NAME} needs a server: {help}"),
    };
    for binary in &servers {
        println!("{binary}");
        let server = Server::start(binary, ServerOptions::default()).expect("it starts");
        let ask = |words: &[&str]| server.command(words).expect("the server answers");
        let kind = Kind { expires_at_once: true, deletes_natively: false, pushes: true };
        let mut model = ModelNode::new(Clock::new(0, 0), kind);
        let alike = |model: &ModelNode| {
            let Reply::Bulk(Some(text)) = ask(&["INFO"]) else { panic!("no text") };
            let said = Info::parse(&String::from_utf8_lossy(&text)).expect("all is there");
            let modelled = model.info(0).expect("it is sound");
            let modelled = Info::parse(&modelled).expect("all is there");
            assert_eq!(said.run_id.len(), modelled.run_id.len());
            assert!((0..60).contains(&said.uptime_s) && modelled.uptime_s == 0);
            let parts = |info: &Info| {
                (info.is_master, info.is_cluster, info.is_loading, info.evicts_by.clone())
            };
            assert_eq!(parts(&said), parts(&modelled));
            assert_eq!(said.promoted_at.is_some(), modelled.promoted_at.is_some());
        };
        alike(&model);
        ask(&["CONFIG", "SET", "maxmemory", "100mb"]);
        ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
        model.run.evicts = true;
        alike(&model);
        ask(&["REPLICAOF", "127.0.0.1", "1"]);
        model.health = Health::ReadOnly(FailureKind::ReadOnly);
        alike(&model);
        ask(&["REPLICAOF", "NO", "ONE"]);
        model.health = Health::Good;
        model.run.promoted_at = Some(1);
        alike(&model);
    }
}
