//! Opens a connection to a server: asks for credentials, resolves the name, connects, and encrypts.

use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quorlock_core::{Failure, FailureKind};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

use super::sentinel::Sentinels;
use super::target::{Address, Target};
#[cfg(feature = "tls")]
use super::tls::Encryption;
use super::wire::Socket;
use crate::node::offload::Offload;
use crate::node::{OnWarning, Provider};

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
    /// The wait for a file ends after this time.
    pub(super) patience: Duration,
    pub(super) on_warning: Option<OnWarning>,
    pub(super) awaits: Mutex<Awaits>,
}

/// The present wait of an attempt to connect, if a message names it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaits {
    Something,
    /// The server has accepted a connection, but has not answered in TLS yet.
    Tls,
    /// A function of the user, which was given to this method.
    Function(&'static str),
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
        let hint = match self.awaits() {
            Awaits::Function(method) => format!(" from the function of {method}"),
            Awaits::Tls => self.scheme_hint().to_owned(),
            Awaits::Something => String::new(),
        };
        let detail = format!("nothing within the connect timeout of {after:?}{hint}");
        self.placed(Failure::unsent(FailureKind::ConnectTimeout).with_detail(detail))
    }

    /// Adds to the failure the address that a Sentinel gave for the master, because the URL does not have this address.
    pub(super) fn placed(&self, failure: Failure) -> Failure {
        let Some(address) = self.sentinels.as_ref().and_then(Sentinels::found) else {
            return failure;
        };
        let detail = failure.detail().unwrap_or_default();
        let detail = format!("the master at {address}: {detail}");
        failure.with_detail(detail)
    }

    pub(super) fn awaits(&self) -> Awaits {
        *self.awaits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn await_(&self, awaits: Awaits) {
        *self.awaits.lock().unwrap_or_else(PoisonError::into_inner) = awaits;
    }

    /// Reads the files of the password and the certificates again, or asks for the certificates. `is_again`: the server
    /// has refused the log-in or a certificate, so only files are read. Reports files that cannot be used.
    ///
    /// # Errors
    /// If there are no certificates yet.
    pub(super) async fn renew(&self, is_again: bool) -> Result<(), Failure> {
        self.await_(Awaits::Something);
        #[cfg(feature = "tls")]
        if let Some(encryption) = &self.encryption {
            if encryption.asks_a_function() {
                self.await_(Awaits::Function("Tls::from_fn"));
            }
            let renewed = encryption.renew(self.patience, is_again).await;
            self.await_(Awaits::Something);
            renewed.map_err(|reason| {
                let detail = format!("no certificates: {reason}");
                Failure::unsent(FailureKind::Unreachable).with_detail(detail)
            })?;
            if let Some(reason) = encryption.newest().trouble() {
                self.warn(&format!("TLS: {reason}"));
            }
        }
        #[cfg(not(feature = "tls"))]
        let _ = is_again;
        if let Some(file) = self.credentials.as_ref().and_then(Provider::file) {
            // This fails only without a password, and `Server::new` has read one.
            let _ = file.renew(self.patience).await;
            if let Some(reason) = file.newest().trouble() {
                self.warn(&reason);
            }
        }
        Ok(())
    }

    fn warn(&self, reason: &str) {
        tracing::warn!("{reason}; what was read before stays in use");
        if let Some(on_warning) = &self.on_warning {
            on_warning(&format!("{reason}; what was read before stays in use"));
        }
    }

    /// Numbers that change when the certificates or the password change.
    pub(super) fn versions(&self) -> [u64; 2] {
        #[cfg(feature = "tls")]
        let tls = self.encryption.as_ref().map_or(0, |it| it.newest().version());
        #[cfg(not(feature = "tls"))]
        let tls = 0;
        let file = self.credentials.as_ref().and_then(Provider::file);
        [tls, file.map_or(0, |file| file.newest().version())]
    }

    /// The target with the address and the credentials for one connection.
    pub(super) async fn look_up(&self) -> Result<Cow<'_, Target>, Failure> {
        let mut target = Cow::Borrowed(&self.target);
        if let Some(sentinels) = &self.sentinels {
            target = Cow::Owned(sentinels.locate(self).await?);
        }
        if let Some(credentials) = &self.credentials {
            self.await_(Awaits::Function("NodeConfig::credentials"));
            let answer = credentials.log_in(target.to_mut()).await;
            self.await_(Awaits::Something);
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
                self.await_(Awaits::Something);
                let stream = TcpStream::connect(&*resolver.resolve(host, *port).await?).await?;
                self.set_up(&stream)?;
                self.await_(if *encrypted { Awaits::Tls } else { Awaits::Something });
                let socket = match encrypted {
                    true => self.encrypt(host, stream).await?,
                    false => Box::new(stream),
                };
                self.await_(Awaits::Something);
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
pub(super) fn certificate_hint(error: &str) -> &'static str {
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
    HINTS.into_iter().find(|(words, _)| error.contains(words)).map_or("", |(_, hint)| hint)
}

type Addresses = io::Result<Vec<SocketAddr>>;

/// Looks up the host name of a node. If the system's resolver hangs, at most one thread per node and host waits for it.
#[derive(Default)]
pub(super) struct Resolver {
    look_ups: Offload<String, Addresses>,
}

impl Resolver {
    pub(super) async fn resolve(&self, host: &str, port: u16) -> Addresses {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![(address, port).into()]);
        }
        let name = host.to_owned();
        let look_up = move || (&*name, port).to_socket_addrs().map(Iterator::collect);
        self.look_ups.run(host.to_owned(), "resolve", look_up).await?
    }
}
