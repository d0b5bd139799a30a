//! A port that forwards connections to a server.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::Server;

/// A port of 127.0.0.1 that forwards connections to a server. Dropping it closes the port, but not its connections.
#[derive(Debug)]
pub struct Door {
    url: String,
    target: watch::Sender<Target>,
    accepting: AbortHandle,
}

/// A connection from a [`Door`] to its server.
pub trait ServerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ServerStream for T {}

/// The address of a server for the proxy.
#[derive(Clone, Debug)]
struct Target {
    address: String,
    is_tls: bool,
}

impl Target {
    fn new(server: &Server) -> Self {
        let is_tls = server.url().starts_with("rediss:");
        let socket = || server.socket().display().to_string();
        Self { address: if is_tls { server.address() } else { socket() }, is_tls }
    }

    async fn connect(self) -> io::Result<Box<dyn ServerStream>> {
        if !self.is_tls {
            return Ok(Box::new(UnixStream::connect(self.address).await?));
        }
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

impl Door {
    /// Opens a port. When a client connects, calls `carry` with the client's connection, and with a connection to the
    /// server or, if the server refuses it, `None`.
    ///
    /// # Errors
    /// If no port is available.
    pub async fn open<F>(
        server: &Server,
        carry: impl Fn(TcpStream, Option<Box<dyn ServerStream>>) -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (target, current) = watch::channel(Target::new(server));
        let scheme = if current.borrow().is_tls { "rediss" } else { "redis" };
        let url = format!("{scheme}://127.0.0.1:{port}");
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // Without TCP_NODELAY, small replies would wait for acknowledgements. If it fails, the proxy is slower.
                let _ = client.set_nodelay(true);
                let target = current.borrow().clone();
                let server = target.connect().await.ok();
                tokio::spawn(carry(client, server));
            }
        });
        Ok(Self { url, target, accepting: accepting.abort_handle() })
    }

    /// Redirects new connections to this server.
    pub fn lead_to(&self, server: &Server) {
        self.target.send_replace(Target::new(server));
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        self.url.clone()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
