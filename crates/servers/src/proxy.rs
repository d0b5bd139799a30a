//! A TCP proxy in front of a server that injects network faults: delays, fragmented or lost data, and connections that
//! break within a reply or in one direction only.
//!
//! The proxy behaves like a TCP network: the bytes of a connection arrive in order and without gaps. A direction of a
//! connection that has lost data delivers nothing more.

mod distance;
mod door;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, duplex};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

pub use self::distance::Distance;
pub use self::door::{Door, ServerStream};
use crate::Server;

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the server.
    ToServer,
    /// From the server to clients: replies and pushes.
    ToClient,
}

/// The treatment of data in one direction, on existing and new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Traffic {
    /// Data passes through unchanged.
    #[default]
    Open,
    /// Data arrives with this additional delay.
    Delay(Duration),
    /// The proxy buffers data, and delivers it in order after the treatment changes.
    Hold,
    /// The proxy discards data. A connection that has lost data delivers nothing more in this direction.
    Drop,
    /// Data arrives in pieces of this number of bytes, a millisecond apart.
    Split(usize),
}

/// A single fault on the existing connections. New connections are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// The connections stay open and deliver nothing more in either direction, as after a firewall has lost its state.
    Swallow,
    /// The proxy buffers data in this direction until [`Proxy::release`]. So data of an old connection can arrive after
    /// later data of a new one, even if the client has closed the old connection meanwhile.
    Hold(Direction),
    /// The receiver in this direction gets a FIN. The other direction stays open.
    HalfClose(Direction),
    /// The next data in this direction is cut: of its `n` bytes, only the first `k % n` arrive, where `k` is the number
    /// given here. Then the connection ends.
    Truncate(Direction, usize),
    /// Both ends get a FIN.
    Close,
    /// The client gets a RST.
    Reset,
}

/// An event that the proxy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The proxy accepted a connection and connected to the server.
    Accepted,
    /// The proxy accepted a connection, could not connect to the server, and closed the connection.
    NoServer,
    /// Data was delayed.
    Delayed,
    /// Data was buffered.
    Held,
    /// Buffered data was delivered after its sender had closed the connection.
    Late,
    /// Data was discarded.
    Dropped,
    /// Data was delivered in pieces.
    Split,
    /// One direction of a connection was closed.
    HalfClosed,
    /// A connection closed after a part of the data.
    Truncated,
    /// A connection was closed.
    Closed,
    /// A connection was reset.
    Reset,
    /// Data came from a client after data from the server, or as the first of its connection: the client begins another
    /// round trip. The round trip of the TCP connection itself is [`Accepted`](Self::Accepted).
    RoundTrip,
}

/// The number of variants of [`Effect`].
const EFFECTS: usize = Effect::RoundTrip as usize + 1;

/// The largest number of bytes per read.
const BUFFER: usize = 16 * 1024;

/// The interval between pieces of `Split` data, and the wait for further data after buffered data was delivered.
const PAUSE: Duration = Duration::from_millis(1);

/// A proxy with its own address in front of a server.
#[derive(Debug)]
pub struct Proxy {
    door: Door,
    orders: watch::Sender<Orders>,
    counts: Arc<Counts>,
}

/// The settings of a proxy, which all of its connections share.
#[derive(Clone, Copy, Debug, Default)]
struct Orders {
    ways: [Traffic; 2],
    distance: Distance,
    /// Number of faults that were injected so far. `blow` is the latest fault.
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
    /// Opens a port of 127.0.0.1 in front of the server. The proxy connects to the server's Unix socket, whose path
    /// survives restarts, or to the port of a server with TLS. The proxy runs until it is dropped or the current tokio
    /// runtime ends.
    ///
    /// # Errors
    /// If no port is available.
    pub async fn start(server: &Server) -> io::Result<Self> {
        let (orders, seen) = watch::channel(Orders::default());
        let counts = Arc::new(Counts::default());
        let its = counts.clone();
        let door = Door::open(server, move |client, server| {
            let (seen, counts) = (seen.clone(), its.clone());
            async move {
                match server {
                    Some(server) => carry(client, server, &seen, &counts).await,
                    None => {
                        counts.add(Effect::NoServer);
                        let distance = seen.borrow().distance;
                        sleep(distance.round_trip()).await;
                    }
                }
            }
        });
        Ok(Self { door: door.await?, orders, counts })
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        self.door.url()
    }

    /// Redirects new connections to another server, as a change of a DNS record does. Existing connections stay.
    pub fn lead_to(&self, server: &Server) {
        self.door.lead_to(server);
    }

    /// Sets the treatment of data in a direction.
    pub fn set(&self, direction: Direction, traffic: Traffic) {
        self.orders.send_modify(|orders| orders.ways[direction as usize] = traffic);
    }

    /// Puts the server at a distance from clients. Existing connections keep the earlier distance. Data is delayed before
    /// the treatment of its direction and the faults apply to it.
    ///
    /// A TCP connection to the proxy is there at once. To a distant server it takes a round trip, so the proxy treats the
    /// data that clients send in the first round trip as sent at its end.
    pub fn set_distance(&self, distance: Distance) {
        self.orders.send_modify(|orders| orders.distance = distance);
    }

