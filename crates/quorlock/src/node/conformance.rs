//! The contract of [`Node`] as functions: every implementation must pass them all.
//!
//! For authors of a node of their own. Say what another client can do to the node's keys
//! ([`Outside`]), and run [`all`] in a test; each function also stands for itself. They panic where
//! the contract is broken, with a sentence that says which part of it. Not API-stable: what the
//! client comes to rely on will be added here.
//!
//! The keys used are new in every run, so a server in use can be tested as well, and all of them
//! are removed.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! use quorlock::node::{MemoryNode, conformance};
//!
//! let node = MemoryNode::new("a");
//! conformance::all(node.clone(), node).await;
//! # }
//! ```

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use quorlock_core::{Event, NodeId, Reading, Token};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use quorlock_core::info::Info;

use super::{
    Adopted, Answer, Answers, Batch, BoxFuture, Command, Counter, FailureKind, Holding, Inbox, Key,
    MarkerSeen, MemoryNode, Node, NodeState, Proof, Stamp, Value,
};
use crate::clock::Clock;

/// What another client can do to the node's keys and see of them, past the node under test: the
/// suite sets traps with it and looks whether anything was touched.
///
/// Its functions may block for as long as a command takes, and panic if they cannot do their work.
pub trait Outside: Send + Sync + 'static {
    /// Sets a key to a string, to expire after `ttl`, or never.
    fn set(&self, key: &str, value: &[u8], ttl: Option<Duration>);

    /// Sets a key to something that is not a string, such as a list, to expire after `ttl`, or
    /// never.
    fn set_other_type(&self, key: &str, ttl: Option<Duration>);

    /// Whether the key exists, whatever it is.
    fn exists(&self, key: &str) -> bool;

    /// The string under a key, if there is one.
    fn value(&self, key: &str) -> Option<Vec<u8>>;

    /// Time until the key expires, if it exists and does.
    fn ttl(&self, key: &str) -> Option<Duration>;

    /// Deletes a key, if it exists.
    fn remove(&self, key: &str);
}

impl Outside for MemoryNode {
    fn set(&self, key: &str, value: &[u8], ttl: Option<Duration>) {
        self.insert(key, value, ttl);
    }

    fn set_other_type(&self, key: &str, ttl: Option<Duration>) {
        self.insert_other_type(key);
        if let Some(ttl) = ttl {
            self.expire_in(key, ttl);
        }
    }

    fn exists(&self, key: &str) -> bool {
        self.contains(key)
    }

    fn value(&self, key: &str) -> Option<Vec<u8>> {
        self.value_of(key)
    }

    fn ttl(&self, key: &str) -> Option<Duration> {
        self.ttl_of(key)
    }

    fn remove(&self, key: &str) {
        Self::remove(self, key);
    }
}

/// A node under test: driven as the client drives it, with its [`Node::background`] running.
pub struct Subject {
    node: Arc<dyn Node>,
    outside: Box<dyn Outside>,
    background: JoinHandle<()>,
    news: Inbox,
    marker: Key,
    /// The connection that the last answers came from; none yet.
    epoch: AtomicU64,
}

impl Subject {
    /// Takes a node, and a way to its keys past it. Must be called inside a tokio runtime.
    pub fn new(node: impl Node, outside: impl Outside) -> Self {
        let node: Arc<dyn Node> = Arc::new(node);
        let marker = new_key("marker");
        let inbox = Inbox::new(1);
        let news = inbox.news(NodeId::new(0)).with_marker(Some(marker.clone()));
        let background = tokio::spawn(node.background(news));
        let (outside, news) = (Box::new(outside), inbox);
        Self { node, outside, background, news, marker, epoch: AtomicU64::new(0) }
    }

    /// Executes these commands as one batch.
    pub async fn execute(&self, commands: Vec<Command>) -> Vec<Answer> {
        self.execute_and_prove(commands).await.answers
    }

