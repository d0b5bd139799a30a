//! The evidence that decides whether the votes of a batch count. On the batch's connection, the client reads the
//! server's `INFO` before all commands, and its marker (the key that shows that no data was lost) after them.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{
    Evidence, EvidenceRequest, Exchange, Failure, FailureKind, Key, MarkerSeen, info,
};

use super::codec::rejected;
use super::registration::{Do, Registration};
use super::resp::{self, Reply};

/// The questions that are sent around the commands of a batch. The preamble asks for `INFO`, the settings and the
/// registration; the epilogue asks for the marker and the acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EvidenceQuestions {
    pub(super) request: EvidenceRequest,
    /// Whether to read, with `INFO`, the settings that show whether the server loses writes when it stops.
    pub(super) settings: bool,
    /// The batch's action on the registration, the server's record of the database that has the locks. `None` if the
    /// batch neither reads nor writes the registration.
    registration: Option<Do>,
    /// Number of replies to the preamble.
    pub(super) preamble_replies: usize,
}

/// See [`EvidenceQuestions::settings`]. Each setting is requested separately, because servers before 7.0 return only one at a
/// time.
const SETTINGS: [&str; 2] = ["appendfsync", "no-appendfsync-on-rewrite"];

impl EvidenceQuestions {
    /// The questions for this evidence. They include the settings of a server that was declared durable.
    pub(super) fn new(
        request: EvidenceRequest,
        is_durable: bool,
        registration: Option<Do>,
    ) -> Self {
        let settings = request.info && is_durable;
        let settings_count = if settings { SETTINGS.len() } else { 0 };
        let preamble_replies =
            usize::from(request.info) + settings_count + usize::from(registration.is_some());
        Self { request, settings, registration, preamble_replies }
    }

    /// Whether this can be the reply to the question at this place of the preamble. Otherwise the stream is out of step
    /// (S22).
    pub(super) fn fits(self, place: usize, reply: &Reply) -> bool {
        let is_info = self.request.info && place == 0;
        let is_registration = self.registration.is_some() && place + 1 == self.preamble_replies;
        match reply {
            Reply::Error(_) => true,
            Reply::Bytes(_) => is_info || is_registration,
            Reply::Nil => is_registration,
            Reply::List(_) => self.settings && !is_info && !is_registration,
            _ => false,
        }
    }

    /// A preamble without commands, which gets this number of replies.
    pub(super) fn plain(preamble_replies: usize) -> Self {
        Self { preamble_replies, ..Self::default() }
    }

    /// Number of replies to the epilogue.
    pub(super) fn epilogue_replies(self) -> usize {
        let EvidenceRequest { marker, acknowledgement, .. } = self.request;
        usize::from(marker) + if acknowledgement { 2 } else { 0 }
    }

