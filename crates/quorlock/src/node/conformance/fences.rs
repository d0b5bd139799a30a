//! Locks with a fence.

use super::subject::Subject;
use super::{KEPT, LONG, STILL_LONG, millis, new_key, new_value, not_quite, release};
use crate::node::{Answer, Command, Counter, FailureKind, Holding, Key, Keys, Value};

/// `AcquireFenced` of a free key sets it, and the counter to the next number, in one step.
pub async fn a_fenced_grant_moves_the_counter_on(subject: &Subject) {
    let lock = Fenced::new("grant");
    assert_eq!(subject.ask(lock.acquire(0)).await, Answer::GrantedFenced { fence: 1 });
    assert_eq!(subject.outside.value(&lock.key).as_deref(), Some(lock.value.as_bytes()));
    assert_eq!(lock.counter(subject).as_deref(), Some("1"));
    for (key, whole) in [(&lock.key, LONG), (&lock.counted, KEPT)] {
        let ttl = subject.outside.ttl(key).expect("it expires");
        assert!(ttl > whole / 2 && ttl <= whole, "{key} lives for {whole:?}, not {ttl:?}");
    }
    assert_eq!(subject.ask(release(&lock.key, &lock.value)).await, Answer::Deleted);
    assert_eq!(lock.counter(subject).as_deref(), Some("1"), "it outlives the lock");
    // What the client proposes counts if it is larger than the next number, and only then.
    for (proposal, fence) in [(0, 2), (7, 7), (7, 8), (2, 9)] {
        assert_eq!(subject.ask(lock.acquire(proposal)).await, Answer::GrantedFenced { fence });
        assert_eq!(subject.ask(release(&lock.key, &lock.value)).await, Answer::Deleted);
    }
    // A counter that has lost its expiry gets one again.
    lock.count(subject, "20");
    assert_eq!(subject.ask(lock.acquire(0)).await, Answer::GrantedFenced { fence: 21 });
    assert!(subject.outside.ttl(&lock.counted).is_some());
    lock.remove(subject);
}

/// `AcquireFenced` of a key that exists tells who holds it and what the counter is.
pub async fn a_fenced_refusal_tells_the_counter_and_writes_nothing(subject: &Subject) {
    let (lock, outside) = (Fenced::new("refused"), &subject.outside);
    let refused = async |fence: u64| match subject.ask(lock.acquire(1 << 50)).await {
        Answer::RefusedFenced { fence: told, holding } if told == fence => *holding,
        other => panic!("refused at {fence}, answered with {other:?}"),
    };
    outside.set(&lock.key, b"somebody", None);
    let holding = refused(0).await;
    assert_eq!(holding, Holding::Held { value: b"somebody".to_vec(), ttl: None });
    assert_eq!(lock.counter(subject), None, "nothing was written");

    lock.count(subject, "5");
    let long = vec![b'x'; 200 * 1024];
    outside.set(&lock.key, &long, Some(LONG));
    let Holding::Held { value, ttl } = refused(5).await else { panic!("it is held") };
    assert_eq!(value, long[..Holding::VALUE_BYTES_MAX], "long values are cut");
    assert!(ttl.is_some_and(|ttl| ttl > STILL_LONG && ttl <= LONG));
    outside.remove(&lock.key);
    outside.set_other_type(&lock.key, None);
    assert_eq!(refused(5).await, Holding::OtherType { ttl: None });
    assert_eq!(lock.counter(subject).as_deref(), Some("5"));
    assert_eq!(outside.ttl(&lock.counted), None, "nor was its expiry changed");
    lock.remove(subject);
}

/// The marker's floor counts, and no fence reaches 2^53.
pub async fn fences_begin_at_the_floor_and_end_at_their_limit(subject: &Subject) {
    let (lock, outside) = (Fenced::new("floor"), &subject.outside);
    let fenced = async |proposal: u64| {
        let answer = subject.ask(lock.acquire(proposal)).await;
        outside.remove(&lock.key);
        answer
    };
    let floor = 1_795_201_160_638_971_u64;
    outside.set(&lock.counter.marker, format!("any text floor={floor}").as_bytes(), None);
    assert_eq!(fenced(0).await, Answer::GrantedFenced { fence: floor });
    assert_eq!(lock.counter(subject), Some(floor.to_string()), "to the last digit");
    assert_eq!(fenced(floor).await, Answer::GrantedFenced { fence: floor + 1 });
    outside.set(&lock.counter.marker, b"floor=9 but not at the end", None);
    assert_eq!(fenced(0).await, Answer::GrantedFenced { fence: floor + 2 });

    let last = Counter::LIMIT - 1;
    lock.count(subject, &(last - 1).to_string());
    assert_eq!(fenced(0).await, Answer::GrantedFenced { fence: last });
    assert_eq!(lock.counter(subject), Some(last.to_string()));
    for odd in
        [last.to_string(), "99999999999999999999".to_owned(), "-1".to_owned(), "x".to_owned()]
    {
        lock.count(subject, &odd);
        match fenced(0).await {
            Answer::Failed(failure) => assert_eq!(failure.kind(), FailureKind::Rejected, "{odd}"),
            other => panic!("with {odd:?} as counter it was answered with {other:?}"),
        }
        assert_eq!(lock.counter(subject), Some(odd), "it is left as it is");
    }
    lock.remove(subject);
}

