//! How surprised a network is by tokens.

use candle_core::{Result, Tensor};
use leyline::task::{About, Direction, Measure, Scale};

use crate::task::of_tokens;

/// e to the mean loss of the tokens that count, in nats.
pub const PERPLEXITY: About = About {
    name: "perplexity",
    title: "Perplexity",
    formula: "e to the mean loss per token",
    scale: Scale::Number,
    direction: Direction::LowerIsBetter,
};

/// The loss of the tokens that count in bits / the bytes of text that they stand for.
pub const BITS_PER_BYTE: About = About {
    name: "bits_per_byte",
    title: "Bits per byte",
    formula: "loss in bits / bytes of text",
    scale: Scale::Number,
    direction: Direction::LowerIsBetter,
};

/// [`PERPLEXITY`] of logits (B, T, V) with targets (B, T) of `u32`.
#[must_use]
pub fn perplexity() -> Measure {
    Measure::new(PERPLEXITY, counts, |sums, _| (sums[0] / sums[1]).exp())
}

/// [`BITS_PER_BYTE`] of logits (B, T, V) with targets (B, T) of `u32`, where a token stands for so many bytes of text.
#[must_use]
pub fn bits_per_byte(bytes_per_token: f64) -> Measure {
    Measure::new(BITS_PER_BYTE, counts, move |sums, _| sums[0] / (std::f64::consts::LN_2 * sums[1] * bytes_per_token))
}

/// Loss and number of the tokens that count: a row per sample.
fn counts(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (losses, is_counted) = of_tokens(logits, targets)?;
    Tensor::cat(&[losses.sum_keepdim(1)?, is_counted.sum_keepdim(1)?], 1)
}
