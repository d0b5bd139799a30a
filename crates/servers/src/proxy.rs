//! A way to a server on which everything can go wrong that goes wrong between two machines: bytes
//! come late, in pieces, or never; connections break in the middle of an answer, or half.
//!
//! Nothing happens here that a network cannot do: of one connection the bytes arrive in order and
//! without gaps. So a connection that has lost anything in one direction passes nothing on in that
//! direction any more, until somebody closes it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::Server;

/// One of the two ways through a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Bytes from clients.
    ToServer,
    /// Replies and pushes of the server.
    ToClient,
}

/// The treatment of all bytes, on existing and new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Traffic {
    /// Everything passes through.
    #[default]
    Open,
    /// It comes this much later.
    Delay(Duration),
    /// It is kept, and passes in order once the way is another.
    Hold,
    /// It is taken and never arrives; nor does what follows it on the same connection.
    Drop,
    /// Bytes arrive in pieces of this size, a millisecond apart.
    Split(usize),
}

/// A single action on the existing connections. New connections are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// From now on nothing arrives in either direction, as behind a firewall that has lost its state.
    Swallow,
    /// What goes there is kept until [`Proxy::release`]: it arrives after what is sent later on a
    /// new connection, also if the client has closed this one long since.
    Hold(Direction),
    /// The receiver in this direction reads the end; the other direction goes on.
    HalfClose(Direction),
    /// Of the next bytes in this direction, only this number arrives (modulo their count), then the end.
    Truncate(Direction, usize),
    /// Both ends read the end.
    Close,
    /// The client's connection is reset (RST).
    Reset,
}

/// An effect of the proxy, which it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A connection was taken and led to the server.
    Accepted,
    /// A connection was taken, and there was no server: closed.
    NoServer,
    /// Something came late.
    Delayed,
    /// Something was kept for a while.
    Held,
    /// Something was kept for so long that its sender had closed the connection, and then came.
    Late,
    /// Something never arrived.
    Dropped,
    /// Something came in pieces.
    Split,
    /// One direction of a connection was closed.
    HalfClosed,
    /// Something was cut off in the middle.
    Truncated,
    /// A connection was closed.
    Closed,
    /// A connection was reset.
    Reset,
}

/// The last of the effects; there are as many counters.
const EFFECTS: usize = Effect::Reset as usize + 1;

/// How much is read at once.
const BUFFER: usize = 16 * 1024;

/// Time between two pieces, and to see whether anything follows what was held.
const PAUSE: Duration = Duration::from_millis(1);

/// An address of its own for a server, with a will of its own.
#[derive(Debug)]
pub struct Proxy {
    door: Door,
    orders: watch::Sender<Orders>,
    counts: Arc<Counts>,
}

/// The orders to a proxy, shared by its connections.
#[derive(Clone, Copy, Debug, Default)]
struct Orders {
    ways: [Traffic; 2],
    /// How many blows there were, and the last of them.
    blows: u64,
    blow: Option<Blow>,
    releases: u64,
}

#[derive(Debug, Default)]
struct Counts([AtomicU64; EFFECTS]);

