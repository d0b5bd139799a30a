//! What a server says of itself beside the answers of a batch, so that votes may count: `INFO` before
//! all commands, and the marker behind them, on the same connection.

use std::sync::Arc;

use quorlock_core::{Failure, FailureKind, Key, Looks, MarkerSeen, Proof, info};

use super::registration::{Do, Registration};
use super::resp::{self, Reply};
use super::speech::rejected;

/// What is asked beside the commands of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    looks: Looks,
    /// What of its settings says whether it forgets anything when it stops: asked with `INFO`.
    settings: bool,
    /// Which database has the locks: asked with `INFO`.
    registration: bool,
    /// So many replies come before those to the commands.
    pub(super) before: usize,
}

/// See [`Beside::settings`]. Servers before 7.0 are asked for one at a time.
const SETTINGS: [&str; 2] = ["appendfsync", "no-appendfsync-on-rewrite"];

impl Beside {
    /// What must be asked, for these looks, on a connection like this.
    pub(super) fn new(looks: Looks, is_lasting: bool, has_registration: bool) -> Self {
        let (settings, registration) = (looks.info && is_lasting, looks.info && has_registration);
        let settings_count = if settings { SETTINGS.len() } else { 0 };
        let before = usize::from(looks.info) + settings_count + usize::from(registration);
        Self { looks, settings, registration, before }
    }

    /// Nothing is asked beside the commands.
    pub(super) const fn is_nothing(self) -> bool {
        !self.looks.info && !self.looks.marker
    }

    /// What is asked behind the commands: one reply, or none.
    pub(super) fn behind(self) -> usize {
        self.looks.marker.into()
    }

    /// Said before all commands.
    pub(super) fn say_before(
        self,
        sections: bool,
        registration: Option<&(Registration, Do)>,
        out: &mut Vec<u8>,
    ) {
        if self.looks.info {
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
        if let Some((registration, what)) = registration.filter(|_| self.registration) {
            resp::write(out, &registration.ask(*what).each_ref().map(|word| word.as_bytes()));
        }
    }

    /// Takes the replies to what was said before all commands: what `INFO` says, and behind it the settings
    /// in the same form; and which database has the locks. A user who may not ask for the settings is not told, and
    /// nothing contradicts the operator.
    pub(super) fn take_before(
        self,
        replies: &mut impl Iterator<Item = Reply>,
    ) -> (Option<Reply>, Option<Reply>) {
        if !self.looks.info {
            return (None, None);
        }
        let info = replies.next();
        let mut settings = String::new();
        for reply in replies.take(if self.settings { SETTINGS.len() } else { 0 }) {
            if let Reply::List(parts) = reply
                && let [Reply::Bytes(name), Reply::Bytes(value)] = &*parts
            {
                let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
                settings += &format!("\r\n{name}:{value}");
            }
        }
        let info = match info {
            Some(Reply::Bytes(mut info)) => {
                info.extend_from_slice(settings.as_bytes());
                Some(Reply::Bytes(info))
            }
            other => other,
        };
        (info, replies.next().filter(|_| self.registration))
    }

    /// The server was asked for its settings.
    pub(super) fn asked_settings(self) -> bool {
        self.settings
    }

    /// Said behind all commands.
    pub(super) fn say_behind(self, marker: &Key, out: &mut Vec<u8>) {
        if self.looks.marker {
            resp::write(out, &[b"GET", marker.as_bytes()]);
        }
    }
}

/// What it takes to look which database has the locks.
const REGISTRATION_RIGHTS: &str = "the rights +eval, +get, +set, +select for databases but the first, and ~<prefix>quorlock:* for its keys";

/// Reads the first reply and the last one, as far as they were asked for, and what came of the registration. `flushes`: how often
/// the server had said that its data are others, before the first reply and before the last. `None`: one is out of step.
pub(super) fn read(
    before: Option<Reply>,
    behind: Option<Reply>,
    registered: Option<Result<(), Failure>>,
    epoch: u64,
    (first, flushes): (u64, u64),
) -> Option<Proof> {
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
    Some(Proof::Seen { epoch, flushes, info, marker })
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

    #[test]
    fn what_was_said_is_read_and_what_does_not_fit_is_not() {
        let bytes = |text: &str| Some(Reply::Bytes(text.into()));
        let text = |text: &str| MarkerSeen::Text(text.to_owned());
        let seen = |info: Option<&str>, marker| {
            Some(Proof::Seen { epoch: 3, flushes: 2, info: info.map(|it| Ok(it.into())), marker })
        };
        let read = |before, behind| super::read(before, behind, None, 3, (2, 2));
        assert_eq!(
            read(bytes("txt:# Server\r\n"), bytes("m")),
            seen(Some("# Server\r\n"), text("m"))
        );
        assert_eq!(read(None, None), seen(None, MarkerSeen::NotAsked));
        assert_eq!(read(None, Some(Reply::Nil)), seen(None, MarkerSeen::Missing));
        assert_eq!(read(Some(Reply::Okay), None), None);
        assert_eq!(read(None, Some(Reply::Int(1))), None);
        // It says what it was before its data were replaced.
        let replaced = super::read(bytes("# Server\r\n"), bytes("m"), Some(Ok(())), 3, (1, 2));
        assert_eq!(replaced, seen(None, text("m")));
    }

    #[test]
    fn who_lacks_a_right_is_told_which_and_what_to_do() {
        let error = "NOPERM this user has no permissions to run the 'info' command";
        let read = read(Some(Reply::Error(error.to_owned())), None, None, 1, (0, 0));
        let Some(Proof::Seen { info: Some(Err(failure)), .. }) = read else { panic!("an error") };
        assert_eq!(failure.kind(), FailureKind::Forbidden);
        assert!(failure.detail().is_some_and(|detail| detail.contains("+info")), "{failure}");
    }
}
