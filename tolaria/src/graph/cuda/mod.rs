//! Graphs on a CUDA device. The only code that talks to the driver.

mod driver;
mod event;
mod inspect;
mod memory;
mod session;
mod capture;
mod executable;
mod staging;
mod library;

pub use event::DeviceTimer;
pub use executable::Captured;
pub use library::LIBRARY_MODULES;
pub use memory::GraphMemory;
pub use session::Session;
pub use staging::StagingRing;

pub(crate) use driver::{address, address_of, tensor_error};
