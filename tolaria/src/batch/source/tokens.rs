//! Windows of a file of tokens, each token with the one that comes after it.

use std::num::NonZeroUsize;
use std::path::Path;

use leyline::source::{Field, SampleSpec, SamplesMut, Source, SourceError};

use super::array::Element;
use super::file::{FileReader, misfit};

/// How tokens are stored and cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenLayout {
    /// [`Element::U8`], [`Element::U16`] or [`Element::U32`].
    pub element: Element,
    /// Tokens of a window (T).
    pub window: NonZeroUsize,
    /// Tokens that there are (V): none in the file is V or more.
    pub vocabulary: NonZeroUsize,
}

/// Samples of T tokens: sample i has the inputs `i·T .. (i + 1)·T` of the file, and as targets the T tokens one further on. The
/// tokens that are left over at the end belong to no sample.
///
/// # Examples
/// ```
/// use leyline::source::{SamplesMut, Source as _};
/// use tolaria::batch::source::{Element, TokenLayout, TokenSource};
///
/// let file = tempfile::NamedTempFile::new()?;
/// std::fs::write(file.path(), b"hello world")?; // bytes as tokens
/// let count = |n| std::num::NonZeroUsize::new(n).unwrap();
/// let layout = TokenLayout { element: Element::U8, window: count(4), vocabulary: count(256) };
/// let source = TokenSource::open(file.path(), layout)?;
///
/// let (mut inputs, mut targets) = ([0_u32; 4], [0_u32; 4]);
/// source.read(&[1], &mut SamplesMut::new(&mut inputs, &mut targets))?;
/// assert_eq!((inputs, targets), (b"o wo".map(u32::from), b" wor".map(u32::from)));
/// assert_eq!(source.len(), 2, "three bytes and the one after them are left over");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TokenSource {
    file: FileReader,
    layout: TokenLayout,
    num_windows: usize,
    digest: String,
}

impl TokenSource {
    /// Opens a file of tokens.
    ///
    /// # Errors
    /// As [`FileReader::open`]; [`ErrorKind::Rejected`](leyline::error::ErrorKind::Rejected) where it is no whole number of tokens,
    /// shorter than a window and one token, or has more windows than `u32` can number.
    pub fn open(path: &Path, layout: TokenLayout) -> Result<Self, SourceError> {
        let file = FileReader::open(path)?;
        let size = match layout.element {
            Element::U8 | Element::U16 | Element::U32 => layout.element.size() as u64,
            other => return Err(misfit(&file, format!("expected tokens of u8, u16 or u32, found {other:?}"))),
        };
        if !file.num_bytes().is_multiple_of(size) {
            let message = format!("expected whole tokens of {size} bytes, found {} bytes", file.num_bytes());
            return Err(misfit(&file, message));
        }
        let (num_tokens, window) = (file.num_bytes() / size, layout.window.get() as u64);
        let num_windows = num_tokens.saturating_sub(1) / window;
        if num_windows == 0 {
            let message = format!("expected at least {} tokens, a window and one more, found {num_tokens}", window + 1);
            return Err(misfit(&file, message));
        }
        if num_windows > u64::from(u32::MAX) {
            let message = format!("expected at most {} windows, found {num_windows}: take longer ones", u32::MAX);
            return Err(misfit(&file, message));
        }
        let digest = blake3::hash(format!("{layout:?} {}", file.fingerprint()?).as_bytes()).to_string();
        Ok(Self { file, layout, num_windows: usize::try_from(num_windows).unwrap_or(usize::MAX), digest })
    }

    /// Reads the tokens of a window and one more.
    fn read_window(&self, sample: u32, bytes: &mut [u8], tokens: &mut [u32]) -> Result<(), SourceError> {
        let start = u64::from(sample) * self.layout.window.get() as u64;
        self.file.read_at(start * self.layout.element.size() as u64, bytes)?;
        self.layout.element.widen(bytes, tokens);
        let vocabulary = self.layout.vocabulary.get();
        match tokens.iter().position(|token| *token as usize >= vocabulary) {
            None => Ok(()),
            Some(place) => {
                let (token, place) = (tokens[place], start + place as u64);
                let message = format!("expected tokens below {vocabulary}, found {token} as token {place} of the file");
                Err(self.file.corrupt(message))
            }
        }
    }
}

