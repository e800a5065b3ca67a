//! Linear layers with `ReLU` between them.

use esper_layers::Activation;

use crate::error::Error;
use crate::host::SlotShape;
use crate::host::build::Builder;

pub(in crate::host) fn mlp(
    builder: &mut Builder<'_, '_>,
    inputs: usize,
    hidden: &[usize],
    classes: usize,
) -> Result<(), Error> {
    let mut features = inputs;
    builder.slot("input", SlotShape::Vector { features })?;
    for (index, &width) in hidden.iter().enumerate() {
        let layer = builder.linear(&format!("host.layer{index}"), features, width, Activation::Relu)?;
        builder.segment(vec![layer]);
        features = width;
        builder.slot(format!("hidden{index}"), SlotShape::Vector { features })?;
    }
    let head = builder.linear("host.head", features, classes, Activation::None)?;
    builder.segment(vec![head]);
    Ok(())
}
