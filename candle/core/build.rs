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
                        if crate::backward::conv::is_replaced(arg, kernel, (*padding, *stride, *dilation))? =>
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
                    Op::Matmul(lhs, rhs) if crate::backward::transposed::is_replaced(lhs, rhs) => {
                        for (of, found) in crate::backward::transposed::gradients(lhs, rhs, &grad, do_not_detach)? {
                            grads.add(of, &found)?;
                        }
                        // What nothing flows back to: it went by.
                        for operand in [lhs, rhs] {
                            grads.or_insert(operand)?;
                            grads.or_insert(crate::backward::transposed::stored(operand))?;
                        }
                    }
                    Op::Scatter(init, indexes, src, dim) => {
                        // What was written over has no part in the result.
                        let kept = grad.scatter(indexes, &src.zeros_like()?, *dim)?;
                        grads.add(init, &kept)?;
                        grads.add(src, &grad.gather(indexes, *dim)?)?;
                    }
                    Op::ScatterAdd(init, indexes, src, dim) => {
                        grads.add(init, &grad)?;
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
    // What nothing flows back to has nothing to pass on.
    Edit {
        file: "backprop.rs",
        find: "            let grad = grads
                .remove(node)
                .expect(\"candle internal error - grad not populated\");
",
        replace: "            let grad = grads.0.remove(&node.id()).expect(\"candle internal error - grad not populated\").into_found();
            let Some(grad) = grad else { continue };
",
    },
    // A gradient begins with its first term, not with zeros.
    Edit { file: "backprop.rs", find: "GradStore(HashMap<TensorId, Tensor>);", replace: "GradStore(HashMap<TensorId, crate::backward::sum::Sum>);" },
    Edit { file: "backprop.rs", find: "self.0.get(&id)", replace: "self.0.get(&id)?.found()" },
    Edit { file: "backprop.rs", find: "self.0.get(&tensor.id())", replace: "self.0.get(&tensor.id())?.found()" },
    Edit { file: "backprop.rs", find: "self.0.remove(&tensor.id())", replace: "self.0.remove(&tensor.id())?.into_found()" },
    Edit { file: "backprop.rs", find: "self.0.insert(tensor.id(), grad)", replace: "self.0.insert(tensor.id(), grad.into())?.into_found()" },
    Edit { file: "backprop.rs", find: "self.0.insert(id, grad)", replace: "self.0.insert(id, grad.into())?.into_found()" },
    Edit { file: "backprop.rs", find: "self.0.keys()", replace: "self.0.iter().filter_map(|(id, sum)| sum.found().map(|_| id))" },
    Edit { file: "backprop.rs", find: "Result<&mut Tensor> {", replace: "Result<&mut crate::backward::sum::Sum> {" },
    Edit { file: "backprop.rs", find: "let grad = tensor.zeros_like()?;", replace: "let grad = crate::backward::sum::Sum::Empty(tensor.clone());" },
    Edit { file: "backprop.rs", find: "for (id, grad) in other.0 {", replace: "let terms = other.0.into_iter().filter_map(|(id, grad)| Some((id, grad.into_found()?)));\n        for (id, grad) in terms {" },
    Edit { file: "backprop.rs", find: "                Entry::Occupied(mut entry) => {\n                    let new_grad = entry.get().add(&grad)?;", replace: "                Entry::Occupied(mut entry) => {\n                    let Some(new_grad) = entry.get().add(&grad)?.into_found() else { continue };" },
    Edit { file: "backprop.rs", find: "*entry.get_mut() = new_grad;", replace: "*entry.get_mut() = new_grad.into();" },
    Edit { file: "backprop.rs", find: "                    entry.insert(grad);", replace: "                    entry.insert(grad.into());" },
    Edit { file: "backprop.rs", find: "grad.conv1d(&kernel, 0, scale, 1, c)?;", replace: "grad.conv1d(&kernel, 0, scale, 1, c)?.into();" },
    Edit { file: "backprop.rs", find: "grad.conv2d(&kernel, 0, scale_h, 1, c)?;", replace: "grad.conv2d(&kernel, 0, scale_h, 1, c)?.into();" },
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
    // What another package computes.
    Edit {
        file: "tensor.rs",
        find: "        let storage = self.storage().matmul(
",
        replace: "        if let Some(found) = crate::provided::product(self, rhs, self.dtype())? {
            return Ok(found.recorded(BackpropOp::new2(self, rhs, Op::Matmul)));
        }
        let storage = self.storage().matmul(
",
    },
    Edit {
        file: "tensor.rs",
        find: "            let storage = self.storage().to_dtype(self.layout(), dtype)?;
            let op = BackpropOp::new1(self, Op::ToDType);
",
        replace: "            if let Some(found) = crate::provided::rounded(self, dtype)? {
                return Ok(found.recorded(BackpropOp::new1(self, Op::ToDType)));
            }
            let storage = self.storage().to_dtype(self.layout(), dtype)?;
            let op = BackpropOp::new1(self, Op::ToDType);
",
    },
    // What lies transposed has no rows that a batch could be stacked into.
    Edit {
        file: "cpu_backend/mod.rs",
        find: "if b_skip == 0 && a_skip == m * k {
            // A batch-invariant rhs",
        replace: "if b_skip == 0 && a_skip == m * k && (lhs_rs, lhs_cs) == (k, 1) {
            // A batch-invariant rhs",
    },
    // Shapes of strided operands are copied to a GPU once, and its kernels looked up once, not for each launch.
    Edit {
        file: "cuda_backend/mod.rs",
        find: "        if device::cuda_graph_htod_cache_enabled() {
            let key",
        replace: "        let num_kept = CUDA_PARAM_CACHE.get().map_or(0, |cache| cache.lock().unwrap().len());
        if device::cuda_graph_htod_cache_enabled() || num_kept < 4096 {
            let key",
    },
    Edit {
        file: "cuda_backend/device.rs",
        find: "pub struct ModuleStore {
",
        replace: "pub struct ModuleStore {
    functions: [HashMap<String, CudaFunction>; kernels::ALL_IDS.len()],
",
    },
    Edit {
        file: "cuda_backend/device.rs",
        find: "        let module_store = ModuleStore {
",
        replace: "        let module_store = ModuleStore {
            functions: std::array::from_fn(|_| HashMap::new()),
",
    },
    Edit {
        file: "cuda_backend/device.rs",
        find: "        if let Some(mdl) = ms.mdls[mdl.index()].as_ref() {
            let func = mdl.load_function(fn_name).w()?;
",
        replace: "        if let Some(func) = ms.functions[mdl.index()].get(fn_name).cloned() {
",
    },
    Edit {
        file: "cuda_backend/device.rs",
        find: "        let cuda_module = self.context.load_module(mdl.ptx().into()).w()?;
        ms.mdls[mdl.index()] = Some(cuda_module.clone());
        let func = cuda_module.load_function(fn_name).w()?;
",
        replace: "        let cuda_module = match &ms.mdls[mdl.index()] {
            Some(found) => found.clone(),
            None => crate::machine_code::load(&self.context, mdl).w()?,
        };
        ms.mdls[mdl.index()] = Some(cuda_module.clone());
        let func = cuda_module.load_function(fn_name).w()?;
        ms.functions[mdl.index()].insert(fn_name.to_string(), func.clone());
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
    // Convolutions that are products, where that is asked for.
    Edit {
        file: "conv.rs",
        find: "        if groups == 1 {
            self.conv1d_single_group(kernel, &params)
",
        replace: "        if groups == 1 {
            if let Some(found) = crate::backward::conv::direct(self, kernel, (padding, stride, dilation), groups)? {
                return crate::backward::conv::grouped(&found, self, kernel, (padding, stride, dilation), groups);
            }
            self.conv1d_single_group(kernel, &params)
",
    },
    Edit {
        file: "conv.rs",
        find: "        if groups == 1 {
            self.conv2d_single_group(kernel, &params)
",
        replace: "        if groups == 1 {
            if let Some(found) = crate::backward::conv::direct(self, kernel, (padding, stride, dilation), groups)? {
                return crate::backward::conv::grouped(&found, self, kernel, (padding, stride, dilation), groups);
            }
            self.conv2d_single_group(kernel, &params)
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

/// The kernels that the driver would compile, but those of quantized tensors.
const KERNELS: &[&str] =
    &["affine", "binary", "cast", "conv", "fill", "indexing", "reduce", "sort", "ternary", "unary"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    candle_sources::write("candle-core", "0.11.1", EDITS)
        .and_then(|()| candle_sources::write_images("candle-kernels", "0.11.1", KERNELS))
        .map_err(|e| e.to_string().into())
}
