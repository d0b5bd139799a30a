//! The names of the resources of a lock.

use std::borrow::Cow;
use std::sync::Arc;

use quorlock_core::Keys;

use crate::error::InvalidRequest;
use crate::own_keys::RESERVED;

/// The names of the resources of one lock: nearly always one, at most 64.
///
/// Text, and arrays, slices and vectors of text convert into `Resources`, so
/// [`Client::acquire`](crate::Client::acquire) accepts all of these. The order does not matter.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use quorlock::{Client, node::MemoryNode};
/// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
/// let transfer = client.acquire(["account:7", "account:9"]).await?;
/// assert!(client.try_acquire("account:9").await.unwrap_err().is_contended());
/// # transfer.release().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Resources(Names);

#[derive(Clone, Debug)]
enum Names {
    One(Arc<str>),
    Several(Vec<Arc<str>>),
}

impl Resources {
    /// The largest number of resources in one lock.
    pub const COUNT_MAX: usize = Keys::MAX;

    /// The longest name of a resource, in bytes.
    pub const NAME_BYTES_MAX: usize = 4096;

    /// Checks the name of a resource, as [`Client::acquire`](crate::Client::acquire) does first. A name has 1 to
    /// [`NAME_BYTES_MAX`](Self::NAME_BYTES_MAX) bytes of any value. The key that the name makes with the client's
    /// prefix must not contain `quorlock:`, because all keys of the library's own do.
    ///
    /// # Errors
    /// The rule that the name breaks. This function does not know the prefix, so the client checks the key once more.
    pub fn check_name(name: &str) -> Result<(), InvalidRequest> {
        if name.is_empty() {
            return Err(InvalidRequest::ResourceEmpty);
        }
        if name.len() > Self::NAME_BYTES_MAX {
            let bytes = name.len();
            return Err(InvalidRequest::ResourceTooLong { bytes, max: Self::NAME_BYTES_MAX });
        }
        if name.contains(RESERVED) {
            return Err(InvalidRequest::ResourceReserved);
        }
        Ok(())
    }

    pub(crate) fn check(self) -> Result<Keys, InvalidRequest> {
        match self.0 {
            Names::One(name) => Self::check_name(&name).map(|()| name.into()),
            Names::Several(names) => {
                names.iter().try_for_each(|name| Self::check_name(name))?;
                Keys::new(names.iter().cloned()).ok_or_else(|| no_keys(names))
            }
        }
    }

    /// Returns the name as messages show it. Several names are sorted and separated by commas.
    pub(crate) fn title(&self) -> Arc<str> {
        match &self.0 {
            Names::One(name) => name.clone(),
            Names::Several(names) => {
                let mut sorted: Vec<&str> = names.iter().map(|name| &**name).collect();
                sorted.sort_unstable();
                sorted.join(", ").into()
            }
        }
    }

    fn several<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        Self(Names::Several(names.into_iter().map(|name| name.as_ref().into()).collect()))
    }
}

impl From<Keys> for Resources {
    fn from(names: Keys) -> Self {
        Self(match names.single() {
            Some(name) => Names::One(name.clone()),
            None => Names::Several(names.to_vec()),
        })
    }
}

macro_rules! one {
    ($($text:ty),*) => {$(
        impl From<$text> for Resources {
            fn from(name: $text) -> Self {
                Self(Names::One(AsRef::<str>::as_ref(&name).into()))
            }
        }
    )*};
}

one!(&str, &&str, String, &String, Box<str>, &Arc<str>, Cow<'_, str>);

impl From<Arc<str>> for Resources {
    fn from(name: Arc<str>) -> Self {
        Self(Names::One(name))
    }
}

impl<S: AsRef<str>, const COUNT: usize> From<[S; COUNT]> for Resources {
    fn from(names: [S; COUNT]) -> Self {
        Self::several(names)
    }
}

impl<S: AsRef<str>, const COUNT: usize> From<&[S; COUNT]> for Resources {
    fn from(names: &[S; COUNT]) -> Self {
        Self::several(names)
    }
}

impl<S: AsRef<str>> From<&[S]> for Resources {
    fn from(names: &[S]) -> Self {
        Self::several(names)
    }
}

impl<S: AsRef<str>> From<Vec<S>> for Resources {
    fn from(names: Vec<S>) -> Self {
        Self::several(names)
    }
}

impl<S: AsRef<str>> From<&Vec<S>> for Resources {
    fn from(names: &Vec<S>) -> Self {
        Self::several(names)
    }
}

/// The reason why [`Keys`] refused these names.
fn no_keys(mut names: Vec<Arc<str>>) -> InvalidRequest {
    let count = names.len();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) if count <= Keys::MAX => {
            InvalidRequest::ResourceTwice { resource: pair[0].as_ref().to_owned() }
        }
        _ => InvalidRequest::ResourceCount { count, max: Keys::MAX },
    }
}
