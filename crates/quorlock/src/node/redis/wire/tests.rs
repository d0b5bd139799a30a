use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use quorlock_core::{
    AcquireForm, Answer, BatchId, Command, Event, Exchange, MarkerSeen, NodeId, Session, Token,
    Value,
};

use super::super::codec::Encoding;
use super::super::evidence::{EvidenceQuestions, ask_marker};
use super::super::resp::{self, BYTES_KEPT};
use super::*;

use crate::node::{Inbox, Key};

impl Wire {
    /// How long replies have been missing; `None` if none are awaited.
    fn silent_for(&self) -> Option<Duration> {
        let started = Instant::now() - Duration::from_secs(60);
        let Activity { is_awaited, heard_at } = self.activity(started);
        is_awaited.then(|| started.elapsed() - heard_at)
    }

    /// The next batch that has its replies, or will not get them. `None` if the wire is closed and no batch is
    /// left.
    async fn finished(&mut self) -> Option<Box<WireBatch>> {
        poll_fn(|cx| {
            let closed = self.poll(cx);
            match self.next_finished() {
                None if closed.is_pending() => Poll::Pending,
                finished => Poll::Ready(finished),
            }
        })
        .await
    }

    /// The replies to the next plain batch; `None` if it was not answered.
    async fn replies(&mut self) -> Option<Vec<Reply>> {
        let batch = self.finished().await.unwrap();
        batch.flushes.map(|_| batch.preamble)
    }

    async fn run(&mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }
}

/// A wire, the server's end of its pipe, which holds `size` bytes, and the inbox of the pushes.
fn pair(size: usize) -> (Wire, DuplexStream, Inbox) {
    let (ours, theirs) = duplex(size);
    let inbox = Inbox::new(1);
    (Wire::new(Box::new(ours), inbox.push_sink(NodeId::new(0))), theirs, inbox)
}

fn pushed(inbox: &Inbox) -> Vec<Event> {
    let mut events = Vec::new();
    inbox.take(&mut Context::from_waker(Waker::noop()), &mut events);
    events
}

fn ping(out: &mut Vec<u8>) -> usize {
    resp::write(out, &[b"PING"]);
    1
}

