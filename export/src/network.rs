//! An exported network in memory.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use esper_data::Preparation;
use esper_weights::{Dtype, Weights, WeightsError};
use kasmina::GraftedModel;
use kasmina::blueprint::Registry;
use kasmina::graft::NetworkSpec;
use leyline::model::{Pass, TrainableModel as _};

use crate::document::{Document, WEIGHTS_FILE, WeightsRecord};
use crate::error::Error;
use crate::files;
use crate::prediction::Prediction;

/// Most bytes that the header of a file of weights may have beside the names in it, for each tensor.
const HEADER_BYTES: u64 = 256;

/// An exported network, ready to run.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use esper_export::{Export, IfPresent, Network, Prediction};
/// # use kasmina::{graft::NetworkSpec, host::HostConfig, weight::ElementType};
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().join("export");
/// # let network = NetworkSpec { host: HostConfig::Mlp { inputs: 2, hidden: vec![], classes: 2 }, dtype: ElementType::F32, seeds: vec![] };
/// # let (w, b) = (Tensor::new(&[[2_f32, 0.0], [0.0, 1.0]], &Device::Cpu)?, Tensor::new(&[0_f32, 0.5], &Device::Cpu)?);
/// # let tensors = [("host.head.weight".to_owned(), w), ("host.head.bias".to_owned(), b)].into();
/// # let preparation = serde_json::from_str(r#"{"version":1,"source":"pets","sample_shape":[2],"scaling":{"means":[],"scales":[]},
/// #   "target":{"kind":"classes","names":["cat","dog"]}}"#)?;
/// # Export { network, tensors, preparation, task: None }.write(&dir, IfPresent::Refuse)?;
/// let network = Network::load(&dir)?; // as `esper export` wrote it
/// let inputs = Tensor::new(&[[1_f32, 0.5], [0.0, 3.0]], &Device::Cpu)?;
/// assert_eq!(network.forward(&inputs)?.to_vec2::<f32>()?, [[2.0, 1.0], [0.0, 3.5]]);
/// let predictions = network.predict(&inputs)?;
/// let Prediction::Class { class, probabilities } = &predictions[0] else { unreachable!("they are classes") };
/// assert_eq!(network.preparation().target.names[*class], "cat");
/// assert!((probabilities[0] - 0.7311).abs() < 1e-4); // e² / (e² + e)
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Network {
    document: Document,
    model: GraftedModel,
}

impl Network {
    /// Loads a network on the CPU, whose seeds are of the blueprints of this version.
    ///
    /// # Errors
    /// As [`Self::load_with`].
    pub fn load(dir: impl AsRef<Path>) -> Result<Self, Error> {
        Self::load_with(dir.as_ref(), &Registry::all(), &Device::Cpu)
    }

    /// Loads a network. Everything is checked before it is used: the description by itself, the size of the weights against
    /// it before they are read, their digest, and then names, shapes, types and values.
    ///
    /// # Errors
    /// As [`Document::read`]; [`Error::Size`], [`Error::Digest`], [`Error::Weights`]; [`Error::Network`] when the device fails.
    /// # Sync
    /// none; one copy to the device for each tensor
    pub fn load_with(dir: &Path, registry: &Registry, device: &Device) -> Result<Self, Error> {
        let document = Document::read(dir, registry)?;
        let bytes = weights_of(dir, &document, registry)?;
        let path = dir.join(WEIGHTS_FILE);
        let wrong = |source| Error::Network { path: path.clone(), source: Box::new(source) };
        let (dtype, forms) = (document.network.dtype.dtype(), document.network.tensors(registry).map_err(wrong)?);
        let limit = bytes.len();
        let weights = Weights::from_bytes_within(bytes, limit);
        let fitting = weights.and_then(|weights| fit(&weights, &document.network, &forms));
        let fitting = fitting.map_err(|source| Error::Weights { path: path.clone(), source })?;
        let mut tensors = BTreeMap::new();
        for ((name, shape), values) in forms.iter().zip(fitting) {
            let tensor = Tensor::from_vec(values, shape.as_slice(), &Device::Cpu)?.to_dtype(dtype)?;
            tensors.insert(name.clone(), tensor.to_device(device)?);
        }
        let model = document.network.build(tensors, registry, device).map_err(wrong)?;
        Ok(Self { document, model })
    }

