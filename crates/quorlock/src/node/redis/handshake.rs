//! The handshake of a new connection: the client logs in, asks what the server can do, and identifies it. All questions
//! together, the greeting, take one round trip.

use std::time::Duration;

use quorlock_core::{Failure, FailureKind};

use super::codec::{Capabilities, code, explanation, kind_of, missing_command};
use super::connect::NotConnected;
use super::evidence::EvidenceQuestions;
use super::lacking::{Lacking, command_calls, command_infos, rights_calls};
use super::registration::Registration;
use super::resp::{self, Reply};
use super::scripts::Scripts;
use super::sentinel::found_instead;
use super::target::Target;
use super::wire::{Replies, Wire};
use crate::text::for_people;

/// The questions of the greeting that identify the server, so that it is known before it is asked for a vote.
pub(super) struct Identification<'a> {
    pub(super) questions: EvidenceQuestions,
    pub(super) registration: Option<&'a Registration>,
    pub(super) marker: &'a [u8],
}

/// The commands that log in, ask what the server can do, and identify it.
pub(super) fn handshake(
    target: &Target,
    scripts: &Scripts,
    (resp2, name): (bool, &str),
    identification: Option<&Identification<'_>>,
) -> Handshake {
    let mut handshake = Handshake::default();
    let login = target.login();
    if !resp2 {
        let mut hello = vec!["HELLO", "3"];
        if let Some((user, password)) = login {
            hello.extend(["AUTH", user.unwrap_or("default"), password]);
        }
        // In `HELLO` the name needs no right.
        hello.extend(["SETNAME", name]);
        handshake.add(Purpose::Login, &hello);
    } else if let Some((user, password)) = login {
        let words = ["AUTH"].into_iter().chain(user).chain([password]);
        handshake.add(Purpose::Login, &words.collect::<Vec<_>>());
    }
    if target.database != 0 {
        handshake.add(Purpose::Database, &["SELECT", &target.database.to_string()]);
    }
    // The reply shows whether the server still requires a log-in.
    handshake.add(Purpose::LoggedIn, &["PING"]);
    if resp2 {
        handshake.add(Purpose::Convenience, &["CLIENT", "SETNAME", name]);
    }
    handshake.add(Purpose::Convenience, &["CLIENT", "SETINFO", "LIB-NAME", "quorlock"]);
    let version = env!("CARGO_PKG_VERSION");
    handshake.add(Purpose::Convenience, &["CLIENT", "SETINFO", "LIB-VER", version]);
    if !resp2 {
        // The server pushes changes of the keys that this connection watches, except for changes by this connection.
        handshake.add(Purpose::Watching, &["CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"]);
    }
    for words in command_infos() {
        handshake.add(Purpose::Capabilities { names: words.len() - 2 }, &words);
    }
    for words in rights_calls() {
        handshake.add(Purpose::Rights, &words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for text in scripts.texts() {
        handshake.add(Purpose::Convenience, &["SCRIPT", "LOAD", text]);
    }
    if let Some(Identification { questions, registration, marker }) = identification {
        // The server's version is not known yet, so it is asked for all sections of `INFO`.
        questions.write_preamble(false, *registration, &mut handshake.bytes);
        questions.write_epilogue(Some(marker), None, &mut handshake.bytes);
        let replies = questions.preamble_replies + questions.epilogue_replies();
        handshake.purposes.extend(vec![Purpose::Identity; replies]);
    }
    handshake
}

/// The meaning of the replies to a handshake.
pub(super) struct Greeted {
    pub(super) capabilities: Capabilities,
    /// The time from the handshake to the reply to the log-in.
    pub(super) round_trip: Duration,
    /// The replies to [`Identification`].
    pub(super) identity: Vec<Reply>,
    /// Number of times that the server had announced, before the first and before the last reply, that its data were
    /// replaced.
    pub(super) flushes: (u64, u64),
}

/// The commands on a new connection, and the purpose of each.
#[derive(Default)]
pub(super) struct Handshake {
    bytes: Vec<u8>,
    purposes: Vec<Purpose>,
}

#[derive(Clone, Copy)]
enum Purpose {
    Login,
    LoggedIn,
    Database,
    Watching,
    /// Asks which commands the server has. `names` is the number of commands in the question.
    Capabilities {
        names: usize,
    },
    /// Asks for the user's missing rights.
    Rights,
    /// Identifies the server, before any command is sent.
    Identity,
    /// A failure is ignored, because a user without the right to this command may still lock.
    Convenience,
}

impl Handshake {
    fn add(&mut self, purpose: Purpose, words: &[&str]) {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        resp::write(&mut self.bytes, &words);
        self.purposes.push(purpose);
    }

    pub(super) async fn exchange(
        self,
        wire: &mut Wire,
        resp2: bool,
        target: &Target,
    ) -> Result<Greeted, NotConnected> {
        let logs_in = target.login().is_some();
        let (purposes, Replies { replies, round_trip, flushes }) = self.answers(wire).await?;
        let (mut capabilities, mut identity) = (Capabilities::default(), Vec::new());
        let (mut infos, mut knows_commands, mut rights) = (Vec::new(), true, Vec::new());
        for (purpose, reply) in purposes.into_iter().zip(replies) {
            match (purpose, reply) {
                (Purpose::Login, Reply::Error(error))
                    if !resp2 && knows_no_resp3(&error, logs_in) =>
                {
                    return Err(NotConnected::OnlyResp2);
                }
                (Purpose::Login, Reply::Error(error)) => {
                    return Err(not_logged_in(&error, logs_in).into());
                }
                (Purpose::LoggedIn, Reply::Error(error)) if code(&error) == "NOAUTH" => {
                    return Err(not_logged_in(&error, logs_in).into());
                }
                // The connection is useless, because the same keys in another database are different locks.
                (Purpose::Database, Reply::Error(error)) => {
                    return Err(no_database(&error, target.database).into());
                }
                (Purpose::Login, Reply::List(about)) if !resp2 && speaks_resp3(&about) => {
                    if field(&about, "mode").and_then(Reply::text) == Some("sentinel") {
                        return Err(found_instead(target).into());
                    }
                    capabilities.sections = tells_sections(&about);
                }
                (Purpose::LoggedIn, Reply::Error(_)) => {}
                (Purpose::LoggedIn, Reply::Text(pong)) if pong == "PONG" => {}
                (Purpose::Login, Reply::Okay) if resp2 => {}
                (Purpose::Database, Reply::Okay) => {}
                (Purpose::Login | Purpose::LoggedIn | Purpose::Database, _) => {
                    return Err(NotConnected::Because(stranger()));
                }
                (Purpose::Watching, reply) => capabilities.watches = reply == Reply::Okay,
                (Purpose::Capabilities { names }, Reply::List(some)) if some.len() == names => {
                    infos.extend(some);
                }
                (Purpose::Capabilities { .. }, _) => knows_commands = false,
                (Purpose::Rights, reply) => rights.push(reply),
                (Purpose::Identity, reply) => identity.push(reply),
                (Purpose::Convenience, _) => {}
            }
        }
        if knows_commands {
            capabilities.note_commands(&infos);
        } else {
            let mut questions = Self::default();
            command_calls().for_each(|words| questions.add(Purpose::Convenience, &words));
            capabilities.lacking = Lacking::of_calls(&questions.answers(wire).await?.1.replies);
        }
        let deletes = capabilities.delete.is_some();
        capabilities.lacking = capabilities.lacking.with_rights(&rights, deletes);
        Ok(Greeted { capabilities, round_trip, identity, flushes })
    }

    /// Sends all commands, and waits for the replies.
    async fn answers(self, wire: &mut Wire) -> Result<(Vec<Purpose>, Replies), NotConnected> {
        let Self { bytes, purposes } = self;
        let replies = wire.ask_timed(|out| {
            out.extend_from_slice(&bytes);
            purposes.len()
        });
        let replies = replies.await.map_err(|failure| match wire.last_words() {
            Some(error) => refused(error),
            None => unsent(&failure),
        })?;
        Ok((purposes, replies))
    }
}

/// Whether the reply to `HELLO` confirms RESP3. A server that replies with any other list does not speak it.
fn speaks_resp3(about: &[Reply]) -> bool {
    field(about, "proto") == Some(&Reply::Int(3))
}

/// A field of the reply to `HELLO`.
fn field<'a>(about: &'a [Reply], name: &str) -> Option<&'a Reply> {
    about.chunks_exact(2).find(|pair| pair[0].text() == Some(name)).map(|pair| &pair[1])
}

