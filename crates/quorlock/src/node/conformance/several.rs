//! Locks with several keys: all of them, or none.

use super::fences::Fenced;
use super::subject::Subject;
use super::{
    LONG, STILL_LONG, acquire, extend, inspect, new_key, new_keys, new_value, not_quite, release,
    see, watch,
};
use crate::node::{Answer, Command, Counter, Failure, FailureKind, Holding, Key, Keys, Value};

/// `Acquire` sets all keys, or none if any is there, whatever it is.
pub async fn several_keys_are_granted_together_or_not_at_all(subject: &Subject) {
    let outside = &subject.outside;
    for count in [2, Keys::MAX] {
        let (keys, value) = (new_keys("granted", count), new_value());
        assert_eq!(subject.ask(acquire(&keys, &value, LONG)).await, Answer::Granted);
        for key in &*keys {
            assert_eq!(outside.value(key).as_deref(), Some(value.as_bytes()), "the whole value");
            assert!(outside.ttl(key).is_some_and(|ttl| ttl > STILL_LONG && ttl <= LONG));
        }
        assert_eq!(subject.ask(release(&keys, &value)).await, Answer::Deleted);
        assert_gone(subject, &keys);
    }

    let (keys, value) = (new_keys("refused", 3), new_value());
    for taken in &*keys {
        let of_value = |held: &[u8]| outside.set(taken, held, Some(STILL_LONG));
        let traps: [&dyn Fn(); 3] = [
            &|| of_value(b"somebody"),
            // Even by the same value: a token is used once.
            &|| of_value(value.as_bytes()),
            &|| outside.set_other_type(taken, Some(STILL_LONG)),
        ];
        for trap in traps {
            trap();
            let before = outside.value(taken);
            assert_eq!(subject.ask(acquire(&keys, &value, LONG)).await, Answer::Refused);
            assert_eq!(outside.value(taken), before);
            assert!(
                outside.ttl(taken).is_some_and(|ttl| ttl <= STILL_LONG),
                "its ttl is as before"
            );
            outside.remove(taken);
            assert_gone(subject, &keys);
        }
    }
}

/// Locks that have one key in common exclude each other, and those with single keys as well.
pub async fn overlapping_sets_of_keys_exclude_each_other(subject: &Subject) {
    let names = new_keys("overlap", 3);
    let [first, second] = [[0, 1], [1, 2]].map(|places| of_these(&names, &places));
    let (one, other) = (new_value(), new_value());
    let single = acquire(&names[1], &other, LONG);
    assert_eq!(subject.ask(acquire(&first, &one, LONG)).await, Answer::Granted);
    assert_eq!(subject.ask(acquire(&second, &other, LONG)).await, Answer::Refused);
    assert_eq!(subject.ask(single.clone()).await, Answer::Refused);
    assert!(!subject.outside.exists(&names[2]), "nothing was written");
    assert_eq!(subject.ask(release(&first, &one)).await, Answer::Deleted);
    assert_eq!(subject.ask(single).await, Answer::Granted);
    assert_eq!(subject.ask(acquire(&first, &one, LONG)).await, Answer::Refused);
    assert_eq!(subject.ask(acquire(&second, &one, LONG)).await, Answer::Refused);
    subject.outside.remove(&names[1]);
    assert_gone(subject, &names);
}

