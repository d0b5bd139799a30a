//! Readers: who shares a key, for how long, and what keeps them out.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::subject::Subject;
use super::votes::ROUNDING;
use super::{
    KEPT, LONG, STILL_LONG, acquire, extend, millis, new_key, new_keys, new_value, not_quite,
    release, see, watch,
};
use crate::node::{Answer, Command, Counter, FailureKind, Holding, Key, Keys, Value};

/// A ttl whose end the test waits for.
const SHORT: Duration = Duration::from_millis(150);

/// Readers share a key, and it expires with the last of them. Nobody else gets it meanwhile.
pub async fn readers_share_a_key_and_keep_writers_out(subject: &Subject) {
    let (keys, outside) = (new_keys("shared", 1), &subject.outside);
    let [first, second, writer] = [new_value(), new_value(), new_value()];
    assert_eq!(subject.ask(acquire_shared(&keys, &first, 2 * LONG)).await, Answer::Granted);
    assert_eq!(subject.ask(acquire_shared(&keys, &second, LONG)).await, Answer::Granted);
    is_read_by(subject, &keys[0], &[(&second, LONG), (&first, 2 * LONG)]);

    let counter =
        Counter { keys: new_key("fence").into(), ttl_ms: millis(KEPT), marker: new_key("m") };
    let (fenced, value) = (counter.clone(), writer.clone());
    let fenced = Command::AcquireFenced {
        keys: keys.clone(),
        value,
        ttl_ms: millis(LONG),
        counter: fenced,
        proposal: 7,
    };
    match subject.ask(fenced).await {
        Answer::RefusedFenced { fence: 0, holding } => is_shared_by(&holding, &[&second, &first]),
        other => panic!("{other:?}"),
    }
    let heal = Command::Heal { keys: keys.clone(), value: writer.clone(), ttl_ms: 1 };
    assert_eq!(subject.ask(acquire(&keys, &writer, LONG)).await, Answer::Refused);
    assert_eq!(subject.ask(heal).await, Answer::Refused);
    // Nor has anybody a writer's vote, with whichever value.
    for value in [&writer, &first] {
        assert_eq!(subject.ask(extend(&keys, value, LONG)).await, Answer::Other);
        assert_eq!(subject.ask(release(&keys, value)).await, Answer::Other);
        let (keys, value, counter) = (keys.clone(), value.clone(), counter.clone());
        let raise = Command::Raise { keys, value, counter, to: 3 };
        assert_eq!(subject.ask(raise).await, Answer::Other);
    }
    is_read_by(subject, &keys[0], &[(&second, LONG), (&first, 2 * LONG)]);
    is_shared_by(&see(subject, &keys).await, &[&second, &first]);
    outside.remove(&keys[0]);
    assert_eq!(see(subject, &keys).await, Holding::Free);
}

/// `ReleaseShared` takes one reader, and the key then expires with the last of the others.
pub async fn a_key_expires_with_the_last_reader_that_is_left(subject: &Subject) {
    let (keys, outside) = (new_keys("left", 1), &subject.outside);
    let values = [new_value(), new_value(), new_value()];
    let ttls = [LONG / 2, LONG, 2 * LONG];
    let all = [0, 1, 2];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        for place in all {
            let reader = acquire_shared(&keys, &values[place], ttls[place]);
            assert_eq!(subject.ask(reader).await, Answer::Granted);
        }
        let mut left = all.to_vec();
        for place in order {
            let taken = subject.ask(release_shared(&keys, &values[place])).await;
            assert_eq!(taken, Answer::Deleted);
            left.retain(|other| *other != place);
            let others: Vec<_> = left.iter().map(|it| (&values[*it], ttls[*it])).collect();
            is_read_by(subject, &keys[0], &others);
            let again = subject.ask(release_shared(&keys, &values[place])).await;
            assert_eq!(again, Answer::Absent);
        }
        assert!(!outside.exists(&keys[0]), "with the last reader the key is gone");
        assert_eq!(subject.ask(acquire(&keys, &values[0], LONG)).await, Answer::Granted);
        assert_eq!(subject.ask(release(&keys, &values[0])).await, Answer::Deleted);
    }
}