/// Whether the server can be asked for several sections of its `INFO` at a time, as from version 7.0 on.
fn tells_sections(about: &[Reply]) -> bool {
    let version = field(about, "version").and_then(Reply::text);
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    major.is_some_and(|major| major >= 7)
}

/// Whether `HELLO` failed because the server does not have the command. Some of these servers answer `NOAUTH` to
/// unknown commands, even to this `HELLO`, which contains the log-in.
fn knows_no_resp3(error: &str, logs_in: bool) -> bool {
    code(error) == "NOPROTO"
        || code(error) == "NOAUTH" && logs_in
        || explanation(error).starts_with("unknown command")
}

/// Whether an error is about the log-in. Some servers have no error code for a password that is not configured, so the
/// text decides.
fn is_about_login(error: &str) -> bool {
    let error = error.to_ascii_lowercase();
    error.contains("auth") || error.contains("password")
}

/// The failure if the reply to the log-in is an error.
pub(super) fn not_logged_in(error: &str, logs_in: bool) -> Failure {
    let detail = match code(error) {
        "NOAUTH" => "a password is needed".to_owned(),
        "WRONGPASS" => for_people(explanation(error)),
        "ERR" if logs_in && is_about_login(error) => for_people(explanation(error)),
        _ => return refused(error),
    };
    Failure::unsent(FailureKind::Unauthenticated).with_detail(detail)
}

