//! Behaviour that only real servers have: they forget scripts, and may contain the locks of other libraries.

use std::time::Duration;

use quorlock_core::{
    AcquireForm, Answer, Command, ExtendForm, HealForm, Holding, Keys, ReleaseForm, Token, Value,
};
use quorlock_servers::{Server, ServerOptions};

use crate::common::all_servers;
use crate::node;
use crate::past::Past;
use crate::subject::Subject;
use crate::suite::Outside as _;

const TTL_MS: u64 = 60_000;

fn value(number: u8) -> Value {
    Value::new(&Token::new([number; Token::BYTES]), "")
}

/// If a server does not know a command's script, the node sends the command again with the text of the script. An
/// acquire is not sent again if a later command was already sent to the server.
#[tokio::test]
async fn scripts_that_a_server_has_forgotten_are_sent_again() {
    for binary in all_servers() {
        let server = Server::start(&binary, ServerOptions::default()).unwrap();
        let node = node(&server.url());
        let past = Past::new(server);
        let subject = Subject::new(&node, past.clone());
        let keys = Keys::new(["a".into(), "b".into()]).unwrap();
        let intents = Keys::new(["c".into(), "d".into()]).unwrap();
        let (ours, ttl_ms) = (value(1), TTL_MS);
        let all = || (keys.clone(), ours.clone());
        let steps: Vec<(Command, Answer)> = vec![
            (acquire(all(), AcquireForm::Plain), Answer::Granted),
            (heal(all(), HealForm::Plain), Answer::Granted),
            (extend(all(), ExtendForm::Plain), Answer::Extended),
            (with(all(), |keys, value| Command::Downgrade { keys, value }), Answer::Downgraded),
            (extend(all(), ExtendForm::Shared), Answer::Extended),
            (heal(all(), HealForm::Shared), Answer::Granted),
            (release(all(), ReleaseForm::Shared), Answer::Deleted),
            (
                with(all(), |intents, value| Command::Announce {
                    intents,
                    value,
                    ttl_ms,
                    renews: true,
                }),
                Answer::Announced,
            ),
            (with(all(), |intents, value| Command::Withdraw { intents, value }), Answer::Announced),
            (
                Command::Inspect { keys: keys.clone(), intents: Some(intents.clone()) },
                Answer::Seen(Holding::Free),
            ),
            (
                Command::Watch { keys: keys.clone(), intents: Some(intents.clone()) },
                Answer::Watched(Holding::Free),
            ),
            (acquire(all(), AcquireForm::Shared { intents: intents.clone() }), Answer::Granted),
            (release(all(), ReleaseForm::Shared), Answer::Deleted),
        ];
        for (command, answer) in steps {
            past.command(&["SCRIPT", "FLUSH"]);
            assert_eq!(subject.execute(vec![command.clone()]).await, [answer], "{command:?}");
        }
        // The script of the acquire is unknown. The node must not send the acquire again after its release.
        past.command(&["SCRIPT", "FLUSH"]);
        let shared = || acquire(all(), AcquireForm::Shared { intents: intents.clone() });
        let leave = || release(all(), ReleaseForm::Shared);
        let answers = subject.execute(vec![shared(), leave()]).await;
        assert!(
            matches!(&*answers, [Answer::Failed(failure), Answer::Absent] if !failure.may_have_been_executed()),
            "{answers:?}"
        );
        assert!(!past.exists("a"));
        // Because the acquire above failed, the node sends this one with the text of its script, so it succeeds.
        past.command(&["SCRIPT", "FLUSH"]);
        let answers = subject.execute(vec![shared(), leave()]).await;
        assert_eq!(answers, [Answer::Granted, Answer::Deleted]);
    }
}

/// A Redisson lock is a hash, and its fair locks use lists and sorted sets. An acquire of a reader must leave them
/// unchanged.
#[tokio::test]
async fn locks_of_another_library_are_not_mistaken_for_readers() {
    for binary in all_servers() {
        let server = Server::start(&binary, ServerOptions::default()).unwrap();
        let node = node(&server.url());
        let past = Past::new(server);
        let subject = Subject::new(&node, past.clone());
        let (keys, intents) = (Keys::from("k"), Keys::from("i"));
        let field = "8743c9c0-0795-4907-87fd-6c719a6b4586:1";
        let locks: [&[&str]; 4] = [
            &["HSET", "k", field, "1"],
            &["HSET", "k", "mode", "read", field, "1"],
            &["ZADD", "k", "1795201160638", field],
            &["SADD", "k", field],
        ];
        for lock in locks {
            past.command(lock);
            past.command(&["PEXPIRE", "k", "30000"]);
            let both = || (keys.clone(), value(1));
            let commands = vec![
                acquire(both(), AcquireForm::Shared { intents: intents.clone() }),
                heal(both(), HealForm::Shared),
                extend(both(), ExtendForm::Shared),
                with(both(), |keys, value| Command::Downgrade { keys, value }),
                release(both(), ReleaseForm::Shared),
                Command::Inspect { keys: keys.clone(), intents: None },
            ];
            let answers = subject.execute(commands).await;
            let [
                Answer::Refused,
                Answer::Refused,
                Answer::Other,
                Answer::Other,
                Answer::Other,
                Answer::Seen(Holding::OtherType { ttl: Some(_) }),
            ] = &*answers
            else {
                panic!("{binary}, {lock:?}: {answers:?}")
            };
            assert!(
                past.ttl("k").is_some_and(|ttl| ttl <= Duration::from_secs(30)),
                "its ttl is as before"
            );
            past.remove("k");
        }
    }
}

fn with((keys, value): (Keys, Value), command: impl FnOnce(Keys, Value) -> Command) -> Command {
    command(keys, value)
}

fn acquire((keys, value): (Keys, Value), form: AcquireForm) -> Command {
    Command::Acquire { keys, value, ttl_ms: TTL_MS, form }
}

fn heal((keys, value): (Keys, Value), form: HealForm) -> Command {
    Command::Heal { keys, value, ttl_ms: TTL_MS, form }
}

fn extend((keys, value): (Keys, Value), form: ExtendForm) -> Command {
    Command::Extend { keys, value, ttl_ms: TTL_MS, form }
}

fn release((keys, value): (Keys, Value), form: ReleaseForm) -> Command {
    Command::Release { keys, value, form }
}
