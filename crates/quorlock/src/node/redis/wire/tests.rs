use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use quorlock_core::{Answer, Command, Event, Exchange, MarkerSeen, NodeId, Session, Token, Value};

use super::super::codec::Encoding;
use super::super::evidence::{Beside, ask_marker};
use super::super::resp::{self, BYTES_KEPT};
use super::*;

use crate::node::{Inbox, Key};

impl Wire {
    /// For how long replies have been awaited in vain; `None` if none are awaited.
    fn silent_for(&self) -> Option<Duration> {
        let started = Instant::now() - Duration::from_secs(60);
        let Activity { is_awaited, heard_at } = self.activity(started);
        is_awaited.then(|| started.elapsed() - heard_at)
    }
}

/// A wire and its other end, of a pipe that takes so many bytes at a time.
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
    let (wire, mut server, inbox) = pair(7);
    let exchange = async {
        let twice = wire.send(|out| ping(out) + ping(out)).unwrap();
        let once = wire.send(ping).unwrap();
        assert_eq!(twice.await.unwrap(), [Reply::Okay, Reply::Int(2)]);
        assert_eq!(once.await.unwrap(), [Reply::Nil]);
        let nothing = wire.send(|_| 0).unwrap().await.unwrap();
        assert_eq!(nothing, [], "to nothing, nothing is said");
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
    tokio::select! {
        ((), ()) = async { tokio::join!(exchange, serve) } => {}
        () = wire.run() => panic!("closed: {:?}", wire.why_closed()),
    }
    let keys = Some(vec![Key::from("k")]);
    assert_eq!(pushed(&inbox), [Event::Pushed { node: NodeId::new(0), keys }]);
}

