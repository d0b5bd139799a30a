use alloc::vec;

use super::*;
use crate::command::{AcquireForm, Counter, ExtendForm, ReleaseForm};
use crate::keys::Keys;
use crate::token::{Key, Token, Value};

fn value(token: u8) -> Value {
    Value::new(&Token::new([token; 20]), "")
}

/// The acquire of a lock with two keys, by a script that the greeting loads.
fn acquire(token: u8) -> Command {
    let keys = Keys::new(["k", "l"].map(Key::from)).expect("two keys");
    Command::Acquire { keys, value: value(token), ttl_ms: 1000, form: AcquireForm::Plain }
}

fn fenced(token: u8) -> Command {
    let counter = Counter { keys: "c".into(), ttl_ms: 1000, marker: "m".into() };
    let (keys, value) = ("k".into(), value(token));
    let form = AcquireForm::Fenced { counter, proposal: 0 };
    Command::Acquire { keys, value, ttl_ms: 1000, form }
}

fn release(token: u8) -> Command {
    let form = ReleaseForm::Plain { tell: true };
    Command::Release { keys: "k".into(), value: value(token), form }
}

/// Sends an exchange with these commands, and takes these answers.
fn sent(
    session: &mut Session,
    commands: impl Into<Vec<Command>>,
    answers: impl IntoIterator<Item = Result<Answer, Form>>,
) -> Exchange {
    let mut exchange = Exchange::new(BatchId(0), commands.into());
    session.prepare(&mut exchange);
    answers.into_iter().for_each(|answer| exchange.answer(answer));
    assert!(exchange.awaited().is_none());
    exchange
}

fn outcome(exchange: &mut Exchange) -> Vec<Answer> {
    exchange.take().0.into_iter().map(|(_, answer)| answer).collect()
}

/// Whether the first command is repeated after its script was unknown. With `moves_on`, another exchange is sent first.
fn is_asked_again(commands: &[Command], moves_on: bool) -> bool {
    let mut session = Session::new(false);
    let mut answers = vec![Ok(Answer::Deleted); commands.len()];
    answers[0] = Err(Form::Text);
    let mut exchange = sent(&mut session, commands, answers);
    if moves_on {
        sent(&mut session, [release(9)], [Ok(Answer::Deleted)]);
    }
    let again = session.end_sending(&mut exchange, Evidence::NotRequired);
    assert!(
        !again
            || exchange.to_send().map(|(_, command)| command).eq([&commands[0]])
                && exchange.form() == Form::Text
    );
    again
}

#[test]
fn an_acquire_is_not_repeated_behind_its_release() {
    let (keys, form) = ("k".into(), ExtendForm::Plain);
    let extend = Command::Extend { keys, value: value(1), ttl_ms: 1000, form };
    assert!(is_asked_again(&[acquire(1), release(2)], false));
    assert!(!is_asked_again(&[acquire(1), release(2)], true), "another exchange was sent");
    assert!(!is_asked_again(&[acquire(1), release(1)], false));
    assert!(!is_asked_again(&[acquire(1), extend.clone()], false), "the extension was executed");
    assert!(is_asked_again(&[extend, release(1)], true), "an extension sets no key");
}

/// A repeated withdrawal would delete the new intent, so the node would admit readers until the writer renews it.
#[test]
fn a_withdrawal_is_not_repeated_behind_a_later_announcement() {
    let intents = || Keys::from("i");
    let announce = |token| Command::Announce {
        intents: intents(),
        value: value(token),
        ttl_ms: 1,
        renews: true,
    };
    let withdraw = |token| Command::Withdraw { intents: intents(), value: value(token) };
    assert!(!is_asked_again(&[withdraw(1), announce(1)], false));
    assert!(!is_asked_again(&[withdraw(1)], true), "another exchange was sent");
    assert!(is_asked_again(&[withdraw(1), announce(2)], false));
}