/// A reader that is heard of no more keeps writers out for its own ttl, not less, and no longer.
pub async fn a_reader_that_crashed_keeps_writers_out_for_its_own_ttl(subject: &Subject) {
    let (keys, outside) = (new_keys("crashed", 1), &subject.outside);
    let [crashed, other, writer] = [new_value(), new_value(), new_value()];
    // One that would have kept them out for longer has left, one that has come since is at its end.
    assert_eq!(subject.ask(acquire_shared(&keys, &other, LONG)).await, Answer::Granted);
    let started = Instant::now();
    assert_eq!(subject.ask(acquire_shared(&keys, &crashed, SHORT)).await, Answer::Granted);
    assert_eq!(subject.ask(release_shared(&keys, &other)).await, Answer::Deleted);
    assert_eq!(subject.ask(acquire_shared(&keys, &other, SHORT / 10)).await, Answer::Granted);
    while subject.ask(acquire(&keys, &writer, LONG)).await != Answer::Granted {
        assert!(started.elapsed() < STILL_LONG, "a reader with a ttl of {SHORT:?} is still there");
        sleep(Duration::from_millis(5)).await;
    }
    let lived = started.elapsed();
    assert!(lived + ROUNDING >= SHORT, "it was to live for {SHORT:?}, and lived for {lived:?}");
    outside.remove(&keys[0]);
}

/// Of a reader that has ended nothing is left that counts, while others keep the key.
pub async fn a_reader_that_has_ended_counts_no_more(subject: &Subject) {
    let (keys, outside) = (new_keys("ended", 1), &subject.outside);
    let [ended, other, late] = [new_value(), new_value(), new_value()];
    let begin = async || {
        assert_eq!(subject.ask(acquire_shared(&keys, &ended, SHORT / 10)).await, Answer::Granted);
        assert_eq!(subject.ask(acquire_shared(&keys, &other, LONG)).await, Answer::Granted);
        sleep(SHORT).await;
    };
    begin().await;
    is_shared_by(&see(subject, &keys).await, &[&other]);
    assert_eq!(subject.ask(extend_shared(&keys, &ended, LONG)).await, Answer::Absent);
    assert_eq!(subject.ask(downgrade(&keys, &ended)).await, Answer::Absent);
    assert_eq!(subject.ask(release_shared(&keys, &ended)).await, Answer::Absent);
    is_shared_by(&see(subject, &keys).await, &[&other]);
    // The one that counts goes, and so does the key.
    assert_eq!(subject.ask(release_shared(&keys, &other)).await, Answer::Deleted);
    assert!(!outside.exists(&keys[0]));

    begin().await;
    assert_eq!(subject.ask(acquire_shared(&keys, &late, LONG / 2)).await, Answer::Granted);
    is_read_by(subject, &keys[0], &[(&late, LONG / 2), (&other, LONG)]);
    outside.remove(&keys[0]);
    // It may be given its vote again, as one that was lost otherwise.
    begin().await;
    assert_eq!(subject.ask(heal_shared(&keys, &ended, 2 * LONG)).await, Answer::Granted);
    is_read_by(subject, &keys[0], &[(&other, LONG), (&ended, 2 * LONG)]);
    outside.remove(&keys[0]);
}

/// `ExtendShared` lets a reader count for the ttl from now, never shorter than it would, and brings none back.
pub async fn an_extension_of_a_reader_lengthens_and_never_shortens(subject: &Subject) {
    let (keys, outside) = (new_keys("extended", 1), &subject.outside);
    let [value, other] = [new_value(), new_value()];
    assert_eq!(subject.ask(extend_shared(&keys, &value, LONG)).await, Answer::Absent);
    assert!(!outside.exists(&keys[0]));
    assert_eq!(subject.ask(acquire_shared(&keys, &other, 2 * LONG)).await, Answer::Granted);
    assert_eq!(subject.ask(extend_shared(&keys, &value, LONG)).await, Answer::Absent);
    is_read_by(subject, &keys[0], &[(&other, 2 * LONG)]);
    assert_eq!(subject.ask(acquire_shared(&keys, &value, LONG / 2)).await, Answer::Granted);
    for (ttl, expected) in [(LONG, LONG), (SHORT, LONG), (3 * LONG, 3 * LONG), (SHORT, 3 * LONG)] {
        assert_eq!(subject.ask(extend_shared(&keys, &value, ttl)).await, Answer::Extended);
        let mut all = [(&value, expected), (&other, 2 * LONG)];
        all.sort_by_key(|(_, ttl)| *ttl);
        is_read_by(subject, &keys[0], &all);
    }
    outside.remove(&keys[0]);
}

