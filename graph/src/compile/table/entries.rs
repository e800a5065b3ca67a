//! The kernels of the table: name, what kind it is, and its parameters.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::parameter::Parameter::{self, Double, Flag, Float, Info, Input, Output, Signed, Size, Unsigned, Value};
use crate::compile::pointwise::ElementType::{self, Bf16, F32, F64, I64, U8, U32};
use crate::compile::pointwise::{BinaryOp, Comparison, UnaryOp};

/// What a kernel does, apart from its types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// A function of one number, or a copy.
    Unary(Option<UnaryOp>),
    Elu,
    Power,
    Affine,
    Binary(BinaryOp),
    Compare(Comparison),
    Cast,
    Select,
    Fill,
    ConstSet,
    Copy2d,
    Reduce,
    ReduceSmall,
    Softmax,
    RmsNorm,
    LayerNorm,
    RopeInterleaved,
    Rope,
    RopeThd,
    Sort,
    IndexSelect,
    Gather,
    IndexAdd,
    Scatter,
    ScatterAdd,
    Conv1d,
    ConvTranspose1d,
    Conv2d,
    ConvTranspose2d,
    Im2Col1d,
    Im2Col,
    Col2Im1d,
    Pool2d,
    UpsampleNearest,
    UpsampleBilinear,
}

/// A kernel of candle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::compile) struct Entry {
    pub(super) family: Family,
    pub(in crate::compile) parameters: Vec<Parameter>,
    /// What the source assigns to an element, where the table says what is computed.
    pub(in crate::compile) expression: Option<&'static str>,
}

/// All kernels by name.
pub(in crate::compile) fn entries() -> &'static BTreeMap<String, Entry> {
    static ENTRIES: LazyLock<BTreeMap<String, Entry>> = LazyLock::new(|| {
        let mut table = Table::default();
        table.unary();
        table.element_wise();
        table.fills();
        table.reductions();
        table.rows();
        table.indexing();
        table.convolutions();
        table.0
    });
    &ENTRIES
}

const FLOATS: [ElementType; 3] = [F32, F64, Bf16];
const ALL: [ElementType; 6] = [F32, F64, Bf16, U8, U32, I64];
const INDICES: [ElementType; 3] = [U8, U32, I64];
/// The types of convolutions and pooling.
const CONVOLVED: [ElementType; 5] = [F32, F64, Bf16, U8, U32];

const UNARY: [(&str, UnaryOp, &str); 21] = [
    ("uneg", UnaryOp::Negate, "-x"),
    ("urecip", UnaryOp::Reciprocal, "recipg(x)"),
    ("uexp", UnaryOp::Exp, "expg(x)"),
    ("ulog", UnaryOp::Log, "logg(x)"),
    ("usin", UnaryOp::Sin, "sing(x)"),
    ("ucos", UnaryOp::Cos, "cosg(x)"),
    ("utanh", UnaryOp::Tanh, "tanhg(x)"),
    ("uerf", UnaryOp::Erf, "erfg(x)"),
    ("uceil", UnaryOp::Ceil, "ceilg(x)"),
    ("ufloor", UnaryOp::Floor, "floorg(x)"),
    ("uround", UnaryOp::Round, "roundg(x)"),
    ("unormcdf", UnaryOp::NormalCdf, "normcdfg(x)"),
    ("uabs", UnaryOp::Abs, "absg(x)"),
    ("usqr", UnaryOp::Square, "x*x"),
    ("usqrt", UnaryOp::Sqrt, "sqrtg(x)"),
    ("ugelu", UnaryOp::Gelu, "gelu_fwd(x)"),
    ("ugelu_erf", UnaryOp::GeluErf, "gelu_erf_fwd(x)"),
    ("urelu", UnaryOp::Relu, "relu_fwd(x)"),
    ("usign", UnaryOp::Sign, "sign_(x)"),
    ("usilu", UnaryOp::Silu, "silu_fwd(x)"),
    ("usigmoid", UnaryOp::Sigmoid, "sigmoid_fwd(x)"),
];

const COMPARISONS: [(&str, Comparison, &str); 6] = [
    ("eq", Comparison::Equal, "x == y"),
    ("ne", Comparison::NotEqual, "x != y"),
    ("lt", Comparison::Less, "x < y"),
    ("le", Comparison::LessOrEqual, "x <= y"),
    ("gt", Comparison::Greater, "x > y"),
    ("ge", Comparison::GreaterOrEqual, "x >= y"),
];

