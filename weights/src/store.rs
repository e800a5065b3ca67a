//! Where artifacts come from.

use std::fmt::Debug;

use leyline::id::BlueprintId;

use crate::artifact::Artifact;
use crate::cancel::CancelToken;
use crate::error::StoreError;

const _: fn(&dyn KernelStore) = |_| {};

/// A source of artifacts. Called from worker threads, several at a time; it may take as long as it needs.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no store of artifacts",
    note = "the rules for implementers are in `esper_weights`, KS-1 to KS-3"
)]
pub trait KernelStore: Send + Sync + Debug {
    /// The artifact of `blueprint`.
    ///
    /// # Errors
    /// [`StoreError`]: absent, damaged, unreadable, of another form, too large, or cancelled.
    fn fetch(&self, blueprint: &BlueprintId, cancel: &CancelToken) -> Result<Artifact, StoreError>;
}
