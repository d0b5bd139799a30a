//! The batches of one connection: decides which evidence is requested with a batch, in which form its commands are
//! sent, and which of them are sent again.
//!
//! A node that does not know a script has not run the script. So the command may be sent again with the script's text:
//! nothing is executed twice (S8). A native compare-and-delete command does not report what it found instead of our
//! value. If the caller needs to know that, the session then sends the release script. The script reports what the key
//! holds, and deletes nothing, because the key is not ours.

mod scripts_to_send;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::command::{Answer, Command, Failure, FailureKind};
use crate::ids::{LockId, Ticket, Verb};
use crate::node::evidence::{Evidence, MarkerSeen};
use crate::node::pipeline::{BatchId, Commands, TicketedCommand};
use crate::time::Reading;
use crate::token::Value;

use self::scripts_to_send::ScriptsToSend;

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
    /// Whether to request the node's `INFO`, before all commands.
    pub info: bool,
    /// Whether to request the node's marker after all commands. The marker shows that no data was lost.
    pub marker: bool,
    /// Whether to write a key of this connection's own after reading the marker, and to request the number of replicas
    /// that acknowledge this write. Servers from Redis 7.2 on, and Valkey, count only the connection's last write, but
    /// a vote may rest on another connection's write: an extension writes nothing if the key lives long enough.
    pub acknowledgement: bool,
}

/// A batch and its answers so far: the only record of a batch, from the pipeline to the connection and back.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    pub(super) id: BatchId,
    /// The clock reading that was taken before the first byte of the batch could be sent. `None` while the batch waits
    /// for a connection.
    pub(super) sent: Option<Reading>,
    /// A list that may also contain commands of other batches. `members` are the indexes of this batch's commands.
    commands: Option<Commands>,
    members: Vec<usize>,
    answers: Vec<(Ticket, Answer)>,
    evidence: Evidence,
    evidence_request: EvidenceRequest,
    form: Form,
    /// Places in `members` of the commands that must be sent again, each with the form to use.
    unclear: Vec<(usize, Form)>,
    /// Places in `members` of the commands that are being sent again.
    places: Vec<usize>,
    is_again: bool,
    answered: usize,
    sendings: Sendings,
    /// The session's marker when the exchange was sent; `None` if the session had read none.
    marker: Option<Arc<str>>,
}

/// Two sendings of one batch, as the connection numbers them. They show whether another batch was sent in between.
#[derive(Clone, Copy, Debug, Default)]
struct Sendings {
    last: u64,
    /// The last sending of this batch before the connection sent another batch.
    unbroken: u64,
}

/// The state of one connection that its exchanges share.
#[derive(Clone, Debug, Default)]
pub struct Session {
    is_guarded: bool,
    is_replicated: bool,
    /// Whether the greeting has read the node's `INFO` and marker.
    is_identified: bool,
    sendings: u64,
    scripts_to_send: ScriptsToSend,
    /// The text of the node's marker when it was last read on this connection; `None` before that.
    marker: Option<Arc<str>>,
}

impl Exchange {
    /// An exchange of commands whose answers need no tickets.
    pub fn new(id: BatchId, commands: Vec<Command>) -> Self {
        let ticket = Ticket { lock: LockId(0), round: 0, verb: Verb::Inspect };
        let mut exchange = Self { id, ..Self::default() };
        exchange.own(commands.into_iter().map(|command| (ticket, command)));
        exchange
    }

    /// Begins the exchange of another batch, and reuses the memory of the former one and of `answers`.
    pub(super) fn begin(&mut self, id: BatchId, answers: Option<Vec<(Ticket, Answer)>>) {
        (self.id, self.sent) = (id, None);
        self.answers = answers.unwrap_or_default();
        self.unclear.clear();
        self.places.clear();
        (self.evidence, self.evidence_request, self.form) = Default::default();
        (self.is_again, self.answered) = (false, 0);
    }

    /// Sets the commands of a batch to those of the list with the indexes in `members`. Leaves `members` empty.
    pub(super) fn share(&mut self, commands: Commands, members: &mut Vec<usize>) {
        self.commands = Some(commands);
        self.members.clear();
        core::mem::swap(&mut self.members, members);
    }

