//! The batches of one connection: decides which evidence is requested with a batch, in which form its commands are
//! sent, and which of them are sent again.
//!
//! A node that does not know a script has not run the script. So the command may be sent again with the script's text:
//! nothing is executed twice (S8). A native compare-and-delete command does not report what it found instead of our
//! key. If the caller needs to know, the session then sends the release script, which finds no key of ours to delete.

mod untold;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::command::{Answer, Command, Failure, FailureKind};
use crate::node::evidence::{Evidence, MarkerSeen};
use crate::token::Value;

use self::untold::Untold;

/// The form in which commands are sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Form {
    /// As native commands where the server has them, otherwise as [`Script`](Self::Script).
    #[default]
    Usual,
    /// As scripts that the server has loaded, by their hash.
    Script,
    /// As scripts with their texts.
    Text,
}

/// The evidence to request with the commands of a batch, which shows whether the node's votes count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EvidenceRequest {
    /// The node's `INFO`, before all commands.
    pub info: bool,
    /// The node's marker, which shows that no data was lost, behind all commands.
    pub marker: bool,
}

/// A batch on one connection: its commands, and their answers so far.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    commands: Vec<Command>,
    answers: Vec<Answer>,
    evidence: Evidence,
    evidence_request: EvidenceRequest,
    form: Form,
    /// Indexes of the commands that must be sent again, each with the form to use.
    unclear: Vec<(usize, Form)>,
    /// Indexes of the commands that are being sent again.
    places: Vec<usize>,
    is_again: bool,
    /// Number of answers to this sending.
    answered: usize,
    sendings: Sendings,
    /// The session's marker when the exchange was sent.
    marker: Option<Arc<str>>,
}

/// The numbers of an exchange's sendings, counted on the connection.
#[derive(Clone, Copy, Debug, Default)]
struct Sendings {
    last: u64,
    /// The last sending that followed the exchange's earlier ones directly, without another exchange in between.
    unbroken: u64,
}

/// The state of one connection that its exchanges share.
#[derive(Clone, Debug, Default)]
pub struct Session {
    is_guarded: bool,
    /// Number of sendings on this connection so far.
    sendings: u64,
    untold: Untold,
    /// The text of the node's marker when it was last read on this connection.
    marker: Option<Arc<str>>,
}

impl Exchange {
    /// An exchange of these commands.
    pub fn new(commands: Vec<Command>) -> Self {
        Self { commands, ..Self::default() }
    }

    /// Clears the exchange and reuses its memory. Returns the vector for the new commands.
    pub fn renew(&mut self) -> &mut Vec<Command> {
        self.commands.clear();
        self.answers.clear();
        self.unclear.clear();
        self.places.clear();
        (self.evidence, self.evidence_request, self.form) = Default::default();
        (self.is_again, self.answered) = (false, 0);
        &mut self.commands
    }

    /// The commands that are to be sent now, in order.
    pub fn to_send(&self) -> impl Iterator<Item = &Command> {
        let (all, places) = match self.is_again {
            false => (&self.commands[..], &[][..]),
            true => (&[][..], &self.places[..]),
        };
        all.iter().chain(places.iter().map(|place| &self.commands[*place]))
    }

    /// The form in which the commands are to be sent.
    pub const fn form(&self) -> Form {
        self.form
    }

    /// The evidence to request with the commands.
    pub const fn evidence_request(&self) -> EvidenceRequest {
        self.evidence_request
    }

    /// Whether commands are being sent again.
    pub const fn is_again(&self) -> bool {
        self.is_again
    }

    /// The indexes of the commands that are being sent again.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// The command of the next [`answer`](Self::answer).
    pub fn awaited(&self) -> Option<&Command> {
        self.asked(self.answered)
    }

