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

mod batches;
mod fences;
mod intents;
mod markers;
mod readers;
mod several;
mod subject;
mod votes;

use std::time::Duration;

use quorlock_core::Token;

use super::{Answer, Command, Holding, Key, Keys, MemoryNode, Node, Value};

pub use self::batches::*;
pub use self::fences::*;
pub use self::intents::*;
pub use self::markers::*;
pub use self::readers::*;
pub use self::several::*;
pub use self::subject::Subject;
pub use self::votes::*;

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

    /// Sets a key to a sorted set, whose scores are times of the node's clock so far from now, in milliseconds; to
    /// expire after `ttl` from the same now, or never.
    fn set_sorted_set(&self, key: &str, members: &[(&[u8], Duration)], ttl: Option<Duration>);

    /// The sorted set under a key, if there is one: its members in order, and how far their scores are from now.
    fn sorted_set(&self, key: &str) -> Vec<(Vec<u8>, Duration)>;

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

    fn set_sorted_set(&self, key: &str, members: &[(&[u8], Duration)], ttl: Option<Duration>) {
        self.insert_sorted_set(key, members, ttl);
    }

    fn sorted_set(&self, key: &str) -> Vec<(Vec<u8>, Duration)> {
        self.members_of(key)
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

/// The ttl of keys that are not meant to expire during the test, and a lower bound for what is left
/// of it: far enough from it for a slow machine, near enough to tell units apart.
const LONG: Duration = Duration::from_secs(60);
const STILL_LONG: Duration = Duration::from_secs(30);

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
    several_keys_are_granted_together_or_not_at_all(&subject).await;
    overlapping_sets_of_keys_exclude_each_other(&subject).await;
    several_keys_are_extended_together_or_not_at_all(&subject).await;
    a_heal_completes_the_keys_or_does_nothing(&subject).await;
    a_release_deletes_those_of_the_keys_that_are_ours(&subject).await;
    an_inspection_tells_what_each_key_holds(&subject).await;
    each_of_several_watched_keys_is_spoken_of(&subject).await;
    a_fenced_grant_sets_all_counters_to_one_number(&subject).await;
    fences_of_several_keys_move_together_or_not_at_all(&subject).await;
    a_corrupt_counter_refuses_all_the_keys(&subject).await;
    readers_share_a_key_and_keep_writers_out(&subject).await;
    a_key_expires_with_the_last_reader_that_is_left(&subject).await;
    a_reader_that_crashed_keeps_writers_out_for_its_own_ttl(&subject).await;
    a_reader_that_has_ended_counts_no_more(&subject).await;
    an_extension_of_a_reader_lengthens_and_never_shortens(&subject).await;
    a_heal_gives_a_reader_its_vote_again(&subject).await;
    a_reader_that_is_there_already_was_added_by_another_name(&subject).await;
    readers_touch_nothing_of_others(&subject).await;
    a_key_has_so_many_readers_and_no_more(&subject).await;
    a_look_at_all_that_there_may_be_is_answered(&subject).await;
    a_reader_has_all_of_its_keys_or_none(&subject).await;
    a_release_takes_a_reader_from_where_it_is(&subject).await;
    a_change_of_readers_is_spoken_of(&subject).await;
    an_intent_keeps_new_readers_out(&subject).await;
    an_intent_is_left_where_there_is_none_and_taken_back_where_it_is_ours(&subject).await;
    a_look_tells_readers_of_an_intent(&subject).await;
    a_writer_becomes_a_reader_for_as_long_as_it_had(&subject).await;
    a_downgrade_needs_our_lock(&subject).await;
    what_meets_a_downgrade_finds_the_lock_all_the_same(&subject).await;
    a_key_without_expiry_gets_one_from_its_next_extension(&subject).await;
    a_node_that_is_greeted_proves_itself(&subject).await;
    an_adoption_is_written_once_and_grows_old(&subject).await;
    a_marker_is_written_over_what_was_expected_alone(&subject).await;
    a_marker_waits_for_its_adoption(&subject).await;
    the_node_is_up_and_has_a_name(&subject).await;
}

/// For so long counters are kept, and adoptions.
const KEPT: Duration = Duration::from_secs(7 * 86_400);
const LIFE: Duration = Duration::from_millis(quorlock_core::marker::Adoption::TTL_MS);

fn acquire(keys: &(impl Clone + Into<Keys>), value: &Value, ttl: Duration) -> Command {
    Command::Acquire { keys: keys.clone().into(), value: value.clone(), ttl_ms: millis(ttl) }
}

fn extend(keys: &(impl Clone + Into<Keys>), value: &Value, ttl: Duration) -> Command {
    Command::Extend { keys: keys.clone().into(), value: value.clone(), ttl_ms: millis(ttl) }
}

fn release(keys: &(impl Clone + Into<Keys>), value: &Value) -> Command {
    Command::Release { keys: keys.clone().into(), value: value.clone(), tell: true }
}

fn inspect(keys: &(impl Clone + Into<Keys>)) -> Command {
    Command::Inspect { keys: keys.clone().into(), intents: None }
}

fn watch(keys: &(impl Clone + Into<Keys>)) -> Command {
    Command::Watch { keys: keys.clone().into(), intents: None }
}

/// What an inspection sees.
async fn see(subject: &Subject, keys: &Keys) -> Holding {
    match subject.ask(inspect(keys)).await {
        Answer::Seen(holding) => holding,
        other => panic!("an inspection of {keys:?} was answered with {other:?}"),
    }
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

fn new_keys(what: &str, count: usize) -> Keys {
    let token = new_token();
    let keys = (0..count).map(|nth| format!("quorlock-conformance:{token}:{what}:{nth:02}").into());
    Keys::new(keys).expect("some, and not too many")
}

fn new_value() -> Value {
    Value::new(&new_token(), "conformance suite")
}

fn new_token() -> Token {
    let mut bytes = [0; Token::BYTES];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    Token::new(bytes)
}