/// `HealShared` gives a vote again, and raises one that is there.
pub async fn a_heal_gives_a_reader_its_vote_again(subject: &Subject) {
    let (keys, outside) = (new_keys("healed", 1), &subject.outside);
    let [value, other] = [new_value(), new_value()];
    assert_eq!(subject.ask(heal_shared(&keys, &value, LONG)).await, Answer::Granted);
    is_read_by(subject, &keys[0], &[(&value, LONG)]);
    for (ttl, expected) in [(2 * LONG, 2 * LONG), (SHORT, 2 * LONG)] {
        assert_eq!(subject.ask(heal_shared(&keys, &value, ttl)).await, Answer::Granted);
        is_read_by(subject, &keys[0], &[(&value, expected)]);
    }
    assert_eq!(subject.ask(heal_shared(&keys, &other, LONG)).await, Answer::Granted);
    is_read_by(subject, &keys[0], &[(&other, LONG), (&value, 2 * LONG)]);
    outside.remove(&keys[0]);
}

/// `AcquireShared` with a value that is there already tells that one server has two names.
pub async fn a_reader_that_is_there_already_was_added_by_another_name(subject: &Subject) {
    let (keys, outside) = (new_keys("twice", 2), &subject.outside);
    let (value, single) = (new_value(), Keys::from(keys[1].clone()));
    assert_eq!(subject.ask(acquire_shared(&single, &value, LONG)).await, Answer::Granted);
    for asked in [&single, &keys] {
        match subject.ask(acquire_shared(asked, &value, 2 * LONG)).await {
            Answer::Failed(failure) => assert_eq!(failure.kind(), FailureKind::SameServer),
            other => panic!("{other:?}"),
        }
    }
    assert!(!outside.exists(&keys[0]), "nothing was written");
    is_read_by(subject, &keys[1], &[(&value, LONG)]);
    outside.remove(&keys[1]);
}

/// A key that another writer holds, or anything that is no shared lock, is refused by every command and left as it
/// is: other programs have sorted sets as well.
pub async fn readers_touch_nothing_of_others(subject: &Subject) {
    let (keys, outside) = (new_keys("foreign", 1), &subject.outside);
    let (key, value) = (&keys[0], new_value());
    let second = Duration::from_secs(1);
    let member: &[u8] = value.as_bytes();
    for other in not_quite(&value) {
        outside.set(key, &other, Some(STILL_LONG));
        refuses_readers(subject, &keys, &value).await;
        assert_eq!(outside.value(key), Some(other));
        assert!(outside.ttl(key).is_some_and(|ttl| ttl <= STILL_LONG), "its ttl is as before");
        outside.remove(key);
    }
    for ttl in [None, Some(STILL_LONG)] {
        outside.set_other_type(key, ttl);
        refuses_readers(subject, &keys, &value).await;
        assert_eq!(outside.ttl(key).is_some(), ttl.is_some(), "its ttl is as before");
        outside.remove(key);
        // One that does not expire, one that expires before its last member, and one that does after it.
        for ends in [STILL_LONG - second, STILL_LONG + second] {
            outside.set_sorted_set(key, &[(b"other", second), (member, ends)], ttl);
            refuses_readers(subject, &keys, &value).await;
            let members = outside.sorted_set(key);
            assert_eq!(members.len(), 2, "{members:?}");
            assert!(members[1].0 == member && members[1].1 <= ends, "{members:?}");
            match (outside.ttl(key), see(subject, &keys).await) {
                (None, Holding::OtherType { ttl: None }) => assert_eq!(ttl, None),
                (Some(left), Holding::OtherType { ttl: Some(_) }) => {
                    assert!(Some(left) <= ttl, "its ttl is as before");
                }
                other => panic!("{other:?}"),
            }
            outside.remove(key);
        }
    }
    // One that does expire with its last member is a shared lock, whoever has made it.
    outside.set_sorted_set(key, &[(b"other", second), (b"last", LONG)], Some(LONG));
    assert_eq!(subject.ask(acquire_shared(&keys, &value, 2 * LONG)).await, Answer::Granted);
    assert_eq!(outside.sorted_set(key).len(), 3);
    outside.remove(key);
}