    /// Takes the answer to the next command, or the form in which the command must be sent again. Until it is answered
    /// again, the command counts as failed. Ignores answers beyond the last command.
    pub fn answer(&mut self, answer: Result<Answer, Form>) {
        if self.answered >= self.count() {
            return;
        }
        let nth = self.answered;
        self.answered += 1;
        if !self.is_again {
            let answer = answer.unwrap_or_else(|form| self.note_unclear(nth, form));
            return self.answers.push(answer);
        }
        let place = if mutant!(AgainMisplaced) { nth } else { self.places[nth] };
        self.answers[place] = match answer.unwrap_or_else(|form| self.note_unclear(place, form)) {
            // The native command has already shown that the key is not ours. Only the content of the key stays unknown.
            Answer::Failed(_) if self.commands[place].is_release() && self.form == Form::Script => {
                Answer::NotOurs
            }
            answer => answer,
        };
    }

    /// Notes that the command must be sent again in this form. Returns a failure, which is the command's answer until
    /// then.
    fn note_unclear(&mut self, place: usize, form: Form) -> Answer {
        self.unclear.push((place, form));
        Answer::Failed(Failure::new(FailureKind::Protocol))
    }

    /// Reads the marker behind the commands. If the marker equals the last one on this connection, which is usual, the
    /// text is shared. All bytes are compared each time (S9).
    #[inline]
    pub fn marker(&self, said: &[u8]) -> MarkerSeen {
        MarkerSeen::Text(match &self.marker {
            Some(last) if last.as_bytes() == said || mutant!(MarkerChangeUnseen) => last.clone(),
            // Our markers are plain text. Another value only appears in messages, so a lossy conversion suffices.
            _ => String::from_utf8_lossy(said).into(),
        })
    }

    /// Fails all commands of this sending, also those that were answered.
    pub fn fail(&mut self, failure: &Failure) {
        if self.is_again {
            // The commands have failed now. So this drops the repetitions that the answers to this sending requested.
            // Commands outside this sending keep their repetitions.
            let (places, form) = (&self.places, self.form);
            self.unclear.retain(|(place, other)| *other <= form || !places.contains(place));
        } else {
            self.answers.clear();
            self.unclear.clear();
        }
        self.answered = 0;
        for _ in 0..self.count() {
            self.answer(Ok(Answer::Failed(failure.clone())));
        }
    }

    /// The answers, after [`Session::conclude`] has returned false.
    pub fn take(&mut self) -> (&mut Vec<Answer>, Evidence) {
        (&mut self.answers, core::mem::take(&mut self.evidence))
    }

    fn count(&self) -> usize {
        if self.is_again { self.places.len() } else { self.commands.len() }
    }

    /// Whether `is_it` holds for any command of this sending.
    fn has(&self, is_it: impl Fn(&Command) -> bool) -> bool {
        match self.is_again {
            true => self.places.iter().any(|place| is_it(&self.commands[*place])),
            false => self.commands.iter().any(is_it),
        }
    }

    fn asked(&self, nth: usize) -> Option<&Command> {
        if self.is_again {
            Some(&self.commands[*self.places.get(nth)?])
        } else {
            self.commands.get(nth)
        }
    }

    /// Whether the command at this index may be sent again. `has_moved_on` means that another exchange was sent on this
    /// connection meanwhile.
    ///
    /// A command that sets a lock must not follow the lock's release, because no release would delete what it sets. It
    /// must also not follow another command about the same lock, because the engine receives the answers in the
    /// original order. So it is sent again only if no such command can have been sent since.
    fn may_ask_again(&self, place: usize, has_moved_on: bool) -> bool {
        fn subject(command: &Command) -> Option<&Value> {
            match command {
                Command::Announce { value, .. } | Command::Withdraw { value, .. } => Some(value),
                other => other.value(),
            }
        }
        let command = &self.commands[place];
        let sets = command.sets_a_lock() || matches!(command, Command::Announce { .. });
        let Some(value) = subject(command).filter(|_| sets) else {
            return true;
        };
        let mut later = self.commands[place + 1..].iter().filter_map(subject);
        mutant!(AskedAgainLate) || !has_moved_on && !later.any(|other| other == value)
    }
}

