//! The network of a diagnosis, in parts that can be run one by one.
//!
//! ```text
//!  patches (B, P, k) ─► vision.embed ─► vision.0 … ─► merge ◄─ ids (B·T)
//!                                                       ▼ (B, T, D), patches at the places of placeholders
//!                       update ◄─ backward ◄─ loss ◄─ … language.0
//! ```

use std::cell::Cell;

use anyhow::ensure;
use baselines::Draw;
use candle_core::{DType, Device, Error, Result, Tensor, Var, bail};
use esper_layers::{Activation, AttentionOptions, LinearOptions, WeightOrder};
use esper_layers::{attention, embedding, layer_norm, linear, recompute};
use tolaria::host_read::{HostReads, read_scalar};
use tolaria::loss::cross_entropy;

use super::sizes::{Sizes, Tower};

/// So that parameters move and nothing diverges in some hundred steps.
const LEARNING_RATE: f64 = 0.01;
/// Half width of uniform embeddings with the usual deviation of 0.02.
const EMBEDDING_BOUND: f32 = 0.034_641;

/// Something wrong that is put into a part, for tests of what looks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plant {
    /// The part reads a value on the host.
    HostRead(String),
    /// The part fails when it is run for this time, from 0.
    Failure(String, u64),
}

impl Plant {
    /// `host_read:PART` or `failure:PART:STEP`.
    ///
    /// # Errors
    /// What is accepted.
    pub(super) fn parse(text: &str) -> std::result::Result<Self, String> {
        let planted = match text.split(':').collect::<Vec<_>>()[..] {
            ["host_read", part] => Some(Self::HostRead(part.to_owned())),
            ["failure", part, step] => step.parse().ok().map(|step| Self::Failure(part.to_owned(), step)),
            _ => None,
        };
        planted.ok_or_else(|| "expected host_read:PART or failure:PART:STEP".to_owned())
    }
}

/// A part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Embed,
    Vision(usize),
    Merge,
    Language(usize),
    Loss,
    Backward,
    Update,
}

