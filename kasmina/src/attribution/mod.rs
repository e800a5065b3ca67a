//! How much of a microbatch's loss each seed is responsible for.
//!
//! Only seeds that act (blending, holding or permanent, with α > 0 in the type of the network) can influence the loss of
//! the batch; they share it with the host in proportion to scores. A seed's weight is its score over the sum of all
//! scores, the host's included: weights have no unit, lie in `[0, 1]` and sum to at most 1.
//!
//! | mode | score of a seed | score of the host | range and unit of scores | passes | reads |
//! |---|---|---|---|---|---|
//! | `host_only` | none | 1 | 1 | none | none |
//! | `stage` | ½ while blending, else 1 | 1 | ½ to 1, no unit | none | none |
//! | `alpha` | α | 1 | 0 to 1, no unit | none | none |
//! | `contribution` | ‖y − h‖ at its slot | Σ ‖h‖ over the slots with acting seeds | ≥ 0, unit of h | one forward | one |
//! | `probe` | \|loss without it − loss\| | loss | ≥ 0, nats per sample | one forward, and one per acting seed | one |
//!
//! *Passes* are without gradient. *Reads* are device-to-host copies. α is the seed's own now. h is the value before the
//! seed and y the value behind it: y − h is α·f(h) for a residual blend only ([`graft::blend`](crate::graft::blend)). A
//! seed that takes away from h contributes as well, even where it adds nothing.
//!
//! | scope | `contribution` | `probe` | the others |
//! |---|---|---|---|
//! | `batch` | norms over the whole batch | losses averaged over the batch | as they are |
//! | `sample` | norms per sample | losses per sample | the same for every sample |
//!
//! With scope `sample` every sample has shares of its own, and the batch gets their mean. A sample whose scores are all
//! zero has nothing to share: it is the host's.
//!
//! *Fallback*: where a score is not finite, or all scores are zero in every sample, the whole batch falls back to `alpha`, for
//! every sample alike; [`Attribution::used`](leyline::seed::Attribution::used), a counter and an event say so. Without
//! an acting seed every mode gives `host_only`, which is no fallback.
//!
//! # Source
//! Own definitions. `probe` is the leave-one-out ablation of a single component (Meyes et al. 2019,
//! arXiv 1901.08644), weighed against the loss that remains.

mod scope;
mod shares;
mod measured;
mod sample;
mod batch;

pub use sample::SampleAttribution;
pub use scope::AttributionScope;

pub(crate) use batch::{attribute, attribute_samples};
pub(crate) use shares::Acting;