fn refused(error: &str) -> Failure {
    if let Some(missing) = missing_command(error) {
        return missing;
    }
    let kind = match kind_of(code(error)) {
        FailureKind::Rejected => FailureKind::Unreachable,
        kind => kind,
    };
    if error.contains("max number of clients") {
        let detail = "the server has no client connection left (its limit is maxclients)";
        return Failure::unsent(kind).with_detail(detail);
    }
    let detail = if code(error) == "ERR" { explanation(error) } else { error };
    Failure::unsent(kind).with_detail(for_people(detail))
}

/// The failure if the server does not select the database.
fn no_database(error: &str, database: u32) -> Failure {
    if !error.contains("DB index is out of range") {
        return refused(error);
    }
    Failure::unsent(FailureKind::Unreachable).with_detail(format!(
        "the server has no database {database} (DB index is out of range); use a lower number in the URL, or a larger \
         `databases` in the server's configuration"
    ))
}

/// The failure of a connection that broke during the handshake, before any command of a caller was sent.
fn unsent(failure: &Failure) -> Failure {
    match (failure.kind(), failure.detail()) {
        (FailureKind::Protocol, _) | (_, None) => stranger(),
        (kind, Some(detail)) => Failure::unsent(kind).with_detail(detail),
    }
}

/// The failure if the messages are not those of Redis or Valkey.
fn stranger() -> Failure {
    Failure::unsent(FailureKind::Unreachable).with_detail("this is no Redis or Valkey")
}

#[cfg(test)]
mod tests {
    use quorlock_core::NodeId;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::node::Inbox;

    /// Ten segments of 1460 bytes leave before the first acknowledgement, so a longer greeting costs one more round trip.
    /// The identification has less than 1 000 bytes without the client's prefix.
    #[test]
    fn the_greeting_fits_the_first_window_of_tcp() {
        let target = Target::parse("rediss://user:password@host/15").unwrap();
        for resp2 in [false, true] {
            let greeting = handshake(&target, &Scripts::new(), (resp2, &"n".repeat(90)), None);
            assert!(greeting.bytes.len() <= 13_000, "{}", greeting.bytes.len());
        }
    }

    /// The outcome of a handshake in which the server replies `answer` to the log-in, and then answers a `PING`.
    async fn after_login(resp2: bool, answer: &str) -> Result<Greeted, NotConnected> {
        let (ours, mut server) = duplex(1024);
        let mut wire = Wire::new(Box::new(ours), Inbox::new(1).push_sink(NodeId::new(0)));
        let mut handshake = Handshake::default();
        let login: &[&str] = if resp2 { &["AUTH", "x"] } else { &["HELLO", "3"] };
        let target = Target::parse(if resp2 { "redis://:x@h" } else { "redis://h" }).unwrap();
        handshake.add(Purpose::Login, login);
        handshake.add(Purpose::LoggedIn, &["PING"]);
        let serve = async {
            let mut read = [0; 64];
            assert!(server.read(&mut read).await.unwrap() > 0);
            server.write_all(format!("{answer}+PONG\r\n").as_bytes()).await.unwrap();
            // The server keeps the connection open until the client closes it.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            greeted = handshake.exchange(&mut wire, resp2, &target) => greeted,
            () = serve => unreachable!(),
        }
    }

