//! What a server says of itself beside the answers of a batch, so that votes may count: `INFO` before
//! all commands, and the marker behind them, on the same connection.

use std::sync::Arc;

use quorlock_core::{Command, Failure, FailureKind, Key, MarkerSeen, Proof, info};

use super::registration::{Do, Registration};
use super::resp::{self, Reply};
use super::speech::rejected;

/// What is asked beside the commands of a batch.
#[derive(Clone, Copy)]
pub(super) struct Looks {
    pub(super) info: bool,
    /// What of its settings says whether it forgets anything when it stops: asked with `INFO`.
    pub(super) settings: bool,
    pub(super) marker: bool,
}

/// See [`Looks::settings`]. Servers before 7.0 are asked for one at a time.
const SETTINGS: [&str; 2] = ["appendfsync", "no-appendfsync-on-rewrite"];

impl Looks {
    /// What must be asked with these commands.
    pub(super) fn for_batch(is_first: bool, is_lasting: bool, commands: &[Command]) -> Self {
        let info = is_first || commands.contains(&Command::Greet);
        let marker = info || commands.iter().any(Command::is_about_votes);
        Self { info, settings: info && is_lasting, marker }
    }

    /// Said before all commands; returns the number of replies.
    pub(super) fn say_before(
        self,
        sections: bool,
        registration: Option<&(Registration, Do)>,
        out: &mut Vec<u8>,
    ) -> usize {
        if self.info {
            let asked: &[&str] = if sections { &info::SECTIONS } else { &[] };
            resp::start(out, 1 + asked.len());
            resp::word(out, b"INFO");
            asked.iter().for_each(|section| resp::word(out, section.as_bytes()));
        }
        if self.settings {
            for setting in SETTINGS {
                resp::write(out, &[b"CONFIG", b"GET", setting.as_bytes()]);
            }
        }
        let registration = registration.filter(|_| self.info);
        if let Some((registration, what)) = registration {
            resp::write(out, &registration.ask(*what).each_ref().map(|word| word.as_bytes()));
        }
        usize::from(self.info) + self.count_settings() + usize::from(registration.is_some())
    }

    fn count_settings(self) -> usize {
        if self.settings { SETTINGS.len() } else { 0 }
    }

    /// Takes the replies to what was said before all commands: what `INFO` says, and behind it the settings
    /// in the same form. A user who may not ask for them is not told, and nothing contradicts the operator.
    pub(super) fn take_before(self, replies: &mut impl Iterator<Item = Reply>) -> Option<Reply> {
        if !self.info {
            return None;
        }
        let info = replies.next();
        let mut settings = String::new();
        for reply in replies.take(self.count_settings()) {
            if let Reply::List(parts) = reply
                && let [Reply::Bytes(name), Reply::Bytes(value)] = &*parts
            {
                let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
                settings += &format!("\r\n{name}:{value}");
            }
        }
        match info {
            Some(Reply::Bytes(mut info)) => {
                info.extend_from_slice(settings.as_bytes());
                Some(Reply::Bytes(info))
            }
            other => other,
        }
    }

    /// Said behind all commands; returns the number of replies.
    pub(super) fn say_behind(self, marker: &Key, out: &mut Vec<u8>) -> usize {
        if self.marker {
            resp::write(out, &[b"GET", marker.as_bytes()]);
        }
        self.marker.into()
    }
}

/// What it takes to look which database has the locks.
const REGISTRATION_RIGHTS: &str = "the rights +eval, +get, +set, +select for databases but the first, and ~<prefix>quorlock:* for its keys";

/// What was seen of a server beside the answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// How often the server had said that its data are others.
    flushes: u64,
    info: Option<Result<Arc<str>, Failure>>,
    marker: MarkerSeen,
}

impl Seen {
    /// Reads the first reply and the last one, as far as they were asked for, what came of the registration, and how often the server had
    /// said before each that its data are others; `None` if one is out of step.
    pub(super) fn read(
        before: Option<Reply>,
        behind: Option<Reply>,
        registered: Option<Result<(), Failure>>,
        (first, flushes): (u64, u64),
    ) -> Option<Self> {
        let info = before.map(info_of);
        let info = info.map_or(Some(None), |info| info.map(Some))?;
        // What it was before its data were replaced says nothing of what it is now.
        let info = info.filter(|_| first == flushes);
        let marker = behind.map_or(Some(MarkerSeen::NotAsked), marker_of)?;
        // Whatever the marker of another database says.
        let marker = match registered {
            Some(Err(failure)) => MarkerSeen::Failed(with_help(failure, REGISTRATION_RIGHTS)),
            _ => marker,
        };
        Some(Self { flushes, info, marker })
    }

    /// This, and what was seen later in the same batch. A vote counts only if both looks saw the same
    /// marker: otherwise neither is told.
    pub(super) fn and_later(self, later: Self) -> Self {
        let marker = match (self.marker, later.marker) {
            (MarkerSeen::NotAsked, marker) | (marker, MarkerSeen::NotAsked) => marker,
            (first, second) if first == second => first,
            (failed @ MarkerSeen::Failed(_), _) | (_, failed @ MarkerSeen::Failed(_)) => failed,
            _ => MarkerSeen::Failed(
                Failure::new(FailureKind::Unverified).with_detail("its marker changed meanwhile"),
            ),
        };
        let flushes = later.flushes;
        let info = later.info.or(self.info.filter(|_| self.flushes == flushes));
        Self { flushes, info, marker }
    }

