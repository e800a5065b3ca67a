//! An exported network as one file of ONNX, for the programs that run those.
//!
//! The graph takes prepared inputs (samples, features) and gives logits (samples, outputs), both of single precision, as
//! [`Network::forward`](crate::Network::forward) does. It is of operator set 17, of ONNX itself alone. How inputs are prepared and what
//! outputs mean stands in the property `preparation`, as in `model.json`. Inside, values are (samples, positions…, channels).

mod builder;
mod host;
mod messages;
mod seed;

use std::path::Path;

use kasmina::weight::ElementType;
use prost::Message as _;

use crate::error::Error;
use crate::write::{Export, WRITTEN_BY};
use builder::{Builder, Value, With, sizes};
use messages::{Model, OperatorSet, Property};

/// Name of the file.
pub const ONNX_FILE: &str = "model.onnx";
/// What the graph takes.
const INPUTS: &str = "inputs";
const OPERATOR_SET: i64 = 17;
/// Of the files that have operator set 17.
const IR_VERSION: i64 = 8;
/// Keeps the division of a normalization finite.
const EPSILON: f32 = 1e-5;

impl Export {
    /// The bytes of the file.
    ///
    /// # Errors
    /// [`Error::Onnx`] for a network that is not of single precision, and for a blueprint that is none of this version;
    /// [`Error::Forward`] for a network that cannot be built; [`Error::Field`] and [`Error::Weights`] as [`Self::write`]; when a tensor
    /// cannot be read.
    /// # Sync
    /// two device-to-host copies for each tensor
    pub fn to_onnx(&self) -> Result<Vec<u8>, Error> {
        if self.network.dtype != ElementType::F32 {
            let found = format!("{:?}", self.network.dtype).to_lowercase();
            return Err(Error::Onnx { field: "network.dtype".to_owned(), found, expected: "f32".to_owned() });
        }
        self.documented(Path::new(""))?;
        let mut builder = Builder::new(&self.tensors);
        let last = host::lower(&mut builder, &self.network)?;
        let (features, outputs) = (self.preparation.num_features(), self.network.host.num_outputs());
        let graph = builder.finish("esper", (INPUTS, features), ("logits", outputs), &last);
        let preparation = serde_json::to_string(&self.preparation).expect("string keys and finite numbers");
        let (producer, version) = WRITTEN_BY.split_once(' ').unwrap_or((WRITTEN_BY, ""));
        let model = Model {
            ir_version: Some(IR_VERSION),
            producer_name: Some(producer.to_owned()),
            producer_version: Some(version.to_owned()),
            graph: Some(graph),
            opset_import: vec![OperatorSet { domain: Some(String::new()), version: Some(OPERATOR_SET) }],
            metadata_props: vec![Property { key: Some("preparation".to_owned()), value: Some(preparation) }],
        };
        Ok(model.encode_to_vec())
    }
}

/// A value between layers: (samples, `positions`…, `channels`).
#[derive(Debug, Clone)]
struct Signal {
    value: Value,
    positions: Vec<usize>,
    channels: usize,
}

impl Signal {
    fn with(&self, value: Value) -> Self {
        Self { value, ..self.clone() }
    }
}

/// How positions of a convolution lie.
#[derive(Debug, Clone, Copy)]
struct Window {
    kernel: usize,
    stride: usize,
}

