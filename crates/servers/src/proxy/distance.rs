//! A distant server: data arrives later, in order, and at the rate at which it was sent.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{BUFFER, Direction};

/// The largest number of reads on their way in one direction of a connection, so at most 4 MiB.
const ON_THE_WAY: usize = 256;

/// The time that data takes between clients and a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distance {
    /// The shortest time from a client to the server.
    pub to_server: Duration,
    /// The shortest time from the server to a client.
    pub to_client: Duration,
    /// Each piece of data takes up to this percentage longer, at random. It never overtakes earlier data.
    pub jitter_percent: u32,
}

impl Distance {
    /// A quarter of the time to the server and the rest back, with a jitter of ten percent.
    pub fn of_round_trip(round_trip: Duration) -> Self {
        let to_server = round_trip / 4;
        Self { to_server, to_client: round_trip - to_server, jitter_percent: 10 }
    }

    /// The shortest time from a client to the server and back.
    pub fn round_trip(&self) -> Duration {
        self.to_server + self.to_client
    }

    pub(super) fn is_near(&self) -> bool {
        self.round_trip().is_zero()
    }

    /// Copies data until the sender closes the connection or the receiver is gone. Data that is read at a time t is
    /// written at t plus the distance. Data that is read before `opened` counts as sent at that time.
    pub(super) async fn carry(
        self,
        direction: Direction,
        opened: Instant,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) {
        let (departures, mut arrivals) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
        let departing = async move {
            let (random, mut due) = (RandomState::new(), opened);
            let mut buffer = vec![0; BUFFER];
            for count in 0_u64.. {
                // An error ends the connection, as an end of the data does: its receiver gets no more.
                let length = from.read(&mut buffer).await.unwrap_or_default();
                let sent = Instant::now().max(opened);
                due = due.max(sent + self.delay(direction, random.hash_one(count)));
                let data = buffer[..length].to_vec();
                if departures.send((due, data)).await.is_err() || length == 0 {
                    return;
                }
            }
        };
        let arriving = async move {
            while let Some((due, data)) = arrivals.recv().await {
                sleep_until(due).await;
                // Dropping the writer ends the receiver's data.
                if data.is_empty() || to.write_all(&data).await.is_err() {
                    return;
                }
            }
        };
        tokio::join!(departing, arriving);
    }

    fn delay(&self, direction: Direction, random: u64) -> Duration {
        let shortest = match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        };
        let thousandths = random % (u64::from(self.jitter_percent) * 10 + 1);
        let longer = shortest.as_nanos() * u128::from(thousandths) / 1000;
        shortest + Duration::from_nanos(u64::try_from(longer).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use tokio::time::sleep;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Sends a byte each millisecond. Returns the time at which each arrived.
    async fn arrivals(distance: Distance, opened: Duration, bytes: u8) -> Vec<Duration> {
        let started = Instant::now();
        let (mut client, from) = duplex(BUFFER);
        let (to, mut server) = duplex(BUFFER);
        tokio::spawn(distance.carry(Direction::ToServer, started + opened, from, to));
        tokio::spawn(async move {
            for byte in 0..bytes {
                client.write_all(&[byte]).await.unwrap();
                sleep(MS).await;
            }
        });
        let mut arrivals = Vec::new();
        while let Ok(byte) = server.read_u8().await {
            assert_eq!(usize::from(byte), arrivals.len(), "in order");
            arrivals.push(started.elapsed());
        }
        assert_eq!(arrivals.len(), usize::from(bytes), "the end comes last");
        arrivals
    }

    #[tokio::test(start_paused = true)]
    async fn data_that_is_sent_while_other_data_is_on_its_way_arrives_as_long_after_it() {
        let far = Distance { to_server: 100 * MS, to_client: MS, jitter_percent: 0 };
        for (sent, arrived) in (0..).zip(arrivals(far, Duration::ZERO, 50).await) {
            assert_eq!(arrived, (100 + sent) * MS);
        }
        let arrivals = arrivals(far, 10 * MS, 50).await;
        assert_eq!((arrivals[0], arrivals[9], arrivals[20]), (110 * MS, 110 * MS, 120 * MS));
    }

    #[tokio::test(start_paused = true)]
    async fn jitter_makes_the_way_longer_and_keeps_the_order() {
        let far = Distance { to_server: 100 * MS, to_client: MS, jitter_percent: 50 };
        let arrivals = arrivals(far, Duration::ZERO, 100).await;
        // A timer fires within a millisecond after its time.
        let took = |sent: u32| arrivals[sent as usize] - sent * MS;
        assert!((0..100).all(|sent| (100 * MS..=151 * MS).contains(&took(sent))));
        assert!((0..100).any(|sent| took(sent) > 102 * MS), "{arrivals:?}");
    }
}
