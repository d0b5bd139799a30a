//! The meaning of each command about fencing tokens, several keys, readers and markers.

use std::sync::Arc;

use quorlock_core::info::Info;
use quorlock_core::marker::Adoption;
use quorlock_core::{
    AcquireForm, Adopted, Answer, Command, Counter, Evidence, ExtendForm, FailureKind, HealForm,
    Holding, Keys, Mode, ReleaseForm, TakenFrom, Value,
};

use super::{KEPT, LONG, acquire, extend, inspect, millis, new_key, new_keys, new_value, release};
use crate::subject::{Answered, Subject};

/// Executes the commands one after the other, and checks each answer.
async fn in_turn(subject: &Subject, steps: Vec<(Command, Answer)>) {
    for (command, expected) in steps {
        assert_eq!(subject.ask(command.clone()).await, expected, "{command:?}");
    }
}

/// A fencing token increases with every grant and every `Raise`, and never decreases. It begins at the floor, the
/// smallest token that the node's marker allows.
pub(super) async fn fences_go_up(subject: &Subject) {
    let (keys, value, outside) = (Keys::from(new_key("fenced")), new_value(), &subject.outside);
    let counter =
        Counter { keys: new_key("counter").into(), ttl_ms: millis(KEPT), marker: new_key("floor") };
    let count = || String::from_utf8(outside.value(&counter.keys[0]).expect("it counts"));
    let both = |value: &Value| (keys.clone(), value.clone(), counter.clone());
    let raise = |value: &Value, to| {
        let (keys, value, counter) = both(value);
        Command::Raise { keys, value, counter, to }
    };
    let heal = |to| {
        let (keys, value, counter) = both(&value);
        Command::Heal { keys, value, ttl_ms: millis(LONG), form: HealForm::Fenced { counter, to } }
    };
    let acquire = |proposal| {
        let (keys, value, counter) = both(&value);
        let form = AcquireForm::Fenced { counter, proposal };
        Command::Acquire { keys, value, ttl_ms: millis(LONG), form }
    };
    let (all, fenced, prolonged) = both(&value);
    let form = ExtendForm::Fenced { counter: prolonged };
    let extend = Command::Extend { keys: all, value: fenced, ttl_ms: millis(2 * LONG), form };
    let mut steps = vec![
        (raise(&value, 9), Answer::Absent),
        (acquire(0), Answer::GrantedFenced { fence: 1 }),
        (raise(&new_value(), 9), Answer::Other),
        (raise(&value, 9), Answer::Raised { fence: 9 }),
        (raise(&value, 3), Answer::Raised { fence: 9 }),
        (extend, Answer::Extended),
        (heal(9), Answer::Refused),
    ];
    in_turn(subject, std::mem::take(&mut steps)).await;
    assert!(outside.ttl(&keys[0]).is_some_and(|ttl| ttl > LONG), "it was extended");
    assert!(outside.ttl(&counter.keys[0]).is_some_and(|ttl| ttl > KEPT / 2 && ttl <= KEPT));
    match subject.ask(acquire(1 << 50)).await {
        Answer::RefusedFenced { fence: 9, holding } => {
            assert!(
                matches!(*holding, Holding::Held { value: held, .. } if held == value.as_bytes())
            );
        }
        other => panic!("{other:?}"),
    }
    steps = vec![
        (release(&keys, &value), Answer::Deleted),
        (heal(8), Answer::Superseded { fence: 9 }),
        (heal(9), Answer::GrantedFenced { fence: 9 }),
        (release(&keys, &value), Answer::Deleted),
        (acquire(20), Answer::GrantedFenced { fence: 20 }),
        (release(&keys, &value), Answer::Deleted),
    ];
    in_turn(subject, steps).await;
    outside.set(&counter.marker, b"any text floor=100", None);
    in_turn(subject, vec![(acquire(0), Answer::GrantedFenced { fence: 100 })]).await;
    assert_eq!(count().as_deref(), Ok("100"));
    outside.remove(&keys[0]);
    // A counter that cannot be increased gives out no fencing token.
    for odd in ["x", "-1", &(Counter::LIMIT - 1).to_string()] {
        outside.set(&counter.keys[0], odd.as_bytes(), None);
        match subject.ask(acquire(0)).await {
            Answer::Failed(failure) => assert_eq!(failure.kind(), FailureKind::Rejected, "{odd}"),
            other => panic!("{odd}: {other:?}"),
        }
        assert_eq!(count().as_deref(), Ok(odd), "it is left as it is");
    }
    outside.remove(&counter.keys[0]);
    outside.remove(&counter.marker);
}