/// Layers that hosts and seeds share.
impl Builder<'_> {
    fn linear(&mut self, x: &str, name: &str) -> Result<Value, Error> {
        let (weight, bias) = (self.weight(&format!("{name}.weight"))?, self.weight(&format!("{name}.bias"))?);
        let product = self.node("MatMul", &[x, &weight], &[]);
        Ok(self.node("Add", &[&product, &bias], &[]))
    }

    /// Each position by itself, to mean 0 and variance 1, then scaled and shifted.
    fn normalize(&mut self, x: &str, scale: &str, shift: Option<&str>) -> Value {
        let inputs: Vec<&str> = [x, scale].into_iter().chain(shift).collect();
        self.node("LayerNormalization", &inputs, &[With::Int("axis", -1), With::Float("epsilon", EPSILON)])
    }

    /// A convolution with `in_each` channels of its input in each group: all of them, or one.
    fn convolution(&mut self, x: &Signal, name: &str, window: Window, in_each: usize) -> Result<Signal, Error> {
        let (Window { kernel, stride }, rank) = (window, x.positions.len());
        let weight_name = format!("{name}.weight");
        let channels = self.dims(&weight_name)[1];
        // Rows by position, then channel → (out, in, positions…).
        let dims = [vec![kernel; rank], vec![in_each, channels]].concat();
        let order: Vec<usize> = [rank + 1, rank].into_iter().chain(0..rank).collect();
        let weight = self.weight_as(&weight_name, &dims, Some(&order))?;
        let bias = self.weight(&format!("{name}.bias"))?;
        let first = self.channels_first(x);
        let (padding, groups) = (kernel / 2, x.channels / in_each);
        let with = [
            With::Ints("kernel_shape", &sizes(&vec![kernel; rank])),
            With::Ints("pads", &sizes(&vec![padding; 2 * rank])),
            With::Ints("strides", &sizes(&vec![stride; rank])),
            With::Int("group", sizes(&[groups])[0]),
        ];
        let value = self.node("Conv", &[&first, &weight, &bias], &with);
        let positions = x.positions.iter().map(|&length| (length + 2 * padding - kernel) / stride + 1).collect();
        let back: Vec<i64> = [0].into_iter().chain(2..sizes(&[rank + 2])[0]).chain([1]).collect();
        Ok(Signal { value: self.node("Transpose", &[&value], &[With::Ints("perm", &back)]), positions, channels })
    }

    /// (samples, channels, positions…).
    fn channels_first(&mut self, x: &Signal) -> Value {
        let rank = sizes(&[x.positions.len()])[0];
        let order: Vec<i64> = [0, rank + 1].into_iter().chain(1..=rank).collect();
        self.node("Transpose", &[&x.value], &[With::Ints("perm", &order)])
    }

    /// Over positions: (samples, channels).
    fn mean_over_positions(&mut self, x: &Signal) -> Value {
        if x.positions.is_empty() {
            return x.value.clone();
        }
        let axes: Vec<i64> = (1..=sizes(&[x.positions.len()])[0]).collect();
        self.node("ReduceMean", &[&x.value], &[With::Ints("axes", &axes), With::Int("keepdims", 0)])
    }

    /// Samples of other sizes.
    fn reshape(&mut self, x: &str, dims: &[usize]) -> Value {
        // A size of 0 stays what it is: the number of samples.
        let dims = self.whole(&[vec![0], sizes(dims)].concat());
        self.node("Reshape", &[x, &dims], &[])
    }

    /// Each position of a sequence looks at all of them.
    fn attention(&mut self, x: &Signal, name: &str, num_heads: usize) -> Result<Value, Error> {
        let width = self.dims(&format!("{name}.out.weight"))[0];
        let (length, each) = (x.positions[0], width / num_heads);
        let qkv = self.linear(&x.value, &format!("{name}.qkv"))?;
        let parts = self.whole(&sizes(&[width; 3]));
        let parts = self.nodes("Split", &[&qkv, &parts], &[With::Int("axis", -1)], 3);
        let mut heads = |part: &str, order: &[i64]| {
            let divided = self.reshape(part, &[length, num_heads, each]);
            self.node("Transpose", &[&divided], &[With::Ints("perm", order)])
        };
        let (queries, keys) = (heads(&parts[0], &[0, 2, 1, 3]), heads(&parts[1], &[0, 2, 3, 1]));
        let found = heads(&parts[2], &[0, 2, 1, 3]);
        #[expect(clippy::cast_precision_loss, reason = "a size of a head")]
        let scale = self.constant(1.0 / (each as f64).sqrt());
        let queries = self.node("Mul", &[&queries, &scale], &[]);
        let scores = self.node("MatMul", &[&queries, &keys], &[]);
        let shares = self.node("Softmax", &[&scores], &[With::Int("axis", -1)]);
        let seen = self.node("MatMul", &[&shares, &found], &[]);
        let seen = self.node("Transpose", &[&seen], &[With::Ints("perm", &[0, 2, 1, 3])]);
        let seen = self.reshape(&seen, &[length, width]);
        self.linear(&seen, &format!("{name}.out"))
    }
}
