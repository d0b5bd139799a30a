//! Tests of single commands: acquire, extend, release and inspect.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use quorlock_core::{Answer, Holding, Key};

use super::{LONG, STILL_LONG, acquire, extend, inspect, new_key, new_value, not_quite, release};
use crate::subject::Subject;

/// Allowed error of a ttl: servers count milliseconds, and read their clock only now and then.
const ROUNDING: Duration = Duration::from_millis(2);

/// `Acquire` sets an absent key to the whole value, with the ttl, in one step.
pub(super) async fn a_free_key_is_granted_and_stored(subject: &Subject) {
    let (key, value) = (new_key("free"), new_value());
    assert_eq!(subject.ask(acquire(&key, &value, LONG)).await, Answer::Granted);
    assert_eq!(subject.outside.value(&key).as_deref(), Some(value.as_bytes()), "the whole value");
    let ttl = subject.outside.ttl(&key).expect("a granted key expires");
    assert!(ttl > STILL_LONG && ttl <= LONG, "it was set to live for {LONG:?}, not {ttl:?}");
    subject.outside.remove(&key);
}

/// `Acquire` refuses a key that exists, whatever its type, and does not change it.
pub(super) async fn a_taken_key_is_refused_and_untouched(subject: &Subject) {
    let outside = &subject.outside;
    let (ours, own) = (new_value(), new_key("taken"));
    assert_eq!(subject.ask(acquire(&own, &ours, STILL_LONG)).await, Answer::Granted);
    // Even the value that the key holds is refused, because every attempt has a token of its own.
    for value in [&new_value(), &ours] {
        assert_eq!(subject.ask(acquire(&own, value, 4 * LONG)).await, Answer::Refused);
        assert_eq!(outside.value(&own).as_deref(), Some(ours.as_bytes()));
        assert!(outside.ttl(&own).is_some_and(|ttl| ttl <= STILL_LONG), "its ttl is as before");
    }
    outside.remove(&own);

    let (foreign, eternal, list) = (new_key("foreign"), new_key("eternal"), new_key("list"));
    outside.set(&foreign, b"somebody", Some(LONG));
    outside.set(&eternal, b"", None);
    outside.set_other_type(&list, None);
    for key in [&foreign, &eternal, &list] {
        assert_eq!(subject.ask(acquire(key, &ours, LONG)).await, Answer::Refused, "{key}");
    }
    assert_eq!(outside.value(&foreign).as_deref(), Some(&b"somebody"[..]));
    assert_eq!(outside.value(&eternal).as_deref(), Some(&b""[..]), "an empty string is a value");
    assert_eq!((outside.ttl(&eternal), outside.ttl(&list)), (None, None));
    assert!(outside.exists(&list) && outside.value(&list).is_none());
    for key in [&foreign, &eternal, &list] {
        outside.remove(key);
    }
}

/// A granted key exists for its whole ttl, and then expires.
pub(super) async fn a_granted_key_expires_after_its_ttl(subject: &Subject) {
    const TTL: Duration = Duration::from_millis(150);
    let key = new_key("expires");
    let started = Instant::now();
    assert_eq!(subject.ask(acquire(&key, &new_value(), TTL)).await, Answer::Granted);
    let next = acquire(&key, &new_value(), LONG);
    while subject.ask(next.clone()).await != Answer::Granted {
        assert!(started.elapsed() < LONG, "a key with a ttl of {TTL:?} is still there");
        sleep(Duration::from_millis(5)).await;
    }
    let lived = started.elapsed();
    assert!(lived + ROUNDING >= TTL, "it was to live for {TTL:?}, and lived for {lived:?}");
    subject.outside.remove(&key);
}

/// `Extend` makes our key live for the ttl from now, and never shortens its life. A key that lost its expiry gets one
/// again.
pub(super) async fn an_extension_lengthens_and_never_shortens(subject: &Subject) {
    let (key, value) = (new_key("extended"), new_value());
    let ttl = || subject.outside.ttl(&key).expect("an extended key expires");
    assert_eq!(subject.ask(acquire(&key, &value, STILL_LONG)).await, Answer::Granted);
    assert_eq!(subject.ask(extend(&key, &value, LONG)).await, Answer::Extended);
    assert!(ttl() > STILL_LONG && ttl() <= LONG, "it was extended to {LONG:?}, not {:?}", ttl());
    let short = Duration::from_millis(100);
    assert_eq!(subject.ask(extend(&key, &value, short)).await, Answer::Extended);
    assert!(ttl() > STILL_LONG, "an extension by {short:?} has shortened it to {:?}", ttl());
    assert_eq!(subject.outside.value(&key).as_deref(), Some(value.as_bytes()));

    subject.outside.set(&key, value.as_bytes(), None);
    assert_eq!(subject.ask(extend(&key, &value, LONG)).await, Answer::Extended);
    assert!(ttl() > STILL_LONG && ttl() <= LONG, "it lives for {LONG:?} now, not {:?}", ttl());
    subject.outside.remove(&key);
}