    #[inline]
    pub(super) fn write_preamble(
        self,
        sections: bool,
        registration: Option<&Registration>,
        out: &mut Vec<u8>,
    ) {
        if self.request.info {
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
        if let Some((registration, what)) = registration.zip(self.registration) {
            resp::write(out, &registration.ask(what).each_ref().map(|word| word.as_bytes()));
        }
    }

    /// Writes the questions about the marker and the acknowledgement, which the caller has encoded.
    #[inline]
    pub(super) fn write_epilogue(
        self,
        marker: Option<&[u8]>,
        acknowledgement: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) {
        if let Some(question) = marker.filter(|_| self.request.marker) {
            out.extend_from_slice(question);
        }
        if let Some(question) = acknowledgement.filter(|_| self.request.acknowledgement) {
            out.extend_from_slice(question);
        }
    }

    /// Reads the replies to the preamble. Returns `INFO`, with the settings appended in the same form, and the
    /// registered database. If the user may not read the settings, they are left out.
    #[inline]
    pub(super) fn read_preamble(
        self,
        replies: &mut impl Iterator<Item = Reply>,
    ) -> (Option<Reply>, Option<Reply>) {
        if self.preamble_replies == 0 {
            return (None, None);
        }
        let info = if self.request.info { replies.next() } else { None };
        let mut settings = String::new();
        for reply in replies.take(if self.settings { SETTINGS.len() } else { 0 }) {
            if let Reply::List(parts) = reply
                && let [name, value] = &*parts
                && let Some((name, value)) = name.text().zip(value.text())
            {
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
        (info, replies.next().filter(|_| self.registration.is_some()))
    }
}

pub(super) fn ask_marker(marker: &Key) -> Box<[u8]> {
    let mut asked = Vec::new();
    resp::write(&mut asked, &[b"GET", marker.as_bytes()]);
    asked.into()
}

/// Writes one of the library's own keys, and asks how many of `replicas` replicas have this write. The server answers
/// as soon as all have it, and at the latest after `within`.
pub(super) fn ask_acknowledgement(key: &Key, replicas: u32, within: Duration) -> Box<[u8]> {
    let mut asked = Vec::new();
    resp::write(&mut asked, &[b"SET", key.as_bytes(), b"1"]);
    // With a timeout of 0, `WAIT` would wait without a limit.
    let within = within.as_millis().max(1).to_string();
    resp::write(&mut asked, &[b"WAIT", replicas.to_string().as_bytes(), within.as_bytes()]);
    asked.into()
}

/// Reads the replies to [`ask_acknowledgement`]. `None` if the stream is out of step (S22).
pub(super) fn acknowledged(write: &Reply, wait: &Reply) -> Option<Result<u32, Failure>> {
    match (write, wait) {
        // After a write that failed, `WAIT` would count the replicas that have an earlier write (S35).
        (Reply::Okay, Reply::Int(count)) => Some(Ok(u32::try_from(*count).unwrap_or(0))),
        (Reply::Error(error), Reply::Int(_) | Reply::Error(_))
        | (Reply::Okay, Reply::Error(error)) => {
            let right = "the right +wait, and ~<prefix>quorlock:* for its keys";
            Some(Err(with_help(rejected(error), right)))
        }
        _ => None,
    }
}

/// The rights that a client needs to register the number of its database, and to read the registered number.
const REGISTRATION_RIGHTS: &str = "the rights +eval, +get, +set, +select for databases but the first, and ~<prefix>quorlock:* for its keys";

/// Combines the reply to `INFO`, the marker and the outcome of the registration. The server announced `first` times
/// before the first reply, and `flushes` times before the last reply, that its data were replaced.
#[inline]
pub(super) fn read(
    info: Option<Reply>,
    (marker, acknowledged): (MarkerSeen, Option<Result<u32, Failure>>),
    registered: Option<Result<(), Failure>>,
    epoch: u64,
    (first, flushes): (u64, u64),
) -> Evidence {
    // If the data were replaced after the server sent `INFO`, then `INFO` is out of date and does not count.
    let info = info.map(info_of).filter(|_| first == flushes);
    // After this failure the marker may be that of the wrong database, so it does not count.
    let marker = match registered {
        Some(Err(failure)) => MarkerSeen::Failed(with_help(failure, REGISTRATION_RIGHTS)),
        _ => marker,
    };
    Evidence::Seen { epoch, flushes, info, marker, acknowledged }
}

fn info_of(reply: Reply) -> Result<Arc<str>, Failure> {
    match reply {
        Reply::Bytes(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            // RESP3 puts the format of a text before the text.
            Ok(text.strip_prefix("txt:").unwrap_or(&text).into())
        }
        Reply::Error(error) => {
            Err(with_help(rejected(&error), "the right +info (ACL SETUSER <user> +info)"))
        }
        // Such a reply does not fit, so the connection is closed.
        _ => Err(Failure::new(FailureKind::Protocol)),
    }
}

/// The marker, from the first reply to the epilogue. `None` if the stream is out of step.
pub(super) fn marker_of(reply: &Reply, exchange: &Exchange) -> Option<MarkerSeen> {
    match reply {
        Reply::Nil => Some(MarkerSeen::Missing),
        Reply::Bytes(text) => Some(exchange.marker(text)),
        Reply::Error(error) => {
            let right = "the rights +get, and ~<prefix>quorlock:* for its keys";
            Some(MarkerSeen::Failed(with_help(rejected(error), right)))
        }
        _ => None,
    }
}

/// Adds the missing right, and the remedy, to a failure.
fn with_help(failure: Failure, right: &str) -> Failure {
    if failure.kind() != FailureKind::Forbidden {
        return failure;
    }
    let detail = failure.detail().unwrap_or_default();
    let help = format!(
        "{detail}: the restart guard cannot tell whether its votes count; give this user {right}, or \
         switch the guard off"
    );
    Failure::new(FailureKind::Forbidden).with_detail(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_read_and_a_marker_that_does_not_fit_is_none() {
        let bytes = |text: &str| Some(Reply::Bytes(text.into()));
        let text = |text: &str| MarkerSeen::Text(text.into());
        let seen = |info: Option<&str>, marker| Evidence::Seen {
            epoch: 3,
            flushes: 2,
            info: info.map(|it| Ok(it.into())),
            marker,
            acknowledged: None,
        };
        let read = |info, marker| super::read(info, (marker, None), None, 3, (2, 2));
        let info = bytes("txt:# Server\r\n");
        assert_eq!(read(info, text("m")), seen(Some("# Server\r\n"), text("m")));
        assert_eq!(read(None, MarkerSeen::NotAsked), seen(None, MarkerSeen::NotAsked));
        // The data were replaced after the server sent `INFO`, so `INFO` does not count.
        let replaced =
            super::read(bytes("# Server\r\n"), (text("m"), None), Some(Ok(())), 3, (1, 2));
        assert_eq!(replaced, seen(None, text("m")));
        let marker = |reply| marker_of(&reply, &Exchange::default());
        assert_eq!(marker(Reply::Bytes(b"m".to_vec())), Some(text("m")));
        assert_eq!(marker(Reply::Nil), Some(MarkerSeen::Missing));
        assert_eq!(marker(Reply::Int(1)), None);
    }

    /// The four questions of the preamble: `INFO`, two settings, the registration.
    #[test]
    fn a_reply_to_the_preamble_fits_its_question_alone() {
        let request = EvidenceRequest { info: true, marker: true, acknowledgement: false };
        let questions = EvidenceQuestions::new(request, true, Some(Do::Look));
        assert_eq!(questions.preamble_replies, 4);
        for (reply, fits) in [
            (Reply::Bytes(Vec::new()), [true, false, false, true]),
            (Reply::List(Vec::new()), [false, true, true, false]),
            (Reply::Nil, [false, false, false, true]),
            (Reply::Error("NOPERM".to_owned()), [true; 4]),
            (Reply::Okay, [false; 4]),
            (Reply::Int(1), [false; 4]),
        ] {
            assert_eq!([0, 1, 2, 3].map(|place| questions.fits(place, &reply)), fits, "{reply:?}");
        }
    }

    #[test]
    fn an_acknowledgement_counts_only_behind_a_write_that_succeeded() {
        let key = Key::from("quorlock:replicated");
        let asked = ask_acknowledgement(&key, 1, Duration::from_micros(1));
        assert!(asked.ends_with(b"\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$1\r\n1\r\n"), "at least 1 ms");
        let error = || Reply::Error("READONLY You can't write against a read only replica.".into());
        assert_eq!(acknowledged(&Reply::Okay, &Reply::Int(1)), Some(Ok(1)));
        assert_eq!(acknowledged(&Reply::Okay, &Reply::Int(0)), Some(Ok(0)));
        for (write, wait) in [(error(), Reply::Int(1)), (Reply::Okay, error()), (error(), error())]
        {
            let failure = acknowledged(&write, &wait).unwrap().unwrap_err();
            assert_eq!(failure.kind(), FailureKind::ReadOnly, "{write:?}, {wait:?}");
        }
        for other in
            [Reply::Int(1), Reply::Nil, Reply::Text("QUEUED".into()), Reply::Bytes(b"OK".into())]
        {
            assert_eq!(acknowledged(&other, &Reply::Int(1)), None, "{other:?} is no reply to SET");
        }
        assert_eq!(acknowledged(&Reply::Okay, &Reply::Okay), None, "no reply to WAIT");
    }

    #[test]
    fn who_lacks_a_right_is_told_which_and_what_to_do() {
        let error = "NOPERM this user has no permissions to run the 'info' command";
        let read = read(
            Some(Reply::Error(error.to_owned())),
            (MarkerSeen::NotAsked, None),
            None,
            1,
            (0, 0),
        );
        let Evidence::Seen { info: Some(Err(failure)), .. } = read else { panic!("an error") };
        assert_eq!(failure.kind(), FailureKind::Forbidden);
        assert!(failure.detail().is_some_and(|detail| detail.contains("+info")), "{failure}");
    }
}