const CASTS: [(ElementType, &[ElementType]); 6] = [
    (Bf16, &[Bf16, F32, U32, F64, U8]),
    (U32, &[U32, U8, I64, F32, F64, Bf16]),
    (U8, &[U32, U8, I64, F32, F64, Bf16]),
    (I64, &[U32, U8, I64, F32, F64]),
    (F32, &[U8, U32, I64, F32, F64, Bf16]),
    (F64, &[U8, U32, I64, F32, F64, Bf16]),
];

/// The type as it stands in names.
fn suffix(element: ElementType) -> &'static str {
    match element {
        F32 => "f32",
        F64 => "f64",
        Bf16 => "bf16",
        U8 => "u8",
        U32 => "u32",
        I64 => "i64",
    }
}

/// The operation of a minimum or maximum: of the types, only 16-bit floats pass a value on that is not a number.
fn extremum(element: ElementType, is_maximum: bool) -> BinaryOp {
    match (element, is_maximum) {
        (F32 | F64, false) => BinaryOp::MinimumNumber,
        (F32 | F64, true) => BinaryOp::MaximumNumber,
        (Bf16 | U8 | U32 | I64, false) => BinaryOp::Minimum,
        (Bf16 | U8 | U32 | I64, true) => BinaryOp::Maximum,
    }
}

#[derive(Default)]
struct Table(BTreeMap<String, Entry>);

impl Table {
    fn add(
        &mut self,
        name: &str,
        element: ElementType,
        family: Family,
        parameters: &[Parameter],
        expression: Option<&'static str>,
    ) {
        let entry = Entry { family, parameters: parameters.to_vec(), expression };
        self.0.insert(format!("{name}_{}", suffix(element)), entry);
    }

    fn known(&mut self, name: &str, element: ElementType, family: Family, parameters: &[Parameter]) {
        self.add(name, element, family, parameters, None);
    }

    fn unary(&mut self) {
        for t in ALL {
            // The copy of 16-bit floats is written out for vectors and has no expression of its own.
            let expression = (t != Bf16).then_some("x");
            self.add("ucopy", t, Family::Unary(None), &[Size, Size, Info, Input(t), Output(t)], expression);
        }
        for t in FLOATS {
            for (name, operation, expression) in UNARY {
                let expression = match (operation, t) {
                    (UnaryOp::Silu, Bf16) => "__float2bfloat16(xf / (1.0f + expf(-xf)))",
                    (UnaryOp::Sigmoid, Bf16) => "__float2bfloat16(1.0f / (1.0f + expf(-xf)))",
                    _ => expression,
                };
                let parameters = [Size, Size, Info, Input(t), Output(t)];
                self.add(name, t, Family::Unary(Some(operation)), &parameters, Some(expression));
            }
            let parameters = [Size, Size, Info, Value(t), Input(t), Output(t)];
            self.add("uelu", t, Family::Elu, &parameters, Some("elu_fwd(x, param)"));
            self.add("upowf", t, Family::Power, &parameters, Some("powg(x, param)"));
        }
    }

    fn element_wise(&mut self) {
        for t in ALL {
            let parameters = [Size, Size, Info, Input(t), Output(t), Value(t), Value(t)];
            self.add("affine", t, Family::Affine, &parameters, Some("x * mul + add"));
            let binary = [
                ("badd", BinaryOp::Add, "x + y"),
                ("bsub", BinaryOp::Subtract, "x - y"),
                ("bmul", BinaryOp::Multiply, "x * y"),
                ("bdiv", BinaryOp::Divide, "x / y"),
                ("bminimum", extremum(t, false), "ming(x, y)"),
                ("bmaximum", extremum(t, true), "maxg(x, y)"),
            ];
            let parameters = [Size, Size, Info, Input(t), Input(t), Output(t)];
            for (name, operation, expression) in binary {
                self.add(name, t, Family::Binary(operation), &parameters, Some(expression));
            }
            let parameters = [Size, Size, Info, Input(t), Input(t), Output(U8)];
            for (name, comparison, expression) in COMPARISONS {
                self.add(name, t, Family::Compare(comparison), &parameters, Some(expression));
            }
            for index in INDICES {
                let parameters = [Size, Size, Info, Input(index), Input(t), Input(t), Output(t)];
                let name = format!("where_{}", suffix(index));
                self.add(&name, t, Family::Select, &parameters, Some("ids[i] ? t[i] : f[i]"));
            }
        }
        for (from, types) in CASTS {
            for &to in types {
                let parameters = [Size, Size, Info, Input(from), Output(to)];
                self.known(&format!("cast_{}", suffix(from)), to, Family::Cast, &parameters);
            }
        }
    }