/// `Extend` extends all keys if all are ours; otherwise it changes nothing.
pub async fn several_keys_are_extended_together_or_not_at_all(subject: &Subject) {
    let (keys, value, outside) = (new_keys("extended", 3), new_value(), &subject.outside);
    for place in 0..keys.len() {
        // One is to live longer than it is extended for, and one has lost its expiry.
        hold(subject, &keys, &value, STILL_LONG);
        outside.set(&keys[place], value.as_bytes(), Some(2 * LONG));
        outside.set(&keys[(place + 1) % 3], value.as_bytes(), None);
        assert_eq!(subject.ask(extend(&keys, &value, LONG)).await, Answer::Extended);
        for (nth, key) in keys.iter().enumerate() {
            let least = if nth == place { LONG } else { STILL_LONG };
            assert!(outside.ttl(key).is_some_and(|ttl| ttl > least), "{nth}, {place}");
        }

        hold(subject, &keys, &value, STILL_LONG);
        outside.remove(&keys[place]);
        assert_eq!(subject.ask(extend(&keys, &value, LONG)).await, Answer::Absent);
        assert!(!outside.exists(&keys[place]), "it must not bring a lost key back to life");
        are_as_short_as_before(subject, &keys);
        // What is another's weighs more than what is gone, wherever it is.
        let next = &keys[(place + 1) % 3];
        for other in not_quite(&value) {
            outside.set(next, &other, Some(STILL_LONG));
            assert_eq!(subject.ask(extend(&keys, &value, LONG)).await, Answer::Other);
            are_as_short_as_before(subject, &keys);
        }
        outside.remove(next);
        outside.set_other_type(next, Some(STILL_LONG));
        assert_eq!(subject.ask(extend(&keys, &value, LONG)).await, Answer::Other);
        are_as_short_as_before(subject, &keys);
    }
    remove(subject, &keys);
}

/// `Heal` completes what is ours, and does nothing if any key is another's. A single key must be absent.
pub async fn a_heal_completes_the_keys_or_does_nothing(subject: &Subject) {
    let (keys, value, outside) = (new_keys("healed", 3), new_value(), &subject.outside);
    for missing in [&[0, 1, 2][..], &[0], &[1, 2], &[2], &[]] {
        hold(subject, &keys, &value, STILL_LONG);
        outside.set(&keys[0], value.as_bytes(), Some(2 * LONG));
        missing.iter().for_each(|place| outside.remove(&keys[*place]));
        assert_eq!(subject.ask(heal(&keys, &value)).await, Answer::Granted, "{missing:?}");
        for (place, key) in keys.iter().enumerate() {
            assert_eq!(outside.value(key).as_deref(), Some(value.as_bytes()));
            let least = if place == 0 && missing.first() != Some(&0) { LONG } else { STILL_LONG };
            assert!(outside.ttl(key).is_some_and(|ttl| ttl > least), "never shorter");
        }
    }
    for place in 0..keys.len() {
        hold(subject, &keys, &value, STILL_LONG);
        outside.remove(&keys[(place + 1) % 3]);
        let traps: [&dyn Fn(); 2] =
            [&|| outside.set(&keys[place], b"somebody", Some(STILL_LONG)), &|| {
                outside.set_other_type(&keys[place], Some(STILL_LONG))
            }];
        for trap in traps {
            outside.remove(&keys[place]);
            trap();
            assert_eq!(subject.ask(heal(&keys, &value)).await, Answer::Refused);
            assert!(!outside.exists(&keys[(place + 1) % 3]), "nothing was written");
            are_as_short_as_before(subject, &keys);
        }
        outside.remove(&keys[place]);
    }
    remove(subject, &keys);

    let single: Keys = new_key("healed").into();
    assert_eq!(subject.ask(heal(&single, &value)).await, Answer::Granted);
    assert!(outside.ttl(&single[0]).is_some_and(|ttl| ttl > STILL_LONG && ttl <= LONG));
    assert_eq!(subject.ask(heal(&single, &value)).await, Answer::Refused);
    remove(subject, &single);
}

/// `Release` deletes those keys that are ours, and says whether all were.
pub async fn a_release_deletes_those_of_the_keys_that_are_ours(subject: &Subject) {
    let (keys, value, outside) = (new_keys("released", 3), new_value(), &subject.outside);
    let tell_not = Command::Release { keys: keys.clone(), value: value.clone(), tell: false };
    assert_eq!(subject.ask(release(&keys, &value)).await, Answer::Absent);
    for place in 0..keys.len() {
        let (this, next) = (&keys[place], &keys[(place + 1) % 3]);
        hold(subject, &keys, &value, LONG);
        outside.remove(this);
        assert_eq!(subject.ask(release(&keys, &value)).await, Answer::Absent);
        assert_gone(subject, &keys);

        hold(subject, &keys, &value, LONG);
        outside.remove(this);
        outside.set(next, b"somebody", None);
        assert_eq!(subject.ask(release(&keys, &value)).await, Answer::Other);
        assert_eq!(outside.value(next).as_deref(), Some(&b"somebody"[..]));
        outside.remove(next);
        assert_gone(subject, &keys);

        hold(subject, &keys, &value, LONG);
        outside.remove(this);
        outside.set_other_type(this, None);
        let answer = subject.ask(tell_not.clone()).await;
        assert!(matches!(answer, Answer::Other | Answer::NotOurs), "{answer:?}");
        assert!(outside.exists(this));
        outside.remove(this);
        assert_gone(subject, &keys);
    }
}