    /// Gives the batch these commands, which no other batch shares.
    pub(super) fn own(&mut self, commands: impl Iterator<Item = TicketedCommand>) {
        // The memory of a list that no other batch refers to is reused.
        let list = self.commands.get_or_insert_default();
        if Arc::get_mut(list).is_none() {
            *list = Arc::default();
        }
        if let Some(list) = Arc::get_mut(list) {
            list.clear();
            list.extend(commands);
            self.members.clear();
            self.members.extend(0..list.len());
        }
    }

    /// Takes the commands that prolong a lock without a guard out of the batch, and returns them as failed.
    pub(super) fn decline(&mut self) -> Vec<(Ticket, Answer)> {
        let mut declined = Vec::new();
        let Some(commands) = &self.commands else { return declined };
        self.members.retain(|member| {
            let Some((ticket, command)) = commands.get(*member) else { return true };
            let is_declined = command.prolongs_without_guard(ticket);
            if is_declined {
                let failure = Failure::unsent(FailureKind::Unverified);
                declined.push((*ticket, Answer::Failed(failure)));
            }
            !is_declined
        });
        declined
    }

    /// The id of the batch.
    pub const fn id(&self) -> BatchId {
        self.id
    }

    /// The clock reading that was taken before the first byte of the batch could be sent. `None` while the batch waits
    /// for a connection.
    pub const fn sent_at(&self) -> Option<Reading> {
        self.sent
    }

    /// The number of commands in the batch.
    pub const fn command_count(&self) -> usize {
        self.members.len()
    }

    /// All commands of the batch, also those that are not sent again.
    pub fn commands(&self) -> impl Iterator<Item = &TicketedCommand> {
        (0..self.command_count()).filter_map(|place| Some(self.member(place)?.1))
    }

    /// The commands that are to be sent now, in order.
    pub fn to_send(&self) -> impl Iterator<Item = &TicketedCommand> {
        self.to_send_of_list().map(|(_, command)| command)
    }

    /// The commands that are to be sent now, each with its index in the list that the batches of all nodes share.
    pub fn to_send_of_list(&self) -> impl Iterator<Item = (usize, &TicketedCommand)> {
        (0..self.count()).filter_map(|nth| self.nth(nth))
    }

    /// Whether the commands of the batch are in this list.
    pub fn is_of(&self, list: &Commands) -> bool {
        self.commands.as_ref().is_some_and(|commands| Arc::ptr_eq(commands, list))
    }

    /// The form in which the commands are to be sent.
    pub const fn form(&self) -> Form {
        self.form
    }

    /// The data to request with the commands, which shows whether the node's votes count.
    pub const fn evidence_request(&self) -> EvidenceRequest {
        self.evidence_request
    }