impl Part {
    pub(super) fn name(self) -> String {
        match self {
            Self::Embed => "vision.embed".to_owned(),
            Self::Vision(index) => format!("vision.{index}"),
            Self::Merge => "merge".to_owned(),
            Self::Language(index) => format!("language.{index}"),
            Self::Loss => "loss".to_owned(),
            Self::Backward => "backward".to_owned(),
            Self::Update => "update".to_owned(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Network {
    sizes: Sizes,
    patches: Affine,
    seen: Var,
    vision: Vec<Block>,
    vision_norm: Norm,
    project: Affine,
    tokens: Var,
    positions: Var,
    language: Vec<Block>,
    norm: Norm,
    variables: Vec<Var>,
    /// Whether activations of blocks are computed again for the backward pass.
    pub(super) recomputes: bool,
    plant: Option<Plant>,
    num_planted: Cell<u64>,
    /// The part that is run, or was run last.
    pub(super) at: Cell<Part>,
}

impl Network {
    /// Draws the weights: the same for every device.
    pub(super) fn new(sizes: Sizes, plant: Option<Plant>, device: &Device) -> anyhow::Result<Self> {
        let mut make = Make { draw: Draw::new(0, device), variables: Vec::new() };
        let [seen, read] = [sizes.vision.width, sizes.language.width];
        let network = Self {
            sizes,
            patches: make.affine(sizes.patch_width, seen)?,
            seen: make.var((sizes.num_patches, seen), EMBEDDING_BOUND)?,
            vision: make.blocks(sizes.vision, false)?,
            vision_norm: make.norm(seen)?,
            project: make.affine(seen, read)?,
            tokens: make.var((sizes.vocabulary, read), EMBEDDING_BOUND)?,
            positions: make.var((sizes.max_tokens, read), EMBEDDING_BOUND)?,
            language: make.blocks(sizes.language, true)?,
            norm: make.norm(read)?,
            variables: make.variables,
            recomputes: false,
            plant,
            num_planted: Cell::new(0),
            at: Cell::new(Part::Embed),
        };
        if let Some(Plant::HostRead(name) | Plant::Failure(name, _)) = &network.plant {
            let names: Vec<String> = network.parts().map(Part::name).collect();
            ensure!(names.contains(name), "there is no part `{name}`; expected one of {}", names.join(", "));
        }
        Ok(network)
    }

    /// All parameters, in the order of their creation.
    pub(super) fn variables(&self) -> &[Var] {
        &self.variables
    }

    /// The parts of the forward pass, each of which takes what the one before it gave.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let (vision, language) =
            ((0..self.vision.len()).map(Part::Vision), (0..self.language.len()).map(Part::Language));
        let embed = std::iter::once(Part::Embed).chain(vision).chain([Part::Merge]);
        embed.chain(language).chain([Part::Loss])
    }

    /// What a part of the forward pass makes of `x`, the first of patches, with the tensors of a [`Batch`](super::batch::Batch).
    pub(super) fn run(&self, part: Part, x: &Tensor, batch: &[Tensor]) -> Result<Tensor> {
        self.at.set(part);
        let [_, ids, positions, sources, rows, targets] = batch else { bail!("a batch of {} tensors", batch.len()) };
        let y = match part {
            Part::Embed => self.patches.forward(x, Activation::None)?.broadcast_add(&self.seen)?,
            Part::Vision(index) => self.block(&self.vision[index], x)?,
            Part::Merge => {
                let width = self.sizes.language.width;
                let seen =
                    self.project.forward(&self.vision_norm.forward(x)?, Activation::None)?.reshape(((), width))?;
                let all = Tensor::cat(&[embedding(&self.tokens, ids)?, seen], 0)?;
                let read = (embedding(&all, sources)? + embedding(&self.positions, positions)?)?;
                read.reshape((x.dim(0)?, (), width))?
            }
            Part::Language(index) => self.block(&self.language[index], x)?,
            Part::Loss => {
                let last = embedding(&x.reshape(((), self.sizes.language.width))?, rows)?;
                let options = LinearOptions { order: WeightOrder::OutIn, ..LinearOptions::default() };
                let logits = linear(&self.norm.forward(&last)?, &self.tokens, None, &options)?;
                cross_entropy(&logits, targets)?
            }
            Part::Backward | Part::Update => bail!("`{}` is no part of the forward pass", part.name()),
        };
        match &self.plant {
            Some(Plant::HostRead(name)) if *name == part.name() => {
                read_scalar(&y.sum_all()?, "planted", &mut HostReads::default())?;
            }
            Some(Plant::Failure(name, at))
                if *name == part.name() && self.num_planted.replace(self.num_planted.get() + 1) == *at =>
            {
                bail!("planted")
            }
            _ => {}
        }
        Ok(y)
    }

    /// Mean loss over the tokens of text that follow others. `ended` is called after each part.
    pub(super) fn forward(&self, batch: &[Tensor], ended: &mut dyn FnMut() -> Result<()>) -> Result<Tensor> {
        self.parts().try_fold(batch[0].clone(), |x, part| {
            let y = self.run(part, &x, batch)?;
            ended().map(|()| y)
        })
    }

    /// A step of plain gradient descent; the loss before it.
    pub(super) fn step(&self, batch: &[Tensor], ended: &mut dyn FnMut() -> Result<()>) -> Result<Tensor> {
        let loss = self.forward(batch, ended)?;
        self.at.set(Part::Backward);
        let gradients = loss.backward()?;
        ended()?;
        self.at.set(Part::Update);
        for variable in &self.variables {
            let gradient =
                gradients.get(variable).ok_or_else(|| Error::Msg("a parameter has no gradient".to_owned()))?;
            variable.set(&(variable.as_detached_tensor() - (gradient * LEARNING_RATE)?)?)?;
        }
        ended()?;
        Ok(loss.detach())
    }

    fn block(&self, block: &Block, x: &Tensor) -> Result<Tensor> {
        if !self.recomputes {
            return block.forward(x);
        }
        let again = block.clone();
        recompute(x, &block.variables, move |x| again.forward(x))
    }
}

#[derive(Debug, Clone)]
struct Affine {
    weight: Var,
    bias: Var,
}

impl Affine {
    fn forward(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        linear(x, &self.weight, Some(&self.bias), &LinearOptions { activation, ..LinearOptions::default() })
    }
}

#[derive(Debug, Clone)]
struct Norm {
    scale: Var,
    shift: Var,
}

impl Norm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        layer_norm(x, &self.scale, &self.shift, 1e-5)
    }
}

/// Attention and perceptron, each of what is normalized before, over (B, T, D).
#[derive(Debug, Clone)]
struct Block {
    options: AttentionOptions,
    norms: [Norm; 2],
    qkv: Affine,
    mix: Affine,
    expand: Affine,
    contract: Affine,
    variables: Vec<Var>,
}

impl Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let qkv = self.qkv.forward(&self.norms[0].forward(x)?, Activation::None)?;
        let x = (x + self.mix.forward(&attention(&qkv, &self.options)?, Activation::None)?)?;
        let hidden = self.expand.forward(&self.norms[1].forward(&x)?, Activation::Gelu)?;
        &x + self.contract.forward(&hidden, Activation::None)?
    }
}

