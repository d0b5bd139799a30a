//! Encryption with rustls. The cryptography provider is fixed here, so the connection does not depend on the program's
//! default provider.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::Reason;
use crate::node::Tls;

#[derive(Clone)]
pub(super) struct Encryption {
    connector: TlsConnector,
    /// The name that the server must prove; `None` means the host.
    name: Option<ServerName<'static>>,
}

impl Encryption {
    /// Errors do not show the certificate or the key.
    pub(super) fn new(tls: Tls, name: Option<&str>) -> Result<Self, Reason> {
        let name = name.map(|name| ServerName::try_from(name.to_owned())).transpose();
        let name = name.map_err(|_| "tls-server-name: a server has no such name")?;
        let Tls { ca, client, .. } = tls;
        let mut roots = RootCertStore::empty();
        match ca {
            Some(pem) => {
                for certificate in certificates(&pem)? {
                    roots.add(certificate).map_err(told)?;
                }
            }
            // If the system has no certificates, the first connection fails with an unknown issuer.
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().map_err(told)?;
        let config = config.with_root_certificates(roots);
        let config = match client {
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_slice(&key)
                    .map_err(|_| "no private key in PEM format found")?;
                config.with_client_auth_cert(certificates(&certificate)?, key).map_err(told)?
            }
            None => config.with_no_client_auth(),
        };
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// Whether the server answered without TLS.
    pub(super) fn is_without_tls(error: &std::io::Error) -> bool {
        let reason = error.get_ref().and_then(|it| it.downcast_ref::<rustls::Error>());
        matches!(reason, Some(rustls::Error::InvalidMessage(_)))
            || matches!(
                error.kind(),
                std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset
            )
    }

    /// Encrypts a connection to `host`. The server must prove that it is this host, or that it has the configured name.
    pub(super) async fn encrypt(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?,
        };
        self.connector.connect(name, stream).await
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Reason> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    // The parser's error quotes text that may be a key, so this error is not passed on.
    match certificates {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err("no certificate in PEM format found".into()),
    }
}

fn told(error: rustls::Error) -> Reason {
    Reason::new(error.to_string(), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_cannot_be_read_is_shown_to_nobody() {
        for text in [
            "-----BEGIN PRIVATE KEY----- MIIEsecret -----END PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----\\nMIIEsecret\\n-----END PRIVATE KEY-----",
            "MIIEsecret",
        ] {
            let pem = || text.as_bytes().to_vec();
            let ca = include_bytes!("../../../tests/tls/other-ca.pem").to_vec();
            for (tls, missing) in [
                (Tls::new().ca_pem(pem()), "certificate"),
                (Tls::new().client_pem(pem(), pem()), "private key"),
                (Tls::new().client_pem(ca.clone(), pem()), "private key"),
            ] {
                let error = Encryption::new(tls, None).err().expect("it is refused");
                assert_eq!(error.to_string(), format!("no {missing} in PEM format found"));
            }
        }
    }
}
