//! Windows of a text, byte by byte.

use std::path::Path;

use candle_core::{Device, Tensor};
use sha2::{Digest as _, Sha256};
use tolaria::batch::Dataset;
use tolaria::trainer::Splits;

use crate::error::Error;

/// A text as its bytes.
#[derive(Debug)]
pub(super) struct Text(pub(super) Vec<u8>);

impl Text {
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let file = |source| Error::File { action: "reading", path: path.to_owned(), source };
        Ok(Self(std::fs::read(path).map_err(file)?))
    }

    pub(super) fn num_bytes(&self) -> usize {
        self.0.len()
    }

    pub(super) fn sha256(&self) -> String {
        Sha256::digest(&self.0).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whole batches of windows to train on, and so many of the last twentieth.
    ///
    /// # Errors
    /// When `path` holds too little for a batch and the held-out windows.
    pub(super) fn splits(
        &self,
        path: &Path,
        [context, batch, held_out]: [usize; 3],
        device: &Device,
    ) -> Result<Splits, Error> {
        let (train, rest) = self.0.split_at(self.0.len() - self.0.len() / 20);
        let [num_train, num_rest] = [train, rest].map(|part| part.len().saturating_sub(1) / context);
        for (what, expected, found) in [("training", batch, num_train), ("held-out", held_out, num_rest)] {
            if found < expected {
                let what = format!("{what} windows of {context} bytes in {}", path.display());
                return Err(Error::WrongResult { what, expected: expected as f64, found: found as f64 });
            }
        }
        let train = windows(train, (0..num_train / batch * batch).collect(), context, device)?;
        let places = (0..held_out).map(|index| index * num_rest / held_out).collect();
        let held_out = windows(rest, places, context, device)?;
        Ok(Splits { train, validation: held_out.clone(), test: held_out })
    }
}

/// The windows of these numbers, (N, context), and the bytes that follow.
fn windows(text: &[u8], numbers: Vec<usize>, context: usize, device: &Device) -> Result<Dataset, Error> {
    let rows = |after: usize| {
        let row = |number: &usize| text[number * context + after..][..context].iter().map(|byte| u32::from(*byte));
        Tensor::from_vec(numbers.iter().flat_map(row).collect(), (numbers.len(), context), device)
    };
    Ok(Dataset::new(rows(0)?, rows(1)?)?)
}
