//! The `esper` command with candle in its place, which asks Esper for products and for weights that are rounded already.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use candle_core::provided::{Provided, set};

fn main() -> ExitCode {
    set(Provided { product: esper_layers::product, rounded: esper_graph::precision::rounded_by_model });
    esper::command()
}