    /// The same, and sees to it that a node that proves itself does so whenever it must.
    async fn execute_and_prove(&self, commands: Vec<Command>) -> Answers {
        let greets = commands.contains(&Command::Greet);
        let votes = commands.iter().any(Command::is_about_votes);
        let before = self.outside.value(&self.marker);
        let answers = self.give(commands).await.answers().await.0;
        if let Proof::Seen { epoch, info, marker, .. } = &answers.proof {
            let last = self.epoch.swap(*epoch, Ordering::Relaxed);
            assert!(*epoch >= 1 && *epoch >= last, "connections are counted from one");
            let asks_info = *epoch != last || greets;
            assert_eq!(info.is_some(), asks_info, "on a new connection, and when it is greeted");
            let expected = match before {
                _ if !asks_info && !votes => MarkerSeen::NotAsked,
                None => MarkerSeen::Missing,
                Some(text) => MarkerSeen::Text(String::from_utf8_lossy(&text).into_owned()),
            };
            assert_eq!(*marker, expected, "the marker shows that nothing was lost");
        }
        answers
    }

    /// Gives the node a batch and returns once that is on its way: only then may the next one be
    /// given.
    async fn give(&self, commands: Vec<Command>) -> Given {
        let stamp = Arc::new(Stamp::new(Clock::Tokio));
        let batch = Batch { commands, stamp: stamp.clone() };
        let mut answers = self.node.execute(batch);
        let early = poll_fn(|cx| match Pin::new(&mut answers).poll(cx) {
            Poll::Ready(answers) => Poll::Ready(Some(answers)),
            Poll::Pending if stamp.sent().is_some() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await;
        Given { answers, early, stamp }
    }

    /// The keys that the node next says have changed.
    async fn next_news(&self) -> Vec<Key> {
        let mut events = Vec::new();
        loop {
            poll_fn(|cx| {
                self.news.take(cx, &mut events);
                if events.is_empty() { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            for event in events.drain(..) {
                match event {
                    // Everything has changed: there is a new connection.
                    Event::Pushed { keys: None, .. } => {}
                    Event::Pushed { keys: Some(keys), .. } => return keys,
                    other => panic!("the node has said {other:?}"),
                }
            }
        }
    }

    async fn ask(&self, command: Command) -> Answer {
        self.execute(vec![command]).await.into_iter().next().expect("one answer to one command")
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.background.abort();
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("node", &self.node).finish_non_exhaustive()
    }
}

/// A batch that is on its way.
struct Given {
    answers: BoxFuture<Answers>,
    early: Option<Answers>,
    stamp: Arc<Stamp>,
}

impl Given {
    /// The answers, and when the batch was said to be sent.
    async fn answers(self) -> (Answers, Option<Reading>) {
        let answers = match self.early {
            Some(answers) => answers,
            None => self.answers.await,
        };
        (answers, self.stamp.sent())
    }
}

/// The ttl of keys that are not meant to expire during the test, and a lower bound for what is left
/// of it: far enough from it for a slow machine, near enough to tell units apart.
const LONG: Duration = Duration::from_secs(60);
const STILL_LONG: Duration = Duration::from_secs(30);

/// Servers keep time in milliseconds of a clock that they read now and then.
const ROUNDING: Duration = Duration::from_millis(2);

/// Runs the whole suite on one node.
///
/// # Panics
/// Where the contract is broken.
pub async fn all(node: impl Node, outside: impl Outside) {
    let subject = Subject::new(node, outside);
    a_free_key_is_granted_and_stored(&subject).await;
    a_taken_key_is_refused_and_untouched(&subject).await;
    a_granted_key_expires_after_its_ttl(&subject).await;
    an_extension_lengthens_and_never_shortens(&subject).await;
    an_extension_touches_nothing_of_others(&subject).await;
    a_release_deletes_our_key(&subject).await;
    a_release_touches_nothing_of_others(&subject).await;
    an_inspection_tells_what_the_key_holds(&subject).await;
    commands_of_a_batch_take_effect_in_order(&subject).await;
    batches_take_effect_in_the_order_given(&subject).await;
    a_release_comes_behind_an_acquire_that_nobody_waits_for(&subject).await;
    every_command_is_judged_by_itself(&subject).await;
    large_batches_are_answered_in_full(&subject).await;
    keys_and_values_may_be_odd(&subject).await;
    a_watched_key_is_spoken_of_when_it_changes(&subject).await;
    a_batch_is_stamped_before_it_is_answered(&subject).await;
    a_fenced_grant_moves_the_counter_on(&subject).await;
    a_fenced_refusal_tells_the_counter_and_writes_nothing(&subject).await;
    fences_begin_at_the_floor_and_end_at_their_limit(&subject).await;
    a_proposal_counts_no_further_than_an_hour_ahead(&subject).await;
    a_raise_needs_our_lock_and_never_lowers(&subject).await;
    a_fenced_heal_writes_nothing_behind_a_larger_fence(&subject).await;
    a_fenced_extension_keeps_the_counter_alive(&subject).await;
    a_node_that_is_greeted_proves_itself(&subject).await;
    an_adoption_is_written_once_and_grows_old(&subject).await;
    a_marker_is_written_over_what_was_expected_alone(&subject).await;
    a_marker_waits_for_its_adoption(&subject).await;
    the_node_is_up_and_has_a_name(&subject).await;
}

/// `Acquire` sets an absent key to the whole value, with the ttl, in one step.
pub async fn a_free_key_is_granted_and_stored(subject: &Subject) {
    let (key, value) = (new_key("free"), new_value());
    assert_eq!(subject.ask(acquire(&key, &value, LONG)).await, Answer::Granted);
    assert_eq!(subject.outside.value(&key).as_deref(), Some(value.as_bytes()), "the whole value");
    let ttl = subject.outside.ttl(&key).expect("a granted key expires");
    assert!(ttl > STILL_LONG && ttl <= LONG, "it was set to live for {LONG:?}, not {ttl:?}");
    subject.outside.remove(&key);
}

/// `Acquire` refuses a key that exists, whatever it is, and leaves it as it is.
pub async fn a_taken_key_is_refused_and_untouched(subject: &Subject) {
    let outside = &subject.outside;
    let (ours, own) = (new_value(), new_key("taken"));
    assert_eq!(subject.ask(acquire(&own, &ours, STILL_LONG)).await, Answer::Granted);
    // Even by the same value: a token is used once.
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

/// A granted key is there for its ttl, not less, and then it is gone.
pub async fn a_granted_key_expires_after_its_ttl(subject: &Subject) {
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

/// `Extend` makes a key of ours live for the ttl from now, and never shorter than it would. If it
/// has lost its expiry, it gets one again.
pub async fn an_extension_lengthens_and_never_shortens(subject: &Subject) {
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
pub async fn an_extension_touches_nothing_of_others(subject: &Subject) {
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

/// `Release` deletes a key that holds the whole value; a second one finds nothing.
pub async fn a_release_deletes_our_key(subject: &Subject) {
    let (key, value) = (new_key("released"), new_value());
    assert_eq!(subject.ask(acquire(&key, &value, LONG)).await, Answer::Granted);
    assert_eq!(subject.ask(release(&key, &value)).await, Answer::Deleted);
    assert!(!subject.outside.exists(&key));
    assert_eq!(subject.ask(release(&key, &value)).await, Answer::Absent);
    subject.outside.set(&key, value.as_bytes(), None);
    assert_eq!(subject.ask(release(&key, &value)).await, Answer::Deleted, "also without expiry");
    assert!(!subject.outside.exists(&key));
}

/// `Release` leaves alone what does not hold the whole value.
pub async fn a_release_touches_nothing_of_others(subject: &Subject) {
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

/// `Inspect` tells what the key holds and for how long, and changes nothing.
pub async fn an_inspection_tells_what_the_key_holds(subject: &Subject) {
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

/// The commands of a batch take effect one after the other.
pub async fn commands_of_a_batch_take_effect_in_order(subject: &Subject) {
    let (key, first, second) = (new_key("order"), new_value(), new_value());
    // Not to tell what is there instead is to answer at once; to tell may take another look.
    let not_ours = Command::Release { key: key.clone(), value: second.clone(), tell: false };
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

/// Batches take effect in the order in which they were given, whichever is waited for first.
pub async fn batches_take_effect_in_the_order_given(subject: &Subject) {
    let key = new_key("batches");
    let mut given = Vec::new();
    for _ in 0..20 {
        let value = new_value();
        given.push((Answer::Granted, subject.give(vec![acquire(&key, &value, LONG)]).await));
        given.push((Answer::Deleted, subject.give(vec![release(&key, &value)]).await));
    }
    while let Some((expected, batch)) = given.pop() {
        assert_eq!(
            batch.answers().await.0.answers,
            [expected],
            "{} batches before this",
            given.len()
        );
    }
    assert!(!subject.outside.exists(&key));
}

/// If nobody waits for an acquire any more, it is not executed, or before the release behind it.
pub async fn a_release_comes_behind_an_acquire_that_nobody_waits_for(subject: &Subject) {
    for _ in 0..20 {
        let (key, value) = (new_key("dropped"), new_value());
        drop(subject.give(vec![acquire(&key, &value, LONG)]).await);
        let answer = subject.ask(release(&key, &value)).await;
        assert!(matches!(answer, Answer::Deleted | Answer::Absent), "{answer:?}");
        assert_eq!(subject.ask(inspect(&key)).await, Answer::Seen(Holding::Free));
    }
}

/// Each command gets its own answer; trouble with one touches no other.
pub async fn every_command_is_judged_by_itself(subject: &Subject) {
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

/// A batch may be larger than any that the client sends, and every command of it is answered.
pub async fn large_batches_are_answered_in_full(subject: &Subject) {
    const LOCKS: usize = 700;
    let locks: Vec<(Key, Value)> =
        (0..LOCKS).map(|place| (new_key(&format!("large{place}")), new_value())).collect();
    let mut commands = Vec::new();
    commands.extend(locks.iter().map(|(key, value)| acquire(key, value, LONG)));
    commands.extend(locks.iter().map(|(key, value)| extend(key, value, LONG)));
    commands.extend(locks.iter().map(|(key, value)| release(key, value)));
    let answers = subject.execute(commands).await;
    assert_eq!(answers.len(), 3 * LOCKS, "one answer for each command");
    for (place, answer) in answers.into_iter().enumerate() {
        let expected = [Answer::Granted, Answer::Extended, Answer::Deleted];
        assert_eq!(answer, expected[place / LOCKS], "command {place}");
    }
    assert_eq!(subject.execute(Vec::new()).await, [], "no answer to no command");
}

/// Keys and values are bytes: nothing in them ends them early or means anything.
pub async fn keys_and_values_may_be_odd(subject: &Subject) {
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

/// `Watch` tells what the key holds, as `Inspect` does. A node that answers with
/// [`Answer::Watched`] says once when the key changes, whoever changes it and in whatever way.
pub async fn a_watched_key_is_spoken_of_when_it_changes(subject: &Subject) {
    let outside = &subject.outside;
    let watch = async |key: &Key| match subject.ask(Command::Watch { key: key.clone() }).await {
        Answer::Watched(holding) => (holding, true),
        Answer::Seen(holding) => (holding, false),
        other => panic!("to watch {key} was answered with {other:?}"),
    };
    let (key, other) = (new_key("watched"), new_key("also watched"));
    let (holding, can_push) = watch(&key).await;
    assert_eq!(holding, Holding::Free);
    if !can_push {
        return;
    }
    // Set, set to expire, given another value, deleted: each is a change, and told of once.
    let changes: [&dyn Fn(&str); 4] = [
        &|key| outside.set(key, b"1", None),
        &|key| outside.set(key, b"1", Some(LONG)),
        &|key| outside.set(key, b"2", None),
        &|key| outside.remove(key),
    ];
    for change in changes {
        watch(&key).await;
        watch(&other).await;
        change(&key);
        assert_eq!(subject.next_news().await, *std::slice::from_ref(&key));
        // Nobody has asked again, so this is not told; what is, comes after it.
        outside.set(&key, b"unasked", None);
        outside.set(&other, b"2", None);
        assert_eq!(subject.next_news().await, *std::slice::from_ref(&other), "told once");
    }
    // Between two commands that have nothing to do with it, and in the middle of a batch.
    outside.set(&key, b"held", Some(LONG));
    let batch = vec![inspect(&other), Command::Watch { key: key.clone() }, inspect(&other)];
    let answers = subject.execute(batch).await;
    assert!(
        matches!(&answers[1], Answer::Watched(Holding::Held { value, .. }) if value == b"held")
    );
    outside.set(&other, b"3", None);
    outside.remove(&key);
    assert_eq!(subject.next_news().await, *std::slice::from_ref(&key), "the other was not watched");
    outside.remove(&other);
}

/// What was answered was sent, and said to be sent ([`Batch::send`]) at a time that lies between
/// the giving and the answer.
pub async fn a_batch_is_stamped_before_it_is_answered(subject: &Subject) {
    let key = new_key("stamped");
    for _ in 0..20 {
        let given_at = Clock::Tokio.now();
        let batch = subject.give(vec![inspect(&key)]).await;
        let (answers, sent) = batch.answers().await;
        assert_eq!(answers.answers, [Answer::Seen(Holding::Free)]);
        let sent = sent.expect("an answered batch was sent").boot();
        assert!(sent >= given_at.boot() && sent <= Clock::Tokio.now().boot());
    }
}

/// `AcquireFenced` of a free key sets it, and the counter to the next number, in one step.
pub async fn a_fenced_grant_moves_the_counter_on(subject: &Subject) {
    let lock = Fenced::new("grant");
    assert_eq!(subject.ask(lock.acquire(0)).await, Answer::GrantedFenced { fence: 1 });
    assert_eq!(subject.outside.value(&lock.key).as_deref(), Some(lock.value.as_bytes()));
    assert_eq!(lock.counter(subject).as_deref(), Some("1"));
    for (key, whole) in [(&lock.key, LONG), (&lock.counter.key, KEPT)] {
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
    assert!(subject.outside.ttl(&lock.counter.key).is_some());
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
    assert_eq!(outside.ttl(&lock.counter.key), None, "nor was its expiry changed");
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
        assert!(outside.ttl(&lock.counter.key).is_some_and(|ttl| ttl > KEPT / 2));
    }
    // It may have been lost in the meantime.
    outside.remove(&lock.counter.key);
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
        assert!(outside.ttl(&lock.counter.key).is_some_and(|ttl| ttl > KEPT / 2 && ttl <= KEPT));
        // Its own key included: whoever holds the vote need not be given it.
        assert_eq!(subject.ask(lock.heal(8)).await, Answer::Refused);
        assert_eq!(lock.counter(subject).as_deref(), Some("7"));
        lock.remove(subject);
    }
    lock.count(subject, "8");
    assert_eq!(subject.ask(lock.heal(7)).await, Answer::Superseded { fence: 8 });
    assert!(!outside.exists(&lock.key));
    assert_eq!(lock.counter(subject).as_deref(), Some("8"));
    assert_eq!(outside.ttl(&lock.counter.key), None, "nothing was written");
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
        outside.set(&lock.counter.key, b"1", left);
        assert_eq!(subject.ask(lock.extend()).await, Answer::Extended);
        assert!(outside.ttl(&lock.key).is_some_and(|ttl| ttl > STILL_LONG && ttl <= LONG));
        assert!(outside.ttl(&lock.counter.key).is_some_and(|ttl| ttl > KEPT / 2 && ttl <= KEPT));
    }
    outside.set(&lock.counter.key, b"1", Some(2 * KEPT));
    assert_eq!(subject.ask(lock.extend()).await, Answer::Extended);
    assert!(outside.ttl(&lock.counter.key).is_some_and(|ttl| ttl > KEPT), "never shorter");
    outside.remove(&lock.counter.key);
    assert_eq!(subject.ask(lock.extend()).await, Answer::Extended);
    assert!(!outside.exists(&lock.counter.key));
    outside.set(&lock.key, b"somebody", None);
    outside.set(&lock.counter.key, b"1", Some(STILL_LONG));
    assert_eq!(subject.ask(lock.extend()).await, Answer::Other);
    assert!(outside.ttl(&lock.counter.key).is_some_and(|ttl| ttl <= STILL_LONG), "left alone");
    lock.remove(subject);
}

/// A node that can be restarted says what it is when it is greeted, wherever in a batch, and shows its
/// marker; one that keeps its promises by itself need not.
pub async fn a_node_that_is_greeted_proves_itself(subject: &Subject) {
    let key = new_key("greeted");
    for marker in [None, Some("a marker")] {
        if let Some(text) = marker {
            subject.outside.set(&subject.marker, text.as_bytes(), None);
        }
        let batch = vec![inspect(&key), Command::Greet, inspect(&key)];
        let Answers { answers, proof } = subject.execute_and_prove(batch).await;
        let free = Answer::Seen(Holding::Free);
        assert_eq!(answers, [free.clone(), Answer::Greeted, free]);
        if let Proof::Seen { info, .. } = proof {
            let info = info.expect("it was greeted").expect("it says what it is");
            let info = Info::parse(&info).expect("all that matters");
            assert!(!info.run_id.is_empty() && info.is_master && !info.is_loading);
        }
        // And of its own accord, whenever it is asked for a vote.
        let value = new_value();
        let batch = vec![acquire(&key, &value, LONG), release(&key, &value)];
        assert_eq!(subject.execute(batch).await, [Answer::Granted, Answer::Deleted]);
        assert_eq!(subject.ask(inspect(&key)).await, Answer::Seen(Holding::Free));
    }
    subject.outside.remove(&subject.marker);
}

/// `Adopt` writes what is not there, replaces what may be replaced, and tells what is there then and
/// for how long it has been.
pub async fn an_adoption_is_written_once_and_grows_old(subject: &Subject) {
    let (key, outside) = (new_key("adopt"), &subject.outside);
    let marker = new_key("marked");
    let ask = async |text: &str, replaces: Option<&str>, seen: Option<&str>| {
        let (replaces, seen) = (replaces.map(Into::into), seen.map(Into::into));
        let (key, text, marker) = (key.clone(), text.into(), marker.clone());
        subject.ask(Command::Adopt { key, text, replaces, marker, seen }).await
    };
    let adopt = async |text: &str, replaces: Option<&str>| match ask(text, replaces, None).await {
        Answer::Adopting { text, age } => (text.to_string(), age),
        other => panic!("an adoption was answered with {other:?}"),
    };
    // The node adds its time of day.
    let is = |written: &str, text: &str| {
        let since = written.strip_prefix(text).and_then(|rest| rest.strip_prefix(" since="));
        since.is_some_and(|since| since.parse::<u64>().is_ok())
    };
    let (young, old) = (Duration::from_secs(30), Duration::from_secs(3600));
    let (text, age) = adopt("first", None).await;
    assert!(is(&text, "first") && age < young, "{text}");
    assert!(outside.ttl(&key).is_some_and(|ttl| ttl + young > LIFE && ttl <= LIFE));
    outside.set(&key, b"first", Some(LIFE - old));
    for (text, replaces) in [("first", None), ("second", None), ("second", Some("third"))] {
        let (kept, age) = adopt(text, replaces).await;
        assert_eq!(kept, "first", "it is another's");
        assert!(age >= old && age < old + young, "{age:?}");
    }
    let (second, age) = adopt("second", Some("first")).await;
    assert!(is(&second, "second") && age < young, "what is new is young");
    outside.remove(&key);
    let (again, _) = adopt("second", None).await;
    assert!(is(&again, "second") && again != second, "no two are the same");
    // Without an expiry its age cannot be told: from now on it can.
    outside.set(&key, second.as_bytes(), None);
    let (text, age) = adopt("second", None).await;
    assert!(text == second && age < young);
    assert!(outside.ttl(&key).is_some_and(|ttl| ttl + young > LIFE && ttl <= LIFE));
    outside.remove(&key);
    // The marker that was seen is taken away; if there is another, nothing is written.
    outside.set(&marker, b"marked", None);
    for seen in [None, Some("another")] {
        assert_eq!(ask("third", None, seen).await, Answer::NotMarked, "{seen:?}");
        assert!(outside.exists(&marker) && !outside.exists(&key));
    }
    let adopted = ask("third", None, Some("marked")).await;
    assert!(matches!(adopted, Answer::Adopting { .. }), "{adopted:?}");
    assert!(!outside.exists(&marker) && outside.exists(&key));
    assert_eq!(ask("third", None, Some("marked")).await, Answer::NotMarked, "it is gone");
    outside.remove(&key);
}

/// `Mark` compares and writes in one step.
pub async fn a_marker_is_written_over_what_was_expected_alone(subject: &Subject) {
    let (key, outside) = (new_key("mark"), &subject.outside);
    let mark = async |text: &str, replaces: Option<&str>| {
        let (text, replaces) = (text.into(), replaces.map(Into::into));
        subject.ask(Command::Mark { key: key.clone(), text, replaces, adoption: None }).await
    };
    assert_eq!(mark("new", Some("old")).await, Answer::NotMarked);
    assert!(!outside.exists(&key));
    assert_eq!(mark("new", None).await, Answer::Marked);
    assert_eq!(outside.value(&key).as_deref(), Some(&b"new"[..]));
    assert_eq!(outside.ttl(&key), None, "it has no time to live");
    for replaces in [None, Some("old"), Some("")] {
        assert_eq!(mark("newer", replaces).await, Answer::NotMarked, "{replaces:?}");
    }
    assert_eq!(outside.value(&key).as_deref(), Some(&b"new"[..]));
    assert_eq!(mark("newer", Some("new")).await, Answer::Marked);
    assert_eq!(outside.value(&key).as_deref(), Some(&b"newer"[..]));
    outside.remove(&key);
}

/// `Mark` with an adoption: only if that is there, the same, and old enough; then it is gone.
pub async fn a_marker_waits_for_its_adoption(subject: &Subject) {
    let (key, other, outside) = (new_key("marker"), new_key("adoption"), &subject.outside);
    let mark = async || {
        let age_ms = millis(LONG);
        let adoption = Some(Adopted { key: other.clone(), text: "adopted".into(), age_ms });
        let (key, text) = (key.clone(), "marked".into());
        subject.ask(Command::Mark { key, text, replaces: None, adoption }).await
    };
    assert_eq!(mark().await, Answer::NotMarked, "there is none");
    for (text, ttl) in [
        ("adopted", Some(LIFE)),
        ("adopted", Some(LIFE - STILL_LONG)),
        ("adopted", None),
        ("another", Some(LIFE - 2 * LONG)),
    ] {
        outside.set(&other, text.as_bytes(), ttl);
        assert_eq!(mark().await, Answer::NotMarked, "{text}, {ttl:?}");
        assert_eq!(outside.value(&other).as_deref(), Some(text.as_bytes()));
    }
    assert!(!outside.exists(&key));
    outside.set(&other, b"adopted", Some(LIFE - 2 * LONG));
    outside.set(&key, b"there already", None);
    assert_eq!(mark().await, Answer::NotMarked);
    assert!(outside.exists(&other));
    outside.remove(&key);
    assert_eq!(mark().await, Answer::Marked);
    assert_eq!(outside.value(&key).as_deref(), Some(&b"marked"[..]));
    assert!(outside.ttl(&key).is_none() && !outside.exists(&other));
    outside.remove(&key);
}

/// A node that has just answered is [`NodeState::Up`], and it can be told from others.
pub async fn the_node_is_up_and_has_a_name(subject: &Subject) {
    assert_eq!(subject.ask(inspect(&new_key("up"))).await, Answer::Seen(Holding::Free));
    assert_eq!(subject.node.state(), NodeState::Up);
    assert!(!subject.node.name().is_empty());
}

/// For so long counters are kept, and adoptions.
const KEPT: Duration = Duration::from_secs(7 * 86_400);
const LIFE: Duration = Duration::from_millis(quorlock_core::marker::Adoption::TTL_MS);

/// A lock with a fence, of a client that may ask for it.
struct Fenced {
    key: Key,
    value: Value,
    counter: Counter,
}

impl Fenced {
    fn new(what: &str) -> Self {
        let (key, marker) = (new_key(&format!("fence:{what}")), new_key("floor"));
        let (counter, ttl_ms) = (format!("{key}:counter").into(), millis(KEPT));
        Self { key, value: new_value(), counter: Counter { key: counter, ttl_ms, marker } }
    }

    fn acquire(&self, proposal: u64) -> Command {
        let Self { key, value, counter } = self;
        let (key, value, counter) = (key.clone(), value.clone(), counter.clone());
        Command::AcquireFenced { key, value, ttl_ms: millis(LONG), counter, proposal }
    }

    fn raise(&self, to: u64) -> Command {
        let Self { key, value, counter } = self;
        Command::Raise { key: key.clone(), value: value.clone(), counter: counter.clone(), to }
    }

    fn heal(&self, to: u64) -> Command {
        let Self { key, value, counter } = self;
        let (key, value, counter) = (key.clone(), value.clone(), counter.clone());
        Command::HealFenced { key, value, ttl_ms: millis(LONG), counter, to }
    }

    fn extend(&self) -> Command {
        let Self { key, value, counter } = self;
        let (key, value, counter) = (key.clone(), value.clone(), counter.clone());
        Command::ExtendFenced { key, value, ttl_ms: millis(LONG), counter }
    }

    /// Sets the counter, past the node; it does not expire.
    fn count(&self, subject: &Subject, counter: &str) {
        subject.outside.set(&self.counter.key, counter.as_bytes(), None);
    }

    fn counter(&self, subject: &Subject) -> Option<String> {
        let counter = subject.outside.value(&self.counter.key);
        counter.map(|digits| String::from_utf8(digits).expect("digits"))
    }

    fn remove(&self, subject: &Subject) {
        for key in [&self.key, &self.counter.key, &self.counter.marker] {
            subject.outside.remove(key);
        }
    }
}

fn acquire(key: &Key, value: &Value, ttl: Duration) -> Command {
    Command::Acquire { key: key.clone(), value: value.clone(), ttl_ms: millis(ttl) }
}

fn extend(key: &Key, value: &Value, ttl: Duration) -> Command {
    Command::Extend { key: key.clone(), value: value.clone(), ttl_ms: millis(ttl) }
}

fn release(key: &Key, value: &Value) -> Command {
    Command::Release { key: key.clone(), value: value.clone(), tell: true }
}

fn inspect(key: &Key) -> Command {
    Command::Inspect { key: key.clone() }
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).expect("the suite's ttls are short")
}

/// Values that are almost, but not quite, the same.
fn not_quite(value: &Value) -> Vec<Vec<u8>> {
    let whole = value.as_bytes();
    let (shorter, mut longer) = (whole[..whole.len() - 1].to_vec(), whole.to_vec());
    longer.push(b' ');
    vec![b"other".to_vec(), Vec::new(), shorter, longer, whole.to_ascii_uppercase()]
}

fn new_key(what: &str) -> Key {
    format!("quorlock-conformance:{}:{what}", new_token()).into()
}

fn new_value() -> Value {
    Value::new(&new_token(), "conformance suite")
}

fn new_token() -> Token {
    let mut bytes = [0; Token::BYTES];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    Token::new(bytes)
}
