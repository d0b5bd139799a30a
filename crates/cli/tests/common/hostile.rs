//! A server that answers some commands as it likes.

use std::io::{self, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use quorlock_servers::resp::take;
use quorlock_servers::{Reply, Server};

type Answer = dyn Fn(&[String]) -> Option<Vec<u8>> + Send + Sync;

/// The URL of a server that passes commands on to `server`, except those that `answer` answers. It runs until the test
/// process ends.
pub(crate) fn hostile(
    server: &Server,
    answer: impl Fn(&[String]) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> String {
    let (answer, behind): (Arc<Answer>, _) = (Arc::new(answer), server.socket());
    let door = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = door.local_addr().expect("an address");
    thread::spawn(move || {
        for client in door.incoming().flatten() {
            let (answer, behind) = (Arc::clone(&answer), behind.clone());
            // An error ends the connection, as the fault of a server does.
            thread::spawn(move || drop(serve(client, &behind, &*answer)));
        }
    });
    format!("redis://{address}")
}

fn serve(mut client: TcpStream, behind: &Path, answer: &Answer) -> io::Result<()> {
    let mut server = UnixStream::connect(behind)?;
    let (mut asked, mut said) = (Vec::new(), Vec::new());
    loop {
        let (command, bytes) = message(&mut client, &mut asked)?;
        if let Some(reply) = answer(&words(&command)) {
            client.write_all(&reply)?;
            continue;
        }
        server.write_all(&bytes)?;
        loop {
            let (reply, bytes) = message(&mut server, &mut said)?;
            client.write_all(&bytes)?;
            if !matches!(reply, Reply::Push(_)) {
                break;
            }
        }
    }
}

fn message(from: &mut impl io::Read, read: &mut Vec<u8>) -> io::Result<(Reply, Vec<u8>)> {
    let mut bytes = [0; 16 * 1024];
    loop {
        if let Some(message) = take(read)? {
            return Ok(message);
        }
        match from.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => read.extend(&bytes[..count]),
        }
    }
}

fn words(command: &Reply) -> Vec<String> {
    let Reply::Array(parts) = command else { return Vec::new() };
    let text = |part: &Reply| match part {
        Reply::Bulk(Some(text)) => String::from_utf8_lossy(text).into_owned(),
        _ => String::new(),
    };
    parts.iter().map(text).collect()
}

pub(crate) fn bulk(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}

/// The reply to `SCAN`.
pub(crate) fn page(cursor: &str, keys: &[String]) -> Vec<u8> {
    let head = [b"*2\r\n".to_vec(), bulk(cursor), format!("*{}\r\n", keys.len()).into_bytes()];
    head.into_iter().chain(keys.iter().map(bulk)).flatten().collect()
}