impl Session {
    /// The session of a new connection. `is_guarded` means that the node has to prove that its votes count.
    pub fn new(is_guarded: bool) -> Self {
        Self { is_guarded, ..Self::default() }
    }

    /// Whether nothing has been sent.
    pub const fn is_new(&self) -> bool {
        self.sendings == 0
    }

    /// Whether a marker was read on this connection.
    pub const fn has_marker(&self) -> bool {
        self.marker.is_some()
    }

    /// Prepares to send an exchange, also when it is sent again. Requests the node's `INFO` with the first exchange
    /// and with every [`Command::Identify`]. Requests the marker with each `INFO` and with every command about votes
    /// (S9).
    pub fn send(&mut self, exchange: &mut Exchange) {
        let mut request = EvidenceRequest::default();
        if self.is_guarded {
            request.info = self.is_new() || exchange.has(|it| matches!(it, Command::Identify));
            let is_about_votes = exchange.has(Command::is_about_votes);
            request.marker = request.info || is_about_votes && !mutant!(MarkerUnasked);
        }
        exchange.evidence_request = request;
        if request.marker && !is_very_same(exchange.marker.as_ref(), self.marker.as_ref()) {
            exchange.marker.clone_from(&self.marker);
        }
        if !exchange.is_again {
            let is_told = self.untold.is_told_with(&exchange.commands);
            exchange.form = if is_told { Form::Text } else { Form::Usual };
        }
        self.sendings += 1;
        exchange.sendings.last = self.sendings;
    }

    /// Ends a sending, after each of its commands has an answer or has failed. Returns whether some commands must be
    /// sent again. A command is sent at most three times, because each form is more explicit than the one before.
    pub fn conclude(&mut self, exchange: &mut Exchange, evidence: Evidence) -> bool {
        if let Evidence::Seen { marker: MarkerSeen::Text(text), .. } = &evidence
            && !is_very_same(self.marker.as_ref(), Some(text))
            && self.marker.as_ref() != Some(text)
        {
            self.marker = Some(text.clone());
        }
        if exchange.is_again {
            // The commands were sent again. If the replies to the second sending contain no evidence, the answers to
            // the first sending keep theirs.
            exchange.evidence = core::mem::take(&mut exchange.evidence).and_later(evidence);
            let sendings = &mut exchange.sendings;
            if sendings.last == sendings.unbroken + 1 {
                sendings.unbroken = sendings.last;
            }
        } else {
            exchange.evidence = evidence;
            exchange.sendings.unbroken = exchange.sendings.last;
        }
        if exchange.unclear.is_empty() {
            return false;
        }
        let has_moved_on = self.sendings != exchange.sendings.unbroken;
        [Form::Script, Form::Text]
            .into_iter()
            .any(|form| form > exchange.form && self.ask_again(exchange, form, has_moved_on))
    }

    /// Chooses the commands that are sent again in this form. Returns whether there are any.
    fn ask_again(&mut self, exchange: &mut Exchange, form: Form, has_moved_on: bool) -> bool {
        let unclear = exchange.unclear.iter().filter(|(_, other)| *other == form);
        let (places, late): (Vec<usize>, Vec<usize>) = unclear
            .map(|(place, _)| *place)
            .partition(|place| exchange.may_ask_again(*place, has_moved_on));
        for place in late {
            let why = "NOSCRIPT, and it is too late to ask again";
            let failure = Failure::unsent(FailureKind::Rejected).with_detail(why);
            exchange.answers[place] = Answer::Failed(failure);
            self.untold.note(&exchange.commands[place]);
        }
        if places.is_empty() {
            return false;
        }
        (exchange.places, exchange.form) = (places, form);
        (exchange.is_again, exchange.answered) = (true, 0);
        true
    }
}

/// Whether these are the same allocation. Equal texts in two allocations count as different.
fn is_very_same(one: Option<&Arc<str>>, other: Option<&Arc<str>>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if Arc::ptr_eq(one, other))
}

#[cfg(test)]
mod tests;
