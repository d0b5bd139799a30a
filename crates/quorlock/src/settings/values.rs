//! The texts of the settings that are set, and where each came from.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::{env, fmt};

use super::{SETTINGS, Setting};
use crate::builder::ClientBuilder;
use crate::error::{BuildError, Reason};

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An option.
    Typed,
    /// A variable.
    Variable,
    /// A key of the file.
    File,
}

/// The value of a setting.
#[derive(Clone)]
#[allow(missing_debug_implementations, reason = "it would show the password")]
pub struct Given {
    /// The texts. Only a list has several.
    pub texts: Vec<OsString>,
    /// Where they came from.
    pub origin: Origin,
    /// The same in words: an option, a variable, or a key and a file.
    pub source: String,
}

/// Whether the program uses a setting. The error says why the value cannot be used.
pub(super) type Accept<'a> = &'a dyn Fn(&'static Setting, &OsStr) -> Result<bool, String>;

/// The settings that are set.
#[derive(Clone, Default)]
pub struct Values {
    given: BTreeMap<String, Given>,
    /// The configuration file that was read.
    pub file: Option<PathBuf>,
}

impl Values {
    /// Sets a setting, or another option that was typed, unless it is set.
    pub fn insert(&mut self, name: &str, texts: Vec<OsString>, origin: Origin, source: String) {
        self.given.entry(name.to_owned()).or_insert(Given { texts, origin, source });
    }

    /// The value of a setting; `None` if it is not set.
    pub fn of(&self, setting: &str) -> Option<&Given> {
        self.given.get(setting)
    }

    /// Where the value of a setting came from.
    pub fn origin(&self, setting: &str) -> Option<Origin> {
        self.of(setting).map(|given| given.origin)
    }

    /// The value of a setting that takes one; `None` if it is not set, or cannot be used.
    pub fn get<T, E>(&self, setting: &str, parse: impl Fn(&str) -> Result<T, E>) -> Option<T> {
        self.of(setting)?.texts.first().and_then(|text| parse(text.to_str()?).ok())
    }

    /// Adds the values of variables. An empty variable counts as not set.
    ///
    /// # Errors
    /// `accept` refuses a value.
    pub fn read_variables(&mut self, accept: Accept<'_>) -> Result<(), BuildError> {
        let is_set = |text: &OsString| text.to_str().is_none_or(|text| !text.trim().is_empty());
        for setting in SETTINGS {
            let variable = setting.variable();
            let Some(text) = env::var_os(&variable).filter(is_set) else { continue };
            if self.of(setting.name).is_none()
                && accept(setting, &text)
                    .map_err(|reason| BuildError::setting(&variable, reason))?
            {
                self.insert(setting.name, vec![text], Origin::Variable, variable);
            }
        }
        Ok(())
    }

    /// Makes the builder that these values describe. Reads the password file and the TLS files, if set. The client
    /// reads them again.
    ///
    /// # Errors
    /// A setting whose value cannot be used, and the reason, which contains no password.
    pub fn builder(&self) -> Result<ClientBuilder, (&'static str, Reason)> {
        let mut builder = ClientBuilder::new();
        for Setting { name, set, .. } in SETTINGS {
            let (Some(set), Some(given)) = (set, self.of(name)) else { continue };
            for text in &given.texts {
                let text = text.to_str().ok_or_else(|| (*name, "it is not UTF-8 text".into()))?;
                builder = set(builder, text, self).map_err(|reason| (*name, reason))?;
            }
        }
        Ok(builder)
    }
}

/// Shows no values, because one may be a password.
impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.given.values().map(|given| &given.source)).finish()
    }
}
