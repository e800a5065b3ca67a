//! `esper train`: one run, from its configuration to its report.

mod folder;
mod interrupt;
mod emergency;
mod metrics_log;
mod otlp;
mod plan;
mod resume;
mod watch;
mod verdict;
mod train;
mod surround;

pub use folder::RunFolder;
pub(crate) use interrupt::Interrupt;
pub use otlp::OtlpArgs;
pub(crate) use plan::whole_digest;
pub(crate) use surround::surround;
pub use train::{TrainArgs, train, train_quietly};
