//! STUB
/// The in-process backend. Clones share their permits.
#[derive(Clone, Debug, Default)]
pub struct Memory {}