/// Makes variables, and keeps all of them.
struct Make {
    draw: Draw,
    variables: Vec<Var>,
}

impl Make {
    fn keep(&mut self, tensor: &Tensor) -> Result<Var> {
        let variable = Var::from_tensor(tensor)?;
        self.variables.push(variable.clone());
        Ok(variable)
    }

    fn var(&mut self, shape: (usize, usize), bound: f32) -> Result<Var> {
        let drawn = self.draw.uniform(shape, bound)?;
        self.keep(&drawn)
    }

    fn affine(&mut self, inputs: usize, outputs: usize) -> Result<Affine> {
        let weight = self.var((inputs, outputs), 1.0 / (inputs as f32).sqrt())?;
        let bias = self.keep(&Tensor::zeros(outputs, DType::F32, weight.device())?)?;
        Ok(Affine { weight, bias })
    }

    fn norm(&mut self, width: usize) -> Result<Norm> {
        // Of what was drawn before, the device.
        let device = self.variables[0].device().clone();
        let scale = self.keep(&Tensor::ones(width, DType::F32, &device)?)?;
        Ok(Norm { scale, shift: self.keep(&Tensor::zeros(width, DType::F32, &device)?)? })
    }

    fn blocks(&mut self, Tower { num_blocks, width, num_heads }: Tower, causal: bool) -> Result<Vec<Block>> {
        let options = AttentionOptions { num_heads, causal };
        let mut block = || {
            let first = self.variables.len();
            let norms = [self.norm(width)?, self.norm(width)?];
            let [qkv, mix] = [self.affine(width, 3 * width)?, self.affine(width, width)?];
            let [expand, contract] = [self.affine(width, 4 * width)?, self.affine(4 * width, width)?];
            let variables = self.variables[first..].to_vec();
            Ok(Block { options, norms, qkv, mix, expand, contract, variables })
        };
        (0..num_blocks).map(|_| block()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::batch::Batch;
    use crate::diagnose::lab::loss_bits;

    #[test]
    fn the_network_has_the_parameters_that_its_sizes_say_and_every_step_moves_all_of_them() {
        let network = Network::new(Sizes::QUICK, None, &Device::Cpu).unwrap();
        let count: usize = network.variables().iter().map(|variable| variable.elem_count()).sum();
        assert_eq!(count, Sizes::QUICK.num_parameters());
        let batch = Batch::drawn(&Sizes::QUICK, [2, 12], 0, &Device::Cpu).unwrap();
        let before: Vec<Tensor> =
            network.variables().iter().map(|of| of.as_detached_tensor().copy().unwrap()).collect();
        network.step(&batch.tensors, &mut || Ok(())).unwrap();
        for (index, (before, after)) in before.iter().zip(network.variables()).enumerate() {
            let moved = (before - after.as_detached_tensor()).unwrap().sqr().unwrap().sum_all().unwrap();
            assert_ne!(loss_bits(&moved).unwrap(), 0, "parameter {index} of {:?}", after.shape());
        }
    }

    #[test]
    fn what_is_computed_again_gives_the_same_bits() {
        let batch = Batch::drawn(&Sizes::QUICK, [2, 12], 0, &Device::Cpu).unwrap();
        let losses = [false, true].map(|recomputes| {
            let mut network = Network::new(Sizes::QUICK, None, &Device::Cpu).unwrap();
            network.recomputes = recomputes;
            [0; 3].map(|_| loss_bits(&network.step(&batch.tensors, &mut || Ok(())).unwrap()).unwrap())
        });
        assert_eq!(losses[0], losses[1]);
    }
}