    fn fills(&mut self) {
        for t in ALL {
            self.known("fill", t, Family::Fill, &[Output(t), Value(t), Size]);
            let parameters = [Size, Size, Info, Value(t), Output(t)];
            self.add("const_set", t, Family::ConstSet, &parameters, Some("inp"));
            let parameters = [Input(t), Output(t), Unsigned, Unsigned, Unsigned, Unsigned];
            self.known("copy2d", t, Family::Copy2d, &parameters);
        }
    }

    fn reductions(&mut self) {
        for t in ALL {
            let parameters = |to| [Size, Size, Size, Info, Input(t), Output(to)];
            for name in ["fast_sum", "fast_min", "fast_max"] {
                self.known(name, t, Family::Reduce, &parameters(t));
            }
            for name in ["fast_argmin", "fast_argmax"] {
                self.known(name, t, Family::Reduce, &parameters(U32));
            }
            self.known("fast_sum_small", t, Family::ReduceSmall, &parameters(t));
        }
    }

    /// Kernels that work on rows.
    fn rows(&mut self) {
        for t in FLOATS {
            let (input, output) = (Input(t), Output(t));
            self.known("softmax", t, Family::Softmax, &[input, output, Signed]);
            self.known("rmsnorm", t, Family::RmsNorm, &[input, output, input, Signed, Signed, Float]);
            self.known("layernorm", t, Family::LayerNorm, &[input, output, input, input, Signed, Signed, Float]);
            let rope = |num_sizes: usize| [vec![input, input, input, output], vec![Unsigned; num_sizes]].concat();
            self.known("rope_i", t, Family::RopeInterleaved, &rope(3));
            self.known("rope", t, Family::Rope, &rope(4));
            self.known("rope_thd", t, Family::RopeThd, &rope(5));
        }
        for t in ALL {
            for name in ["asort_asc", "asort_desc"] {
                self.known(name, t, Family::Sort, &[Input(t), Output(U32), Signed, Signed]);
            }
        }
    }

    fn indexing(&mut self) {
        for (t, index) in ALL.into_iter().flat_map(|t| INDICES.map(|index| (t, index))) {
            let (ids, input, output) = (Input(index), Input(t), Output(t));
            let mut add = |name: &str, family, parameters: &[Parameter]| {
                self.known(&format!("{name}_{}", suffix(index)), t, family, parameters);
            };
            let select = [Size, Size, Info, ids, input, output, Size, Size, Size, Size];
            add("is", Family::IndexSelect, &select);
            add("gather", Family::Gather, &[Size, ids, input, output, Size, Size, Size, Size]);
            add("ia", Family::IndexAdd, &[ids, Size, input, output, Size, Size, Size, Size]);
            add("s", Family::Scatter, &[ids, input, output, Size, Size, Size, Size]);
            add("sa", Family::ScatterAdd, &[ids, input, output, Size, Size, Size, Size]);
        }
    }

    fn convolutions(&mut self) {
        for t in CONVOLVED {
            let (input, output) = (Input(t), Output(t));
            let with = |num_sizes: usize, rest: &[Parameter]| [&vec![Size; num_sizes][..], rest].concat();
            let (one, two) = ([Info, input, output], [Info, input, input, output]);
            self.known("conv1d", t, Family::Conv1d, &with(5, &two));
            self.known("conv2d", t, Family::Conv2d, &with(6, &two));
            self.known("conv_transpose1d", t, Family::ConvTranspose1d, &with(6, &two));
            self.known("conv_transpose2d", t, Family::ConvTranspose2d, &with(7, &two));
            self.known("im2col1d", t, Family::Im2Col1d, &with(6, &one));
            self.known("im2col", t, Family::Im2Col, &with(8, &one));
            self.known("col2im1d", t, Family::Col2Im1d, &with(6, &[input, output]));
            self.known("avg_pool2d", t, Family::Pool2d, &with(5, &one));
            self.known("max_pool2d", t, Family::Pool2d, &with(5, &one));
            let nearest = [Size, Size, Double, Double, Info, input, output];
            self.known("upsample_nearest2d", t, Family::UpsampleNearest, &nearest);
            let bilinear = [Size, Size, Flag, Flag, Double, Flag, Double, Info, input, output];
            self.known("upsample_bilinear2d", t, Family::UpsampleBilinear, &bilinear);
        }
    }
}
