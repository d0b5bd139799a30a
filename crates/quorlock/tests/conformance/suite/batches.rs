//! Batches of commands: their order, their answers, and the node's pushes.

use quorlock::admin::now;
use quorlock_core::{Answer, Command, Holding, Key, ReleaseForm, Value};

use super::{LONG, acquire, extend, inspect, new_key, new_token, new_value, release, watch};
use crate::subject::Subject;

/// The commands of a batch take effect one after the other.
pub(super) async fn commands_of_a_batch_take_effect_in_order(subject: &Subject) {
    let (key, first, second) = (new_key("order"), new_value(), new_value());
    // Without `tell` the node need not read the key again to find out why it has not deleted the key.
    let (keys, value, form) =
        (key.clone().into(), second.clone(), ReleaseForm::Plain { tell: false });
    let not_ours = Command::Release { keys, value, form };
    let mut answers = subject
        .execute(vec![
            inspect(&key),
            acquire(&key, &first, LONG),
            acquire(&key, &second, LONG),
            not_ours,
            extend(&key, &first, LONG),
            release(&key, &first),
            extend(&key, &first, LONG),
            release(&key, &first),
            acquire(&key, &second, LONG),
            extend(&key, &first, LONG),
            release(&key, &second),
            inspect(&key),
        ])
        .await;
    let expected = [
        Answer::Seen(Holding::Free),
        Answer::Granted,
        Answer::Refused,
        Answer::NotOurs,
        Answer::Extended,
        Answer::Deleted,
        Answer::Absent,
        Answer::Absent,
        Answer::Granted,
        Answer::Other,
        Answer::Deleted,
        Answer::Seen(Holding::Free),
    ];
    if answers[3] == Answer::Other {
        answers[3] = Answer::NotOurs;
    }
    assert_eq!(answers, expected);
}

/// Batches take effect in the order in which they were given, whichever answer is awaited first.
pub(super) async fn batches_take_effect_in_the_order_given(subject: &Subject) {
    let key = new_key("batches");
    let mut given = Vec::new();
    for _ in 0..20 {
        let value = new_value();
        given.push((Answer::Granted, subject.give(vec![acquire(&key, &value, LONG)])));
        given.push((Answer::Deleted, subject.give(vec![release(&key, &value)])));
    }
    while let Some((expected, batch)) = given.pop() {
        let answers = batch.await.unwrap().answers;
        assert_eq!(answers, [expected], "{} batches before this", given.len());
    }
    assert!(!subject.outside.exists(&key));
}

/// Each command gets its own answer. A command that fails does not affect the others.
pub(super) async fn every_command_is_judged_by_itself(subject: &Subject) {
    let (list, key, value) = (new_key("list"), new_key("neighbour"), new_value());
    subject.outside.set_other_type(&list, None);
    let answers = subject
        .execute(vec![
            inspect(&list),
            acquire(&key, &value, LONG),
            release(&list, &value),
            extend(&key, &value, LONG),
            acquire(&list, &value, LONG),
            extend(&list, &value, LONG),
            inspect(&list),
            release(&key, &value),
        ])
        .await;
    let other_type = Answer::Seen(Holding::OtherType { ttl: None });
    let expected = [
        other_type.clone(),
        Answer::Granted,
        Answer::Other,
        Answer::Extended,
        Answer::Refused,
        Answer::Other,
        other_type,
        Answer::Deleted,
    ];
    assert_eq!(answers, expected);
    subject.outside.remove(&list);
}

/// The node answers every command, even if there are more than one batch can have.
pub(super) async fn large_batches_are_answered_in_full(subject: &Subject) {
    const LOCKS: usize = 700;
    let locks: Vec<(Key, Value)> =
        (0..LOCKS).map(|place| (new_key(&format!("large{place}")), new_value())).collect();
    let mut commands = Vec::new();
    commands.extend(locks.iter().map(|(key, value)| acquire(key, value, LONG)));
    commands.extend(locks.iter().map(|(key, value)| extend(key, value, LONG)));
    commands.extend(locks.iter().map(|(key, value)| release(key, value)));
    // These commands take several batches, and each has its own evidence.
    let answers = subject.give(commands).await.unwrap().answers;
    assert_eq!(answers.len(), 3 * LOCKS, "one answer for each command");
    for (place, answer) in answers.into_iter().enumerate() {
        let expected = [Answer::Granted, Answer::Extended, Answer::Deleted];
        assert_eq!(answer, expected[place / LOCKS], "command {place}");
    }
}

