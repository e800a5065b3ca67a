//! What is kept of a shape: the captured graph, and what the compiler made of it. They come and go together.

use candle_core::{Tensor, TensorId};

use super::backend::Backend;
use super::compiling::{Compiling, Notice, Taken};
use crate::reason::Refusal;

#[derive(Debug)]
pub(super) struct Replayable<B: Backend> {
    pub(super) compiling: Compiling<B>,
    pub(super) captured: B::Captured,
    /// The parameters that it was captured with.
    pub(super) parameters: Vec<TensorId>,
}

impl<B: Backend> Replayable<B> {
    /// Takes one step.
    ///
    /// # Errors
    /// [`Refusal::OtherThread`]; [`Refusal::Moved`] where a parameter is another tensor than at capture; the refusal of the
    /// captured graph. Nothing has run then, but for copies of the values.
    pub(super) fn step<'a>(
        &mut self,
        backend: &mut B,
        parameters: impl Iterator<Item = (&'a str, &'a Tensor)>,
        feed: Option<&mut B::Feed<'_>>,
    ) -> Result<(Taken, Option<Notice>), Refusal> {
        if !B::is_of_this_thread(&self.captured) {
            return Err(Refusal::OtherThread);
        }
        if let Some(name) = first_other(&self.parameters, parameters) {
            return Err(Refusal::Moved { what: name.to_owned() });
        }
        self.compiling.step(backend, &self.captured, feed)
    }
}

/// The first parameter that is another tensor than the one in its place.
fn first_other<'a>(ids: &[TensorId], parameters: impl Iterator<Item = (&'a str, &'a Tensor)>) -> Option<&'a str> {
    let mut ids = ids.iter();
    parameters.filter_map(|(name, tensor)| (ids.next() != Some(&tensor.id())).then_some(name)).next()
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn a_parameter_that_was_written_is_the_same_and_one_that_was_replaced_is_found() {
        let var = || Var::new(&[1.0_f32, 2.0], &Device::Cpu).unwrap();
        let parameters = [("a", var()), ("b", var())];
        let ids: Vec<TensorId> = parameters.iter().map(|(_, var)| var.as_tensor().id()).collect();
        let other = |now: &[(&'static str, Var)]| {
            first_other(&ids, now.iter().map(|(name, var)| (*name, var.as_tensor()))).map(str::to_owned)
        };
        parameters[1].1.set(&Tensor::new(&[3.0_f32, 4.0], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(other(&parameters), None);
        let [a, _] = parameters.clone();
        assert_eq!(other(&[a.clone(), ("b", var())]).as_deref(), Some("b"));
        assert_eq!(other(&[a.clone(), parameters[1].clone(), ("c", var())]).as_deref(), Some("c"));
    }
}
