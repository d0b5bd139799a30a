//! Encryption with rustls. The cryptography provider is fixed here, so the connection does not depend on the program's
//! default provider.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, InconsistentKeys, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::Reason;
use crate::node::Tls;
use crate::node::credentials::ask;
use crate::node::secret::Newest;
use crate::node::tls::{Parts, Pem, Source};

/// The configuration that is made of a [`Tls`]. All nodes with clones of it share one.
#[derive(Default)]
pub(in crate::node) struct Made {
    /// The system's roots, which are read at most once.
    system_roots: OnceLock<Arc<RootCertStore>>,
    newest: Newest<Contents, Arc<ClientConfig>>,
}

/// The bytes of [`Parts`].
#[derive(PartialEq, Eq)]
struct Contents {
    ca: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

#[derive(Clone)]
pub(super) struct Encryption {
    tls: Tls,
    /// The name that the server must prove; `None` means the host.
    name: Option<ServerName<'static>>,
}

impl Encryption {
    /// Reads the files. Errors do not show the certificate or the key.
    pub(super) fn new(tls: Tls, name: Option<&str>) -> Result<Self, Reason> {
        let name = name.map(|name| ServerName::try_from(name.to_owned())).transpose();
        let name = name.map_err(|_| "tls-server-name: a server has no such name")?;
        if let Source::Parts(parts) = &tls.source {
            tls.made.update(parts)?;
        }
        Ok(Self { tls, name })
    }

    /// Whether a user's function returns the certificates.
    pub(super) fn asks_a_function(&self) -> bool {
        matches!(self.tls.source, Source::Function(_))
    }

    /// Reads the files again, or calls the user's function; with `is_again` only files.
    ///
    /// # Errors
    /// If there is no usable configuration yet.
    pub(super) async fn renew(&self, patience: Duration, is_again: bool) -> Result<(), Reason> {
        let newest = self.newest();
        let parts = match &self.tls.source {
            Source::Parts(parts) if parts.has_files() => Arc::clone(parts),
            Source::Function(function) if !is_again => match ask(function, "Tls::from_fn").await {
                Ok(Tls { source: Source::Parts(parts), .. }) => parts,
                Ok(_) => return newest.keep("a function returned another function".into()),
                Err(error) => return newest.keep(error.into()),
            },
            _ => return Ok(()),
        };
        let made = Arc::clone(&self.tls.made);
        newest.renew("the files", patience, move || made.update(&parts)).await
    }

    pub(super) fn newest(&self) -> &Newest<impl PartialEq + use<>, Arc<ClientConfig>> {
        &self.tls.made.newest
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
        let config = self.newest().value();
        let config = config.ok_or_else(|| std::io::Error::other("no certificates"))?;
        TlsConnector::from(config).connect(name, stream).await
    }
}

impl Made {
    /// Reads the parts, and makes a configuration of them if they have changed. Blocks.
    fn update(&self, parts: &Parts) -> Result<(), Reason> {
        self.newest.update(parts.read(), |contents| self.configure(contents, parts))
    }

    fn configure(&self, contents: &Contents, parts: &Parts) -> Result<Arc<ClientConfig>, Reason> {
        let roots = match &contents.ca {
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(pem, &place(parts.ca.as_ref()))? {
                    roots.add(certificate).map_err(reason_of)?;
                }
                Arc::new(roots)
            }
            // If the system has no certificates, the first connection fails with an unknown issuer.
            None => Arc::clone(self.system_roots.get_or_init(|| {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                Arc::new(roots)
            })),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().map_err(reason_of)?;
        let config = config.with_root_certificates(roots);
        Ok(Arc::new(match &contents.client {
            Some((certificate, key)) => {
                let files = parts.client.as_ref();
                let its_place = place(files.map(|(certificate, _)| certificate));
                let key_place = place(files.map(|(_, key)| key));
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|_| format!("no private key in PEM format found{key_place}"))?;
                let chain = certificates(certificate, &its_place)?;
                config.with_client_auth_cert(chain, key).map_err(|error| match error {
                    rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => Reason::new(
                        format!("the certificate{its_place} does not fit its key{key_place}"),
                        error,
                    ),
                    error => reason_of(error),
                })?
            }
            None => config.with_no_client_auth(),
        }))
    }
}

impl Parts {
    fn has_files(&self) -> bool {
        let client = self.client.iter().flat_map(|(certificate, key)| [certificate, key]);
        self.ca.iter().chain(client).any(|pem| pem.path().is_some())
    }

    fn read(&self) -> Result<Contents, Reason> {
        let read = |pem: &Pem| match pem {
            Pem::Text(text) => Ok(text.clone()),
            Pem::File(file) => file.read().map_err(|error| {
                Reason::new(format!("{}: {error}", file.shown().display()), error)
            }),
        };
        let ca = self.ca.as_ref().map(read).transpose()?;
        let client = match &self.client {
            Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
            None => None,
        };
        Ok(Contents { ca, client })
    }
}

/// The file of a part, as the end of a message.
fn place(pem: Option<&Pem>) -> String {
    pem.and_then(Pem::path).map_or_else(String::new, |path| format!(" in {}", path.display()))
}

fn certificates(pem: &[u8], place: &str) -> Result<Vec<CertificateDer<'static>>, Reason> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    // The parser's error quotes text that may be a key, so this error is not passed on.
    match certificates {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("no certificate in PEM format found{place}").into()),
    }
}

fn reason_of(error: rustls::Error) -> Reason {
    Reason::new(error.to_string(), error)
}

#[cfg(test)]
mod tests {
    use quorlock_servers::certificates::Authority;

    use super::*;

    #[test]
    fn a_key_that_cannot_be_read_is_shown_to_nobody() {
        for text in [
            "-----BEGIN PRIVATE KEY----- MIIEsecret -----END PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----\\nMIIEsecret\\n-----END PRIVATE KEY-----",
            "MIIEsecret",
        ] {
            let pem = || text.as_bytes().to_vec();
            let ca = Authority::new().pem().to_owned();
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

    #[test]
    fn a_configuration_is_made_only_of_new_certificates() {
        let authority = Authority::new();
        let file = authority.file("node.pem");
        let tls = Tls::new().client_files(&file, authority.file("node.key"));
        // All nodes have clones of one `Tls`.
        let nodes = [(); 2].map(|()| Encryption::new(tls.clone(), None).ok().unwrap());
        let [first, second] = nodes.each_ref().map(|node| node.newest().value().unwrap());
        assert!(Arc::ptr_eq(&first, &second));
        let Source::Parts(parts) = &tls.source else { panic!("files") };
        authority.write("node.pem", &std::fs::read_to_string(&file).unwrap());
        tls.made.update(parts).unwrap();
        assert!(Arc::ptr_eq(&first, &nodes[1].newest().value().unwrap()));
        let roots = Arc::clone(tls.made.system_roots.get().unwrap());
        let other = authority.issue();
        authority.write("node.pem", &other.certificate);
        tls.made.update(parts).unwrap();
        assert!(Arc::ptr_eq(&first, &nodes[1].newest().value().unwrap()), "it does not fit yet");
        authority.write("node.key", &other.key);
        tls.made.update(parts).unwrap();
        assert!(!Arc::ptr_eq(&first, &nodes[1].newest().value().unwrap()));
        assert!(Arc::ptr_eq(&roots, tls.made.system_roots.get().unwrap()));
    }
}