#[tokio::test(start_paused = true)]
async fn replies_come_in_order_in_whatever_pieces() {
    let (mut wire, mut server, inbox) = pair(7);
    let exchange = async {
        wire.send_plain(|out| ping(out) + ping(out)).unwrap();
        wire.send_plain(ping).unwrap();
        assert_eq!(wire.replies().await.unwrap(), [Reply::Okay, Reply::Int(2)]);
        assert_eq!(wire.replies().await.unwrap(), [Reply::Nil]);
        assert_eq!(wire.ask(|_| 0).await.unwrap(), [], "no command gets no reply");
        assert_eq!(wire.silent_for(), None);
    };
    let serve = async {
        let mut commands = [0; 3 * 14];
        server.read_exact(&mut commands).await.unwrap();
        assert_eq!(commands[..14], *b"*1\r\n$4\r\nPING\r\n");
        let push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
        for part in [&b"+O"[..], b"K\r", b"\n:2\r\n", push, b"_\r\n"] {
            server.write_all(part).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(exchange, serve);
    let keys = Some(vec![Key::from("k")]);
    assert_eq!(pushed(&inbox), [Event::Pushed { node: NodeId::new(0), keys }]);
}

/// A push that announces replaced data applies to the replies that follow it in the stream.
#[tokio::test(start_paused = true)]
async fn a_batch_counts_the_flushes_before_its_first_and_its_last_reply() {
    let (mut wire, mut server, inbox) = pair(1024);
    let exchange = async {
        for _ in 0..4 {
            wire.send_plain(|out| ping(out) + ping(out)).unwrap();
        }
        let mut flushes = Vec::new();
        for _ in 0..4 {
            flushes.push(wire.finished().await.unwrap().flushes.unwrap());
        }
        assert_eq!(flushes, [(0, 0), (1, 1), (1, 2), (2, 2)]);
    };
    let serve = async {
        let mut commands = [0; 8 * 14];
        server.read_exact(&mut commands).await.unwrap();
        let one = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
        let input =
            format!(":1\r\n:1\r\n{FLUSH}:2\r\n{one}:2\r\n:3\r\n{FLUSH}:3\r\n:4\r\n:4\r\n{FLUSH}");
        server.write_all(input.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = exchange => {}
        () = serve => unreachable!(),
    }
    // The inbox combines all flushes since the last `take` into one event.
    assert!(pushed(&inbox).contains(&Event::Pushed { node: NodeId::new(0), keys: None }));
}

const FLUSH: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

/// Sends a command about votes, which is written as `PING`, and then asks for the marker.
fn ask(wire: &mut Wire) {
    let mut session = Session::new(true);
    // The first batch of a connection also requests `INFO`, so an empty batch goes first.
    session.prepare(&mut Exchange::default());
    let value = Value::new(&Token::new([7; 20]), "");
    let command =
        Command::Acquire { keys: "k".into(), value, ttl_ms: 1000, form: AcquireForm::Plain };
    let mut batch = Box::<WireBatch>::default();
    batch.exchange = Exchange::new(BatchId(0), vec![command]);
    session.prepare(&mut batch.exchange);
    let questions = EvidenceQuestions::new(batch.exchange.evidence_request(), false, None);
    assert!(questions.request.marker && questions.preamble_replies == 0);
    batch.prepare(Encoding { watches: true, ..Encoding::default() }, questions);
    let write = |out: &mut Vec<u8>, batch: &WireBatch| {
        let replies = ping(out);
        out.extend_from_slice(&ask_marker(&"m".into()));
        replies + batch.questions.epilogue_replies()
    };
    assert!(wire.send(batch, write).is_ok());
}

/// The marker of 1000 bytes is too long to be read in place, so the parser reads it.
#[tokio::test(start_paused = true)]
async fn a_marker_is_read_wherever_it_is_split_and_flushes_around_it_are_counted() {
    for size in [1, 50, 150, 1000] {
        let text = "m".repeat(size);
        let marker = format!("${size}\r\n{text}\r\n");
        let input = format!("+OK\r\n{FLUSH}{marker}{FLUSH}_\r\n{marker}:7\r\n");
        for place in 0..input.len() {
            let (mut wire, mut server, inbox) = pair(1 << 16);
            ask(&mut wire);
            ask(&mut wire);
            wire.send_plain(ping).unwrap();
            let exchange = async {
                let mut finished = Vec::new();
                for _ in 0..2 {
                    let mut batch = wire.finished().await.unwrap();
                    assert!(batch.in_step);
                    assert_eq!(batch.marker, MarkerSeen::Text(text.as_str().into()));
                    let (answers, _) = batch.exchange.take();
                    let answers: Vec<_> = answers.into_iter().map(|(_, it)| it).collect();
                    finished.push((answers, batch.flushes));
                }
                let [granted, refused] = [Answer::Granted, Answer::Refused].map(|it| vec![it]);
                assert_eq!(finished, [(granted, Some((0, 1))), (refused, Some((2, 2)))]);
                assert_eq!(wire.replies().await.unwrap(), [Reply::Int(7)]);
            };
            let serve = async {
                let (start, end) = input.split_at(place);
                for part in [start, end] {
                    server.write_all(part.as_bytes()).await.unwrap();
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            };
            tokio::select! {
                () = exchange => {}
                () = serve => panic!("of {size}, split at {place}: not read"),
            }
            assert!(pushed(&inbox).contains(&Event::Pushed { node: NodeId::new(0), keys: None }));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_does_not_fit_closes_the_wire_and_answers_no_command() {
    for (input, count) in [(&b":1\r\n:2\r\n"[..], 1), (b"oops\r\n", 2), (b":1\r\n", 2)] {
        let (mut wire, mut server, _events) = pair(1024);
        wire.send_plain(|out| (0..count).map(|_| ping(out)).sum()).unwrap();
        server.write_all(input).await.unwrap();
        drop(server);
        wire.run().await;
        assert!(wire.is_closed());
        let out_of_step = input != b":1\r\n";
        assert_eq!(wire.why_closed().kind() == FailureKind::Protocol, out_of_step);
        assert!(wire.why_closed().may_have_been_executed());
        assert_eq!(wire.why_out_of_step().is_some(), out_of_step);
        assert_eq!(wire.replies().await.is_some(), input.starts_with(b":1\r\n:2"), "{input:?}");
        let failure = wire.send_plain(ping).unwrap_err();
        assert!(!failure.may_have_been_executed(), "nothing is sent on a closed wire");
    }
}

/// The second batch shows that the stream is out of step. The replies to the first, which arrived in the same poll, do
/// not count either (S22), also if they came in an earlier read of it.
#[tokio::test(start_paused = true)]
async fn a_misfit_in_a_later_batch_is_known_before_the_earlier_batch_is_judged() {
    for size in [1, 2 * READ_SIZE] {
        let (mut wire, mut server, _events) = pair(1 << 16);
        ask(&mut wire);
        ask(&mut wire);
        let first = format!("+OK\r\n${size}\r\n{}\r\n", "m".repeat(size));
        server.write_all(format!("{first}:7\r\n").as_bytes()).await.unwrap();
        let answered = wire.finished().await.unwrap();
        assert!(answered.flushes.is_some() && wire.why_out_of_step().is_some(), "{size}");
        assert_eq!(wire.finished().await.unwrap().flushes, None);
    }
}

/// Such a batch is no sign of life, and no evidence.
#[test]
fn a_batch_that_sends_nothing_has_no_replies() {
    let (mut wire, _server, _events) = pair(16);
    assert!(wire.send(Box::default(), |_, _| 0).is_ok());
    let batch = wire.next_finished().unwrap();
    assert!(batch.flushes.is_some() && !batch.has_replies());
}

/// The wire detects the broken connection before it parses the last input. The wire must still report that the stream
/// was out of step (S22).
#[test]
fn that_something_was_out_of_step_is_not_hidden_by_a_broken_connection() {
    let (mut wire, _server, _events) = pair(16);
    wire.close(lost("the server has closed the connection"));
    assert_eq!(wire.why_out_of_step(), None);
    wire.close(out_of_step("its answers do not fit"));
    assert!(wire.why_out_of_step().is_some());
    wire.close(lost("connection lost"));
    assert!(wire.why_out_of_step().is_some(), "nor by what comes later");
}

#[tokio::test(start_paused = true)]
async fn an_error_before_the_server_closes_the_connection_is_kept() {
    let (mut wire, mut server, _events) = pair(1024);
    wire.send_plain(|out| ping(out) + ping(out)).unwrap();
    server.write_all(b"-ERR max number of clients reached\r\n").await.unwrap();
    drop(server);
    assert_eq!(wire.replies().await, None);
    assert_eq!(wire.last_words().unwrap(), "ERR max number of clients reached");
}

#[tokio::test(start_paused = true)]
async fn a_strangers_value_of_any_length_takes_no_room() {
    let (mut wire, mut server, _events) = pair(1 << 16);
    let size = 40 * BYTES_KEPT;
    let exchange = async {
        let replies = wire.ask(|out| ping(out) + ping(out)).await.unwrap();
        assert_eq!(replies, [Reply::Bytes(vec![b'x'; BYTES_KEPT]), Reply::Int(7)]);
        assert!(wire.incoming.bytes.capacity() < 2 * BYTES_KEPT);
    };
    let serve = async {
        server.write_all(format!("${size}\r\n").as_bytes()).await.unwrap();
        server.write_all(&vec![b'x'; size]).await.unwrap();
        server.write_all(b"\r\n:7\r\n").await.unwrap();
    };
    tokio::join!(exchange, serve);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_pushes_ends_the_wire_and_pushes_that_were_asked_for_do_not() {
    const PUSH: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
    for asked_for in [false, true] {
        let (mut wire, mut server, inbox) = pair(1 << 16);
        for _ in 0..3 * Allowance::MAX / 64 {
            if asked_for {
                wire.expect_pushes(64);
            }
            if server.write_all(&PUSH.repeat(64)).await.is_err() {
                break;
            }
            let _ = futures_util::FutureExt::now_or_never(wire.run());
        }
        assert_eq!(wire.is_closed(), !asked_for);
        assert_eq!(wire.why_closed().kind() == FailureKind::Flooding, !asked_for);
        assert_eq!(pushed(&inbox).len(), 1);
    }
    // A few hundred flushes a second are no flood.
    let (mut wire, mut server, _inbox) = pair(1 << 16);
    let flushes = b">2\r\n$10\r\ninvalidate\r\n_\r\n".repeat(500);
    let serve = async {
        for _ in 0..2 * Allowance::MAX / 500 {
            server.write_all(&flushes).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! { () = wire.run() => {} () = serve => {} }
    assert!(!wire.is_closed(), "{}", wire.why_closed());
}

#[tokio::test(start_paused = true)]
async fn an_answer_before_the_question_is_none() {
    let (mut wire, mut server, _inbox) = pair(16);
    wire.send_plain(|out| ping(out) + ping(out)).unwrap();
    server.write_all(b"+OK\r\n+OK\r\n").await.unwrap();
    wire.run().await;
    assert_eq!(wire.why_closed().kind(), FailureKind::Protocol);
    assert_eq!(wire.replies().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_marker_before_its_question_is_none() {
    // The pipe has room for the command and a part of the question for the marker. The server answers before it has the
    // whole question, so its second reply cannot be the marker.
    let (mut wire, mut server, _inbox) = pair(16);
    ask(&mut wire);
    server.write_all(b"+OK\r\n$1\r\nm\r\n").await.unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(1), wire.run()).await;
    assert!(closed.is_ok(), "it is believed");
    assert!(wire.why_out_of_step().is_some(), "{}", wire.why_closed());
    assert_eq!(wire.finished().await.unwrap().flushes, None, "it has not been answered");
}

/// The replies to 512 questions in one batch, if the server gives this reply to each.
async fn ask_many(reply: &[u8]) -> Result<Vec<Reply>, Failure> {
    let (mut wire, mut server, _inbox) = pair(1 << 16);
    let serve = async {
        for _ in 0..512 {
            // Writing fails once the wire is closed.
            let _ = server.write_all(reply).await;
        }
    };
    tokio::join!(wire.ask(|out| (0..512).map(|_| ping(out)).sum()), serve).0
}

#[tokio::test(start_paused = true)]
async fn long_answers_to_many_questions_are_cut() {
    let long = [format!("${BYTES_KEPT}\r\n").as_bytes(), &[b'x'; BYTES_KEPT], b"\r\n"].concat();
    let replies = ask_many(&long).await.unwrap();
    let length = |reply: &Reply| match reply {
        Reply::Bytes(bytes) => bytes.capacity(),
        other => panic!("{other:?}"),
    };
    assert_eq!(length(&replies[0]), BYTES_KEPT, "few are kept whole");
    assert!(replies.iter().map(length).sum::<usize>() < REPLIES_KEPT + 512 * REPLY_KEPT);
    // Commands that inspect keys get lists. The first lists are kept whole. The commands with later lists fail.
    let list = [b"*10000\r\n".as_slice(), &b":1\r\n".repeat(10_000)].concat();
    let replies = ask_many(&list).await.unwrap();
    let kept = replies.iter().take_while(|reply| matches!(reply, Reply::List(_))).count();
    assert_eq!(kept, REPLIES_KEPT / list.len());
    assert!(replies[kept..].iter().all(|reply| matches!(reply, Reply::Error(_))));
    // After `REPLIES_KEPT` bytes of replies to one batch, a line longer than `REPLY_KEPT` is malformed.
    let line = format!("+{}\r\n", "x".repeat(40_000)).into_bytes();
    assert_eq!(ask_many(&line).await.unwrap_err().kind(), FailureKind::Protocol);
}

#[tokio::test(start_paused = true)]
async fn a_line_without_end_is_no_sign_of_life() {
    let (mut wire, mut server, _inbox) = pair(1024);
    wire.send_plain(ping).unwrap();
    let pause = Duration::from_secs(1);
    let trickle = async {
        for _ in 0..5 {
            server.write_all(b"+").await.unwrap();
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! { () = wire.run() => {} () = trickle => {} }
    assert!(!wire.is_closed(), "{}", wire.why_closed());
    assert_eq!(wire.silent_for(), Some(5 * pause));
}

#[tokio::test(start_paused = true)]
async fn silence_is_counted_from_the_first_question() {
    let (mut wire, mut server, _events) = pair(1024);
    let pause = Duration::from_secs(5);
    tokio::time::sleep(pause).await;
    assert_eq!(wire.silent_for(), None);
    wire.send_plain(ping).unwrap();
    wire.send_plain(ping).unwrap();
    assert!(wire.is_busy());
    tokio::time::sleep(pause).await;
    assert_eq!(wire.silent_for(), Some(pause));
    for silent_for in [Some(Duration::ZERO), None] {
        server.write_all(b"+OK\r\n").await.unwrap();
        assert!(wire.replies().await.is_some());
        assert_eq!(wire.silent_for(), silent_for);
    }
    assert!(!wire.is_busy());
}

/// A caller gives up a question, for example at its timeout. The late reply must not answer the next question.
#[tokio::test(start_paused = true)]
async fn the_replies_to_a_question_that_was_given_up_answer_no_later_one() {
    let (mut wire, mut server, _inbox) = pair(1024);
    let given_up = tokio::time::timeout(Duration::from_secs(1), wire.ask(ping)).await;
    assert!(given_up.is_err());
    server.write_all(b":1\r\n:2\r\n").await.unwrap();
    assert_eq!(wire.ask(ping).await.unwrap(), [Reply::Int(2)]);
}
