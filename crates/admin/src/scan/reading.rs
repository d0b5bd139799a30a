//! Reads the votes under keys that may be locks.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use quorlock::admin::{AdminConnection, Reply, failure_of};
use quorlock::node::Holding;
use quorlock_core::store::READERS_MAX;
use quorlock_core::{Failure, FailureKind, TTL_CEILING, Value};

use super::{COUNT, Vote, Votes};

/// Number of bytes of a value that are read first: a token, and the space before the owner text.
const START_BYTES: usize = 41;

const READERS_AT_A_TIME: i64 = 64;

#[derive(Default)]
pub(super) struct Read {
    pub(super) votes: Votes,
    /// The server's refusal if the user may not read one of the keys.
    pub(super) forbidden: Option<Failure>,
}

impl Read {
    /// Returns the reply; `None` if the value has expired or has another type, or if the user may not read it.
    fn take(&mut self, reply: Option<Reply>) -> Result<Option<Reply>, Failure> {
        match reply {
            Some(Reply::Error(error)) if error.starts_with("WRONGTYPE") => Ok(None),
            Some(Reply::Error(error)) => {
                let failure = failure_of(&error);
                if failure.kind() != FailureKind::Forbidden {
                    return Err(failure);
                }
                self.forbidden.get_or_insert(failure);
                Ok(None)
            }
            reply => Ok(reply),
        }
    }
}

/// The votes of writers (strings) and of readers (sorted sets) under these keys.
pub(crate) async fn read_all(
    connection: &AdminConnection,
    keys: &[Arc<str>],
) -> Result<Votes, Failure> {
    let mut votes = Votes::new();
    for keys in keys.chunks(COUNT) {
        votes.extend(read_strings(connection, keys).await?.votes);
        votes.extend(read_sets(connection, keys).await?.votes);
    }
    Ok(votes)
}

/// The writers' votes under these keys.
pub(super) async fn read_strings(
    connection: &AdminConnection,
    keys: &[Arc<str>],
) -> Result<Read, Failure> {
    let mut read = Read::default();
    let mut some = Vec::new();
    let replies = get_ranges(connection, keys, START_BYTES).await?;
    for (key, reply) in keys.iter().zip(replies) {
        if let Some(Reply::Bytes(start)) = read.take(Some(reply))?
            && Value::owner_of(&start).is_some()
        {
            some.push(key.clone());
        }
    }
    let values = get_ranges(connection, &some, Holding::VALUE_BYTES_MAX).await?;
    let ttls: Vec<[&str; 2]> = some.iter().map(|key| ["PTTL", &**key]).collect();
    let ttls = ask(connection, &ttls).await?;
    for ((key, value), ttl) in some.into_iter().zip(values).zip(ttls) {
        // A value of this library is shorter than this limit, so a longer one is no vote.
        if let Some(Reply::Bytes(value)) = read.take(Some(value))?
            && value.len() < Holding::VALUE_BYTES_MAX
            && Value::owner_of(&value).is_some()
            && let Some(left) = time_left(&ttl)
        {
            read.votes.insert(key, vec![Vote { value: value.into(), left, shared: false }]);
        }
    }
    Ok(read)
}

/// The first bytes of the values under these keys.
pub(crate) async fn get_ranges(
    connection: &AdminConnection,
    keys: &[Arc<str>],
    bytes: usize,
) -> Result<Vec<Reply>, Failure> {
    let last = (bytes - 1).to_string();
    let words: Vec<[&str; 4]> = keys.iter().map(|key| ["GETRANGE", &**key, "0", &last]).collect();
    ask(connection, &words).await
}