    #[test]
    fn the_url_to_use_for_a_sentinel_can_be_read() {
        for (url, named) in [
            ("redis://h:1", "redis+sentinel://h:1/NAME?replicas=1"),
            ("unix:///run/sentinel.sock", "redis+sentinel://HOST:26379/NAME?replicas=1"),
        ] {
            let failure = found_instead(&Target::parse(url).unwrap()).to_string();
            assert!(failure.contains(&format!("use {named}, ")), "{failure}");
            assert!(Target::parse(named).unwrap().sentinels.is_some());
        }
    }

    /// If the client sent no password, an error of a server that is not ready must not be reported as a failed log-in.
    #[tokio::test(start_paused = true)]
    async fn an_error_is_about_the_login_only_if_there_was_one() {
        let kind = async |resp2, answer| match after_login(resp2, answer).await.err() {
            Some(NotConnected::Because(failure)) => failure.kind(),
            _ => panic!("{answer}"),
        };
        let strange = "-ERR max number of clients reached\r\n";
        assert_eq!(kind(false, strange).await, FailureKind::Unreachable);
        assert_eq!(kind(true, strange).await, FailureKind::Unreachable);
        let no_password = "-ERR Client sent AUTH, but no password is set\r\n";
        assert_eq!(kind(true, no_password).await, FailureKind::Unauthenticated);
        assert_eq!(kind(false, "-NOAUTH log in\r\n").await, FailureKind::Unauthenticated);
        assert_eq!(kind(false, "-LOADING wait\r\n").await, FailureKind::Loading);
    }

    /// The server answers `COMMAND INFO` with a list of the wrong length, which does not show which commands are
    /// missing. So the client tries each command.
    #[tokio::test(start_paused = true)]
    async fn a_list_of_commands_that_does_not_fit_says_nothing() {
        let (ours, mut server) = duplex(4096);
        let mut wire = Wire::new(Box::new(ours), Inbox::new(1).push_sink(NodeId::new(0)));
        let mut handshake = Handshake::default();
        handshake.add(Purpose::Capabilities { names: 3 }, &["COMMAND", "INFO", "A", "B", "C"]);
        let target = Target::parse("redis://h").unwrap();
        let serve = async {
            let mut read = [0; 4096];
            assert!(server.read(&mut read).await.unwrap() > 0);
            server.write_all(b"*2\r\n_\r\n_\r\n").await.unwrap();
            let length = server.read(&mut read).await.unwrap();
            assert!(read[..length].starts_with(b"*1\r\n$4\r\nINFO\r\n"));
            for [name] in command_calls() {
                let answer = match name {
                    "EVAL" => "-ERR unknown command 'EVAL'\r\n",
                    _ => "-ERR wrong number of arguments\r\n",
                };
                server.write_all(answer.as_bytes()).await.unwrap();
            }
            std::future::pending::<()>().await;
        };
        let Greeted { capabilities, .. } = tokio::select! {
            greeted = handshake.exchange(&mut wire, false, &target) => greeted.ok().unwrap(),
            () = serve => unreachable!(),
        };
        assert!(capabilities.delete.is_none());
        let failure = capabilities.lacking.no_locks(true).unwrap().to_string();
        assert!(failure.contains("no command EVAL (renamed"), "{failure}");
    }

    /// A server that answers `HELLO 3` like any other command does not speak RESP3: it would never push, or it is
    /// neither Redis nor Valkey.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_ok_to_hello_does_not_speak_resp3() {
        let map = "%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n";
        assert!(after_login(false, map).await.is_ok());
        for answer in [
            "+OK\r\n",
            "+PONG\r\n",
            ":3\r\n",
            "$2\r\nOK\r\n",
            "_\r\n",
            "$-1\r\n",
            "*2\r\n+HELLO\r\n:3\r\n",
            "*0\r\n",
            "%1\r\n+proto\r\n:2\r\n",
        ] {
            let refused = after_login(false, answer).await.err();
            let Some(NotConnected::Because(failure)) = refused else { panic!("{answer:?}") };
            assert_eq!(failure.detail(), Some("this is no Redis or Valkey"), "{answer:?}");
            assert!(!failure.may_have_been_executed(), "nothing but a greeting was sent");
        }
        // In RESP2 the reply to the log-in must be `OK`, and a map is refused.
        assert!(after_login(true, "+OK\r\n").await.is_ok());
        assert!(after_login(true, map).await.is_err());
    }
}