/// Several keys are granted, extended and healed (set again after a loss) together or not at all. A release deletes the
/// keys that hold its value.
pub(super) async fn several_keys_are_one_lock(subject: &Subject) {
    let (names, outside) = (new_keys("several", 3), &subject.outside);
    let of = |places: [usize; 2]| Keys::new(places.map(|place| names[place].clone()));
    let [Some(first), Some(second)] = [of([0, 1]), of([1, 2])] else { panic!("two each") };
    let [one, other] = [new_value(), new_value()];
    let heal = |value: &Value| {
        let (keys, value) = (first.clone(), value.clone());
        Command::Heal { keys, value, ttl_ms: millis(LONG), form: HealForm::Plain }
    };
    let steps = vec![
        (acquire(&first, &one, LONG), Answer::Granted),
        (acquire(&second, &other, LONG), Answer::Refused),
        (inspect(&names[2]), Answer::Seen(Holding::Free)),
        (heal(&other), Answer::Refused),
        (extend(&first, &one, LONG), Answer::Extended),
        (release(&names[0], &one), Answer::Deleted),
        (extend(&first, &one, LONG), Answer::Absent),
        (heal(&one), Answer::Granted),
        (release(&first, &one), Answer::Deleted),
        (acquire(&second, &other, LONG), Answer::Granted),
        (heal(&one), Answer::Refused),
        (extend(&first, &one, LONG), Answer::Other),
        (release(&first, &one), Answer::Other),
    ];
    in_turn(subject, steps).await;
    match subject.ask(inspect(&names)).await {
        Answer::Seen(Holding::Several(each)) => {
            let [Holding::Free, Holding::Held { .. }, Holding::Held { .. }] = &*each else {
                panic!("{each:?}")
            };
        }
        other => panic!("{other:?}"),
    }
    names.iter().for_each(|key| outside.remove(key));
}

