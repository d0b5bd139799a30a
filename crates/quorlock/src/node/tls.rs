//! The certificates of nodes: texts, files that are read again for each connection, or a user's function.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::credentials::{Function, function};
#[cfg(feature = "tls")]
use super::redis::tls::Made;
use super::secret::SecretFile;

/// Certificates for TLS, in PEM: texts, files, or a function that returns them. `Debug` shows none of their contents.
///
/// Clones share what is made of the certificates, so one `Tls` serves all nodes
/// ([`ClientBuilder::tls`](crate::ClientBuilder::tls)).
///
/// # Certificates that change while the client runs
///
/// For each new connection the client reads the files again, on a thread of their own, or calls the function of
/// [`Tls::from_fn`]. It makes a new TLS configuration only if the certificates changed, and does not read the system's
/// roots again. Open connections stay.
///
/// The client keeps the last certificates that it could use while a file cannot be read, is half written, or has a
/// certificate that does not fit its key. It also keeps them if reading takes longer than a quarter of
/// [`connect_timeout`](crate::ClientBuilder::connect_timeout). One `tracing` event at WARN reports this; the next one
/// follows only after the files were usable again. If TLS fails on a new connection, or the server refuses the
/// certificate, the client reads the files once more, and connects again at once if they changed. Otherwise it tries
/// again later, as after any failure.
///
/// A file that is a pipe is read once. A file has at most 4 MiB.
///
/// ```no_run
/// use quorlock::Client;
/// use quorlock::node::Tls;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = Tls::new()
///     .ca_file("/run/secrets/ca.pem")
///     .client_files("/run/secrets/client.pem", "/run/secrets/client.key");
/// let client = Client::builder()
///     .nodes(["a=rediss://10.0.0.1", "b=rediss://10.0.0.2", "c=rediss://10.0.0.3"])
///     .tls(tls)
///     .password_file("/run/secrets/redis-password")
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Tls {
    pub(super) source: Source,
    #[cfg(feature = "tls")]
    pub(super) made: Arc<Made>,
}

#[derive(Clone)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "only a build with TLS calls it"))]
pub(super) enum Source {
    Parts(Arc<Parts>),
    Function(Function<Tls>),
}

/// The authority, and the client's certificate with its key.
#[derive(Clone, Default)]
pub(super) struct Parts {
    pub(super) ca: Option<Pem>,
    pub(super) client: Option<(Pem, Pem)>,
}

#[derive(Clone)]
#[cfg_attr(
    not(feature = "tls"),
    expect(dead_code, reason = "only a build with TLS reads the text")
)]
pub(super) enum Pem {
    Text(Vec<u8>),
    File(SecretFile),
}

impl Tls {
    /// Trusts the system's roots and presents no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks this function for the certificates, once for each new connection, before it connects. For certificates that
    /// are in no file, such as those of a secret manager; see [above](Self#certificates-that-change-while-the-client-runs).
    ///
    /// The function may wait; [`connect_timeout`](crate::ClientBuilder::connect_timeout) bounds the call together with
    /// the connecting. While the function fails or panics, the client keeps the last certificates that it could use.
    /// Before there are any, the node counts as unreachable. Messages show the function's error, so the error must not
    /// contain a secret. The other methods of this type replace the function.
    ///
    /// ```
    /// use quorlock::node::Tls;
    ///
    /// # async fn secret(name: &str) -> Result<String, std::io::Error> { Ok(name.to_owned()) }
    /// let tls = Tls::from_fn(|| async {
    ///     let (certificate, key) = (secret("certificate").await?, secret("key").await?);
    ///     Ok::<_, std::io::Error>(Tls::new().client_pem(certificate, key))
    /// });
    /// ```
    pub fn from_fn<F, Fut, E>(ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Self, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self::of(Source::Function(function(ask)))
    }

    /// Trusts this certificate authority instead of the system's roots.
    #[must_use]
    pub fn ca_pem(self, ca: impl Into<Vec<u8>>) -> Self {
        self.ca(Pem::Text(ca.into()))
    }

    /// Trusts the certificate authorities in this file instead of the system's roots. While servers change from one
    /// authority to another, the file contains both.
    ///
    /// # Errors
    /// [`ClientBuilder::build`](crate::ClientBuilder::build) refuses a file that cannot be used.
    #[must_use]
    pub fn ca_file(self, path: impl Into<PathBuf>) -> Self {
        self.ca_of(SecretFile::new(path.into()))
    }

    /// Presents this certificate to servers that ask for one.
    #[must_use]
    pub fn client_pem(self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client(Pem::Text(certificate.into()), Pem::Text(key.into()))
    }

    /// Presents the certificate in this file to servers that ask for one. The second file has its key. Replace both in
    /// any order: the client waits until they fit.
    ///
    /// # Errors
    /// [`ClientBuilder::build`](crate::ClientBuilder::build) refuses files that cannot be used, or do not fit.
    #[must_use]
    pub fn client_files(self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client_of(SecretFile::new(certificate.into()), SecretFile::new(key.into()))
    }

    /// The files of authority, certificate and key, each with the option of the command line that names it.
    pub(crate) fn files(&self) -> Vec<(&'static str, String)> {
        let Source::Parts(parts) = &self.source else { return Vec::new() };
        let client = parts.client.as_ref();
        let (cert, key) = (client.map(|(cert, _)| cert), client.map(|(_, key)| key));
        let all = [("--tls-ca", parts.ca.as_ref()), ("--tls-cert", cert), ("--tls-key", key)];
        let named = all.into_iter().filter_map(|(option, pem)| {
            Some((option, pem?.path()?.to_string_lossy().into_owned()))
        });
        named.collect()
    }

    pub(crate) fn ca_of(self, file: SecretFile) -> Self {
        self.ca(Pem::File(file))
    }

    pub(crate) fn client_of(self, certificate: SecretFile, key: SecretFile) -> Self {
        self.client(Pem::File(certificate), Pem::File(key))
    }

    fn ca(self, ca: Pem) -> Self {
        self.changed(|parts| parts.ca = Some(ca))
    }

    fn client(self, certificate: Pem, key: Pem) -> Self {
        self.changed(|parts| parts.client = Some((certificate, key)))
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            #[cfg(feature = "tls")]
            made: Arc::default(),
        }
    }

    /// With other parts. Nothing is shared with clones of the old ones.
    fn changed(self, change: impl FnOnce(&mut Parts)) -> Self {
        let mut parts = match self.source {
            Source::Parts(parts) => parts,
            Source::Function(_) => Arc::default(),
        };
        change(Arc::make_mut(&mut parts));
        Self::of(Source::Parts(parts))
    }
}

impl Default for Source {
    fn default() -> Self {
        Self::Parts(Arc::default())
    }
}

impl Pem {
    /// The path as the user wrote it; `None` for a text.
    pub(super) fn path(&self) -> Option<&std::path::Path> {
        match self {
            Self::Text(_) => None,
            Self::File(file) => Some(file.shown()),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Tls");
        match &self.source {
            Source::Parts(parts) => shown
                .field("ca", &parts.ca.is_some())
                .field("client", &parts.client.is_some())
                .finish(),
            Source::Function(_) => shown.finish_non_exhaustive(),
        }
    }
}
