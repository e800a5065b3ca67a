//! Takes the published sources of candle-nn and puts calls of `src/backward` into them.

use candle_sources::Edit;

const fn ops(find: &'static str, replace: &'static str) -> Edit {
    Edit { file: "ops.rs", find, replace }
}

const fn rotary(find: &'static str, replace: &'static str) -> Edit {
    Edit { file: "rotary_emb.rs", find, replace }
}

const fn cache(find: &'static str, replace: &'static str) -> Edit {
    Edit { file: "kv_cache.rs", find, replace }
}

const fn norm(find: &'static str, replace: &'static str) -> Edit {
    Edit { file: "layer_norm.rs", find, replace }
}

const EDITS: &[Edit] = &[
    norm(
        "        if x.is_contiguous() && self.remove_mean {
            if let Some(bias) = self.bias.as_ref() {
",
        "        let kept;
        let mut x = x;
        if self.remove_mean && self.bias.is_some() {
            kept = crate::backward::norm::in_rows(x)?;
            x = &kept;
        }
        if x.is_contiguous() && self.remove_mean {
            if let Some(bias) = self.bias.as_ref() {
",
    ),
    norm(
        "        if xs.is_contiguous() {
            crate::ops::rms_norm(",
        "        let xs = &crate::backward::norm::in_rows(xs)?;
        if xs.is_contiguous() {
            crate::ops::rms_norm(",
    ),
    ops(
        "impl candle::CustomOp1 for SoftmaxLastDim {\n",
        "impl candle::CustomOp1 for SoftmaxLastDim {
    fn bwd(&self, _: &Tensor, res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        crate::backward::norm::softmax(res, grad).map(Some)
    }

",
    ),
    ops("xs.apply_op1_no_bwd(&SoftmaxLastDim)", "xs.apply_op1(SoftmaxLastDim)"),
    ops(
        "impl candle::CustomOp2 for RmsNorm {\n",
        "impl candle::CustomOp2 for RmsNorm {
    fn bwd(&self, x: &Tensor, alpha: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        crate::backward::norm::rms_norm(x, alpha, grad, self.eps)
    }

",
    ),
    // Candle refuses `f64` on the CPU, in which gradients are compared with differences.
    ops(
        "    xs.apply_op2_no_bwd(alpha, &RmsNorm { eps })",
        "    if xs.dtype() == DType::F64 && xs.device().is_cpu() {
        let found = rms_norm_slow(&xs.detach(), &alpha.detach(), eps)?;
        return Ok(found.as_result_of2(xs, alpha, RmsNorm { eps }));
    }
    xs.apply_op2(alpha, RmsNorm { eps })",
    ),
    ops(
        "impl candle::CustomOp3 for LayerNorm {\n",
        "impl candle::CustomOp3 for LayerNorm {
    fn bwd(
        &self,
        x: &Tensor,
        alpha: &Tensor,
        beta: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        crate::backward::norm::layer_norm(x, alpha, beta, grad, self.eps)
    }

",
    ),
    ops(
        "    xs.apply_op3_no_bwd(alpha, beta, &LayerNorm { eps })",
        "    if xs.dtype() == DType::F64 && xs.device().is_cpu() {
        let found = layer_norm_slow(&xs.detach(), &alpha.detach(), &beta.detach(), eps)?;
        return Ok(found.as_result_of3(xs, alpha, beta, LayerNorm { eps }));
    }
    xs.apply_op3(alpha, beta, LayerNorm { eps })",
    ),
    rotary("impl candle::CustomOp3 for RotaryEmbI {\n", ROPE_I),
    rotary("xs.apply_op3_no_bwd(cos, sin, &RotaryEmbI)", "xs.apply_op3(cos, sin, RotaryEmbI)"),
    rotary("impl candle::CustomOp3 for RotaryEmb {\n", ROPE),
    rotary("xs.apply_op3_no_bwd(cos, sin, &RotaryEmb)", "xs.apply_op3(cos, sin, RotaryEmb)"),
    rotary("impl candle::CustomOp3 for RotaryEmbThd {\n", ROPE_THD),
    rotary("xs.apply_op3_no_bwd(cos, sin, &RotaryEmbThd)", "xs.apply_op3(cos, sin, RotaryEmbThd)"),
    // Attention on the CPU builds its result from slices, without a record of where they came from.
    Edit { file: "attention/cpu_flash/mod.rs", find: "pub fn flash_attn<T>(", replace: "fn forward<T>(" },
    Edit { file: "attention/cpu_flash/mod.rs", find: "", replace: FLASH },
    Edit { file: "attention/cpu_flash/varlen.rs", find: "pub fn flash_attn_varlen_cpu(", replace: "fn forward(" },
    Edit { file: "attention/cpu_flash/varlen.rs", find: "", replace: VARLEN },
    // What a call appends keeps its history in what the call returns; what is stored for later calls does not.
    cache(
        "        let out_k = self.k.current_data()?;\n        let out_v = self.v.current_data()?;\n",
        "        let with_tail = |data: Tensor, part: &Tensor| crate::backward::cache::with_tail(&data, part, self.k.dim);
        let out_k = self.k.current_data()?.map(|data| with_tail(data, k));
        let out_v = self.v.current_data()?.map(|data| with_tail(data, v));
",
    ),
    cache(
        "                Ok(ad.narrow(self.dim, 0, self.current_seq_len)?)\n",
        "                Ok(crate::backward::cache::with_tail(&ad.narrow(self.dim, 0, self.current_seq_len)?, src, self.dim))\n",
    ),
    cache("                Ok(ad.clone())\n", "                Ok(crate::backward::cache::wrapped(ad, src))\n"),
    cache(
        "        Ok((self.k.clone(), self.v.clone()))\n",
        "        Ok((crate::backward::cache::wrapped(&self.k, k), crate::backward::cache::wrapped(&self.v, v)))\n",
    ),
    cache("        let k = k.contiguous()?.detach();\n", "        let k = k.contiguous()?;\n"),
    cache("        let v = v.contiguous()?.detach();\n", "        let v = v.contiguous()?;\n"),
    cache("Tensor::cat(&[k_cache, &k], self.dim)?.detach()", "Tensor::cat(&[k_cache, &k], self.dim)?"),
    cache("Tensor::cat(&[v_cache, &v], self.dim)?.detach()", "Tensor::cat(&[v_cache, &v], self.dim)?"),
    cache(
        "        Ok((
            self.k.as_ref().unwrap().clone(),
            self.v.as_ref().unwrap().clone(),
        ))
",
        "        let found = (self.k.take().unwrap(), self.v.take().unwrap());
        self.k = Some(found.0.detach());
        self.v = Some(found.1.detach());
        Ok(found)
",
    ),
    cache("let k_seq = k.squeeze(0)?.transpose(0, 1)?.contiguous()?.detach();", "let k_seq = k.squeeze(0)?.transpose(0, 1)?.contiguous()?;"),
    cache("let v_seq = v.squeeze(0)?.transpose(0, 1)?.contiguous()?.detach();", "let v_seq = v.squeeze(0)?.transpose(0, 1)?.contiguous()?;"),
    cache("Tensor::cat(&[&k_seq, &v_seq], 2)?.detach()", "Tensor::cat(&[&k_seq, &v_seq], 2)?"),
    cache("Tensor::cat(&[kv_cache, &kv_new], 0)?.detach()", "Tensor::cat(&[kv_cache, &kv_new], 0)?"),
    cache(
        "        Ok(self.kv.as_ref().unwrap().clone())\n",
        "        let found = self.kv.take().unwrap();
        self.kv = Some(found.detach());
        Ok(found)
",
    ),
];

/// A rotation of `xs` by the angles whose cosines and sines are given, as the layout of `$forward` has it.
macro_rules! rotary_backward {
    ($name:literal, $layout:literal) => {
        concat!(
            "impl candle::CustomOp3 for ",
            $name,
            " {
    fn bwd(
        &self,
        x: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        crate::backward::rotary::Layout::",
            $layout,
            ".backward(x, cos, sin, grad)
    }

"
        )
    };
}

const ROPE: &str = rotary_backward!("RotaryEmb", "Halves");
const ROPE_I: &str = rotary_backward!("RotaryEmbI", "Pairs");
const ROPE_THD: &str = rotary_backward!("RotaryEmbThd", "HalvesByTime");

const FLASH: &str = "
pub fn flash_attn<T>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    attn_mask: AttnMask,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor>
where
    T: WithDType + num_traits::Float,
{
    let op = crate::backward::attention::Attention::new(softmax_scale, attn_mask.clone(), max_bias, softcap);
    let found = forward::<T>(q, k, v, softmax_scale, attn_mask, max_bias, softcap)?;
    Ok(found.as_result_of3(q, k, v, op))
}
";

const VARLEN: &str = "
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_cpu(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
    window_left: Option<usize>,
    window_right: Option<usize>,
) -> Result<Tensor> {
    let found = forward(
        q, k, v, alibi_slopes, seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_left, window_right,
    )?;
    Ok(found.as_cut_of3(q, k, v, \"flash_attn_varlen_cpu\"))
}
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    candle_sources::write("candle-nn", "0.11.1", EDITS).map_err(|e| e.to_string().into())
}
