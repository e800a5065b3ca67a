//! Where samples come from: memory, files larger than memory, anything that can hand out sample `i`.
//!
//! ```text
//!   sampler ──indices──► Source::read ──► buffers of the caller, on the host ──► transforms ──► device
//! ```
//! A source has a fixed number of samples of one shape, and gives any of them in any order, to several threads at once. It
//! knows of no epoch, no batch, no device; the order of samples and what is done to them per epoch are the trainer's.
//!
//! ```
//! use leyline::source::{Field, SampleSpec, SamplesMut, Source, SourceError};
//!
//! /// x and whether it is odd, for x from 0 on.
//! #[derive(Debug)]
//! struct Odd(usize);
//!
//! impl Source for Odd {
//!     fn len(&self) -> usize {
//!         self.0
//!     }
//!
//!     fn spec(&self) -> SampleSpec {
//!         SampleSpec { inputs: Field::f32([1]), targets: Field::u32([]) }
//!     }
//!
//!     fn digest(&self) -> String {
//!         format!("odd {}", self.0)
//!     }
//!
//!     fn read(&self, samples: &[u32], into: &mut SamplesMut<'_>) -> Result<(), SourceError> {
//!         self.check(samples)?;
//!         let (inputs, targets) = (into.inputs.as_f32()?, into.targets.as_u32()?);
//!         for (row, sample) in samples.iter().enumerate() {
//!             (inputs[row], targets[row]) = (*sample as f32, sample % 2);
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let (mut inputs, mut targets) = ([0.0; 2], [0; 2]);
//! Odd(9).read(&[7, 4], &mut SamplesMut::new(&mut inputs, &mut targets))?;
//! assert_eq!((inputs, targets), ([7.0, 4.0], [1, 0]));
//! # Ok::<(), SourceError>(())
//! ```
//! The tempting wrong one goes on from where it was, or draws: `let x = self.file.lock()?.next_row()` and
//! `x + self.generator.lock()?.normal()` give whoever comes first another sample than whoever comes second, so that a run
//! depends on the number of its workers and cannot be resumed (SO-1). A source reads at the place that follows from the
//! index; chance per epoch is a transform's, which is told the epoch.
//!
//! # For callers
//! - Buffers have room for exactly the samples that are asked for; what was in them is overwritten (SO-2).
//! - Digests are compared when a run is resumed. Equal ones are no proof: a source of a large file may look at parts of it.
//!
//! # For implementers
//! - **SO-1** a sample follows from its index alone: the same bits in every order, alone or among others, from any thread.
//! - **SO-2** a read writes every element of the buffers, one sample behind the other in the order that was asked for.
//! - **SO-3** number, shape and digest of a source stay as they are, and a source of the same samples has the same digest.
//! - **SO-4** an index outside is refused with [`ErrorKind::Rejected`] before anything is written, and named;
//!   [`Source::check`] does it. So are buffers of another type or length: [`SamplesMut::check`].
//! - **SO-5** what cannot be read, or is not what it was when the source was made, is an error that names the place, as a file,
//!   and the sample; nothing stands in for it.

use std::fmt;

use candle_core::DType;

use crate::error::{Error, ErrorKind};

/// Element type and shape of the inputs or targets of one sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    dtype: DType,
    dims: Vec<usize>,
}

impl Field {
    /// Numbers of `f32`; no dimensions are one number.
    #[must_use]
    pub fn f32(dims: impl Into<Vec<usize>>) -> Self {
        Self { dtype: DType::F32, dims: dims.into() }
    }

    /// Numbers of `u32`: classes, tokens.
    #[must_use]
    pub fn u32(dims: impl Into<Vec<usize>>) -> Self {
        Self { dtype: DType::U32, dims: dims.into() }
    }

    /// `f32` or `u32`.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions of one sample.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Elements of one sample.
    #[must_use]
    pub fn num_elements(&self) -> usize {
        self.dims.iter().product()
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype.as_str(), self.dims)
    }
}

/// What one sample is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleSpec {
    /// What the network is shown.
    pub inputs: Field,
    /// What it is to answer.
    pub targets: Field,
}