/// Keys and values are plain bytes: no byte ends them early or has a special meaning.
pub(super) async fn keys_and_values_may_be_odd(subject: &Subject) {
    let odd = [
        " ",
        "two words",
        "line\r\nbreak",
        "nul\0nul",
        "{braces}*?[a-z]",
        "\"quotes' \\ and $6",
        "Schloß 🔒 замо́к",
        "%s%n%d",
    ];
    let long = "x".repeat(64 * 1024);
    for odd in odd.into_iter().chain([long.as_str()]) {
        let key: Key = format!("{}{odd}", new_key("odd")).into();
        let value = Value::new(&new_token(), odd);
        assert_eq!(subject.ask(acquire(&key, &value, LONG)).await, Answer::Granted);
        assert_eq!(subject.outside.value(&key).as_deref(), Some(value.as_bytes()));
        assert_eq!(subject.ask(extend(&key, &value, LONG)).await, Answer::Extended);
        let cut = &value.as_bytes()[..value.as_bytes().len().min(Holding::VALUE_BYTES_MAX)];
        match subject.ask(inspect(&key)).await {
            Answer::Seen(Holding::Held { value, .. }) => assert_eq!(value, cut),
            other => panic!("{odd:?} is seen as {other:?}"),
        }
        assert_eq!(subject.ask(release(&key, &value)).await, Answer::Deleted);
        assert!(!subject.outside.exists(&key));
    }
}

/// `Watch` returns the state of the key, as `Inspect` does. A node that answers with [`Answer::Watched`] pushes once
/// when the key changes, whichever client changes it and in whatever way.
pub(super) async fn a_watched_key_is_pushed_when_it_changes(subject: &Subject) {
    let outside = &subject.outside;
    let see = async |key: &Key| match subject.ask(watch(key)).await {
        Answer::Watched(holding) => (holding, true),
        Answer::Seen(holding) => (holding, false),
        other => panic!("to watch {key} was answered with {other:?}"),
    };
    let (key, other) = (new_key("watched"), new_key("also watched"));
    let (holding, can_push) = see(&key).await;
    assert_eq!(holding, Holding::Free);
    if !can_push {
        return;
    }
    // Each of these changes causes one push: the key is set, gets an expiry, gets another value, is deleted.
    let changes: [&dyn Fn(&str); 4] = [
        &|key| outside.set(key, b"1", None),
        &|key| outside.set(key, b"1", Some(LONG)),
        &|key| outside.set(key, b"2", None),
        &|key| outside.remove(key),
    ];
    for change in changes {
        see(&key).await;
        see(&other).await;
        change(&key);
        assert_eq!(subject.next_push().await, *std::slice::from_ref(&key));
        // No command watches the key any more, so this change causes no push: the next push is about the other key.
        outside.set(&key, b"unasked", None);
        outside.set(&other, b"2", None);
        assert_eq!(subject.next_push().await, *std::slice::from_ref(&other), "pushed once");
    }
    // `Watch` also works in the middle of a batch, between two unrelated commands.
    outside.set(&key, b"held", Some(LONG));
    let batch = vec![inspect(&other), watch(&key), inspect(&other)];
    let answers = subject.execute(batch).await;
    assert!(
        matches!(&answers[1], Answer::Watched(Holding::Held { value, .. }) if value == b"held")
    );
    outside.set(&other, b"3", None);
    outside.remove(&key);
    assert_eq!(subject.next_push().await, *std::slice::from_ref(&key), "the other was not watched");
    outside.remove(&other);
}

/// The time of sending of an answered batch lies between the command and the answer.
pub(super) async fn a_batch_is_stamped_before_it_is_answered(subject: &Subject) {
    let key = new_key("stamped");
    for _ in 0..20 {
        let given_at = now();
        let answered = subject.give(vec![inspect(&key)]).await.unwrap();
        assert_eq!(answered.answers, [Answer::Seen(Holding::Free)]);
        let sent = answered.sent.boot();
        assert!(sent >= given_at.boot() && sent <= now().boot());
    }
}
