//! Policies that were learned: their files, where a run takes them from, and how they are trained.
//!
//! ```text
//!  runs with rules ─► choices ─► clone ─┐
//!                                       ├─► network ─► policy.safetensors, policy.json (policy.hmac) ─► a run looks after every epoch
//!  runs with the network, drawn ─► rewards ─► policy gradient
//! ```

mod file;
mod source;
mod episode;
mod learn;
mod train;

pub use file::{FileError, MANIFEST_FILE, Manifest, Point, SIGNATURE_FILE, Training, WEIGHTS_FILE, read, write};
pub use source::{Kept, Watched, networks, warning, warnings};
pub(crate) use source::{One, network};
pub use train::{PolicyTrainArgs, command};
