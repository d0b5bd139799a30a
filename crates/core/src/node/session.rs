//! One connection's exchanges: what is asked beside the commands of a batch, in which form the commands are sent,
//! and which of them are asked again.
//!
//! A node that does not know a script has not run it. So its command may be sent once more, with the script's text;
//! that repeats nothing (S8). A server that deletes natively does not say what it found instead of our key; where
//! that matters it is asked by the script, which finds nothing of ours to delete.

mod untold;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::command::{Answer, Command, Failure, FailureKind};
use crate::node::evidence::{Evidence, MarkerSeen};
use crate::token::Value;

use self::untold::Untold;

/// In which form commands are sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Form {
    /// As the server does it best.
    #[default]
    Usual,
    /// By scripts that it should know.
    Script,
    /// By scripts, with their texts.
    Text,
}

/// What is asked beside the commands of a batch, if the node has to prove that its votes count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EvidenceRequest {
    /// What the node is, before all commands.
    pub info: bool,
    /// Its marker, behind them.
    pub marker: bool,
}

/// A batch on one connection: its commands, and their answers as far as they are known.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    commands: Vec<Command>,
    answers: Vec<Answer>,
    evidence: Evidence,
    evidence_request: EvidenceRequest,
    form: Form,
    /// Which commands are to be asked again, and in which form.
    unclear: Vec<(usize, Form)>,
    /// Those that are being asked again; all commands, if none is.
    places: Vec<usize>,
    is_again: bool,
    /// Of those that are being asked, so many have been answered.
    heard: usize,
    parcels: Parcels,
    /// What the session's marker was when it was sent.
    marker: Option<Arc<str>>,
}

/// Which of the connection's parcels an exchange was sent with.
#[derive(Clone, Copy, Debug, Default)]
struct Parcels {
    last: u64,
    /// The last one with nothing else sent since the first.
    unbroken: u64,
}

/// One connection, as far as exchanges go.
#[derive(Clone, Debug, Default)]
pub struct Session {
    is_guarded: bool,
    /// How many parcels have been sent.
    parcels: u64,
    untold: Untold,
    /// What the node's marker said when it was last read on this connection.
    marker: Option<Arc<str>>,
}

impl Exchange {
    /// Of these commands.
    pub fn new(commands: Vec<Command>) -> Self {
        Self { commands, ..Self::default() }
    }

    /// Forgets everything, and keeps its memory. Returns where the commands go that it is to be of.
    pub fn renew(&mut self) -> &mut Vec<Command> {
        self.commands.clear();
        self.answers.clear();
        self.unclear.clear();
        self.places.clear();
        (self.evidence, self.evidence_request, self.form) = Default::default();
        (self.is_again, self.heard) = (false, 0);
        &mut self.commands
    }

    /// The commands that are to be sent now, in order.
    pub fn to_send(&self) -> impl Iterator<Item = &Command> {
        (0..self.count()).filter_map(|nth| self.asked(nth))
    }

    /// In which form they are to be sent.
    pub const fn form(&self) -> Form {
        self.form
    }

    /// What is to be asked beside them.
    pub const fn evidence_request(&self) -> EvidenceRequest {
        self.evidence_request
    }

    /// They are not sent for the first time.
    pub const fn is_again(&self) -> bool {
        self.is_again
    }

    /// The commands that are being asked again, by their places among all.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// The next command whose answer is to be told with [`answer`](Self::answer).
    pub fn awaited(&self) -> Option<&Command> {
        self.asked(self.heard)
    }

    /// Takes the answer to the next command; or the form in which it must be asked instead. It counts as failed until
    /// then. What is heard beyond the last command is passed over.
    pub fn answer(&mut self, answer: Result<Answer, Form>) {
        if self.heard >= self.count() {
            return;
        }
        let place = match self.is_again {
            true if mutant!(AgainMisplaced) => self.heard,
            true => self.places[self.heard],
            false => self.answers.len(),
        };
        self.heard += 1;
        let answer = match answer {
            Ok(answer) => answer,
            Err(form) => {
                self.unclear.push((place, form));
                Answer::Failed(Failure::new(FailureKind::Protocol))
            }
        };
        match answer {
            answer if !self.is_again => self.answers.push(answer),
            // It is known that it was not ours, if not what it was.
            Answer::Failed(_) if self.commands[place].is_release() && self.form == Form::Script => {
                self.answers[place] = Answer::NotOurs;
            }
            answer => self.answers[place] = answer,
        }
    }

