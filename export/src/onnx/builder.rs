//! Nodes of a graph, one after the other, by the names of what they compute.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::Tensor;

use super::messages::{Attribute, Dimension, Graph, Node, Shape, TensorType, TensorValues, Type, ValueInfo};
use crate::error::Error;
use crate::write::values;

const F32: i32 = 1;
const I64: i32 = 7;

/// A value of the graph, by its name.
pub(super) type Value = String;

/// What a node is told besides its inputs.
pub(super) enum With<'a> {
    Float(&'static str, f32),
    Int(&'static str, i64),
    Ints(&'static str, &'a [i64]),
}

/// A graph that is being written.
pub(super) struct Builder<'a> {
    weights: &'a BTreeMap<String, Tensor>,
    taken: BTreeSet<String>,
    graph: Graph,
}

impl<'a> Builder<'a> {
    pub(super) fn new(weights: &'a BTreeMap<String, Tensor>) -> Self {
        Self { weights, taken: BTreeSet::new(), graph: Graph::default() }
    }

    /// What a node of this kind computes.
    pub(super) fn node(&mut self, kind: &str, inputs: &[&str], with: &[With<'_>]) -> Value {
        self.nodes(kind, inputs, with, 1).remove(0)
    }

    /// All that a node with several outputs computes.
    pub(super) fn nodes(&mut self, kind: &str, inputs: &[&str], with: &[With<'_>], count: usize) -> Vec<Value> {
        let number = self.graph.node.len();
        let output: Vec<Value> = (0..count).map(|index| format!("{}.{number}.{index}", kind.to_lowercase())).collect();
        let attribute = |with: &With<'_>| match *with {
            With::Float(name, value) => {
                Attribute { name: Some(name.into()), f: Some(value), kind: Some(1), ..Attribute::default() }
            }
            With::Int(name, value) => {
                Attribute { name: Some(name.into()), i: Some(value), kind: Some(2), ..Attribute::default() }
            }
            With::Ints(name, values) => {
                Attribute { name: Some(name.into()), ints: values.to_vec(), kind: Some(7), ..Attribute::default() }
            }
        };
        self.graph.node.push(Node {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: output.clone(),
            name: Some(format!("{}.{number}", kind.to_lowercase())),
            op_type: Some(kind.to_owned()),
            attribute: with.iter().map(attribute).collect(),
        });
        output
    }

    /// Whole numbers, as shapes are.
    pub(super) fn whole(&mut self, numbers: &[i64]) -> Value {
        let name = format!("whole.{}", self.graph.initializer.len());
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.store(&name, vec![numbers.len() as i64], I64, bytes);
        name
    }

    /// A number that stays as it is.
    pub(super) fn constant(&mut self, number: f64) -> Value {
        self.constants(&[number], &[])
    }

    /// Numbers that stay as they are.
    #[expect(clippy::cast_possible_truncation, reason = "a graph is of single precision, as its network is")]
    pub(super) fn constants(&mut self, numbers: &[f64], dims: &[usize]) -> Value {
        let name = format!("constant.{}", self.graph.initializer.len());
        let bytes = numbers.iter().flat_map(|&number| (number as f32).to_le_bytes()).collect();
        self.store(&name, sizes(dims), F32, bytes);
        name
    }

    /// A tensor of the network by its name.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn weight(&mut self, name: &str) -> Result<Value, Error> {
        self.weight_as(name, self.dims(name), None)
    }

    /// The same numbers in another shape, after its dimensions were `permuted`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn weight_as(&mut self, name: &str, dims: &[usize], permuted: Option<&[usize]>) -> Result<Value, Error> {
        let mut tensor = self.tensor(name).reshape(dims)?;
        if let Some(order) = permuted {
            tensor = tensor.permute(order)?;
        }
        if self.taken.insert(name.to_owned()) {
            #[expect(clippy::cast_possible_truncation, reason = "they are of single precision")]
            let bytes = values(&tensor)?.into_iter().flat_map(|value| (value as f32).to_le_bytes()).collect();
            self.store(name, sizes(tensor.dims()), F32, bytes);
        }
        Ok(name.to_owned())
    }

    /// Sizes of a tensor of the network.
    pub(super) fn dims(&self, name: &str) -> &'a [usize] {
        self.tensor(name).dims()
    }

    fn tensor(&self, name: &str) -> &'a Tensor {
        self.weights.get(name).expect("an export that was checked has all of its tensors")
    }

    fn store(&mut self, name: &str, dims: Vec<i64>, data_type: i32, bytes: Vec<u8>) {
        let (name, data_type, raw_data) = (Some(name.to_owned()), Some(data_type), Some(bytes));
        self.graph.initializer.push(TensorValues { dims, data_type, name, raw_data });
    }

    /// The graph of samples of so many numbers, with what it ends in.
    pub(super) fn finish(mut self, name: &str, inputs: (&str, usize), outputs: (&str, usize), last: &str) -> Graph {
        self.graph.node.push(Node {
            input: vec![last.to_owned()],
            output: vec![outputs.0.to_owned()],
            name: Some(outputs.0.to_owned()),
            op_type: Some("Identity".to_owned()),
            attribute: Vec::new(),
        });
        let info = |(name, size): (&str, usize)| {
            let samples = Dimension { value: None, name: Some("samples".to_owned()) };
            let numbers = Dimension { value: sizes(&[size]).pop(), name: None };
            let shape = Some(Shape { dim: vec![samples, numbers] });
            let tensor = Some(TensorType { element: Some(F32), shape });
            ValueInfo { name: Some(name.to_owned()), kind: Some(Type { tensor }) }
        };
        Graph { name: Some(name.to_owned()), input: vec![info(inputs)], output: vec![info(outputs)], ..self.graph }
    }
}

/// Sizes as the format stores them.
pub(super) fn sizes(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|&size| i64::try_from(size).expect("a size of memory")).collect()
}
