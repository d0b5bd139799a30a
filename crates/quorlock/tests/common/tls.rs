//! Servers with TLS, and their certificates.

use quorlock::node::Tls;
use quorlock_servers::certificates::Authority;
use quorlock_servers::{Nodes, ServerOptions, StartError, without_tls};

use super::{all_servers, test_name};

/// Three servers with TLS, of the first program that was built with it, and the authority of their certificates. `None`:
/// the test is reported as skipped. `client_auth`: the servers require a certificate of their clients.
pub(crate) fn start_tls(client_auth: bool) -> Option<(Nodes, Authority)> {
    let (authority, binaries) = (Authority::new(), all_servers());
    for binary in &binaries {
        let tls = Some(authority.server(client_auth));
        match Nodes::start(binary, 3, ServerOptions { tls, ..ServerOptions::default() }) {
            Err(StartError::NoTls { .. }) => {}
            started => return Some((started.unwrap(), authority)),
        }
    }
    without_tls(binaries.first()?, &test_name());
    None
}

pub(crate) fn trusting(authority: &Authority) -> Tls {
    Tls::new().ca_pem(authority.pem())
}