    /// Its description.
    #[must_use]
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// How a sample becomes an input, and what the outputs mean: [`Preparation::apply`] reads a file.
    #[must_use]
    pub fn preparation(&self) -> &Preparation {
        &self.document.preparation
    }

    /// The network itself, for what takes models.
    #[must_use]
    pub fn model(&self) -> &GraftedModel {
        &self.model
    }

    /// The logits of prepared inputs.
    ///
    /// # Shapes
    /// `inputs` (B, features), or in the shape of samples of the host, the result (B, outputs), of a language model
    /// (B, context, vocabulary), `f32` or, for a network of `f64`,
    /// `f64`
    /// # Errors
    /// [`Error::Forward`] with the shapes that are accepted; when the device fails.
    /// # Sync
    /// none
    pub fn forward(&self, inputs: &Tensor) -> Result<Tensor, Error> {
        Ok(self.model.forward(inputs, Pass::Evaluate { overrides: &[] })?.logits)
    }

    /// What the network answers to each of the prepared inputs, in the units of the data; of a language model,
    /// [`Generation`](crate::Generation) tells what comes next.
    ///
    /// # Shapes
    /// as [`Self::forward`]
    /// # Errors
    /// As [`Self::forward`]; for a language model; [`Error::Outputs`].
    /// # Sync
    /// one device-to-host copy
    pub fn predict(&self, inputs: &Tensor) -> Result<Vec<Prediction>, Error> {
        let logits = read(&self.forward(inputs)?)?;
        let target = &self.document.preparation.target;
        Prediction::of(target, &logits)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where this crate reads from a device")]
pub(crate) fn read(logits: &Tensor) -> candle_core::Result<Vec<Vec<f32>>> {
    logits.to_dtype(DType::F32)?.to_vec2()
}

/// The values of every tensor of the network, in the order of `forms`.
pub(crate) fn fit(
    weights: &Weights,
    network: &NetworkSpec,
    forms: &[(String, Vec<usize>)],
) -> Result<Vec<Vec<f64>>, WeightsError> {
    let dtype = Dtype::from(network.dtype.dtype());
    weights.fit(&forms.iter().map(|(name, shape)| (&**name, dtype, &**shape)).collect::<Vec<_>>())
}

/// The bytes of the weights, as many as the description says and with its digest.
fn weights_of(dir: &Path, document: &Document, registry: &Registry) -> Result<Vec<u8>, Error> {
    let path = dir.join(WEIGHTS_FILE);
    let WeightsRecord { bytes: expected, blake3 } = &document.weights;
    let forms = document.network.tensors(registry)?;
    let element = document.network.dtype.dtype().size_in_bytes() as u64;
    let size = |(name, shape): &(String, Vec<usize>)| {
        let values = shape.iter().fold(element, |size, &side| size.saturating_mul(side as u64));
        (values, HEADER_BYTES + name.len() as u64)
    };
    let (values, header) = forms
        .iter()
        .map(size)
        .fold((0_u64, HEADER_BYTES), |(values, header), (v, h)| (values.saturating_add(v), header.saturating_add(h)));
    let most = values.saturating_add(header);
    if !(values..=most).contains(expected) {
        let expected_size = format!("{values} to {most} for the tensors of `network`");
        let (path, found) = (dir.join(crate::DOCUMENT_FILE), expected.to_string());
        return Err(Error::Field { path, field: "weights.bytes".to_owned(), found, expected: expected_size });
    }
    let bytes = files::read(dir, WEIGHTS_FILE, *expected)?;
    if bytes.len() as u64 != *expected {
        return Err(Error::Size { path, found: bytes.len() as u64, expected: expected.to_string() });
    }
    let found = blake3::hash(&bytes).to_hex().to_string();
    if found != *blake3 {
        return Err(Error::Digest { path, expected: blake3.clone(), found });
    }
    Ok(bytes)
}
