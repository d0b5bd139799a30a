//! The names of connections, and the search for clients by these names.
//!
//! A client that takes locks calls its connections `quorlock:HOST:PID`. A client that only looks, and the connections of
//! `doctor`, `init` and `ls`, are called `quorlock-look:HOST:PID`.

use std::collections::BTreeSet;

const LOCKS: &str = "quorlock:";

const LOOKS: &str = "quorlock-look:";

/// The most bytes of the host's name in a connection's name.
const HOST_MAX: usize = 64;

/// The most bytes of `HOST:PID`. Longer names, and those with other characters than servers accept, are not of this
/// library.
const NAME_MAX: usize = HOST_MAX + 1 + 10;

/// The most names of clients that are kept.
const NAMES_MAX: usize = 1000;

/// The longest line of a list of clients that is read. Longer ones are skipped.
const LINE_MAX: usize = 16 * 1024;

/// The name of a connection of this process. Servers accept the characters from `!` to `~` in a name.
pub(super) fn of_this_process(takes_locks: bool) -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let host: String = host.chars().filter(char::is_ascii_graphic).take(HOST_MAX).collect();
    format!("{}{host}:{}", if takes_locks { LOCKS } else { LOOKS }, std::process::id())
}

/// Reads the reply to `CLIENT LIST` in parts, a line for each connection, and keeps the names of clients that take locks.
#[derive(Debug, Default)]
pub(super) struct Lockers {
    /// `HOST:PID` of each client, at most [`NAMES_MAX`].
    names: BTreeSet<String>,
    line: Vec<u8>,
}

impl Lockers {
    pub(super) fn read(&mut self, part: &[u8]) {
        let mut lines = part.split(|byte| *byte == b'\n');
        self.add(lines.next().unwrap_or_default());
        for line in lines {
            self.end_line();
            self.add(line);
        }
    }

    fn add(&mut self, part: &[u8]) {
        let room = LINE_MAX.saturating_sub(self.line.len());
        self.line.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn end_line(&mut self) {
        let text = String::from_utf8_lossy(&self.line);
        let name = text.split(' ').find_map(|field| field.strip_prefix("name="));
        if let Some(name) = name.and_then(|name| name.strip_prefix(LOCKS))
            && name.len() <= NAME_MAX
            && name.bytes().all(|byte| byte.is_ascii_graphic())
            && self.names.len() < NAMES_MAX
        {
            self.names.insert(name.to_owned());
        }
        self.line.clear();
    }

    pub(super) fn into_names(mut self) -> BTreeSet<String> {
        self.end_line();
        self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_that_servers_accept() {
        for takes_locks in [false, true] {
            let name = of_this_process(takes_locks);
            assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
            assert!(name.len() <= LOOKS.len() + HOST_MAX + 11, "{name}");
        }
    }

    /// A reply arrives in parts of any size, and a line of a hostile server may have any length.
    #[test]
    fn clients_that_take_locks_are_found_in_a_reply_of_any_size() {
        let mut list = b"txt:id=1 addr=10.0.0.1:5 name=quorlock:first:1 age=2\n".to_vec();
        for id in 2..20_000 {
            list.extend(format!("id={id} addr=10.0.0.1:5 fd=8 name=other age=2\n").bytes());
        }
        list.extend(b"id=3 name=quorlock:\x1b[2J:1 db=0\nid=3 name=quorlock:");
        list.extend([b'y'; NAME_MAX + 1]);
        list.extend(b"\nid=3 name=quorlock-look:h:2 db=0\nid=4 name= lib-name=quorlock\n");
        list.extend([b'x'; 3 * LINE_MAX]);
        list.extend(
            b" name=quorlock:hidden:3\nid=5 name=quorlock:a:b:4 db=0\nid=6 name=quorlock:last:7",
        );
        for size in [1, 7, 16 * 1024, list.len()] {
            let mut lockers = Lockers::default();
            for part in list.chunks(size) {
                lockers.read(part);
                assert!(lockers.line.len() <= LINE_MAX);
            }
            let names: Vec<String> = lockers.into_names().into_iter().collect();
            assert_eq!(names, ["a:b:4", "first:1", "last:7"], "{size}");
        }
    }
}
