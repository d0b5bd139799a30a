//! Compares a server's answers and keys with those of two stores, one slightly early and one slightly late.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use quorlock_core::store::{Content, Stored};
use quorlock_core::{Answer, Command, Holding};
use quorlock_servers::Reply;

pub(super) fn name(shown: &impl Debug) -> String {
    first_word(&format!("{shown:?}")).to_owned()
}

fn first_word(text: &str) -> &str {
    text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default()
}

/// The name of a command: that of its verb and, unless it is plain, that of its form.
pub(super) fn command_name(command: &Command) -> String {
    let shown = format!("{command:?}");
    let form = shown.rsplit_once("form: ").map(|(_, form)| first_word(form)).unwrap_or_default();
    [&name(command), form.trim_start_matches("Plain")].concat()
}

/// Whether the server's answer agrees with those of the two stores. A time, or a number derived from a time, must lie
/// between the values of the early store and of the late store.
pub(super) fn answers(
    command: &Command,
    said: &Answer,
    (early, late): (&Answer, &Answer),
    slack_ms: i64,
) -> Result<(), String> {
    let slack = Duration::from_millis(slack_ms.unsigned_abs());
    let is_same = match (said, early, late) {
        (Answer::Seen(said), Answer::Seen(early), Answer::Seen(late))
        | (Answer::Watched(said), Answer::Watched(early), Answer::Watched(late)) => {
            is_between(said, (early, late), slack)
        }
        (
            Answer::RefusedFenced { fence, holding },
            Answer::RefusedFenced { fence: one, holding: early },
            Answer::RefusedFenced { fence: two, holding: late },
        ) => (one..=two).contains(&fence) && is_between(holding, (early, late), slack),
        // A token may be derived from the server's time, which is between the times of the two stores.
        (
            Answer::GrantedFenced { fence },
            Answer::GrantedFenced { fence: early },
            Answer::GrantedFenced { fence: late },
        )
        | (
            Answer::Raised { fence },
            Answer::Raised { fence: early },
            Answer::Raised { fence: late },
        )
        | (
            Answer::Superseded { fence },
            Answer::Superseded { fence: early },
            Answer::Superseded { fence: late },
        ) => (early..=late).contains(&fence),
        (
            Answer::Adopting { text, age },
            Answer::Adopting { text: one, age: early },
            Answer::Adopting { text: two, age: late },
        ) => {
            is_text_between([text, one, two].map(|text| text.as_bytes()), slack_ms)
                && early.saturating_sub(slack) <= *age
                && *age <= *late + slack
        }
        (Answer::Failed(said), Answer::Failed(early), Answer::Failed(late)) => {
            said.kind() == early.kind() && said.kind() == late.kind()
        }
        _ => said == early && said == late,
    };
    let why = || format!("{command:?}: {said:?}, the stores {early:?}, {late:?}");
    is_same.then_some(()).ok_or_else(why)
}

/// Whether the holders are the same, and each remaining time lies between those in the early and the late store.
fn is_between(said: &Holding, (early, late): (&Holding, &Holding), slack: Duration) -> bool {
    let holders = parts(said).0;
    if holders != parts(early).0 || holders != parts(late).0 {
        return false;
    }
    let times = parts(early).1.into_iter().zip(parts(late).1);
    let mut all = parts(said).1.into_iter().zip(times);
    all.all(|(said, (early, late))| early.saturating_sub(slack) <= said && said <= late + slack)
}

/// The holders of each key, and the remaining time of each holder.
fn parts(holding: &Holding) -> (Vec<(String, Vec<u8>)>, Vec<Duration>) {
    let (mut holders, mut times) = (Vec::new(), Vec::new());
    let all = holding.each();
    for holding in all {
        match holding {
            Holding::Held { value, ttl } | Holding::Announced { value, ttl } => {
                holders.push((format!("{} {}", name(holding), ttl.is_some()), value.clone()));
                times.extend(*ttl);
            }
            Holding::OtherType { ttl } => {
                holders.push((format!("OtherType {}", ttl.is_some()), Vec::new()));
                times.extend(*ttl);
            }
            Holding::Shared { readers, count, ttl } => {
                holders.push((format!("Shared {count}"), Vec::new()));
                times.push(*ttl);
                // With many keys, a server does not list all readers of each key. Only complete lists are compared.
                let shown_max = Holding::READERS_MAX / all.len();
                let mut readers: Vec<_> = readers.iter().map(|it| (&it.value, it.ttl)).collect();
                readers.sort();
                for (value, ttl) in readers.into_iter().filter(|_| *count < shown_max) {
                    holders.push((String::new(), value.clone()));
                    times.push(ttl);
                }
            }
            _ => holders.push((name(holding), Vec::new())),
        }
    }
    (holders, times)
}