#[test]
fn an_unchanged_marker_is_shared_within_a_connection() {
    let read = |session: &mut Session, said: &[u8]| {
        let mut exchange = sent(session, [acquire(1)], [Ok(Answer::Granted)]);
        let marker = exchange.marker(said);
        let evidence = Evidence::Seen {
            epoch: 1,
            flushes: 0,
            info: None,
            marker: marker.clone(),
            acknowledged: None,
        };
        session.end_sending(&mut exchange, evidence);
        let MarkerSeen::Text(text) = marker else { panic!("the marker is a text") };
        text
    };
    let session = &mut Session::new(true);
    let first = read(session, b"one");
    assert_eq!(&*first, "one");
    assert!(Arc::ptr_eq(&first, &read(session, b"one")));
    for other in ["two", "on", "ones", "", "one"] {
        let text = read(session, other.as_bytes());
        assert!(&*text == other && !Arc::ptr_eq(&first, &text));
    }
    assert_eq!(&*read(session, b"\xff"), "\u{fffd}", "the text is only shown");
    assert!(!Arc::ptr_eq(&read(session, b"one"), &read(&mut Session::new(true), b"one")));
}

#[test]
fn the_next_command_of_a_kind_carries_the_missing_script() {
    let session = &mut Session::new(false);
    let mut late = sent(session, [acquire(1)], [Err(Form::Text)]);
    sent(session, [release(9)], [Ok(Answer::Deleted)]);
    assert!(!session.end_sending(&mut late, Evidence::NotRequired), "a repetition comes too late");
    let [Answer::Failed(failure)] = &outcome(&mut late)[..] else {
        panic!("the script was not run")
    };
    assert!(!failure.may_have_been_executed());
    let form = |session: &mut Session, commands: &[Command]| {
        let mut exchange = Exchange::new(BatchId(0), commands.to_vec());
        session.prepare(&mut exchange);
        exchange.form()
    };
    assert_eq!(form(session, &[release(1)]), Form::Usual, "a release does not carry this script");
    assert_eq!(form(session, &[release(1), acquire(2)]), Form::Text);
    assert_eq!(form(session, &[acquire(3)]), Form::Usual, "the script was sent");
}

/// The handshake does not load the script of readers, so the first reader on a connection carries its text. Otherwise
/// the node could answer that it does not know the script. A release of the same lock may have been sent by then, and
/// after it the reader's command must not be sent again.
#[test]
fn the_first_reader_on_a_connection_carries_its_script() {
    let session = &mut Session::new(false);
    let reader = |token: u8| {
        let (keys, intents) = ("k".into(), "i".into());
        let form = AcquireForm::Shared { intents };
        Command::Acquire { keys, value: value(token), ttl_ms: 1000, form }
    };
    let form = |session: &mut Session, command: Command| {
        let mut exchange = Exchange::new(BatchId(0), vec![command]);
        session.prepare(&mut exchange);
        exchange.form()
    };
    assert_eq!(form(session, acquire(1)), Form::Usual);
    assert_eq!(form(session, reader(2)), Form::Text);
    assert_eq!(form(session, reader(3)), Form::Usual);
    assert_eq!(form(&mut Session::new(false), reader(4)), Form::Text, "another connection");
    assert_eq!(
        form(session, fenced(5)),
        Form::Text,
        "this script is long, so it is not in the greeting"
    );
    assert_eq!(form(session, fenced(6)), Form::Usual);
}

#[test]
fn a_repeated_command_uses_a_longer_form_each_time() {
    let session = &mut Session::new(false);
    let answers = [Err(Form::Script), Ok(Answer::Deleted), Err(Form::Script)];
    let mut it = sent(session, [release(1), release(2), release(3)], answers);
    assert!(session.end_sending(&mut it, Evidence::NotRequired));
    session.prepare(&mut it);
    assert_eq!((it.form(), it.places()), (Form::Script, &[0, 2][..]));
    it.answer(Ok(Answer::Other));
    it.answer(Err(Form::Text));
    assert!(session.end_sending(&mut it, Evidence::NotRequired));
    session.prepare(&mut it);
    assert_eq!((it.form(), it.places()), (Form::Text, &[2][..]));
    it.fail(&Failure::new(FailureKind::Unreachable));
    assert!(!session.end_sending(&mut it, Evidence::NotRequired));
    let failed = Answer::Failed(Failure::new(FailureKind::Unreachable));
    assert_eq!(outcome(&mut it), [Answer::Other, Answer::Deleted, failed]);
}

