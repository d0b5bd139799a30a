//! Opens a connection to a server: asks for credentials, resolves the name, connects, and encrypts.

use std::borrow::Cow;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quorlock_core::{Failure, FailureKind};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

use super::resolver::Resolver;
use super::sentinel::Sentinels;
use super::target::{Address, Target};
#[cfg(feature = "tls")]
use super::tls::Encryption;
use super::wire::Socket;
use crate::node::credentials::Provider;

/// How to reach a server.
pub(super) struct Dialer {
    pub(super) target: Target,
    pub(super) credentials: Option<Provider>,
    /// The Sentinels that know the server's address; `None` if the URL has it.
    pub(super) sentinels: Option<Sentinels>,
    pub(super) resolver: Resolver,
    #[cfg(feature = "tls")]
    pub(super) encryption: Option<Encryption>,
    /// The connection breaks if sent data stay unacknowledged for this time.
    pub(super) give_up_after: Duration,
    /// The server has accepted a connection, but has not answered in TLS yet.
    pub(super) awaits_tls: AtomicBool,
    /// The caller's function for credentials has not answered yet.
    pub(super) awaits_credentials: AtomicBool,
}

impl Dialer {
    /// A hint that the URL may have the wrong scheme. Used if the server's answer is not readable.
    pub(super) fn scheme_hint(&self) -> &'static str {
        match self.target.address {
            Address::Port { encrypted: true, .. } => {
                "; if this port is without TLS, its URL begins with redis://"
            }
            Address::Port { encrypted: false, .. } => {
                "; if this port is for TLS, its URL begins with rediss://"
            }
            Address::Socket(_) => "",
        }
    }

    /// The failure of an attempt to connect that timed out.
    pub(super) fn timed_out(&self, after: Duration) -> Failure {
        let hint = if self.awaits_credentials.load(Ordering::Relaxed) {
            " from the function of NodeConfig::credentials"
        } else if self.awaits_tls.load(Ordering::Relaxed) {
            self.scheme_hint()
        } else {
            ""
        };
        let detail = format!("nothing within {after:?}{hint}");
        self.placed(Failure::unsent(FailureKind::ConnectTimeout).with_detail(detail))
    }

    /// Adds to the failure the address that a Sentinel gave for the master, because the URL does not have this address.
    pub(super) fn placed(&self, failure: Failure) -> Failure {
        let Some(address) = self.sentinels.as_ref().and_then(Sentinels::found) else {
            return failure;
        };
        let said = failure.detail().unwrap_or_default();
        let detail = format!("the master at {address}: {said}");
        failure.with_detail(detail)
    }

    /// The target with the address and the credentials for one connection.
    pub(super) async fn look_up(&self) -> Result<Cow<'_, Target>, Failure> {
        let mut target = Cow::Borrowed(&self.target);
        if let Some(sentinels) = &self.sentinels {
            target = Cow::Owned(sentinels.locate(self).await?);
        }
        if let Some(credentials) = &self.credentials {
            self.awaits_credentials.store(true, Ordering::Relaxed);
            let answer = credentials.log_in(target.to_mut()).await;
            self.awaits_credentials.store(false, Ordering::Relaxed);
            answer?;
        }
        Ok(target)
    }

    /// Resolves the host name and connects, with TLS if the address requires it.
    pub(super) async fn dial(
        &self,
        address: &Address,
        resolver: &Resolver,
    ) -> io::Result<Box<dyn Socket>> {
        match address {
            Address::Port { host, port, encrypted } => {
                self.awaits_tls.store(false, Ordering::Relaxed);
                let stream = TcpStream::connect(&*resolver.resolve(host, *port).await?).await?;
                self.set_up(&stream)?;
                self.awaits_tls.store(*encrypted, Ordering::Relaxed);
                let socket = match encrypted {
                    true => self.encrypt(host, stream).await?,
                    false => Box::new(stream),
                };
                self.awaits_tls.store(false, Ordering::Relaxed);
                Ok(socket)
            }
            #[cfg(unix)]
            Address::Socket(path) => {
                let stream = UnixStream::connect(path).await;
                Ok(Box::new(stream.map_err(|error| match error.kind() {
                    // For a Unix socket, EAGAIN means a full queue; for a TCP socket, that no thread could be started.
                    io::ErrorKind::WouldBlock => {
                        io::Error::other("its queue of new connections is full")
                    }
                    _ => error,
                })?))
            }
            #[cfg(not(unix))]
            Address::Socket(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Disables Nagle's algorithm, and enables the detection of a dead peer.
    fn set_up(&self, stream: &TcpStream) -> io::Result<()> {
        let socket = socket2::SockRef::from(stream);
        socket.set_tcp_nodelay(true)?;
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(1));
        socket.set_tcp_keepalive(&keepalive)?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(self.give_up_after))?;
        Ok(())
    }

    #[cfg(feature = "tls")]
    async fn encrypt(&self, host: &str, stream: TcpStream) -> io::Result<Box<dyn Socket>> {
        let encryption = self.encryption.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let encrypted = encryption.encrypt(host, stream).await;
        Ok(Box::new(encrypted.map_err(|error| match Encryption::is_without_tls(&error) {
            true => io::Error::new(error.kind(), format!("{error}{}", self.scheme_hint())),
            false => error,
        })?))
    }

    #[cfg(not(feature = "tls"))]
    async fn encrypt(&self, _: &str, _: TcpStream) -> io::Result<Box<dyn Socket>> {
        // This is never reached: without the feature `tls`, a URL with TLS is refused when it is parsed.
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The remedy for a certificate that rustls or the server rejects, found by the text of the error.
pub(super) fn certificate_hint(said: &str) -> &'static str {
    const HINTS: [(&str, &str); 7] = [
        ("not valid for any names", NAMELESS),
        ("CaUsedAsEndEntity", AUTHORITY),
        ("not valid for name", NAME),
        ("NotValidForName", NAME),
        ("UnknownIssuer", "; --tls-ca FILE names the authority that has signed it"),
        ("CertificateRequired", CLIENT),
        ("alert: UnknownCA", CLIENT),
    ];
    const NAME: &str = "; --tls-server-name NAME names the server as its certificate does";
    const NAMELESS: &str = "; the certificate has no subjectAltName, and its CN does not count: give the server one with it";
    const AUTHORITY: &str =
        "; this is the certificate of an authority (CA:TRUE): give the server one with CA:FALSE";
    const CLIENT: &str = "; the server wants a certificate that its authority has signed: --tls-cert FILE and --tls-key FILE";
    HINTS.into_iter().find(|(words, _)| said.contains(words)).map_or("", |(_, hint)| hint)
}
