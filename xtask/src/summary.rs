//! What test binaries print, read and added up.

use std::fmt;

/// The sum of the lines with which each test binary closes, and the names of the tests that failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) results: usize,
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    /// As the test harness names them.
    pub(crate) failures: Vec<String>,
    in_list: bool,
}

impl Summary {
    pub(crate) fn of(output: &str) -> Self {
        let mut sum = Self::default();
        output.lines().for_each(|line| sum.add(line));
        sum
    }

    /// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …`, the list of names below
    /// `failures:`, and no other line.
    pub(crate) fn add(&mut self, line: &str) {
        match line.strip_prefix("    ") {
            Some(name) if self.in_list => return self.failures.push(name.to_owned()),
            _ => self.in_list = line == "failures:",
        }
        let Some((_, counts)) =
            line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        self.results += 1;
        for count in counts.split(';') {
            let mut words = count.split_whitespace();
            let Some(number) = words.next().and_then(|number| number.parse::<usize>().ok()) else {
                continue;
            };
            match words.next() {
                Some("passed") => self.passed += number,
                Some("failed") => self.failed += number,
                Some("ignored") => self.ignored += number,
                _ => {}
            }
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.results += other.results;
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.failures.extend(other.failures);
    }
}

/// What tests that did not run have noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skips {
    /// Something that they need is not here. What did not run was not shown to work.
    pub(crate) skipped: usize,
    /// They are about what another version of the server does.
    pub(crate) elsewhere: usize,
}

impl Skips {
    /// Reads the file that [`quorlock_servers::SKIP_LOG_VARIABLE`] names.
    pub(crate) fn of(log: &str) -> Self {
        let elsewhere =
            log.lines().filter(|line| line.starts_with(quorlock_servers::NOT_FOR)).count();
        Self { skipped: log.lines().count() - elsewhere, elsewhere }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, ignored, .. } = self;
        write!(f, "{passed} tests passed, {failed} failed, {ignored} ignored")
    }
}

impl fmt::Display for Skips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { skipped, elsewhere } = self;
        write!(f, "{skipped} skipped, {elsewhere} not for this server")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_lines_add_up() {
        let output = "\
running 3 tests
test result_of_a_test: 9 passed; ... ok
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: FAILED. 11 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.63s
";
        let sum = Summary::of(output);
        assert_eq!((sum.results, sum.passed, sum.failed, sum.ignored), (2, 14, 2, 1));
        assert!(sum.failures.is_empty());
    }

    #[test]
    fn the_names_of_what_failed_are_read_from_the_list_alone() {
        let output = "\
test tests::it_works ... FAILED

failures:

---- tests::it_works stdout ----
    a text of its own
thread 'tests::it_works' panicked

failures:
    tests::it_works
    crates/quorlock/src/lib.rs - Client (line 12)

test result: FAILED. 11 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.63s
    not a name
";
        let names = ["tests::it_works", "crates/quorlock/src/lib.rs - Client (line 12)"];
        assert_eq!(Summary::of(output).failures, names);
    }

    #[test]
    fn what_is_not_for_this_server_is_no_skip() {
        let log = "SKIPPED (no Redis or Valkey server found): a\n\
                   NOT FOR Valkey 9.1.2 (it forgets no script): b\n\
                   NOT FOR Redis 6.2.14 (no ACL): c\n";
        assert_eq!(Skips::of(log), Skips { skipped: 1, elsewhere: 2 });
    }
}