    /// The indexes, within the batch, of the commands that are being sent again.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// The command that the next [`answer`](Self::answer) belongs to; `None` if each command has an answer.
    pub fn awaited(&self) -> Option<&Command> {
        Some(&self.nth(self.answered)?.1.1)
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
            if let Some((_, (ticket, _))) = self.member(nth) {
                self.answers.push((*ticket, answer));
            }
            return;
        }
        let place = if mutant!(AgainMisplaced) { nth } else { self.places[nth] };
        self.answers[place].1 = match answer.unwrap_or_else(|form| self.note_unclear(place, form)) {
            // The script was only to show what the key holds. The native command has already shown that the key is not
            // ours, so that answer stays although the script failed.
            Answer::Failed(_)
                if self.form == Form::Script
                    && self.member(place).is_some_and(|(_, (_, command))| command.is_release()) =>
            {
                Answer::NotOurs
            }
            answer => answer,
        };
    }

    /// Takes the answers to the next commands, until `decode` returns `None`. Returns the number of answers. Does
    /// nothing if the batch is being sent again.
    #[inline]
    pub fn answer_while(&mut self, mut decode: impl FnMut(&Command) -> Option<Answer>) -> usize {
        let before = self.answered;
        let Some(list) = self.commands.as_ref().filter(|_| !self.is_again) else { return 0 };
        for member in &self.members[before..] {
            let (ticket, command) = &list[*member];
            let Some(answer) = decode(command) else { break };
            self.answers.push((*ticket, answer));
            self.answered += 1;
        }
        self.answered - before
    }

    /// Notes that the command must be sent again in this form. Returns a failure, which is the command's answer until
    /// the repetition is answered.
    fn note_unclear(&mut self, place: usize, form: Form) -> Answer {
        self.unclear.push((place, form));
        Answer::Failed(Failure::new(FailureKind::Protocol))
    }

    /// Converts `said`, the bytes of the marker that was read after the commands. If they equal the last marker on this
    /// connection, which is usual, both share one text. All bytes are compared each time (S9).
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
            // The answers to this sending may have requested that commands be sent again in a longer form. These
            // commands have failed now, so their repetitions are dropped. Commands that are not part of this sending
            // are still repeated.
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

    /// Takes one answer for each command from a node that sends no bytes, such as a node in memory. If the number of
    /// answers is wrong, the exchange stays without answers.
    pub fn answer_all(&mut self, answers: Vec<Answer>, evidence: Evidence) {
        self.evidence = evidence;
        if answers.len() == self.command_count() {
            answers.into_iter().for_each(|answer| self.answer(Ok(answer)));
        }
    }

    /// Ends the exchange, after [`Session::end_sending`] has returned false. Returns the answers and their evidence. If
    /// the number of answers is wrong, all commands have failed.
    pub fn take(&mut self) -> (Vec<(Ticket, Answer)>, Evidence) {
        if self.answers.len() != self.command_count() {
            self.is_again = false;
            self.fail(&Failure::new(FailureKind::Protocol));
        }
        // The list is kept for reuse if it has only commands of this batch, and no other batch refers to it.
        let count = self.command_count();
        self.commands.take_if(|commands| {
            commands.len() > count || Arc::get_mut(commands).map(Vec::clear).is_none()
        });
        self.members.clear();
        (core::mem::take(&mut self.answers), core::mem::take(&mut self.evidence))
    }

    fn count(&self) -> usize {
        if self.is_again { self.places.len() } else { self.command_count() }
    }

    /// Whether `is_it` holds for any command of this sending.
    fn has(&self, is_it: impl Fn(&Command) -> bool) -> bool {
        self.to_send().any(|(_, command)| is_it(command))
    }

    /// The command at this index of the present sending, with its index in the list `commands`.
    fn nth(&self, nth: usize) -> Option<(usize, &TicketedCommand)> {
        self.member(if self.is_again { *self.places.get(nth)? } else { nth })
    }

    /// The command at this index of the batch, with its index in the list `commands`.
    fn member(&self, place: usize) -> Option<(usize, &TicketedCommand)> {
        let member = *self.members.get(place)?;
        Some((member, self.commands.as_ref()?.get(member)?))
    }

    /// Whether the command at this index may be sent again. `has_moved_on` means that another exchange was sent on this
    /// connection meanwhile.
    ///
    /// A command that sets a lock must not follow the lock's release, because no further release would delete the key.
    /// It must not follow another command about the same lock either, because the engine receives the answers in the
    /// original order. So the command is sent again only if no such other command can have been sent since. The same
    /// holds for an intent: a withdrawal after a later announcement would remove a waiting writer's intent.
    fn may_ask_again(&self, place: usize, has_moved_on: bool) -> bool {
        fn value(command: &Command) -> Option<&Value> {
            if let Command::Announce { value, .. } | Command::Withdraw { value, .. } = command {
                return Some(value);
            }
            command.subject().map(|(_, value)| value)
        }
        let Some((_, (_, command))) = self.member(place) else { return false };
        let is_about_intent =
            matches!(command, Command::Announce { .. } | Command::Withdraw { .. });
        let needs_order = command.sets_a_lock() || is_about_intent;
        let Some(of_it) = value(command).filter(|_| needs_order) else {
            return true;
        };
        let later = (place + 1..self.command_count()).filter_map(|place| self.member(place));
        let mut later = later.filter_map(|(_, (_, command))| value(command));
        mutant!(AskedAgainLate) || !has_moved_on && !later.any(|other| other == of_it)
    }
}