#[test]
fn a_release_reports_not_ours_even_if_its_repetition_fails() {
    let session = &mut Session::new(false);
    let mut it = sent(session, [release(1)], [Err(Form::Script)]);
    assert!(session.end_sending(&mut it, Evidence::NotRequired));
    session.prepare(&mut it);
    it.fail(&Failure::new(FailureKind::Unreachable));
    assert!(!session.end_sending(&mut it, Evidence::NotRequired));
    assert_eq!(outcome(&mut it), [Answer::NotOurs]);
}

#[test]
fn an_inspection_whose_repetition_fails_has_failed() {
    let session = &mut Session::new(false);
    let look = Command::Inspect { keys: "k".into(), intents: None };
    let mut it = sent(session, [look], [Err(Form::Script)]);
    assert!(session.end_sending(&mut it, Evidence::NotRequired));
    session.prepare(&mut it);
    let failure = Failure::new(FailureKind::Unreachable);
    it.fail(&failure);
    assert!(!session.end_sending(&mut it, Evidence::NotRequired));
    assert_eq!(outcome(&mut it), [Answer::Failed(failure)]);
}

/// The repetition of the first release meets an unknown script, and then the connection fails. Both releases report
/// what the first sending has shown: the key is not theirs.
#[test]
fn a_failed_repetition_is_not_repeated_again() {
    let session = &mut Session::new(false);
    let answers = [Err(Form::Script), Err(Form::Script)];
    let mut it = sent(session, [release(1), release(2)], answers);
    assert!(session.end_sending(&mut it, Evidence::NotRequired));
    session.prepare(&mut it);
    it.answer(Err(Form::Text));
    it.fail(&Failure::new(FailureKind::Unreachable));
    it.answer(Ok(Answer::Deleted));
    assert!(!session.end_sending(&mut it, Evidence::NotRequired));
    assert_eq!(outcome(&mut it), [Answer::NotOurs, Answer::NotOurs]);
}

#[test]
fn votes_request_the_marker_and_a_new_connection_requests_info() {
    let request = |session: &mut Session, command: Command| {
        let mut exchange = Exchange::new(BatchId(0), vec![command]);
        session.prepare(&mut exchange);
        let EvidenceRequest { info, marker, .. } = exchange.evidence_request();
        (info, marker)
    };
    let session = &mut Session::new(true);
    assert_eq!(request(session, release(1)), (true, true), "the first");
    assert_eq!(request(session, release(1)), (false, false));
    assert_eq!(request(session, acquire(1)), (false, true));
    assert_eq!(request(session, Command::Identify), (true, true));
    assert_eq!(request(&mut Session::new(false), acquire(1)), (false, false), "the guard is off");
    let greeted = &mut Session::new(true);
    greeted.identify(&MarkerSeen::Text("m".into()));
    assert!(greeted.has_marker());
    assert_eq!(request(greeted, acquire(1)), (false, true), "the greeting has read INFO");
}

#[test]
fn votes_of_a_node_with_replicas_request_their_acknowledgement() {
    let session = &mut Session::new(true).replicated(true);
    let mut request = |command: Command| {
        let mut exchange = Exchange::new(BatchId(0), vec![command]);
        session.prepare(&mut exchange);
        exchange.evidence_request().acknowledgement
    };
    assert!(request(acquire(1)));
    assert!(!request(release(1)), "a release is no vote");
    assert!(!request(Command::Identify));
}