/// `Inspect` tells of each key what it holds, in the order of the keys; of several that are free, that all are.
pub async fn an_inspection_tells_what_each_key_holds(subject: &Subject) {
    let (keys, outside) = (new_keys("inspected", 4), &subject.outside);
    assert_eq!(see(subject, &keys).await, Holding::Free);
    outside.set(&keys[1], b"eternal", None);
    let long = vec![0xff; 3 * Holding::VALUE_BYTES_MAX];
    outside.set(&keys[2], &long, None);
    outside.set_other_type(&keys[3], None);
    let expected = vec![
        Holding::Free,
        Holding::Held { value: b"eternal".to_vec(), ttl: None },
        Holding::Held { value: long[..Holding::VALUE_BYTES_MAX].to_vec(), ttl: None },
        Holding::OtherType { ttl: None },
    ];
    assert_eq!(see(subject, &keys).await, Holding::Several(expected));
    remove(subject, &keys);

    // As large as it gets, and many of them together: each is answered, or has failed. Nothing else does.
    let keys = new_keys("inspected", Keys::MAX);
    keys.iter().for_each(|key| outside.set(key, &long, Some(LONG)));
    let answers = subject.execute(vec![inspect(&keys); 512]).await;
    assert_eq!(answers.len(), 512);
    assert!(matches!(&answers[0], Answer::Seen(Holding::Several(each)) if each.len() == Keys::MAX));
    for answer in answers {
        match answer {
            Answer::Seen(Holding::Several(each)) => {
                assert!(each.iter().all(|holding| matches!(holding, Holding::Held { .. })));
            }
            Answer::Failed(failure) => assert_eq!(failure.kind(), FailureKind::Rejected),
            other => panic!("{other:?}"),
        }
    }
    remove(subject, &keys);
    assert_eq!(see(subject, &keys).await, Holding::Free);
}

/// A client that watches several keys hears when one of them changes.
pub async fn each_of_several_watched_keys_is_spoken_of(subject: &Subject) {
    let (keys, outside) = (new_keys("watched", 3), &subject.outside);
    outside.set(&keys[1], b"held", Some(LONG));
    match subject.ask(watch(&keys)).await {
        Answer::Watched(Holding::Several(each)) => assert_eq!(each.len(), keys.len()),
        Answer::Seen(Holding::Several(_)) => return remove(subject, &keys),
        other => panic!("to watch was answered with {other:?}"),
    }
    for key in &*keys {
        outside.set(key, b"changed", Some(LONG));
        assert_eq!(subject.next_push().await, *std::slice::from_ref(key));
        outside.set(key, b"unasked", Some(LONG));
    }
    assert!(matches!(subject.ask(watch(&keys)).await, Answer::Watched(_)));
    remove(subject, &keys);
    assert!(subject.pushes(&keys).await, "each is told");
}