impl Counts {
    fn add(&self, effect: Effect) {
        self.0[effect as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl Proxy {
    /// Opens a port of 127.0.0.1 that leads to the server; over its Unix socket, so that the server
    /// is found there again after a restart. Works as long as it lives and the current tokio runtime
    /// runs.
    ///
    /// # Errors
    /// If there is no port.
    pub async fn start(server: &Server) -> io::Result<Self> {
        let (orders, seen) = watch::channel(Orders::default());
        let counts = Arc::new(Counts::default());
        let its = counts.clone();
        let door = Door::open(server, move |client, server| {
            let (seen, counts) = (seen.clone(), its.clone());
            async move {
                match server {
                    Some(server) => carry(client, server, &seen, &counts).await,
                    None => counts.add(Effect::NoServer),
                }
            }
        });
        Ok(Self { door: door.await?, orders, counts })
    }

    /// The address for clients.
    pub fn url(&self) -> String {
        self.door.url()
    }

    /// New connections lead to this server, as when a name or an address moves on to another
    /// machine. Those that exist do not.
    pub fn lead_to(&self, server: &Server) {
        self.door.lead_to(server);
    }

    /// From now on this becomes of what goes there.
    pub fn set(&self, direction: Direction, traffic: Traffic) {
        self.orders.send_modify(|orders| orders.ways[direction as usize] = traffic);
    }

    /// Does this to the connections that exist.
    pub fn strike(&self, blow: Blow) {
        self.orders.send_modify(|orders| {
            orders.blows += 1;
            orders.blow = Some(blow);
        });
    }

    /// Delivers the bytes that a [`Blow::Hold`] holds.
    pub fn release(&self) {
        self.orders.send_modify(|orders| orders.releases += 1);
    }

    /// Everything passes again, what was held first.
    pub fn open(&self) {
        self.orders.send_modify(|orders| {
            orders.ways = [Traffic::Open; 2];
            orders.releases += 1;
        });
    }

    /// How often this has happened.
    pub fn count(&self, effect: Effect) -> u64 {
        self.counts.0[effect as usize].load(Ordering::Relaxed)
    }
}

/// A port of 127.0.0.1 whose connections lead to a server. Closed when dropped; connections that
/// were made are not.
#[derive(Debug)]
pub struct Door {
    port: u16,
    target: watch::Sender<PathBuf>,
    accepting: AbortHandle,
}

impl Door {
    /// Opens a port and has every connection carried, beside one to the server, or none if the
    /// server takes none.
    ///
    /// # Errors
    /// If there is no port.
    pub async fn open<F>(
        server: &Server,
        carry: impl Fn(TcpStream, Option<UnixStream>) -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (target, path) = watch::channel(server.socket());
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // Without it small answers wait for each other; it is a matter of speed alone.
                let _ = client.set_nodelay(true);
                let path = path.borrow().clone();
                let server = UnixStream::connect(&path).await.ok();
                tokio::spawn(carry(client, server));
            }
        });
        Ok(Self { port, target, accepting: accepting.abort_handle() })
    }

    /// New connections lead to this server.
    pub fn lead_to(&self, server: &Server) {
        self.target.send_replace(server.socket());
    }

    /// The address for clients.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// How a connection ends for both directions at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Nobody gives orders any more.
    Gone,
    Closed,
    Truncated,
    Reset,
}

async fn carry(
    mut client: TcpStream,
    mut server: UnixStream,
    orders: &watch::Receiver<Orders>,
    counts: &Counts,
) {
    counts.add(Effect::Accepted);
    let end = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let there = Lane::new(Direction::ToServer, orders, counts);
        let back = Lane::new(Direction::ToClient, orders, counts);
        // An end of one direction alone leaves the other open, for what is still to come.
        tokio::try_join!(there.pass(from_client, to_server), back.pass(from_server, to_client))
    };
    match end {
        Ok(_) | Err(End::Gone) => {}
        Err(End::Closed) => counts.add(Effect::Closed),
        Err(End::Truncated) => counts.add(Effect::Truncated),
        Err(End::Reset) => {
            counts.add(Effect::Reset);
            // If the system does not want to, the client sees an ordinary end.
            let _ = client.set_zero_linger();
        }
    }
}

/// One direction of one connection.
struct Lane<'a> {
    direction: Direction,
    orders: watch::Receiver<Orders>,
    counts: &'a Counts,
    /// The blows up to this one have been taken, or came before the connection.
    blows: u64,
    /// What a blow has made of it: it holds until there have been more releases than this,
    holds: Option<u64>,
    /// cuts off what comes next,
    truncates: Option<usize>,
    /// or has lost something, and so loses all that follows.
    swallows: bool,
}

impl<'a> Lane<'a> {
    fn new(direction: Direction, orders: &watch::Receiver<Orders>, counts: &'a Counts) -> Self {
        let orders = orders.clone();
        let blows = orders.borrow().blows;
        let (holds, truncates) = (None, None);
        Self { direction, orders, counts, blows, holds, truncates, swallows: false }
    }