/// In the order of the stream: behind the push, the data are others.
#[tokio::test(start_paused = true)]
async fn replies_tell_how_often_the_data_were_replaced_before_them() {
    let (wire, mut server, inbox) = pair(1024);
    let exchange = async {
        let send = |_| {
            let (done, back) = oneshot::channel();
            let ping = |out: &mut Vec<u8>, _: &mut Parcel| ping(out) + ping(out);
            let sent = wire.send_parcel(Box::default(), To::Task(done), ping);
            assert!(sent.is_ok());
            back
        };
        let mut told = Vec::new();
        for back in (0..4).map(send).collect::<Vec<_>>() {
            told.push(back.await.unwrap().flushes.unwrap());
        }
        assert_eq!(told, [(0, 0), (1, 1), (1, 2), (2, 2)]);
    };
    let serve = async {
        let mut commands = [0; 8 * 14];
        server.read_exact(&mut commands).await.unwrap();
        let one = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
        let said =
            format!(":1\r\n:1\r\n{FLUSH}:2\r\n{one}:2\r\n:3\r\n{FLUSH}:3\r\n:4\r\n:4\r\n{FLUSH}");
        server.write_all(said.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = exchange => {}
        () = serve => unreachable!(),
        () = wire.run() => panic!("closed: {:?}", wire.why_closed()),
    }
    // What stands for all is told once, however often it was said.
    assert!(pushed(&inbox).contains(&Event::Pushed { node: NodeId::new(0), keys: None }));
}

const FLUSH: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

/// Sends a command about votes, which is written as `PING`, and the question for the marker behind it.
fn ask(wire: &Wire) -> oneshot::Receiver<Box<Parcel>> {
    let (mut session, mut parcel) = (Session::new(true), Box::<Parcel>::default());
    // With the first of all, more is asked.
    session.send(&mut Exchange::default());
    let value = Value::new(&Token::new([7; 20]), "");
    *parcel.exchange.renew() = vec![Command::Acquire { keys: "k".into(), value, ttl_ms: 1000 }];
    session.send(&mut parcel.exchange);
    let beside = Beside::new(parcel.exchange.evidence_request(), false, None);
    assert!(beside.has_marker() && beside.before == 0);
    parcel.prepare(Encoding { watches: true, ..Encoding::default() }, beside);
    let (done, back) = oneshot::channel();
    let write = |out: &mut Vec<u8>, parcel: &mut Parcel| {
        let replies = ping(out);
        out.extend_from_slice(&ask_marker(&"m".into()));
        replies + parcel.beside.behind()
    };
    assert!(wire.send_parcel(parcel, To::Task(done), write).is_ok());
    back
}

/// Markers that are read where they are, and one that is too long for that.
#[tokio::test(start_paused = true)]
async fn a_marker_is_read_wherever_it_is_split_and_flushes_about_it_are_counted() {
    for size in [1, 50, 150, 1000] {
        let text = "m".repeat(size);
        let marker = format!("${size}\r\n{text}\r\n");
        let said = format!("+OK\r\n{FLUSH}{marker}{FLUSH}_\r\n{marker}:7\r\n");
        for place in 0..said.len() {
            let (wire, mut server, inbox) = pair(1 << 16);
            let asked = [ask(&wire), ask(&wire)];
            let behind = wire.send(ping).unwrap();
            let exchange = async {
                let mut told = Vec::new();
                for back in asked {
                    let mut parcel = back.await.unwrap();
                    assert!(parcel.in_step);
                    assert_eq!(parcel.marker, MarkerSeen::Text(text.as_str().into()));
                    let (answers, _) = parcel.exchange.take();
                    told.push((std::mem::take(answers), parcel.flushes));
                }
                let refused = vec![Answer::Refused];
                assert_eq!(told, [(vec![Answer::Granted], Some((0, 1))), (refused, Some((2, 2)))]);
                assert_eq!(behind.await.unwrap(), [Reply::Int(7)]);
            };
            let serve = async {
                let (start, end) = said.split_at(place);
                for part in [start, end] {
                    server.write_all(part.as_bytes()).await.unwrap();
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            };
            tokio::select! {
                () = exchange => {}
                () = serve => panic!("of {size}, split at {place}: not read"),
                () = wire.run() => panic!("closed: {:?}", wire.why_closed()),
            }
            assert!(pushed(&inbox).contains(&Event::Pushed { node: NodeId::new(0), keys: None }));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_closes_the_wire_and_is_nobodys_answer() {
    for (said, count) in [(&b":1\r\n:2\r\n"[..], 1), (b"oops\r\n", 2), (b":1\r\n", 2)] {
        let (wire, mut server, _events) = pair(1024);
        let replies = wire.send(|out| (0..count).map(|_| ping(out)).sum()).unwrap();
        server.write_all(said).await.unwrap();
        drop(server);
        wire.run().await;
        assert!(wire.is_closed());
        let out_of_step = said != b":1\r\n";
        assert_eq!(wire.why_closed().kind() == FailureKind::Protocol, out_of_step);
        assert!(wire.why_closed().may_have_been_executed());
        assert_eq!(wire.why_out_of_step().is_some(), out_of_step);
        assert_eq!(replies.await.is_ok(), said.starts_with(b":1\r\n:2"), "{said:?}");
        let failure = wire.send(ping).unwrap_err();
        assert!(!failure.may_have_been_executed(), "nothing is sent on a closed wire");
    }
}

/// The end of the stream is seen first, and what came before it is judged behind that (S22).
#[test]
fn that_something_was_out_of_step_is_not_hidden_by_a_broken_connection() {
    let (wire, _server, _events) = pair(16);
    wire.close(lost("the server has closed the connection"));
    assert_eq!(wire.why_out_of_step(), None);
    wire.close(out_of_step("its answers do not fit"));
    assert!(wire.why_out_of_step().is_some());
    wire.close(lost("connection lost"));
    assert!(wire.why_out_of_step().is_some(), "nor by what comes later");
}

#[tokio::test(start_paused = true)]
async fn what_a_server_says_before_it_closes_is_kept() {
    let (wire, mut server, _events) = pair(1024);
    let replies = wire.send(|out| ping(out) + ping(out)).unwrap();
    server.write_all(b"-ERR max number of clients reached\r\n").await.unwrap();
    drop(server);
    wire.run().await;
    assert!(replies.await.is_err());
    assert_eq!(wire.last_words().unwrap(), "ERR max number of clients reached");
}

#[tokio::test(start_paused = true)]
async fn a_strangers_value_of_any_length_takes_no_room() {
    let (wire, mut server, _events) = pair(1 << 16);
    let size = 40 * BYTES_KEPT;
    let exchange = async {
        let replies = wire.send(|out| ping(out) + ping(out)).unwrap().await.unwrap();
        assert_eq!(replies, [Reply::Bytes(vec![b'x'; BYTES_KEPT]), Reply::Int(7)]);
        assert!(wire.lock().incoming.bytes.capacity() < 2 * BYTES_KEPT);
    };
    let serve = async {
        server.write_all(format!("${size}\r\n").as_bytes()).await.unwrap();
        server.write_all(&vec![b'x'; size]).await.unwrap();
        server.write_all(b"\r\n:7\r\n").await.unwrap();
    };
    tokio::select! {
        ((), ()) = async { tokio::join!(exchange, serve) } => {}
        () = wire.run() => panic!("closed: {:?}", wire.why_closed()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_pushes_ends_the_wire_and_pushes_that_were_asked_for_do_not() {
    const PUSH: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
    for asked_for in [false, true] {
        let (wire, mut server, inbox) = pair(1 << 16);
        let serve = async {
            for _ in 0..3 * Allowance::MAX / 64 {
                if asked_for {
                    wire.expect_pushes(64);
                }
                if server.write_all(&PUSH.repeat(64)).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! { () = wire.run() => {} () = serve => {} }
        assert_eq!(wire.is_closed(), !asked_for);
        assert_eq!(wire.why_closed().kind() == FailureKind::Flooding, !asked_for);
        assert_eq!(pushed(&inbox).len(), 1);
    }
    // A few hundred flushes a second are nobody's fault.
    let (wire, mut server, _inbox) = pair(1 << 16);
    let flushes = b">2\r\n$10\r\ninvalidate\r\n_\r\n".repeat(500);
    let serve = async {
        for _ in 0..2 * Allowance::MAX / 500 {
            server.write_all(&flushes).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! { () = wire.run() => panic!("{}", wire.why_closed()), () = serve => {} }
}

#[tokio::test(start_paused = true)]
async fn an_answer_before_the_question_is_none() {
    let (wire, mut server, _inbox) = pair(16);
    let replies = wire.send(|out| ping(out) + ping(out)).unwrap();
    server.write_all(b"+OK\r\n+OK\r\n").await.unwrap();
    wire.run().await;
    assert_eq!(wire.why_closed().kind(), FailureKind::Protocol);
    assert!(replies.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_marker_before_its_question_is_none() {
    // Of what is written, the pipe takes the command and a part of the question.
    let (wire, mut server, _inbox) = pair(16);
    let back = ask(&wire);
    server.write_all(b"+OK\r\n$1\r\nm\r\n").await.unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(1), wire.run()).await;
    assert!(closed.is_ok(), "it is believed");
    assert!(wire.why_out_of_step().is_some(), "{}", wire.why_closed());
    assert_eq!(back.await.unwrap().flushes, None, "it has not been answered");
}

#[tokio::test(start_paused = true)]
async fn long_answers_to_many_questions_are_cut() {
    let (wire, mut server, _inbox) = pair(1 << 16);
    let long = [format!("${BYTES_KEPT}\r\n").as_bytes(), &[b'x'; BYTES_KEPT], b"\r\n"].concat();
    let serve = async {
        for _ in 0..512 {
            server.write_all(&long).await.unwrap();
        }
    };
    let exchange = async {
        let replies = wire.send(|out| (0..512).map(|_| ping(out)).sum()).unwrap();
        let replies = replies.await.unwrap();
        let length = |reply: &Reply| match reply {
            Reply::Bytes(bytes) => bytes.capacity(),
            other => panic!("{other:?}"),
        };
        assert_eq!(length(&replies[0]), BYTES_KEPT, "few are kept whole");
        assert!(replies.iter().map(length).sum::<usize>() < REPLIES_KEPT + 512 * REPLY_KEPT);
    };
    tokio::select! {
        ((), ()) = async { tokio::join!(exchange, serve) } => {}
        () = wire.run() => panic!("closed: {:?}", wire.why_closed()),
    }
    // Lists are what looks are answered. A few are kept, and the others have failed: nothing else does.
    let (wire, mut server, _inbox) = pair(1 << 16);
    let list = [b"*10000\r\n".as_slice(), &b":1\r\n".repeat(10_000)].concat();
    let serve = async {
        for _ in 0..512 {
            server.write_all(&list).await.unwrap();
        }
    };
    let exchange = async {
        let replies = wire.send(|out| (0..512).map(|_| ping(out)).sum()).unwrap();
        let replies = replies.await.unwrap();
        let kept = replies.iter().take_while(|reply| matches!(reply, Reply::List(_))).count();
        assert_eq!(kept, REPLIES_KEPT / list.len());
        assert!(replies[kept..].iter().all(|reply| matches!(reply, Reply::Error(_))));
    };
    tokio::select! {
        ((), ()) = async { tokio::join!(exchange, serve) } => {}
        () = wire.run() => panic!("closed: {:?}", wire.why_closed()),
    }
    // A line is never so long.
    let (wire, mut server, _inbox) = pair(1 << 16);
    let replies = wire.send(|out| (0..512).map(|_| ping(out)).sum()).unwrap();
    let line = format!("+{}\r\n", "x".repeat(40_000)).into_bytes();
    let serve = async { while server.write_all(&line).await.is_ok() {} };
    tokio::select! { () = wire.run() => {} () = serve => {} }
    assert_eq!(wire.why_closed().kind(), FailureKind::Protocol);
    assert!(replies.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_line_without_end_is_no_sign_of_life() {
    let (wire, mut server, _inbox) = pair(1024);
    let _replies = wire.send(ping).unwrap();
    let pause = Duration::from_secs(1);
    let trickle = async {
        for _ in 0..5 {
            server.write_all(b"+").await.unwrap();
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! { () = wire.run() => panic!("{}", wire.why_closed()), () = trickle => {} }
    assert_eq!(wire.silent_for(), Some(5 * pause));
}

#[tokio::test(start_paused = true)]
async fn silence_is_counted_from_the_first_question() {
    let (wire, mut server, _events) = pair(1024);
    let pause = Duration::from_secs(5);
    tokio::time::sleep(pause).await;
    assert_eq!(wire.silent_for(), None);
    let (first, second) = (wire.send(ping).unwrap(), wire.send(ping).unwrap());
    wire.busy().await;
    tokio::time::sleep(pause).await;
    assert_eq!(wire.silent_for(), Some(pause));
    server.write_all(b"+OK\r\n").await.unwrap();
    tokio::select! { reply = first => assert!(reply.is_ok()), () = wire.run() => {} }
    assert_eq!(wire.silent_for(), Some(Duration::ZERO));
    server.write_all(b"+OK\r\n").await.unwrap();
    tokio::select! { reply = second => assert!(reply.is_ok()), () = wire.run() => {} }
    assert_eq!(wire.silent_for(), None);
    assert!(futures_util::FutureExt::now_or_never(wire.busy()).is_none());
}
