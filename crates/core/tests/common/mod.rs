//! What the tests of the engine stand on: a world in virtual time, and rules that hold in it.

pub(crate) mod node;
pub(crate) mod shadow;
pub(crate) mod story;
pub(crate) mod watch;
pub(crate) mod world;
