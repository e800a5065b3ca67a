//! The bits of a pass that keeps everything, nothing kept but inputs, and what has no gradient.

use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::Device;

use super::*;
use crate::operations::counted;
use crate::testing::{numbers, read, tensor};
use crate::{Activation, LinearOptions, layer_norm, linear};

const CPU: Device = Device::Cpu;

fn var(seed: u64, shape: &[usize]) -> Var {
    let values = tensor(&numbers(seed, shape.iter().product()), shape);
    Var::from_tensor(&values.to_dtype(DType::F32).unwrap()).unwrap()
}

/// h + gelu(norm(h)·W + b)·W₂, five variables: an odd number.
fn block(weights: &[Var], h: &Tensor) -> Result<Tensor> {
    let x = layer_norm(h, &weights[0], &weights[1], 1e-5)?;
    let gelu = LinearOptions { activation: Activation::Gelu, ..LinearOptions::default() };
    let hidden = linear(&x, &weights[2], Some(&weights[3]), &gelu)?;
    h + linear(&hidden, &weights[4], None, &LinearOptions::default())?
}

fn weights(seed: u64) -> Vec<Var> {
    let shapes: [&[usize]; 5] = [&[4], &[4], &[4, 8], &[8], &[8, 4]];
    shapes.iter().zip(seed..).map(|(shape, seed)| var(seed, shape)).collect()
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    read(tensor).into_iter().map(f64::to_bits).collect()
}

/// Result and gradients of three blocks, the input's first.
fn three_blocks(recomputes: bool) -> Vec<Vec<u64>> {
    let (input, blocks) = (var(1, &[3, 4]), [weights(10), weights(20), weights(30)]);
    let mut h = input.as_tensor().clone();
    for weights in &blocks {
        let own = weights.clone();
        h = if recomputes {
            recompute(&h, weights, move |h| block(&own, h)).unwrap()
        } else {
            block(weights, &h).unwrap()
        };
    }
    let gradients = (&h * var(2, &[3, 4]).as_detached_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
    let of = |variable: &Var| bits(gradients.get(variable).expect("a gradient"));
    [bits(&h), of(&input)].into_iter().chain(blocks.iter().flatten().map(of)).collect()
}

#[test]
fn results_and_gradients_have_the_bits_of_a_pass_that_keeps_everything() {
    let (found, expected) = (three_blocks(true), three_blocks(false));
    assert_eq!(found.len(), 2 + 15);
    assert!(found == expected);
}

#[test]
fn operations_are_counted_once() {
    assert_eq!(counted(|| three_blocks(true)).1, counted(|| three_blocks(false)).1);
}

#[test]
fn nothing_but_the_input_is_kept_and_the_part_runs_again() {
    let (input, weight) = (var(1, &[2, 2]), var(2, &[2, 2]));
    let (runs, alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (runs_within, alive_within, own) = (runs.clone(), alive.clone(), weight.clone());
    let y = recompute(&input, [&weight], move |h| {
        runs_within.fetch_add(1, Ordering::Relaxed);
        h.apply_op1(Counted::new(&alive_within))?.matmul(&own)
    });
    let y = y.unwrap();
    assert_eq!((runs.load(Ordering::Relaxed), alive.load(Ordering::Relaxed)), (1, 0), "forward");
    for num_runs in [2, 3] {
        y.backward().unwrap();
        assert_eq!((runs.load(Ordering::Relaxed), alive.load(Ordering::Relaxed)), (num_runs, 0), "backward");
    }
}

/// A copy; one more is alive until what was recorded of it is let go of.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Self(alive.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CustomOp1 for Counted {
    fn name(&self) -> &'static str {
        "counted"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(gradient.clone()))
    }
}

#[test]
fn an_input_without_gradient_and_a_variable_that_is_not_read_have_none() {
    let (read, unread) = (var(1, &[2, 2]), var(2, &[2]));
    let (h, own) = (var(3, &[2, 2]).as_detached_tensor(), read.clone());
    let y = recompute(&h, [&unread, &read], move |h| h.matmul(&own)).unwrap();
    let gradients = y.backward().unwrap();
    assert!(gradients.get(&h).is_none() && gradients.get(&unread).is_none());
    assert!(
        bits(gradients.get(&read).unwrap())
            == bits(&h.t().unwrap().matmul(&Tensor::ones((2, 2), DType::F32, &CPU).unwrap()).unwrap())
    );
}

#[test]
fn what_fails_within_is_told() {
    let h = var(1, &[2, 2]);
    let error = recompute(&h, [&h], |_| bail!("planted")).unwrap_err();
    assert!(error.to_string().contains("planted"), "{error}");
}

/// Two variables, (2, 2) each.
type Pair<'a> = [&'a Var; 2];
type Run<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;

/// The gradients of both variables, `None` where there is none, of `outside` with a part that is recomputed and with one that is kept.
#[track_caller]
fn check(what: &str, outside: fn(Pair<'_>, Run<'_>) -> Result<Tensor>, inside: fn(&Tensor, &Tensor) -> Result<Tensor>) {
    let [a, b] = [var(1, &[2, 2]), var(2, &[2, 2])];
    let gradients = |part: Run<'_>| {
        let loss = outside([&a, &b], part).unwrap().to_dtype(DType::F32).unwrap().sum_all().unwrap();
        let gradients = loss.backward().unwrap();
        (bits(&loss), [&a, &b].map(|variable| gradients.get(variable).map(bits)))
    };
    let recomputed = |h: &Tensor| {
        let own = b.clone();
        recompute(h, [&b], move |h| inside(h, &own))
    };
    let (found, expected) = (gradients(&recomputed), gradients(&|h| inside(h, &b)));
    assert!(found == expected, "{what}: {found:?}, kept {expected:?}");
}

