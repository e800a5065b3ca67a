//! Kinds of parameters of kernels.

use crate::compile::pointwise::ElementType;

/// A parameter as the source declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::compile) enum Parameter {
    /// `size_t`
    Size,
    /// `uint32_t`
    Unsigned,
    /// `int`
    Signed,
    /// `float` that is no element
    Float,
    /// `double` that is no element
    Double,
    /// `bool`
    Flag,
    /// A number of the type of the elements.
    Value(ElementType),
    /// `const size_t *`: dimensions and strides in device memory.
    Info,
    /// Elements that are only read.
    Input(ElementType),
    /// Elements that are written.
    Output(ElementType),
}

impl Parameter {
    /// Length of the argument.
    pub(in crate::compile) fn size_bytes(self) -> usize {
        match self {
            Self::Size | Self::Double | Self::Info | Self::Input(_) | Self::Output(_) => 8,
            Self::Unsigned | Self::Signed | Self::Float => 4,
            Self::Flag => 1,
            Self::Value(element) => element.size_bytes(),
        }
    }

    /// The elements behind an address; none for numbers and for dimensions.
    pub(super) fn element(self) -> Option<ElementType> {
        match self {
            Self::Input(element) | Self::Output(element) => Some(element),
            Self::Size
            | Self::Unsigned
            | Self::Signed
            | Self::Float
            | Self::Double
            | Self::Flag
            | Self::Value(_)
            | Self::Info => None,
        }
    }
}