    /// What the marker says that was read behind the commands. Nearly always it is what it said before on this
    /// connection: then that text is shared. All of it is compared, each time (S9).
    #[inline]
    pub fn marker(&self, said: &[u8]) -> MarkerSeen {
        MarkerSeen::Text(match &self.marker {
            Some(last) if last.as_bytes() == said || mutant!(MarkerChangeUnseen) => last.clone(),
            // Ours is plain text; what is not is another's, and need only be shown.
            _ => String::from_utf8_lossy(said).into(),
        })
    }

    /// All that were being asked have failed, whatever was heard of them.
    pub fn fail(&mut self, failure: &Failure) {
        if self.is_again {
            // What was heard of them now; what was to be asked later still is.
            let (places, form) = (&self.places, self.form);
            self.unclear.retain(|(place, other)| *other <= form || !places.contains(place));
        } else {
            self.answers.clear();
            self.unclear.clear();
        }
        self.heard = 0;
        for _ in 0..self.count() {
            self.answer(Ok(Answer::Failed(failure.clone())));
        }
    }

    /// The answers, once [`Session::conclude`] has said that no others are to be waited for.
    pub fn take(&mut self) -> (&mut Vec<Answer>, Evidence) {
        (&mut self.answers, core::mem::take(&mut self.evidence))
    }

    fn count(&self) -> usize {
        if self.is_again { self.places.len() } else { self.commands.len() }
    }

    /// Whether one like this is to be sent now.
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

    /// Whether the command at this place may be asked again. `has_moved_on`: something else was sent on this
    /// connection since.
    ///
    /// A command that sets a lock must not come behind its release: nobody would take back what it sets. Nor behind
    /// any other command about the same lock, whose answer is told after its own. So it is asked again only if none
    /// of those can have been sent since.
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
    /// Of a new connection. `is_guarded`: the node has to prove that its votes count.
    pub fn new(is_guarded: bool) -> Self {
        Self { is_guarded, ..Self::default() }
    }

    /// Whether nothing has been sent.
    pub const fn is_new(&self) -> bool {
        self.parcels == 0
    }

    /// A marker was read on this connection.
    pub const fn has_marker(&self) -> bool {
        self.marker.is_some()
    }

    /// The exchange's commands are being sent, for the first time or again. Says what is asked beside them: what the
    /// node is with the first of all, and with every [`Command::Identify`]; its marker then, and with every command
    /// about votes (S9).
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
        self.parcels += 1;
        exchange.parcels.last = self.parcels;
    }

    /// All that were asked have been answered, or have failed. Returns whether some must be asked again: then the
    /// exchange is to be sent once more. It ends: each form is more explicit than the one before.
    pub fn conclude(&mut self, exchange: &mut Exchange, evidence: Evidence) -> bool {
        if let Evidence::Seen { marker: MarkerSeen::Text(text), .. } = &evidence
            && !is_very_same(self.marker.as_ref(), Some(text))
            && self.marker.as_ref() != Some(text)
        {
            self.marker = Some(text.clone());
        }
        if exchange.is_again {
            // A later look that came to nothing says nothing of what was answered before it.
            exchange.evidence = core::mem::take(&mut exchange.evidence).and_later(evidence);
            let parcels = &mut exchange.parcels;
            if parcels.last == parcels.unbroken + 1 {
                parcels.unbroken = parcels.last;
            }
        } else {
            exchange.evidence = evidence;
            exchange.parcels.unbroken = exchange.parcels.last;
        }
        if exchange.unclear.is_empty() {
            return false;
        }
        let has_moved_on = self.parcels != exchange.parcels.unbroken;
        [Form::Script, Form::Text]
            .into_iter()
            .any(|form| form > exchange.form && self.ask_again(exchange, form, has_moved_on))
    }

    /// Chooses what is to be asked in this form; whether there is anything.
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
        (exchange.is_again, exchange.heard) = (true, 0);
        true
    }
}

