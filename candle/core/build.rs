//! Takes the published sources of candle-core and puts calls of `src/backward` into them.

use candle_sources::Edit;

/// Arms of the match over operations in `Tensor::backward`, before those of candle.
const ARMS: &str = "                match op {
                    Op::AvgPool2D { arg, kernel_size, stride } => {
                        let found = crate::backward::pool::avg_pool2d(arg, &grad, *kernel_size, *stride)?;
                        grads.add(arg, &found)?;
                    }
                    Op::MaxPool2D { arg, kernel_size, stride } => {
                        let found = crate::backward::pool::max_pool2d(arg, node, &grad, *kernel_size, *stride)?;
                        grads.add(arg, &found)?;
                    }
                    Op::UpsampleNearest1D { arg, target_size } => {
                        let found = crate::backward::upsample::nearest1d(arg, &grad, *target_size)?;
                        grads.add(arg, &found)?;
                    }
                    Op::UpsampleNearest2D { arg, target_h, target_w } => {
                        let found = crate::backward::upsample::nearest2d(arg, &grad, *target_h, *target_w)?;
                        grads.add(arg, &found)?;
                    }
                    Op::UpsampleBilinear2D { arg, target_h, target_w, align_corners } => {
                        let found = crate::backward::upsample::bilinear2d(arg, &grad, *target_h, *target_w, *align_corners)?;
                        grads.add(arg, &found)?;
                    }
                    // On the CPU the weight's gradient of candle itself is wrong.
                    Op::Conv1D { arg, kernel, padding, stride, dilation } => {
                        let by = (*padding, *stride, *dilation);
                        let (input, weight) = crate::backward::conv::grouped_backward(arg, kernel, &grad, by, 1)?;
                        if let Some(input) = input {
                            grads.add(arg, &input)?;
                        }
                        if let Some(weight) = weight {
                            grads.add(kernel, &weight)?;
                        }
                    }
                    Op::Conv2D { arg, kernel, padding, stride, dilation }
                        if crate::backward::conv::is_uneven(arg, kernel, (*padding, *stride, *dilation))? =>
                    {
                        let by = (*padding, *stride, *dilation);
                        let (input, weight) = crate::backward::conv::grouped_backward(arg, kernel, &grad, by, 1)?;
                        if let Some(input) = input {
                            grads.add(arg, &input)?;
                        }
                        if let Some(weight) = weight {
                            grads.add(kernel, &weight)?;
                        }
                    }
                    Op::ConvTranspose1D { arg, kernel, padding, stride, dilation, .. } => {
                        let by = (*padding, *stride, *dilation);
                        let (input, weight) = crate::backward::conv::conv_transpose1d(arg, kernel, &grad, by)?;
                        grads.add(arg, &input)?;
                        grads.add(kernel, &weight)?;
                    }
                    Op::Scatter(init, indexes, src, dim) => {
                        // What was written over has no part in the result.
                        let kept = grad.scatter(indexes, &src.zeros_like()?, *dim)?;
                        grads.add(init, &kept)?;
                        grads.add(src, &grad.gather(indexes, *dim)?)?;
                    }
                    Op::Binary(lhs, rhs, BinaryOp::Add) => {
";

const EDITS: &[Edit] = &[
    Edit {
        file: "backprop.rs",
        find: "                match op {\n                    Op::Binary(lhs, rhs, BinaryOp::Add) => {\n",
        replace: ARMS,
    },
    Edit {
        file: "backprop.rs",
        find: "",
        replace: "
impl GradStore {
    fn add(&mut self, tensor: &Tensor, found: &Tensor) -> Result<()> {
        let sum = self.or_insert(tensor)?;
        *sum = sum.add(found)?;
        Ok(())
    }
}
",
    },
    Edit {
        file: "tensor.rs",
        find: "",
        replace: "
impl Tensor {
    /// The same elements at the same place, as the result of `op`.
    pub(crate) fn recorded(&self, op: BackpropOp) -> Self {
        Self(Arc::new(Tensor_ {
            id: TensorId::new(),
            storage: self.storage.clone(),
            layout: self.layout.clone(),
            op,
            is_variable: false,
            dtype: self.dtype,
            device: self.device.clone(),
        }))
    }
}
",
    },
    Edit {
        file: "tensor.rs",
        find: "        let op = BackpropOp::new1(self, |arg| Op::UpsampleBilinear2D {
            arg,
            target_h: height_out,
            target_w: width_out,
            align_corners,
        });
",
        replace: "        let op = crate::backward::upsample::by_scale(self, scale_h, scale_w, align_corners);
",
    },
    // The groups are computed as before, and recorded as one operation.
    Edit {
        file: "conv.rs",
        find: "            let blocks = self.chunk(groups, 1)?;
            let kernel = kernel.chunk(groups, 0)?;
            let blocks = blocks
                .iter()
                .zip(&kernel)
                .map(|(block, kernel)| block.conv1d_single_group(kernel, &params))
                .collect::<Result<Vec<_>>>()?;
            Tensor::cat(&blocks, 1)
",
        replace: "            if let Some(found) = crate::backward::conv::direct(self, kernel, (padding, stride, dilation), groups)? {
                return crate::backward::conv::grouped(&found, self, kernel, (padding, stride, dilation), groups);
            }
            let blocks = self.detach().chunk(groups, 1)?;
            let kernels = kernel.detach().chunk(groups, 0)?;
            let blocks = blocks
                .iter()
                .zip(&kernels)
                .map(|(block, kernel)| block.conv1d_single_group(kernel, &params))
                .collect::<Result<Vec<_>>>()?;
            crate::backward::conv::grouped(&Tensor::cat(&blocks, 1)?, self, kernel, (padding, stride, dilation), groups)