/// A client whose clock is far ahead does not use up the numbers of all the others.
pub async fn a_proposal_counts_no_further_than_an_hour_ahead(subject: &Subject) {
    let lock = Fenced::new("proposal");
    // Above what is exact, too: it is bounded first.
    for proposal in [1 << 52, u64::MAX] {
        let Answer::GrantedFenced { fence } = subject.ask(lock.acquire(proposal)).await else {
            panic!("it is free")
        };
        let hour = 3_600_000_000;
        let now = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970").as_micros();
        assert!(fence > hour, "{fence}");
        assert!(
            u128::from(fence) < now + u128::from(3 * hour / 2),
            "no further than an hour: {fence}"
        );
        assert_eq!(lock.counter(subject), Some(fence.to_string()), "to the last digit");
        lock.remove(subject);
    }
}

/// `Raise` lifts the counter under a lock of ours, and does nothing else.
pub async fn a_raise_needs_our_lock_and_never_lowers(subject: &Subject) {
    let (lock, outside) = (Fenced::new("raise"), &subject.outside);
    assert_eq!(subject.ask(lock.raise(9)).await, Answer::Absent);
    for other in not_quite(&lock.value) {
        outside.set(&lock.key, &other, None);
        assert_eq!(subject.ask(lock.raise(9)).await, Answer::Other);
    }
    outside.remove(&lock.key);
    outside.set_other_type(&lock.key, None);
    assert_eq!(subject.ask(lock.raise(9)).await, Answer::Other);
    assert_eq!(lock.counter(subject), None, "nothing was written");
    outside.remove(&lock.key);

    assert_eq!(subject.ask(lock.acquire(0)).await, Answer::GrantedFenced { fence: 1 });
    let large = Counter::LIMIT - 1;
    for (to, fence) in [(9, 9), (9, 9), (8, 9), (large, large), (1, large)] {
        assert_eq!(subject.ask(lock.raise(to)).await, Answer::Raised { fence });
        assert_eq!(lock.counter(subject), Some(fence.to_string()), "after a raise to {to}");
        assert!(outside.ttl(&lock.counted).is_some_and(|ttl| ttl > KEPT / 2));
    }
    // It may have been lost in the meantime.
    outside.remove(&lock.counted);
    assert_eq!(subject.ask(lock.raise(3)).await, Answer::Raised { fence: 3 });
    assert_eq!(lock.counter(subject).as_deref(), Some("3"));
    lock.remove(subject);
}

/// `HealFenced` gives the vote back unless a larger fence has been given out since.
pub async fn a_fenced_heal_writes_nothing_behind_a_larger_fence(subject: &Subject) {
    let (lock, outside) = (Fenced::new("heal"), &subject.outside);
    for counter in [None, Some("3"), Some("7")] {
        if let Some(counter) = counter {
            lock.count(subject, counter);
        }
        assert_eq!(subject.ask(lock.heal(7)).await, Answer::GrantedFenced { fence: 7 });
        assert_eq!(outside.value(&lock.key).as_deref(), Some(lock.value.as_bytes()));
        assert!(outside.ttl(&lock.key).is_some_and(|ttl| ttl > STILL_LONG && ttl <= LONG));
        assert_eq!(lock.counter(subject).as_deref(), Some("7"));
        assert!(outside.ttl(&lock.counted).is_some_and(|ttl| ttl > KEPT / 2 && ttl <= KEPT));
        // Its own key included: whoever holds the vote need not be given it.
        assert_eq!(subject.ask(lock.heal(8)).await, Answer::Refused);
        assert_eq!(lock.counter(subject).as_deref(), Some("7"));
        lock.remove(subject);
    }
    lock.count(subject, "8");
    assert_eq!(subject.ask(lock.heal(7)).await, Answer::Superseded { fence: 8 });
    assert!(!outside.exists(&lock.key));
    assert_eq!(lock.counter(subject).as_deref(), Some("8"));
    assert_eq!(outside.ttl(&lock.counted), None, "nothing was written");
    outside.set_other_type(&lock.key, None);
    assert_eq!(subject.ask(lock.heal(9)).await, Answer::Refused);
    lock.remove(subject);
}

