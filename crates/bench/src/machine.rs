//! Information about the machine and the software versions for the report.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

use quorlock_servers::BENCH_COMMAND_VARIABLE;

use crate::clock;
use crate::report::Machine;

pub(crate) fn machine() -> Machine {
    let field = |path: &str, name: &str, between: char| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let value = text
            .lines()
            .filter_map(|line| line.split_once(between))
            .find_map(|(key, value)| (key.trim() == name).then(|| value.trim().to_owned()));
        value.unwrap_or_else(|| "unknown".to_owned())
    };
    let memory_kib = field("/proc/meminfo", "MemTotal", ':');
    let memory_kib: u64 =
        memory_kib.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    Machine {
        cpu: field("/proc/cpuinfo", "model name", ':'),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_gib: (memory_kib + (1 << 19)) >> 20,
        os: field("/etc/os-release", "PRETTY_NAME", '=').trim_matches('"').to_owned(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        disk: disk(&std::env::temp_dir()).unwrap_or_else(|| "unknown".to_owned()),
    }
}

/// Returns the type and device of the file system that contains a folder.
fn disk(folder: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = |line: &str| {
        let (mount, disk) = line.split_once(" - ")?;
        let point = Path::new(mount.split(' ').nth(4)?);
        let mut disk = disk.split(' ');
        let named = format!("{} on {}", disk.next()?, disk.next()?);
        folder.starts_with(point).then_some((point.components().count(), named))
    };
    // If several file systems have the same mount point, only the last is visible. `max_by_key` returns the last.
    mounts.lines().filter_map(mount).max_by_key(|(depth, _)| *depth).map(|(_, named)| named)
}

/// Returns the commit of the checkout that contains the sources, and whether it had uncommitted changes.
pub(crate) fn commit() -> (Option<String>, bool) {
    let git = |args: &[&str]| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = Command::new("git").arg("-C").arg(folder).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"]);
    let dirty = git(&["status", "--porcelain"]).is_some_and(|changes| !changes.is_empty());
    (commit, dirty)
}

/// The current date in UTC.
pub(crate) fn date() -> String {
    let now = humantime::format_rfc3339_seconds(UNIX_EPOCH + clock::wall()).to_string();
    now.split('T').next().unwrap_or(&now).to_owned()
}

pub(crate) fn command() -> String {
    std::env::var(BENCH_COMMAND_VARIABLE).unwrap_or_else(|_| {
        let args = std::env::args().skip(1);
        std::iter::once("quorlock-bench".to_owned()).chain(args).collect::<Vec<_>>().join(" ")
    })
}

/// Returns the versions in `Cargo.lock` of the crates that are subjects or that subjects use.
pub(crate) fn versions() -> BTreeMap<String, String> {
    let lock = include_str!("../../../Cargo.lock");
    let version = |name: &str| {
        let (_, entry) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
        Some((name.to_owned(), entry.split('"').next()?.to_owned()))
    };
    ["redis", "rslock", "tokio"].into_iter().filter_map(version).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_day_is_known() {
        assert_eq!(date().len(), "2026-11-21".len());
    }
}