/// A buffer of the caller, on the host.
#[derive(Debug)]
pub enum ValuesMut<'a> {
    /// Of `f32`.
    F32(&'a mut [f32]),
    /// Of `u32`.
    U32(&'a mut [u32]),
}

impl ValuesMut<'_> {
    /// The buffer, of `f32`.
    ///
    /// # Errors
    /// [`ErrorKind::Rejected`] where it is of another type.
    pub fn as_f32(&mut self) -> Result<&mut [f32], SourceError> {
        match self {
            Self::F32(values) => Ok(values),
            Self::U32(_) => Err(SourceError::rejected("a buffer of u32 was given for numbers of f32")),
        }
    }

    /// The buffer, of `u32`.
    ///
    /// # Errors
    /// [`ErrorKind::Rejected`] where it is of another type.
    pub fn as_u32(&mut self) -> Result<&mut [u32], SourceError> {
        match self {
            Self::U32(values) => Ok(values),
            Self::F32(_) => Err(SourceError::rejected("a buffer of f32 was given for numbers of u32")),
        }
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::U32(values) => values.len(),
        }
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::U32(_) => DType::U32,
        }
    }
}

impl<'a> From<&'a mut [f32]> for ValuesMut<'a> {
    fn from(values: &'a mut [f32]) -> Self {
        Self::F32(values)
    }
}

impl<'a> From<&'a mut [u32]> for ValuesMut<'a> {
    fn from(values: &'a mut [u32]) -> Self {
        Self::U32(values)
    }
}

impl<'a, const N: usize> From<&'a mut [f32; N]> for ValuesMut<'a> {
    fn from(values: &'a mut [f32; N]) -> Self {
        Self::F32(values)
    }
}

impl<'a, const N: usize> From<&'a mut [u32; N]> for ValuesMut<'a> {
    fn from(values: &'a mut [u32; N]) -> Self {
        Self::U32(values)
    }
}

/// Buffers for some samples, one behind the other.
#[derive(Debug)]
pub struct SamplesMut<'a> {
    /// For their inputs.
    pub inputs: ValuesMut<'a>,
    /// For their targets.
    pub targets: ValuesMut<'a>,
}

impl<'a> SamplesMut<'a> {
    /// These two buffers.
    pub fn new(inputs: impl Into<ValuesMut<'a>>, targets: impl Into<ValuesMut<'a>>) -> Self {
        Self { inputs: inputs.into(), targets: targets.into() }
    }

    /// Confirms that the buffers are for `count` samples like `spec`.
    ///
    /// # Errors
    /// [`ErrorKind::Rejected`] with what is expected.
    pub fn check(&self, spec: &SampleSpec, count: usize) -> Result<(), SourceError> {
        for (what, field, buffer) in [("inputs", &spec.inputs, &self.inputs), ("targets", &spec.targets, &self.targets)]
        {
            let expected = field.num_elements() * count;
            if buffer.dtype() != field.dtype || buffer.len() != expected {
                let (wanted, found) = (field.dtype.as_str(), buffer.dtype().as_str());
                let message = format!(
                    "expected a buffer of {expected} {wanted} for the {what} of {count} samples, found {} {found}",
                    buffer.len()
                );
                return Err(SourceError::rejected(message));
            }
        }
        Ok(())
    }
}

/// A sample that cannot be read.
///
/// One type for all sources: whoever the source is, a run can say which sample it was and where it was to come from.
#[derive(Debug, thiserror::Error)]
#[error("{}{message}", whence(*.sample, .place))]
pub struct SourceError {
    /// What a caller may branch on.
    pub kind: ErrorKind,
    /// The sample, where one can be told.
    pub sample: Option<u32>,
    /// What was read from, as the path of a file; empty where it is no place.
    pub place: String,
    /// What is wrong, and what is expected.
    pub message: String,
    /// What made it fail.
    #[source]
    pub cause: Option<std::io::Error>,
}

fn whence(sample: Option<u32>, place: &str) -> String {
    match (sample, place.is_empty()) {
        (Some(sample), false) => format!("sample {sample} of {place}: "),
        (Some(sample), true) => format!("sample {sample}: "),
        (None, false) => format!("{place}: "),
        (None, true) => String::new(),
    }
}