/// Readers share keys and keep writers out. A writer can become a reader. A waiting writer's intent, which is a key of
/// its own, keeps new readers out.
pub(super) async fn readers_share_and_writers_exclude(subject: &Subject) {
    let keys = new_keys("shared", 2);
    let intents = keys.map(|key| format!("{key}:intent").into());
    let [one, other, late] = [new_value(), new_value(), new_value()];
    let ttl_ms = millis(LONG);
    let shared = |value: &Value| {
        let (keys, intents, value) = (keys.clone(), intents.clone(), value.clone());
        Command::Acquire { keys, value, ttl_ms, form: AcquireForm::Shared { intents } }
    };
    let heal = |value: &Value| {
        let (keys, value) = (keys.clone(), value.clone());
        Command::Heal { keys, value, ttl_ms, form: HealForm::Shared }
    };
    let prolong = |value: &Value| {
        let (keys, value) = (keys.clone(), value.clone());
        Command::Extend { keys, value, ttl_ms: 2 * ttl_ms, form: ExtendForm::Shared }
    };
    let leave = |value: &Value| {
        let (keys, value) = (keys.clone(), value.clone());
        Command::Release { keys, value, form: ReleaseForm::Shared }
    };
    let downgrade = |value: &Value| Command::Downgrade { keys: keys.clone(), value: value.clone() };
    let announce = |value: &Value| {
        let (intents, value) = (intents.clone(), value.clone());
        Command::Announce { intents, value, ttl_ms, renews: true }
    };
    let withdraw =
        |value: &Value| Command::Withdraw { intents: intents.clone(), value: value.clone() };
    let steps = vec![
        (shared(&one), Answer::Granted),
        (shared(&other), Answer::Granted),
        (acquire(&keys, &late, LONG), Answer::Refused),
        (extend(&keys, &one, LONG), Answer::Other),
        (release(&keys, &one), Answer::Other),
        (prolong(&one), Answer::Extended),
        (prolong(&late), Answer::Absent),
        (announce(&late), Answer::Announced),
        (shared(&new_value()), Answer::Refused),
        (leave(&other), Answer::Deleted),
        (leave(&other), Answer::Absent),
        // A reader that has lost a vote gets it back in spite of an intent, because this reader is not new.
        (heal(&other), Answer::Granted),
        (leave(&other), Answer::Deleted),
        (leave(&one), Answer::Deleted),
        // An intent does not keep writers out.
        (acquire(&keys, &late, LONG), Answer::Granted),
        (withdraw(&late), Answer::Announced),
        (shared(&one), Answer::Refused),
        (downgrade(&one), Answer::Other),
        (downgrade(&late), Answer::Downgraded),
        (extend(&keys, &late, LONG), Answer::Other),
        (shared(&one), Answer::Granted),
        (leave(&late), Answer::Deleted),
        (downgrade(&late), Answer::Absent),
        (leave(&one), Answer::Deleted),
        (acquire(&keys, &late, LONG), Answer::Granted),
        (leave(&late), Answer::Deleted),
        (inspect(&keys), Answer::Seen(Holding::Free)),
    ];
    in_turn(subject, steps).await;
    match subject.execute(vec![shared(&one), shared(&one)]).await.as_slice() {
        [Answer::Granted, Answer::Failed(failure)] => {
            assert_eq!(failure.kind(), FailureKind::SameServer);
        }
        other => panic!("the second comes by another name of the same server: {other:?}"),
    }
    let look = Command::Inspect { keys: keys.clone(), intents: Some(intents.clone()) };
    match subject.execute(vec![look.clone(), announce(&late), look]).await.as_slice() {
        [
            Answer::Seen(Holding::Several(read)),
            Answer::Announced,
            Answer::Seen(Holding::Several(each)),
        ] => {
            let is_one = |it: &Holding| matches!(it, Holding::Shared { readers, count: 1, .. } if readers[0].value == one.as_bytes());
            assert!(read.iter().all(is_one), "{read:?}");
            let is_late = |it: &Holding| matches!(it, Holding::Announced { value, .. } if value == late.as_bytes());
            assert!(each.iter().all(is_late), "{each:?}");
        }
        other => panic!("{other:?}"),
    }
    in_turn(subject, vec![(leave(&one), Answer::Deleted), (withdraw(&late), Answer::Announced)])
        .await;
}

