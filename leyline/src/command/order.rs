//! An operation with its reason: what goes from policy to seed manager.

use crate::command::{Operation, SignedCommand};
use crate::error::{Error, ErrorKind};

/// An order is signed, and nobody has verified it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the order is signed and was not verified: expected a layer that verifies around the seed manager, or none that signs"
)]
pub struct Unverified;

impl Error for Unverified {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Rejected
    }
}

/// An operation with its reason, as a policy gives it and a seed manager takes it.
///
/// ```
/// use leyline::command::{Operation, Order};
/// use leyline::id::SeedId;
///
/// let order = Order::new(Operation::Cull { seed: SeedId(3) }, "holding_unproven: 5 epochs in holding");
/// assert_eq!(order.operation.to_string(), "cull seed-3");
/// assert!(order.sequence.is_none() && order.signed.is_none(), "until a layer numbers and signs it");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// What is to happen.
    pub operation: Operation,
    /// Why, for people.
    pub reason: String,
    /// Share of its inputs that the policy had measured when it decided, in `[0, 1]`; absent when it does not say.
    pub input_coverage: Option<f64>,
    /// Its number, which grows from order to order; absent until a layer that signs gives one.
    pub sequence: Option<u64>,
    /// What a layer that verifies looks at, and nothing else of the order; absent until a layer has signed it, and once
    /// one has verified it.
    pub signed: Option<SignedCommand>,
}

impl Order {
    /// An order without number and signature.
    #[must_use]
    pub fn new(operation: Operation, reason: impl Into<String>) -> Self {
        Self { operation, reason: reason.into(), input_coverage: None, sequence: None, signed: None }
    }

    /// For managers that do not verify: what was signed is to be verified, and then it is not signed any more (SM-8).
    ///
    /// # Errors
    /// [`Unverified`] of an order that is signed.
    pub fn check_verified(&self) -> Result<(), Unverified> {
        if self.signed.is_some() { Err(Unverified) } else { Ok(()) }
    }
}

impl From<Operation> for Order {
    /// An order without a reason.
    fn from(operation: Operation) -> Self {
        Self::new(operation, String::new())
    }
}