    /// Passes bytes on until there are no more.
    async fn pass(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> Result<(), End> {
        let mut buffer = vec![0; BUFFER];
        let mut was_held = false;
        loop {
            let read = if was_held {
                // Bytes that the sender sent before it went away.
                timeout(PAUSE, from.read(&mut buffer)).await.ok()
            } else {
                tokio::select! {
                    biased;
                    changed = self.orders.changed() => {
                        changed.map_err(|_| End::Gone)?;
                        self.obey(&mut to).await?;
                        continue;
                    }
                    read = from.read(&mut buffer) => Some(read),
                }
            };
            let Some(read) = read else {
                was_held = false;
                continue;
            };
            let Ok(count @ 1..) = read else {
                if was_held {
                    self.counts.add(Effect::Late);
                }
                // The other side may be gone as well.
                let _ = to.shutdown().await;
                return Ok(());
            };
            was_held |= self.wait(&mut to).await?;
            self.deliver(&buffer[..count], &mut to).await?;
        }
    }

    fn traffic(&self) -> Traffic {
        match self.holds {
            Some(_) => Traffic::Hold,
            None => self.orders.borrow().ways[self.direction as usize],
        }
    }

    /// Takes in what was ordered.
    async fn obey(&mut self, to: &mut (impl AsyncWrite + Unpin)) -> Result<(), End> {
        let orders = *self.orders.borrow_and_update();
        if self.holds.is_some_and(|releases| orders.releases > releases) {
            self.holds = None;
        }
        if orders.blows == self.blows {
            return Ok(());
        }
        self.blows = orders.blows;
        match orders.blow {
            Some(Blow::Swallow) => self.swallows = true,
            Some(Blow::Hold(there)) if there == self.direction => {
                self.holds = Some(orders.releases);
            }
            Some(Blow::HalfClose(there)) if there == self.direction => {
                let _ = to.shutdown().await;
                self.swallows = true;
                self.counts.add(Effect::HalfClosed);
            }
            Some(Blow::Truncate(there, keep)) if there == self.direction => {
                self.truncates = Some(keep);
            }
            Some(Blow::Close) => return Err(End::Closed),
            Some(Blow::Reset) => return Err(End::Reset),
            _ => {}
        }
        Ok(())
    }

    /// Waits for as long as what has been read is not to arrive. Returns whether it was held.
    async fn wait(&mut self, to: &mut (impl AsyncWrite + Unpin)) -> Result<bool, End> {
        let (mut held, mut late_by) = (false, None);
        loop {
            let traffic = self.traffic();
            let delay = match traffic {
                _ if self.swallows => return Ok(held),
                Traffic::Hold => {
                    if !held {
                        self.counts.add(Effect::Held);
                    }
                    held = true;
                    None
                }
                // Once, however often the orders change meanwhile.
                Traffic::Delay(delay) if late_by.is_none() => {
                    self.counts.add(Effect::Delayed);
                    late_by = Some(delay);
                    Some(delay)
                }
                _ => return Ok(held),
            };
            tokio::select! {
                biased;
                changed = self.orders.changed() => {
                    changed.map_err(|_| End::Gone)?;
                    self.obey(to).await?;
                }
                () = sleep(delay.unwrap_or(Duration::MAX)) => {}
            }
        }
    }

    async fn deliver(
        &mut self,
        bytes: &[u8],
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), End> {
        let traffic = self.traffic();
        self.swallows |= traffic == Traffic::Drop;
        if self.swallows {
            self.counts.add(Effect::Dropped);
            return Ok(());
        }
        if let Some(keep) = self.truncates {
            // Whether it arrives or the other side is gone: this is the end.
            let _ = to.write_all(&bytes[..keep % bytes.len()]).await;
            return Err(End::Truncated);
        }
        let written = match traffic {
            Traffic::Split(_) => {
                self.counts.add(Effect::Split);
                self.in_pieces(bytes, to).await
            }
            _ => to.write_all(bytes).await,
        };
        // Nobody reads it; what comes from there may still be of interest.
        self.swallows |= written.is_err();
        Ok(())
    }

    /// For as long as it is to be so: byte by byte, what has been read could take a minute.
    async fn in_pieces(
        &self,
        mut bytes: &[u8],
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        while let Traffic::Split(piece) = self.traffic()
            && !bytes.is_empty()
        {
            let (piece, rest) = bytes.split_at(piece.clamp(1, bytes.len()));
            to.write_all(piece).await?;
            to.flush().await?;
            sleep(PAUSE).await;
            bytes = rest;
        }
        to.write_all(bytes).await
    }
}