#[test]
fn an_input_that_the_result_does_not_depend_on_gets_no_gradient() {
    check("not read", |[a, _], part| part(&a.sqr()?), |_, b| b.sqr());
    check("detached", |[a, _], part| part(&a.sqr()?), |h, b| h.detach() * b);
    check("times 0", |[a, _], part| part(&a.sqr()?), |h, b| b * h.affine(0.0, 1.0)?);
    check("rounded", |[a, _], part| part(&a.sqr()?), |h, b| h.round()? * b);
    check("nothing at all", |[a, b], part| a.as_tensor() * (part(&b.sqr()?)? + b.as_tensor())?, |h, _| h.round());
    check("a variable alone", |[a, _], part| part(a), |_, b| Ok(b.clone()));
}

#[test]
fn what_is_used_as_it_is_without_it_has_the_same_gradients() {
    check("an input twice", |[a, _], part| part(&a.sqr()?)? * a.sqr()?, |h, b| h.matmul(b)? + h);
    check(
        "parts of one input",
        |[a, _], part| {
            let h = a.sqr()?;
            part(&h)? + part(&h)?
        },
        |h, b| h.matmul(b),
    );
    check(
        "a result twice",
        |[a, _], part| {
            let y = part(&a.sqr()?)?;
            &y * y.sqr()?
        },
        |h, b| h.matmul(b),
    );
    check(
        "no result",
        |[a, _], part| {
            part(&a.sqr()?)?;
            a.sqr()
        },
        |h, b| h.matmul(b),
    );
    check("the variable as input", |[_, b], part| part(b), |h, b| h.matmul(b));
    check("a variable outside as well", |[_, b], part| part(&b.sqr()?)? * b.as_tensor(), |h, b| h.matmul(b));
    check("no variable inside", |[a, _], part| part(&a.sqr()?), |h, _| h.sqr());
    check("the input itself", |[a, _], part| part(&a.sqr()?)?.sqr(), |h, _| Ok(h.clone()));
    check("a part of the input", |[a, _], part| part(&a.sqr()?)?.sqr(), |h, b| h.matmul(b)?.narrow(0, 0, 1));
    check("turned", |[a, _], part| part(&a.sqr()?)?.sqr(), |h, b| h.matmul(b)?.t());
    check(
        "numbers of rows",
        |[a, _], part| part(&a.affine(0.0, 1.0)?.to_dtype(DType::U32)?),
        |h, b| b.index_select(&h.flatten_all()?, 0),
    );
    check(
        "a result of integers",
        |[a, b], part| part(&a.sqr()?)?.to_dtype(DType::F32)? * b.as_tensor(),
        |h, b| h.matmul(b)?.to_dtype(DType::U32),
    );
}

#[test]
fn parts_within_parts_have_the_bits_of_a_pass_that_keeps_everything() {
    check(
        "within",
        |[a, _], part| part(&a.sqr()?),
        |h, b| {
            let own = Var::from_tensor(b)?;
            let inner = recompute(&h.sqr()?, [&own], {
                let own = own.clone();
                move |h| h.matmul(&own)
            })?;
            inner.matmul(b)? + h
        },
    );
}

#[test]
fn a_gradient_that_an_operation_withholds_is_zero() {
    let a = var(1, &[2, 2]);
    let y = recompute(&a.sqr().unwrap(), [], |h| h.apply_op1(Withheld)).unwrap();
    assert_eq!(bits(y.backward().unwrap().get(&a).unwrap()), bits(&a.zeros_like().unwrap()));
}

/// A copy without a gradient.
struct Withheld;

impl CustomOp1 for Withheld {
    fn name(&self) -> &'static str {
        "withheld"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        Ok(None)
    }
}

#[test]
fn what_fails_or_differs_when_it_is_computed_again_is_told() {
    let [a, b, other] = [1, 2, 3].map(|seed| var(seed, &[2, 2]));
    let told = |again: fn(&Tensor, &Var) -> Result<Tensor>| {
        let (is_again, own) = (AtomicUsize::new(0), other.clone());
        let run =
            move |h: &Tensor| if is_again.fetch_add(1, Ordering::Relaxed) == 0 { h.sqr() } else { again(h, &own) };
        recompute(&a, [&b], run).unwrap().backward().unwrap_err().to_string()
    };
    for (again, part) in [
        (|_: &Tensor, _: &Var| bail!("planted")) as fn(&Tensor, &Var) -> Result<Tensor>,
        |h, _| h.narrow(0, 0, 1),
        |h, _| h.to_dtype(DType::F64),
        |h, other| h.matmul(other),
    ]
    .into_iter()
    .zip([
        "planted",
        "[2, 2] of F32, computed again [1, 2] of F32",
        "again [2, 2] of F64",
        "shape [2, 2] that is not one of",
    ]) {
        let error = told(again);
        assert!(error.contains(part), "{part}: {error}");
    }
}
