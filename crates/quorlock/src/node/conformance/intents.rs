//! Word of a writer that waits for readers, and a writer that becomes a reader.

use std::time::Duration;

use super::readers::{
    acquire_shared, downgrade, extend_shared, heal_shared, intents, is_read_by, is_shared_by,
    release_shared,
};
use super::subject::Subject;
use super::{
    LONG, STILL_LONG, acquire, extend, millis, new_keys, new_value, not_quite, release, see,
};
use crate::node::{Answer, Command, Holding, Keys, Value};

/// An intent keeps new readers out. Readers that are there stay.
pub async fn an_intent_keeps_new_readers_out(subject: &Subject) {
    let (keys, outside) = (new_keys("intent", 2), &subject.outside);
    let [reader, late, writer] = [new_value(), new_value(), new_value()];
    assert_eq!(subject.ask(acquire_shared(&keys, &reader, LONG)).await, Answer::Granted);
    for intent in &*intents(&keys) {
        let words: [&dyn Fn(); 3] = [
            &|| outside.set(intent, writer.as_bytes(), Some(LONG)),
            &|| outside.set(intent, b"", None),
            &|| outside.set_other_type(intent, None),
        ];
        for leave_word in words {
            leave_word();
            assert_eq!(subject.ask(acquire_shared(&keys, &late, LONG)).await, Answer::Refused);
            assert_eq!(subject.ask(extend_shared(&keys, &reader, LONG)).await, Answer::Extended);
            assert_eq!(subject.ask(heal_shared(&keys, &reader, LONG)).await, Answer::Granted);
            is_read_by(subject, &keys[0], &[(&reader, LONG)]);
            is_read_by(subject, &keys[1], &[(&reader, LONG)]);
            outside.remove(intent);
        }
        // One's own word is no other's.
        outside.set(intent, late.as_bytes(), Some(LONG));
        assert_eq!(subject.ask(acquire_shared(&keys, &late, LONG)).await, Answer::Granted);
        assert_eq!(subject.ask(release_shared(&keys, &late)).await, Answer::Deleted);
        outside.remove(intent);
    }
    // A lost vote is given again whatever is announced: its holder is no new one.
    let all = intents(&keys);
    assert_eq!(subject.ask(announce(&all, &writer, LONG)).await, Answer::Announced);
    assert_eq!(subject.ask(heal_shared(&keys, &late, LONG)).await, Answer::Granted);
    assert_eq!(subject.ask(release_shared(&keys, &late)).await, Answer::Deleted);
    assert_eq!(subject.ask(release_shared(&keys, &reader)).await, Answer::Deleted);
    assert_eq!(subject.ask(acquire_shared(&keys, &late, LONG)).await, Answer::Refused);
    // It keeps no writer out.
    assert_eq!(subject.ask(acquire(&keys, &late, LONG)).await, Answer::Granted);
    assert_eq!(subject.ask(release(&keys, &late)).await, Answer::Deleted);
    assert_eq!(subject.ask(withdraw(&all, &writer)).await, Answer::Announced);
    assert_eq!(subject.ask(acquire_shared(&keys, &late, LONG)).await, Answer::Granted);
    assert_eq!(subject.ask(release_shared(&keys, &late)).await, Answer::Deleted);
}

/// `Announce` sets what is absent or ours, and `Withdraw` deletes what is ours. Nothing of others is touched.
pub async fn an_intent_is_left_where_there_is_none_and_taken_back_where_it_is_ours(
    subject: &Subject,
) {
    let (keys, value, outside) = (new_keys("intent", 3), new_value(), &subject.outside);
    for ttl in [STILL_LONG, LONG] {
        assert_eq!(subject.ask(announce(&keys, &value, ttl)).await, Answer::Announced);
        for key in &*keys {
            assert_eq!(outside.value(key).as_deref(), Some(value.as_bytes()), "the whole value");
            assert!(outside.ttl(key).is_some_and(|left| left <= ttl && left > ttl / 2), "{ttl:?}");
        }
    }
    for other in not_quite(&value) {
        outside.set(&keys[0], &other, None);
        outside.remove(&keys[1]);
        outside.set_other_type(&keys[1], None);
        outside.remove(&keys[2]);
        assert_eq!(subject.ask(announce(&keys, &value, LONG)).await, Answer::Other);
        assert_eq!(outside.value(&keys[2]).as_deref(), Some(value.as_bytes()));
        assert_eq!(subject.ask(withdraw(&keys, &value)).await, Answer::Announced);
        assert_eq!(outside.value(&keys[0]), Some(other), "another's is left as it is");
        assert_eq!((outside.ttl(&keys[0]), outside.ttl(&keys[1])), (None, None));
        assert!(outside.exists(&keys[1]) && !outside.exists(&keys[2]));
    }
    keys.iter().for_each(|key| outside.remove(key));
    assert_eq!(subject.ask(withdraw(&keys, &value)).await, Answer::Announced, "also twice");
}