    pub(super) fn into_proof(self, epoch: u64) -> Proof {
        let Self { flushes, info, marker } = self;
        Proof::Seen { epoch, flushes, info, marker }
    }
}

fn info_of(reply: Reply) -> Option<Result<Arc<str>, Failure>> {
    match reply {
        Reply::Bytes(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            // Version 3 says first what kind of text it is.
            Some(Ok(text.strip_prefix("txt:").unwrap_or(&text).into()))
        }
        Reply::Error(error) => {
            Some(Err(with_help(rejected(&error), "the right +info (ACL SETUSER <user> +info)")))
        }
        _ => None,
    }
}

fn marker_of(reply: Reply) -> Option<MarkerSeen> {
    match reply {
        Reply::Nil => Some(MarkerSeen::Missing),
        // Ours is plain text; what is not is another's, and need only be shown.
        Reply::Bytes(bytes) => Some(MarkerSeen::Text(
            String::from_utf8(bytes)
                .unwrap_or_else(|other| String::from_utf8_lossy(other.as_bytes()).into_owned()),
        )),
        Reply::Error(error) => {
            let right = "the rights +get, and ~<prefix>quorlock:* for its keys";
            Some(MarkerSeen::Failed(with_help(rejected(&error), right)))
        }
        _ => None,
    }
}

/// What is missing, and what to do about it.
fn with_help(failure: Failure, right: &str) -> Failure {
    if failure.kind() != FailureKind::Forbidden {
        return failure;
    }
    let said = failure.detail().unwrap_or_default();
    let help = format!(
        "{said}: the restart guard cannot tell whether its votes count; give this user {right}, or \
         switch the guard off"
    );
    Failure::new(FailureKind::Forbidden).with_detail(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(marker: MarkerSeen) -> Seen {
        Seen { flushes: 0, info: None, marker }
    }

    fn text(text: &str) -> MarkerSeen {
        MarkerSeen::Text(text.to_owned())
    }

    #[test]
    fn two_looks_count_only_if_they_saw_the_same() {
        let joined = |first, second| seen(first).and_later(seen(second)).marker;
        assert_eq!(joined(text("a"), text("a")), text("a"));
        assert_eq!(joined(text("a"), MarkerSeen::NotAsked), text("a"));
        assert_eq!(joined(MarkerSeen::NotAsked, text("a")), text("a"));
        assert_eq!(joined(MarkerSeen::Missing, MarkerSeen::Missing), MarkerSeen::Missing);
        let loading = MarkerSeen::Failed(Failure::new(FailureKind::Loading));
        assert_eq!(joined(loading.clone(), text("a")), loading);
        assert_eq!(joined(text("a"), loading.clone()), loading);
        for (first, second) in [
            (text("a"), text("b")),
            (text("a"), MarkerSeen::Missing),
            (MarkerSeen::Missing, text("a")),
        ] {
            let MarkerSeen::Failed(failure) = joined(first, second) else { panic!("it changed") };
            assert_eq!(failure.kind(), FailureKind::Unverified);
        }
    }

    #[test]
    fn what_was_said_is_read_and_what_does_not_fit_is_not() {
        let bytes = |text: &str| Some(Reply::Bytes(text.into()));
        let at_once = (1, 1);
        let read = Seen::read(bytes("txt:# Server\r\n"), bytes("m"), None, at_once).unwrap();
        assert_eq!(read.info, Some(Ok("# Server\r\n".into())));
        assert_eq!(read.marker, text("m"));
        let nothing = Seen { flushes: 1, info: None, marker: MarkerSeen::NotAsked };
        assert_eq!(Seen::read(None, None, None, at_once), Some(nothing));
        let missing = Seen::read(None, Some(Reply::Nil), None, at_once).unwrap();
        assert_eq!(missing.marker, MarkerSeen::Missing);
        assert_eq!(Seen::read(Some(Reply::Okay), None, None, at_once), None);
        assert_eq!(Seen::read(None, Some(Reply::Int(1)), None, at_once), None);
        // It says what it was before its data were replaced.
        let before = Seen::read(bytes("# Server\r\n"), bytes("m"), None, (1, 2)).unwrap();
        assert_eq!(before, Seen { flushes: 2, info: None, marker: text("m") });
        let earlier = Seen::read(bytes("# Server\r\n"), bytes("m"), Some(Ok(())), at_once).unwrap();
        let again = |flushes| Seen::read(None, bytes("m"), None, (flushes, flushes)).unwrap();
        assert_eq!(earlier.clone().and_later(again(2)), before);
        assert_eq!(earlier.clone().and_later(again(1)), earlier);
    }

    #[test]
    fn who_lacks_a_right_is_told_which_and_what_to_do() {
        let error = "NOPERM this user has no permissions to run the 'info' command";
        let read = Seen::read(Some(Reply::Error(error.to_owned())), None, None, (0, 0)).unwrap();
        let Some(Err(failure)) = read.info else { panic!("an error") };
        assert_eq!(failure.kind(), FailureKind::Forbidden);
        assert!(failure.detail().is_some_and(|detail| detail.contains("+info")), "{failure}");
    }
}
