//! Graphs on a CUDA device. The only code that talks to the driver.

mod driver;
mod event;
mod inspect;
mod memory;
mod session;
mod raw;
mod capture;
mod held;
mod executable;
mod draft;
mod side;
mod lookup;
mod read;
mod generated;
mod emit;
mod background;
mod compilation;
mod compiled;
mod verify;
mod search;
mod staging;
mod read_lane;
mod library;
mod planted;

pub use compilation::Compilation;
pub use compiled::CompiledGraph;
pub use draft::Draft;
pub use event::DeviceTimer;
pub use executable::Captured;
pub use library::LIBRARY_MODULES;
pub use memory::GraphMemory;
pub use read_lane::{PendingRead, ReadLane};
pub use search::Search;
pub use session::Session;
pub use session::{DeviceClaim, between_recordings};
pub use staging::StagingRing;
