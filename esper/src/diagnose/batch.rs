//! Pictures with text around them: the samples of a diagnosis.

use anyhow::{bail, ensure};
use baselines::Draw;
use candle_core::{Device, Tensor};

use super::sizes::Sizes;

/// What a step is given.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    /// Patches (B, P, numbers); then of `u32`: ids, positions, sources (B·T) each, rows and targets (N) each. A source is a row of what
    /// is looked up for all ids followed by all patches; `rows` are the positions before each of the N tokens of text to predict.
    pub(super) tensors: [Tensor; 6],
}

/// A token of text, never the placeholder: that number is left out of those that can be drawn.
fn text(sizes: &Sizes, draw: &mut Draw) -> u32 {
    let id = draw.below(u32::try_from(sizes.vocabulary).expect("a small vocabulary") - 1);
    id + u32::from(id >= sizes.placeholder)
}

/// A sequence with the places of a picture somewhere after its first token.
fn sequence(sizes: &Sizes, num_tokens: usize, draw: &mut Draw) -> Vec<u32> {
    let choices = num_tokens - sizes.num_patches;
    let start = 1 + draw.below(u32::try_from(choices).expect("a short sequence")) as usize;
    let is_place = |index: usize| (start..start + sizes.num_patches).contains(&index);
    (0..num_tokens).map(|index| if is_place(index) { sizes.placeholder } else { text(sizes, draw) }).collect()
}

impl Batch {
    /// So many samples of so many tokens, which follow from a seed.
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub(super) fn drawn(
        sizes: &Sizes,
        [num_samples, num_tokens]: [usize; 2],
        seed: u64,
        device: &Device,
    ) -> anyhow::Result<Self> {
        let accepted = sizes.tokens();
        ensure!(accepted.contains(&num_tokens), "a sequence of {num_tokens} tokens: expected {accepted:?}");
        let mut draw = Draw::new(seed, device);
        let patches = draw.uniform((num_samples, sizes.num_patches, sizes.patch_width), 1.0)?;
        let ids: Vec<_> = (0..num_samples).map(|_| sequence(sizes, num_tokens, &mut draw)).collect();
        Self::new(sizes, &patches, &ids)
    }

    /// Sequences with their patches (B, P, numbers).
    ///
    /// # Errors
    /// For sequences of different lengths or more tokens than there are positions, for an id that is no token, and where the placeholders
    /// of a sequence are not as many as the patches of its picture, with what is accepted.
    pub(super) fn new(sizes: &Sizes, patches: &Tensor, ids: &[Vec<u32>]) -> anyhow::Result<Self> {
        let (num_samples, num_patches, _) = patches.dims3()?;
        ensure!(num_samples > 0 && ids.len() == num_samples, "{} sequences for {num_samples} pictures", ids.len());
        let num_tokens = ids[0].len();
        ensure!(num_tokens <= sizes.max_tokens, "sequences of {num_tokens} tokens: at most {}", sizes.max_tokens);
        let [mut positions, mut sources, mut rows, mut targets] = <[Vec<u32>; 4]>::default();
        let number = |index: usize| u32::try_from(index).expect("few positions");
        for (sample, sequence) in ids.iter().enumerate() {
            ensure!(sequence.len() == num_tokens, "sequence {sample} has {} tokens, not {num_tokens}", sequence.len());
            let mut num_places = 0;
            for (index, id) in sequence.iter().enumerate() {
                let row = sample * num_tokens + index;
                if *id as usize >= sizes.vocabulary {
                    bail!("sequence {sample}, token {index}: {id} is no token; expected 0 to {}", sizes.vocabulary - 1);
                }
                positions.push(number(index));
                if *id == sizes.placeholder {
                    sources.push(number(ids.len() * num_tokens + sample * num_patches + num_places));
                    num_places += 1;
                    continue;
                }
                sources.push(number(row));
                if index > 0 {
                    rows.push(number(row - 1));
                    targets.push(*id);
                }
            }
            ensure!(
                num_places == num_patches,
                "sequence {sample} has {num_places} placeholders for the {num_patches} patches of its picture; expected one for each"
            );
        }
        ensure!(!targets.is_empty(), "there is no token to predict");
        let of = |values: Vec<u32>| Tensor::new(values, patches.device());
        let ids = of(ids.concat())?;
        let tensors = [patches.clone(), ids, of(positions)?, of(sources)?, of(rows)?, of(targets)?];
        Ok(Self { tensors })
    }

