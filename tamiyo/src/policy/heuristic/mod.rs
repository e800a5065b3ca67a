//! The policy that weighs evidence.
//!
//! At every decision, every seed is judged by the rules of its stage, and at most one new seed germinates:
//!
//! | stage | rule | condition | operation |
//! |---|---|---|---|
//! | any | `closing` | too few epochs are left; see [`HeuristicConfig::closing_epochs`] | cull, hold or fossilize |
//! | germinated | `germinated` | always | start training |
//! | training | `training_leaks` | a violation of isolation was found | cull |
//! | | `training_harmful` | min epochs, upper bound of the gain < 0 | cull |
//! | | `training_proven` | min epochs, the gate to blending is open | start blending |
//! | | `training_unconfirmed` | the samples that confirm were read, and its gain is not confirmed | cull |
//! | | `training_unproven` | max epochs | cull |
//! | blending | `blending_harmful` | upper bound < 0 in measurements in a row | cull |
//! | | `blending_complete` | alpha is 1 and holds | hold |
//! | holding | `holding_harmful` | upper bound < 0 in measurements in a row | cull |
//! | | `holding_proven` | min epochs, the gate to permanence is open | fossilize |
//! | | `holding_unproven` | max epochs | cull |
//! | (free slot) | `plateau` | host stabilized and on a plateau, epochs, seeds, parameters, power and compute left | germinate |
//!
//! Where `blending.fade_epochs` is above 0, a seed that acts and is culled by another rule than `closing` loses its influence
//! over so many epochs; nothing else is asked of it meanwhile.
//!
//! What a seed has to prove is asked by the gates of the seed manager and nowhere else: this policy reads their latest verdict. A seed
//! that they do not let pass is culled when the time of its stage is over, for they may never open. When nothing germinates, a
//! waiting proposal says why: `no_power` where the samples that confirm are too few to tell the smallest gain that matters, so that no
//! seed could prove itself, `looking_spent` and `tries_in_vain` where [`LookingConfig`] ends the search, `does_not_pay` where seeds of
//! earlier runs do ([`EarlierConfig`]).
//!
//! # The rule `closing`
//! The run must not end with a seed that acts on the output without having proven itself, and must not spend epochs on
//! a seed that cannot become permanent any more. The last boundary a policy can count on is the one before the last
//! epoch. Therefore
//! - a germinated or training seed is culled as soon as its shortest remaining life reaches beyond that boundary;
//! - from `closing_epochs` before the end, a holding seed that is proven (confirmed, or its lower bound above 0 where nobody
//!   confirms) and does no harm becomes permanent as soon as its gate is open, whatever its time in the stage; it is
//!   culled at once when it is not, or when its gate cannot open before that boundary any more;
//! - a blending seed that is proven and does no harm holds then when it acts in full and its gate to permanence can still
//!   open before that boundary; it is culled otherwise;
//! - nothing germinates that could not live its shortest life.

mod config;
pub(super) mod decide;
pub(super) mod rules;
pub(in crate::policy) mod placement;
mod earlier;
pub(super) mod budget;

pub use config::{
    BlendingConfig, EvidenceConfig, GateEpochs, GerminationConfig, HeuristicConfig, HoldingConfig, LookingConfig,
    PlateauConfig, StabilityConfig, TrainingConfig,
};
pub use decide::HeuristicMemory;
pub use earlier::{EarlierConfig, EarlierTries};