/// The readers' votes under these keys.
pub(super) async fn read_sets(
    connection: &AdminConnection,
    keys: &[Arc<str>],
) -> Result<Read, Failure> {
    let mut read = Read::default();
    let words = keys.iter().flat_map(|key| {
        let key = &**key;
        [
            vec!["ZRANGE", key, "-1", "-1"],
            vec!["ZCOUNT", key, "-inf", "+inf"],
            vec!["PTTL", key],
            vec!["TIME"],
        ]
    });
    let words: Vec<Vec<&str>> = words.collect();
    let mut replies = ask(connection, &words).await?.into_iter();
    for key in keys {
        let [last, count, ttl, time] = std::array::from_fn(|_| replies.next());
        let (last, count) = (read.take(last)?, read.take(count)?);
        let (Some(Reply::List(last)), Some(Reply::Int(count))) = (last, count) else { continue };
        let is_ours = matches!(&last[..], [Reply::Bytes(last)] if Value::owner_of(last).is_some());
        let now_us = time.as_ref().and_then(time_us);
        let (Some(left), Some(now_us)) = (time_left(&ttl.unwrap_or(Reply::Nil)), now_us) else {
            continue;
        };
        if is_ours && (1..=READERS_MAX).contains(&usize::try_from(count).unwrap_or(0)) {
            let mut votes = readers(connection, key, count, (now_us / 1000) as f64).await?;
            if left.is_none() {
                votes.iter_mut().for_each(|vote| vote.left = None);
            } else {
                votes.retain(|vote| vote.left.is_some());
            }
            if !votes.is_empty() {
                read.votes.insert(key.clone(), votes);
            }
        }
    }
    Ok(read)
}

/// All readers of one key. `now_ms` is the server's time. Here a `left` of `None` means that the lock has expired.
async fn readers(
    connection: &AdminConnection,
    key: &str,
    count: i64,
    now_ms: f64,
) -> Result<Vec<Vote>, Failure> {
    let starts = (0..count).step_by(READERS_AT_A_TIME as usize);
    let words = starts.map(|start| {
        let bounds = [start.to_string(), (start + READERS_AT_A_TIME - 1).to_string()];
        let [from, to] = bounds;
        vec!["ZRANGE".to_owned(), key.to_owned(), from, to, "WITHSCORES".to_owned()]
    });
    let mut votes = Vec::new();
    for reply in ask(connection, &words.collect::<Vec<_>>()).await? {
        let Reply::List(members) = reply else { continue };
        // RESP3 has a list of pairs, RESP2 one flat list.
        let flat: Vec<Reply> = members
            .into_iter()
            .flat_map(|member| match member {
                Reply::List(pair) => pair,
                one => vec![one],
            })
            .collect();
        for pair in flat.chunks_exact(2) {
            let (Reply::Bytes(value), Some(end_ms)) = (&pair[0], number::<f64>(&pair[1])) else {
                continue;
            };
            if Value::owner_of(value).is_none() {
                continue;
            }
            let left = (end_ms - now_ms).clamp(-1.0, TTL_CEILING.as_millis() as f64);
            let left = (left >= 0.0).then(|| Duration::from_millis(left as u64));
            votes.push(Vote { value: value.as_slice().into(), left, shared: true });
        }
    }
    Ok(votes)
}

/// The remaining time in a reply to `PTTL`. `Some(None)`: the key never expires. `None`: there is no key, or one that
/// lives longer than any lock.
fn time_left(reply: &Reply) -> Option<Option<Duration>> {
    match reply {
        Reply::Int(-1) => Some(None),
        Reply::Int(ms) => {
            let left = Duration::from_millis(u64::try_from(*ms).ok()?);
            (left <= TTL_CEILING).then_some(Some(left))
        }
        _ => None,
    }
}

/// The server's clock in microseconds, from a reply to `TIME`.
pub(crate) fn time_us(reply: &Reply) -> Option<i64> {
    let Reply::List(parts) = reply else { return None };
    let seconds: i64 = number(parts.first()?)?;
    seconds.checked_mul(1_000_000)?.checked_add(number(parts.get(1)?)?)
}

/// The number in a reply, which a server may write as text.
pub(crate) fn number<T: FromStr>(reply: &Reply) -> Option<T> {
    match reply {
        Reply::Bytes(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        Reply::Text(digits) => digits.parse().ok(),
        Reply::Int(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

/// Sends these commands. The replies may be errors of the server.
pub(super) async fn ask<C: AsRef<[W]>, W: AsRef<[u8]>>(
    connection: &AdminConnection,
    commands: &[C],
) -> Result<Vec<Reply>, Failure> {
    if commands.is_empty() { Ok(Vec::new()) } else { connection.ask(commands).await }
}

/// Sends one command. Fails if the reply is an error of the server.
pub(super) async fn answer<W: AsRef<[u8]>>(
    connection: &AdminConnection,
    command: &[W],
) -> Result<Reply, Failure> {
    match connection.ask(&[command]).await?.into_iter().next() {
        Some(Reply::Error(error)) => Err(failure_of(&error)),
        Some(reply) => Ok(reply),
        None => Err(Failure::new(FailureKind::Protocol)),
    }
}