    /// To call a function with.
    pub(super) fn inputs(&self) -> Vec<&Tensor> {
        self.tensors.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    #[test]
    fn text_is_never_the_placeholder_and_every_patch_has_a_place() {
        for seed in 0..2000 {
            let mut draw = Draw::new(seed, &Device::Cpu);
            let vocabulary = 2 + draw.below(6) as usize;
            let placeholder = draw.below(u32::try_from(vocabulary).unwrap());
            let num_patches = 1 + draw.below(5) as usize;
            let sizes = Sizes { vocabulary, placeholder, num_patches, max_tokens: 40, ..Sizes::QUICK };
            let num_tokens = num_patches + 2 + draw.below(20) as usize;
            let found = sequence(&sizes, num_tokens, &mut draw);
            assert_eq!(found.len(), num_tokens);
            let places: Vec<usize> = (0..num_tokens).filter(|index| found[*index] == placeholder).collect();
            assert_eq!(places.len(), num_patches, "seed {seed}: {found:?}, placeholder {placeholder}");
            assert!(places[0] > 0 && places[num_patches - 1] == places[0] + num_patches - 1, "{found:?}");
            assert!(found.iter().all(|id| (*id as usize) < vocabulary), "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn all_other_tokens_can_be_drawn() {
        for placeholder in 0..4 {
            let (sizes, mut draw) = (Sizes { vocabulary: 4, placeholder, ..Sizes::QUICK }, Draw::new(1, &Device::Cpu));
            let drawn: std::collections::BTreeSet<u32> = (0..200).map(|_| text(&sizes, &mut draw)).collect();
            assert_eq!(drawn, (0..4).filter(|id| *id != placeholder).collect());
        }
    }

    #[track_caller]
    fn refused(ids: &[&[u32]], expected: &str) {
        let sizes = Sizes { num_patches: 2, vocabulary: 8, placeholder: 5, max_tokens: 6, ..Sizes::QUICK };
        let patches = Tensor::zeros((2, 2, 12), DType::F32, &Device::Cpu).unwrap();
        let ids: Vec<Vec<u32>> = ids.iter().map(|ids| ids.to_vec()).collect();
        let found = Batch::new(&sizes, &patches, &ids).map(drop);
        match (found, expected) {
            (Ok(()), "") => {}
            (Err(error), expected) if !expected.is_empty() => {
                assert!(error.to_string().contains(expected), "{error}");
            }
            (found, expected) => panic!("{found:?}, expected {expected}"),
        }
    }

    #[test]
    fn a_batch_that_does_not_fit_is_refused_with_place_and_what_is_accepted() {
        let good: &[u32] = &[1, 5, 5, 2];
        refused(&[good, good], "");
        refused(&[good], "1 sequences for 2 pictures");
        refused(
            &[good, &[1, 5, 2, 2]],
            "sequence 1 has 1 placeholders for the 2 patches of its picture; expected one for each",
        );
        refused(&[&[1, 5, 5, 5], good], "sequence 0 has 3 placeholders");
        refused(&[good, &[1, 5, 5]], "sequence 1 has 3 tokens, not 4");
        refused(&[good, &[1, 5, 5, 8]], "sequence 1, token 3: 8 is no token; expected 0 to 7");
        refused(&[&[1, 5, 5, 2, 2, 2, 2], &[1, 5, 5, 2, 2, 2, 2]], "at most 6");
        refused(&[&[5, 5], &[5, 5]], "no token to predict");
    }
}
