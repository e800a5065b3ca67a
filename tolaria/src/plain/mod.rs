//! Training any candle function, without seeds: [`PlainModel`] names its variables, [`NoSeeds`] manages none, and
//! [`NoPolicy`] decides nothing.
//!
//! `examples/train_plain.rs` trains one from beginning to end.
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

mod model;
mod no_seeds;
mod no_policy;

pub use model::PlainModel;
pub use no_policy::NoPolicy;
pub use no_seeds::NoSeeds;