/// `Extend` neither makes nor changes a key that does not hold the whole value.
pub(super) async fn an_extension_touches_nothing_of_others(subject: &Subject) {
    let (outside, value) = (&subject.outside, new_value());
    let absent = new_key("absent");
    assert_eq!(subject.ask(extend(&absent, &value, LONG)).await, Answer::Absent);
    assert!(!outside.exists(&absent), "an extension must not bring a lost lock back to life");
    for other in not_quite(&value) {
        let key = new_key("other");
        outside.set(&key, &other, Some(STILL_LONG));
        assert_eq!(subject.ask(extend(&key, &value, LONG)).await, Answer::Other);
        assert_eq!(outside.value(&key), Some(other));
        assert!(outside.ttl(&key).is_some_and(|ttl| ttl <= STILL_LONG), "its ttl is as before");
        outside.remove(&key);
    }
    let list = new_key("list");
    outside.set_other_type(&list, Some(STILL_LONG));
    assert_eq!(subject.ask(extend(&list, &value, LONG)).await, Answer::Other);
    assert!(outside.ttl(&list).is_some_and(|ttl| ttl <= STILL_LONG), "its ttl is as before");
    outside.remove(&list);
}

/// `Release` deletes a key that holds the whole value. A second release finds no key.
pub(super) async fn a_release_deletes_our_key(subject: &Subject) {
    let (key, value) = (new_key("released"), new_value());
    assert_eq!(subject.ask(acquire(&key, &value, LONG)).await, Answer::Granted);
    assert_eq!(subject.ask(release(&key, &value)).await, Answer::Deleted);
    assert!(!subject.outside.exists(&key));
    assert_eq!(subject.ask(release(&key, &value)).await, Answer::Absent);
    subject.outside.set(&key, value.as_bytes(), None);
    assert_eq!(subject.ask(release(&key, &value)).await, Answer::Deleted, "also without expiry");
    assert!(!subject.outside.exists(&key));
}

/// `Release` does not change a key that does not hold the whole value.
pub(super) async fn a_release_touches_nothing_of_others(subject: &Subject) {
    let (outside, value) = (&subject.outside, new_value());
    for other in not_quite(&value) {
        let key = new_key("other");
        outside.set(&key, &other, None);
        assert_eq!(subject.ask(release(&key, &value)).await, Answer::Other);
        assert_eq!(outside.value(&key), Some(other));
        outside.remove(&key);
    }
    let list = new_key("list");
    outside.set_other_type(&list, None);
    assert_eq!(subject.ask(release(&list, &value)).await, Answer::Other);
    assert!(outside.exists(&list));
    outside.remove(&list);
}

/// `Inspect` returns the value and the remaining time of the key, and changes nothing.
pub(super) async fn an_inspection_shows_what_the_key_holds(subject: &Subject) {
    let outside = &subject.outside;
    let seen = async |key: &Key| match subject.ask(inspect(key)).await {
        Answer::Seen(holding) => holding,
        other => panic!("an inspection of {key} was answered with {other:?}"),
    };
    let is_long = |ttl: Option<Duration>| ttl.is_some_and(|ttl| ttl > STILL_LONG && ttl <= LONG);

    let (key, value) = (new_key("inspected"), new_value());
    assert_eq!(seen(&key).await, Holding::Free);
    assert_eq!(subject.ask(acquire(&key, &value, LONG)).await, Answer::Granted);
    match seen(&key).await {
        Holding::Held { value: held, ttl } if held == value.as_bytes() => assert!(is_long(ttl)),
        other => panic!("held by {value:?}, seen as {other:?}"),
    }
    outside.set(&key, b"eternal", None);
    assert_eq!(seen(&key).await, Holding::Held { value: b"eternal".to_vec(), ttl: None });
    let long = vec![0xff; 3 * Holding::VALUE_BYTES_MAX];
    outside.set(&key, &long, None);
    let cut = long[..Holding::VALUE_BYTES_MAX].to_vec();
    assert_eq!(seen(&key).await, Holding::Held { value: cut, ttl: None }, "long values are cut");
    assert_eq!(outside.value(&key), Some(long), "but only for the eye");
    outside.remove(&key);
    outside.set_other_type(&key, None);
    assert_eq!(seen(&key).await, Holding::OtherType { ttl: None });
    outside.remove(&key);
    outside.set_other_type(&key, Some(LONG));
    match seen(&key).await {
        Holding::OtherType { ttl } => assert!(is_long(ttl), "{ttl:?}"),
        other => panic!("no string, seen as {other:?}"),
    }
    outside.remove(&key);
    assert_eq!(seen(&key).await, Holding::Free);
}
