//! Reads the configuration file.

use std::env;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::values::Accept;
use super::{Form, Origin, Place, SETTINGS, Setting, Values, nearest};
use crate::error::{BuildError, Reason};

/// The default files, for messages.
pub const PLACES: &str = "~/.config/quorlock/config.toml or /etc/quorlock/config.toml";

impl Values {
    /// Adds the values of the file that the setting `config` names, or else of the first default file that exists. A
    /// file in the working directory is never a default.
    ///
    /// # Errors
    /// The file cannot be read, another user may have changed it, a key in it is wrong, or `accept` refuses a value.
    pub fn read_file(&mut self, accept: Accept<'_>) -> Result<(), BuildError> {
        let named = self.of("config").and_then(|it| Some((it.texts.first()?, &it.source)));
        let (path, origin) = match named {
            Some((path, source)) => (Some(path.into()), format!("{source}: ")),
            None => (default_file()?, String::new()),
        };
        let Some(path) = path else { return Ok(()) };
        for (key, value) in table(&path, &origin)? {
            let source = format!("{key} in {}", path.display());
            let wrong = |reason: String| BuildError::setting(&source, reason);
            let setting = of_key(&key).map_err(wrong)?;
            let texts = texts(value, matches!(setting.form, Form::List(_))).map_err(wrong)?;
            let mut is_used = true;
            for text in &texts {
                is_used = accept(setting, text).map_err(wrong)?;
            }
            if setting.name == "node" && texts.is_empty() {
                return Err(wrong("must name at least one node".to_owned()));
            }
            if is_used {
                self.insert(setting.name, texts, Origin::File, source);
            }
        }
        self.file = Some(path);
        Ok(())
    }
}

/// The setting that a key sets.
fn of_key(key: &str) -> Result<&'static Setting, String> {
    let of_key = SETTINGS.iter().find(|setting| setting.key() == Some(key));
    match of_key.or_else(|| Setting::of(key)) {
        Some(setting) if setting.place == Place::Anywhere => Ok(setting),
        Some(setting) if setting.place == Place::NotInFile => {
            Err("it describes one call, and cannot stand in the file".to_owned())
        }
        _ => Err(match nearest(key, SETTINGS.iter().filter_map(Setting::key)) {
            Some(near) => format!("no such setting; do you mean {near}?"),
            None => "no such setting".to_owned(),
        }),
    }
}

fn default_file() -> Result<Option<PathBuf>, BuildError> {
    let absolute = |name, below: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .map(|path| path.join(below))
    };
    let own = absolute("XDG_CONFIG_HOME", "").or_else(|| absolute("HOME", ".config"));
    let folders = own.into_iter().chain([PathBuf::from("/etc")]);
    for path in folders.map(|folder| folder.join("quorlock/config.toml")) {
        match fs::metadata(&path) {
            Ok(metadata) if is_anothers(&metadata) => {
                let path = path.display().to_string();
                let reason = format!(
                    "another user of this machine can change this file, and so the nodes; chmod go-w {path}, and give \
                     it to root or to the user that runs quorlock"
                );
                return Err(BuildError::setting(path, reason));
            }
            Ok(_) => return Ok(Some(path)),
            // There is no such file, or the user may not read its folder. The next default file is tried.
            Err(_) => {}
        }
    }
    Ok(None)
}

/// Whether another user than root and the current user can change the file. `ssh` has the same rule for its files.
fn is_anothers(file: &Metadata) -> bool {
    let owners = [0, rustix::process::geteuid().as_raw()];
    file.mode() & 0o022 != 0 || !owners.contains(&file.uid())
}

/// Reads the file. `origin`: the option or variable that names the file, for errors.
fn table(path: &Path, origin: &str) -> Result<Table, BuildError> {
    let text = fs::read_to_string(path).map_err(|error| {
        let origin = format!("{origin}the configuration in {}", path.display());
        BuildError::setting(origin, Reason::new(error.to_string(), error))
    })?;
    text.parse().map_err(|error: toml::de::Error| {
        // The error's full text quotes the line, which may hold a password. So only its message is shown.
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        BuildError::setting(format!("{}, line {line}", path.display()), error.message())
    })
}

/// The value of a key, as a user would type it. A list may have several values.
fn texts(value: Value, is_list: bool) -> Result<Vec<OsString>, String> {
    match value {
        Value::String(text) => Ok(vec![text.into()]),
        Value::Integer(number) => Ok(vec![number.to_string().into()]),
        Value::Boolean(yes) => Ok(vec![yes.to_string().into()]),
        Value::Array(values) if is_list => {
            let texts = values.into_iter().map(|value| texts(value, false));
            texts.collect::<Result<Vec<_>, _>>().map(|texts| texts.concat())
        }
        _ => Err("must be a text, a number, true or false".to_owned()),
    }
}
