//! What is done to samples anew in every epoch: crop, flip, noise, or anything of one's own.
//!
//! ```text
//!   Source::read ──► Transform::apply, one after the other, with the chance of (seed, epoch, place, sample) ──► microbatch
//! ```
//! The numbers that a transform draws are a function of the run's seed, the epoch, the sample and its place in the order of the
//! epoch. So a run gives the same bits with any number of workers and when it is resumed, and a sample
//! that is drawn twice in an epoch is changed in two ways. Held-out data are never changed.
//!
//! # Examples
//! One's own, in full: it hides one number of each sample.
//! ```
//! use leyline::source::{SampleSpec, SamplesMut, SourceError};
//! use tolaria::batch::transform::{Place, SampleRandom, Transform};
//!
//! #[derive(Debug)]
//! struct Hide;
//!
//! impl Transform for Hide {
//!     fn describe(&self) -> String {
//!         "hide".to_owned()
//!     }
//!
//!     fn apply(&self, sample: &mut SamplesMut<'_>, _: &SampleSpec, random: &mut SampleRandom) -> Result<(), SourceError> {
//!         let inputs = sample.inputs.as_f32()?;
//!         let hidden = random.below(u32::try_from(inputs.len()).expect("samples are small"));
//!         inputs[hidden as usize] = 0.0;
//!         Ok(())
//!     }
//! }
//!
//! # use leyline::source::Field;
//! let spec = SampleSpec { inputs: Field::f32([4]), targets: Field::u32([]) };
//! let hide = |epoch| {
//!     let (mut inputs, mut targets) = ([1.0; 4], [0]);
//!     let mut random = SampleRandom::new(7, Place { epoch, position: 0, sample: 3 }, 0);
//!     Hide.apply(&mut SamplesMut::new(&mut inputs, &mut targets), &spec, &mut random)?;
//!     Ok::<_, SourceError>(inputs)
//! };
//! assert_eq!(hide(0)?, hide(0)?);
//! assert_eq!(hide(0)?.iter().sum::<f32>(), 3.0);
//! # Ok::<(), SourceError>(())
//! ```

mod chance;
mod provided;

pub use chance::{Place, SampleRandom};
pub use provided::{AugmentConfig, Crop, Flip, Noise};

use leyline::source::{SampleSpec, SamplesMut, SourceError};

/// Changes a sample on the host, in place.
pub trait Transform: std::fmt::Debug + Send + Sync {
    /// Name and settings: a run that is resumed compares them.
    fn describe(&self) -> String;

    /// Changes one sample. What it does follows from the sample and `random` alone.
    ///
    /// # Errors
    /// When the sample cannot be changed; the run ends with it.
    fn apply(
        &self,
        sample: &mut SamplesMut<'_>,
        spec: &SampleSpec,
        random: &mut SampleRandom,
    ) -> Result<(), SourceError>;

    /// Confirms that it works on samples like these, before the run begins.
    ///
    /// # Errors
    /// What is accepted, and what was found.
    fn fits(&self, _spec: &SampleSpec) -> Result<(), String> {
        Ok(())
    }
}
