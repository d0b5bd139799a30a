//! Sentinels: servers that know which server is currently the master of a given name.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quorlock_core::{Failure, FailureKind, NodeId};
use tokio::time::timeout;

use super::codec::missing_command;
use super::connect::{hinted, not_dialled};
use super::dialer::{Dialer, Resolver};
use super::handshake::not_logged_in;
use super::redis_cli::RedisCli;
use super::resp::{self, Reply};
use super::target::{Address, Target};
use super::wire::Wire;
use crate::node::{Inbox, Tls};

/// The Sentinels of a node. The client asks them at each connect.
pub(super) struct Sentinels {
    /// The Sentinels' name for the master.
    master: String,
    each: Vec<(Target, Resolver)>,
    /// Place of the Sentinel that the next connect asks first: random at first, advanced by each connect, because a
    /// Sentinel that is cut off from the other Sentinels may name an old master.
    next: AtomicUsize,
    /// The timeout for asking one Sentinel: its equal share of the connect timeout.
    patience: Duration,
    /// The master's `host:port` in the newest answer of a Sentinel; `None` before the first answer.
    found: Mutex<Option<String>>,
    redis_cli: RedisCli,
}

impl Sentinels {
    /// `None` if the target is a server. The connect timeout is divided among the Sentinels and the master.
    pub(super) fn of(
        target: &Target,
        tls: Option<&Tls>,
        connect_timeout: Duration,
    ) -> Option<Self> {
        let (master, sentinels) = target.sentinels.as_ref()?;
        let first = sentinels.first()?.clone();
        let first = Target { tls_server_name: target.tls_server_name.clone(), ..first };
        let parts = u32::try_from(sentinels.len() + 1).unwrap_or(u32::MAX);
        Some(Self {
            master: master.clone(),
            next: AtomicUsize::new(random_place()),
            patience: connect_timeout / parts,
            found: Mutex::new(None),
            redis_cli: RedisCli::new(&first, tls),
            each: sentinels.iter().map(|it| (it.clone(), Resolver::default())).collect(),
        })
    }

    /// The master's `host:port` in the newest answer of a Sentinel. `None` if no Sentinel has answered yet.
    pub(super) fn found(&self) -> Option<String> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The command line that reaches the master. Before a Sentinel has named the master, it reaches the first Sentinel.
    pub(super) fn redis_cli(&self, for_master: &RedisCli) -> RedisCli {
        self.found().map_or_else(|| self.redis_cli.clone(), |address| for_master.at(&address))
    }

    /// Asks one Sentinel after the other for the master's address, until one names it. Returns the dialer's target with
    /// that address.
    ///
    /// # Errors
    /// The failure of the last Sentinel that answered, or of the last one asked if no Sentinel answered. A refused
    /// log-in is returned only if no Sentinel has another failure.
    pub(super) async fn locate(&self, dialer: &Dialer) -> Result<Target, Failure> {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.each.len();
        let (later, sooner) = self.each.split_at(first);
        let mut failures = Vec::new();
        for (sentinel, resolver) in sooner.iter().chain(later) {
            match self.master_by(dialer, sentinel, resolver).await {
                Ok((host, port)) => {
                    let encrypted = dialer.target.is_encrypted();
                    let address = Address::Port { host, port, encrypted };
                    let located = Target { address, sentinels: None, ..dialer.target.clone() };
                    *self.found.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(located.address());
                    return Ok(located);
                }
                Err(failed) => failures.push(failed),
            }
        }
        // A refused log-in makes waiting calls fail, so it is returned only if no Sentinel has another failure.
        let rank = |(has_answered, failure): &(bool, Failure)| match failure.kind() {
            FailureKind::Unauthenticated | FailureKind::Forbidden => 0,
            _ => 1 + u8::from(*has_answered),
        };
        let last = failures.into_iter().max_by_key(rank);
        Err(last.map_or(Failure::unsent(FailureKind::Unreachable), |(_, failure)| failure))
    }

    /// Asks every Sentinel. Returns the failures of those that do not name the master.
    pub(super) async fn failures(&self, dialer: &Dialer) -> Vec<Failure> {
        let mut failures = Vec::new();
        for (sentinel, resolver) in &self.each {
            let named = self.master_by(dialer, sentinel, resolver).await;
            failures.extend(named.err().map(|(_, failure)| failure));
        }
        failures
    }

    /// Asks one Sentinel for host and port of the master.
    ///
    /// # Errors
    /// Whether the Sentinel has answered, and the failure with its address and a remedy.
    async fn master_by(
        &self,
        dialer: &Dialer,
        sentinel: &Target,
        resolver: &Resolver,
    ) -> Result<(String, u16), (bool, Failure)> {
        let asked = timeout(self.patience, self.ask(dialer, sentinel, resolver)).await;
        let replies = asked.unwrap_or_else(|_| {
            let bound = format!("nothing within {:?}", self.patience);
            Err(Failure::unsent(FailureKind::ConnectTimeout).with_detail(bound))
        });
        let has_answered = replies.is_ok();
        replies.and_then(|replies| self.read(replies, sentinel)).map_err(|failure| {
            let detail = failure.detail().unwrap_or_default();
            let remedy = match failure.kind() {
                _ if !has_answered => "; start it, or correct its address in the URL",
                FailureKind::Unauthenticated => {
                    "; check sentinel-user and sentinel-password in the URL"
                }
                _ => "",
            };
            let detail = format!("Sentinel {}: {detail}{remedy}", sentinel.address());
            (has_answered, failure.with_detail(detail))
        })
    }

