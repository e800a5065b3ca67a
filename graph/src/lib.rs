//! CUDA graphs: a region of tensor operations is recorded once and then replayed with one call.
//!
//! ```text
//!   inputs ──copy──► static inputs ──► ┌──────────── graph ────────────┐ ──► static outputs ──copy──► results
//!                                      │ kernels, fills, device copies │
//!   run eagerly (warm-up) ──► capture ─┴──────────► replay, replay, … ─┘
//!                                │ refused: run eagerly from then on, and say why
//! ```
//!
//! # Terms
//! *Region*: the tensor operations between two points of a program. *Capture*: running the region once while the device
//! records instead of executing. *Replay*: executing the recording with one call of the driver. *Warm-up*: an eager run
//! before the capture, which loads kernels and uploads constants. *Static buffer*: a tensor that a graph reads or
//! writes; its elements change between replays, its address never does. *Refusal*: why a region is not replayed.
//!
//! # Three ways in
//! A function, captured per input shape: [`GraphFunction`].
//!
//! ```
//! # use candle_core::{Device, Tensor};
//! # use leyline::region::Eager;
//! # use esper_graph::{GraphFunction, GraphFunctionConfig, GraphManager};
//! let norm = |inputs: &[Tensor]| Ok(vec![inputs[0].sqr()?.sum_all()?.sqrt()?]);
//! let mut norm = GraphFunction::new(norm, GraphFunctionConfig::default(), &GraphManager::global());
//! let x = Tensor::new(&[3.0_f32, 4.0], &Device::Cpu)?;
//! let mut eager = Eager::acquire()?;
//! for _ in 0..4 {
//!     // On a GPU: eager, eager and captured, replayed, replayed.
//!     assert_eq!(norm.call(&mut eager, &[&x])?[0].to_scalar::<f32>()?, 5.0);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A model, captured per input shape: [`GraphModel`].
//!
//! ```
//! # use candle_core::{Device, Tensor};
//! # use leyline::region::Eager;
//! # use esper_graph::{GraphFunctionConfig, GraphManager, GraphModel};
//! let model = |x: &Tensor| x.relu();
//! let mut model = GraphModel::new(model, GraphFunctionConfig::default(), &GraphManager::global());
//! let x = Tensor::new(&[-1.0_f32, 2.0], &Device::Cpu)?;
//! let y = model.forward(&mut Eager::acquire()?, &x)?;
//! assert_eq!(y.to_vec1::<f32>()?, [0.0, 2.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Any region, with static buffers and a fallback of one's own: [`Session::capture`].
//!
//! ```
//! # use candle_core::{DType, Device, Tensor};
//! # use leyline::region::Eager;
//! # use esper_graph::Session;
//! # #[allow(unreachable_code)]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::Cpu;
//! let x = Tensor::new(&[1.0_f32, 2.0], &device)?;
//! let y = Tensor::zeros(2, DType::F32, &device)?;
//! let region = || y.slice_set(&x.affine(2.0, 1.0)?, 0, 0);
//! match Session::open(&device) {
//!     Ok(session) => {
//!         session.warm(region)?;
//!         let mut graph = session.capture(&mut Eager::acquire()?, |_| region())?;
//!         graph.hold("x", &x)?;
//!         graph.hold("y", &y)?;
//!         graph.replay()?;
//!     }
//!     Err(refusal) => {
//!         assert_eq!(refusal.name(), "unsupported");
//!         region()?;
//!     }
//! }
//! assert_eq!(y.to_vec1::<f32>()?, [3.0, 5.0]);
//! # Ok(())
//! # }
//! ```
//!
//! A function may change what it is called on, such as a model with `&mut self`: what it keeps from call to call has to be at one
//! address. `esper_layers::KvCache` and `Position` keep a sequence so; `layers/examples/decode_loop.rs` generates with them, and a
//! whole step is one replay. A training step of a model of candle-nn with its `VarMap`: `tolaria/examples/train_candle_nn.rs`.
//!
//! # Duties
//! A graph holds addresses, and a replay runs no code of the region. What the types cannot see is the caller's part:
//!
//! 1. Whatever the region reads or writes and did not allocate itself lives as long as the graph, at the same address:
//!    [`Captured::hold`] keeps it alive, and a graph that points at more than it holds is not replayed ([`Refusal::NotHeld`]).
//!    Debug builds check addresses before each replay. [`GraphFunction`] and [`GraphModel`] own the function and their
//!    buffers; the tensors that the function owns must not be replaced.
//! 2. Numbers computed on the host, branches and side effects are those of the capture. What differs between replays
//!    comes in through a static buffer: a number through a [`DeviceScalar`]. [`Captured::test`] finds what has changed all
//!    the same; the trainer, [`GraphFunction`] and [`GraphModel`] test at growing distances.
//! 3. A tensor made in the region does not leave it. Where one did, the capture is refused, and that tensor has
//!    memory but no values: its numbers read as not finite, its integers as their largest value.
//! 4. A graph is replayed on the thread that captured it: constants that a region uploads (`Tensor::new` of a few
//!    elements, a scalar operand) lie in a cache of that thread. Elsewhere [`Captured::replay`] refuses;
//!    [`GraphFunction`] and [`GraphModel`] capture anew.
//! 5. A device is one thread's: while a session or a trainer of it lives, other threads are refused another one
//!    (`SharedDevice`), and use no tensors of it, because what they enqueue while a region is recorded would become part of
//!    the graph instead of running. Threads that work side by side have a device each.
//! 6. Settings of the process that pick kernels, such as reduced precision of products, are part of the key
//!    ([`GraphKey::precision`], [`GraphKey::switches`], [`GraphKey::tag`]), or the graphs are dropped when they change.
//!
//! # What is refused
//! | the region | [`Refusal`] | way out |
//! |---|---|---|
//! | runs on the CPU, on the default stream, or without memory pools | `Unsupported` | `Device::new_cuda_with_stream` |
//! | reads a device value on the host | `HostRead`, `HostCopies` | keep the value on the device |
//! | uploads a value that warm-up did not have, or more than 4096 bytes | `ChangingValue` | make it a static buffer |
//! | leaves a tensor behind | `UnfreedAllocations` | copy it into a static buffer |
//! | drops or replaces a tensor from before it | `ReleasedInside` | drop it where it was made, or write to it in place |
//! | draws from the device's random generator | `HostRandom` | draw from a counter in a static buffer |
//! | returns an error or panics | `RegionFailed`, `Panicked` | |
//! | does nothing on the device | `Empty` | |
//! | needs more memory at once than there is | `OutOfMemory` | smaller batches |
//! | uses a tensor that the graph does not hold, at replay | `NotHeld` | hold it |
//! | has a static buffer that moved, at replay | `Moved` | hold it |
//! | takes a number or a tensor of the host that has changed since the capture | `FrozenValue` | a [`DeviceScalar`] |
//! | cannot be rewritten, or the rewritten one leaves other results | `NotCompiled` | it is replayed as recorded |
//! | gets another result by a rewrite, which was found | `WrongRewrite` | it is replayed as recorded |
//! | is replayed on another thread than it was captured on | `OtherThread` | capture there |
//! | is on a device that another thread has a session of | `SharedDevice` | `Device::new_cuda_with_stream` for each thread |
//! | finds the device in error, or the driver unwilling | `ParkedError`, `Driver` | |
//!
//! A refusal leaves the device usable, and is remembered per [`GraphKey`]: nothing is tried twice.
//!
//! # Cost
//! A capture costs a few eager runs on the host ([`CaptureReport::times`]), and waits for the device when it drops
//! another graph. A replay costs one launch, however many operations were recorded, and a copy per input and result.
//! A graph keeps its static buffers and the memory of its intermediate results; a [`GraphCache`] holds at most its
//! limit. More shapes in turn than the limit mean a capture per call: raise the limit, or pad the inputs.