",
    },
    Edit {
        file: "conv.rs",
        find: "            let blocks = self.chunk(groups, 1)?;
            let kernel = kernel.chunk(groups, 0)?;
            let blocks = blocks
                .iter()
                .zip(&kernel)
                .map(|(block, kernel)| block.conv2d_single_group(kernel, &params))
                .collect::<Result<Vec<_>>>()?;
            Tensor::cat(&blocks, 1)
",
        replace: "            if let Some(found) = crate::backward::conv::direct(self, kernel, (padding, stride, dilation), groups)? {
                return crate::backward::conv::grouped(&found, self, kernel, (padding, stride, dilation), groups);
            }
            let blocks = self.detach().chunk(groups, 1)?;
            let kernels = kernel.detach().chunk(groups, 0)?;
            let blocks = blocks
                .iter()
                .zip(&kernels)
                .map(|(block, kernel)| block.conv2d_single_group(kernel, &params))
                .collect::<Result<Vec<_>>>()?;
            crate::backward::conv::grouped(&Tensor::cat(&blocks, 1)?, self, kernel, (padding, stride, dilation), groups)
",
    },
    // Operations without a backward pass are recorded by their name.
    Edit {
        file: "custom_op.rs",
        find: "        let (storage, shape) = self.storage().apply_op1(self.layout(), c)?;
        Ok(from_storage(storage, shape, BackpropOp::none(), false))
",
        replace: "        let (storage, shape) = self.storage().apply_op1(self.layout(), c)?;
        Ok(from_storage(storage, shape, crate::backward::cut::cut1(self, c.name()), false))
",
    },
    Edit {
        file: "custom_op.rs",
        find: "                .apply_op2(self.layout(), &rhs.storage(), rhs.layout(), c)?;
        Ok(from_storage(storage, shape, BackpropOp::none(), false))
",
        replace: "                .apply_op2(self.layout(), &rhs.storage(), rhs.layout(), c)?;
        Ok(from_storage(storage, shape, crate::backward::cut::cut2(self, rhs, c.name()), false))
",
    },
    Edit {
        file: "custom_op.rs",
        find: "            t3.layout(),
            c,
        )?;
        Ok(from_storage(storage, shape, BackpropOp::none(), false))
",
        replace: "            t3.layout(),
            c,
        )?;
        Ok(from_storage(storage, shape, crate::backward::cut::cut3(self, t2, t3, c.name()), false))
",
    },
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    candle_sources::write("candle-core", "0.11.1", EDITS).map_err(|e| e.to_string().into())
}
