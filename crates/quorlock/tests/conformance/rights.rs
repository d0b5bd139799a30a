//! If a user lacks a permission, a script fails before its first write, so that no command is left half done.

use std::time::Duration;

use quorlock_core::{
    AcquireForm, Answer, AttachForm, Command, ExtendForm, FailureKind, HealForm, Key, Keys,
    ReleaseForm, Token, Value,
};
use quorlock_servers::{Listen, Reply, Server, ServerOptions};

use crate::common::all_servers;
use crate::node;
use crate::past::Past;
use crate::subject::Subject;
use crate::suite::Outside as _;

/// The Redis commands that the scripts for shared locks call.
const RIGHTS: [&str; 12] = [
    "del",
    "get",
    "pexpireat",
    "pttl",
    "time",
    "type",
    "zadd",
    "zcount",
    "zrange",
    "zrem",
    "zremrangebyscore",
    "zscore",
];

const TTL_MS: u64 = 60_000;

/// The content of one key before a command.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Before {
    Nothing,
    /// A reader of another client, and an expired reader.
    Readers,
    /// An expired reader, another client's reader, and the reader of the tested user, which expires last.
    Reader,
    /// The value of the tested user as a writer.
    Writer,
}

use Before::{Nothing, Reader, Readers, Writer};

/// Each entry is one situation before a command: the content of the command's key, or of its two keys.
const SETTINGS: [&[Before]; 8] = [
    &[Nothing],
    &[Readers],
    &[Reader],
    &[Writer],
    &[Reader, Writer],
    &[Writer, Reader],
    &[Nothing, Readers],
    &[Writer, Writer],
];

