//! Operations without a backward pass, recorded by their name, so that a backward pass says which one cut it off; and results
//! recorded as those of an operation that has one.

use std::sync::Arc;

use crate::op::{BackpropOp, Op};
use crate::{CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

/// An operation of this name.
struct Cut(&'static str);

pub(crate) fn cut1(x: &Tensor, name: &'static str) -> BackpropOp {
    BackpropOp::new1(x, |x| Op::CustomOp1(x, Arc::new(Box::new(Cut(name)))))
}

pub(crate) fn cut2(x: &Tensor, y: &Tensor, name: &'static str) -> BackpropOp {
    BackpropOp::new2(x, y, |x, y| Op::CustomOp2(x, y, Arc::new(Box::new(Cut(name)))))
}

pub(crate) fn cut3(x: &Tensor, y: &Tensor, z: &Tensor, name: &'static str) -> BackpropOp {
    BackpropOp::new3(x, y, z, |x, y, z| Op::CustomOp3(x, y, z, Arc::new(Box::new(Cut(name)))))
}

impl Tensor {
    /// These elements, recorded as the result of an operation of `x`: only its backward pass will run.
    pub fn as_result_of1(&self, x: &Self, op: impl CustomOp1 + Send + Sync + 'static) -> Self {
        let op: Arc<Box<dyn CustomOp1 + Send + Sync>> = Arc::new(Box::new(op));
        self.recorded(BackpropOp::new1(x, |x| Op::CustomOp1(x, op.clone())))
    }

    /// These elements, recorded as the result of an operation of two tensors: only its backward pass will run.
    pub fn as_result_of2(&self, x: &Self, y: &Self, op: impl CustomOp2 + Send + Sync + 'static) -> Self {
        let op: Arc<Box<dyn CustomOp2 + Send + Sync>> = Arc::new(Box::new(op));
        self.recorded(BackpropOp::new2(x, y, |x, y| Op::CustomOp2(x, y, op.clone())))
    }

    /// These elements, recorded as the result of an operation of three tensors: only its backward pass will run.
    pub fn as_result_of3(&self, x: &Self, y: &Self, z: &Self, op: impl CustomOp3 + Send + Sync + 'static) -> Self {
        let op: Arc<Box<dyn CustomOp3 + Send + Sync>> = Arc::new(Box::new(op));
        self.recorded(BackpropOp::new3(x, y, z, |x, y, z| Op::CustomOp3(x, y, z, op.clone())))
    }

    /// These elements, recorded as the result of the operation `name` of three tensors, which has no backward pass.
    pub fn as_cut_of3(&self, x: &Self, y: &Self, z: &Self, name: &'static str) -> Self {
        self.recorded(cut3(x, y, z, name))
    }
}

impl Cut {
    fn refuse<T>(&self, args: &[&Tensor]) -> Result<T> {
        let shapes: Vec<&[usize]> = args.iter().map(|arg| arg.dims()).collect();
        crate::bail!(
            "the operation `{}` of tensors {shapes:?} has no backward pass: what comes before it would stay as it is; \
             `detach` its arguments where that is meant",
            self.0
        )
    }

    fn forward<T>(&self) -> Result<T> {
        crate::bail!("{} is recorded only", self.0)
    }
}

impl CustomOp1 for Cut {
    fn name(&self) -> &'static str {
        self.0
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.forward()
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        self.refuse(&[x])
    }
}

impl CustomOp2 for Cut {
    fn name(&self) -> &'static str {
        self.0
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.forward()
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, _: &Tensor, _: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        self.refuse(&[x, y])
    }
}

impl CustomOp3 for Cut {
    fn name(&self) -> &'static str {
        self.0
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward()
    }

    fn bwd(
        &self,
        x: &Tensor,
        y: &Tensor,
        z: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        if let ("add3", &[b, h, w, down], &[_, _, _, right]) = (self.0, y.dims(), z.dims()) {
            // The relative positions of candle-transformers' segment_anything: x (b, hw, down·right) + y (b, h, w, down)
            // along rows + z (b, h, w, right) along columns.
            let grad = grad.reshape((b, h, w, down, right))?;
            return Ok((Some(grad.reshape(x.dims())?), Some(grad.sum(4)?), Some(grad.sum(3)?)));
        }
        self.refuse(&[x, y, z])
    }
}
