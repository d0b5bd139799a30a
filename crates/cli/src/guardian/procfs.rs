//! The process table: the existing processes and their parents.
//!
//! Linux shows the table in /proc. If a system has no /proc, the answer is `None`, and the callers rely on the results
//! of signals alone. If the table cannot be read at the moment, because file descriptors or memory are short, the
//! answer is an error. An error does not mean that a process has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::process::id;

use rustix::io::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// The number of its parent. 0 if the parent is outside of our container.
    pub(crate) parent: i32,
    /// The number of its process group. 0 if the group's leader is outside of our container.
    pub(crate) group: i32,
    /// The number of its session. 0 if the session's leader is outside of our container.
    pub(crate) session: i32,
    /// Whether at least one of its threads lives: runs, sleeps or is stopped. False for a process that is dead and was
    /// not reaped yet.
    pub(crate) alive: bool,
    /// The start time of the process in ticks of the boot clock. Number and start time together identify a process,
    /// although numbers are reused.
    pub(crate) started: u64,
}

/// One process. `None`: it does not exist, or it cannot be read now. So `None` does not prove that a process has ended.
/// To find out whether it has ended, use [`processes`], which reports errors.
pub(crate) fn process(pid: i32) -> Option<Process> {
    let is_our_table = has_our_numbers().unwrap_or(false);
    if is_our_table { look_up(pid).ok().flatten() } else { None }
}

/// Every process that existed during the whole of this call. `None`: there is no process table.
///
/// # Errors
/// The table could not be read completely.
pub(crate) fn processes() -> io::Result<Option<Vec<Process>>> {
    if !has_our_numbers()? {
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
    // The name may contain any bytes, so this need not be UTF-8.
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(parse(pid, &stat)),
        Err(error) if is_not_there(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the numbers in /proc are those that this process uses. In a new container /proc may still be that of the
/// machine, where the same numbers belong to other processes.
fn has_our_numbers() -> io::Result<bool> {
    match fs::read_link("/proc/self") {
        Ok(me) => Ok(me.as_os_str() == &*id().to_string()),
        Err(error) if is_not_there(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the error is permanent: the process has ended, or belongs to a user whose processes are hidden. Such a
/// process counts as absent. It could not be signalled either, and GUARANTEES.md promises nothing about a
/// descendant that changes its user.
fn is_not_there(error: &io::Error) -> bool {
    let known = [Errno::NOENT, Errno::SRCH, Errno::NOTDIR, Errno::ACCESS, Errno::PERM];
    Errno::from_io_error(error).is_some_and(|errno| known.contains(&errno))
}

/// The descendants of `ancestor` among `processes`. A process for which `is_excluded` is true is left out, and so are
/// its descendants.
pub(crate) fn descendants(
    processes: &[Process],
    ancestor: i32,
    is_excluded: impl Fn(&Process) -> bool,
) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(*process);
    }
    let mut found = Vec::new();
    let mut above = vec![ancestor];
    // Numbers may be reused while the table is read, so a cycle is possible. Each process is visited once.
    let mut seen = BTreeSet::from([ancestor]);
    while let Some(parent) = above.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            if seen.insert(child.pid) && !is_excluded(child) {
                found.push(*child);
                above.push(child.pid);
            }
        }
    }
    found
}

/// Reads a line of `/proc/PID/stat`: `pid (name) state parent group session …`. Counted from 1 as in proc(5), the
/// number of threads is field 20 and the start is field 22. The name may contain parentheses and spaces.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    // The session was field 6. 13 fields are skipped, 7 to 19, and the next one is field 20.
    let threads: i64 = fields.nth(13)?.parse().ok()?;
    // One field is skipped, 21, and the next one is field 22.
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