#[tokio::test]
async fn a_missing_permission_leaves_no_command_half_done() {
    for binary in all_servers() {
        let server = Server::start(&binary, with_port()).unwrap();
        let url = server.url();
        let past = Past::new(server);
        past.command(&["ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all"]);
        let user = url.replace("://", "://reader:secret@");
        let bound = Subject::new(&node(&user), past.clone());
        let (mut failed, mut tried) = (0, 0);
        // The test never removes `get`: without the right to read, no vote counts.
        for right in RIGHTS.iter().filter(|right| **right != "get") {
            for setting in SETTINGS {
                for command in 0..COMMANDS {
                    let lock = Lock::new(&past, setting);
                    let free = lock.command(command);
                    lock.prepare(setting);
                    let allowed = bound.execute(vec![free]).await;
                    lock.remove();

                    past.command(&["ACL", "SETUSER", "reader", &format!("-{right}")]);
                    let lock = Lock::new(&past, setting);
                    lock.prepare(setting);
                    let before = lock.dump();
                    let answers = bound.execute(vec![lock.command(command)]).await;
                    past.command(&["ACL", "SETUSER", "reader", "+@all"]);
                    let what =
                        format!("{binary}: {setting:?}, {right}, {:?}", lock.command(command));
                    tried += 1;
                    match &answers[0] {
                        Answer::Failed(failure) if answers != allowed => {
                            failed += 1;
                            assert_eq!(failure.kind(), FailureKind::Forbidden, "{what}: {failure}");
                            assert_eq!(lock.dump(), before, "{what}");
                        }
                        answer => assert_eq!(*answer, allowed[0], "{what}"),
                    }
                    lock.all_expire(&what);
                    lock.remove();
                }
            }
        }
        assert!(failed > tried / 3, "{failed} of {tried}");
        past.command(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn the_permissions_of_readers_suffice_to_share_a_lock() {
    for binary in all_servers() {
        let server = Server::start(&binary, with_port()).unwrap();
        let url = server.url();
        let past = Past::new(server);
        let rights = RIGHTS.map(|right| format!("+{right}"));
        let words =
            ["ACL", "SETUSER", "reader", "on", ">secret", "~*", "+eval", "+evalsha", "+ping"];
        let rights = rights.iter().map(String::as_str);
        past.command(&words.into_iter().chain(rights).collect::<Vec<_>>());
        let user = url.replace("://", "://reader:secret@");
        let bound = Subject::new(&node(&user), past.clone());
        for setting in SETTINGS {
            for command in 0..COMMANDS {
                let lock = Lock::new(&past, setting);
                lock.prepare(setting);
                let answers = bound.execute(vec![lock.command(command)]).await;
                let is_double = command == 0 && setting.contains(&Reader);
                assert_eq!(
                    matches!(answers[0], Answer::Failed(_)),
                    is_double,
                    "{binary}: {setting:?}, {:?}: {answers:?}",
                    lock.command(command)
                );
                lock.all_expire("with all rights");
                lock.remove();
            }
        }
    }
}

/// The server listens on a TCP port, because a URL with a Unix socket cannot name a user.
fn with_port() -> ServerOptions {
    ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() }
}

/// Number of different commands that [`Lock::command`] returns.
const COMMANDS: usize = 6;

struct Lock {
    past: Past,
    keys: Keys,
    intents: Keys,
    value: Value,
}

impl Lock {
    fn new(past: &Past, setting: &[Before]) -> Self {
        let mut bytes = [0; Token::BYTES];
        getrandom::fill(&mut bytes).unwrap();
        let token = Token::new(bytes);
        let keys =
            Keys::new((0..setting.len()).map(|nth| format!("{token}:{nth}").into())).unwrap();
        let intents = keys.map(|key| format!("{key}:intent").into());
        Self { past: past.clone(), keys, intents, value: Value::new(&token, "") }
    }

    fn prepare(&self, setting: &[Before]) {
        let long = Duration::from_millis(TTL_MS);
        let [ended, other] = [(&b"ended"[..], Duration::ZERO), (&b"other"[..], long / 2)];
        for (key, before) in self.keys.iter().zip(setting) {
            match before {
                Nothing => {}
                Readers => self.past.set_sorted_set(key, &[ended, other], Some(long / 2)),
                // This reader ends earlier than an extended reader would, so that the test sees an extension.
                Reader => {
                    let ours = (self.value.as_bytes(), long / 4 * 3);
                    self.past.set_sorted_set(key, &[ended, other, ours], Some(long / 4 * 3));
                }
                Writer => self.past.set(key, self.value.as_bytes(), Some(long)),
            }
        }
    }

    /// One of the commands for readers; `which` is below [`COMMANDS`].
    fn command(&self, which: usize) -> Command {
        let (keys, intents) = (self.keys.clone(), self.intents.clone());
        let (value, ttl_ms) = (self.value.clone(), TTL_MS);
        match which {
            0 => Command::Acquire { keys, value, ttl_ms, form: AcquireForm::Shared { intents } },
            1 => Command::Heal { keys, value, ttl_ms, form: HealForm::Shared },
            2 => Command::Extend { keys, value, ttl_ms, form: ExtendForm::Shared },
            3 => Command::Downgrade { keys, value },
            4 => {
                let (from, form) = (value, AttachForm::Shared);
                let value = Value::of_caller(b"a new reader");
                Command::Attach { keys, from, value, ttl_ms, form }
            }
            _ => Command::Release { keys, value, form: ReleaseForm::Shared },
        }
    }

    /// The content of each key. Expired readers are left out, because a command may remove them at any time.
    fn dump(&self) -> Vec<(Option<Vec<u8>>, Vec<Reply>)> {
        let members = |key: &Key| match self.past.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"])
        {
            Reply::Array(members) => members
                .chunks(2)
                .filter(|pair| pair[0] != Reply::Bulk(Some(b"ended".to_vec())))
                .flatten()
                .cloned()
                .collect(),
            _ => Vec::new(),
        };
        self.keys.iter().map(|key| (self.past.value(key), members(key))).collect()
    }

    /// Asserts that every key has an expiry, and that a key with readers expires with its last reader.
    fn all_expire(&self, what: &str) {
        for key in &*self.keys {
            let (ttl, members) = (self.past.ttl(key), self.past.sorted_set(key));
            assert_eq!(self.past.exists(key), ttl.is_some(), "it would stay for ever: {what}");
            if let Some(((_, last), ttl)) = members.last().zip(ttl) {
                assert!(last.abs_diff(ttl) < Duration::from_secs(5), "{last:?}, {ttl:?}: {what}");
            }
        }
    }

    fn remove(&self) {
        self.keys.iter().for_each(|key| self.past.remove(key));
    }
}