/// A look of who asks as a reader tells of an intent where readers hold the key, or nobody does.
pub async fn a_look_tells_readers_of_an_intent(subject: &Subject) {
    let (keys, outside) = (new_keys("told", 4), &subject.outside);
    let [reader, writer] = [new_value(), new_value()];
    let words = intents(&keys);
    let look = async |keys: &Keys, intents: Option<&Keys>, watches: bool| {
        let (keys, intents) = (keys.clone(), intents.cloned());
        let command = match watches {
            true => Command::Watch { keys, intents },
            false => Command::Inspect { keys, intents },
        };
        match subject.ask(command).await {
            Answer::Seen(holding) => (holding, false),
            Answer::Watched(holding) => (holding, true),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(look(&keys, Some(&words), false).await.0, Holding::Free);
    for key in &keys[..2] {
        let of_one = Keys::from(key.clone());
        assert_eq!(subject.ask(acquire_shared(&of_one, &reader, LONG)).await, Answer::Granted);
    }
    outside.set(&keys[3], b"held", Some(LONG));
    // Of the first key nothing is announced.
    for word in &words[1..] {
        outside.set(word, writer.as_bytes(), Some(LONG));
    }
    let is_announced = |holding: &Holding| {
        matches!(holding, Holding::Announced { value, ttl: Some(ttl) }
            if value == writer.as_bytes() && *ttl > STILL_LONG && *ttl <= LONG)
    };
    for watches in [false, true] {
        let (Holding::Several(each), _) = look(&keys, Some(&words), watches).await else {
            panic!("not all are free")
        };
        is_shared_by(&each[0], &[&reader]);
        assert!(is_announced(&each[1]) && is_announced(&each[2]), "{each:?}");
        assert!(matches!(&each[3], Holding::Held { value, .. } if value == b"held"), "{each:?}");
        // Who does not ask as a reader is not told.
        let (Holding::Several(each), _) = look(&keys, None, watches).await else {
            panic!("not all are free")
        };
        is_shared_by(&each[1], &[&reader]);
        assert_eq!(each[2], Holding::Free);
        for (place, key) in keys[..3].iter().enumerate() {
            let (key, word) = (key.clone().into(), words[place].clone().into());
            let (holding, _) = look(&key, Some(&word), watches).await;
            assert_eq!(is_announced(&holding), place > 0, "{holding:?}");
        }
    }
    // A change of the intent is spoken of, as one of the key is.
    for place in [1, 2] {
        let (key, word) = (keys[place].clone().into(), words[place].clone().into());
        for change in [&words[place], &keys[place]] {
            if look(&key, Some(&word), true).await.1 {
                outside.remove(change);
                outside.set(change, b"changed", Some(LONG));
                assert_eq!(subject.next_push().await, *std::slice::from_ref(change));
            }
        }
    }
    outside.remove(&keys[2]);
    outside.remove(&words[2]);
    outside.set_other_type(&words[2], None);
    let (key, word) = (keys[2].clone().into(), words[2].clone().into());
    let foreign = Holding::Announced { value: Vec::new(), ttl: None };
    assert_eq!(look(&key, Some(&word), false).await.0, foreign, "whatever it is");
    keys.iter().chain(&*words).for_each(|key| outside.remove(key));
}

/// `Downgrade` makes a reader of a writer, and changes nothing of when it ends.
pub async fn a_writer_becomes_a_reader_for_as_long_as_it_had(subject: &Subject) {
    let (keys, outside) = (new_keys("downgraded", 3), &subject.outside);
    let [value, other] = [new_value(), new_value()];
    for ttl in [LONG, Duration::from_millis(700)] {
        assert_eq!(subject.ask(acquire(&keys, &value, ttl)).await, Answer::Granted);
        // With one key that is a reader's already, as after an extension that came first.
        for _ in 0..2 {
            let before = outside.ttl(&keys[0]).expect("it expires");
            assert_eq!(subject.ask(downgrade(&keys, &value)).await, Answer::Downgraded);
            for key in &*keys {
                let members = outside.sorted_set(key);
                assert_eq!(members.len(), 1, "{members:?}");
                assert_eq!(members[0].0, value.as_bytes());
                let after = outside.ttl(key).expect("a reader ends");
                // The clocks of servers and tests are read one after the other.
                assert!(after <= before + Duration::from_millis(5), "{before:?}, then {after:?}");
                assert!(after + LONG / 8 > before, "{before:?}, then {after:?}");
            }
            outside.remove(&keys[1]);
            outside.set(&keys[1], value.as_bytes(), Some(before));
        }
        assert_eq!(subject.ask(downgrade(&keys, &value)).await, Answer::Downgraded);
        assert_eq!(subject.ask(acquire_shared(&keys, &other, LONG)).await, Answer::Granted);
        assert_eq!(subject.ask(downgrade(&keys, &value)).await, Answer::Downgraded, "also twice");
        assert_eq!(subject.ask(release_shared(&keys, &value)).await, Answer::Deleted);
        is_read_by(subject, &keys[2], &[(&other, LONG)]);
        assert_eq!(subject.ask(release_shared(&keys, &other)).await, Answer::Deleted);
        assert_eq!(see(subject, &keys).await, Holding::Free);
    }
}

/// `Downgrade` makes nothing of nothing, and nothing of what others hold.
pub async fn a_downgrade_needs_our_lock(subject: &Subject) {
    let (keys, outside) = (new_keys("not ours", 3), &subject.outside);
    let [value, other] = [new_value(), new_value()];
    assert_eq!(subject.ask(downgrade(&keys, &value)).await, Answer::Absent);
    assert_eq!(see(subject, &keys).await, Holding::Free);
    for place in 0..3 {
        for held in not_quite(&value) {
            let (this, next) = (&keys[place], &keys[(place + 1) % 3]);
            assert_eq!(subject.ask(acquire(&keys, &value, LONG)).await, Answer::Granted);
            outside.remove(this);
            assert_eq!(subject.ask(downgrade(&keys, &value)).await, Answer::Absent);
            assert!(!outside.exists(this), "nothing is made of nothing");
            outside.set(this, &held, Some(LONG));
            assert_eq!(subject.ask(downgrade(&keys, &value)).await, Answer::Other);
            assert_eq!(outside.value(this), Some(held));
            assert_eq!(outside.value(next).as_deref(), Some(value.as_bytes()), "all or none");
            outside.remove(this);
            // Readers without this one are not it.
            let of_one = Keys::from(this.clone());
            assert_eq!(subject.ask(acquire_shared(&of_one, &other, LONG)).await, Answer::Granted);
            assert_eq!(subject.ask(downgrade(&keys, &value)).await, Answer::Absent);
            assert_eq!(outside.value(next).as_deref(), Some(value.as_bytes()), "all or none");
            keys.iter().for_each(|key| outside.remove(key));
        }
    }
}

/// Whatever else is under way meets the lock before its downgrade or behind it, and finds it in both.
pub async fn what_meets_a_downgrade_finds_the_lock_all_the_same(subject: &Subject) {
    let outside = &subject.outside;
    for count in [1, 3] {
        let keys = new_keys("meets", count);
        let [value, other] = [new_value(), new_value()];
        let held = async || {
            keys.iter().for_each(|key| outside.remove(key));
            assert_eq!(subject.ask(acquire(&keys, &value, STILL_LONG)).await, Answer::Granted);
        };
        // Those of a reader come first: then it is one.
        let commands = [
            (extend_shared(&keys, &value, LONG), Answer::Extended),
            (heal_shared(&keys, &value, LONG), Answer::Granted),
        ];
        for (command, answer) in commands {
            held().await;
            assert_eq!(subject.ask(command.clone()).await, answer);
            keys.iter().for_each(|key| is_read_by(subject, key, &[(&value, LONG)]));
            assert_eq!(subject.ask(downgrade(&keys, &value)).await, Answer::Downgraded);
            keys.iter().for_each(|key| is_read_by(subject, key, &[(&value, LONG)]));
            // Never shorter than it was.
            keys.iter().for_each(|key| outside.remove(key));
            assert_eq!(subject.ask(acquire(&keys, &value, 2 * LONG)).await, Answer::Granted);
            assert_eq!(subject.ask(command).await, answer);
            keys.iter().for_each(|key| is_read_by(subject, key, &[(&value, 2 * LONG)]));
        }
        held().await;
        assert_eq!(subject.ask(release_shared(&keys, &value)).await, Answer::Deleted);
        assert_eq!(see(subject, &keys).await, Holding::Free);
        assert_eq!(subject.ask(downgrade(&keys, &value)).await, Answer::Absent);
        assert_eq!(see(subject, &keys).await, Holding::Free, "nothing is made of nothing");

        // Another reader is no writer's equal: it is refused until then.
        held().await;
        assert_eq!(subject.ask(acquire_shared(&keys, &other, LONG)).await, Answer::Refused);
        assert_eq!(subject.ask(downgrade(&keys, &value)).await, Answer::Downgraded);
        assert_eq!(subject.ask(acquire_shared(&keys, &other, LONG)).await, Answer::Granted);
        // Those of a writer come late: they find that it is one no more.
        let heal = Command::Heal { keys: keys.clone(), value: value.clone(), ttl_ms: 60_000 };
        assert_eq!(subject.ask(heal).await, Answer::Refused);
        assert_eq!(subject.ask(extend(&keys, &value, LONG)).await, Answer::Other);
        assert_eq!(subject.ask(release(&keys, &value)).await, Answer::Other);
        keys.iter().for_each(|key| assert_eq!(outside.sorted_set(key).len(), 2));
        keys.iter().for_each(|key| outside.remove(key));
    }
}

/// A writer's key that has lost its expiry is not made a reader's that never ends.
pub async fn a_key_without_expiry_gets_one_from_its_next_extension(subject: &Subject) {
    let (keys, outside) = (new_keys("eternal", 2), &subject.outside);
    let value = new_value();
    let commands = [
        (extend_shared(&keys, &value, LONG), Answer::Extended),
        (heal_shared(&keys, &value, LONG), Answer::Granted),
        (release_shared(&keys, &value), Answer::Deleted),
    ];
    for (command, answer) in commands {
        keys.iter().for_each(|key| outside.remove(key));
        outside.set(&keys[0], value.as_bytes(), None);
        outside.set(&keys[1], value.as_bytes(), Some(LONG));
        assert_eq!(subject.ask(downgrade(&keys, &value)).await, Answer::Downgraded);
        assert_eq!(outside.value(&keys[0]).as_deref(), Some(value.as_bytes()), "as it was");
        is_read_by(subject, &keys[1], &[(&value, LONG)]);
        assert_eq!(subject.ask(command).await, answer);
        if answer == Answer::Deleted {
            assert_eq!(see(subject, &keys).await, Holding::Free);
        } else {
            keys.iter().for_each(|key| is_read_by(subject, key, &[(&value, LONG)]));
        }
        keys.iter().for_each(|key| outside.remove(key));
    }
}

fn announce(intents: &Keys, value: &Value, ttl: Duration) -> Command {
    let (intents, value, ttl_ms) = (intents.clone(), value.clone(), millis(ttl));
    Command::Announce { intents, value, ttl_ms, renews: true }
}

fn withdraw(intents: &Keys, value: &Value) -> Command {
    Command::Withdraw { intents: intents.clone(), value: value.clone() }
}
