//! What a server's replies say, read apart from the library's own reader of them.

use std::time::Duration;

use quorlock_core::{Answer, Command, Failure, FailureKind, Holding, Reader};
use quorlock_servers::Reply;
use quorlock_sim::time::Time;

pub(crate) fn understand(command: &Command, native: bool, replies: &[Reply]) -> Answer {
    match (command, replies) {
        (Command::Acquire { .. } | Command::Heal { .. }, [Reply::Simple(_)]) => Answer::Granted,
        (Command::Acquire { .. } | Command::Heal { .. }, [Reply::Bulk(None)]) => Answer::Refused,
        (
            Command::Acquire { .. }
            | Command::Heal { .. }
            | Command::AcquireShared { .. }
            | Command::HealShared { .. },
            [Reply::Int(granted @ 0..=1)],
        ) => match granted {
            1 => Answer::Granted,
            _ => Answer::Refused,
        },
        (Command::AcquireShared { .. }, [Reply::Error(error)])
            if error.starts_with("SAMESERVER") =>
        {
            Answer::Failed(Failure::unsent(FailureKind::SameServer))
        }
        (Command::AcquireFenced { .. }, [Reply::Int(fence)]) => {
            Answer::GrantedFenced { fence: fence.unsigned_abs() }
        }
        (Command::AcquireFenced { .. }, [Reply::Array(held)]) => {
            let (fence, holding) = (number(&held[0]), Box::new(told_of_all(&held[1..])));
            Answer::RefusedFenced { fence, holding }
        }
        (Command::Raise { .. }, [Reply::Array(counter)]) => {
            Answer::Raised { fence: number(&counter[0]) }
        }
        (Command::HealFenced { to, .. }, [Reply::Int(1)]) => Answer::GrantedFenced { fence: *to },
        (Command::HealFenced { .. }, [Reply::Int(0)]) => Answer::Refused,
        (Command::HealFenced { .. }, [Reply::Array(counter)]) => {
            Answer::Superseded { fence: number(&counter[0]) }
        }
        (Command::Adopt { .. }, [Reply::Array(adoption)]) => {
            let Reply::Bulk(Some(text)) = &adoption[0] else { panic!("{adoption:?}") };
            let text = std::str::from_utf8(text).expect("our text").into();
            Answer::Adopting { text, age: Duration::from_millis(number(&adoption[1])) }
        }
        (Command::Mark { .. }, [Reply::Int(1)]) => Answer::Marked,
        (Command::Mark { .. } | Command::Adopt { .. }, [Reply::Int(0)]) => Answer::NotMarked,
        (
            Command::Extend { .. } | Command::ExtendFenced { .. } | Command::ExtendShared { .. },
            [Reply::Int(1)],
        ) => Answer::Extended,
        (Command::Downgrade { .. }, [Reply::Int(1)]) => Answer::Downgraded,
        (Command::Release { .. } | Command::ReleaseShared { .. }, [Reply::Int(1)]) => {
            Answer::Deleted
        }
        (Command::Release { tell: false, .. }, [Reply::Error(error)])
            if error.starts_with("WRONGTYPE") =>
        {
            Answer::Other
        }
        (Command::Announce { .. }, [Reply::Int(1)]) => Answer::Announced,
        (Command::Announce { .. }, [Reply::Int(0)]) => Answer::Other,
        (Command::Withdraw { .. }, [Reply::Int(-1..=1)]) => Answer::Announced,
        (Command::Release { tell: false, keys, .. }, [Reply::Int(0)])
            if native && keys.single().is_some() =>
        {
            Answer::NotOurs
        }
        (
            Command::Extend { .. }
            | Command::ExtendFenced { .. }
            | Command::ExtendShared { .. }
            | Command::Raise { .. }
            | Command::Downgrade { .. }
            | Command::Release { .. }
            | Command::ReleaseShared { .. },
            [Reply::Int(not_ours @ (-1 | 0))],
        ) => match not_ours {
            0 => Answer::Other,
            _ => Answer::Absent,
        },
        (Command::Watch { .. }, [Reply::Simple(_), value, ttl]) => {
            Answer::Watched(holding(value, ttl))
        }
        (Command::Watch { .. }, [Reply::Simple(_), Reply::Array(told)]) => {
            Answer::Watched(told_of_all(told))
        }
        (Command::Inspect { .. }, [value, ttl]) => Answer::Seen(holding(value, ttl)),
        (Command::Inspect { .. }, [Reply::Array(told)]) => Answer::Seen(told_of_all(told)),
        other => panic!("the server says {other:?}"),
    }
}

pub(crate) fn number(reply: &Reply) -> u64 {
    match reply {
        Reply::Int(number) => number.unsigned_abs(),
        other => panic!("no number: {other:?}"),
    }
}

fn holding(value: &Reply, ttl: &Reply) -> Holding {
    let Some(ttl) = time_to_live(ttl) else { return Holding::Free };
    match value {
        Reply::Bulk(None) => Holding::Free,
        Reply::Bulk(Some(value)) => Holding::Held { value: value.clone(), ttl },
        Reply::Error(error) if error.starts_with("WRONGTYPE") => Holding::OtherType { ttl },
        other => panic!("GET says {other:?}"),
    }
}

/// `None`: there is no such key.
fn time_to_live(reply: &Reply) -> Option<Option<Duration>> {
    match reply {
        Reply::Int(-2) => None,
        Reply::Int(-1) => Some(None),
        Reply::Int(ms) => Some(Some(Duration::from_millis(ms.unsigned_abs()))),
        other => panic!("PTTL says {other:?}"),
    }
}

/// What the scripts tell of each key.
fn told_of_all(told: &[Reply]) -> Holding {
    Holding::of_all(told.iter().map(told_of_one).collect())
}

fn told_of_one(told: &Reply) -> Holding {
    let Reply::Array(told) = told else {
        assert_eq!(*told, Reply::Int(-2));
        return Holding::Free;
    };
    let bytes = |reply: &Reply| match reply {
        Reply::Bulk(Some(bytes)) => bytes.clone(),
        other => panic!("no bytes: {other:?}"),
    };
    let ttl = time_to_live(&told[1]).expect("it is there");
    match &*bytes(&told[0]) {
        b"held" => Holding::Held { value: bytes(&told[2]), ttl },
        b"announced" => Holding::Announced { value: bytes(&told[2]), ttl },
        b"other" => Holding::OtherType { ttl },
        b"shared" => {
            let readers = told[3..].chunks(2).map(|pair| Reader {
                value: bytes(&pair[0]),
                ttl: Duration::from_millis(number(&pair[1])),
            });
            let (readers, count) = (readers.collect(), number(&told[2]) as usize);
            Holding::Shared { readers, count, ttl: ttl.expect("readers end") }
        }
        other => panic!("the server tells {:?}", String::from_utf8_lossy(other)),
    }
}

pub(crate) fn time(reply: &Reply) -> Time {
    let Reply::Array(parts) = reply else { panic!("TIME says {reply:?}") };
    let [seconds, micros] = [0, 1].map(|place| match &parts[place] {
        Reply::Bulk(Some(digits)) => std::str::from_utf8(digits).expect("digits").parse::<i64>(),
        other => panic!("TIME says {other:?}"),
    });
    seconds.expect("a number") * 1_000_000_000 + micros.expect("a number") * 1_000
}
