//! The interpreters and, once per pinned set of versions, the packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::rivals::process;

/// pip and npm may have to fetch a few megabytes.
const INSTALL_LIMIT: Duration = Duration::from_secs(180);

/// What a rival is written in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Language {
    Python,
    Node,
}

/// An interpreter and the folder with its packages.
#[derive(Clone, Debug)]
pub(super) struct Environment {
    language: Language,
    folder: PathBuf,
}

impl Language {
    /// Installs the packages if they are not there; tried once per process.
    pub(super) fn environment(self) -> Result<Environment, String> {
        static PYTHON: OnceLock<Result<Environment, String>> = OnceLock::new();
        static NODE: OnceLock<Result<Environment, String>> = OnceLock::new();
        let once = match self {
            Self::Python => &PYTHON,
            Self::Node => &NODE,
        };
        once.get_or_init(|| self.install()).clone()
    }

    fn install(self) -> Result<Environment, String> {
        let folder = target().join("bench-rivals").join(self.folder());
        // Holds what the packages were installed from, and is written last.
        let (stamp, wanted) = (folder.join("installed-from"), self.wanted());
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(Environment { language: self, folder });
        }
        let cannot = |why| format!("cannot write {}: {why}", folder.display());
        match fs::remove_dir_all(&folder) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => return Err(cannot(why)),
            _ => fs::create_dir_all(&folder).map_err(cannot)?,
        }
        eprintln!("installing {} into {} ...", self.what(), folder.display());
        let install = self.installer(&folder).map_err(cannot)?;
        process::run(install, INSTALL_LIMIT)
            .map_err(|why| format!("{} cannot be installed: {why}", self.what()))?;
        fs::write(&stamp, wanted).map_err(cannot)?;
        Ok(Environment { language: self, folder })
    }

    fn installer(self, folder: &Path) -> std::io::Result<Command> {
        Ok(match self {
            Self::Python => {
                let mut pip = process::command("python3");
                pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                    .args(["--no-deps", "--only-binary=:all:", "--root-user-action=ignore"])
                    .arg("--target")
                    .arg(folder)
                    .arg("--requirement")
                    .arg(rivals().join("requirements.txt"));
                pip
            }
            Self::Node => {
                for file in ["package.json", "package-lock.json"] {
                    fs::copy(rivals().join(file), folder.join(file))?;
                }
                let mut npm = process::command("npm");
                // The versions and checksums of package-lock.json, and nothing that runs code.
                npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
                    .current_dir(folder);
                npm
            }
        })
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Python => include_str!("../../rivals/requirements.txt"),
            Self::Node => include_str!("../../rivals/package-lock.json"),
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Python => "the Python rivals' packages (python3 -m pip)",
            Self::Node => "the Node.js rivals' packages (npm)",
        }
    }
}

impl Environment {
    /// The interpreter, which finds the packages; the program and its arguments are to follow.
    pub(super) fn command(&self) -> Command {
        match self.language {
            Language::Python => {
                let mut python = process::command("python3");
                // -B: no compiled files beside the programs in the source tree.
                python.arg("-B").env("PYTHONPATH", &self.folder);
                python
            }
            Language::Node => {
                let mut node = process::command("node");
                node.current_dir(&self.folder);
                node
            }
        }
    }
}

fn rivals() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("rivals")
}

fn target() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    workspace.expect("the crate lies two folders below the workspace").join("target")
}
