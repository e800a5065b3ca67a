//! Trainable tensors: how they are described, drawn or brought back, and viewed with or without gradient.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor, Var};
use leyline::model::Parameter;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::error::{Error, TensorProblem};

mod element_type;

pub use element_type::ElementType;

/// How a tensor starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Uniform in (−bound, bound).
    Uniform {
        /// The bound.
        bound: f32,
    },
    /// All elements 0.
    Zeros,
    /// All elements 1.
    Ones,
}

impl Init {
    /// Uniform within 1 / √`fan_in`, as PyTorch starts weights and biases of `Linear` and `Conv`.
    ///
    /// # Source
    /// He et al. 2015 (arXiv 1502.01852) with the leak √5 that PyTorch uses.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a fan-in is far below 2^24")]
    pub fn kaiming(fan_in: usize) -> Self {
        Self::Uniform { bound: 1.0 / (fan_in as f32).sqrt() }
    }
}

/// A tensor before it exists.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightSpec {
    /// Name within its module, for example `down.weight`.
    pub name: &'static str,
    /// Shape.
    pub shape: Vec<usize>,
    /// How it starts.
    pub init: Init,
}

impl WeightSpec {
    /// Describes a tensor.
    pub fn new(name: &'static str, shape: impl Into<Vec<usize>>, init: Init) -> Self {
        Self { name, shape: shape.into(), init }
    }

    /// Elements (count).
    #[must_use]
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Full names of tensors with their shapes, in the order in which they are built.
pub(crate) type Forms = Vec<(String, Vec<usize>)>;

/// Most elements of a network without seeds, and of one seed (count): 8 GiB of `f32`.
pub(crate) const MAX_ELEMENTS: u64 = 1 << 31;

/// Elements of all these tensors (count); the largest number where there are more.
pub(crate) fn num_elements(specs: &[WeightSpec]) -> u64 {
    num_in_shapes(specs.iter().map(|spec| &*spec.shape))
}

/// The same of tensors of these shapes.
pub(crate) fn num_in_shapes<'a>(shapes: impl IntoIterator<Item = &'a [usize]>) -> u64 {
    let of_one = |shape: &[usize]| shape.iter().fold(1_u64, |count, &size| count.saturating_mul(size as u64));
    shapes.into_iter().fold(0, |count, shape| count.saturating_add(of_one(shape)))
}

/// Whether gradients flow to the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// They do.
    Live,
    /// They do not; values are the same.
    Frozen,
}

/// The tensors of one module, in the order in which it described them.
#[derive(Debug, Clone)]
pub struct WeightSet {
    /// Within the module.
    names: Vec<&'static str>,
    parameters: Vec<Parameter>,
    live: Vec<Tensor>,
    // Detached once here and not in each forward pass: they share the storage that optimizers write in place.
    frozen: Vec<Tensor>,
}

impl WeightSet {
    /// The tensors as a forward pass uses them.
    #[must_use]
    pub fn view(&self, view: View) -> &[Tensor] {
        match view {
            View::Live => &self.live,
            View::Frozen => &self.frozen,
        }
    }

    /// The trainable tensors with their full names.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The trainable tensors with their names within the module, in the order in which it described them.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'static str, &Var)> {
        self.names.iter().copied().zip(self.parameters.iter().map(|parameter| &parameter.var))
    }

    /// Elements of all tensors (count).
    #[must_use]
    pub fn num_elements(&self) -> usize {
        self.parameters.iter().map(|parameter| parameter.var.elem_count()).sum()
    }

    /// Copies every tensor into `tensors`.
    pub(crate) fn save(&self, tensors: &mut BTreeMap<String, Tensor>) -> candle_core::Result<()> {
        for (parameter, tensor) in self.parameters.iter().zip(&self.frozen) {
            tensors.insert(parameter.name.clone(), tensor.copy()?);
        }
        Ok(())
    }
}

/// Where the values of new tensors come from, and their type.
pub(crate) struct WeightSource<'a> {
    origin: Origin<'a>,
    dtype: DType,
}

enum Origin<'a> {
    Draw(Box<ChaCha8Rng>),
    Saved(&'a mut BTreeMap<String, Tensor>),
    /// Makes nothing and lists what it is asked for: full names with shapes.
    List(Forms),
}

impl<'a> WeightSource<'a> {
    /// Draws from this generator; tensors of `f32`.
    pub(crate) fn draw(rng: ChaCha8Rng) -> Self {
        Self { origin: Origin::Draw(Box::new(rng)), dtype: DType::F32 }
    }

    /// Takes the tensors of a saved state, each once; tensors of `f32`.
    pub(crate) fn saved(tensors: &'a mut BTreeMap<String, Tensor>) -> Self {
        Self { origin: Origin::Saved(tensors), dtype: DType::F32 }
    }

    /// Makes no tensors: a module is built without any, which shows what it would need.
    pub(crate) fn list() -> Self {
        Self { origin: Origin::List(Vec::new()), dtype: DType::F32 }
    }

    /// Full names and shapes of what was asked for; none of a source that makes tensors.
    pub(crate) fn into_listed(self) -> Forms {
        match self.origin {
            Origin::List(tensors) => tensors,
            Origin::Draw(_) | Origin::Saved(_) => Vec::new(),
        }
    }