    /// Connects to one Sentinel, and asks it. Returns its replies, which may be errors.
    async fn ask(
        &self,
        dialer: &Dialer,
        sentinel: &Target,
        resolver: &Resolver,
    ) -> Result<Vec<Reply>, Failure> {
        let socket = dialer.dial(&sentinel.address, resolver).await.map_err(not_dialled)?;
        // A Sentinel pushes nothing to a connection that subscribes to nothing.
        let mut wire = Wire::new(socket, Inbox::new(1).push_sink(NodeId::new(0)));
        let login = sentinel.login();
        let replies = wire.ask(|out| {
            if let Some((user, password)) = login {
                let words = [Some("AUTH"), user, Some(password)].into_iter().flatten();
                resp::write(out, &words.map(str::as_bytes).collect::<Vec<_>>());
            }
            let master = self.master.as_bytes();
            resp::write(out, &[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", master]);
            1 + usize::from(login.is_some())
        });
        replies.await.map_err(|failure| match wire.last_words() {
            Some(error) => not_logged_in(error, login.is_some()),
            None => hinted(failure, &wire, dialer),
        })
    }

    /// Reads the master's address in a Sentinel's replies.
    fn read(&self, replies: Vec<Reply>, sentinel: &Target) -> Result<(String, u16), Failure> {
        let no_sentinel = || {
            let detail = "this is no Sentinel; correct its port, which is usually 26379";
            Failure::unsent(FailureKind::Unreachable).with_detail(detail)
        };
        let lacks =
            |reply: &Reply| matches!(reply, Reply::Error(it) if missing_command(it).is_some());
        if replies.iter().any(lacks) {
            return Err(no_sentinel());
        }
        for reply in replies {
            match reply {
                Reply::Okay => {}
                Reply::Error(error) => {
                    return Err(not_logged_in(&error, sentinel.login().is_some()));
                }
                Reply::Nil => {
                    let detail = format!(
                        "it knows no master {:?}; correct the name in the URL, SENTINEL MASTERS lists the names",
                        self.master
                    );
                    return Err(Failure::unsent(FailureKind::Unreachable).with_detail(detail));
                }
                Reply::List(words) => return address(&words).ok_or_else(no_sentinel),
                _ => return Err(no_sentinel()),
            }
        }
        Err(no_sentinel())
    }
}

/// A random number, because all clients and all short-lived processes would otherwise ask the same Sentinel first.
fn random_place() -> usize {
    usize::try_from(RandomState::new().hash_one(()) >> 33).unwrap_or(0)
}

/// Host and port in a reply. The host of a valid reply is an IP address or a name.
fn address(words: &[Reply]) -> Option<(String, u16)> {
    let [host, port] = words else { return None };
    // Messages and commands that people paste contain the address, so other characters are refused.
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_name =
        |it: &str| (1..=255).contains(&it.len()) && it.chars().all(good) && !it.starts_with('-');
    let host = host.text().filter(|it| it.parse::<IpAddr>().is_ok() || is_name(it))?;
    let port = port.text()?.parse().ok().filter(|port| *port > 0)?;
    Some((host.to_owned(), port))
}

/// The failure if the server is a Sentinel, which holds no locks.
pub(super) fn found_instead(target: &Target) -> Failure {
    let (scheme, address) = match target.address {
        Address::Port { encrypted: true, .. } => ("rediss", target.address()),
        Address::Port { .. } => ("redis", target.address()),
        // The URL of Sentinels has no place for a path.
        Address::Socket(_) => ("redis", "HOST:26379".to_owned()),
    };
    let detail = format!(
        "SET: this is a Sentinel; use {scheme}+sentinel://{address}/NAME?replicas=1, where NAME is its name for the master"
    );
    Failure::unsent(FailureKind::MissingCommand).with_detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_is_not_used() {
        let read = |host: &str, port: &str| {
            address(&[host, port].map(|word| Reply::Bytes(word.as_bytes().to_vec())))
        };
        assert_eq!(read("10.0.0.1", "6379"), Some(("10.0.0.1".to_owned(), 6379)));
        assert_eq!(read("::1", "6379"), Some(("::1".to_owned(), 6379)));
        assert_eq!(read("redis-1.internal", "1"), Some(("redis-1.internal".to_owned(), 1)));
        for (host, port) in [
            ("", "1"),
            ("a b", "1"),
            ("a/$(reboot)", "1"),
            ("-x", "1"),
            ("a", "0"),
            ("a", "65536"),
            ("\x1b[2J", "1"),
        ] {
            assert_eq!(read(host, port), None, "{host}:{port}");
        }
        assert_eq!(address(&[Reply::Nil, Reply::Int(1)]), None);
        assert_eq!(address(&[]), None);
    }
}