impl Session {
    /// The session of a new connection. `is_guarded` means that the node has to prove that its votes count.
    pub fn new(is_guarded: bool) -> Self {
        Self { is_guarded, ..Self::default() }
    }

    /// Sets whether the votes of the node need the acknowledgement of its replicas.
    #[must_use]
    pub fn replicated(self, is_replicated: bool) -> Self {
        Self { is_replicated, ..self }
    }

    /// Notes that the greeting has read the node's `INFO` and this marker, so the first exchange does not ask for `INFO`.
    pub fn identify(&mut self, marker: &MarkerSeen) {
        self.is_identified = true;
        if let MarkerSeen::Text(text) = marker {
            self.marker = Some(text.clone());
        }
    }

    /// Whether nothing has been sent.
    pub const fn is_new(&self) -> bool {
        self.sendings == 0
    }

    /// Whether a marker was read on this connection.
    pub const fn has_marker(&self) -> bool {
        self.marker.is_some()
    }

    /// Decides how an exchange is sent, also when it is sent again. Requests the node's `INFO` with the first exchange,
    /// unless the greeting has read it, and with every [`Command::Identify`]. Requests the marker with each `INFO` and with every command about votes
    /// (S9), and the acknowledgement of the node's replicas with every command about votes (S35).
    pub fn prepare(&mut self, exchange: &mut Exchange) {
        let mut request = EvidenceRequest::default();
        if self.is_guarded {
            let is_unidentified = self.is_new() && !self.is_identified;
            request.info = is_unidentified || exchange.has(|it| matches!(it, Command::Identify));
            let is_about_votes = exchange.has(Command::is_about_votes);
            request.marker = request.info || is_about_votes && !mutant!(MarkerUnasked);
            request.acknowledgement = self.is_replicated && is_about_votes;
        }
        exchange.evidence_request = request;
        if request.marker && !is_very_same(exchange.marker.as_ref(), self.marker.as_ref()) {
            exchange.marker.clone_from(&self.marker);
        }
        if !exchange.is_again {
            let commands = exchange.to_send().map(|(_, command)| command);
            let needs_text = self.scripts_to_send.take(commands);
            exchange.form = if needs_text { Form::Text } else { Form::Usual };
        }
        self.sendings += 1;
        exchange.sendings.last = self.sendings;
    }

    /// Ends a sending, after each of its commands has an answer or has failed. Returns whether some commands must be
    /// sent again. A command is sent at most three times, because each repetition uses a more explicit form.
    pub fn end_sending(&mut self, exchange: &mut Exchange, evidence: Evidence) -> bool {
        if let Evidence::Seen { marker: MarkerSeen::Text(text), .. } = &evidence
            && !is_very_same(self.marker.as_ref(), Some(text))
            && self.marker.as_ref() != Some(text)
        {
            self.marker = Some(text.clone());
        }
        if exchange.is_again {
            // The commands were sent again. If the replies to the second sending contain no evidence, that of the first
            // one stays.
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

    /// Chooses the commands that are sent again in this form. Fails those that are too late. False if none is left.
    fn ask_again(&mut self, exchange: &mut Exchange, form: Form, has_moved_on: bool) -> bool {
        let unclear = exchange.unclear.iter().filter(|(_, other)| *other == form);
        let (places, late): (Vec<usize>, Vec<usize>) = unclear
            .map(|(place, _)| *place)
            .partition(|place| exchange.may_ask_again(*place, has_moved_on));
        for place in late {
            let why = "NOSCRIPT, and it is too late to ask again";
            let failure = Failure::unsent(FailureKind::Rejected).with_detail(why);
            exchange.answers[place].1 = Answer::Failed(failure);
            if let Some((_, (_, command))) = exchange.member(place) {
                self.scripts_to_send.add(command);
            }
        }
        if places.is_empty() {
            return false;
        }
        (exchange.places, exchange.form) = (places, form);
        (exchange.is_again, exchange.answered) = (true, 0);
        true
    }
}

/// Whether both texts share one allocation. Equal texts in two allocations count as different.
fn is_very_same(one: Option<&Arc<str>>, other: Option<&Arc<str>>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if Arc::ptr_eq(one, other))
}

#[cfg(test)]
mod tests;