/// Whether the texts of the server and of the two stores are equal, or differ only in the number at their end (a time,
/// or a fencing token), where the server's number lies between those of the stores.
fn is_text_between([said, early, late]: [&[u8]; 3], slack_ms: i64) -> bool {
    fn split(text: &[u8]) -> (&[u8], i64) {
        let digits = text.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let (text, digits) = text.split_at(text.len() - digits);
        (text, str::from_utf8(digits).unwrap().parse().unwrap_or(0))
    }
    if early == late {
        return said == early;
    }
    let [said, early, late] = [said, early, late].map(split);
    let is_same = said.0 == early.0 && said.0 == late.0;
    is_same && early.1 - slack_ms * 1000 <= said.1 && said.1 <= late.1 + slack_ms * 1000
}

/// The content of a key with which both stores continue (`None`: no key). An error if server and stores disagree.
pub(super) fn keys(
    found: Option<Stored>,
    stores: [Option<&Stored>; 2],
    slack_ms: i64,
) -> Result<Option<Stored>, String> {
    let what = format!("{found:?}, the stores {stores:?}");
    let (found, early, late) = match (found, stores) {
        (None, [None, None]) => return Ok(None),
        (Some(found), [Some(early), Some(late)]) => (found, early, late),
        _ => return Err(what),
    };
    let is_near = |at: i64, early: i64, late: i64| early - slack_ms <= at && at <= late + slack_ms;
    let is_same = match (&found.content, &early.content, &late.content) {
        (Content::Text(said), Content::Text(early), Content::Text(late)) => {
            is_text_between([said, early, late], slack_ms)
        }
        (Content::Scored(said), Content::Scored(early), Content::Scored(late)) => {
            let is_same = |(member, score): (&Vec<u8>, &i64)| {
                let (early, late) = (early.get(member), late.get(member));
                early.zip(late).is_some_and(|(early, late)| is_near(*score, *early, *late))
            };
            said.len() == early.len() && said.len() == late.len() && said.iter().all(is_same)
        }
        (Content::Other, Content::Other, Content::Other) => true,
        _ => false,
    };
    let ends = match (found.expires_ms, early.expires_ms, late.expires_ms) {
        (None, None, None) => true,
        (Some(found), Some(early), Some(late)) => is_near(found, early, late),
        _ => false,
    };
    if !is_same || !ends {
        return Err(what);
    }
    // For readers, the key's expiry must be the last reader's expiry, to the millisecond.
    let expires_ms = match &found.content {
        Content::Scored(members) if late.is_of_readers() => members.values().max().copied(),
        Content::Scored(_) => late.expires_ms,
        _ => found.expires_ms,
    };
    Ok(Some(Stored { expires_ms, ..found }))
}

/// Parses the replies to `TIME`, `PTTL`, `GET` and `ZRANGE`.
pub(super) fn read(replies: &[Reply]) -> Option<Stored> {
    let [time, ttl, text, members] = replies else { panic!("{replies:?}") };
    let expires_ms = match ttl {
        Reply::Int(-2) => return None,
        Reply::Int(-1) => None,
        Reply::Int(ttl) => Some(time_us(time) / 1000 + ttl),
        other => panic!("PTTL says {other:?}"),
    };
    let content = match (text, members) {
        (Reply::Bulk(None), _) => return None,
        (Reply::Bulk(Some(text)), _) => Content::Text(text.clone()),
        (_, Reply::Array(members)) => Content::Scored(scores(members)),
        _ => Content::Other,
    };
    Some(Stored { content, expires_ms })
}

fn scores(members: &[Reply]) -> BTreeMap<Vec<u8>, i64> {
    let pair = |pair: &[Reply]| match pair {
        [Reply::Bulk(Some(member)), Reply::Bulk(Some(score))] => {
            (member.clone(), str::from_utf8(score).unwrap().parse().unwrap())
        }
        other => panic!("ZRANGE says {other:?}"),
    };
    members.chunks(2).map(pair).collect()
}

pub(super) fn time_us(reply: &Reply) -> i64 {
    let Reply::Array(parts) = reply else { panic!("TIME says {reply:?}") };
    let [seconds, micros] = [0, 1].map(|place| match &parts[place] {
        Reply::Bulk(Some(digits)) => str::from_utf8(digits).unwrap().parse::<i64>().unwrap(),
        other => panic!("TIME says {other:?}"),
    });
    seconds * 1_000_000 + micros
}