impl SourceError {
    /// A request that makes no sense.
    #[must_use]
    pub fn rejected(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Rejected, sample: None, place: String::new(), message: message.into(), cause: None }
    }

    /// A place whose contents are not what they must be.
    #[must_use]
    pub fn corrupt(place: impl fmt::Display, message: impl Into<String>) -> Self {
        let (place, message) = (place.to_string(), message.into());
        Self { kind: ErrorKind::Corrupt, sample: None, place, message, cause: None }
    }

    /// A place that could not be read.
    #[must_use]
    pub fn io(place: impl fmt::Display, message: impl Into<String>, cause: std::io::Error) -> Self {
        let (place, message) = (place.to_string(), message.into());
        Self { kind: ErrorKind::Io, sample: None, place, message, cause: Some(cause) }
    }

    /// The same about this sample.
    #[must_use]
    pub fn of_sample(self, sample: u32) -> Self {
        Self { sample: Some(sample), ..self }
    }
}

impl Error for SourceError {
    fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// Hands out samples by index.
#[diagnostic::on_unimplemented(note = "the numbered rules SO-1… in `leyline::source` are the implementer's checklist")]
pub trait Source: fmt::Debug + Send + Sync {
    /// Samples (N).
    fn len(&self) -> usize;

    /// Type and shape of each of them.
    fn spec(&self) -> SampleSpec;

    /// Tells other samples from these, at little cost (SO-3).
    fn digest(&self) -> String;

    /// Writes these samples, one behind the other (SO-1, SO-2).
    ///
    /// # Errors
    /// [`ErrorKind::Rejected`] for an index outside and for buffers that do not fit (SO-4); what cannot be read (SO-5). What
    /// the buffers then hold is of no use.
    fn read(&self, samples: &[u32], into: &mut SamplesMut<'_>) -> Result<(), SourceError>;

    /// Whether there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it is and where it is from, for people.
    fn describe(&self) -> String {
        let SampleSpec { inputs, targets } = self.spec();
        format!("{} samples, inputs {inputs}, targets {targets}", self.len())
    }

    /// Lengths of all samples, where they have some: those of the texts within windows of one size, say.
    fn lengths(&self) -> Option<&[u32]> {
        None
    }

    /// How much each sample counts when samples are drawn by weight.
    fn weights(&self) -> Option<&[f64]> {
        None
    }

    /// Confirms that every index names a sample.
    ///
    /// # Errors
    /// [`ErrorKind::Rejected`] with the first that does not.
    fn check(&self, samples: &[u32]) -> Result<(), SourceError> {
        match samples.iter().find(|sample| **sample as usize >= self.len()) {
            None => Ok(()),
            Some(outside) => {
                let message = format!("expected an index below {}, found {outside}", self.len());
                Err(SourceError::rejected(message).of_sample(*outside))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_sample_and_the_place_that_are_known() {
        let error = || SourceError::corrupt("a.bin", "it is shorter");
        assert_eq!(error().of_sample(7).to_string(), "sample 7 of a.bin: it is shorter");
        assert_eq!(error().to_string(), "a.bin: it is shorter");
        assert_eq!(SourceError::rejected("no").of_sample(7).to_string(), "sample 7: no");
        assert_eq!(SourceError::rejected("no").to_string(), "no");
    }

    #[test]
    fn buffers_of_another_type_or_length_are_refused_with_what_is_expected() {
        let spec = SampleSpec { inputs: Field::f32([2, 3]), targets: Field::u32([]) };
        let (mut twelve, mut two, mut wrong) = ([0.0_f32; 12], [0_u32; 2], [0.0_f32; 2]);
        assert!(SamplesMut::new(&mut twelve, &mut two).check(&spec, 2).is_ok());
        let refused = |samples: SamplesMut<'_>, text: &str| {
            let error = samples.check(&spec, 2).unwrap_err();
            assert!(error.kind == ErrorKind::Rejected && error.to_string().contains(text), "{error}");
        };
        refused(
            SamplesMut::new(&mut twelve[..11], &mut two),
            "expected a buffer of 12 f32 for the inputs of 2 samples",
        );
        refused(SamplesMut::new(&mut twelve, &mut wrong), "2 u32 for the targets of 2 samples, found 2 f32");
    }
}
