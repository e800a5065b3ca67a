//! Configuration of the policy: which one decides, and the numbers of each.

mod issue;
mod section;
mod heuristic;
mod controls;

pub use controls::{FixedConfig, FixedGermination, RandomConfig};
pub use heuristic::{
    BlendingConfig, EvidenceConfig, GerminationConfig, HeuristicConfig, HoldingConfig, PlateauConfig, StabilityConfig,
    TrainingConfig,
};
pub use issue::ConfigIssue;
pub use section::{PolicyKind, TamiyoConfig};