/// More than a thousand readers have no place under one key.
pub async fn a_key_has_so_many_readers_and_no_more(subject: &Subject) {
    let (keys, outside) = (new_keys("many", 1), &subject.outside);
    let values: Vec<Value> = (0..1024).map(|_| new_value()).collect();
    let commands = values.iter().map(|value| acquire_shared(&keys, value, LONG)).collect();
    assert_eq!(subject.execute(commands).await, vec![Answer::Granted; 1024]);
    let late = new_value();
    assert_eq!(subject.ask(acquire_shared(&keys, &late, LONG)).await, Answer::Refused);
    assert_eq!(subject.ask(heal_shared(&keys, &late, LONG)).await, Answer::Refused);
    assert_eq!(subject.ask(heal_shared(&keys, &values[0], LONG)).await, Answer::Granted);
    assert_eq!(subject.ask(extend_shared(&keys, &values[1], 2 * LONG)).await, Answer::Extended);
    assert_eq!(outside.sorted_set(&keys[0]).len(), 1024);
    // Of so many, some are told: the last of them.
    match see(subject, &keys).await {
        Holding::Shared { readers, count, .. } => {
            assert_eq!((readers.len(), count), (Holding::READERS_MAX, 1024));
            assert!(readers.is_sorted_by_key(|reader| reader.ttl));
            assert_eq!(readers[readers.len() - 1].value, values[1].as_bytes(), "it ends last");
        }
        other => panic!("{other:?}"),
    }
    // Many looks at them are each answered, or have failed. Nothing else does.
    let look = Command::Inspect { keys: keys.clone(), intents: Some(intents(&keys)) };
    for answer in subject.execute(vec![look; 512]).await {
        match answer {
            Answer::Seen(Holding::Shared { count: 1024, .. }) => {}
            Answer::Failed(failure) => assert_eq!(failure.kind(), FailureKind::Rejected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(subject.ask(release_shared(&keys, &values[2])).await, Answer::Deleted);
    assert_eq!(subject.ask(acquire_shared(&keys, &late, LONG)).await, Answer::Granted);
    outside.remove(&keys[0]);
}

/// However many readers have however long values under however many keys: a look is answered.
pub async fn a_look_at_all_that_there_may_be_is_answered(subject: &Subject) {
    let (keys, outside) = (new_keys("looked at", Keys::MAX), &subject.outside);
    let members: Vec<Vec<u8>> = (b'a'..b'q').map(|byte| vec![byte; 300]).collect();
    let members: Vec<(&[u8], Duration)> = members.iter().map(|it| (&**it, LONG)).collect();
    keys.iter().for_each(|key| outside.set_sorted_set(key, &members, Some(LONG)));
    let Holding::Several(each) = see(subject, &keys).await else { panic!("all are held") };
    assert_eq!(each.len(), Keys::MAX);
    for holding in each {
        match holding {
            Holding::Shared { readers, count: 16, .. } => assert!(!readers.is_empty()),
            other => panic!("{other:?}"),
        }
    }
    remove(subject, &keys);
    let long = vec![b'x'; 3 * Holding::VALUE_BYTES_MAX];
    outside.set_sorted_set(&keys[0], &[(&long, LONG)], Some(LONG));
    match see(subject, &keys[0].clone().into()).await {
        Holding::Shared { readers, .. } => {
            assert_eq!(readers[0].value, long[..Holding::VALUE_BYTES_MAX], "long values are cut");
        }
        other => panic!("{other:?}"),
    }
    remove(subject, &keys);
}

/// Commands of a reader with several keys are carried out on all of them, or on none.
pub async fn a_reader_has_all_of_its_keys_or_none(subject: &Subject) {
    let (keys, outside) = (new_keys("several", 3), &subject.outside);
    let [value, other] = [new_value(), new_value()];
    let (middle, all) = (Keys::from(keys[1].clone()), Keys::MAX);
    assert_eq!(subject.ask(acquire_shared(&middle, &other, LONG)).await, Answer::Granted);
    assert_eq!(subject.ask(acquire_shared(&keys, &value, LONG)).await, Answer::Granted);
    match see(subject, &keys).await {
        Holding::Several(each) => {
            is_shared_by(&each[0], &[&value]);
            let Holding::Shared { count: 2, .. } = each[1] else { panic!("{each:?}") };
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(subject.ask(extend_shared(&keys, &value, 2 * LONG)).await, Answer::Extended);
    for key in &*keys {
        assert!(outside.ttl(key).is_some_and(|ttl| ttl > LONG && ttl <= 2 * LONG));
    }
    for foreign in &*keys {
        remove(subject, &keys);
        assert_eq!(subject.ask(heal_shared(&keys, &value, LONG)).await, Answer::Granted);
        outside.remove(foreign);
        assert_eq!(subject.ask(extend_shared(&keys, &value, 2 * LONG)).await, Answer::Absent);
        assert_eq!(subject.ask(downgrade(&keys, &value)).await, Answer::Absent);
        assert!(!outside.exists(foreign), "it is not brought back to life");
        are_no_longer_than(subject, &keys, LONG);
        outside.set(foreign, b"somebody", Some(STILL_LONG));
        refuses_readers_of_several(subject, &keys, &value, foreign).await;
        assert_eq!(outside.value(foreign).as_deref(), Some(&b"somebody"[..]));
    }
    remove(subject, &keys);

    let keys = new_keys("several", all);
    assert_eq!(subject.ask(acquire_shared(&keys, &value, LONG)).await, Answer::Granted);
    match see(subject, &keys).await {
        Holding::Several(each) => each.iter().for_each(|holding| is_shared_by(holding, &[&value])),
        other => panic!("{other:?}"),
    }
    assert_eq!(subject.ask(release_shared(&keys, &value)).await, Answer::Deleted);
    assert_eq!(see(subject, &keys).await, Holding::Free);
}

/// `ReleaseShared` of several keys takes the reader from those where it is, and says whether it was under all.
pub async fn a_release_takes_a_reader_from_where_it_is(subject: &Subject) {
    let (keys, outside) = (new_keys("taken", 3), &subject.outside);
    let (value, other) = (new_value(), new_value());
    for place in 0..3 {
        assert_eq!(subject.ask(acquire_shared(&keys, &value, LONG)).await, Answer::Granted);
        outside.remove(&keys[place]);
        assert_eq!(subject.ask(release_shared(&keys, &value)).await, Answer::Absent);
        assert_eq!(see(subject, &keys).await, Holding::Free);

        assert_eq!(subject.ask(acquire_shared(&keys, &value, LONG)).await, Answer::Granted);
        outside.remove(&keys[place]);
        let next = Keys::from(keys[(place + 1) % 3].clone());
        outside.remove(&next[0]);
        assert_eq!(subject.ask(acquire(&next, &other, LONG)).await, Answer::Granted);
        assert_eq!(subject.ask(release_shared(&keys, &value)).await, Answer::Other);
        assert_eq!(subject.ask(release(&next, &other)).await, Answer::Deleted);
        assert_eq!(see(subject, &keys).await, Holding::Free);
    }
}

/// Who watches a key is told when a reader comes, is extended, and goes.
pub async fn a_change_of_readers_is_spoken_of(subject: &Subject) {
    let (keys, outside) = (new_keys("watched", 1), &subject.outside);
    let key = &keys[0];
    let changes: [&dyn Fn(); 3] = [
        &|| outside.set_sorted_set(key, &[(b"one", LONG)], Some(LONG)),
        &|| outside.set_sorted_set(key, &[(b"one", LONG), (b"two", LONG)], Some(LONG)),
        &|| outside.remove(key),
    ];
    for change in changes {
        match subject.ask(watch(&keys)).await {
            Answer::Watched(_) => {}
            Answer::Seen(_) => break,
            other => panic!("{other:?}"),
        }
        change();
        assert_eq!(subject.next_push().await, *std::slice::from_ref(key), "told once");
    }
    outside.remove(key);
}

/// Every command about readers refuses the key.
async fn refuses_readers(subject: &Subject, keys: &Keys, value: &Value) {
    refuses_readers_of_several(subject, keys, value, &keys[0]).await;
}

async fn refuses_readers_of_several(subject: &Subject, keys: &Keys, value: &Value, foreign: &Key) {
    let fresh = new_value();
    assert_eq!(subject.ask(acquire_shared(keys, &fresh, 2 * LONG)).await, Answer::Refused);
    assert_eq!(subject.ask(heal_shared(keys, &fresh, 2 * LONG)).await, Answer::Refused);
    assert_eq!(subject.ask(heal_shared(keys, value, 2 * LONG)).await, Answer::Refused);
    assert_eq!(subject.ask(extend_shared(keys, value, 2 * LONG)).await, Answer::Other);
    assert_eq!(subject.ask(downgrade(keys, value)).await, Answer::Other);
    are_no_longer_than(subject, keys, LONG);
    assert_eq!(subject.ask(release_shared(keys, value)).await, Answer::Other);
    assert!(keys.iter().all(|key| subject.outside.exists(key) == (key == foreign)));
}

fn are_no_longer_than(subject: &Subject, keys: &Keys, ttl: Duration) {
    let is_short = |key: &Key| subject.outside.ttl(key).is_none_or(|left| left <= ttl);
    assert!(keys.iter().all(is_short), "nothing was changed");
}

fn remove(subject: &Subject, keys: &Keys) {
    keys.iter().for_each(|key| subject.outside.remove(key));
}

/// These are the readers of a key, with nearly so much time left to each, and it expires with the last of them.
pub(super) fn is_read_by(subject: &Subject, key: &Key, readers: &[(&Value, Duration)]) {
    let members = subject.outside.sorted_set(key);
    let values = |(value, _): &(Vec<u8>, Duration)| value.clone();
    let found: Vec<Vec<u8>> = members.iter().map(values).collect();
    let expected: Vec<&[u8]> = readers.iter().map(|(value, _)| value.as_bytes()).collect();
    assert_eq!(found, expected, "in the order of their ends");
    for ((_, left), (_, ttl)) in members.iter().zip(readers) {
        assert!(left <= ttl && *left > *ttl - LONG / 4, "{left:?} are left, of {ttl:?}");
    }
    let last = members.last().map(|(_, left)| *left);
    let expires = subject.outside.ttl(key);
    assert_eq!(last.is_some(), expires.is_some());
    if let Some((last, expires)) = last.zip(expires) {
        assert!(last.abs_diff(expires) < LONG / 8, "{last:?} to the last, {expires:?} to expiry");
    }
}

/// A look has seen these readers, all that there are.
pub(super) fn is_shared_by(holding: &Holding, values: &[&Value]) {
    let Holding::Shared { readers, count, ttl } = holding else {
        panic!("readers hold it, seen as {holding:?}")
    };
    let found: Vec<&[u8]> = readers.iter().map(|reader| &*reader.value).collect();
    let expected: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
    assert_eq!((found, *count), (expected, values.len()));
    let last = readers.last().map(|reader| reader.ttl).unwrap_or_default();
    assert!(last.abs_diff(*ttl) <= ROUNDING, "{last:?} to the last, {ttl:?} in all");
}

pub(super) fn acquire_shared(keys: &Keys, value: &Value, ttl: Duration) -> Command {
    let (keys, intents, value) = (keys.clone(), intents(keys), value.clone());
    Command::AcquireShared { keys, intents, value, ttl_ms: millis(ttl) }
}

pub(super) fn heal_shared(keys: &Keys, value: &Value, ttl: Duration) -> Command {
    Command::HealShared { keys: keys.clone(), value: value.clone(), ttl_ms: millis(ttl) }
}

pub(super) fn extend_shared(keys: &Keys, value: &Value, ttl: Duration) -> Command {
    Command::ExtendShared { keys: keys.clone(), value: value.clone(), ttl_ms: millis(ttl) }
}

pub(super) fn release_shared(keys: &Keys, value: &Value) -> Command {
    Command::ReleaseShared { keys: keys.clone(), value: value.clone() }
}

pub(super) fn downgrade(keys: &Keys, value: &Value) -> Command {
    Command::Downgrade { keys: keys.clone(), value: value.clone() }
}

/// Where writers that wait for these keys leave word.
pub(super) fn intents(keys: &Keys) -> Keys {
    keys.map(|key| format!("{key}:intent").into())
}
