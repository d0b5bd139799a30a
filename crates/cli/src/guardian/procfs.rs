//! The process table, as far as it takes to find out who descends from whom.
//!
//! Linux shows it in /proc. Where there is no such thing the answer is `None`, and the callers
//! make do with what signals tell them. That it cannot be read now, for want of a file descriptor or of
//! memory, is an error: it says nothing of who is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::process::id;

use rustix::io::Errno;

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) pid: i32,
    /// Who waits for it. This number and the next two are 0 if they are those of a process
    /// outside of our container.
    pub(crate) parent: i32,
    /// Its process group.
    pub(crate) group: i32,
    /// Its session.
    pub(crate) session: i32,
    /// Whether it runs, sleeps or is stopped: not dead and merely unreaped. One whose first thread has
    /// ended lives as long as another one does.
    pub(crate) alive: bool,
    /// When it was started, in ticks of the boot clock: with the number it is unmistakable.
    pub(crate) started: u64,
}

/// One process, if it exists and can be looked at.
pub(crate) fn process(pid: i32) -> Option<Process> {
    if counts_as_we_do().is_ok_and(|ours| ours) { look_up(pid).ok().flatten() } else { None }
}

/// Every process that was there during the whole of this call; `None`: there is no such table.
///
/// # Errors
/// It could not be read whole.
pub(crate) fn processes() -> io::Result<Option<Vec<Process>>> {
    if !counts_as_we_do()? {
        return Ok(None);
    }
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        processes.extend(number.map(look_up).transpose()?.flatten());
    }
    Ok(Some(processes))
}

fn look_up(pid: i32) -> io::Result<Option<Process>> {
    // The name may hold any bytes, so this is no UTF-8.
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(parse(pid, &stat)),
        Err(error) if is_not_there(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// In a new container /proc may still be that of the machine, where our numbers mean others.
fn counts_as_we_do() -> io::Result<bool> {
    match fs::read_link("/proc/self") {
        Ok(me) => Ok(me.as_os_str() == &*id().to_string()),
        Err(error) if is_not_there(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// It has gone, or is another user's and not to be seen by us, now and later.
fn is_not_there(error: &io::Error) -> bool {
    let known = [Errno::NOENT, Errno::SRCH, Errno::NOTDIR, Errno::ACCESS, Errno::PERM];
    Errno::from_io_error(error).is_some_and(|errno| known.contains(&errno))
}

/// Those of `processes` that have `ancestor` above them, and nobody who is `strange` in between.
pub(crate) fn descendants(
    processes: &[Process],
    ancestor: i32,
    strange: impl Fn(&Process) -> bool,
) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(*process);
    }
    let mut found = Vec::new();
    let mut above = vec![ancestor];
    // Numbers are reused while the table is read, so a circle is possible; nobody is seen twice.
    let mut seen = BTreeSet::from([ancestor]);
    while let Some(parent) = above.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            if seen.insert(child.pid) && !strange(child) {
                found.push(*child);
                above.push(child.pid);
            }
        }
    }
    found
}

/// `pid (name) state parent group session …`, the number of threads as the 20th and the start as the 22nd; the
/// name may itself hold parentheses and spaces.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    let threads: i64 = fields.nth(13)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    let alive = !matches!(state, "Z" | "X" | "x") || threads > 1;
    Some(Process { pid, parent, group, session, alive, started })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_the_fields_after_it() {
        let rest = "34816 7 4194560 1 0 0 0 1 1 0 0 20 0 1 0";
        let stat = format!("7 (a) Z 1 2) S 3 4 5 {rest} 99 100 101");
        let process = parse(7, stat.as_bytes()).unwrap();
        let expected =
            Process { pid: 7, parent: 3, group: 4, session: 5, alive: true, started: 99 };
        assert_eq!(process, expected);
        let dead = [&b"7 (\xff) Z 3 4 5 "[..], rest.as_bytes(), b" 99"].concat();
        assert!(!parse(7, &dead).unwrap().alive);
        let threads = rest.replace("20 0 1 0", "20 0 2 0");
        let first_thread_dead = [&b"7 (a) Z 3 4 5 "[..], threads.as_bytes(), b" 99"].concat();
        assert!(parse(7, &first_thread_dead).unwrap().alive);
        assert_eq!(parse(7, b"7 (a) Z 3 4 5"), None);
    }

    #[test]
    fn this_process_is_as_the_table_shows_it() {
        let me = process(id().cast_signed()).unwrap();
        assert!(me.alive && me.started > 0);
        assert!(processes().unwrap().unwrap().contains(&me));
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_in_any_order() {
        let process =
            |pid, parent| Process { pid, parent, group: 1, session: 1, alive: true, started: 1 };
        let table = [process(9, 8), process(2, 1), process(8, 2), process(3, 99), process(4, 4)];
        let found = |strange| {
            let found = descendants(&table, 2, |process| process.pid == strange);
            let mut found: Vec<_> = found.iter().map(|found| found.pid).collect();
            found.sort_unstable();
            found
        };
        assert_eq!(found(0), [8, 9]);
        assert_eq!(found(9), [8]);
        assert_eq!(found(8), [0; 0], "nor what is below it");
    }
}
