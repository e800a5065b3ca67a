//! The layers of `esper-layers` on the device, against `f64` on the CPU.

use candle_core::Device;
use esper_layers::check::{decoding_cases, linear_cases, norm_attention_cases, product_cases};

use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report};

type Cases = fn(&Device) -> candle_core::Result<Vec<(String, f64, f64)>>;

pub(super) fn run(gpu: &Gpu, report: &mut Report) {
    let groups: [(&str, Cases); 4] = [
        ("layers.linear", linear_cases),
        ("layers.norm_attention", norm_attention_cases),
        ("layers.decoding", decoding_cases),
        ("layers.product", product_cases),
    ];
    for (group, cases) in groups {
        report.group(group, || {
            let check = |(case, error, allowed): (String, f64, f64)| {
                let text = format!("error {error:e}, allowed {allowed:e}");
                // Not the other way round, so that an error which is no number fails.
                (case.replace(' ', "_"), if error <= allowed { Ok(text) } else { Err(Broken(text)) })
            };
            Ok(cases(&gpu.device)?.into_iter().map(check).collect())
        });
    }
}