#![deny(unsafe_code)]

mod sync;
#[cfg(any(test, feature = "cuda"))]
mod claim;
mod key;
pub mod backward;
pub mod precision;
mod stats;
mod cache;
mod manager;
mod reason;
mod retest;
mod scalar;
mod report;
mod planted_fault;
mod compile_report;
#[cfg(any(test, feature = "cuda"))]
mod search;
mod compile_text;
#[cfg(any(test, feature = "cuda"))]
mod kernel_cache;
#[cfg(any(test, feature = "cuda"))]
mod translate;
mod facts;
mod kernel_time;
mod staging;
#[allow(unsafe_code)]
pub mod launch;
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
pub mod kernels;
// What talks to the driver.
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[allow(unsafe_code)]
mod absent;
pub mod execute;
mod function;
mod model;
pub mod compile;
#[cfg(test)]
mod testing;

#[cfg(not(feature = "cuda"))]
pub use absent::{
    Captured, Compilation, CompiledGraph, DeviceTimer, Draft, Feed, GraphMemory, LIBRARY_MODULES, Nvtx, PeakMemory,
    PendingRead, ReadLane, Search, Session, StagingRing,
};
#[cfg(not(feature = "cuda"))]
pub use absent::{DeviceClaim, between_recordings};
pub use cache::GraphCache;
pub use compile_report::{CompileOptions, CompileReport, CompileTimes, Searched};
#[cfg(feature = "cuda")]
pub use cuda::{
    Captured, Compilation, CompiledGraph, DeviceTimer, Draft, Feed, GraphMemory, LIBRARY_MODULES, Nvtx, PeakMemory,
    PendingRead, ReadLane, Search, Session, StagingRing,
};
#[cfg(feature = "cuda")]
pub use cuda::{DeviceClaim, between_recordings};
pub use facts::DeviceFacts;
pub use function::{GraphFunction, GraphFunctionConfig};
pub use kernel_time::KernelTime;
pub use key::{DeviceKey, ExecutionMode, GraphKey, Precision, ProductSwitches, TensorKey};
pub use manager::{BadSwitch, CaptureCost, GraphManager, GraphMode, GraphTotals};
pub use model::GraphModel;
#[doc(hidden)]
pub use planted_fault::PlantedFault;
pub use reason::SHARED_DEVICE;
pub use reason::{Refusal, Stage};
pub use report::{CaptureReport, CaptureTimes, NodeCounts};
pub use retest::{GraphTests, Stale};
pub use scalar::DeviceScalar;
pub use staging::{HostSlice, StagingLane};
pub use stats::{Elapsed, GraphStats, KeyStats};
