//! Momentum made orthogonal, for matrices, and Adam for what is none.
//!
//! ```text
//!   gradient ─ Muon ─┬─ vectors, tables, outputs: a step of Adam
//!                    └─ matrices: momentum, direction ─ orthogonal ─ MuonStep ─► parameter
//! ```
//!
//! Both rules are element-wise, and run over all parameters at once; each leaves alone what belongs to the other. Between them
//! the direction of a matrix, which lies where Adam has its second moment, is made orthogonal there.

use candle_core::{DType, Result, Tensor};
use leyline::layout::Segment;

use super::rules::{Element, Muon, MuonStep};
use crate::cpu::to_f32;

/// Of the quintic iteration, and how often it is done: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural
/// networks", and PyTorch's `Muon`.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.775, 2.0315];
const ITERATIONS: usize = 5;
/// Added to the norm that a direction is divided by.
const EPSILON: f64 = 1e-7;
/// Whether a part of a name is that of a table of inputs, or of what makes outputs, which are no matter of this rule: as hosts
/// here and models of candle-transformers call them.
fn is_input_or_output(part: &str) -> bool {
    part.contains("embed") || part.ends_with("head") || ["wte", "wpe", "classifier"].contains(&part)
}

/// The setting of matrices: its key, whether it is as it has to be, what is accepted.
pub(super) fn check(momentum: f64) -> (&'static str, bool, &'static str) {
    ("momentum", (0.0..1.0).contains(&momentum), "a number of at least 0 and below 1")
}

/// What is the same for all parameters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) momentum: f64,
    pub(super) nesterov: bool,
    pub(super) betas: [f64; 2],
    pub(super) eps: f64,
    pub(super) weight_decay: f64,
}

impl Settings {
    /// The first rule for a parameter, whose constants are those of the second one, too.
    pub(super) fn element(self, matrix: Option<Matrix>, learning_rate: f64, steps: u64) -> Element {
        let [correction1, correction2] = self.betas.map(|beta| 1.0 - beta.powf(steps as f64));
        let (step_size, root_correction) = match matrix {
            Some(matrix) => (learning_rate * matrix.factor(), 0.0),
            None => (learning_rate / correction1, 1.0 / correction2.sqrt()),
        };
        Element::Muon(Muon {
            rest1: to_f32(1.0 - self.betas[0]),
            rest2: to_f32(1.0 - self.betas[1]),
            eps: to_f32(self.eps),
            rest: to_f32(1.0 - self.momentum),
            ahead: if self.nesterov { to_f32(self.momentum) } else { 1.0 },
            one: 1.0,
            keep: to_f32(1.0 - learning_rate * self.weight_decay),
            step_size: to_f32(step_size),
            root_correction: to_f32(root_correction),
        })
    }
}

/// The second rule, with the constants of the first.
pub(super) fn second(first: Element) -> Option<Element> {
    let Element::Muon(Muon { one, keep, step_size, root_correction, .. }) = first else { return None };
    Some(Element::MuonStep(MuonStep { one, keep, step_size, root_correction }))
}

/// A parameter that the rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Matrix {
    rows: usize,
    columns: usize,
}

impl Matrix {
    /// None for a vector, for a kernel of a convolution, for a table of inputs and for what makes outputs.
    pub(super) fn of(segment: &Segment) -> Option<Self> {
        let &[rows, columns] = segment.spec.shape.as_slice() else { return None };
        let is_other = segment.spec.name.split('.').any(is_input_or_output);
        (rows > 1 && columns > 1 && !is_other).then_some(Self { rows, columns })
    }

    /// Makes a step as large as one of Adam usually is, so that one learning rate serves both: Liu et al. 2025, "Muon is scalable
    /// for LLM training", arXiv 2502.16982, equation 4; `match_rms_adamw` in PyTorch.
    fn factor(self) -> f64 {
        0.2 * (self.rows.max(self.columns) as f64).sqrt()
    }

    /// Makes the direction in the second row of `moments`, (2, elements), orthogonal in place: all its singular values come
    /// close to 1. Where moments are of `bf16` each number is rounded to the nearest.
    ///
    /// # Sync
    /// none
    pub(super) fn make_orthogonal(self, moments: &Tensor) -> Result<()> {
        let Self { rows, columns } = self;
        let direction = moments.narrow(0, 1, 1)?.reshape((rows, columns))?.to_dtype(DType::F32)?;
        // Products of the shorter side.
        let is_tall = rows > columns;
        let direction = if is_tall { direction.t()?.contiguous()? } else { direction };
        let norm = (direction.sqr()?.sum_all()?.sqrt()? + EPSILON)?;
        let mut x = direction.broadcast_div(&norm)?;
        let [a, b, c] = COEFFICIENTS;
        for _ in 0..ITERATIONS {
            let gram = x.matmul(&x.t()?)?;
            let polynomial = ((&gram * b)? + (gram.matmul(&gram)? * c)?)?;
            x = ((&x * a)? + polynomial.matmul(&x)?)?;
        }
        let x = if is_tall { x.t()?.contiguous()? } else { x };
        moments.slice_set(&x.reshape((1, rows * columns))?.to_dtype(moments.dtype())?, 0, 1)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::testing::{HOST, layout, values};

    #[test]
    fn only_matrices_between_layers_are_made_orthogonal() {
        let shape = |name: &str, shape: &[usize]| {
            let mut segment = layout(&[(name, shape.iter().product(), HOST, false)]).segments()[0].clone();
            segment.spec.shape = shape.to_vec();
            Matrix::of(&segment).map(|matrix| (matrix.rows, matrix.columns))
        };
        for name in ["host.layer0.weight", "model.layers.0.self_attn.q_proj.weight", "h.0.attn.heads.weight"] {
            assert_eq!(shape(name, &[3, 4]), Some((3, 4)), "{name}");
        }
        for (name, of) in [
            ("host.layer0.bias", &[4][..]),
            ("host.head.weight", &[3, 4]),
            ("host.embedding.tokens", &[9, 4]),
            ("bert.embeddings.word_embeddings.weight", &[9, 4]),
            ("model.embed_tokens.weight", &[9, 4]),
            ("transformer.wte.weight", &[9, 4]),
            ("lm_head.weight", &[9, 4]),
            ("classifier.weight", &[9, 4]),
            ("conv.weight", &[2, 3, 3, 3]),
            ("a", &[1, 4]),
        ] {
            assert_eq!(shape(name, of), None, "{name}");
        }
    }

    #[test]
    fn what_is_made_orthogonal_has_singular_values_near_1_and_none_stays_none() {
        let numbers: Vec<f32> = (1..=24_u8).map(|place| f32::from(place * 7 % 23) - 9.0).collect();
        for (rows, columns) in [(4, 6), (6, 4)] {
            let moments = Tensor::from_vec([vec![7.0; 24], numbers.clone()].concat(), (2, 24), &Device::Cpu).unwrap();
            Matrix { rows, columns }.make_orthogonal(&moments).unwrap();
            let found = values(&moments);
            assert_eq!(found[..24], [7.0; 24], "the momentum stays");
            // Each row, or column, of the shorter side has a length near 1, as the sum of squares tells.
            let squares: f32 = found[24..].iter().map(|x| x * x).sum();
            assert!((2.0..6.0).contains(&squares), "{squares}");
        }
        let nothing = Tensor::zeros((2, 24), candle_core::DType::F32, &Device::Cpu).unwrap();
        Matrix { rows: 4, columns: 6 }.make_orthogonal(&nothing).unwrap();
        assert_eq!(values(&nothing), [0.0; 48]);
    }
}