/// `AcquireFenced` of several keys sets all counters to one number, above all that they were.
pub async fn a_fenced_grant_sets_all_counters_to_one_number(subject: &Subject) {
    let (names, outside) = (new_keys("fenced", 3), &subject.outside);
    let lock = Fenced::of(names.clone());
    assert_eq!(subject.ask(lock.acquire(0)).await, Answer::GrantedFenced { fence: 1 });
    assert_eq!(lock.counters(subject), vec![Some("1".to_owned()); 3]);
    for key in &*names {
        assert_eq!(outside.value(key).as_deref(), Some(lock.value.as_bytes()));
        assert!(outside.ttl(key).is_some_and(|ttl| ttl > STILL_LONG && ttl <= LONG));
    }
    // The keys of others are counted on beside these.
    let single = Fenced::of(names[1].clone().into());
    let pair = Fenced::of(of_these(&names, &[0, 1]));
    match subject.ask(pair.acquire(1 << 50)).await {
        Answer::RefusedFenced { fence: 1, holding } => {
            assert_eq!(holding.each().len(), 2);
            let is_ours = |value: &[u8]| value == lock.value.as_bytes();
            let held = |it: &Holding| matches!(it, Holding::Held { value, .. } if is_ours(value));
            assert!(holding.each().iter().all(held), "{holding:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(subject.ask(release(&names, &lock.value)).await, Answer::Deleted);
    assert_eq!(subject.ask(single.acquire(0)).await, Answer::GrantedFenced { fence: 2 });
    match subject.ask(lock.acquire(0)).await {
        Answer::RefusedFenced { fence: 2, holding } => {
            let [Holding::Free, Holding::Held { .. }, Holding::Free] = holding.each() else {
                panic!("{holding:?}")
            };
        }
        other => panic!("the largest counter is 2: {other:?}"),
    }
    assert_eq!(subject.ask(release(&single.keys, &single.value)).await, Answer::Deleted);
    assert_eq!(subject.ask(single.acquire(9)).await, Answer::GrantedFenced { fence: 9 });
    assert_eq!(subject.ask(release(&single.keys, &single.value)).await, Answer::Deleted);
    assert_eq!(subject.ask(pair.acquire(4)).await, Answer::GrantedFenced { fence: 10 });
    assert_eq!(subject.ask(release(&pair.keys, &pair.value)).await, Answer::Deleted);
    assert_eq!(lock.counters(subject), ["10", "10", "1"].map(|it| Some(it.to_owned())));
    assert_eq!(subject.ask(lock.acquire(12)).await, Answer::GrantedFenced { fence: 12 });
    assert_eq!(lock.counters(subject), vec![Some("12".to_owned()); 3]);
    for counter in &*lock.counter.keys {
        assert!(
            outside.ttl(counter).is_some(),
            "a counter that does not expire would stay for ever"
        );
    }
    [lock, single, pair].iter().for_each(|lock| lock.remove(subject));
}

/// `Raise`, `HealFenced` and `ExtendFenced` of several keys do all or nothing.
pub async fn fences_of_several_keys_move_together_or_not_at_all(subject: &Subject) {
    let (keys, outside) = (new_keys("raised", 3), &subject.outside);
    let lock = Fenced::of(keys.clone());
    let count = |counters: [&str; 3]| {
        for (key, digits) in lock.counter.keys.iter().zip(counters) {
            outside.set(key, digits.as_bytes(), None);
        }
    };
    let counters = || lock.counters(subject).into_iter().flatten().collect::<Vec<String>>();
    for place in 0..keys.len() {
        hold(subject, &keys, &lock.value, LONG);
        count(["3", "7", "5"]);
        assert_eq!(subject.ask(lock.raise(7)).await, Answer::Raised { fence: 7 });
        assert_eq!(counters(), ["7", "7", "7"]);
        count(["3", "8", "5"]);
        assert_eq!(subject.ask(lock.raise(7)).await, Answer::Raised { fence: 8 });
        assert_eq!(counters(), ["3", "8", "5"], "one is above: nothing was written");

        count(["1", "2", "3"]);
        outside.remove(&keys[place]);
        assert_eq!(subject.ask(lock.raise(7)).await, Answer::Absent);
        outside.set(&keys[(place + 1) % 3], b"somebody", None);
        assert_eq!(subject.ask(lock.raise(7)).await, Answer::Other);
        assert_eq!(subject.ask(lock.heal(7)).await, Answer::Refused);
        assert_eq!(counters(), ["1", "2", "3"]);

        outside.remove(&keys[(place + 1) % 3]);
        count(["8", "9", "3"]);
        assert_eq!(subject.ask(lock.heal(7)).await, Answer::Superseded { fence: 9 });
        assert_eq!(counters(), ["8", "9", "3"]);
        assert!(!outside.exists(&keys[place]), "nothing was written");
        count(["7", "2", "3"]);
        assert_eq!(subject.ask(lock.heal(7)).await, Answer::GrantedFenced { fence: 7 });
        assert_eq!(counters(), ["7", "7", "7"]);
        for key in &*keys {
            assert_eq!(outside.value(key).as_deref(), Some(lock.value.as_bytes()));
            assert!(outside.ttl(key).is_some_and(|ttl| ttl > STILL_LONG && ttl <= LONG));
        }
        let counted: &[Key] = &lock.counter.keys;
        assert!(counted.iter().all(|key| outside.ttl(key).is_some()), "and they expire again");
    }
    // An extension keeps all counters alive.
    count(["7", "7", "7"]);
    assert_eq!(subject.ask(lock.extend()).await, Answer::Extended);
    assert!(lock.counter.keys.iter().all(|key| outside.ttl(key).is_some()));
    lock.remove(subject);
}

/// A counter that is no number refuses the whole set.
pub async fn a_corrupt_counter_refuses_all_the_keys(subject: &Subject) {
    let (keys, outside) = (new_keys("corrupt", 3), &subject.outside);
    let lock = Fenced::of(keys.clone());
    for (place, counter) in lock.counter.keys.iter().enumerate() {
        for corrupt in ["x", "-1"] {
            remove(subject, &lock.counter.keys);
            outside.set(counter, corrupt.as_bytes(), None);
            rejected(subject.ask(lock.acquire(0)).await);
            rejected(subject.ask(lock.heal(7)).await);
            assert_gone(subject, &keys);
            hold(subject, &keys, &lock.value, LONG);
            rejected(subject.ask(lock.raise(7)).await);
            remove(subject, &keys);
            let left = lock.counters(subject).into_iter().enumerate();
            let left: Vec<(usize, String)> =
                left.filter_map(|(place, counter)| Some((place, counter?))).collect();
            assert_eq!(left, [(place, corrupt.to_owned())], "it is left as it is");
        }
    }
    remove(subject, &lock.counter.keys);
    // Nor does any number reach the limit.
    lock.count(subject, &(Counter::LIMIT - 1).to_string());
    rejected(subject.ask(lock.acquire(0)).await);
    assert_gone(subject, &keys);
    lock.remove(subject);
}

fn rejected(answer: Answer) -> Failure {
    match answer {
        Answer::Failed(failure) if failure.kind() == FailureKind::Rejected => failure,
        other => panic!("with a corrupt counter it was answered with {other:?}"),
    }
}

fn heal(keys: &Keys, value: &Value) -> Command {
    Command::Heal { keys: keys.clone(), value: value.clone(), ttl_ms: super::millis(LONG) }
}

/// Those of the keys that are at these places.
fn of_these(keys: &Keys, places: &[usize]) -> Keys {
    Keys::new(places.iter().map(|place| keys[*place].clone())).expect("some")
}

/// Sets all keys, past the node.
fn hold(subject: &Subject, keys: &Keys, value: &Value, ttl: std::time::Duration) {
    keys.iter().for_each(|key| subject.outside.remove(key));
    keys.iter().for_each(|key| subject.outside.set(key, value.as_bytes(), Some(ttl)));
}

fn remove(subject: &Subject, keys: &Keys) {
    keys.iter().for_each(|key| subject.outside.remove(key));
}

fn assert_gone(subject: &Subject, keys: &Keys) {
    assert!(keys.iter().all(|key| !subject.outside.exists(key)), "nothing is there");
}

/// Nothing has been extended that had half of its time left.
fn are_as_short_as_before(subject: &Subject, keys: &Keys) {
    let is_short = |key: &Key| subject.outside.ttl(key).is_none_or(|ttl| ttl <= STILL_LONG);
    assert!(keys.iter().all(is_short), "nothing was changed");
}
