//! What a server's replies say, read apart from the library's own reader of them.

use std::time::Duration;

use quorlock_core::{Answer, Command, Holding};
use quorlock_servers::Reply;
use quorlock_sim::time::Time;

pub(crate) fn understand(command: &Command, native: bool, replies: &[Reply]) -> Answer {
    match (command, replies) {
        (Command::Acquire { .. }, [Reply::Simple(_)]) => Answer::Granted,
        (Command::Acquire { .. }, [Reply::Bulk(None)]) => Answer::Refused,
        (Command::AcquireFenced { .. }, [Reply::Int(fence)]) => {
            Answer::GrantedFenced { fence: fence.unsigned_abs() }
        }
        (Command::AcquireFenced { .. }, [Reply::Array(held)]) => {
            let fence = number(&held[0]);
            let other_type = Reply::Error("WRONGTYPE".to_owned());
            // What the first key holds: -2, or a word, the ttl, and for a string its value.
            let holding = Box::new(match &held[1] {
                Reply::Array(parts) => holding(parts.get(2).unwrap_or(&other_type), &parts[1]),
                gone => holding(&Reply::Bulk(None), gone),
            });
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
        (Command::Raise { .. } | Command::ExtendFenced { .. }, [Reply::Int(-1)]) => Answer::Absent,
        (Command::Raise { .. } | Command::ExtendFenced { .. }, [Reply::Int(0)]) => Answer::Other,
        (Command::ExtendFenced { .. }, [Reply::Int(1)]) => Answer::Extended,
        (Command::Adopt { .. }, [Reply::Array(adoption)]) => {
            let Reply::Bulk(Some(text)) = &adoption[0] else { panic!("{adoption:?}") };
            let text = std::str::from_utf8(text).expect("our text").into();
            Answer::Adopting { text, age: Duration::from_millis(number(&adoption[1])) }
        }
        (Command::Mark { .. }, [Reply::Int(1)]) => Answer::Marked,
        (Command::Mark { .. } | Command::Adopt { .. }, [Reply::Int(0)]) => Answer::NotMarked,
        (Command::Extend { .. }, [Reply::Int(1)]) => Answer::Extended,
        (Command::Release { .. }, [Reply::Int(1)]) => Answer::Deleted,
        (Command::Release { tell: false, .. }, [Reply::Error(error)])
            if error.starts_with("WRONGTYPE") =>
        {
            Answer::Other
        }
        (Command::Extend { .. } | Command::Release { .. }, [Reply::Int(-1)]) => Answer::Absent,
        (Command::Release { tell: false, .. }, [Reply::Int(0)]) if native => Answer::NotOurs,
        (Command::Extend { .. } | Command::Release { .. }, [Reply::Int(0)]) => Answer::Other,
        (Command::Watch { .. }, [Reply::Simple(_), value, ttl]) => {
            Answer::Watched(holding(value, ttl))
        }
        (Command::Inspect { .. }, [value, ttl]) => Answer::Seen(holding(value, ttl)),
        other => panic!("the server says {other:?}"),
    }
}

pub(crate) fn number(reply: &Reply) -> u64 {
    match reply {
        Reply::Int(number) => number.unsigned_abs(),
        other => panic!("no number: {other:?}"),
    }
}

pub(crate) fn holding(value: &Reply, ttl: &Reply) -> Holding {
    let ttl = match ttl {
        Reply::Int(-2) => return Holding::Free,
        Reply::Int(-1) => None,
        Reply::Int(ms) => Some(Duration::from_millis(ms.unsigned_abs())),
        other => panic!("PTTL says {other:?}"),
    };
    match value {
        Reply::Bulk(None) => Holding::Free,
        Reply::Bulk(Some(value)) => Holding::Held { value: value.clone(), ttl },
        Reply::Error(error) if error.starts_with("WRONGTYPE") => Holding::OtherType { ttl },
        other => panic!("GET says {other:?}"),
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
