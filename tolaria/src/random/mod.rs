//! Random numbers on the device: pure functions of a seed, a layer and a counter in device memory.
//!
//! ```text
//!   DrawCounter (low, high) ──► philox4x32 (element / 4, layer, low, high; seed) ──► mask ──► inputs * mask
//!        ▲ advance, once per training forward pass
//! ```
//!
//! A generator with a state on the host would be recorded into a CUDA graph with the numbers of the capture, and every
//! replay would draw them again. Here the graph holds the address of the counter, and advances it as its first work:
//! each replay draws other numbers, the same ones as a run without graphs, and a run that is resumed with the saved
//! counter goes on as if it had not stopped. CPU and GPU draw the same numbers.
//!
//! *Entry points*: [`DrawCounter`], one for each model; [`Dropout`], one for each layer. *Not here*: the order of
//! samples and of projections, which the host draws.
//!
//! # Examples
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use tolaria::host_read::{HostReads, read_vec};
//! use tolaria::random::{DrawCounter, Dropout};
//!
//! let counter = DrawCounter::new(7, &Device::Cpu)?;
//! let dropout = Dropout::new(0.5, 0, &counter)?;
//! let inputs = Tensor::ones((2, 8), DType::F32, &Device::Cpu)?;
//! let mut reads = HostReads::default();
//!
//! counter.advance()?;
//! let first = read_vec(&dropout.forward(&inputs, true)?, "outputs", &mut reads)?;
//! assert!(first.iter().all(|output| [0.0, 2.0].contains(output)));
//!
//! counter.advance()?;
//! assert_ne!(read_vec(&dropout.forward(&inputs, true)?, "outputs", &mut reads)?, first);
//!
//! counter.set(1)?;
//! assert_eq!(read_vec(&dropout.forward(&inputs, true)?, "outputs", &mut reads)?, first);
//! # Ok::<(), tolaria::Error>(())
//! ```

mod philox;
mod counter;
mod dropout;

pub use counter::DrawCounter;
pub use dropout::Dropout;
pub use philox::philox4x32;
pub(crate) use philox::words;
