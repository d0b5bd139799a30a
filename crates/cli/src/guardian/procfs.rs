//! The process table, as far as it takes to find out who descends from whom.
//!
//! Linux shows it in /proc. Where there is no such thing the answers are `None`, and the callers
//! make do with what signals tell them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::id;

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
    /// Whether it runs, sleeps or is stopped: not dead and merely unreaped.
    pub(crate) alive: bool,
    /// When it was started, in ticks of the boot clock: with the number it is unmistakable.
    pub(crate) started: u64,
}

/// One process, if it exists.
pub(crate) fn process(pid: i32) -> Option<Process> {
    if counts_as_we_do() { look_up(pid) } else { None }
}

/// Every process that was there during the whole of this call.
pub(crate) fn processes() -> Option<Vec<Process>> {
    if !counts_as_we_do() {
        return None;
    }
    let numbers = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    Some(numbers.filter_map(look_up).collect())
}

fn look_up(pid: i32) -> Option<Process> {
    // The name may hold any bytes, so this is no UTF-8.
    parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// In a new container /proc may still be that of the machine, where our numbers mean others.
fn counts_as_we_do() -> bool {
    fs::read_link("/proc/self").is_ok_and(|me| me.as_os_str() == &*id().to_string())
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

/// `pid (name) state parent group session …`, and the start as the 22nd; the name may itself hold
/// parentheses and spaces.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    let started = fields.nth(15)?.parse().ok()?;
    let alive = !matches!(state, "Z" | "X" | "x");
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
        assert_eq!(parse(7, b"7 (a) Z 3 4 5"), None);
    }

    #[test]
    fn this_process_is_as_the_table_shows_it() {
        let me = process(id().cast_signed()).unwrap();
        assert!(me.alive && me.started > 0);
        assert!(processes().unwrap().contains(&me));
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
