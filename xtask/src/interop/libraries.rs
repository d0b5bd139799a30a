//! The lock libraries, and how their workers start.

use std::path::Path;
use std::process::Command;

use crate::install;

/// A lock library that runs beside quorlock.
#[derive(Debug)]
pub(crate) struct Library {
    /// The name for `--only`.
    pub(crate) name: &'static str,
    pub(crate) language: &'static str,
    /// The text that the library puts before the name of a lock. quorlock's name of the lock begins with it too.
    pub(crate) prefix: &'static str,
    /// A description of the value that the library stores in a key.
    pub(crate) value: &'static str,
    /// Whether the library locks on one server only.
    pub(crate) is_single: bool,
    worker: Worker,
}

#[derive(Debug)]
enum Worker {
    /// A Python worker: the suffix of the requirements file's name, and the name of the library's package.
    Python(&'static str, &'static str),
    Node(&'static str),
    Php,
    /// The worker for rslock, which is a hidden subcommand of the benchmark.
    Rslock,
    RedlockCrate,
}

const fn library(
    name: &'static str,
    language: &'static str,
    prefix: &'static str,
    value: &'static str,
    worker: Worker,
) -> Library {
    Library { name, language, prefix, value, is_single: false, worker }
}

pub(crate) const LIBRARIES: [Library; 15] = {
    use Worker::{Node, Php, Python, RedlockCrate, Rslock};
    [
        library("redlock-py", "Python", "", "22 letters and digits", Python("", "redlock-py")),
        library("redlock-pypi", "Python", "", "32 hex", Python("-redlock", "redlock")),
        library("redlock-ng", "Python", "", "UUID", Python("-redlock-ng", "redlock-ng")),
        library("pottery", "Python", "redlock:", "UUID", Python("", "pottery")),
        library("aioredlock", "Python", "", "UUID", Python("", "aioredlock")),
        Library {
            is_single: true,
            ..library("redis-py", "Python", "", "32 hex", Python("", "redis"))
        },
        Library {
            is_single: true,
            ..library(
                "python-redis-lock",
                "Python",
                "lock:",
                "base64",
                Python("", "python-redis-lock"),
            )
        },
        library("rslock", "Rust", "", "20 raw bytes", Rslock),
        library("redlock-crate", "Rust", "", "20 raw bytes", RedlockCrate),
        library("node-redlock-4", "Node.js", "", "32 hex", Node("redlock4")),
        library("node-redlock-5", "Node.js", "", "32 hex", Node("redlock5")),
        library("sesamecare-redlock", "Node.js", "", "32 hex", Node("@sesamecare-oss/redlock")),
        library("redlock-universal", "Node.js", "", "32 hex", Node("redlock-universal")),
        library("redis-semaphore", "Node.js", "mutex:", "UUID", Node("redis-semaphore")),
        library("symfony-lock", "PHP", "", "a sorted set", Php),
    ]
};

impl Library {
    /// Installs the library, and returns the command that starts a worker. The caller adds the addresses of the nodes.
    ///
    /// # Errors
    /// A message for the user: the reason why the library cannot run here.
    pub(crate) fn install(&self, workspace: &Path, bench: &Path) -> Result<Command, String> {
        let script = |name| workspace.join("crates/bench/rivals/interop").join(name);
        let mut command;
        match self.worker {
            Worker::Python(variant, package) => {
                let packages = install::python_packages(workspace, variant)?;
                command = Command::new("python3");
                command.arg("-B").arg(script("worker.py")).arg(package);
                command.env("PYTHONPATH", packages);
            }
            Worker::Node(package) => {
                let folder = install::node_packages(workspace)?;
                command = Command::new("node");
                command.arg(script("worker.mjs")).arg(package).current_dir(folder);
            }
            Worker::Php => {
                install::php_packages()?;
                command = Command::new("php");
                command.arg(script("worker.php"));
            }
            Worker::Rslock => {
                command = Command::new(bench);
                command.args(["interop-worker", "rslock"]);
            }
            Worker::RedlockCrate => command = Command::new(install::redlock_crate(workspace)?),
        }
        Ok(command)
    }
}
