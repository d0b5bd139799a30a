//! `cargo xtask pictures`: the pictures of the documents, each made from a text.
//!
//! In `docs/pictures`, `NAME.txt` describes boxes and arrows, and `NAME.cast` is a recorded terminal
//! session. `NAME.svg` is made from either.

mod animation;
mod diagram;
mod drawing;
mod recording;
mod svg;
mod terminal;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::install;
use recording::TerminalSession;

/// Where texts and pictures lie.
const FOLDER: &str = "docs/pictures";

/// The recording of the demo.
const DEMO: &str = "demo.cast";

/// A page that shows a picture has to be loaded.
const BYTES_MAX: usize = 200_000;

/// Runs the command: makes the pictures, and with `--record` the recording before them. With
/// `--check` it writes nothing, and fails if a picture is not that of its text.
pub(crate) fn run(workspace: &Path, args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let args: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let done = match args[..] {
        [] => write(workspace),
        ["--check"] => check(workspace),
        ["--record"] => match install::server_or_exit(workspace) {
            Ok(_) => record(workspace).and_then(|()| write(workspace)),
            Err(code) => return code,
        },
        _ => {
            eprintln!("cargo xtask pictures [--check | --record]");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// A picture, and where it belongs.
struct Picture {
    file: PathBuf,
    svg: String,
}

impl Picture {
    fn name(&self) -> String {
        shown(&self.file)
    }
}

/// A file of the folder, as people know it.
fn shown(file: &Path) -> String {
    format!("{FOLDER}/{}", file.file_name().unwrap_or_default().display())
}

fn record(workspace: &Path) -> Result<(), String> {
    let recording = TerminalSession::of_the_demo(workspace)?;
    let file = workspace.join(FOLDER).join(DEMO);
    fs::write(&file, recording.to_text()).map_err(|error| format!("{}: {error}", shown(&file)))
}

fn write(workspace: &Path) -> Result<String, String> {
    let pictures = made(workspace)?;
    for picture in &pictures {
        let written = fs::write(&picture.file, &picture.svg);
        written.map_err(|error| format!("{}: {error}", picture.name()))?;
    }
    let names: Vec<String> = pictures.iter().map(Picture::name).collect();
    Ok(format!("written: {}", names.join(", ")))
}

fn check(workspace: &Path) -> Result<String, String> {
    let pictures = made(workspace)?;
    let is_old = |picture: &&Picture| {
        fs::read_to_string(&picture.file).ok().as_deref() != Some(picture.svg.as_str())
    };
    let old: Vec<String> = pictures.iter().filter(is_old).map(Picture::name).collect();
    if !old.is_empty() {
        let old = old.join(", ");
        return Err(format!("not made from the text beside it: {old}; run cargo xtask pictures"));
    }
    let orphans = files(workspace, "svg")?;
    let orphans = orphans.iter().find(|file| pictures.iter().all(|made| made.file != **file));
    match orphans {
        Some(file) => Err(format!("{} has no text beside it", shown(file))),
        None => Ok(format!("{} pictures are what their texts say", pictures.len())),
    }
}

/// All pictures, as their texts say.
fn made(workspace: &Path) -> Result<Vec<Picture>, String> {
    let mut pictures = Vec::new();
    for (extension, draw) in
        [("txt", drawing::svg as fn(&str) -> Result<String, String>), ("cast", animation::svg)]
    {
        for file in files(workspace, extension)? {
            let named = |why: String| format!("{}: {why}", shown(&file));
            let text = fs::read_to_string(&file).map_err(|error| named(error.to_string()))?;
            let svg = draw(&text).map_err(named)?;
            if svg.len() > BYTES_MAX {
                return Err(named(format!("{} bytes of SVG, at most {BYTES_MAX}", svg.len())));
            }
            pictures.push(Picture { file: file.with_extension("svg"), svg });
        }
    }
    Ok(pictures)
}

/// The files with an extension, in order.
fn files(workspace: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let folder = workspace.join(FOLDER);
    let entries = fs::read_dir(&folder).map_err(|error| format!("{FOLDER}: {error}"))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|it| it == extension));
    files.sort();
    Ok(files)
}