/// Whether these are one text. That two are equal goes unnoticed.
fn is_very_same(one: Option<&Arc<str>>, other: Option<&Arc<str>>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if Arc::ptr_eq(one, other))
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::command::Counter;
    use crate::token::{Token, Value};

    fn value(token: u8) -> Value {
        Value::new(&Token::new([token; 20]), "")
    }

    fn acquire(token: u8) -> Command {
        let counter = Counter { keys: "c".into(), ttl_ms: 1000, marker: "m".into() };
        let (keys, value) = ("k".into(), value(token));
        Command::AcquireFenced { keys, value, ttl_ms: 1000, counter, proposal: 0 }
    }

    fn release(token: u8) -> Command {
        Command::Release { keys: "k".into(), value: value(token), tell: true }
    }

    /// Sends an exchange of these commands, whose answers are these.
    fn sent(
        session: &mut Session,
        commands: impl Into<Vec<Command>>,
        answers: impl IntoIterator<Item = Result<Answer, Form>>,
    ) -> Exchange {
        let mut exchange = Exchange::new(commands.into());
        session.send(&mut exchange);
        answers.into_iter().for_each(|answer| exchange.answer(answer));
        assert!(exchange.awaited().is_none());
        exchange
    }

    /// Whether the first command is asked again, if its script was not known.
    fn is_asked_again(commands: &[Command], moves_on: bool) -> bool {
        let mut session = Session::new(false);
        let mut answers = vec![Ok(Answer::Deleted); commands.len()];
        answers[0] = Err(Form::Text);
        let mut exchange = sent(&mut session, commands, answers);
        if moves_on {
            sent(&mut session, [release(9)], [Ok(Answer::Deleted)]);
        }
        let again = session.conclude(&mut exchange, Evidence::NotRequired);
        assert!(!again || exchange.to_send().eq([&commands[0]]) && exchange.form() == Form::Text);
        again
    }

    #[test]
    fn what_sets_a_lock_is_not_asked_again_behind_its_release() {
        let extend = Command::Extend { keys: "k".into(), value: value(1), ttl_ms: 1000 };
        assert!(is_asked_again(&[acquire(1), release(2)], false));
        assert!(!is_asked_again(&[acquire(1), release(2)], true), "who knows what was sent");
        assert!(!is_asked_again(&[acquire(1), release(1)], false));
        assert!(!is_asked_again(&[acquire(1), extend.clone()], false), "that was carried out");
        assert!(is_asked_again(&[extend, release(1)], true), "it sets nothing");
    }

    #[test]
    fn a_marker_is_shared_if_all_of_it_is_the_same_on_the_same_connection() {
        let look = |session: &mut Session, said: &[u8]| {
            let mut exchange = sent(session, [acquire(1)], [Ok(Answer::Granted)]);
            let marker = exchange.marker(said);
            let evidence =
                Evidence::Seen { epoch: 1, flushes: 0, info: None, marker: marker.clone() };
            session.conclude(&mut exchange, evidence);
            let MarkerSeen::Text(text) = marker else { panic!("that is what it says") };
            text
        };
        let session = &mut Session::new(true);
        let first = look(session, b"one");
        assert_eq!(&*first, "one");
        assert!(Arc::ptr_eq(&first, &look(session, b"one")));
        for other in ["two", "on", "ones", "", "one"] {
            let text = look(session, other.as_bytes());
            assert!(&*text == other && !Arc::ptr_eq(&first, &text));
        }
        assert_eq!(&*look(session, b"\xff"), "\u{fffd}", "it is only shown");
        assert!(!Arc::ptr_eq(&look(session, b"one"), &look(&mut Session::new(true), b"one")));
    }

    #[test]
    fn a_script_is_told_with_the_next_command_of_its_kind() {
        let session = &mut Session::new(false);
        let mut late = sent(session, [acquire(1)], [Err(Form::Text)]);
        sent(session, [release(9)], [Ok(Answer::Deleted)]);
        assert!(!session.conclude(&mut late, Evidence::NotRequired), "it is too late");
        let [Answer::Failed(failure)] = &late.take().0[..] else { panic!("it was not run") };
        assert!(!failure.may_have_been_executed());
        let form = |session: &mut Session, commands: &[Command]| {
            let mut exchange = Exchange::new(commands.to_vec());
            session.send(&mut exchange);
            exchange.form()
        };
        assert_eq!(form(session, &[release(1)]), Form::Usual, "that would not tell it");
        assert_eq!(form(session, &[release(1), acquire(2)]), Form::Text);
        assert_eq!(form(session, &[acquire(3)]), Form::Usual, "it has been told");
    }

    /// Its script is not loaded before, and must not be found missing when it is too late to ask again.
    #[test]
    fn the_first_reader_on_a_connection_brings_its_script() {
        let session = &mut Session::new(false);
        let reader = |token: u8| {
            let (keys, intents) = ("k".into(), "i".into());
            Command::AcquireShared { keys, intents, value: value(token), ttl_ms: 1000 }
        };
        let form = |session: &mut Session, command: Command| {
            let mut exchange = Exchange::new(vec![command]);
            session.send(&mut exchange);
            exchange.form()
        };
        assert_eq!(form(session, acquire(1)), Form::Usual);
        assert_eq!(form(session, reader(2)), Form::Text);
        assert_eq!(form(session, reader(3)), Form::Usual);
        assert_eq!(form(&mut Session::new(false), reader(4)), Form::Text, "another connection");
    }

    #[test]
    fn what_is_asked_again_is_asked_more_explicitly_each_time() {
        let session = &mut Session::new(false);
        let answers = [Err(Form::Script), Ok(Answer::Deleted), Err(Form::Script)];
        let mut it = sent(session, [release(1), release(2), release(3)], answers);
        assert!(session.conclude(&mut it, Evidence::NotRequired));
        session.send(&mut it);
        assert_eq!((it.form(), it.places()), (Form::Script, &[0, 2][..]));
        it.answer(Ok(Answer::Other));
        it.answer(Err(Form::Text));
        assert!(session.conclude(&mut it, Evidence::NotRequired));
        session.send(&mut it);
        assert_eq!((it.form(), it.places()), (Form::Text, &[2][..]));
        it.fail(&Failure::new(FailureKind::Unreachable));
        assert!(!session.conclude(&mut it, Evidence::NotRequired));
        let failed = Answer::Failed(Failure::new(FailureKind::Unreachable));
        assert_eq!(*it.take().0, [Answer::Other, Answer::Deleted, failed]);
    }

    #[test]
    fn a_release_is_known_not_to_be_ours_even_if_asking_again_fails() {
        let session = &mut Session::new(false);
        let mut it = sent(session, [release(1)], [Err(Form::Script)]);
        assert!(session.conclude(&mut it, Evidence::NotRequired));
        session.send(&mut it);
        it.fail(&Failure::new(FailureKind::Unreachable));
        assert!(!session.conclude(&mut it, Evidence::NotRequired));
        assert_eq!(*it.take().0, [Answer::NotOurs]);
    }

    #[test]
    fn a_look_that_fails_when_it_is_asked_again_has_failed() {
        let session = &mut Session::new(false);
        let look = Command::Inspect { keys: "k".into(), intents: None };
        let mut it = sent(session, [look], [Err(Form::Script)]);
        assert!(session.conclude(&mut it, Evidence::NotRequired));
        session.send(&mut it);
        let failure = Failure::new(FailureKind::Unreachable);
        it.fail(&failure);
        assert!(!session.conclude(&mut it, Evidence::NotRequired));
        assert_eq!(*it.take().0, [Answer::Failed(failure)]);
    }

    /// It had said that it does not know the script, and that is not what became of the release.
    #[test]
    fn what_fails_in_the_midst_of_being_asked_again_is_not_asked_once_more() {
        let session = &mut Session::new(false);
        let answers = [Err(Form::Script), Err(Form::Script)];
        let mut it = sent(session, [release(1), release(2)], answers);
        assert!(session.conclude(&mut it, Evidence::NotRequired));
        session.send(&mut it);
        it.answer(Err(Form::Text));
        it.fail(&Failure::new(FailureKind::Unreachable));
        it.answer(Ok(Answer::Deleted));
        assert!(!session.conclude(&mut it, Evidence::NotRequired));
        assert_eq!(*it.take().0, [Answer::NotOurs, Answer::NotOurs]);
    }

    #[test]
    fn the_marker_is_asked_with_votes_and_what_the_node_is_on_a_new_connection() {
        let request = |session: &mut Session, command: Command| {
            let mut exchange = Exchange::new(vec![command]);
            session.send(&mut exchange);
            let EvidenceRequest { info, marker } = exchange.evidence_request();
            (info, marker)
        };
        let session = &mut Session::new(true);
        assert_eq!(request(session, release(1)), (true, true), "the first");
        assert_eq!(request(session, release(1)), (false, false));
        assert_eq!(request(session, acquire(1)), (false, true));
        assert_eq!(request(session, Command::Identify), (true, true));
        assert_eq!(request(&mut Session::new(false), acquire(1)), (false, false), "nobody looks");
    }
}
