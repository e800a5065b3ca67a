//! A recorded training step of any length.

use super::program::Program;
use super::text::ParseError;

/// A step of a perceptron of so many layers of width 4 over 8 samples: forward, backward, momentum; about 40 operations a layer.
///
/// Nobody runs it: it shows how passes do on long programs.
///
/// # Errors
/// None but a fault of this function.
///
/// # Examples
/// ```
/// let program = esper_graph::compile::perceptron(3)?;
/// assert_eq!((program.nodes.len(), program.validate()), (102, Ok(())));
/// # Ok::<(), esper_graph::compile::ParseError>(())
/// ```
pub fn perceptron(layers: usize) -> Result<Program, ParseError> {
    let (mut graph, mut nodes) = (Vec::new(), Vec::new());
    // Weight, bias and their moments; activations live from the forward to the backward pass.
    let mut external = [64, 16, 64, 16].repeat(layers);
    let input = external.len();
    external.push(128);
    let first_graph = external.len();
    let take = |bytes: usize, graph: &mut Vec<usize>| {
        graph.push(bytes);
        format!("g{}", first_graph + graph.len() - 1)
    };
    let mut activations = vec![format!("x{input}")];
    for layer in 0..layers {
        let [weight, bias] = [4 * layer, 4 * layer + 1];
        let (product, sum, active) = (take(128, &mut graph), take(128, &mut graph), take(128, &mut graph));
        let before = activations.last().cloned().unwrap_or_default();
        nodes.extend([
            format!("alloc {product}"),
            format!("kernel gemm from 1 known ({before} r[0..128], x{weight} r[0..64], {product} w[0..128])"),
            format!("alloc {sum}"),
            format!("kernel badd_f32 pointwise [8 4] ({product} r[0..128], x{bias} r[0..16], {sum} w[0..128]) 0:f32, 1:f32[0 1] -> 2:f32 {{ load 0; load 1; add $0 $1 }}"),
            format!("free {product}"),
            format!("alloc {active}"),
            format!("kernel urelu_f32 pointwise [8 4] ({sum} r[0..128], {active} w[0..128]) 0:f32 -> 1:f32 {{ load 0; relu $0 }}"),
            format!("free {sum}"),
        ]);
        activations.push(active);
    }
    let mut gradient = take(128, &mut graph);
    nodes.push(format!("alloc {gradient}"));
    nodes.push(format!("kernel affine_f32 pointwise [8 4] ({} r[0..128], {gradient} w[0..128]) 0:f32 -> 1:f32 {{ load 0; muladd $0 0.25 0.0 }}", activations[layers]));
    for layer in (0..layers).rev() {
        let parameters: Vec<usize> = (4 * layer..4 * layer + 4).collect();
        let (of_weight, product, of_bias, sum) =
            (take(64, &mut graph), take(64, &mut graph), take(16, &mut graph), take(16, &mut graph));
        let (masked, below) = (take(128, &mut graph), take(128, &mut graph));
        let (active, before) = (&activations[layer + 1], &activations[layer]);
        nodes.extend([
            format!("alloc {masked}"),
            format!("kernel mask pointwise [8 4] ({gradient} r[0..128], {active} r[0..128], {masked} w[0..128]) 0:f32, 1:f32 -> 2:f32 {{ load 0; load 1; mul $0 $1 }}"),
            format!("free {gradient}"),
            format!("free {active}"),
            format!("alloc {of_weight}"),
            format!("zero {of_weight}[0..64]"),
            format!("alloc {product}"),
            format!("kernel gemm from 2 known ({before} r[0..128], {masked} r[0..128], {product} w[0..64])"),
            format!("kernel badd_f32 pointwise [4 4] ({of_weight} r[0..64], {product} r[0..64], {of_weight} w[0..64]) 0:f32, 1:f32 -> 2:f32 {{ load 0; load 1; add $0 $1 }}"),
            format!("free {product}"),
            format!("alloc {of_bias}"),
            format!("zero {of_bias}[0..16]"),
            format!("alloc {sum}"),
            format!("kernel fast_sum_f32 from 3 known ({masked} r[0..128], {sum} w[0..16])"),
            format!("kernel badd_f32 pointwise [4] ({of_bias} r[0..16], {sum} r[0..16], {of_bias} w[0..16]) 0:f32, 1:f32 -> 2:f32 {{ load 0; load 1; add $0 $1 }}"),
            format!("free {sum}"),
            format!("alloc {below}"),
            format!("kernel gemm from 4 known ({masked} r[0..128], x{} r[0..64], {below} w[0..128])", parameters[0]),
            format!("free {masked}"),
        ]);
        for (parameter, moment, gradient, shape, bytes) in
            [(parameters[0], parameters[2], &of_weight, "4 4", 64), (parameters[1], parameters[3], &of_bias, "4", 16)]
        {
            nodes.extend([
                format!("kernel momentum pointwise [{shape}] (x{moment} r[0..{bytes}], {gradient} r[0..{bytes}], x{moment} w[0..{bytes}]) 0:f32, 1:f32 -> 2:f32 {{ load 0; load 1; muladd $0 0.9 0.0; add $2 $1 }}"),
                format!("kernel update pointwise [{shape}] (x{parameter} r[0..{bytes}], x{moment} r[0..{bytes}], x{parameter} w[0..{bytes}]) 0:f32, 1:f32 -> 2:f32 {{ load 0; load 1; muladd $1 -0.05 0.0; add $0 $2 }}"),
                format!("free {gradient}"),
            ]);
        }
        gradient = below;
    }
    nodes.push(format!("free {gradient}"));
    let kinds = [('x', 0, external), ('g', first_graph, graph)];
    let blocks = kinds.iter().flat_map(|(kind, first, sizes)| {
        sizes.iter().enumerate().map(move |(index, bytes)| format!(" {kind}{}={bytes}", first + index))
    });
    let nodes = nodes.iter().enumerate().map(|(index, node)| format!("%{index} {node}\n"));
    format!("blocks{}\n{}", blocks.collect::<String>(), nodes.collect::<String>()).parse()
}