/// A lock is taken over under all its keys or none. A takeover replaces the value, so nobody else can take the lock
/// over with the old value until the lock is given back.
pub(super) async fn a_lock_is_taken_over_once_and_given_back(subject: &Subject) {
    let keys = new_keys("attached", 2);
    let [old, new, other] = [new_value(), new_value(), new_value()];
    let attach = |mode: Mode, from: &Value, value: &Value| {
        let (keys, from, value, form) = (keys.clone(), from.clone(), value.clone(), mode.into());
        Command::Attach { keys, from, value, ttl_ms: millis(2 * LONG), form }
    };
    let give_back = |mode| {
        let (keys, value, to) = (keys.clone(), new.clone(), old.clone());
        Command::GiveBack { keys, mode, value, to }
    };
    let (writer, reader) = (Mode::Exclusive, Mode::Shared);
    let downgrade = Command::Downgrade { keys: keys.clone(), value: old.clone() };
    let leave =
        Command::Release { keys: keys.clone(), value: other.clone(), form: ReleaseForm::Shared };
    let steps = vec![
        (attach(writer, &old, &new), Answer::Absent),
        (acquire(&keys, &old, LONG), Answer::Granted),
        (attach(writer, &old, &new), Answer::Granted),
        (attach(writer, &old, &other), Answer::Other),
        (give_back(writer), Answer::Deleted),
        (give_back(writer), Answer::Other),
        (attach(writer, &old, &new), Answer::Granted),
        (give_back(writer), Answer::Deleted),
        (downgrade, Answer::Downgraded),
        (attach(writer, &old, &new), Answer::Other),
        (attach(reader, &old, &new), Answer::Granted),
        (attach(reader, &old, &other), Answer::Absent),
        (give_back(reader), Answer::Deleted),
        (attach(reader, &old, &other), Answer::Granted),
        (leave, Answer::Deleted),
        (inspect(&keys), Answer::Seen(Holding::Free)),
    ];
    in_turn(subject, steps).await;
}

/// A lock with the caller's value belongs to one attempt, whose nonce is under a second key. Another attempt with an
/// equal value is refused, and its extension or release by nonce changes nothing.
pub(super) async fn a_lock_with_the_callers_value_has_a_nonce(subject: &Subject) {
    let (key, nonce_key, value) = (new_key("taken"), new_key("nonce"), new_value());
    let (ours, late) = (Value::of_caller(b"ours"), Value::of_caller(b"late"));
    let ttl_ms = millis(LONG);
    let parts = |nonce: &Value, by_value| {
        let (value, nonce_key) = (value.clone(), nonce_key.clone());
        (Keys::from(key.clone()), nonce.clone(), Arc::new(TakenFrom { value, nonce_key, by_value }))
    };
    let take = |nonce: &Value| {
        let (keys, value, from) = parts(nonce, false);
        Command::Acquire { keys, value, ttl_ms, form: AcquireForm::Taken(from) }
    };
    let extend = |nonce: &Value, by_value| {
        let (keys, value, from) = parts(nonce, by_value);
        Command::Extend { keys, value, ttl_ms: 2 * ttl_ms, form: ExtendForm::Taken(from) }
    };
    let release = |nonce: &Value, by_value| {
        let (keys, value, from) = parts(nonce, by_value);
        Command::Release { keys, value, form: ReleaseForm::Taken(from) }
    };
    let steps = vec![
        (release(&ours, false), Answer::Absent),
        (take(&ours), Answer::Granted),
        (take(&late), Answer::Refused),
        (release(&late, false), Answer::Other),
        (extend(&late, false), Answer::Other),
        (extend(&ours, false), Answer::Extended),
        // An extension by value needs no nonce. It replaces the stored nonce by its own.
        (extend(&late, true), Answer::Extended),
        (release(&ours, false), Answer::Other),
        (release(&late, false), Answer::Deleted),
        (take(&ours), Answer::Granted),
        (release(&late, true), Answer::Deleted),
    ];
    in_turn(subject, steps).await;
    assert!(subject.outside.value(&nonce_key).is_none(), "the nonce goes with the lock");
}