impl Source for TokenSource {
    fn len(&self) -> usize {
        self.num_windows
    }

    fn spec(&self) -> SampleSpec {
        let field = Field::u32([self.layout.window.get()]);
        SampleSpec { inputs: field.clone(), targets: field }
    }

    fn digest(&self) -> String {
        self.digest.clone()
    }

    fn read(&self, samples: &[u32], into: &mut SamplesMut<'_>) -> Result<(), SourceError> {
        self.check(samples)?;
        into.check(&self.spec(), samples.len())?;
        let Some(first) = samples.first() else { return Ok(()) };
        self.file.unchanged().map_err(|error| error.of_sample(*first))?;
        let width = self.layout.window.get();
        let (mut bytes, mut tokens) = (vec![0; (width + 1) * self.layout.element.size()], vec![0; width + 1]);
        let (inputs, targets) = (into.inputs.as_u32()?, into.targets.as_u32()?);
        let rows = inputs.chunks_exact_mut(width).zip(targets.chunks_exact_mut(width));
        for ((inputs, targets), sample) in rows.zip(samples) {
            self.read_window(*sample, &mut bytes, &mut tokens).map_err(|error| error.of_sample(*sample))?;
            inputs.copy_from_slice(&tokens[..width]);
            targets.copy_from_slice(&tokens[1..]);
        }
        Ok(())
    }

    fn describe(&self) -> String {
        format!("{} windows of {} tokens of {}", self.num_windows, self.layout.window, self.file.path().display())
    }
}

#[cfg(test)]
mod tests {
    use leyline::error::ErrorKind;

    use super::*;

    fn opened(bytes: &[u8], element: Element, window: usize, vocabulary: usize) -> Result<TokenSource, SourceError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let count = |n| NonZeroUsize::new(n).unwrap();
        TokenSource::open(file.path(), TokenLayout { element, window: count(window), vocabulary: count(vocabulary) })
    }

    #[track_caller]
    fn check(bytes: &[u8], element: Element, expected: &[([u32; 2], [u32; 2])]) {
        let source = opened(bytes, element, 2, 70_000).unwrap();
        let found = (0..).take(source.len()).map(|sample| {
            let (mut inputs, mut targets) = ([9; 2], [9; 2]);
            source.read(&[sample], &mut SamplesMut::new(&mut inputs, &mut targets)).unwrap();
            (inputs, targets)
        });
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn each_token_has_the_next_one_as_target_and_what_is_left_over_belongs_to_no_window() {
        check(&[0, 1, 2, 3, 4], Element::U8, &[([0, 1], [1, 2]), ([2, 3], [3, 4])]);
        check(&[0, 1, 2, 3], Element::U8, &[([0, 1], [1, 2])]);
        check(&[0, 1, 1, 0, 0, 1], Element::U16, &[([256, 1], [1, 256])]);
        check(&[0, 0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0], Element::U32, &[([65_536, 1], [1, 2])]);
    }

    #[track_caller]
    fn refused(bytes: &[u8], element: Element, message: &str) {
        let error = opened(bytes, element, 4, 256).unwrap_err();
        assert!(error.kind == ErrorKind::Rejected && error.to_string().contains(message), "{error}");
    }

    #[test]
    fn a_file_that_holds_no_window_is_refused() {
        refused(&[0; 4], Element::U8, "at least 5 tokens, a window and one more, found 4");
        refused(&[], Element::U8, "at least 5 tokens, a window and one more, found 0");
        refused(&[0; 11], Element::U16, "whole tokens of 2 bytes, found 11 bytes");
        refused(&[0; 64], Element::F32, "tokens of u8, u16 or u32, found F32");
    }

    #[test]
    fn a_token_outside_the_vocabulary_is_an_error_with_its_place() {
        let source = opened(&[0, 1, 2, 3, 4, 5, 6, 7, 8], Element::U8, 4, 8).unwrap();
        let (mut inputs, mut targets) = ([0; 4], [0; 4]);
        assert!(source.read(&[0], &mut SamplesMut::new(&mut inputs, &mut targets)).is_ok());
        let error = source.read(&[1], &mut SamplesMut::new(&mut inputs, &mut targets)).unwrap_err();
        assert!(error.sample == Some(1) && error.kind == ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("expected tokens below 8, found 8 as token 8 of the file"), "{error}");
    }
}
