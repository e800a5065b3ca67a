//! State that survives the process: what a component hands over for a snapshot or checkpoint, and takes back.
//!
//! # For implementers
//! - **DU-1** `restore(save())` makes the component continue exactly as the one that saved: same outputs, same
//!   decisions, same random numbers.
//! - **DU-2** `restore` changes nothing when it returns an error.
//! - **DU-3** both call [`Eager::check`] first and change nothing when it fails.

use std::collections::BTreeMap;

use candle_core::Tensor;

use crate::error::ErrorType;
use crate::region::Eager;

/// The whole state of one component.
#[derive(Debug, Clone, Default)]
pub struct SavedState {
    /// Everything but tensors, as one JSON document owned by the component.
    pub json: String,
    /// Tensors by name; names are unique within the component.
    pub tensors: BTreeMap<String, Tensor>,
}

/// A component whose state can be stored and brought back.
pub trait Durable: ErrorType {
    /// The state as it is now. Tensors are copies: later training does not change them.
    ///
    /// # Errors
    /// When a tensor cannot be copied or a value cannot be written down, or while a region is open (DU-3).
    fn save(&self, eager: &Eager) -> Result<SavedState, Self::Error>;

    /// Replaces the state by `saved` (DU-1), or leaves it untouched on error (DU-2).
    ///
    /// # Errors
    /// When `saved` was made by an incompatible component or is incomplete, where the error names the field, or while a
    /// region is open (DU-3).
    fn restore(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Self::Error>;
}
