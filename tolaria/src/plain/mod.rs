//! Training any candle function, without seeds: [`PlainModel`] names its variables, [`NoSeeds`] manages none, and
//! [`NoPolicy`] decides nothing.
//!
//! `examples/train_candle_nn.rs` trains one of `candle-nn` from beginning to end, in 20 lines.
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//! use tolaria::plain::PlainModel;
//! use leyline::model::{Pass, TrainableModel};
//!
//! let weight = Var::zeros((4, 16), candle_core::DType::F32, &Device::Cpu)?;
//! let model = PlainModel::new(vec![("weight".into(), weight.clone())], move |x: &Tensor| {
//!     x.matmul(&weight.as_tensor().t()?)
//! })?;
//! let logits = model.forward(&Tensor::ones((2, 16), candle_core::DType::F32, &Device::Cpu)?, Pass::Train)?.logits;
//! assert_eq!(logits.dims(), [2, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With dropout, which acts in training alone. The counter belongs to what a checkpoint saves: without it a run that is
//! taken up draws its masks again.
//!
//! ```
//! use candle_core::{DType, Device, Tensor, Var};
//! use leyline::model::Pass;
//! use tolaria::plain::{NoSeeds, PlainModel};
//! use tolaria::random::{DrawCounter, Dropout};
//!
//! let weight = Var::zeros((16, 4), DType::F32, &Device::Cpu)?;
//! let counter = DrawCounter::new(7, &Device::Cpu)?;
//! let (dropout, draws) = (Dropout::new(0.5, 0, &counter)?, counter.as_var().clone());
//! let model = PlainModel::with_pass(vec![("weight".into(), weight.clone())], move |x: &Tensor, pass: Pass<'_>| {
//!     let is_training = pass == Pass::Train;
//!     if is_training {
//!         counter.advance()?;
//!     }
//!     dropout.forward(x, is_training)?.matmul(&weight)
//! })?;
//! let seeds = NoSeeds::with_buffers(model, vec![("draws".into(), draws)])?;
//! # drop(seeds);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod model;
mod no_seeds;
mod no_policy;

pub use model::{PlainModel, variables};
pub use no_policy::NoPolicy;
pub use no_seeds::NoSeeds;