    /// Injects a fault into the existing connections.
    pub fn strike(&self, blow: Blow) {
        self.orders.send_modify(|orders| {
            orders.blows += 1;
            orders.blow = Some(blow);
        });
    }

    /// Delivers the bytes that [`Blow::Hold`] has kept back.
    pub fn release(&self) {
        self.orders.send_modify(|orders| orders.releases += 1);
    }

    /// Lets data pass in both directions again. Buffered data arrives first.
    pub fn open(&self) {
        self.orders.send_modify(|orders| {
            orders.ways = [Traffic::Open; 2];
            orders.releases += 1;
        });
    }

    /// The number of times that an effect occurred.
    pub fn count(&self, effect: Effect) -> u64 {
        self.counts.0[effect as usize].load(Ordering::Relaxed)
    }
}

/// The reason why both directions of a connection end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The proxy was dropped.
    Gone,
    Closed,
    Truncated,
    Reset,
}

async fn carry(
    mut client: TcpStream,
    server: Box<dyn ServerStream>,
    orders: &watch::Receiver<Orders>,
    counts: &Counts,
) {
    counts.add(Effect::Accepted);
    let end = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = tokio::io::split(server);
        let replied = AtomicBool::new(true);
        let there = Lane::new(Direction::ToServer, orders, counts, &replied);
        let back = Lane::new(Direction::ToClient, orders, counts, &replied);
        let distance = orders.borrow().distance;
        // If one direction ends, the other stays open, because more data may arrive in the other direction.
        if distance.is_near() {
            tokio::try_join!(there.pass(from_client, to_server), back.pass(from_server, to_client))
                .map(drop)
        } else {
            let opened = Instant::now() + distance.round_trip();
            let (sent, arriving) = duplex(BUFFER);
            let (replied, returning) = duplex(BUFFER);
            let sending = distance.carry(Direction::ToServer, opened, from_client, sent);
            let replying = distance.carry(Direction::ToClient, opened, from_server, replied);
            tokio::try_join!(
                async {
                    sending.await;
                    Ok(())
                },
                async {
                    replying.await;
                    Ok(())
                },
                there.pass(arriving, to_server),
                back.pass(returning, to_client),
            )
            .map(drop)
        }
    };
    match end {
        Ok(()) | Err(End::Gone) => {}
        Err(End::Closed) => counts.add(Effect::Closed),
        Err(End::Truncated) => counts.add(Effect::Truncated),
        Err(End::Reset) => {
            counts.add(Effect::Reset);
            // If this call fails, closing the connection sends the client a FIN instead of a RST.
            let _ = client.set_zero_linger();
        }
    }
}

/// One direction of one connection.
struct Lane<'a> {
    direction: Direction,
    orders: watch::Receiver<Orders>,
    counts: &'a Counts,
    /// Whether the latest data of the connection came from the server. True before any data.
    replied: &'a AtomicBool,
    /// The proxy's number of faults when this direction last compared it. If it has grown since, there is a new fault.
    blows: u64,
    /// `Some` while a fault buffers data: the number of releases when the fault began. The next release ends the fault.
    holds: Option<u64>,
    /// The argument of [`Blow::Truncate`], which applies to the next data.
    truncates: Option<usize>,
    /// Whether this direction has lost data, so all further data is discarded.
    swallows: bool,
}

impl<'a> Lane<'a> {
    fn new(
        direction: Direction,
        orders: &watch::Receiver<Orders>,
        counts: &'a Counts,
        replied: &'a AtomicBool,
    ) -> Self {
        let orders = orders.clone();
        let blows = orders.borrow().blows;
        let (holds, truncates) = (None, None);
        Self { direction, orders, counts, replied, blows, holds, truncates, swallows: false }
    }

    /// Forwards data until the sender closes the connection.
    async fn pass(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> Result<(), End> {
        let mut buffer = vec![0; BUFFER];
        let mut was_held = false;
        loop {
            let read = if was_held {
                // The proxy has not read while it buffered, so the sender may have sent more data or closed the
                // connection. If it has done neither, the timeout ends this read.
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
                // An error is ignored, because the receiver may have closed the connection too.
                let _ = to.shutdown().await;
                return Ok(());
            };
            let is_reply = self.direction == Direction::ToClient;
            if self.replied.swap(is_reply, Ordering::Relaxed) && !is_reply {
                self.counts.add(Effect::RoundTrip);
            }
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

    /// Applies new settings and faults.
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

    /// Waits while the data must not be delivered. Returns whether the data was buffered.
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
                // Each piece of data is delayed only once, even if the settings change during the delay.
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
            // The connection ends even if this write fails.
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
        // If the write failed, the receiver has closed the connection. Later data in this direction is discarded. The
        // other direction stays open, because the receiver may have sent more data before.
        self.swallows |= written.is_err();
        Ok(())
    }

    /// Delivers data in pieces until the setting changes, and then the rest at once. A full buffer in pieces of a
    /// single byte would otherwise take many seconds.
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