    /// The same source for tensors of `dtype`: drawn values are converted, saved tensors must have it.
    pub(crate) fn with_dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// Type of the tensors it makes.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Makes the tensors of one module; full names are `prefix.name`.
    pub(crate) fn build(&mut self, prefix: &str, specs: &[WeightSpec], device: &Device) -> Result<WeightSet, Error> {
        if let Origin::List(tensors) = &mut self.origin {
            tensors.extend(specs.iter().map(|spec| (format!("{prefix}.{}", spec.name), spec.shape.clone())));
            return Ok(WeightSet { names: Vec::new(), parameters: Vec::new(), live: Vec::new(), frozen: Vec::new() });
        }
        let mut parameters = Vec::with_capacity(specs.len());
        for spec in specs {
            let name = format!("{prefix}.{}", spec.name);
            let var = match &mut self.origin {
                Origin::Draw(rng) => {
                    let drawn = Tensor::from_vec(draw(spec, rng), spec.shape.as_slice(), device)?;
                    Var::from_tensor(&drawn.to_dtype(self.dtype)?)?
                }
                Origin::Saved(tensors) => take(tensors, &name, spec, self.dtype, device)?,
                Origin::List(_) => continue,
            };
            parameters.push(Parameter { name, var });
        }
        let names = specs.iter().map(|spec| spec.name).collect();
        let live = parameters.iter().map(|parameter| parameter.var.as_tensor().clone()).collect();
        let frozen = parameters.iter().map(|parameter| parameter.var.as_detached_tensor()).collect();
        Ok(WeightSet { names, parameters, live, frozen })
    }
}

fn draw(spec: &WeightSpec, rng: &mut ChaCha8Rng) -> Vec<f32> {
    match spec.init {
        Init::Uniform { bound } => (0..spec.num_elements()).map(|_| rng.random_range(-bound..bound)).collect(),
        Init::Zeros => vec![0.0; spec.num_elements()],
        Init::Ones => vec![1.0; spec.num_elements()],
    }
}

fn take(
    tensors: &mut BTreeMap<String, Tensor>,
    name: &str,
    spec: &WeightSpec,
    dtype: DType,
    device: &Device,
) -> Result<Var, Error> {
    let refuse = |problem| Error::SavedTensor { name: name.to_owned(), problem };
    let saved = tensors.remove(name).ok_or_else(|| refuse(TensorProblem::Missing))?;
    if saved.dims() != spec.shape {
        let problem = TensorProblem::Shape { found: saved.dims().to_vec(), expected: spec.shape.clone() };
        return Err(refuse(problem));
    }
    if saved.dtype() != dtype {
        return Err(refuse(TensorProblem::DType { found: saved.dtype(), expected: dtype }));
    }
    // A variable made from a variable would share its storage; detached, its elements are copied.
    Ok(Var::from_tensor(&saved.detach().to_device(device)?)?)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::host_read::read_f32;

    fn drawn(seed: u64, spec: &WeightSpec) -> Vec<f32> {
        draw(spec, &mut ChaCha8Rng::seed_from_u64(seed))
    }

    #[test]
    fn the_same_seed_gives_the_same_weights_within_the_bound() {
        let spec = WeightSpec::new("w", [40, 25], Init::kaiming(25));
        let values = drawn(7, &spec);
        assert_eq!(values, drawn(7, &spec));
        assert_ne!(values, drawn(8, &spec));
        let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        assert!((0.19..=0.2).contains(&largest), "{largest}");
    }

    #[test]
    fn both_views_follow_an_update_in_place() {
        let spec = [WeightSpec::new("w", [2], Init::Zeros)];
        let set = WeightSource::draw(ChaCha8Rng::seed_from_u64(1)).build("m", &spec, &Device::Cpu).unwrap();
        set.parameters()[0].var.set(&Tensor::new(&[3.0_f32, 4.0], &Device::Cpu).unwrap()).unwrap();
        for view in [View::Live, View::Frozen] {
            assert_eq!(read_f32(&set.view(view)[0]).unwrap(), [3.0, 4.0], "{view:?}");
        }
        assert_eq!(set.parameters()[0].name, "m.w");
    }

    #[test]
    fn a_saved_tensor_must_be_there_and_fit() {
        let spec = [WeightSpec::new("w", [2], Init::Zeros)];
        for (tensor, expected) in [
            (None, "saved tensor `m.w` is missing"),
            (
                Some(Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap()),
                "saved tensor `m.w` has shape [3], expected [2]",
            ),
            (
                Some(Tensor::zeros(2, DType::U32, &Device::Cpu).unwrap()),
                "saved tensor `m.w` has elements of u32, expected f32",
            ),
        ] {
            let mut tensors: BTreeMap<_, _> = tensor.into_iter().map(|t| ("m.w".to_owned(), t)).collect();
            let error = WeightSource::saved(&mut tensors).build("m", &spec, &Device::Cpu).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_restored_tensor_does_not_share_the_saved_one() {
        let spec = [WeightSpec::new("w", [2], Init::Zeros)];
        let saved = Var::zeros(2, DType::F32, &Device::Cpu).unwrap();
        let mut tensors = BTreeMap::from([("m.w".to_owned(), saved.as_tensor().clone())]);
        let set = WeightSource::saved(&mut tensors).build("m", &spec, &Device::Cpu).unwrap();
        saved.set(&Tensor::ones(2, DType::F32, &Device::Cpu).unwrap()).unwrap();
        assert_eq!(read_f32(&set.view(View::Live)[0]).unwrap(), [0.0, 0.0]);
    }
}