/// `ExtendFenced` is an extension, and the counter lives on; it does not bring one back to life.
pub async fn a_fenced_extension_keeps_the_counter_alive(subject: &Subject) {
    let (lock, outside) = (Fenced::new("extend"), &subject.outside);
    assert_eq!(subject.ask(lock.extend()).await, Answer::Absent);
    assert_eq!(subject.ask(lock.acquire(0)).await, Answer::GrantedFenced { fence: 1 });
    for left in [Some(STILL_LONG), None] {
        outside.set(&lock.key, lock.value.as_bytes(), left);
        outside.set(&lock.counted, b"1", left);
        assert_eq!(subject.ask(lock.extend()).await, Answer::Extended);
        assert!(outside.ttl(&lock.key).is_some_and(|ttl| ttl > STILL_LONG && ttl <= LONG));
        assert!(outside.ttl(&lock.counted).is_some_and(|ttl| ttl > KEPT / 2 && ttl <= KEPT));
    }
    outside.set(&lock.counted, b"1", Some(2 * KEPT));
    assert_eq!(subject.ask(lock.extend()).await, Answer::Extended);
    assert!(outside.ttl(&lock.counted).is_some_and(|ttl| ttl > KEPT), "never shorter");
    outside.remove(&lock.counted);
    assert_eq!(subject.ask(lock.extend()).await, Answer::Extended);
    assert!(!outside.exists(&lock.counted));
    outside.set(&lock.key, b"somebody", None);
    outside.set(&lock.counted, b"1", Some(STILL_LONG));
    assert_eq!(subject.ask(lock.extend()).await, Answer::Other);
    assert!(outside.ttl(&lock.counted).is_some_and(|ttl| ttl <= STILL_LONG), "left alone");
    lock.remove(subject);
}

/// A lock with a fence, of a client that may ask for it.
pub(super) struct Fenced {
    pub(super) keys: Keys,
    pub(super) value: Value,
    pub(super) counter: Counter,
    /// The first key, and its counter.
    pub(super) key: Key,
    pub(super) counted: Key,
}

impl Fenced {
    fn new(what: &str) -> Self {
        Self::of(new_key(&format!("fence:{what}")).into())
    }

    pub(super) fn of(keys: Keys) -> Self {
        let counters = keys.map(|key| format!("{key}:counter").into());
        let (key, counted) = (keys[0].clone(), counters[0].clone());
        let (marker, ttl_ms) = (new_key("floor"), millis(KEPT));
        let counter = Counter { keys: counters, ttl_ms, marker };
        Self { keys, value: new_value(), counter, key, counted }
    }

    pub(super) fn acquire(&self, proposal: u64) -> Command {
        let (keys, value, counter) = self.parts();
        Command::AcquireFenced { keys, value, ttl_ms: millis(LONG), counter, proposal }
    }

    pub(super) fn raise(&self, to: u64) -> Command {
        let (keys, value, counter) = self.parts();
        Command::Raise { keys, value, counter, to }
    }

    pub(super) fn heal(&self, to: u64) -> Command {
        let (keys, value, counter) = self.parts();
        Command::HealFenced { keys, value, ttl_ms: millis(LONG), counter, to }
    }

    pub(super) fn extend(&self) -> Command {
        let (keys, value, counter) = self.parts();
        Command::ExtendFenced { keys, value, ttl_ms: millis(LONG), counter }
    }

    fn parts(&self) -> (Keys, Value, Counter) {
        (self.keys.clone(), self.value.clone(), self.counter.clone())
    }

    /// Sets the first counter, past the node; it does not expire.
    pub(super) fn count(&self, subject: &Subject, counter: &str) {
        subject.outside.set(&self.counted, counter.as_bytes(), None);
    }

    fn counter(&self, subject: &Subject) -> Option<String> {
        self.counters(subject).swap_remove(0)
    }

    pub(super) fn counters(&self, subject: &Subject) -> Vec<Option<String>> {
        let digits = |key: &Key| subject.outside.value(key);
        let digits = self.counter.keys.iter().map(digits);
        digits.map(|digits| Some(String::from_utf8(digits?).expect("digits"))).collect()
    }

    pub(super) fn remove(&self, subject: &Subject) {
        let Counter { keys: counters, marker, .. } = &self.counter;
        for key in self.keys.iter().chain(&**counters).chain([marker]) {
            subject.outside.remove(key);
        }
    }
}