/// A node that can be restarted answers `Identify` with its `INFO` and its marker, the key that shows that no data was
/// lost. The position of the command in the batch does not matter. A node that cannot lose votes may omit both.
pub(super) async fn a_node_that_is_greeted_proves_itself(subject: &Subject) {
    let key = new_key("greeted");
    for marker in [None, Some("a marker")] {
        if let Some(text) = marker {
            subject.outside.set(&subject.marker, text.as_bytes(), None);
        }
        let batch = vec![inspect(&key), Command::Identify, inspect(&key)];
        let Answered { answers, evidence, .. } = subject.execute_and_prove(batch).await;
        let free = Answer::Seen(Holding::Free);
        assert_eq!(answers, [free.clone(), Answer::Identified, free]);
        if let Evidence::Seen { info, .. } = evidence {
            let info = info.expect("it was greeted").expect("it says what it is");
            let info = Info::parse(&info).expect("all that matters");
            assert!(!info.run_id.is_empty() && info.is_master && !info.is_loading);
        }
        // A batch about votes gets the marker even if the batch has no `Identify`.
        let value = new_value();
        let batch = vec![acquire(&key, &value, LONG), release(&key, &value)];
        assert_eq!(subject.execute(batch).await, [Answer::Granted, Answer::Deleted]);
        assert_eq!(subject.ask(inspect(&key)).await, Answer::Seen(Holding::Free));
    }
    subject.outside.remove(&subject.marker);
}

/// `Adopt` removes the marker, writes the adoption (a key that records when the node's wait began) unless there is one,
/// and returns its age. `Mark` replaces only the expected marker, and only if the adoption is old enough.
pub(super) async fn a_marker_waits_for_its_adoption(subject: &Subject) {
    let (marker, adoption, outside) = (new_key("marker"), new_key("adoption"), &subject.outside);
    let mark = |text: &str, replaces: Option<&str>, adopted: Option<&str>| Command::Mark {
        key: marker.clone(),
        text: text.into(),
        replaces: replaces.map(Into::into),
        adoption: adopted.map(|text| Adopted {
            key: adoption.clone(),
            text: text.into(),
            age_ms: millis(LONG),
        }),
    };
    let adopt = async |text: &str, seen: Option<&str>| {
        let (key, text, seen) = (adoption.clone(), text.into(), seen.map(Into::into));
        let replaces = Some("replaced".into());
        subject.ask(Command::Adopt { key, text, replaces, marker: marker.clone(), seen }).await
    };
    let steps = vec![
        (mark("new", Some("old"), None), Answer::NotMarked),
        (mark("new", None, None), Answer::Marked),
        (mark("newer", None, None), Answer::NotMarked),
        (mark("newer", Some("new"), None), Answer::Marked),
    ];
    in_turn(subject, steps).await;
    assert_eq!(outside.value(&marker).as_deref(), Some(&b"newer"[..]));
    assert_eq!(outside.ttl(&marker), None, "it has no time to live");
    assert_eq!(adopt("first", Some("new")).await, Answer::NotMarked);
    let Answer::Adopting { text: first, age } = adopt("first", Some("newer")).await else {
        panic!("the marker was seen")
    };
    // The node appends its wall-clock time to the text of an adoption.
    let since = first.strip_prefix("first since=").and_then(|since| since.parse::<u64>().ok());
    assert!(since.is_some() && age < LONG && !outside.exists(&marker), "{first}");
    match adopt("second", None).await {
        Answer::Adopting { text, .. } => assert_eq!(text, first, "it is written once"),
        other => panic!("{other:?}"),
    }
    let life = std::time::Duration::from_millis(Adoption::TTL_MS);
    in_turn(subject, vec![(mark("marked", None, Some(&first)), Answer::NotMarked)]).await;
    outside.set(&adoption, first.as_bytes(), Some(life - 2 * LONG));
    let steps = vec![
        (mark("marked", None, Some("another")), Answer::NotMarked),
        (mark("marked", None, Some(&first)), Answer::Marked),
    ];
    in_turn(subject, steps).await;
    assert!(outside.exists(&marker) && !outside.exists(&adoption), "it has served");
    outside.remove(&marker);
    outside.set(&adoption, b"replaced", Some(life - 2 * LONG));
    match adopt("third", None).await {
        Answer::Adopting { text, age } => assert!(text.starts_with("third") && age < LONG),
        other => panic!("{other:?}"),
    }
    outside.remove(&adoption);
}
